"""A grammar strategy under test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from guideway.api import (
    CompiledGrammar,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    Support,
    UnsupportedGrammar,
    Vocabulary,
)

from guideway_conformance.grammar.samples import SAMPLES, Sample, of_example
from guideway_conformance.grammar.session import Session, walk
from guideway_conformance.grammar.vocabularies import ids_of, longest_tokens, standard
from guideway_conformance.registry import Act
from guideway_conformance.subjects import CannotRunHere, NotPerformed, Settings, Subject

__all__ = ["Case", "GrammarSubject", "compiled_case", "note_filled"]

_FILLED = [0]
"""Jobs in this process that a `fill` of a strategy's own filled, with matchers of its own."""


def note_filled(num_jobs: int) -> None:
    """Count jobs that were filled by a `fill` of the strategy's own."""
    _FILLED[0] += num_jobs


MOST_EXAMPLES = 4
FEW = 2
"""Samples of each kind for rules that have nothing to do with what a constraint says."""


@dataclass(frozen=True)
class Case:
    """A sample the strategy compiled."""

    sample: Sample
    strategy: GrammarStrategy
    compiled: CompiledGrammar
    vocabulary: Vocabulary
    support: Support

    @property
    def name(self) -> str:
        return self.sample.name

    def whole(self) -> list[int]:
        """Tokens of a whole output, as long as they get where it takes those, and a stop token; none if no output is
        found."""
        token_ids = self.output()
        if token_ids is None:
            return []
        longest = longest_tokens(self.vocabulary, self.vocabulary.decode(token_ids))
        takes = self.session().accept(longest) == len(longest)
        return [*(longest if takes else token_ids), max(self.vocabulary.stop_token_ids)]

    def session(self, stop_token_ids: frozenset[int] | None = None) -> Session:
        """A new matcher."""
        return Session(self.strategy, self.compiled, self.vocabulary, self.name, stop_token_ids)

    def output(self) -> list[int] | None:
        """Tokens of a whole output, without the stop token; None if none is found."""
        for ways in self.sample.accepted:
            for text in ways:
                token_ids = ids_of(self.vocabulary, text)
                session = self.session()
                if session.accept(token_ids) == len(token_ids) and session.is_accepting():
                    return token_ids
        for seed in range(20):
            session = self.session()
            token_ids = walk(session, seed, 60)
            if session.is_terminated():
                return token_ids[:-1]
        return None


class GrammarSubject(Subject):
    """Builds the strategy and compiles what there is to test it with."""

    kind = "grammar"

    def __init__(self, component: Any, settings: Settings) -> None:
        super().__init__(component, settings)
        self._filled_before = _FILLED[0]

    def require(self, acts: tuple[Act, ...]) -> None:
        cls: Any = self.component
        fills_itself = cls.fill is not GrammarStrategy.fill
        if "fills" in acts and fills_itself and _FILLED[0] == self._filled_before:
            raise NotPerformed("its own fill filled no job with a matcher of its own, so nothing is known of it")

    @classmethod
    def declared(cls, component: Any) -> frozenset[str]:
        can_roll_back = component.max_rollback != 0
        return frozenset(component.capabilities) - {"rollback"} | ({"rollback"} if can_roll_back else frozenset())

    @classmethod
    def traits(cls, component: Any) -> frozenset[str]:
        kinds = frozenset(component.kinds)
        found = {f"kind:{kind}" for kind in kinds}
        if kinds & SAMPLES.keys():
            found.add("known-kind")
        if any(kind.startswith("grammar:") for kind in kinds):
            found.add("dialect")
        if cls.declared(component) >= {"fork", "rollback"}:
            found.add("fork+rollback")
        return frozenset(found)

    def build(self, vocabulary: Vocabulary | None = None) -> GrammarStrategy:
        """A new strategy for `vocabulary`, the standard one if None. Raises `CannotRunHere` if it says that it
        cannot be built in this process."""
        cls: Any = self.component
        if (reason := cls.available()) is not None:
            raise CannotRunHere(reason)
        strategy: GrammarStrategy = cls(vocabulary or standard(), dict(self.settings.options))
        return strategy

    def build_if_it_can(self, vocabulary: Vocabulary) -> GrammarStrategy | None:
        """A strategy for an unusual vocabulary; None if it refuses it."""
        try:
            return self.build(vocabulary)
        except InvalidConfiguration:
            return None

    def samples(self, *kinds: str) -> Iterator[Sample]:
        """Those of the kinds it declares, and the examples its class gives; only of `kinds`, if there are any."""
        cls: Any = self.component
        wanted = frozenset(cls.kinds) & frozenset(kinds or cls.kinds)
        for example in cls.examples:
            if example.constraint.kind in wanted:
                yield of_example(example)
        for kind, samples in SAMPLES.items():
            if kind in wanted:
                yield from samples

    def cases(self, *kinds: str, vocabulary: Vocabulary | None = None) -> Iterator[Case]:
        """The samples it compiles."""
        strategy = self.build(vocabulary)
        for sample in self.samples(*kinds):
            case = compiled_case(strategy, vocabulary or standard(), sample)
            if case is not None:
                yield case

    def few(self, *kinds: str, most: int = FEW) -> list[Case]:
        """The first ones it compiles of each kind; more of a dialect, whose examples are all that is known of it."""
        strategy = self.build()
        found: dict[str, list[Case]] = {}
        for sample in self.samples(*kinds):
            of_kind = found.setdefault(sample.constraint.kind, [])
            is_known = sample.constraint.kind in SAMPLES
            if len(of_kind) < (most if is_known or most == 1 else max(most, MOST_EXAMPLES)):
                case = compiled_case(strategy, standard(), sample)
                of_kind += [case] if case is not None else []
        return [case for of_kind in found.values() for case in of_kind]


def compiled_case(strategy: GrammarStrategy, vocabulary: Vocabulary, sample: Sample) -> Case | None:
    """`sample` compiled; None if the strategy refuses it."""
    support = strategy.supports(sample.constraint)
    if support.refused:
        return None
    try:
        compiled = strategy.compile(sample.constraint)
    except (InvalidGrammar, UnsupportedGrammar):
        return None
    return Case(sample, strategy, compiled, vocabulary, support)
