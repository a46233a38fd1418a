"""The plan that a runtime is built from: classes, options and configuration, so that another process can build an equal
one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
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
from guideway.plugins.limits import Limits
from guideway.plugins.loading import record_of
from guideway.runtime.elsewhere import Hosts
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
    canonical: bool = False
    """True to draw forced text in the tokens that the tokenizer would use (`Runtime.forced`)."""

    def build(self, hooks: Hooks | None = None) -> Runtime:
        """Build the runtime, with the validators of `hooks`. Raises `InvalidConfiguration` and `PluginError`."""
        self._check_hosts()
        strategies, hosts = self._build_strategies()
        with closing_if_it_fails("grammar", strategies.values()):
            modifiers, modifier_hosts = self._build_modifiers(strategies, hosts)
            with closing_if_it_fails("modifier", modifiers):
                return Runtime(
                    self.context,
                    strategies=strategies,
                    modifiers=modifiers,
                    validators=None if hooks is None else validators(hooks),
                    offers=self.offers,
                    model=self.model,
                    cache_bytes=self.cache_bytes,
                    compile_threads=self.compile_threads,
                    limits=self.limits,
                    grammar_hosts=hosts,
                    whitespace=self.whitespace,
                    short_budget=self.short_budget,
                    reasoning=self.reasoning,
                    on_unenforced=self.on_unenforced,
                    canonical=self.canonical,
                    isolate_tenants=self.isolate_tenants,
                    modifier_hosts=modifier_hosts,
                    judge=None if why_no_hosts() else _hosts().HostedJudge(self.limits),
                )

    def _check_hosts(self) -> None:
        """Raise `InvalidConfiguration` if the operator wants hosts and there are none."""
        for name, value in (("grammar_host", self.grammar_host), ("modifier_host", self.modifier_host)):
            if value == "process" and (why := why_no_hosts()):
                raise InvalidConfiguration(f"{name} is 'process', but {why}", field=name)

    def _build_modifiers(
        self, strategies: Mapping[str, GrammarStrategy], grammar_hosts: Hosts | None
    ) -> tuple[list[LogitModifier[Any]], Hosts | None]:
        """Return the modifiers, hosted and local, in the order of the configuration, and their hosts."""
        wanted = self.modifiers if self.modifier_host == "process" else ()
        records = {cls: record for cls in wanted if (record := record_of(cls)) is not None}
        for cls in wanted:
            if cls not in records:
                log.warning("modifier %r runs in the serving process: its class has no entry point", cls.name)
        compiling = [cls for cls in records if cls.compile is not LogitModifier.compile]
        hosted = {} if grammar_hosts is None else grammar_hosts.homes
        here = [name for name in strategies if name not in hosted]
        for cls in compiling if here else ():
            log.warning(
                "modifier %r runs in the serving process: it needs compiled grammars, and those of %s are there",
                cls.name,
                ", ".join(here),
            )
            del records[cls]
        built = build_modifiers([cls for cls in self.modifiers if cls not in records], self.context, self.options)
        if not records:
            return built, None
        grammars = [record_of(cls) for cls in self.strategies] if compiling and not here else []
        with closing_if_it_fails("modifier", built):
            hosts = _hosts().ModifierHosts(
                list(records),
                list(records.values()),
                [record for record in grammars if record is not None],
                self.context,
                self.options,
                num_compilers=self.compile_threads + 1,  # one for each compile thread (`Threads.reserve`)
                limits=self.limits,
                variables=self.host_environment,
            )
        by_name = {modifier.name: modifier for modifier in built} | hosts.modifiers
        return [by_name[cls.name] for cls in self.modifiers], hosts

    def _build_strategies(self) -> tuple[dict[str, GrammarStrategy], Hosts | None]:
        """Return the strategies, hosted and local, in order of preference, and their hosts."""
        uses_hosts = self.grammar_host != "inline" and not why_no_hosts()
        wanted = [cls for cls in self.strategies if uses_hosts and not cls.inline]
        records = {cls: record_of(cls) for cls in wanted}
        hosted = [cls for cls, record in records.items() if record is not None]
        limits = {cls: limits_of(cls, self.options) for cls in hosted}
        inline = [cls for cls in self.strategies if cls not in hosted]
        here = build_strategies(inline, self.context.vocabulary, self.options)
        if not hosted:
            return here, None
        with closing_if_it_fails("grammar", here.values()):
            hosts = _hosts().GrammarHosts(
                hosted,
                [record for record in records.values() if record is not None],
                self.context.vocabulary,
                self.options,
                num_compilers=self.compile_threads + 1,  # one for each compile thread (`Threads.reserve`)
                limits=self.limits,
                variables=self.host_environment,
                sits_out=self.sits_out,
                fills=self.fills,
            )
        for cls in hosted:
            hosts.strategies[cls.name].limits = limits[cls]
        built = here | hosts.strategies
        return {cls.name: built[cls.name] for cls in self.strategies}, hosts


def placement(grammar_host: str) -> str:
    """Return the words of a start-up line that say where strategies run."""
    if grammar_host != "auto":
        return f"grammar_host={grammar_host}"
    why = why_no_hosts()
    return f"grammar_host=inline, because {why}" if why else "grammar_host=process"


def why_no_hosts() -> str:
    """Return why no hosts can be used here; empty if they can."""
    if not hasattr(os, "fork"):
        return "this system cannot fork processes"
    try:
        _hosts()
    except ModuleNotFoundError as error:
        if error.name != "guideway_hosts":
            raise
        return "guideway-hosts is not installed: pip install 'guideway[hosts]'"
    return ""


def _hosts() -> Any:
    """Return the package of hosts, a distribution of its own, which the library does not need."""
    return import_module("guideway_hosts")
