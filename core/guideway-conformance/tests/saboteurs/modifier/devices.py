"""Transforms that run on some devices only, or keep them waiting."""

from __future__ import annotations

import numpy as np
from guideway.api import Array, Payload, Step

from saboteurs import saboteur
from saboteurs.modifier.references import Watermark, WatermarkTransform


@saboteur("modifier.runs_on_every_device")
class CallsNumpy(Watermark):
    """Calls NumPy and does not say so."""

    class Transform(WatermarkTransform):
        """On NumPy only."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            tamed = np.tanh(step.ops.gather(logits, payload.rows))
            return step.ops.where_rows(logits, payload.rows, True, tamed)

    transform = Transform


@saboteur("modifier.runs_on_every_device")
class WritesInPlace(Watermark):
    """Assigns to rows, which arrays of some libraries refuse."""

    class Transform(WatermarkTransform):
        """The transform where arrays can be changed."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            logits[payload.rows] = step.ops.gather(logits, payload.rows) + 1
            return logits

    transform = Transform


@saboteur("modifier.runs_on_every_device")
class IgnoresWhatIsReturned(Watermark):
    """Takes it that operations change their argument, and goes on with that."""

    class Transform(WatermarkTransform):
        """The transform where they can."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            super().apply(logits, payload, step)
            return logits

    transform = Transform


@saboteur("modifier.waits_for_no_device")
class LooksAtValues(Watermark):
    """Looks whether there is anything to do, and waits for the device to tell."""

    class Transform(WatermarkTransform):
        """Asks first."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            if float(payload.arrays["delta"].sum()) == 0:
                return logits
            return super().apply(logits, payload, step)

    transform = Transform


@saboteur("modifier.loops_over_no_rows")
class RowByRow(Watermark):
    """Goes through its rows one by one."""

    class Transform(WatermarkTransform):
        """Loops."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            for i in range(len(payload)):
                row = payload.rows[i : i + 1]
                raised = step.ops.gather(logits, row) + payload.arrays["delta"][i]
                logits = step.ops.where_rows(logits, row, True, raised)
            return logits

    transform = Transform
