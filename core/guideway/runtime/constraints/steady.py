"""Steps of the same sequences, one row each, on which only their constraints act.

While the batch stays the same, each strategy accepts all tokens in one call and fills all masks in another. The books
of a sequence (its journal, and the grammar mask's state) are written only when they are read. Anything unusual ends
this: the step is then repeated sequence by sequence, as if it had not begun.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial

import numpy as np

from guideway.api.steps import CONTINUE, GRAMMAR_MASK, Fault, Outcome, Payload, StepBatch, StepInput
from guideway.errors import contain
from guideway.runtime.constraints.grammar_state import GrammarState
from guideway.runtime.constraints.mask_rows import MaskRows, StrategyBlock
from guideway.runtime.modifiers.modifier_set import MOST_TOGETHER, ActiveSequence
from guideway.runtime.sequences.replay import advance_matchers
from guideway.runtime.work.stopwatch import Stopwatch

__all__ = ["SteadyBatch", "is_plain"]


def is_plain(sequence: ActiveSequence, state: GrammarState | None) -> bool:
    """Return whether a sequence may be in a `SteadyBatch`: only its constraint acts on it, and the constraint has
    begun, has not ended and lost no token to closing. `state` is the grammar mask's."""
    if sequence.fault is not None or sequence.bans is not None or sequence.companions:
        return False
    if sequence.opening is not None and not sequence.opening.is_over(sequence.journal.token_ids):
        return False
    if state is None:
        return not sequence.acting
    alone = len(sequence.acting) == 1 and state.first_closed is None
    return alone and state.begins_in == 0 and not state.terminated and not state.canonical


class SteadyBatch:
    """The sequences of a prepared step, in the order of the batch. `states` are the grammar mask's states. `rows` has
    filled the masks of `blocks`, of which there is at least one. With `num_steps` tokens the first sequence is as long
    as it may be, and ends."""

    def __init__(
        self,
        step: StepInput,
        sequences: Sequence[ActiveSequence],
        states: Sequence[GrammarState | None],
        rows: MaskRows,
        blocks: Sequence[StrategyBlock],
        stopwatch: Stopwatch,
        num_steps: int,
    ) -> None:
        same = {each.name: getattr(step, each.name) for each in fields(step) if each.name not in ("batch", "payloads")}
        self._step_again = partial(StepInput, **same)
        """Makes the input of a step from a batch and payloads."""
        self._slots = step.batch.slots.tobytes()
        self._sequences = sequences
        self._states = states
        self._rows = rows
        self._blocks = blocks
        self._matchers = [tuple([job.matcher for job in block.jobs]) for block in blocks]
        self._stopwatch = stopwatch
        self._places = step.payloads[GRAMMAR_MASK].rows
        """``int32[m]``: the indices in the batch of the constrained sequences, grouped by strategy."""
        constrained = [state for block in blocks for state in block.states]
        self._forecast = [state for state in constrained if state.forecast is not None]
        """The constrained states with a forecast: all of them, or none."""
        self._share = min(MOST_TOGETHER, 1 + (len(constrained) - 1) / 8)
        self._stops = frozenset[int]().union(*{state.stop_token_ids for state in constrained})
        """The stop tokens of all constrained sequences."""
        self._ends_at = min([sequence.ends_at for sequence in sequences])
        self._closers = [state.closer for state in constrained if state.closer is not None]
        self._num_steps = num_steps
        self._num_left = 0
        """Steps left in which closing certainly has nothing to do. In others it reads the books."""
        self._log: list[list[int]] = []
        """The tokens of each step that is not yet in the books, one of each sequence."""
        self._written: tuple[list[list[int]], list[tuple[int, int, int]]] = ([], [])
        """The log that is being written, and for each sequence the numbers of tokens, steps and accepted tokens before
        it."""

    def is_of(self, batch: StepBatch) -> bool:
        """Return whether a batch has the same sequences, one row each."""
        return batch.num_rows == batch.num_sequences and batch.slots.tobytes() == self._slots

    def prepare(self, batch: StepBatch) -> StepInput | None:
        """Return the worker's input for the next step; None if it must be prepared sequence by sequence."""
        if time.monotonic() > self._ends_at:
            return None
        if self._num_left <= 0:
            self.settle()
            self._num_left = min([closer.num_free for closer in self._closers], default=1 << 31)
        is_free = self._num_left > 0
        self._num_left -= 1
        try:
            began = self._stopwatch.start()
            bitmask = self._rows.fill_again(self._blocks, is_free=is_free)
            if bitmask is None or self._stopwatch.overrun(began, self._share):
                return None
        except BaseException as error:
            self._break()
            contain(error)
            self._go_back(None)
            return None
        # the other fields stay the same for the same sequences with one row each
        return self._step_again(batch=batch, payloads={GRAMMAR_MASK: Payload(self._places, {"bitmask": bitmask})})

    def accept(self, token_ids: Sequence[Sequence[int]]) -> list[Outcome] | None:
        """Accept the final tokens of a step and return the outcomes; None if they must be accepted sequence by
        sequence. In that case nothing has changed."""
        try:
            ids = [token_id for (token_id,) in token_ids]
        except ValueError:  # not one token each
            return None
        constrained = np.array(ids, dtype=np.int32)[self._places]
        for state in self._forecast:
            state.learn_forced()
        self._num_steps -= 1
        if self._num_steps <= 0 or not self._stops.isdisjoint(ids):  # hosts need not begin with a step of this batch
            return None
        counts, taken = list[int](), 0.0
        try:
            began = self._stopwatch.start()
            for block, matchers in zip(self._blocks, self._matchers, strict=True):
                asked = time.monotonic()
                found = advance_matchers(block.strategy, matchers, constrained[block.start : block.end])
                counts += found.tolist()
                if block.home.waits:  # the call may have waited for its host
                    self._stopwatch.leave_out(asked, waited=True)
            taken = self._stopwatch.overrun(began, self._share)
        except BaseException as error:
            self._break()
            contain(error)
            counts += [-1] * (len(constrained) - len(counts))
        if taken or set(counts) != {1}:
            self._go_back(counts)
            return None
        self._log.append(ids)
        if self._forecast:
            for state, token_id in zip(self._forecast, constrained.tolist(), strict=True):
                if state.forecast is not None:
                    state.forecast.accept((token_id,), 0)
        if self._rows.closing:  # its records hold after the tokens of this step, and of no step before
            self.settle()
            for sequence, constrained_state in zip(self._sequences, self._states, strict=True):
                if constrained_state is not None:
                    self._rows.record_end(constrained_state, sequence.journal)
        return [CONTINUE] * len(self._sequences)

    def settle(self) -> None:
        """Write the accepted tokens into the books. May be repeated after an interrupt."""
        log = self._log
        if not log:
            return
        if self._written[0] is not log:
            places = [
                (len(sequence.journal.token_ids), len(sequence.journal.step_ends), len(state.accepted) if state else 0)
                for sequence, state in zip(self._sequences, self._states, strict=True)
            ]
            self._written = (log, places)
        for sequence, state, column, (num_tokens, num_steps, num_accepted) in zip(
            self._sequences, self._states, zip(*log, strict=True), self._written[1], strict=True
        ):
            sequence.journal.write(num_tokens, num_steps, column)
            if state is not None:
                state.write(num_accepted, column)
        self._log = []

    def _break(self) -> None:
        """Record that the matchers may be in any state, even if an interrupt prevents their restoration."""
        for sequence in self._sequences:
            sequence.broken = True

    def _go_back(self, counts: Sequence[int] | None) -> None:
        """Restore all matchers to the end of the books, after a call of `GrammarStrategy.advance` that returned
        `counts`, or that left them in any state (None). A sequence whose matcher cannot be restored gets a fault."""
        self.settle()
        states = [state for block in self._blocks for state in block.states]
        for i, (state, place) in enumerate(zip(states, self._places.tolist(), strict=True)):
            count = -1 if counts is None else counts[i]
            try:
                if count == 1:
                    state.job.matcher.rollback(1)
                elif count != 0:
                    state.replay()
            except BaseException as error:
                contain(error)
                sequence = self._sequences[place]
                sequence.broken = True
                sequence.fault = Fault.of(f"grammar.{state.candidate.name}", "accept", error)
