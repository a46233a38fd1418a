"""The installed grammar strategies that a command needs, so that no other is imported."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from guideway.api.grammar import GrammarStrategy
from guideway.api.types import Constraint
from guideway.api.vocabulary import Vocabulary
from guideway.errors import GuidewayError, LimitExceeded, PluginError, UnsupportedGrammar, close_each
from guideway.plugins import PluginIndex, PluginRecord, Plugins, PluginSettings
from guideway.plugins.building import build_strategies
from guideway.plugins.configuration import component_name
from guideway.plugins.selection import denial
from guideway.runtime.candidates import choose

__all__ = ["installed_strategies", "of_installed", "serving"]

MOST_ASKED = 64
"""Constraints. More than these are answered for so long that the time to import a strategy does not matter."""

NONE_CONFIGURED = "no configured strategy"
"""The beginning of an error about all strategies together, before any of them compiles."""

BYTES = Vocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b""],
    stop_token_ids=frozenset({256}),
    special_tokens={256: "</s>"},
)


def installed_strategies(
    settings: PluginSettings, options: Mapping[str, Any], constraints: Collection[Constraint] | None = None
) -> tuple[tuple[str, ...], bool]:
    """The addresses of installed grammar strategies that may run and can: those of guideway's own distributions first,
    the slow reference last. With `constraints` only as many as it takes until one says of each that it enforces all of
    it; and whether others were left out, which nobody imported."""
    index = PluginIndex.scan()
    records = [r for r in index.records if r.kind == "grammar" and denial(settings, r) is None]
    claimed = [record.name for record in records]
    plugins = Plugins(index, settings)
    addresses = {r: r.name if claimed.count(r.name) == 1 else f"{r.distribution}/{r.name}" for r in records}
    ranked = iter(sorted(records, key=lambda r: (_rank(r), addresses[r])))
    found: list[str] = []
    left = list(constraints or ())
    for record in ranked:
        try:
            strategy = plugins.load("grammar", f"{record.distribution}/{record.name}")
            if strategy.available() is not None:
                continue
        except PluginError:  # it counts: its error is to be seen
            strategy = None
        found.append(addresses[record])
        if strategy is not None and left and len(left) <= MOST_ASKED:
            left = _left(strategy, options, left)
            if not left:
                return tuple(found), next(ranked, None) is not None
    return tuple(found), False


def serving(
    error: UnsupportedGrammar,
    settings: PluginSettings,
    options: Mapping[str, Any],
    constraint: Constraint,
    asked: Collection[str],
    *,
    in_full: bool = False,
) -> list[str]:
    """The addresses of installed strategies that say they take a constraint which those `asked` do not, as `error`
    says: those that enforce all of it, or else, unless it is to be enforced `in_full`, those that enforce some. None
    where what they say tells little, because one that was asked took it and failed later. Imports every strategy that
    is installed."""
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


def of_installed(error: UnsupportedGrammar) -> UnsupportedGrammar:
    """The same error where nobody configured the strategies that were asked: all that are installed."""
    said = str(error).replace(NONE_CONFIGURED, "no installed strategy", 1)
    told = UnsupportedGrammar(
        said.replace("configure a strategy that", "install a strategy that", 1),
        feature=error.feature,
        field=error.field,
    )
    told.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def _rank(record: PluginRecord) -> int:
    if record.name == "reference":
        return 2
    return 0 if record.distribution.startswith("guideway-") else 1


def _left(cls: type[GrammarStrategy], options: Mapping[str, Any], constraints: list[Constraint]) -> list[Constraint]:
    """Those that a strategy does not enforce in full."""
    try:
        built = build_strategies([cls], BYTES, options)
    except GuidewayError:  # the engine, with the model's vocabulary, says it
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
        return True  # no other strategy would be asked
