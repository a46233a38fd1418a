"""Strategies that work on a desk, and fail in a host."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from guideway.api import CompiledGrammar, Constraint, FillJob, Matcher
from guideway.api.bitmask import Bitmask, allow_only
from guideway_conformance.reference.strategy import Rest
from numpy.typing import NDArray

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Full, FullPlace, Place, Sane


@saboteur("grammar.sixteen_drafts_work")
class EightDrafts(Sane):
    """Looks at eight drafts, and no more."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        return super().fill([replace(job, draft_token_ids=job.draft_token_ids[:8]) for job in jobs], bitmask)


@saboteur("grammar.what_a_fill_is_given_is_reused")
class KeepsTheJobs(Sane):
    """Takes the matchers out of a list of jobs once."""

    jobs: Any = None

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        if jobs is not self.jobs:
            self.jobs, self.matchers = jobs, [job.matcher for job in jobs]
        there = zip(jobs, self.matchers, strict=True)
        return super().fill([replace(job, matcher=matcher) for job, matcher in there], bitmask)


@saboteur("grammar.what_a_fill_is_given_is_reused")
class SkipsWhatItFilled(Sane):
    """Does not fill again what it has just filled, though the host has overwritten it."""

    last: Any = None

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        key = [(id(job.matcher), tuple(job.draft_token_ids), job.first_row, self._length(job)) for job in jobs]
        if self.last is None or self.last[0] is not bitmask or self.last[1] != key:
            self.last = bitmask, key, super().fill(jobs, bitmask)
        counts: NDArray[np.int32] = self.last[2]
        return counts

    @staticmethod
    def _length(job: FillJob) -> int:
        matcher = job.matcher
        return len(matcher.states) if isinstance(matcher, Place) else -1


@saboteur("grammar.what_a_fill_is_given_is_reused")
class OneArrayOfCounts(Sane):
    """Returns the same array from every fill."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        counts: NDArray[np.int32] = vars(self).setdefault("counts", np.zeros(4096, dtype=np.int32))[: len(jobs)]
        counts[:] = super().fill(jobs, bitmask)
        return counts


class WeakCompiled(Compiled):
    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return self.state(weakref.proxy(self), stop_token_ids)


@saboteur("grammar.a_matcher_outlives_what_made_it")
class LetsGo(Sane):
    """Its matchers do not keep their grammar."""

    Grammar: ClassVar[type[Compiled]] = WeakCompiled


class ExpiringPlace(Place):
    def is_accepting(self) -> bool:
        born: float = vars(self).setdefault("born", time.monotonic())
        return super().is_accepting() and time.monotonic() < born + 3600


@saboteur("grammar.the_clock_is_nothing")
class Expires(Sane):
    """Its matchers live for an hour."""

    State: ClassVar[type[Place]] = ExpiringPlace


class RememberingPlace(Place):
    """Keeps the last mask, and looks at the length alone to know whether it still holds."""

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        length, legal = vars(self).get("last", (0, []))
        if length != len(self.states):
            legal = self.legal()
            self.last = len(self.states), legal
        if not legal:
            super().fill_bitmask(bitmask, row)
        else:
            allow_only(bitmask, row, legal)


@saboteur("grammar.a_rollback_forgets_the_other_way")
class RemembersByLength(Sane):
    """After a rollback and as many other tokens it has the mask of the first way."""

    State: ClassVar[type[Place]] = RememberingPlace


@saboteur("grammar.a_rollback_forgets_the_other_way", mode="refusal")
class RollsBackUndeclared(Sane):
    """Rolls back, and does not say so."""

    max_rollback: ClassVar[int | None] = 0


class OldAnswersPlace(Place):
    """A fork answers for the state in which it was made."""

    def fork(self) -> Place:
        fork = super().fork()
        vars(fork)["origin"] = list(self.states)
        return fork

    def validate(self, token_ids: Sequence[int]) -> int:
        origin: list[Rest | None] = vars(self).get("origin", self.states)
        return type(self)(self.compiled, self.stop_token_ids, origin).accept(token_ids)


@saboteur("grammar.answers_are_of_the_state")
class ForksAnswerForTheirOrigin(Sane):
    """A fork validates what its parent would have."""

    State: ClassVar[type[Place]] = OldAnswersPlace


@saboteur("grammar.near_constraints_do_not_collide")
class CoarseCache(Sane):
    """Looks up what it compiled by the letters, without case."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        known: dict[tuple[str, str], CompiledGrammar] = vars(self).setdefault("known", {})
        key = constraint.kind, constraint.source().lower()
        if key not in known:
            known[key] = super().compile(constraint)
        return known[key]


@saboteur("grammar.near_constraints_do_not_collide")
class ForgetsWhatLives(Sane):
    """Empties the oldest of many grammars, though matchers use it."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        kept: list[Any] = vars(self).setdefault("kept", [])
        compiled = super().compile(constraint)
        kept.append(compiled)
        if len(kept) > 32:
            kept.pop(0).inner.__dict__.clear()
        return compiled


@saboteur("grammar.hundreds_of_compilations_at_once")
class CompilesInOnePlace(Sane):
    """Keeps the constraint that it compiles where the next one's is kept too."""

    def __init__(self, vocabulary: Any, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.current: Any = None

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        self.current = constraint
        time.sleep(0.0001)  # it looks something up
        return super().compile(self.current)


@saboteur("grammar.the_clock_is_nothing")
class GivesUpInTime(Full):
    """Looks for a completion for a tenth of a second."""

    class State(FullPlace):
        def shortest_completion(self, limit: int) -> Sequence[int] | None:
            until = time.monotonic() + 0.1
            found = super().shortest_completion(limit)
            return found if time.monotonic() < until else None
