"""What a runtime is built from: classes, options and configuration, so that another process can build the same."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from guideway.api.grammar import GrammarStrategy
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.steps import Need
from guideway.plugins.building import build_modifiers, build_strategies, closing_if_it_fails, limits_of, validators
from guideway.plugins.hooks import Hooks
from guideway.plugins.limits import Limits
from guideway.plugins.loading import record_of
from guideway.runtime.grammar_hosts import GrammarHosts
from guideway.runtime.runtime import Runtime

__all__ = ["RuntimePlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePlan:
    """A runtime before it is built. Pickles, where the classes are their modules' own."""

    context: ModifierContext
    strategies: Sequence[type[GrammarStrategy]]
    """In order of preference."""
    modifiers: Sequence[type[LogitModifier[Any]]] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The operator's, by ``kind.name``."""
    offers: frozenset[Need] = frozenset()
    """What the host's worker can provide to transforms."""
    model: str = ""
    cache_bytes: int = 512 << 20
    """Of compiled grammars."""
    compile_threads: int = 2
    grammar_host: Literal["process", "inline"] = "process"
    """Where strategies compile and fill: in hosts, or in this process. One that no entry point names, or that needs
    objects of this process, is inline."""
    sits_out: bool = False
    """Whether the host can let a sequence sit a step out (`Runtime.is_late`)."""
    limits: Limits = field(default_factory=Limits)

    def build(self, hooks: Hooks | None = None) -> Runtime:
        """The runtime, with the validators of `hooks`. Raises `InvalidConfiguration` and `PluginError`."""
        strategies, hosts = self._build_strategies()
        with closing_if_it_fails("grammar", strategies.values()):
            modifiers = build_modifiers(self.modifiers, self.context, self.options)
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
                )

    def _build_strategies(self) -> tuple[dict[str, GrammarStrategy], GrammarHosts | None]:
        """Those that live in hosts, and those that live here, in the order of preference; and the hosts."""
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
                num_compilers=self.compile_threads + 1,  # as many threads ask them (`Threads.reserve`)
                path=[entry for entry in sys.path if isinstance(entry, str)],
                limits=self.limits,
                sits_out=self.sits_out,
            )
        for cls in hosted:
            hosts.strategies[cls.name].limits = limits[cls]
        built = here | hosts.strategies
        return {cls.name: built[cls.name] for cls in self.strategies}, hosts
