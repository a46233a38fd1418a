"""The rows of each step's bitmask: grouped by strategy, filled between guard rows, and set to all ones on failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import FULL, Bitmask, allow_only, empty_rows, is_allowed
from guideway.api.grammar import FillJob, GrammarStrategy
from guideway.api.steps import Fault, Payload, StepBatch
from guideway.errors import ConformanceError, contain
from guideway.runtime.constraints.grammar_state import GrammarState
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.mask_block import GUARD, Late, fill_between_guards
from guideway.runtime.sequences.journal import Journal
from guideway.runtime.sequences.replay import fill_jobs
from guideway.runtime.work.metrics import FILL_SECONDS
from guideway.runtime.work.step_clock import StepClock
from guideway.runtime.work.stopwatch import Stopwatch

__all__ = ["MaskRows", "StrategyBlock"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StrategyBlock:
    """One strategy's part of a step: indices of its sequences in the batch, their states, and their consecutive rows of
    the bitmask."""

    sequences: list[int] = field(default_factory=list)
    states: list[GrammarState] = field(default_factory=list)
    start: int = 0
    end: int = 0
    jobs: tuple[FillJob, ...] = ()
    """The jobs of the states."""

    @property
    def name(self) -> str:
        """The strategy's configured name."""
        return self.states[0].candidate.name

    @property
    def strategy(self) -> GrammarStrategy:
        return self.states[0].candidate.strategy

    @property
    def home(self) -> Home:
        return self.states[0].candidate.home


class MaskRows:
    """Fills the rows of each step, `words` words each.

    Payloads use two buffers in turn, so a bitmask stays valid until the second `fill` after it.
    """

    def __init__(self, words: int, stopwatch: Stopwatch, clock: StepClock) -> None:
        self.words = words
        self._stopwatch = stopwatch
        self._clock = clock
        self.late: set[GrammarState] = set()
        """States whose rows were not ready in the last step. Their rows allow every token, and tokens drawn from them
        are not final."""
        self._blocks: list[StrategyBlock] = []
        self.closing: set[GrammarState] = set()
        """States with a closing record to journal. A host may prepare a step of other sequences before their tokens
        arrive."""
        self._buffers = [self._allocate(0) for _ in range(2)]
        """Two buffers that grow with the batches, which are usually far below the maximum. The first row, and the row
        after the rows in use, are guards."""

    def fill(self, batch: StepBatch, states: Sequence[GrammarState | None]) -> Payload | None:
        """Return the rows of a step as the array ``bitmask``, with the faults of failed sequences; None if all rows
        allow every token."""
        self.late.clear()
        blocks, rows = self.lay_out(batch, states)
        if not blocks:
            return None
        buffer = self._buffer(len(rows))
        bitmask = buffer[1 : 1 + len(rows)]
        if batch.num_rows != batch.num_sequences:
            bitmask[:] = FULL  # rows that no draft reaches keep allowing every token
        failed: dict[int, BaseException] = {}
        for block in blocks:
            failed |= self._fill_block(block, buffer)
        empty = empty_rows(bitmask)
        if empty.any():
            for block in blocks:
                for i, state in zip(block.sequences, block.states, strict=True):
                    if empty[state.rows].any():
                        failed[i] = ConformanceError("it filled a row that allows no token")
        faults = self._faults(batch.slots, states, failed, bitmask) if failed else {}
        self._blocks = blocks
        return Payload(np.array(rows, dtype=np.int32), {"bitmask": bitmask}, faults=faults)

    def lay_out(self, batch: StepBatch, states: Sequence[GrammarState | None]) -> tuple[list[StrategyBlock], list[int]]:
        """Assign the rows of the next bitmask to the states. Return the blocks, and for each row of the bitmask its row
        in the batch."""
        # rows before the beginning and after the end of a constraint allow every token
        blocks: dict[str, StrategyBlock] = {}
        name = block = None
        for i, state in enumerate(states):
            if state is not None and not state.terminated and state.begins_in == 0:
                if block is None or state.candidate.name != name:
                    name = state.candidate.name
                    block = blocks.setdefault(name, StrategyBlock())
                block.sequences.append(i)
                block.states.append(state)
        rows: list[int] = []
        for block in blocks.values():
            self._lay_out(block, batch, rows)
        return list(blocks.values()), rows

    def take_blocks(self) -> list[StrategyBlock]:
        """Return the blocks of the last `fill`, and forget them, so that ended sequences are freed. Empty if it had no
        rows, or the blocks were taken before."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def fill_again(self, blocks: Sequence[StrategyBlock], closing: Sequence[GrammarState]) -> Bitmask | None:
        """Return the rows, without drafts, of blocks that `lay_out` returned last. None if a strategy reported a
        failure for a sequence, or a row has no token, or lost one to closing: call `fill`, which finds the sequence.
        `closing` are the states for which closing may have something to do in this process. Raises the errors of
        strategies and of closing, after which the matchers may be in any state."""
        num_rows = blocks[-1].end
        buffer = self._buffer(num_rows)
        closing = list(closing)
        for block in blocks:
            home, began = block.home, time.monotonic()
            fill = partial(fill_jobs, block.strategy)
            with self._clock.wait if home.waits else self._clock.fill:
                counts = fill_between_guards(fill, block.jobs, buffer[block.start : block.end + 2])
            FILL_SECONDS.labels(block.name).observe(time.monotonic() - began)
            if np.count_nonzero(counts):
                for job in block.jobs:  # work that exceeded a limit is not tried twice
                    home.fail(job)
                return None
            if home.waits:
                self._stopwatch.leave_out(began, waited=True)
            if home.has_closed:
                closing += block.states
        began = time.monotonic()
        for state in closing:
            if (error := self._close(state, 0, buffer)) is not None:
                raise error  # its matcher may be in any state
            if state.first_closed is not None:
                return None
        self._stopwatch.leave_out(began, waited=False)  # closing limits its own work
        bitmask = buffer[1 : 1 + num_rows]
        return None if np.count_nonzero(empty_rows(bitmask)) else bitmask

    def record_end(self, state: GrammarState, journal: Journal) -> None:
        """Append the closing record of a sequence, whose tokens it has accepted, to its journal."""
        if state in self.closing:
            self.closing.discard(state)
            if state.end is not None and state.end not in journal.ends[-1:]:
                journal.ends.append(state.end)
            journal.closed_early |= state.closed_early

    def forbade(self, state: GrammarState, token_ids: Sequence[int]) -> bool:
        """Return whether the last step's mask forbade one of these tokens, which were drawn in that step."""
        bitmask = self._buffers[0][1:][state.rows]
        pairs = zip(range(len(bitmask)), token_ids, strict=False)
        return any(not is_allowed(bitmask, row, token_id) for row, token_id in pairs)

    def _lay_out(self, block: StrategyBlock, batch: StepBatch, rows: list[int]) -> None:
        """Assign the next rows of the bitmask to `block`, and append the batch's row of each to `rows`."""
        block.start = first = len(rows)
        guard = first - 1  # the strategy's row 0
        if batch.num_rows == batch.num_sequences:
            rows += block.sequences
            for row, state in enumerate(block.states, first):
                state.num_rows, state.first_row = 1, row
                state.job.first_row, state.job.draft_token_ids = row - guard, ()
        else:
            starts, drafts = batch.row_start.tolist(), batch.draft_token_ids.tolist()
            for i, state in zip(block.sequences, block.states, strict=True):
                start, end = starts[i], starts[i + 1]
                state.first_row, state.num_rows = len(rows), end - start
                state.job.first_row = state.first_row - guard
                state.job.draft_token_ids = tuple(drafts[start - i : end - i - 1])
                rows += range(start, end)
        block.end, block.jobs = len(rows), tuple([state.job for state in block.states])

    def _allocate(self, num_rows: int) -> Bitmask:
        """Return a buffer with `num_rows` rows between two guards."""
        buffer = np.full((num_rows + 2, self.words), FULL, dtype=np.int32)
        buffer[0] = GUARD
        return buffer

    def _buffer(self, num_rows: int) -> Bitmask:
        """Return the other buffer, with a guard before and after the first `num_rows` rows. Rows are not cleared: the
        first row of each sequence is overwritten by its fill or its fault."""
        self._buffers.reverse()
        if len(self._buffers[0]) < num_rows + 2:
            self._buffers[0] = self._allocate(max(num_rows, 2 * len(self._buffers[0])))
        self._buffers[0][num_rows + 1] = GUARD
        return self._buffers[0]

    def _fill_block(self, block: StrategyBlock, buffer: Bitmask) -> dict[int, BaseException]:
        """Fill the rows of a block and return the errors by sequence."""
        strategy, jobs = block.strategy, block.jobs
        waits, began = block.home.waits, time.monotonic()
        with self._clock.wait if waits else self._clock.fill:
            try:
                accepted = fill_between_guards(partial(fill_jobs, strategy), jobs, buffer[block.start : block.end + 2])
            except BaseException as error:
                contain(error)
                log.warning("grammar.%s failed in fill; filling row by row", strategy.name, exc_info=True)
                accepted = self._fill_one_by_one(block, buffer)
        FILL_SECONDS.labels(block.name).observe(time.monotonic() - began)
        if waits:  # hosts enforce deadlines themselves
            self._stopwatch.leave_out(began, waited=True)
        failed: dict[int, BaseException] = {}
        counts = accepted.tolist()
        began = time.monotonic()
        for i, state, count in zip(block.sequences, block.states, counts, strict=True):
            state.num_live_drafts = count
            if count >= 0 and (why := self._close(state, count, buffer)) is not None:
                failed[i] = why
            if state.canonical and count > 0:
                self._keep_canonical(state, count, buffer)
        self._stopwatch.leave_out(began, waited=False)  # closing limits its own work
        if min(counts) < 0:
            for i, state, count in zip(block.sequences, block.states, counts, strict=True):
                if count < 0:
                    unsaid = ConformanceError("fill returned -1 without setting the job's error")
                    failed[i], state.job.error = state.job.error or unsaid, None
        return failed

    def _close(self, state: GrammarState, count: int, buffer: Bitmask) -> BaseException | None:
        """Clear tokens that could not be completed in the rows of a state, whose first `count` drafts were accepted.
        Return the error if that failed."""
        if (closer := state.closer) is not None:
            if closer.is_far(count + 1):
                state.first_closed = None
                return None
            first = state.first_row + 1
            rows = buffer[first : first + min(count + 1, state.num_rows)]
            try:
                with self._clock.close:
                    state.first_closed = closer.restrict(state.job.matcher, state.job.draft_token_ids, rows)
                self.closing.add(state)
            except BaseException as error:
                contain(error)
                return error
        return None

    def _keep_canonical(self, state: GrammarState, count: int, buffer: Bitmask) -> None:
        """Allow only the canonical token in each row, up to the first of the `count` accepted drafts that differs from
        it."""
        rows = buffer[1:][state.rows]
        for row, (token_id, draft) in enumerate(zip(state.canonical, state.job.draft_token_ids[:count], strict=False)):
            if token_id != draft or not is_allowed(rows, row, token_id):  # closing excluded it
                return
            allow_only(rows, row, (token_id,))

    def _fill_one_by_one(self, block: StrategyBlock, buffer: Bitmask) -> NDArray[np.int32]:
        """Fill row by row, after a batch fill raised. That fill may have left matchers and rows in any state, so
        matchers are rebuilt, and each job's rows have guards of their own."""
        accepted = np.full(len(block.states), -1, dtype=np.int32)
        buffer[1 + block.start : 1 + block.end] = FULL
        for i, state in enumerate(block.states):
            strategy, job = state.candidate.strategy, state.job
            rows = buffer[state.first_row : state.first_row + state.num_rows + 2]
            try:
                state.replay()
                job.first_row = 1
                accepted[i] = fill_between_guards(partial(GrammarStrategy.fill, strategy), (job,), rows)[0]
            except BaseException as error:
                contain(error)
                job.error = error
            job.first_row = state.first_row - block.start + 1
        return accepted

    def _faults(
        self,
        slots: NDArray[np.int32],
        states: Sequence[GrammarState | None],
        failed: Mapping[int, BaseException],
        bitmask: Bitmask,
    ) -> dict[int, Fault]:
        """Return `Payload.faults`, and let the rows of failed and late states allow every token, so that the draw stays
        finite."""
        faults = {}
        for i, error in failed.items():
            state = states[i]
            assert state is not None
            bitmask[state.rows] = FULL
            if isinstance(error, Late):
                self.late.add(state)
            else:
                faults[int(slots[i])] = Fault.of(f"grammar.{state.candidate.name}", "fill", error)
        return faults
