"""Rollback and fork for matchers that have none, by replaying what they accepted."""

from __future__ import annotations

from collections.abc import Sequence

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import CompiledGrammar, GrammarStrategy, Matcher
from guideway.errors import ConformanceError
from guideway.plugins.contract import check_returned

__all__ = ["ReplayingMatcher", "new_matcher", "recycle"]


def new_matcher(strategy: GrammarStrategy, grammar: CompiledGrammar, stop_token_ids: frozenset[int]) -> Matcher:
    """A matcher that can roll back and fork without limit: the strategy's own if it can, a replaying one if not. Raises
    `ConformanceError` for one that cannot be called as the contract's."""
    matcher = grammar.matcher(stop_token_ids)
    check_returned(matcher, Matcher)
    if strategy.max_rollback is None and "fork" in strategy.capabilities:
        return matcher
    return ReplayingMatcher(strategy, grammar, stop_token_ids, matcher, [])


def recycle(grammar: CompiledGrammar, matcher: Matcher) -> None:
    """Give a matcher back that `new_matcher` made for `grammar`, or a fork of one, which nobody uses any more."""
    grammar.recycle(matcher.inner if isinstance(matcher, ReplayingMatcher) else matcher)


class ReplayingMatcher(Matcher):
    """Remembers accepted tokens; what the matcher inside cannot undo or copy is rebuilt from the start."""

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
        """The strategy's own."""
        self._accepted = accepted
        self._undoable = undoable  # what the matcher inside still has of its last tokens, at most `max_rollback`

    def accept(self, token_ids: Sequence[int]) -> int:
        count = self.inner.accept(token_ids)
        self._accepted += token_ids[:count]
        self._undoable = self._kept(self._undoable + count)
        return count

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
            self.inner = self._replayed(kept)
            self._undoable = self._kept(len(kept))
        self._accepted = kept

    def _kept(self, num_tokens: int) -> int:
        limit = self._strategy.max_rollback
        return num_tokens if limit is None else min(limit, num_tokens)

    def fork(self) -> Matcher:
        can_fork = "fork" in self._strategy.capabilities
        matcher = self.inner.fork() if can_fork else self._replayed(self._accepted)
        undoable = self._undoable if can_fork else self._kept(len(self._accepted))
        accepted = list(self._accepted)
        return ReplayingMatcher(self._strategy, self._grammar, self._stop_token_ids, matcher, accepted, undoable)

    def forced_tokens(self) -> Sequence[int]:
        return self.inner.forced_tokens()

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        return self.inner.shortest_completion(limit)

    def _replayed(self, token_ids: list[int]) -> Matcher:
        matcher = self._grammar.matcher(self._stop_token_ids)
        if matcher.accept(tuple(token_ids)) != len(token_ids):
            raise ConformanceError(
                f"grammar.{self._strategy.name}: a new matcher refused tokens an equal one had accepted"
            )
        return matcher
