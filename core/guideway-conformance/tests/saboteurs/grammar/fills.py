"""Filling batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from guideway.api import DeadEnd, FillJob
from guideway.api.bitmask import Bitmask
from numpy.typing import NDArray

from saboteurs import saboteur
from saboteurs.grammar.base import Place, Sane

Result = NDArray[np.int32]


def drafts_accepted(job: FillJob, bitmask: Bitmask, *, roll_back: bool = True) -> int:
    """Fill one job's rows."""
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


def each(jobs: Sequence[FillJob], fill: Callable[[FillJob], int]) -> Result:
    """`fill` for each job, failures apart."""
    result = np.zeros(len(jobs), dtype=np.int32)
    for i, job in enumerate(jobs):
        try:
            result[i] = fill(job)
        except Exception as error:
            job.error, result[i] = error, -1
    return result


@saboteur("grammar.fill_is_one_mask_after_another")
class MasksBeforeTheDraft(Sane):
    """The row after a draft has the mask from before it."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = super().fill(jobs, bitmask)
        for job, count in zip(jobs, result.tolist(), strict=True):
            for i in range(count, 0, -1):
                bitmask[job.first_row + i] = bitmask[job.first_row + i - 1]
        return result


@saboteur("grammar.fill_is_one_mask_after_another")
class CountsInInt64(Sane):
    """It returns int64."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Any:
        return super().fill(jobs, bitmask).astype(np.int64)


@saboteur("grammar.fill_stops_at_a_refused_draft")
class GoesOnAfterARefusedDraft(Sane):
    """A refused draft is left out, and those after it are filled and counted."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        for job in jobs:
            legal = [t for t in job.draft_token_ids if self.vocabulary.tokens[t] or t in self.vocabulary.stop_token_ids]
            job.draft_token_ids = legal
        return super().fill(jobs, bitmask)


@saboteur("grammar.fill_stops_at_a_refused_draft")
class FullRowsAfterARefusedDraft(Sane):
    """Rows after a refused draft are set to allow everything."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = super().fill(jobs, bitmask)
        for job, count in zip(jobs, result.tolist(), strict=True):
            bitmask[job.first_row + count + 1 : job.first_row + len(job.draft_token_ids) + 1] = -1
        return result


@saboteur("grammar.fill_stops_at_a_draft_that_terminates")
class TerminatingDraftsDoNotCount(Sane):
    """A draft that terminates is not counted."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = super().fill(jobs, bitmask)
        for i, job in enumerate(jobs):
            if result[i] > 0 and job.draft_token_ids[result[i] - 1] in self.vocabulary.stop_token_ids:
                result[i] -= 1
        return result


@saboteur("grammar.fill_leaves_every_state")
class LeavesTheDraftsAccepted(Sane):
    """It does not roll back."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        return each(jobs, lambda job: drafts_accepted(job, bitmask, roll_back=False))


@saboteur("grammar.fill_takes_jobs_in_any_order")
class ResultsByRow(Sane):
    """Results come in the order of the rows, not of the jobs."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        return super().fill(sorted(jobs, key=lambda job: job.first_row), bitmask)


@saboteur("grammar.fill_takes_jobs_in_any_order")
class RowsOneAfterAnother(Sane):
    """Rows are taken one after another, wherever a job says that its own begin."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        row, moved = 0, []
        for job in jobs:
            moved.append(FillJob(job.matcher, job.draft_token_ids, row))
            row += 1 + len(job.draft_token_ids)
        return super().fill(moved, bitmask)


@saboteur("grammar.jobs_are_updated_from_step_to_step")
class RemembersJobs(Sane):
    """Takes what a job said the first time for what it says."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        known: dict[int, FillJob] = self.__dict__.setdefault("known", {})
        first = [known.setdefault(id(job), FillJob(job.matcher, job.draft_token_ids, job.first_row)) for job in jobs]
        return super().fill(first, bitmask)


@saboteur("grammar.fill_of_no_jobs_is_nothing")
class NeedsAJob(Sane):
    """Without jobs it reads the first one."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        bitmask[jobs[0].first_row] = 0
        return super().fill(jobs, bitmask)


@saboteur("grammar.a_failed_job_fails_alone")
class OneFailsAllFail(Sane):
    """After a job that failed no other is filled."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = np.full(len(jobs), -1, dtype=np.int32)
        for i, job in enumerate(jobs):
            try:
                result[i] = drafts_accepted(job, bitmask)
            except DeadEnd as error:
                job.error = error
                break
        return result


@saboteur("grammar.a_failed_job_fails_alone")
class ExpectsDeadEndsOnly(Sane):
    """Whatever a matcher raises but DeadEnd ends the whole batch."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = np.zeros(len(jobs), dtype=np.int32)
        for i, job in enumerate(jobs):
            try:
                result[i] = drafts_accepted(job, bitmask)
            except DeadEnd as error:
                job.error, result[i] = error, -1
        return result


@saboteur("grammar.a_failed_job_fails_alone")
class FailsWithoutAWord(Sane):
    """A job that failed is told from others by its result alone."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = super().fill(jobs, bitmask)
        for job in jobs:
            job.error = None
        return result


@saboteur("grammar.fill_writes_nowhere_else")
class WritesFarAway(Sane):
    """It knows where memory goes on after its bitmask, as native code does, and writes there past the next row."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        large = bitmask.base
        if large is not None and len(large) > len(bitmask) + 100:
            large[-100] = 0
        return super().fill(jobs, bitmask)


@saboteur("grammar.a_draft_into_a_dead_end_is_refused")
class DraftsIntoDeadEnds(Sane):
    """A draft that leads to a dead end fails its job."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        def strict(job: FillJob) -> int:
            accepted = drafts_accepted(job, bitmask)
            if accepted < len(job.draft_token_ids) and job.matcher.validate(job.draft_token_ids) > accepted:
                raise DeadEnd("a draft leads to a dead end")
            return accepted

        return each(jobs, strict)


@saboteur("grammar.batches_of_many_jobs_work")
class FillsAHundred(Sane):
    """Jobs past the first hundred are left out."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = np.zeros(len(jobs), dtype=np.int32)
        result[:100] = super().fill(jobs[:100], bitmask)
        return result


@saboteur("grammar.batches_of_many_jobs_work")
class DraftsOfTheFirstHundred(Sane):
    """Drafts of jobs past the first hundred are not looked at."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        bare = [FillJob(job.matcher, (), job.first_row) for job in jobs[100:]]
        return super().fill([*jobs[:100], *bare], bitmask)


@saboteur("grammar.a_failed_job_fails_alone")
class FailuresClearTheNextRow(Sane):
    """When a job fails, a row too many is cleared after its own."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = super().fill(jobs, bitmask)
        for job, count in zip(jobs, result.tolist(), strict=True):
            if count < 0:
                bitmask[job.first_row : job.first_row + len(job.draft_token_ids) + 2] = 0
        return result


@saboteur("grammar.a_failed_job_fails_alone")
class ForgivesSomeErrors(Sane):
    """An error that it did not think of in a matcher of its own ends the whole batch."""

    max_rollback: ClassVar[int | None] = 8

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Result:
        result = np.zeros(len(jobs), dtype=np.int32)
        for i, job in enumerate(jobs):
            assert isinstance(job.matcher, Place)
            try:
                result[i] = drafts_accepted(job, bitmask)
            except (DeadEnd, ValueError, RuntimeError) as error:
                job.error, result[i] = error, -1
        return result
