"""Modifiers that work on a desk, and fail in a host."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from guideway.api import (
    Array,
    Feedback,
    Need,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Step,
    StepBatch,
)

from saboteurs import saboteur
from saboteurs.modifier.compiling import Compiling
from saboteurs.modifier.references import (
    Repetition,
    RepetitionState,
    RepetitionTransform,
    Watermark,
    WatermarkTransform,
)


@saboteur("modifier.forced_is_all_that_is_left")
class ForcesInVain(Repetition):
    """Forces a token, and leaves all others too."""

    def forced(self, state: RepetitionState, limit: int) -> Sequence[int]:
        return (97,)[:limit]


class OverflowingTransform(RepetitionTransform):
    """Divides what is too large for a float by itself."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        own = step.ops.gather(logits, payload.rows)
        weights = step.ops.exp(own)
        return step.ops.where_rows(logits, payload.rows, True, own * weights / weights)


@saboteur("modifier.any_logits")
class Overflows(Repetition):
    """Makes NaN of logits of a hundred."""

    transform = OverflowingTransform


@saboteur("modifier.payloads_go_to_workers")
class SendsWhatDoesNotPickle(Repetition):
    """Puts its arrays into a mapping that cannot be pickled."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        return None if payload is None else replace(payload, arrays=MappingProxyType(payload.arrays))


@saboteur("modifier.the_clock_is_nothing")
class Tires(Repetition):
    """Does less an hour later."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state = super().start(request, sequence, compiled)
        if state is not None:
            state.born = time.monotonic()
        return state

    def fill(self, state: Any, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts, ids, values)
        values /= 1 + (time.monotonic() - state.born) // 3600


@saboteur("modifier.the_clock_is_nothing")
class TellsTheTime(Repetition):
    """Has the time of day in its report."""

    def report(self, state: RepetitionState) -> Mapping[str, Any]:
        return {"at": time.time()}


class FullPrecisionTransform(WatermarkTransform):
    """Takes hidden states of one type."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        if "float32" not in str(step.hidden_states(payload.rows).dtype):
            raise TypeError("hidden states are float32")
        return super().apply(logits, payload, step)


@saboteur("modifier.hidden_states_of_any_type")
class WantsFullPrecision(Watermark):
    """Fails for a model in half precision."""

    needs = frozenset({Need.HISTORY, Need.HIDDEN_STATES})
    transform = FullPrecisionTransform


@saboteur("modifier.full_contexts")
class ShortNumbers(Repetition):
    """Keeps lengths in 16 bits."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        lengths = np.array([len(state.tokens) if state else 0 for state in states], dtype=np.uint16)
        return None if payload is None else replace(payload, shared={"lengths": lengths})


@saboteur("modifier.keeps_copies")
class LooksAtTheLastBatch(Repetition):
    """Looks whether the batch has changed in the memory that the host writes the next one to."""

    last: Any = None

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        if self.last is None or not np.array_equal(self.last[0], batch.row_start):
            self.last = batch.row_start, batch.select(states)[0]
        payload = super().prepare(batch, states)
        rows = self.last[1]
        size = min(len(rows), len(payload.rows)) if payload is not None else 0
        return None if payload is None else Payload(rows[:size], {k: v[:size] for k, v in payload.arrays.items()})


@saboteur("modifier.release_ends_one_sequence")
class RemembersTheSlot(Repetition):
    """Gives each slot the strength of the first sequence that was in it."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.strengths: dict[int, float] = {}

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        there = zip(batch.slots.tolist(), states, strict=True)
        changed = [s and replace(s, strength=self.strengths.setdefault(slot, s.strength)) for slot, s in there]
        return super().prepare(batch, changed)


@saboteur("modifier.replay_rebuilds_the_state")
class ReportsOnAll(Repetition):
    """Tells each user how many tokens all have had."""

    heard = 0

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        self.heard += len(token_ids)
        return super().accept(state, token_ids, feedback)

    def report(self, state: RepetitionState) -> Mapping[str, Any]:
        return {"heard": self.heard}


@saboteur("modifier.forks_go_on_as_their_parent")
class ForksCountAnew(Repetition):
    """A fork's report begins at zero, though its past is that of its parent."""

    def accept(self, state: Any, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.heard = getattr(state, "heard", 0) + len(token_ids)
        return super().accept(state, token_ids, feedback)

    def report(self, state: Any) -> Mapping[str, Any]:
        return {"heard": getattr(state, "heard", 0)}


@saboteur("modifier.drafts_change_nothing")
class EightDrafts(Repetition):
    """Knows eight drafts, and no more."""

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts[:8], ids, values)


@saboteur("modifier.equal_keys_mean_equal_values")
class CoarseKey(Compiling):
    """Says that strengths that are nearly the same are equal, which no two of its examples are."""

    def compile_key(self, request: Request) -> Hashable | None:
        strength: float = request.params.modifiers[self.name]["strength"]
        return strength // 2
