"""Matchers in a host."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from guideway.api.bitmask import Bitmask, num_words
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy, Matcher
from guideway.api.vocabulary import Vocabulary
from guideway.errors import ConformanceError
from guideway.runtime.constraints.closing import Beginnings, Budget, Record
from guideway.runtime.constraints.forced import Forcing
from guideway.runtime.constraints.home import Ending, Home
from guideway.runtime.constraints.mask_block import GUARD, fill_between_guards
from guideway.runtime.sequences.replay import advance_matchers, fill_jobs, new_matcher, recycle
from numpy.typing import NDArray

from guideway_hosts.messages import IDLE, Job, SharedMasks

__all__ = ["Filler", "LivingMatcher"]

REFUSED = "it refused a token that its own mask allowed"

MOST_STEPS = 256
"""Steps after which all closers are told their tokens, so that the log does not grow with the outputs."""

APART = 8
"""Steps for which jobs are filled one by one after a slow batch, to find the slow one."""


class LivingMatcher:
    """A matcher with the objects that it was made from."""

    def __init__(
        self,
        strategy: GrammarStrategy,
        here: Home,
        grammar: CompiledGrammar,
        beginnings: Beginnings,
        stop_token_ids: Sequence[int],
        token_ids: Sequence[int],
        budget: Budget | None,
        end: Record | None,
    ) -> None:
        """`budget` is the one within which the output must be complete, None without a limit. `token_ids` were accepted
        before, and `end` is the closing record of the output until then."""
        self.strategy = strategy
        self.stop_token_ids = frozenset(stop_token_ids)
        self.closer: Ending | None = None
        self._grammar = grammar
        self.matcher = new_matcher(strategy, grammar, self.stop_token_ids)
        self.accept(token_ids)
        if budget is not None:
            self.closer = here.ending(self.matcher, self.stop_token_ids, budget, end, beginnings)
            self.closer.accept(token_ids)

    def update(self, job: Job) -> None:
        """Accept the tokens of a job."""
        self.accept(job.accept)
        if self.closer is not None:
            self.closer.accept(job.accept)

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Return the answer of a method as JSON."""
        answer = getattr(self.matcher, method)(*arguments)
        if self.closer is not None and method == "accept":
            self.closer.accept(arguments[0][:answer])
        return list(answer) if isinstance(answer, list | tuple) else answer

    def release(self) -> None:
        """Give the matcher back to its strategy."""
        recycle(self._grammar, self.matcher)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Accept tokens that its masks allowed. The closer is told separately."""
        if token_ids and self.matcher.accept(tuple(token_ids)) != len(token_ids):
            raise ConformanceError(REFUSED)


@dataclass(slots=True)
class _Batch:
    """Jobs of one strategy that are filled by one call."""

    strategy: GrammarStrategy
    places: list[int] = field(default_factory=list)
    """The places of the jobs in their step."""
    fills: list[FillJob] = field(default_factory=list)
    matchers: list[Matcher] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """The jobs of a step, and by their places the matchers and fills that are ready."""

    jobs: list[Job]
    ready: dict[int, LivingMatcher]
    fills: dict[int, FillJob]
    drafts: list[Sequence[int]]
    """The drafts of each job."""
    block: Bitmask
    """The rows, with a guard before and after them."""
    apart: bool = False
    """True if each of `batches` has one job."""
    batches: Sequence[_Batch] = ()
    num_again: int = 0
    """Later steps, in which each matcher accepted one token."""
    log: list[NDArray[np.int32]] = field(default_factory=list)
    """The tokens of the last ones, by place, that not all closers know."""
    told: dict[int, int] = field(default_factory=dict)
    """By place the later steps whose tokens the closer knows, or that were before it."""
    closes_at: dict[int, int] = field(default_factory=dict)
    """By place the later steps before which closing certainly has nothing to do; 0 if it is not there."""
    closes_first: int = 0
    """The least of them."""


class Filler:
    """Fills the rows of matchers in the shared memory."""

    def __init__(self, vocabulary: Vocabulary, masks: SharedMasks, late_seconds: float) -> None:
        self._masks = masks
        self._late_seconds = late_seconds
        self._apart = 0
        """Steps left in which jobs are filled one by one, to find the slow one."""
        self._last = _Step([], {}, {}, [], masks.rows[:2])
        self._forcing = Forcing(vocabulary.tokens, num_words(vocabulary.logits_width))

    def step(
        self,
        jobs: Sequence[Job],
        ready: Mapping[int, LivingMatcher],
        errors: dict[int, BaseException],
        taken: Mapping[int, float],
        search_seconds: float | None,
    ) -> tuple[list[Any] | None, dict[str, Any]]:
        """Fill the rows of the `ready` matchers, by the place of their jobs.

        Return what `matchers._read` reads for each job, and which were slow; None in the usual case. `taken` has the
        seconds of each job until now. Raises the error of a batch, which leaves matchers and rows in an unknown state.
        """
        masks, fills, first = self._masks, dict[int, FillJob](), 1
        drafts = [job.draft_token_ids for job in jobs]
        for i, job in enumerate(jobs):
            if (living := ready.get(i)) is not None:
                if job.num_forced and not living.matcher.is_terminated():
                    masks.working_on = job.number
                    until = float("inf") if search_seconds is None else time.thread_time() + search_seconds
                    try:
                        drafts[i] = self._forcing.run(living.matcher, living.stop_token_ids, job.num_forced, until)
                    except BaseException as error:
                        errors[i] = error
                if i not in errors:
                    fills[i] = FillJob(living.matcher, drafts[i], first)
            first += 1 + len(drafts[i])
        self._last = last = _Step(list(jobs), dict(ready), fills, drafts, masks.rows[: first + 1])
        last.block[0] = last.block[-1] = GUARD
        self._group()
        return self._fill(errors, taken, None)

    def remove(self, places: Sequence[int]) -> None:
        """Take the matchers at these places out of the last step."""
        last = self._last
        for place in places:
            self._settle_one(place)
            last.ready.pop(place, None)
            last.fills.pop(place, None)
            last.closes_at.pop(place, None)
        if places:
            last.batches = ()

    def again(
        self,
        jobs: Mapping[int, Job],
        ready: Mapping[int, LivingMatcher],
        errors: dict[int, BaseException],
        taken: Mapping[int, float],
        *,
        moves: bool,
    ) -> tuple[list[Any] | None, dict[str, Any]]:
        """Do the last step, which was plain, for the jobs that join it, by place, and if it `moves` for the next tokens
        in the shared memory, one of each of its matchers."""
        last, token_ids = self._last, None
        if moves:
            token_ids = self._masks.read_tokens(len(last.jobs))
            last.log.append(token_ids)
            last.num_again += 1
        for place, job in jobs.items():
            if place == len(last.jobs):
                last.jobs.append(job)
                last.drafts.append(())
            last.jobs[place] = job
            if place in ready:
                last.ready[place], last.told[place] = ready[place], last.num_again
                last.fills[place] = FillJob(ready[place].matcher, (), 1 + place)
                last.closes_first = 0
        if len(last.block) < 2 + len(last.jobs):
            last.block = self._masks.rows[: 2 + len(last.jobs)]
            last.block[-1] = GUARD
        if jobs or not last.batches or last.apart != bool(self._apart):
            self._group()
        if len(last.log) >= MOST_STEPS:
            self.settle()
        return self._fill(errors, taken, token_ids, jobs)

    def settle(self) -> None:
        """Let the closers accept the tokens of `again`, before anything else is done with their matchers."""
        last = self._last
        for place in last.ready if last.log else ():
            self._settle_one(place)
        last.log.clear()

    def _settle_one(self, place: int) -> None:
        """Let the closer at a place accept the tokens of `again`."""
        last = self._last
        if (living := last.ready.get(place)) is not None and living.closer is not None:
            known = last.told.get(place, 0) - (last.num_again - len(last.log))
            living.closer.accept([token_ids.item(place) for token_ids in last.log[known:]])
            last.told[place] = last.num_again

    def _fill(
        self,
        errors: dict[int, BaseException],
        given: Mapping[int, float],
        token_ids: NDArray[np.int32] | None,
        joining: Collection[int] = (),
    ) -> tuple[list[Any] | None, dict[str, Any]]:
        """Fill the rows of `_last`, after its matchers accepted `token_ids`, by place, except those `joining` it.
        Returns what `step` does. `given` are the seconds of jobs until now."""
        masks, last = self._masks, self._last
        counts, taken = [0] * len(last.jobs), [given.get(i, 0.0) for i in range(len(last.jobs))]
        for batch in last.batches:
            places, alone = batch.places, len(batch.places) == 1
            masks.working_on = last.jobs[places[0]].number if alone else IDLE
            clock = time.thread_time if alone else time.process_time
            began = clock()
            try:
                moving = [] if token_ids is None else [i for i in places if i not in joining] if joining else places
                if token_ids is not None and moving and alone:
                    last.ready[places[0]].accept((token_ids.item(places[0]),))
                elif token_ids is not None and moving:
                    matchers = batch.matchers if moving is places else [last.fills[i].matcher for i in moving]
                    accepted = advance_matchers(batch.strategy, matchers, token_ids[moving])
                    if np.count_nonzero(accepted != 1):
                        raise ConformanceError(REFUSED)
                filled = fill_between_guards(partial(fill_jobs, batch.strategy), batch.fills, last.block)
            except BaseException as error:
                if not alone:
                    raise
                errors[places[0]] = error
                continue
            seconds = clock() - began
            if alone:
                taken[places[0]] += seconds
            elif seconds > self._late_seconds * (1 + len(places) / 8):
                self._apart = APART + 1
            for i, count in zip(places, filled.tolist(), strict=True) if np.count_nonzero(filled) else ():
                counts[i] = count
                if count < 0:
                    silent = ConformanceError("fill returned -1 without setting the job's error")
                    errors[i] = last.fills[i].error or silent
        closing = {} if last.closes_first > last.num_again else self._close(counts, errors)
        masks.working_on = IDLE
        self._apart = max(0, self._apart - 1)
        is_slow = max(taken, default=0.0) > self._late_seconds
        if not (is_slow or errors or closing or any(last.drafts)):
            return None, {}
        found = []
        for i, (job, count) in enumerate(zip(last.jobs, counts, strict=True)):
            forced = last.drafts[i] if job.num_forced else ()
            plain = not forced and i not in closing
            found.append(max(0, count) if plain else [max(0, count), forced, *closing.get(i, (None, ()))])
        return found, {"slow": [i for i, seconds in enumerate(taken) if seconds > self._late_seconds]}

    def _close(
        self, counts: Sequence[int], errors: dict[int, BaseException]
    ) -> dict[int, tuple[int | None, list[Any]]]:
        """Remove tokens that lead to outputs that cannot be completed within their budget.

        Return by job what changed: the first row that lost tokens, and the fields of the `Record` of each row.
        """
        closing, last = {}, self._last
        for i, fill in last.fills.items():
            closer, matcher = last.ready[i].closer, last.ready[i].matcher
            if closer is None or i in errors or last.closes_at.get(i, 0) > last.num_again:
                continue
            self._settle_one(i)
            last.closes_at[i] = last.num_again + closer.num_free - counts[i]
            if closer.is_far(1 + counts[i]):
                continue
            self._masks.working_on = last.jobs[i].number
            try:
                with self._closing():
                    first = closer.restrict(
                        matcher, fill.draft_token_ids[: counts[i]], self._masks.rows[fill.first_row :]
                    )
            except BaseException as error:
                errors[i] = error
                continue
            if first is not None or any(record is not closer.record for record in closer.records):
                closing[i] = first, [record.to_json() for record in closer.records]
        closers = [i for i in last.fills if last.ready[i].closer is not None]
        last.closes_first = min([last.closes_at.get(i, 0) for i in closers], default=1 << 31)
        return closing

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Allow the time of a search for a completion in the body."""
        self._masks.is_closing = True
        try:
            yield
        finally:
            self._masks.working_on = IDLE  # first, so that the search's time does not count for the next matcher
            self._masks.is_closing = False

    def _group(self) -> None:
        """Group the jobs of the last step: all of a strategy if it fills batches itself and no recent batch was slow,
        else each alone."""
        last, found = self._last, dict[tuple[GrammarStrategy, int], _Batch]()
        last.apart = bool(self._apart)
        for i, fill in last.fills.items():
            strategy = last.ready[i].strategy
            together = type(strategy).fill is not GrammarStrategy.fill and not last.apart
            batch = found.setdefault((strategy, -1 if together else i), _Batch(strategy))
            batch.places.append(i)
            batch.fills.append(fill)
            batch.matchers.append(fill.matcher)
        last.batches = list(found.values())
