"""Choosing installed grammar strategies where the configuration names none."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from guideway.api.grammar import GrammarStrategy
from guideway.api.types import Constraint
from guideway.api.vocabulary import Vocabulary
from guideway.errors import GuidewayError, LimitExceeded, PluginError, UnsupportedGrammar, close_each
from guideway.plugins import PluginIndex, PluginRecord, Plugins, PluginSettings
from guideway.plugins.building import build_strategies
from guideway.plugins.configuration import component_name
from guideway.plugins.selection import denial
from guideway.runtime.constraints.candidates import choose

from guideway_engine.config import EngineConfig

__all__ = ["installed_strategies", "of_installed", "serving", "with_strategies"]

log = logging.getLogger(__name__)

MOST_ASKED = 64
"""Number of constraints above which answering takes so long that the time to import strategies does not matter."""

OURS = ("guideway-llguidance", "guideway-lmfe", "guideway-outlines", "guideway-xgrammar")
"""Distributions whose strategies are used without being selected, in the order in which they are tried. Strategies of
others run only if they are selected."""

IN_VLLM = "guideway-vllm"
"""Distribution whose strategies run only in vLLM."""

NONE_CONFIGURED = "no configured strategy"
"""Beginning of an error about all strategies together, raised before any of them compiles."""

BYTES = Vocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b""],
    stop_token_ids=frozenset({256}),
    special_tokens={256: "</s>"},
)


def installed_strategies(
    settings: PluginSettings, options: Mapping[str, Any], constraints: Collection[Constraint] | None = None
) -> tuple[tuple[str, ...], bool]:
    """Return the addresses of the usable installed strategies from `OURS`, in order, and whether some were left out.

    With `constraints` the list ends once each constraint is fully enforced by one of the listed strategies; the others
    are left out and not imported.
    """
    index = PluginIndex.scan()
    addresses = _addresses(index, settings)
    plugins = Plugins(index, settings)
    ranked = iter(sorted((r for r in addresses if r.distribution in OURS), key=lambda r: OURS.index(r.distribution)))
    found: list[str] = []
    left = list(constraints or ())
    for record in ranked:
        try:
            strategy = plugins.load("grammar", f"{record.distribution}/{record.name}")
            if strategy.available() is not None:
                continue
        except PluginError:  # listed, so that its error is shown
            strategy = None
        found.append(addresses[record])
        if strategy is not None and left and len(left) <= MOST_ASKED:
            left = _filter_unenforced(strategy, options, left)
            if not left:
                return tuple(found), next(ranked, None) is not None
    return tuple(found), False


def with_strategies(config: EngineConfig) -> EngineConfig:
    """Return `config` with the usable installed strategies if it does not set `grammar`, and log their names."""
    if config.grammar is not None:
        return config
    names, _ = installed_strategies(config.plugins, config.options)
    log.info("grammar is not set, so guideway's own installed strategies are used: %s", ", ".join(names) or "none")
    return replace(config, grammar=names)


def serving(
    error: UnsupportedGrammar,
    settings: PluginSettings,
    options: Mapping[str, Any],
    constraint: Constraint,
    asked: Collection[str],
    *,
    in_full: bool = False,
) -> list[str]:
    """Return the addresses of strategies from `OURS` that claim to accept a constraint refused by all those `asked`.

    These are the strategies that enforce all of it, or else, unless `in_full`, those that enforce a part. The list is
    empty unless `error` is a refusal before compiling: a strategy that accepted the constraint and failed later shows
    that claims mean little. Imports the strategies.
    """
    if not str(error).startswith(NONE_CONFIGURED):
        return []
    plugins = Plugins(settings=settings)
    full: list[str] = []
    some: list[str] = []
    refused = {component_name("grammar", address) for address in asked}
    for address in installed_strategies(settings, options)[0]:
        if component_name("grammar", address) in refused:
            continue
        try:
            built = build_strategies([plugins.load("grammar", address)], BYTES, options)
        except GuidewayError:
            continue
        try:
            (some if choose(constraint, built).candidates[0].unenforced else full).append(address)
        except GuidewayError:
            continue
        finally:
            close_each([(f"grammar.{name}", strategy.close) for name, strategy in built.items()])
    return full if in_full else full or some


def of_installed(error: UnsupportedGrammar, settings: PluginSettings) -> UnsupportedGrammar:
    """Return the same error for strategies that were not configured but taken from the installed ones of `OURS`. It
    lists the other installed strategies."""
    said = str(error).replace(NONE_CONFIGURED, "no installed strategy", 1)
    addresses = _addresses(PluginIndex.scan(), settings)
    if others := [address for record, address in addresses.items() if record.distribution not in (*OURS, IN_VLLM)]:
        said = f"{said}; not asked, because nobody chose them with --strategy: {', '.join(others)}"
    told = UnsupportedGrammar(
        said.replace("configure a strategy that", "install a strategy that", 1),
        feature=error.feature,
        field=error.field,
    )
    told.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def _addresses(index: PluginIndex, settings: PluginSettings) -> dict[PluginRecord, str]:
    """Return the grammar strategies that may run, each with the shortest unambiguous address."""
    records = [r for r in index.records if r.kind == "grammar" and denial(settings, r) is None]
    claimed = [record.name for record in records]
    return {
        r: r.name if claimed.count(r.name) == 1 else f"{r.distribution}/{r.name}" for r in records if not r.is_for_tests
    }


def _filter_unenforced(
    cls: type[GrammarStrategy], options: Mapping[str, Any], constraints: list[Constraint]
) -> list[Constraint]:
    """Return the constraints that a strategy does not fully enforce."""
    try:
        built = build_strategies([cls], BYTES, options)
    except GuidewayError:  # the engine, with the model's vocabulary, raises it
        return constraints
    try:
        return [constraint for constraint in constraints if not _enforces(built, constraint)]
    finally:
        close_each([(f"grammar.{name}", strategy.close) for name, strategy in built.items()])


def _enforces(built: Mapping[str, GrammarStrategy], constraint: Constraint) -> bool:
    try:
        return not choose(constraint, built).candidates[0].unenforced
    except (UnsupportedGrammar, LimitExceeded):
        return False
    except GuidewayError:
        return True  # other strategies would not be tried
