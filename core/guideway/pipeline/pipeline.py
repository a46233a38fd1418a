"""Stages applied to logits in the one order that holds everywhere, and the draw.

::

    raw logits -> pre_warp -> mask -> repetition penalties -> bias, other penalties, bans -> temperature
    -> log-softmax -> top-k -> top-p -> min-p -> typical-p -> log-softmax -> post_warp -> sample

Where modifiers leave a row without a token the grammar allows, the row goes on without them; where bans of tokens do,
it goes on without the bans. Either is said in `StepOutput.overruled`: bans as `BANS`, because a worker cannot tell
which of these parameters a ban came from; the runtime keeps those that banned something.

Columns past the vocabulary are forbidden with the mask, after `pre_warp`, which sees finite logits only.

Nothing here waits for the device before the one download at the end, and a transform that fails costs the sequences
it failed for and no others. Where a device declares an operation that does several of these things in one pass, that
is used instead of the sequence: a draw under mask and temperatures alone (`guideway.pipeline.fused`), mask, bias and
temperature together, short lists of tokens for a mask. For a device that compiles for each shape every list of rows is
padded (`guideway.pipeline.padding`).
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
    """Built once per worker from the modifier classes and options of the configuration.

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
        """Close the transforms, the last one first; the pipeline is not used later. Closing twice is fine."""
        entries, self._entries = self._entries, []
        close_each((f"modifier.{entry.name}", entry.transform.close) for entry in reversed(entries))

    def run(
        self, logits: Array, step: StepInput, hidden_states: Array | None = None, *, num_rows: int | None = None
    ) -> StepOutput:
        """One step from raw logits to drawn tokens. Of the logits, which are dead afterwards, the first `num_rows`
        (default: all) mean something: those of the step, then those of its companions. For a device with
        `static_shapes` there may be more, so that their number is one of few."""
        with self._device.scope():
            logits = self._trimmed(self._device.from_logits(logits), num_rows)
            if hidden_states is not None:
                hidden_states = self._trimmed(self._device.from_logits(hidden_states), num_rows)
            if self._device.fused and (fused := FusedStep(self._context, step)).suits:
                return fused.run(logits)
            try:
                return StagedStep(self._context, step, len(logits), hidden_states).run(logits)
            except StepFailed as failed:
                return failed_output(step, failed.fault)

    def mask(self, logits: Array, step: StepInput, hidden_states: Array | None = None) -> tuple[Array, StepOutput]:
        """The stages up to the mask, for a host that warps and draws by itself: the logits as it is to take them, and
        what came of it, without tokens. The logits given are dead afterwards; they have the step's rows, then those
        of its companions. Raises ValueError if a modifier of the step acts later."""
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

    def _trimmed(self, x: Array, num_rows: int | None) -> Array:
        """The first `num_rows` rows of `x`; with static shapes perhaps more."""
        if num_rows is None or num_rows == len(x):
            return x
        if not self._device.static_shapes:
            return x[:num_rows]
        size = padded_size(num_rows)
        return x if len(x) <= size else self._ops.gather(x, self._ops.asarray(np.arange(size, dtype=np.int32)))

    def score(self, logits: Array, rows: NDArray[np.int32], token_ids: NDArray[np.int32], k: int) -> Logprobs:
        """Raw log-probabilities of given tokens, ``int32[m]``, each at its own of `rows`, and of the `k` most likely
        ones. The logits stay as they are."""
        with self._device.scope():
            logits = self._device.from_logits(logits)
            padding = Padding(len(logits), logits.shape[1]) if self._device.static_shapes else None
            scored = self._context.logprobs_of(logits, rows, k, padding)
            scored.choose(rows, self._ops.asarray(token_ids if padding is None else padding.aligned(token_ids)))
            return scored.result(self._device.download(scored.downloads).result())

    def warm_up(self, logits: Callable[[], Array], num_rows: int) -> None:
        """Run steps of `num_rows` rows over fresh `logits`, so that requests find everything compiled: mask,
        temperatures, penalties, filters and log-probabilities. What a modifier does is not known here, nor how long the
        prompts will be whose log-probabilities are asked for."""
        with self._device.scope():
            rows = self._device.from_logits(logits())
            size = padded_size(1)
            while size < len(rows):
                self._trimmed(rows, size)
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
    """Why the transform of `cls` cannot run on `device`."""
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
