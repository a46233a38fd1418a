"""Modifiers whose payloads are wrong, or true of another step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import Feedback, Outcome, Payload, Request, SequenceInfo, StepBatch

from saboteurs import saboteur
from saboteurs.modifier.references import Repetition, RepetitionState, Watermark


class _Altered(Repetition):
    """Changes its payload at the end."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        """The wrong one."""
        return payload

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        return None if payload is None else self.alter(payload, batch)


@saboteur("modifier.payload_rows_are_rows")
class LongRows(_Altered):
    """Gives rows as int64."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        return replace(payload, rows=payload.rows.astype(np.int64))


@saboteur("modifier.payload_rows_are_rows")
class RowTwice(_Altered):
    """Names the first row twice where there are several."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        rows = payload.rows.copy()
        rows[-1] = rows[0]
        return replace(payload, rows=rows)


@saboteur("modifier.payload_rows_are_rows")
class SlotsForRows(_Altered):
    """Takes slots for rows where there are several."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        return payload if len(payload) == 1 else replace(payload, rows=payload.rows + np.int32(40))


@saboteur("modifier.payload_arrays_are_aligned")
class OneEntryForAll(_Altered):
    """Gives one entry for all rows, where there are several."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        return replace(payload, arrays={**payload.arrays, "strength": np.zeros(1, dtype=np.float32)})


@saboteur("modifier.payload_arrays_are_aligned")
class ListForArray(_Altered):
    """Shares a list."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        return replace(payload, shared={"window": [1, 2, 3]})


@saboteur("modifier.none_leaves_rows_alone")
class EveryRow(Watermark):
    """Speaks of every row of the batch."""

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        return super().prepare(batch, [[0, 1.0] if state is None else state for state in states])


@saboteur("modifier.none_leaves_rows_alone")
class EverySibling(EveryRow):
    """Leaves a request's second sequence alone, and speaks of it."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        return None if sequence.index % 2 else super().start(request, sequence, compiled)


@saboteur("modifier.prepare_moves_nothing")
class CountsCalls(Repetition):
    """Grows stronger with each prepare."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        for state in states:
            if state is not None:
                state.strength *= 1.5
        return super().prepare(batch, states)


@saboteur("modifier.prepare_moves_nothing")
class TakesDraftsAsHeard(Repetition):
    """Keeps the drafts it saw."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        for i, state in enumerate(states):
            if state is not None:
                state.tokens += batch.drafts(i).tolist()
        return payload


@saboteur("modifier.payload_holds_a_step")
class OneBuffer(Repetition):
    """Writes every payload into the same arrays."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.buffers: dict[str, Any] = {}

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        if payload is None:
            return None
        arrays = {}
        for name, array in payload.arrays.items():
            buffer = self.buffers.setdefault(name, np.zeros((256, *array.shape[1:]), dtype=array.dtype))
            buffer[: len(array)] = array
            arrays[name] = buffer[: len(array)]
        return replace(payload, arrays=arrays)


@saboteur("modifier.company_changes_nothing")
class Shares(_Altered):
    """Divides its strength among the rows of the batch."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        return replace(payload, arrays={**payload.arrays, "values": payload.arrays["values"] / batch.num_rows})


@saboteur("modifier.order_changes_nothing")
class FirstComes(_Altered):
    """Is stronger for the first row of the batch."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        values = payload.arrays["values"] * (1 + (payload.rows == 0))[:, None]
        return replace(payload, arrays={**payload.arrays, "values": values.astype(np.float32)})


@saboteur("modifier.slots_are_only_places")
class SlotsMatter(_Altered):
    """Takes the slot into account."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        slots = np.repeat(batch.slots, np.diff(batch.row_start))[payload.rows]
        values = payload.arrays["values"] * (1 + slots)[:, None]
        return replace(payload, arrays={**payload.arrays, "values": values.astype(np.float32)})


@saboteur("modifier.sequences_come_and_go")
class StepsOfAll(Repetition):
    """Takes the places of states in the batch for fixed while their number is the same."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.last: list[RepetitionState] = []

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        if len(states) != len(self.last) or None in states:
            self.last = [state for state in states if state is not None]
        return super().prepare(batch, self.last if len(states) == len(self.last) else states)


@saboteur("modifier.drafts_change_nothing")
class BlindForDrafts(Repetition):
    """Gives all rows of a sequence what its first row gets."""

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, [], ids, values)


@saboteur("modifier.steps_of_any_size")
class HearsTheLast(Repetition):
    """Hears only the last token of a step."""

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        return super().accept(state, token_ids[-1:], feedback)


@saboteur("modifier.any_width")
class FixedPadding(_Altered):
    """Takes it that models pad their logits."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        vocabulary = self.context.vocabulary
        np.zeros(vocabulary.logits_width)[len(vocabulary)] = 1
        return payload


@saboteur("modifier.wide_vocabularies")
class ShortIds(_Altered):
    """Keeps token ids in 16 bits."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        last = np.array([len(self.context.vocabulary) - 1], dtype=np.uint16)
        return replace(payload, shared={"last": last.astype(np.int32)})


@saboteur("modifier.prepare_leaves_the_batch_alone")
class SortsSlots(Repetition):
    """Sorts the batch's slots in place."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        batch.slots.sort()
        return payload


@saboteur("modifier.full_batches")
class RoomForFew(_Altered):
    """Has room for 48 rows."""

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        np.zeros(48)[len(payload) - 1] = 1
        return payload
