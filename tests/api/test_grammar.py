"""The default methods of the base classes of grammar strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    GrammarStrategy,
    Matcher,
    Support,
    UnsupportedCapability,
    Vocabulary,
)
from guideway.api.bitmask import allocate, allow_only, unpack

VOCABULARY = Vocabulary(tokens=[b"a", b"b", b"c", b"d", b""], stop_token_ids=frozenset({4}))
STOP, DEAD = 4, 3


class Cycle(Matcher):
    """Accepts a, then b, then c, then a again; stop after any c; d is legal after a and is a dead end."""

    def __init__(self) -> None:
        self.history: list[int] = []

    def legal(self) -> set[int]:
        if not self.history:
            return {0}
        last = self.history[-1]
        return {0: {1, DEAD}, 1: {2}, 2: {0, STOP}, DEAD: set(), STOP: set()}[last]

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if token_id not in self.legal():
                return count
            self.history.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        del self.history[len(self.history) - num_tokens :]

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        assert not self.is_terminated(), "never filled once terminated"
        if not self.legal():
            raise DeadEnd("after d")
        allow_only(bitmask, row, self.legal())

    def is_terminated(self) -> bool:
        return self.history[-1:] == [STOP]

    def is_accepting(self) -> bool:
        return self.history[-1:] == [2]


class Cycles(GrammarStrategy):
    name, kinds = "cycles", frozenset({"regex"})

    def supports(self, constraint: Constraint) -> Support:
        return Support()

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("drafts", "accepted", "rows"),
    [
        ([], 0, [{0}]),
        ([0, 1, 2], 3, [{0}, {1, DEAD}, {2}, {0, STOP}]),
        ([0, 0, 1], 1, [{0}, {1, DEAD}, None, None]),  # the second draft is refused
        ([1, 1], 0, [{0}, None, None]),
        ([0, 1, 2, STOP, 0], 4, [{0}, {1, DEAD}, {2}, {0, STOP}, None, None]),  # terminated: nothing more is filled
        ([0, DEAD, 1], 1, [{0}, {1, DEAD}, None, None]),  # a draft that leads to a dead end is refused, not a failure
    ],
)
def test_the_default_fill_walks_the_drafts_and_comes_back(
    drafts: list[int], accepted: int, rows: list[set[int] | None]
) -> None:
    matcher, bitmask = Cycle(), allocate(2 + len(rows), 5)
    job = FillJob(matcher, drafts, first_row=1)
    assert Cycles(VOCABULARY, {}).fill([job], bitmask).tolist() == [accepted]
    for row, expected in enumerate(rows, start=1):
        allowed = set(np.flatnonzero(unpack(bitmask, 5)[row]).tolist())
        assert allowed == (set(range(5)) if expected is None else expected)
    assert (bitmask[0] == -1).all()
    assert (bitmask[-1] == -1).all()
    assert (matcher.history, job.error) == ([], None)


def test_a_failing_job_leaves_the_others_alone() -> None:
    dead = Cycle()
    dead.accept([0, DEAD])
    jobs = [FillJob(Cycle(), [0], 0), FillJob(dead, [1], 2), FillJob(Cycle(), [], 4)]
    bitmask = allocate(5, 5)
    assert Cycles(VOCABULARY, {}).fill(jobs, bitmask).tolist() == [1, -1, 0]
    assert isinstance(jobs[1].error, DeadEnd)
    assert (bitmask[2:4] == -1).all()
    assert [set(np.flatnonzero(row).tolist()) for row in unpack(bitmask, 5)[[0, 1, 4]]] == [{0}, {1, DEAD}, {0}]


def test_validate_accepts_and_comes_back() -> None:
    matcher = Cycle()
    assert matcher.validate([0, 1, 1]) == 2
    assert matcher.history == []


def test_what_a_matcher_does_not_offer_is_refused() -> None:
    class Bare(Cycle):
        rollback = Matcher.rollback

    matcher = Bare()
    matcher.rollback(0)
    for call in (lambda: matcher.rollback(1), matcher.fork, lambda: matcher.shortest_completion(3)):
        with pytest.raises(UnsupportedCapability):
            call()
    assert matcher.forced_tokens() == ()
