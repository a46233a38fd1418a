"""Strategies that pool matchers, and that close."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from guideway.api import CompiledGrammar, Constraint, FillJob, Matcher

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Place, Sane

if TYPE_CHECKING:
    import numpy as np
    from guideway.api.bitmask import Bitmask
    from numpy.typing import NDArray


class _Pool(Compiled):
    """Gives out what came back, cleared."""

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        pool: list[Place] = vars(self).setdefault("pool", [])
        if not pool:
            return super().matcher(stop_token_ids)
        return self.cleared(pool, stop_token_ids)

    def cleared(self, pool: list[Place], stop_token_ids: frozenset[int]) -> Place:
        place = pool.pop()
        place.states, place.stop_token_ids = place.states[:1], stop_token_ids
        return place

    def recycle(self, matcher: Matcher) -> None:
        vars(self).setdefault("pool", []).append(matcher)


@saboteur("grammar.a_recycled_matcher_is_as_new")
class PoolsWithoutAReset(Sane):
    """A matcher that came back goes on where it was."""

    class Grammar(_Pool):
        def cleared(self, pool: list[Place], stop_token_ids: frozenset[int]) -> Place:
            place = pool.pop()
            place.stop_token_ids = stop_token_ids
            return place


@saboteur("grammar.a_recycled_matcher_is_as_new")
class PoolsWithItsStopTokens(Sane):
    """A matcher that came back keeps the stop tokens it had."""

    class Grammar(_Pool):
        def cleared(self, pool: list[Place], stop_token_ids: frozenset[int]) -> Place:
            return super().cleared(pool, pool[-1].stop_token_ids)


class _PlaceThatStartsLater(Place):
    """Its past may reach further back than its start."""

    def rollback(self, num_tokens: int) -> None:
        if num_tokens >= len(self.states):
            raise ValueError("there is no more to undo")
        del self.states[len(self.states) - num_tokens :]


@saboteur("grammar.a_recycled_matcher_has_no_past")
class PoolsWithItsPast(Sane):
    """A matcher that came back is at the start again, and can still undo what the sequence before accepted."""

    State = _PlaceThatStartsLater

    class Grammar(_Pool):
        def cleared(self, pool: list[Place], stop_token_ids: frozenset[int]) -> Place:
            place = pool.pop()
            place.states, place.stop_token_ids = [*place.states, place.states[0]], stop_token_ids
            return place


@saboteur("grammar.recycled_matchers_are_independent")
class PoolsForAll(Sane):
    """Keeps what came back: it stays in the pool, for the next one too."""

    class Grammar(_Pool):
        def cleared(self, pool: list[Place], stop_token_ids: frozenset[int]) -> Place:
            place = pool[-1]
            place.states, place.stop_token_ids = place.states[:1], stop_token_ids
            return place


@saboteur("grammar.closing_ends_one_strategy")
class ClosesForAll(Sane):
    """Closing one strategy ends all of its class."""

    closed: ClassVar[bool] = False

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if self.closed:
            raise RuntimeError("closed")
        return super().compile(constraint)

    def close(self) -> None:
        type(self).closed = True


@saboteur("grammar.closing_ends_one_strategy")
class OneThreadForAll(Sane):
    """Large batches go to a thread of its class, which ends with the first strategy that is closed."""

    thread: ClassVar[ThreadPoolExecutor] = ThreadPoolExecutor(1)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        if len(jobs) < 64:
            return super().fill(jobs, bitmask)
        return self.thread.submit(super().fill, jobs, bitmask).result()

    def close(self) -> None:
        self.thread.shutdown()


@saboteur("grammar.closing_ends_one_strategy")
class ClosesWhatItCompiled(Sane):
    """Closes what only a compilation opens."""

    opened: Any

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        self.opened = True
        return super().compile(constraint)

    def close(self) -> None:
        del self.opened
