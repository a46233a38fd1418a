"""The plan that a runtime is built from: classes, options and configuration, so that another process can build an equal
one."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from guideway.api.grammar import GrammarStrategy
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.reasoning import ReasoningConfig
from guideway.api.steps import Need
from guideway.api.types import OnUnenforced, Whitespace
from guideway.errors import InvalidConfiguration
from guideway.plugins.building import build_modifiers, build_strategies, closing_if_it_fails, limits_of, validators
from guideway.plugins.hooks import Hooks
from guideway.plugins.index import PluginRecord
from guideway.plugins.limits import Limits
from guideway.plugins.loading import record_of
from guideway.runtime.constraints.forced import ForcedTokens
from guideway.runtime.runtime import Runtime

__all__ = ["RuntimePlan", "placement"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePlan:
    """Everything needed to build a `Runtime`. Picklable if its classes can be imported by name."""

    context: ModifierContext
    strategies: Sequence[type[GrammarStrategy]]
    """In order of preference."""
    modifiers: Sequence[type[LogitModifier[Any]]] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options from the operator's configuration, by ``kind.name``."""
    offers: frozenset[Need] = frozenset()
    """Needs that the host's worker can provide to transforms."""
    model: str = ""
    cache_bytes: int = 512 << 20
    """Size of the cache of compiled grammars in bytes."""
    compile_threads: int = 2
    grammar_host: Literal["auto", "process", "inline"] = "auto"
    """Process in which strategies compile and fill: hosts, or this process; ``auto`` is hosts where they can be used. A
    strategy without an entry point, or that needs objects of this process, runs in this process."""
    modifier_host: Literal["process", "inline"] = "inline"
    """Process in which modifiers keep their states: hosts, or this process. A modifier without an entry point, or that
    compiles with grammars of this process, runs in this process."""
    isolate_tenants: bool = False
    """True if tenants share no compiled constraints or values."""
    host_environment: Sequence[str] = ()
    """Patterns of extra environment variables to pass to hosts."""
    sits_out: bool = False
    """True if the host lets sequences skip a step (`Runtime.is_late`)."""
    fills: bool = True
    """False if requests are only tried: nothing is prepared for their masks."""
    limits: Limits = field(default_factory=Limits)
    whitespace: Whitespace = "bounded"
    """Default for constraints without `whitespace`."""
    short_budget: Literal["refuse", "cut"] = "refuse"
    """Policy for a token budget that is too small for the constraint: refuse the request, or cut the output."""
    reasoning: ReasoningConfig = field(default_factory=ReasoningConfig)
    """Markers of the reasoning; constraints begin after it."""
    on_unenforced: OnUnenforced = "report"
    """Default for requests without `on_unenforced`."""
    forced_tokens: ForcedTokens = "off"
    """What becomes of the tokens that `Runtime.forced` returns."""
    num_forced_tokens: int = 16
    """The most forced tokens of a sequence to look for."""

    def build(self, hooks: Hooks | None = None) -> Runtime:
        """Build the runtime, with the validators of `hooks`. Raises `InvalidConfiguration` and `PluginError`."""
        for name, value in (("grammar_host", self.grammar_host), ("modifier_host", self.modifier_host)):
            if value == "process" and (why := why_no_hosts()):
                raise InvalidConfiguration(f"{name} is 'process', but {why}", field=name)
        elsewhere = self._hosted_strategies()
        modifiers_elsewhere = self._hosted_modifiers(elsewhere)
        limits = {cls.name: limits_of(cls, self.options) for cls in elsewhere}
        vocabulary = self.context.vocabulary
        here = build_strategies([cls for cls in self.strategies if cls not in elsewhere], vocabulary, self.options)
        with closing_if_it_fails("grammar", here.values()):
            local = [cls for cls in self.modifiers if cls not in modifiers_elsewhere]
            modifiers = {modifier.name: modifier for modifier in build_modifiers(local, self.context, self.options)}
            with closing_if_it_fails("modifier", modifiers.values()):
                hosts = None if why_no_hosts() else self._hosts(elsewhere, modifiers_elsewhere)
        if hosts is not None:
            here |= hosts.strategies
            modifiers |= hosts.modifiers
        for name, its_own in limits.items():
            here[name].limits = its_own
        with closing_if_it_fails("grammar", here.values()), closing_if_it_fails("modifier", modifiers.values()):
            return Runtime(
                self.context,
                strategies={cls.name: here[cls.name] for cls in self.strategies},
                modifiers=[modifiers[cls.name] for cls in self.modifiers],
                validators=None if hooks is None else validators(hooks),
                offers=self.offers,
                model=self.model,
                cache_bytes=self.cache_bytes,
                compile_threads=self.compile_threads,
                limits=self.limits,
                hosts=hosts,
                whitespace=self.whitespace,
                short_budget=self.short_budget,
                reasoning=self.reasoning,
                on_unenforced=self.on_unenforced,
                forced_tokens=self.forced_tokens,
                num_forced_tokens=self.num_forced_tokens,
                isolate_tenants=self.isolate_tenants,
            )

    def _hosted_strategies(self) -> dict[type[GrammarStrategy], PluginRecord]:
        """Return the strategies that run in hosts."""
        if self.grammar_host == "inline" or why_no_hosts():
            return {}
        records = {cls: record_of(cls) for cls in self.strategies if not cls.inline}
        for cls in records:
            if not _is_json(self.options.get(f"grammar.{cls.name}")):
                log.warning("strategy %r runs in the serving process: its options are not JSON", cls.name)
                records[cls] = None
        return {cls: record for cls, record in records.items() if record is not None}

    def _hosted_modifiers(
        self, strategies: Collection[type[GrammarStrategy]]
    ) -> dict[type[LogitModifier[Any]], PluginRecord]:
        """Return the modifiers that run in hosts, where `strategies` do."""
        found = {}
        here = ", ".join(cls.name for cls in self.strategies if cls not in strategies)
        for cls in self.modifiers if self.modifier_host == "process" else ():
            record = record_of(cls)
            if record is None:
                log.warning("modifier %r runs in the serving process: its class has no entry point", cls.name)
            elif not _is_json(self.options.get(f"modifier.{cls.name}")):
                log.warning("modifier %r runs in the serving process: its options are not JSON", cls.name)
            elif here and cls.compile is not LogitModifier.compile:
                log.warning(
                    "modifier %r runs in the serving process: it needs compiled grammars, and those of %s are there",
                    cls.name,
                    here,
                )
            else:
                found[cls] = record
        return found

    def _hosts(
        self,
        strategies: Mapping[type[GrammarStrategy], PluginRecord],
        modifiers: Mapping[type[LogitModifier[Any]], PluginRecord],
    ) -> Any:
        return _package().Hosts(
            self.context,
            strategies,
            modifiers,
            self.options,
            num_compilers=self.compile_threads + 1,  # one for each compile thread (`Threads.reserve`)
            limits=self.limits,
            variables=self.host_environment,
            sits_out=self.sits_out,
            fills=self.fills,
        )


def _is_json(options: Any) -> bool:
    def as_dict(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise TypeError
        return dict(value)

    try:
        json.dumps(options, default=as_dict)  # configurations hold read-only mappings
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def placement(grammar_host: str, runtime: Runtime) -> str:
    """Return the words of a start-up line that say where the strategies of a runtime run."""
    places = runtime.places
    inline = ", ".join(name for name, place in places.items() if place == "inline")
    if "process" in places.values():
        return f"grammar_host=process (inline: {inline})" if inline else "grammar_host=process"
    why = why_no_hosts() if grammar_host == "auto" else ""
    return f"grammar_host=inline, because {why}" if why else "grammar_host=inline"


def why_no_hosts() -> str:
    """Return why no hosts can be used here; empty if they can."""
    if not hasattr(os, "fork"):
        return "this system cannot fork processes"
    try:
        _package()
    except ModuleNotFoundError as error:
        if error.name != "guideway_hosts":
            raise
        return "guideway-hosts is not installed: pip install 'guideway[hosts]'"
    return ""


def _package() -> Any:
    """Return the package of hosts, a distribution of its own, which the library does not need."""
    return import_module("guideway_hosts")
