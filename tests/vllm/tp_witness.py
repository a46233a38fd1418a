"""A modifier that records every worker process that its payload reaches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import (
    Array,
    LogitModifier,
    LogitTransform,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    WorkerContext,
    hookimpl,
)


class WitnessTransform(LogitTransform):
    """Writes its payloads to a file named after its process."""

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        self.folder = Path(options["folder"])

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        with (self.folder / f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{np.asarray(payload.arrays['position']).tolist()}\n")
        return logits


class Witness(LogitModifier[int]):
    contract = "1.0"
    name, stage, transform, derived = "witness", Stage.PRE_WARP, WitnessTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> int | None:
        return 1 if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[int | None]) -> Payload | None:
        rows, _ = batch.select(states)
        return Payload(rows, arrays={"position": batch.positions[rows]}) if len(rows) else None


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[int]]:
    return Witness
