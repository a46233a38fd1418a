"""Transforms that do to logits what they must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import Array, Payload, Stage, Step, StepBatch, WorkerContext

from saboteurs import saboteur
from saboteurs.modifier.references import (
    Allow,
    AllowTransform,
    Ban,
    BanTransform,
    Mass,
    MassTransform,
    Repetition,
    RepetitionTransform,
    Watermark,
    WatermarkTransform,
)


@saboteur("modifier.any_partition_of_rows")
class FirstStrengthForAll(Watermark):
    """Uses the key of the first entry for all."""

    class Transform(WatermarkTransform):
        """Looks at the first entry."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            raised = step.ops.gather(logits, payload.rows) + 0.5 * (payload.rows[:1] + 1)
            return step.ops.where_rows(logits, payload.rows, True, raised)

    transform = Transform


@saboteur("modifier.any_partition_of_rows")
class DividesByItsRows(Watermark):
    """Divides its number by how many entries it is called with."""

    class Transform(WatermarkTransform):
        """Looks at the payload's length."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            raised = step.ops.gather(logits, payload.rows) + 2.0 / len(payload)
            return step.ops.where_rows(logits, payload.rows, True, raised)

    transform = Transform


@saboteur("modifier.apply_returns_the_logits")
class ReturnsItsRows(Watermark):
    """Returns the rows it modified and no others, where it has several."""

    class Transform(WatermarkTransform):
        """Gathers."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            logits = super().apply(logits, payload, step)
            return logits if len(logits) == 1 else step.ops.gather(logits, payload.rows)

    transform = Transform


@saboteur("modifier.apply_returns_the_logits")
class Widens(Watermark):
    """Returns float64."""

    class Transform(WatermarkTransform):
        """Computes in float64."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            return super().apply(logits, payload, step).astype("float64")

    transform = Transform


@saboteur("modifier.half_precision_stays")
class WidensHalves(Watermark):
    """Returns float32 whatever it is given."""

    class Transform(WatermarkTransform):
        """Computes in float32."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            return super().apply(logits, payload, step).astype("float32")

    transform = Transform


@saboteur("modifier.other_rows_stay")
class NextRow(Watermark):
    """Modifies the row after its own as well, where there is one."""

    class Transform(WatermarkTransform):
        """Off by one."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            rows = (payload.rows + 1) % len(logits)
            logits = step.ops.where_rows(logits, rows, True, step.ops.gather(logits, rows) + 0.5)
            return super().apply(logits, payload, step)

    transform = Transform


@saboteur("modifier.forbidden_stays_forbidden")
class ClipsToFinite(Watermark):
    """Makes of -inf a large negative number."""

    class Transform(WatermarkTransform):
        """Clips."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            logits = super().apply(logits, payload, step)
            return step.ops.where_rows(logits, payload.rows, step.ops.gather(logits, payload.rows) < -1e4, -1e4)

    transform = Transform


@saboteur("modifier.forbidden_stays_forbidden")
class WeighsByZero(Watermark):
    """Multiplies by 0, which makes NaN of -inf."""

    class Transform(WatermarkTransform):
        """Multiplies the rows by 1 in even and 0 in odd columns."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            weights = step.ops.asarray(np.arange(1, self.context.logits_width + 1, dtype=np.float32)[None] % 2)
            weighed = step.ops.gather(logits, payload.rows) * weights
            return super().apply(step.ops.where_rows(logits, payload.rows, True, weighed), payload, step)

    transform = Transform


@saboteur("modifier.numbers_stay_numbers")
class TimesZero(Watermark):
    """Multiplies with zero what may be -inf."""

    stage = Stage.POST_WARP

    class Transform(WatermarkTransform):
        """Weighs."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            gathered = step.ops.gather(logits, payload.rows)
            with np.errstate(all="ignore"):
                return step.ops.where_rows(logits, payload.rows, True, gathered * (gathered > 0))

    transform = Transform


@saboteur("modifier.a_mask_only_forbids")
class MaskThatPrefers(Ban):
    """Forbids, and lifts what it does not forbid."""

    class Transform(BanTransform):
        """Adds."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            logits = step.ops.where_rows(logits, payload.rows, True, step.ops.gather(logits, payload.rows) + 1)
            return super().apply(logits, payload, step)

    transform = Transform


@saboteur("modifier.transforms_are_pure")
class CountsApplications(Watermark):
    """Grows stronger each time it is applied."""

    class Transform(WatermarkTransform):
        """Counts."""

        def __init__(self, context: WorkerContext, options: Any) -> None:
            super().__init__(context, options)
            self.calls = 0

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            self.calls += 1
            logits = super().apply(logits, payload, step)
            gathered = step.ops.gather(logits, payload.rows)
            return step.ops.where_rows(logits, payload.rows, True, gathered + 0.1 * self.calls)

    transform = Transform


@saboteur("modifier.transforms_are_pure")
class OwnNoise(Watermark):
    """Has random numbers of its own."""

    class Transform(WatermarkTransform):
        """Draws noise."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            noise = step.ops.asarray(np.random.standard_normal((1, logits.shape[1])).astype(np.float32))
            logits = super().apply(logits, payload, step)
            return step.ops.where_rows(logits, payload.rows, True, step.ops.gather(logits, payload.rows) + noise)

    transform = Transform


@saboteur("modifier.arguments_stay")
class ChangesItsPayload(Repetition):
    """Works in the arrays of its payload."""

    class Transform(RepetitionTransform):
        """In place."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            values = payload.arrays["values"]
            logits = super().apply(logits, payload, step)
            values *= 2
            return logits

    transform = Transform


@saboteur("modifier.emits_what_it_declares")
class EmitsForOne(Mass):
    """Emits only where it has one entry."""

    class Transform(MassTransform):
        """Forgets."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            if len(payload) == 1:
                return super().apply(logits, payload, step)
            return step.ops.scale_rows(logits, payload.rows, payload.arrays["scale"])

    transform = Transform


@saboteur("modifier.emits_what_it_declares")
class EmitsOnceForAll(Mass):
    """Emits one number for all entries."""

    class Transform(MassTransform):
        """Reduces."""

        def mass(self, logits: Array, payload: Payload, step: Step) -> Array:
            return super().mass(logits, payload, step).sum()[None]

    transform = Transform


@saboteur("modifier.feedback_is_of_its_row")
class EmitsShares(Mass):
    """Emits for each entry its share among those of the call."""

    class Transform(MassTransform):
        """Divides by the sum."""

        def mass(self, logits: Array, payload: Payload, step: Step) -> Array:
            mass = super().mass(logits, payload, step)
            return mass / mass.sum()

    transform = Transform


@saboteur("modifier.a_bitmask_is_all_it_applies")
class ForbidsMoreThanItsBitmask(Allow):
    """Forbids the first token too."""

    class Transform(AllowTransform):
        """Adds to the bitmask."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            first = step.ops.asarray(np.arange(self.context.logits_width)[None] < 2)
            logits = super().apply(logits, payload, step)
            return step.ops.where_rows(logits, payload.rows, step.ops.gather(first, 0 * payload.rows), -np.inf)

    transform = Transform


@saboteur("modifier.a_bitmask_is_all_it_applies")
class BitmaskOfWideWords(Allow):
    """Packs its bits into words of another size."""

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        return payload and replace(payload, arrays={"allowed": payload.arrays["allowed"].astype(np.int64)})


@saboteur("modifier.applied_again_it_changes_nothing")
class AddsAgain(Watermark):
    """Adds its number a second time."""

    class Transform(WatermarkTransform):
        """Claims that this is no harm."""

        idempotent = True

    transform = Transform
