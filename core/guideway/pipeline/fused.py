"""Draw in one pass, for steps with only hard bitmasks (such as the grammar mask) and temperatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import FULL, num_words
from guideway.api.device import Draw
from guideway.api.steps import Array, Fault, Payload, StepInput, StepOutput
from guideway.errors import contain
from guideway.pipeline.context import PipelineContext, by_slot, failed_output
from guideway.pipeline.logprobs import RowLogprobs
from guideway.pipeline.padding import Padding, padded_step
from guideway.pipeline.view import DRAW

__all__ = ["FusedStep"]


class FusedStep:
    """One step drawn by `masked_sample`, or by `masked_argmax` if all rows are greedy. Neither changes the logits, so
    a failed operation can be retried row by row."""

    def __init__(self, context: PipelineContext, step: StepInput) -> None:
        self.context = context
        self.device = context.device
        self.ops = context.ops
        self.step = step
        self.drawn = bool((step.temperatures > 0).any())
        self.operation = "masked_sample" if self.drawn else "masked_argmax"
        self.faults: dict[int, Fault] = {}
        """Failures by row."""

    @property
    def suits(self) -> bool:
        """True if only hard bitmasks and temperatures apply, and the device declares the operation."""
        step = self.step
        return (
            step.warp is None
            and step.processed is None
            and step.records is None
            and step.payloads.keys() <= self.context.hard_bitmasks.keys()
            and self.operation in self.device.fused
        )

    def run(self, logits: Array) -> StepOutput:
        """Continue `Pipeline.run` from the device's logits."""
        num_rows, size, width = self.step.batch.num_rows, len(logits), logits.shape[1]
        padding = Padding(size, width) if self.device.static_shapes else None
        logprobs = self.context.logprobs(logits, self.step, padding, processed=False)
        mask = self.context.bitmask(self.step)
        if mask is None:
            mask = Payload(np.empty(0, dtype=np.int32), {"bitmask": np.empty((0, num_words(width)), dtype=np.int32)})
        mask = _pad(mask, 1 if padding is None else size)
        step = padded_step(self.step, size)
        draw: dict[str, NDArray[Any]] = {
            "temperatures": step.temperatures,
            "seeds": step.seeds,
            "sequences": step.sequence_indices,
            "positions": step.batch.positions,
        }
        try:
            ids, largest = self._draw(logits, mask, draw)
        except BaseException as error:
            contain(error)
            return self._row_by_row(logits, mask, draw, logprobs)
        downloads = {"ids": ids, "largest": largest}
        if logprobs is not None:
            logprobs.choose(np.arange(num_rows, dtype=np.int32), ids)
            downloads |= logprobs.downloads
        try:
            host = self.device.download(downloads).result()
        except BaseException as error:  # an asynchronous failure on the device
            contain(error)
            return failed_output(self.step, Fault.of(f"device.{self.device.name}", self.operation, error))
        token_ids = self._check_tokens(np.array(host["ids"][:num_rows], dtype=np.int64), host["largest"][:num_rows])
        return self._output(token_ids, logprobs, host)

    def _draw(self, logits: Array, mask: Payload, draw: Mapping[str, NDArray[Any]]) -> tuple[Array, Array]:
        uploaded = self.device.upload(mask)
        bitmask, rows = uploaded.arrays["bitmask"], uploaded.rows
        num_tokens = self.context.num_tokens
        if not self.drawn:
            return self.device.masked_argmax(logits, bitmask, rows, num_tokens)
        drawing = Draw(**{name: self.ops.asarray(array) for name, array in draw.items()}, purpose=DRAW)
        return self.device.masked_sample(logits, bitmask, rows, num_tokens, drawing)

    def _row_by_row(
        self, logits: Array, mask: Payload, draw: Mapping[str, NDArray[Any]], logprobs: RowLogprobs | None
    ) -> StepOutput:
        """Draw each row separately, so that only failing rows get a fault."""
        num_rows = self.step.batch.num_rows
        token_ids, largest = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.float32)
        for row in range(num_rows):
            index = np.array([row], dtype=np.int32)
            alone = mask.take(index)
            alone = _pad(Payload(alone.rows - row, alone.arrays), 1)
            only = {name: array[index] for name, array in draw.items()}
            try:
                drawn = self._draw(self.ops.gather(logits, self.ops.asarray(index)), alone, only)
                host = self.device.download(dict(zip(("ids", "largest"), drawn, strict=True))).result()
                token_ids[row], largest[row] = host["ids"][0], host["largest"][0]
            except BaseException as error:
                contain(error)
                self.faults[row] = Fault.of(f"device.{self.device.name}", self.operation, error)
        checked = self._check_tokens(token_ids, largest)
        if logprobs is not None:
            logprobs.choose(np.arange(num_rows, dtype=np.int32), self.ops.asarray(checked))
        return self._output(checked, logprobs, self.device.download(logprobs.downloads if logprobs else {}).result())

    def _output(
        self, token_ids: NDArray[np.int32], logprobs: RowLogprobs | None, host: Mapping[str, NDArray[Any]]
    ) -> StepOutput:
        faults = by_slot(self.step.batch, self.faults)
        return StepOutput(token_ids, faults=faults, logprobs=None if logprobs is None else logprobs.result(host))

    def _check_tokens(self, token_ids: NDArray[np.int64], largest: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return `token_ids`, adding a fault for each row that could not be drawn or was drawn wrongly."""
        plugin = f"device.{self.device.name}"
        return self.context.checked(
            self.step, token_ids, largest, self.faults, lambda _, message: Fault(plugin, self.operation, message)
        )


def _pad(mask: Payload, size: int) -> Payload:
    """Pad `mask` to at least `size` entries; padding entries have row -1."""
    missing = size - len(mask)
    if missing <= 0:
        return mask
    packed = mask.arrays["bitmask"]
    full = np.full((missing, packed.shape[1]), FULL, dtype=np.int32)
    rows = np.concatenate([mask.rows, np.full(missing, -1, dtype=np.int32)])
    return Payload(rows, {"bitmask": np.concatenate([packed, full])})
