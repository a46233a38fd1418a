"""The modifier `witness`: reports the data that its transform read at the row of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from guideway.api import (
    CONTINUE,
    Array,
    Companion,
    Example,
    Feedback,
    LogitModifier,
    LogitTransform,
    Need,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
)


class Transform(LogitTransform):
    history_length = 1
    emits: ClassVar = {
        "logit": ((), "float32"),
        "companion": ((), "float32"),
        "hidden": ((), "float32"),
        "previous": ((), "int32"),
        "position": ((), "int32"),
    }

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows, num_tokens = step.ops, payload.rows, self.context.vocabulary_size
        for name, its_rows in (("logit", rows), ("companion", step.companion_rows[rows][:, 0])):
            step.emit(name, ops.topk(ops.gather(logits, its_rows)[:, :num_tokens], 1)[0][:, 0])
        step.emit("hidden", step.hidden_states(rows).sum(axis=1))
        step.emit("previous", step.history(rows)[:, 0])
        step.emit("position", step.positions[rows])
        return logits


class Witness(LogitModifier[list[list[float]]]):
    contract = "1.0"
    name, stage, transform = "witness", Stage.PRE_WARP, Transform
    examples = (Example({"companion": [1]}),)
    needs = frozenset({Need.HISTORY, Need.HIDDEN_STATES, Need.FEEDBACK, Need.COMPANIONS})

    def companions(self, request: Request) -> Sequence[Companion]:
        wanted = request.params.modifiers.get(self.name)
        return [] if wanted is None else [Companion(tuple(wanted["companion"]))]

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> list[list[float]] | None:
        return [] if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[list[list[float]] | None]) -> Payload | None:
        return Payload(batch.select(states)[0])

    def accept(self, state: list[list[float]], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        assert feedback is not None
        read = [feedback[name].tolist() for name in Transform.emits]
        state += [[round(value, 5) for value in row] for row in zip(*read, strict=True)]
        return CONTINUE

    def report(self, state: list[list[float]]) -> Mapping[str, Any]:
        return {"rows": state}


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return Witness
