"""The parts that all steps of a pipeline share: the device, and the transforms and bitmasks by stage."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import FULL
from guideway.api.modifier import LogitModifier, LogitTransform, WorkerContext
from guideway.api.steps import Array, Fault, Payload, Stage, StepBatch, StepInput, StepOutput
from guideway.pipeline.logprobs import RowLogprobs
from guideway.pipeline.padding import Padding

__all__ = ["Entry", "PipelineContext", "by_slot", "combined_bitmask", "failed_output"]

STAGES = tuple(Stage)
MAX_CACHED_SIZES = 256
"""Maximum number of cached device arrays of all rows, one per number of rows."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A modifier's class, and its transform in this worker."""

    modifier: type[LogitModifier[Any]]
    transform: LogitTransform

    @property
    def name(self) -> str:
        return self.modifier.name


class PipelineContext:
    """The shared parts of one worker's steps. `entries` of one stage act in their order."""

    def __init__(self, worker: WorkerContext, entries: Sequence[Entry]) -> None:
        self.device = worker.device
        self.ops = worker.device.ops
        self.num_tokens = worker.vocabulary_size
        self.width = worker.logits_width
        ordered = sorted(entries, key=lambda e: STAGES.index(e.modifier.stage))  # stable: as given within a stage
        self._by_stage = [[e for e in ordered if e.modifier.stage is stage] for stage in Stage]
        self.emits = {e.name: e.transform.emits for e in ordered}
        self._bitmasks = {e.name: e.transform.bitmask for e in ordered if e.transform.bitmask is not None}
        self.hard_bitmasks = {
            e.name: e.transform.bitmask for e in ordered if e.transform.hard and e.transform.bitmask is not None
        }
        """The payload array of each hard constraint that is a bitmask, by modifier name. If nothing else acts, a
        device may do the whole step in one operation."""
        self._all_rows: dict[int, Array] = {}

    def acting(self, step: StepInput) -> list[list[tuple[Entry, Payload]]]:
        """Return the modifiers with a payload in this step by stage, in order."""
        payloads = step.payloads
        return [[(e, payloads[e.name]) for e in entries if e.name in payloads] for entries in self._by_stage]

    def bitmask(self, step: StepInput) -> Payload | None:
        """Return the combined bitmask of a step (`combined_bitmask`)."""
        return combined_bitmask(step.payloads, self._bitmasks)

    def check_drawable(self, step: StepInput, largest: NDArray[Any], faults: dict[int, Fault]) -> None:
        """Add faults for the rows that cannot be drawn because `largest`, their largest logit, is NaN or -inf."""
        for row in np.flatnonzero(~(largest > -np.inf)).tolist():  # true for NaN
            if np.isnan(largest[row]):
                fault = self.blame_for(step, row, "the logits are not numbers (NaN)")
            else:
                mask = self.bitmask(step)
                emptied = mask is not None and row in mask.rows and not mask.arrays["bitmask"][mask.rows == row].any()
                fault = self.blame_for(step, row, "every token has probability 0", bitmasks=emptied)
            faults.setdefault(row, fault)

    def checked(
        self,
        step: StepInput,
        token_ids: NDArray[np.int64],
        largest: NDArray[Any],
        faults: dict[int, Fault],
        blamed: Callable[[int, str], Fault],
    ) -> NDArray[np.int32]:
        """Return `token_ids`, with 0 for rows with a fault. Adds faults for rows that cannot be drawn, and for rows
        with an invalid token id, for which ``blamed(row, message)`` returns the fault."""
        self.check_drawable(step, largest, faults)
        for row in np.flatnonzero((token_ids < 0) | (token_ids >= self.num_tokens)).tolist():
            faults.setdefault(row, blamed(row, f"it drew a token id outside 0..{self.num_tokens - 1}"))
        if faults:
            token_ids[list(faults)] = 0
        return token_ids.astype(np.int32)

    def blame_for(self, step: StepInput, row: int, message: str, *, bitmasks: bool = False) -> Fault:
        """Return a fault that blames the last modifier that acted on `row`, or else the model. Modifiers with a
        bitmask are considered only with `bitmasks`, since a bitmask can only forbid tokens."""
        *stages, _ = self.acting(step)  # a sampler does not change the logits
        names = [e.name for acting in stages for e, payload in acting if row in payload.rows]
        names = [name for name in names if bitmasks or name not in self._bitmasks]
        return Fault(f"modifier.{names[-1]}", "apply", message) if names else Fault("model", "forward", message)

    def logprobs(
        self,
        logits: Array,
        step: StepInput,
        padding: Padding | None,
        *,
        processed: bool,
        normalized: bool = False,
    ) -> RowLogprobs | None:
        """Return the log-probabilities of the rows that request them of `logits`, which are `processed` or raw; None if
        there are none. `normalized`: the logits are log-probabilities."""
        wanted = step.num_logprobs
        if wanted is None:
            return None
        is_processed = np.zeros(len(wanted), dtype=np.bool_) if step.processed is None else step.processed
        rows = np.flatnonzero((wanted >= 0) & (is_processed == processed)).astype(np.int32)
        if not len(rows):
            return None
        name = "processed" if processed else "logprobs"
        return self.logprobs_of(logits, rows, int(wanted.max()), padding, name, normalized=normalized)

    def logprobs_of(
        self,
        logits: Array,
        rows: NDArray[np.int32],
        k: int,
        padding: Padding | None,
        name: str = "logprobs",
        *,
        normalized: bool = False,
    ) -> RowLogprobs:
        """Return the log-probabilities of `rows` of `logits`, with the `k` most likely tokens of each. `normalized`:
        the logits are log-probabilities already."""
        if len(rows) == len(logits) and self.width == self.num_tokens and not normalized:
            values = logits  # all rows, of which the next line makes a copy
        else:
            taken = rows if padding is None else padding.aligned(rows)
            values = self.forbid_padding(self.ops.gather(logits, self.ops.asarray(taken)))
        if not normalized:
            values = self.ops.log_softmax(values)
        return RowLogprobs(self.ops, values, rows, k, padding, name)

    def forbid_padding(self, logits: Array) -> Array:
        """Set the columns of `logits` past the vocabulary to -inf."""
        return logits if self.width == self.num_tokens else self.ops.forbid_from(logits, self.num_tokens)

    def all_rows(self, num_rows: int) -> Array:
        """Return ``int32[num_rows]`` on the device: 0, 1, 2, ..."""
        if num_rows not in self._all_rows:
            if len(self._all_rows) == MAX_CACHED_SIZES:
                self._all_rows.clear()
            self._all_rows[num_rows] = self.ops.asarray(np.arange(num_rows, dtype=np.int32))
        return self._all_rows[num_rows]


def combined_bitmask(payloads: Mapping[str, Payload], arrays: Mapping[str, str]) -> Payload | None:
    """Combine all bitmasks among the `payloads` of a step, on the host, into the array ``bitmask`` of one payload;
    None if there are none. `arrays` are the names of the payload arrays that are bitmasks (`LogitTransform.bitmask`),
    by modifier name."""
    masks = [(payloads[name].rows, payloads[name].arrays[key]) for name, key in arrays.items() if name in payloads]
    if len(masks) < 2:
        return Payload(masks[0][0], {"bitmask": masks[0][1]}) if masks else None
    rows = np.unique(np.concatenate([rows for rows, _ in masks]))
    bitmask = np.full((len(rows), masks[0][1].shape[1]), FULL, dtype=np.int32)
    for some, allowed in masks:
        bitmask[np.searchsorted(rows, some)] &= allowed
    return Payload(rows, {"bitmask": bitmask})


def by_slot(batch: StepBatch, faults: Mapping[int, Fault]) -> dict[int, Fault]:
    """Return `StepOutput.faults` for faults by row."""
    found: dict[int, Fault] = {}
    for row in sorted(faults):
        i = bisect_right(batch.row_start, row) - 1
        found.setdefault(int(batch.slots[i]), replace(faults[row], row=row - int(batch.row_start[i])))
    return found


def failed_output(step: StepInput, fault: Fault) -> StepOutput:
    """Return the output of a `step` in which every sequence has the same `fault`."""
    faults = dict.fromkeys(step.batch.slots.tolist(), replace(fault, row=0))
    return StepOutput(np.zeros(step.batch.num_rows, dtype=np.int32), faults=faults)
