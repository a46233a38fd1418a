"""What a runtime is built from: classes, options and configuration, so that another process can build the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guideway.api.grammar import GrammarStrategy
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.steps import Need
from guideway.plugins.building import build_modifiers, build_strategies, closing_if_it_fails, validators
from guideway.plugins.hooks import Hooks
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

    def build(self, hooks: Hooks | None = None) -> Runtime:
        """The runtime, with the validators of `hooks`. Raises `InvalidConfiguration` and `PluginError`."""
        strategies = build_strategies(self.strategies, self.context.vocabulary, self.options)
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
                )
