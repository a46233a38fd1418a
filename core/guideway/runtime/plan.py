"""The plan that a runtime is built from: classes, options and configuration, so that another process can build an equal
one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from guideway.api.grammar import GrammarStrategy
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.reasoning import ReasoningConfig
from guideway.api.steps import Need
from guideway.api.types import OnUnenforced, Whitespace
from guideway.plugins.building import build_modifiers, build_strategies, closing_if_it_fails, limits_of, validators
from guideway.plugins.hooks import Hooks
from guideway.plugins.limits import Limits
from guideway.plugins.loading import record_of
from guideway.runtime.grammar_hosts.fork_server import module_path
from guideway.runtime.grammar_hosts.hosts import GrammarHosts
from guideway.runtime.grammar_hosts.strategy import HostedStrategy
from guideway.runtime.modifier_hosts.hosts import ModifierHosts
from guideway.runtime.runtime import Runtime

__all__ = ["RuntimePlan"]

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
    grammar_host: Literal["process", "inline"] = "process"
    """Process in which strategies compile and fill: hosts, or this process. A strategy without an entry point, or that
    needs objects of this process, runs in this process."""
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
        strategies, hosts = self._build_strategies()
        with closing_if_it_fails("grammar", strategies.values()):
            modifiers, modifier_hosts = self._build_modifiers(strategies)
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
                )

    def _build_modifiers(
        self, strategies: Mapping[str, GrammarStrategy]
    ) -> tuple[list[LogitModifier[Any]], ModifierHosts | None]:
        """Return the modifiers, hosted and local, in the order of the configuration, and their hosts."""
        wanted = self.modifiers if self.modifier_host == "process" else ()
        records = {cls: record for cls in wanted if (record := record_of(cls)) is not None}
        for cls in wanted:
            if cls not in records:
                log.warning("modifier %r runs in the serving process: its class has no entry point", cls.name)
        compiling = [cls for cls in records if cls.compile is not LogitModifier.compile]
        here = [name for name, strategy in strategies.items() if not isinstance(strategy, HostedStrategy)]
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
            hosts = ModifierHosts(
                list(records),
                list(records.values()),
                [record for record in grammars if record is not None],
                self.context,
                self.options,
                num_compilers=self.compile_threads + 1,  # one for each compile thread (`Threads.reserve`)
                path=module_path(),
                limits=self.limits,
                variables=self.host_environment,
            )
        by_name = {modifier.name: modifier for modifier in built} | hosts.modifiers
        return [by_name[cls.name] for cls in self.modifiers], hosts

    def _build_strategies(self) -> tuple[dict[str, GrammarStrategy], GrammarHosts | None]:
        """Return the strategies, hosted and local, in order of preference, and their hosts."""
        wanted = [cls for cls in self.strategies if self.grammar_host == "process" and not cls.inline]
        records = {cls: record_of(cls) for cls in wanted}
        hosted = [cls for cls, record in records.items() if record is not None]
        limits = {cls: limits_of(cls, self.options) for cls in hosted}
        inline = [cls for cls in self.strategies if cls not in hosted]
        here = build_strategies(inline, self.context.vocabulary, self.options)
        if not hosted:
            return here, None
        with closing_if_it_fails("grammar", here.values()):
            hosts = GrammarHosts(
                hosted,
                [record for record in records.values() if record is not None],
                self.context.vocabulary,
                self.options,
                num_compilers=self.compile_threads + 1,  # one for each compile thread (`Threads.reserve`)
                path=module_path(),
                limits=self.limits,
                variables=self.host_environment,
                sits_out=self.sits_out,
                fills=self.fills,
            )
        for cls in hosted:
            hosts.strategies[cls.name].limits = limits[cls]
        built = here | hosts.strategies
        return {cls.name: built[cls.name] for cls in self.strategies}, hosts
