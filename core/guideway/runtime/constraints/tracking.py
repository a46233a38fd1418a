"""Grammars whose outputs the host keeps to a part of their schema, with a tracker over the masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import CompiledGrammar, GrammarStrategy, Matcher
from guideway.api.types import Constraint
from guideway.errors import DeadEnd
from guideway.json_schema.tracking import RequiredTracker, TrackedSchema, Tracker
from guideway.plugins.contract import check_returned

__all__ = ["TrackedGrammar", "TrackedMatcher", "compile_grammar"]


def compile_grammar(strategy: GrammarStrategy, constraint: Constraint) -> CompiledGrammar:
    """Compile a constraint, a `TrackedSchema` with its tracker. Raises as `GrammarStrategy.compile` does, and
    `ConformanceError` if it returns no grammar."""
    grammar = strategy.compile(constraint)
    check_returned(grammar, CompiledGrammar)
    if not isinstance(constraint, TrackedSchema):
        return grammar
    if constraint.alternatives is not None:
        grammar = TrackedGrammar(grammar, RequiredTracker(constraint.alternatives, strategy.vocabulary))
    if constraint.arrays is not None:  # it looks ahead at what is required
        grammar = TrackedGrammar(grammar, Tracker(constraint.arrays, strategy.vocabulary))
    return grammar


class _Tracker(Protocol):
    """A rule over the masks of a grammar. Its states are values."""

    @property
    def start(self) -> Any:
        """The state before the first token."""

    def step(self, state: Any, token_id: int, ahead: Callable[[], Matcher], /) -> Any:
        """Return the state after a token; None if the token is not allowed. ``ahead()`` returns a new matcher of the
        grammar, before the token."""

    def keep(self, state: Any, words: Bitmask, ahead: Callable[[], Matcher], /) -> None:
        """Clear the bits of a row for tokens that are not allowed."""


class TrackedGrammar(CompiledGrammar):
    """A strategy's grammar and a tracker."""

    def __init__(self, inner: CompiledGrammar, tracker: _Tracker) -> None:
        self.inner = inner
        self._tracker = tracker

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return self.track(self.inner.matcher(stop_token_ids))

    def track(self, matcher: Matcher) -> TrackedMatcher:
        """Return a new matcher of the inner grammar with the tracker. It forks and rolls back as `matcher` does."""
        return TrackedMatcher(matcher, self._tracker, [self._tracker.start])

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def recycle(self, matcher: Matcher) -> None:
        self.inner.recycle(matcher)


class TrackedMatcher(Matcher):
    """A matcher with the tracker's states before the output and after each token. The tracker may fork it."""

    def __init__(self, inner: Matcher, tracker: _Tracker, states: list[Any]) -> None:
        self.inner = inner
        self._tracker = tracker
        self._states = states

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            after = self._tracker.step(self._states[-1], token_id, self.inner.fork)
            if after is None or not self.inner.accept((token_id,)):
                return count
            self._states.append(after)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        state, count = self._states[-1], 0

        def ahead() -> Matcher:
            matcher = self.inner.fork()
            matcher.accept(tuple(token_ids[:count]))
            return matcher

        for token_id in token_ids[: self.inner.validate(token_ids)]:
            after = self._tracker.step(state, token_id, ahead)
            if after is None:
                break
            state, count = after, count + 1
        return count

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        words = bitmask[row]
        before = words.copy()
        self.inner.fill_bitmask(bitmask, row)
        self._tracker.keep(self._states[-1], words, self.inner.fork)
        if not np.bitwise_or.reduce(words):
            words[:] = before
            raise DeadEnd("nothing that the host allows could follow")

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)
        del self._states[len(self._states) - num_tokens :]

    def fork(self) -> Matcher:
        return TrackedMatcher(self.inner.fork(), self._tracker, self._states.copy())

    def forced_tokens(self) -> Sequence[int]:
        forced = tuple(self.inner.forced_tokens())
        return forced[: self.validate(forced)]
