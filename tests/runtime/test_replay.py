"""Matchers that can roll back only a limited number of tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from guideway.api import CompiledGrammar, Constraint, GrammarStrategy, Matcher, Regex, Support, Vocabulary
from guideway.runtime.sequences.replay import new_matcher


class Last(Matcher):
    """Accepts any letters; remembers the last two of them."""

    def __init__(self) -> None:
        self.length, self.before = 0, deque[int](maxlen=2)

    def accept(self, token_ids: Sequence[int]) -> int:
        for _ in token_ids:
            self.before.append(self.length)
            self.length += 1
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self.length = self.before.pop()

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        raise NotImplementedError

    def is_terminated(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return True


class Letters(CompiledGrammar):
    nbytes = 1

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Last()


class Strategy(GrammarStrategy):
    contract: ClassVar[str] = "1.0"
    name: ClassVar[str] = "last"
    kinds: ClassVar[frozenset[str]] = frozenset({"regex"})
    max_rollback: ClassVar[int | None] = 2

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"regex"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return Letters()


def test_what_was_rolled_back_before_cannot_be_once_more() -> None:
    options: Mapping[str, Any] = {}
    strategy = Strategy(Vocabulary([b"a", b""], frozenset({1}), {1: "</s>"}), options)
    matcher: Any = new_matcher(strategy, strategy.compile(Regex("a*")), frozenset({1}))
    matcher.accept((0,) * 8)
    matcher.rollback(2)  # all that the inner matcher has
    assert matcher.inner.length == 6
    matcher.rollback(2)  # by replay
    assert matcher.inner.length == 4
    matcher.accept((0,))
    matcher.rollback(2)
    assert matcher.inner.length == 3
