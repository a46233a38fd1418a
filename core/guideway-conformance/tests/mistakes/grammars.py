"""Correct strategies in small pieces, on the expressions of the reference: `Sane`, and `Full` with all capabilities."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    Regex,
    Support,
    Vocabulary,
)
from guideway.api.bitmask import allow_only
from guideway_conformance.reference.strategy import ReferenceCompiled, Rest
from guideway_conformance.reference.strategy import Strategy as Reference
from numpy.typing import NDArray

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask


class Place(Matcher):
    """The expressions after each accepted token, None after a stop token."""

    def __init__(self, compiled: Compiled, stop_token_ids: frozenset[int], states: Sequence[Rest | None] = ()) -> None:
        self.compiled, self.stop_token_ids = compiled, stop_token_ids
        self.states = list(states or [compiled.inner.start])

    @property
    def vocabulary(self) -> Vocabulary:
        return self.compiled.inner.vocabulary

    @property
    def state(self) -> Rest | None:
        return self.states[-1]

    def after(self, token_id: int) -> Rest:
        """Return the expression after a token, NOTHING if it may not be next."""
        inner, state = self.compiled.inner, self.state
        token = self.vocabulary.tokens[token_id]
        if state is None or not token:
            return inner.NOTHING
        for byte in token:
            state = inner.derive(state, byte)
        return state

    def is_legal(self, token_id: int) -> bool:
        if token_id in self.stop_token_ids:
            return self.is_accepting()
        return self.after(token_id) is not self.compiled.inner.NOTHING

    def legal(self) -> list[int]:
        return [token_id for token_id in range(len(self.vocabulary)) if self.is_legal(token_id)]

    def push(self, token_id: int) -> None:
        self.states.append(None if token_id in self.stop_token_ids else self.after(token_id))

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if not self.is_legal(token_id):
                return count
            self.push(token_id)
        return len(token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        legal = self.legal()
        if not legal:
            raise DeadEnd("no token is legal here")
        allow_only(bitmask, row, legal)

    def is_terminated(self) -> bool:
        return self.state is None

    def is_accepting(self) -> bool:
        return self.state is not None and self.state.has_empty

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.states):
            raise ValueError(f"cannot roll back {num_tokens} of {len(self.states) - 1} tokens")
        self.states = self.states[: len(self.states) - num_tokens]

    def fork(self) -> Place:
        return type(self)(self.compiled, self.stop_token_ids, self.states)


class Compiled(CompiledGrammar):
    """The reference's grammar with its constraint."""

    def __init__(self, inner: ReferenceCompiled, constraint: Constraint, state: type[Place]) -> None:
        self.inner, self.constraint, self.state = inner, constraint, state

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return self.state(self, stop_token_ids)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


class Sane(GrammarStrategy):
    """A strategy that can fork and roll back."""

    name: ClassVar[str] = "sane"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "json_object", "regex", "choice"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None
    State: ClassVar[type[Place]] = Place
    Grammar: ClassVar[type[Compiled]] = Compiled

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.reference = Reference(vocabulary, options)

    def supports(self, constraint: Constraint) -> Support:
        return self.reference.supports(constraint)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return self.Grammar(self.reference.compile(constraint), constraint, self.State)


class FullPlace(Place):
    """A matcher with every optional method."""

    def forced_tokens(self) -> Sequence[int]:
        # more text could be tokenized together with the last tokens, so only complete outputs are forced
        if self.is_terminated() or self.vocabulary.encoder is None:
            return ()
        ahead, text = self.fork(), b""
        while not ahead.is_accepting():
            following = {self.vocabulary.tokens[t][0]: t for t in ahead.legal() if len(self.vocabulary.tokens[t]) == 1}
            if len(following) != 1:
                return ()
            ((byte, token_id),) = following.items()
            ahead.push(token_id)
            text += bytes([byte])
        return () if ahead.legal() != sorted(self.stop_token_ids) else tuple(self.vocabulary.encode(text) or ())

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        if self.state is None:
            return None
        layer: dict[Rest, tuple[int, ...]] = {self.state: ()}
        seen = set(layer)
        for _ in range(limit):
            following: dict[Rest, tuple[int, ...]] = {}
            for state, token_ids in layer.items():
                if state.has_empty:
                    return (*token_ids, min(self.stop_token_ids))
                for after, token_id in self.ways(state).items():
                    if after not in seen:
                        following[after] = (*token_ids, token_id)
            seen |= following.keys()
            layer = following
        return None

    def ways(self, state: Rest) -> dict[Rest, int]:
        """Return the states that a token leads to, each with such a token."""
        known: dict[Rest, dict[Rest, int]] = vars(self.compiled).setdefault("ways", {})
        if state not in known:
            here = type(self)(self.compiled, self.stop_token_ids, [state])
            known[state] = {here.after(t): t for t in here.legal() if t not in self.stop_token_ids}
        return known[state]


class FullCompiled(Compiled):
    """A grammar that is serialized as its constraint."""

    def to_bytes(self) -> bytes:
        return pickle.dumps(self.constraint)


class Full(Sane):
    """A strategy with every capability."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"fork", "forced_tokens", "shortest_completion", "serialize"})
    State: ClassVar[type[Place]] = FullPlace
    Grammar: ClassVar[type[Compiled]] = FullCompiled

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        constraint: Constraint = pickle.loads(data)
        return self.compile(constraint)


class Texts(Sane):
    """A dialect in which a grammar is its only text."""

    kinds: ClassVar[frozenset[str]] = frozenset({"grammar:text"})
    examples: ClassVar[Sequence[GrammarExample]] = (GrammarExample(Grammar("ab", "text"), (b"ab",), (b"a",)),)

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        text = self.text_of(constraint)
        if not text:
            raise InvalidGrammar("no text")
        return super().compile(Regex("".join(f"\\{c}" if c in r".\*+?()[]{}|^$" else c for c in text)))

    def text_of(self, constraint: Constraint) -> str:
        return constraint.source()


class OfTheRoot(Sane):
    """A strategy that reports `pattern` as enforced at the root of a schema only, or with `names_it` everywhere."""

    names_it: ClassVar[bool] = False

    def supports(self, constraint: Constraint) -> Support:
        found = super().supports(constraint)
        if found.refused or not isinstance(constraint, JsonSchema) or not isinstance(constraint.parsed, dict):
            return found
        gone = frozenset() if self.names_it or "pattern" in constraint.parsed else frozenset({"pattern"})
        return replace(found, enforced=found.enforced - gone)


class Pooled(Compiled):
    """A grammar with a pool of matchers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spare: list[Place] = []

    def recycle(self, matcher: Matcher) -> None:
        assert isinstance(matcher, Place)
        if len(self.spare) < 64:
            self.spare.append(matcher)

    def begin(self, matcher: Place, stop_token_ids: frozenset[int]) -> Matcher:
        matcher.stop_token_ids, matcher.states = stop_token_ids, [self.inner.start]
        return matcher


def drafts_accepted(job: FillJob, bitmask: Bitmask, *, roll_back: bool = True) -> int:
    """Fill the rows of one job, and return the number of drafts that were accepted."""
    job.matcher.fill_bitmask(bitmask, job.first_row)
    accepted, dead = 0, 0
    for token_id in job.draft_token_ids:
        if not job.matcher.accept([token_id]):
            break
        accepted += 1
        if job.matcher.is_terminated():
            break
        try:
            job.matcher.fill_bitmask(bitmask, job.first_row + accepted)
        except DeadEnd:
            dead = 1
            break
    if roll_back:
        job.matcher.rollback(accepted)
    return accepted - dead


def for_each(jobs: Sequence[FillJob], fill: Callable[[FillJob], int]) -> NDArray[np.int32]:
    """Call `fill` for each job; an exception becomes the error of its job."""
    result = np.zeros(len(jobs), dtype=np.int32)
    for i, job in enumerate(jobs):
        try:
            result[i] = fill(job)
        except Exception as error:
            job.error, result[i] = error, -1
    return result


class Plugin(Sane):
    pass
