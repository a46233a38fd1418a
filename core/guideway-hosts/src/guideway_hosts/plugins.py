"""The plugins that the fork server builds. Each host has a copy of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api.bitmask import num_words
from guideway.api.grammar import GrammarStrategy
from guideway.api.modifier import ModifierContext
from guideway.errors import close_each
from guideway.plugins.building import build_modifiers, build_strategies, closing_if_it_fails
from guideway.plugins.index import PluginRecord
from guideway.plugins.loading import load
from guideway.runtime.constraints.tracking import compile_grammar

from guideway_hosts.environment import variables_like

__all__ = ["Plugins", "Spec"]


@dataclass(frozen=True, slots=True)
class Spec:
    """The source of plugins: everything that they are built from."""

    path: tuple[str, ...]
    """Module folders, as in the serving process."""
    variables: tuple[str, ...]
    """Patterns of the environment variables that the operator gives to hosts."""
    records: tuple[PluginRecord, ...]
    """The strategies and modifiers."""
    context: ModifierContext
    options: Mapping[str, Mapping[str, Any]]
    """Options by ``kind.name``."""

    @property
    def words(self) -> int:
        """Words (32 bits) of a mask."""
        return num_words(self.context.vocabulary.logits_width)

    @property
    def shared(self) -> str | None:
        """Text that is equal for specs that can use each other's plugins, built in this process's environment; None if
        no other can."""
        classes = [load(record).component for record in self.records]
        if any(record.kind != "grammar" for record in self.records):
            return None
        if any(cls.close is not GrammarStrategy.close for cls in classes):
            return None  # closing them in one process could break the others
        given = sorted(variables_like(self.variables).items())
        return repr((self.records, self.options, self.context.vocabulary.fingerprint, given))


class Plugins:
    """The strategies and modifiers of a spec. Raises the errors of building them."""

    def __init__(self, spec: Spec) -> None:
        classes: dict[str, list[Any]] = {"grammar": [], "modifier": []}
        for record in spec.records:
            classes[record.kind].append(load(record).component)
        self.vocabulary = spec.context.vocabulary
        self.strategies = build_strategies(classes["grammar"], self.vocabulary, spec.options)
        with closing_if_it_fails("grammar", self.strategies.values()):
            built = build_modifiers(classes["modifier"], spec.context, spec.options)
        self.modifiers = {modifier.name: modifier for modifier in built}

    def make(self, plugin: str, given: Any, *more: Any) -> Any:
        """Return what objects in hosts are made from: for ``grammar.name`` the compiled grammar of a constraint, or of
        its serialized bytes; for ``modifier.name`` the value of its `compile` for a request and a grammar, which is
        given by the arguments to make it, or None."""
        kind, _, name = plugin.partition(".")
        if kind == "modifier":
            (grammar,) = more
            return self.modifiers[name].compile(given, None if grammar is None else self.make(*grammar))
        owner = self.strategies[name]
        return owner.from_bytes(given) if isinstance(given, bytes) else compile_grammar(owner, given)

    def close(self) -> None:
        close_each([(f"modifier.{name}", modifier.close) for name, modifier in self.modifiers.items()])
        close_each([(f"grammar.{name}", strategy.close) for name, strategy in self.strategies.items()])
