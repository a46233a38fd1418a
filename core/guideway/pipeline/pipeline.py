"""Apply the stages to logits in a fixed order, and draw tokens.

::

    raw logits -> pre_warp -> mask -> repetition penalties -> bias, other penalties, bans -> temperature
    -> log-softmax -> top-k -> top-p -> min-p -> typical-p -> log-softmax -> post_warp -> sample

If modifiers forbid all tokens of a row that the grammar allows, the row continues without them; the same holds for
bans of tokens. `StepOutput.overruled` names both: bans as `BANS`, because a worker does not know which of these
parameters a ban came from; the runtime keeps those that banned something.

Columns past the vocabulary are forbidden with the mask, after `pre_warp`, so that `pre_warp` gets only finite logits.

Nothing waits for the device before the single download at the end, and a failing transform fails only the sequences at
which it failed. Operations that a device declares as fused replace several stages: a draw with only mask and
temperatures (`guideway.pipeline.fused`), mask, bias and temperature together, masks as short lists of tokens. For a
device that compiles for each shape, every list of rows is padded (`guideway.pipeline.padding`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.device import DeviceBackend, padded_size
from guideway.api.modifier import LogitModifier, LogitTransform, Sampler, WorkerContext
from guideway.api.steps import MAX_FEEDBACK_BYTES_PER_ROW, Array, Logprobs, Need, Stage, StepInput, StepOutput
from guideway.errors import GuidewayError, InvalidConfiguration, PluginLoadError, blame, close_each
from guideway.pipeline.context import Entry, PipelineContext, failed_output
from guideway.pipeline.fused import FusedStep
from guideway.pipeline.padding import Padding, dummy_steps
from guideway.pipeline.staged import StagedStep, StepFailed

__all__ = ["Pipeline"]


class Pipeline:
    """A worker's stages, created from the modifier classes and options of the configuration.

    Raises `InvalidConfiguration` for a transform that cannot run on this device.
    """

    def __init__(
        self, modifiers: Sequence[tuple[type[LogitModifier[Any]], Mapping[str, Any]]], context: WorkerContext
    ) -> None:
        self._entries: list[Entry] = []
        try:
            for cls, options in modifiers:
                self._entries.append(Entry(cls, _build(cls, options, context)))
            self._context = PipelineContext(context, self._entries)
        except BaseException:
            self.close()
            raise
        self._device, self._ops = context.device, context.device.ops

    def close(self) -> None:
        """Close the transforms, the last one first. May be called twice."""
        entries, self._entries = self._entries, []
        close_each((f"modifier.{entry.name}", entry.transform.close) for entry in reversed(entries))

    def run(
        self, logits: Array, step: StepInput, hidden_states: Array | None = None, *, num_rows: int | None = None
    ) -> StepOutput:
        """Run one step from raw logits to drawn tokens. The first `num_rows` logits (default: all) are the rows of the
        step, then its companions' rows; for a device with `static_shapes`, padding rows may follow. The logits are dead
        afterwards."""
        with self._device.scope():
            logits = self._trim(self._device.from_logits(logits), num_rows)
            if hidden_states is not None:
                hidden_states = self._trim(self._device.from_logits(hidden_states), num_rows)
            if self._device.fused and (fused := FusedStep(self._context, step)).suits:
                return fused.run(logits)
            try:
                return StagedStep(self._context, step, len(logits), hidden_states).run(logits)
            except StepFailed as failed:
                return failed_output(step, failed.fault)

    def mask(self, logits: Array, step: StepInput, hidden_states: Array | None = None) -> tuple[Array, StepOutput]:
        """Run the stages up to the mask, for a host that warps and draws itself. Return the logits to use, and the
        output without tokens. `logits` has the step's rows, then its companions' rows, and is dead afterwards. Raises
        ValueError if a modifier of the step acts at a later stage."""
        with self._device.scope():
            logits = self._device.from_logits(logits)
            if hidden_states is not None:
                hidden_states = self._device.from_logits(hidden_states)
            staged = StagedStep(self._context, step, len(logits), hidden_states)
            if staged.post_warp or staged.samplers:
                late = (*staged.post_warp, *staged.samplers)
                raise ValueError(f"{', '.join(entry.name for entry, _ in late)} would act after the mask")
            try:
                return staged.mask_only(logits)
            except StepFailed as failed:
                return logits, failed_output(step, failed.fault)

    def _trim(self, x: Array, num_rows: int | None) -> Array:
        """Return the first `num_rows` rows of `x`; with static shapes perhaps more."""
        if num_rows is None or num_rows == len(x):
            return x
        if not self._device.static_shapes:
            return x[:num_rows]
        size = padded_size(num_rows)
        return x if len(x) <= size else self._ops.gather(x, self._ops.asarray(np.arange(size, dtype=np.int32)))

    def score(self, logits: Array, rows: NDArray[np.int32], token_ids: NDArray[np.int32], k: int) -> Logprobs:
        """Return the raw log-probabilities at `rows` of the given tokens, ``int32[m]``, and of the `k` most likely
        ones. The logits are not changed."""
        with self._device.scope():
            logits = self._device.from_logits(logits)
            padding = Padding(len(logits), logits.shape[1]) if self._device.static_shapes else None
            scored = self._context.logprobs_of(logits, rows, k, padding)
            scored.choose(rows, self._ops.asarray(token_ids if padding is None else padding.aligned(token_ids)))
            return scored.result(self._device.download(scored.downloads).result())

    def warm_up(self, logits: Callable[[], Array], num_rows: int) -> None:
        """Run steps of `num_rows` rows with fresh `logits`, so that everything is compiled before the first request:
        mask, temperatures, penalties, filters and log-probabilities. Does not cover modifiers other than bitmasks, and
        log-probabilities of prompts, whose length is unknown."""
        with self._device.scope():
            rows = self._device.from_logits(logits())
            size = padded_size(1)
            while size < len(rows):
                self._trim(rows, size)
                size *= 2
        for step in dummy_steps(num_rows, self._context.width, self._context.hard_bitmasks):
            self.run(logits(), step, num_rows=num_rows)


def _build(cls: type[LogitModifier[Any]], options: Mapping[str, Any], context: WorkerContext) -> LogitTransform:
    if (problem := _problem(cls, context.device)) is not None:
        raise InvalidConfiguration(f"modifier {cls.name!r} {problem}", field=f"modifiers.{cls.name}")
    plugin = f"modifier.{cls.name}"
    with blame(plugin, "while its transform was built", error=PluginLoadError, passing=(GuidewayError,)):
        return cls.transform(context, options)


def _problem(cls: type[LogitModifier[Any]], device: DeviceBackend) -> str | None:
    """Return why the transform of `cls` cannot run on `device`, or None."""
    transform = cls.transform
    if transform.arrays and device.arrays not in transform.arrays:
        return (
            f"works on arrays of {', '.join(sorted(transform.arrays))} only, but device {device.name!r} holds logits "
            f"as {device.arrays} arrays"
        )
    if issubclass(transform, Sampler) != (cls.stage is Stage.SAMPLE):
        return (
            f"acts at stage {cls.stage.value!r}, but its transform {transform.__name__} is "
            f"{'a' if issubclass(transform, Sampler) else 'not a'} Sampler"
        )
    if transform.bitmask is not None and cls.stage is not Stage.MASK:
        return f"acts at stage {cls.stage.value!r}, but its transform declares a bitmask, which is for stage 'mask'"
    if transform.emits and (transform.hard or transform.bitmask is not None):
        return f"emits feedback, but its transform declares {'a bitmask' if transform.bitmask else 'hard = True'}"
    objects = [name for name, (_, dtype) in transform.emits.items() if np.dtype(dtype).hasobject]
    if objects:
        return f"emits {objects[0]!r} as Python objects, which may not pickle; emit numbers"
    size = sum(np.dtype(dtype).itemsize * math.prod(shape) for shape, dtype in transform.emits.values())
    if size > MAX_FEEDBACK_BYTES_PER_ROW:
        return f"emits {size} bytes a row; the limit is {MAX_FEEDBACK_BYTES_PER_ROW}"
    if Need.HISTORY in cls.needs and transform.history_length < 1:
        return "declares Need.HISTORY, but its transform does not set history_length"
    return None
