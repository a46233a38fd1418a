"""The worker's half of the modifiers that mask tokens. It imports nothing of the scheduler's half, so that a worker of
another host starts without it."""

from __future__ import annotations

from typing import TypeVar

from guideway.api.modifier import LogitModifier, LogitTransform, Step
from guideway.api.steps import GRAMMAR_MASK, Array, Payload, Stage

__all__ = ["WorkerGate", "WorkerMask"]

S = TypeVar("S")


class MaskTransform(LogitTransform):
    """Applies the bitmask of each row on the logits' device."""

    bitmask = "bitmask"
    hard = True
    idempotent = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return self.context.device.apply_bitmask(logits, payload.arrays["bitmask"], payload.rows)


class WorkerMask(LogitModifier[S]):
    """`GrammarMask` as a pipeline knows it."""

    name = GRAMMAR_MASK
    stage = Stage.MASK
    transform = MaskTransform


class WorkerGate(LogitModifier[S]):
    """`ReasoningGate` as a pipeline knows it."""

    name = "reasoning"
    stage = Stage.MASK
    transform = MaskTransform
