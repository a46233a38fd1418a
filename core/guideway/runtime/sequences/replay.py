"""Rollback and fork for matchers that lack them, by replaying accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy, Matcher
from guideway.errors import ConformanceError
from guideway.plugins.contract import check_returned
from guideway.runtime.constraints.tracking import TrackedGrammar, TrackedMatcher

__all__ = ["ReplayingMatcher", "advance_matchers", "fill_jobs", "new_matcher", "recycle"]


def new_matcher(strategy: GrammarStrategy, grammar: CompiledGrammar, stop_token_ids: frozenset[int]) -> Matcher:
    """Return a matcher that can roll back and fork without limit: the strategy's own, or a wrapper that replays. Raises
    `ConformanceError` for an object that does not have the contract's methods."""
    if isinstance(grammar, TrackedGrammar):
        return grammar.track(new_matcher(strategy, grammar.inner, stop_token_ids))
    matcher = grammar.matcher(stop_token_ids)
    check_returned(matcher, Matcher)
    if _needs_no_replay(strategy):
        return matcher
    return ReplayingMatcher(strategy, grammar, stop_token_ids, matcher, [])


def _needs_no_replay(strategy: GrammarStrategy) -> bool:
    """Return whether the strategy's matchers can roll back and fork without limit."""
    return strategy.max_rollback is None and "fork" in strategy.capabilities


def recycle(grammar: CompiledGrammar, matcher: Matcher) -> None:
    """Give back a matcher of `grammar` from `new_matcher`, or a fork of one, that is no longer used."""
    while isinstance(matcher, TrackedMatcher):
        matcher = matcher.inner
    grammar.recycle(matcher.inner if isinstance(matcher, ReplayingMatcher) else matcher)


def fill_jobs(strategy: GrammarStrategy, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
    """Call `GrammarStrategy.fill` for jobs with matchers from `new_matcher`. A strategy that overrides `fill` gets its
    own matchers; jobs with more drafts than these can roll back use the default, which replays, and so do those with a
    tracker."""
    is_default = type(strategy).fill is GrammarStrategy.fill
    if is_default or (_needs_no_replay(strategy) and TrackedMatcher not in {type(job.matcher) for job in jobs}):
        return strategy.fill(jobs, bitmask)
    own, others, lent = list[int](), list[int](), list[tuple[FillJob, ReplayingMatcher]]()
    for i, job in enumerate(jobs):
        matcher, num_drafts = job.matcher, len(job.draft_token_ids)
        if isinstance(matcher, TrackedMatcher):
            others.append(i)
        elif not isinstance(matcher, ReplayingMatcher):
            own.append(i)
        elif matcher.can_undo(num_drafts):
            own.append(i)
            lent.append((job, matcher))
        else:
            others.append(i)
    for job, wrapper in lent:
        job.matcher = wrapper.lend(len(job.draft_token_ids))
    try:
        some = tuple([jobs[i] for i in own]) if others else jobs
        accepted = strategy.fill(some, bitmask) if some else np.zeros(0, dtype=np.int32)
    finally:
        for job, wrapper in lent:
            job.matcher = wrapper
    if not others:
        return accepted
    if accepted.shape != (len(own),):
        raise ConformanceError(f"fill must return int32[{len(own)}], not shape {accepted.shape}")
    counts = np.empty(len(jobs), dtype=np.int32)
    counts[own] = accepted
    counts[others] = GrammarStrategy.fill(strategy, tuple([jobs[i] for i in others]), bitmask)
    return counts


def advance_matchers(
    strategy: GrammarStrategy, matchers: Sequence[Matcher], token_ids: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Call `GrammarStrategy.advance` for matchers from `new_matcher`. A strategy that overrides it gets its own
    matchers, if none has a tracker."""
    if type(strategy).advance is not GrammarStrategy.advance and TrackedMatcher in set(map(type, matchers)):
        found = GrammarStrategy.advance(strategy, matchers, token_ids)
    elif type(strategy).advance is GrammarStrategy.advance or _needs_no_replay(strategy):
        found = strategy.advance(matchers, token_ids)
    else:
        wrappers = [matcher for matcher in matchers if isinstance(matcher, ReplayingMatcher)]
        found = strategy.advance(tuple([wrapper.inner for wrapper in wrappers]), token_ids)
        for wrapper, token_id, count in zip(wrappers, token_ids.tolist(), found.tolist(), strict=True):
            if count == 1:
                wrapper.note((token_id,))
    if found.dtype != np.int32 or found.shape != (len(matchers),):
        raise ConformanceError(f"advance must return int32[{len(matchers)}], not {found.dtype}{list(found.shape)}")
    return found


class ReplayingMatcher(Matcher):
    """Adds rollback and fork to a matcher by rebuilding it from its accepted tokens."""

    def __init__(
        self,
        strategy: GrammarStrategy,
        grammar: CompiledGrammar,
        stop_token_ids: frozenset[int],
        matcher: Matcher,
        accepted: list[int],
        undoable: int = 0,
    ) -> None:
        self._strategy = strategy
        self._grammar = grammar
        self._stop_token_ids = stop_token_ids
        self.inner = matcher
        """The strategy's own matcher."""
        self._accepted = accepted
        self._undoable = undoable  # tokens that `inner` can still roll back, at most `max_rollback`

    def accept(self, token_ids: Sequence[int]) -> int:
        count = self.inner.accept(token_ids)
        self.note(token_ids[:count])
        return count

    def note(self, token_ids: Sequence[int]) -> None:
        """Note tokens that `inner` has accepted."""
        self._accepted += token_ids
        self._undoable = self._clip(self._undoable + len(token_ids))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.inner.fill_bitmask(bitmask, row)

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()

    def rollback(self, num_tokens: int) -> None:
        if num_tokens == 0:
            return
        kept = self._accepted[: len(self._accepted) - num_tokens]
        if num_tokens <= self._undoable:
            self.inner.rollback(num_tokens)
            self._undoable -= num_tokens
        else:
            self.inner = self._replay(kept)
            self._undoable = self._clip(len(kept))
        self._accepted = kept

    def can_undo(self, num_tokens: int) -> bool:
        """Return whether `inner` can accept `num_tokens` tokens and roll them back."""
        return self._clip(num_tokens) == num_tokens

    def lend(self, num_tokens: int) -> Matcher:
        """Return `inner` to a caller that may accept `num_tokens` tokens and rolls them back, which uses up its
        history."""
        if self._strategy.max_rollback is not None:
            self._undoable = min(self._undoable, self._strategy.max_rollback - num_tokens)
        return self.inner

    def _clip(self, num_tokens: int) -> int:
        limit = self._strategy.max_rollback
        return num_tokens if limit is None else min(limit, num_tokens)

    def fork(self) -> Matcher:
        can_fork = "fork" in self._strategy.capabilities
        matcher = self.inner.fork() if can_fork else self._replay(self._accepted)
        undoable = self._undoable if can_fork else self._clip(len(self._accepted))
        accepted = list(self._accepted)
        return ReplayingMatcher(self._strategy, self._grammar, self._stop_token_ids, matcher, accepted, undoable)

    def forced_tokens(self) -> Sequence[int]:
        return self.inner.forced_tokens()

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        return self.inner.shortest_completion(limit)

    def _replay(self, token_ids: list[int]) -> Matcher:
        matcher = self._grammar.matcher(self._stop_token_ids)
        if matcher.accept(tuple(token_ids)) != len(token_ids):
            raise ConformanceError(
                f"grammar.{self._strategy.name}: a new matcher refused tokens an equal one had accepted"
            )
        return matcher
