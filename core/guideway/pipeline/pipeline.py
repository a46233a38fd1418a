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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.device import padded_size
from guideway.api.errors import GuidewayError, InvalidConfiguration, PluginLoadError, contain, text_of
from guideway.api.modifier import LogitModifier, LogitTransform, Sampler, WorkerContext
from guideway.api.steps import (
    MAX_FEEDBACK_BYTES_PER_ROW,
    Array,
    Logprobs,
    Need,
    Payload,
    Stage,
    StepInput,
    StepOutput,
)
from guideway.pipeline.fused import FusedStep, all_failed
from guideway.pipeline.logprobs import RawLogprobs
from guideway.pipeline.padding import Padding, dummy_steps
from guideway.pipeline.staged import Entry, Lost, StagedStep

__all__ = ["Pipeline"]

STAGES = tuple(Stage)
MOST_SIZES = 256
"""Lists of all rows are kept on the device for so many numbers of rows."""


class Pipeline:
    """Built once per worker from the modifier classes and options of the configuration.

    Raises `InvalidConfiguration` for a transform that cannot run on this device.
    """

    def __init__(
        self, modifiers: Sequence[tuple[type[LogitModifier[Any]], Mapping[str, Any]]], context: WorkerContext
    ) -> None:
        self.context = context
        self.device = context.device
        self.ops = context.device.ops
        entries = [Entry(cls, self._build(cls, options)) for cls, options in modifiers]
        entries.sort(key=lambda entry: (STAGES.index(entry.modifier.stage), entry.modifier.order, entry.name))
        self.emits = {entry.name: entry.transform.emits for entry in entries}
        self._by_stage = {stage: [e for e in entries if e.modifier.stage is stage] for stage in STAGES}
        self._all_rows: dict[int, Array] = {}

    def _build(self, cls: type[LogitModifier[Any]], options: Mapping[str, Any]) -> LogitTransform:
        transform = cls.transform
        if transform.arrays and self.device.arrays not in transform.arrays:
            raise InvalidConfiguration(
                f"modifier {cls.name!r} works on arrays of {', '.join(sorted(transform.arrays))} only, but device "
                f"{self.device.name!r} holds logits as {self.device.arrays} arrays",
                field=f"modifiers.{cls.name}",
            )
        if issubclass(transform, Sampler) != (cls.stage is Stage.SAMPLE):
            raise InvalidConfiguration(
                f"modifier {cls.name!r} acts at stage {cls.stage.value!r}, but its transform {transform.__name__} is "
                f"{'a' if issubclass(transform, Sampler) else 'no'} Sampler",
                field=f"modifiers.{cls.name}",
            )
        objects = [name for name, (_, dtype) in transform.emits.items() if np.dtype(dtype).hasobject]
        if objects:
            raise InvalidConfiguration(
                f"modifier {cls.name!r} emits {objects[0]!r} as Python objects, which need not pickle",
                field=f"modifiers.{cls.name}",
            )
        size = sum(
            np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)) for shape, dtype in transform.emits.values()
        )
        if size > MAX_FEEDBACK_BYTES_PER_ROW:
            raise InvalidConfiguration(
                f"modifier {cls.name!r} emits {size} bytes a row; the limit is {MAX_FEEDBACK_BYTES_PER_ROW}",
                field=f"modifiers.{cls.name}",
            )
        if Need.HISTORY in cls.needs and transform.history_length < 1:
            raise InvalidConfiguration(
                f"modifier {cls.name!r} declares Need.HISTORY, but its transform no history_length",
                field=f"modifiers.{cls.name}",
            )
        try:
            return transform(self.context, options)
        except GuidewayError:
            raise
        except BaseException as error:
            contain(error)
            plugin = f"modifier.{cls.name}"
            message = f"{plugin} failed while its transform was built: {text_of(error)}"
            raise PluginLoadError(message, plugin=plugin) from error

    def run(
        self, logits: Array, step: StepInput, hidden_states: Array | None = None, *, num_rows: int | None = None
    ) -> StepOutput:
        """One step from raw logits to drawn tokens. Of the logits, which are dead afterwards, the first `num_rows`
        (default: all) mean something: those of the step, then those of its companions. For a device with
        `static_shapes` there may be more, so that their number is one of few."""
        with self.device.scope():
            logits = self._meant(self.device.from_logits(logits), num_rows)
            if hidden_states is not None:
                hidden_states = self._meant(self.device.from_logits(hidden_states), num_rows)
            if self.device.fused and (fused := FusedStep(self, step)).suits:
                return fused.run(logits)
            try:
                return StagedStep(self, step, len(logits), hidden_states).run(logits)
            except Lost as lost:
                return all_failed(step, lost.fault)

    def mask(self, logits: Array, step: StepInput, hidden_states: Array | None = None) -> tuple[Array, StepOutput]:
        """The stages up to the mask, for a host that warps and draws by itself: the logits as it is to take them, and
        what came of it, without tokens. The logits given are dead afterwards; they have the step's rows, then those
        of its companions. Raises ValueError if a modifier of the step acts later."""
        with self.device.scope():
            logits = self.device.from_logits(logits)
            if hidden_states is not None:
                hidden_states = self.device.from_logits(hidden_states)
            staged = StagedStep(self, step, len(logits), hidden_states)
            if staged.post_warp or staged.owners:
                late = (*staged.post_warp, *staged.owners)
                raise ValueError(f"{', '.join(entry.name for entry, _ in late)} would act after the mask")
            try:
                return staged.mask_only(logits)
            except Lost as lost:
                return logits, all_failed(step, lost.fault)

    def _meant(self, x: Array, num_rows: int | None) -> Array:
        """The first `num_rows` rows of `x`; with static shapes perhaps more."""
        if num_rows is None or num_rows == len(x):
            return x
        if not self.device.static_shapes:
            return x[:num_rows]
        size = padded_size(num_rows)
        return x if len(x) <= size else self.ops.gather(x, self.ops.asarray(np.arange(size, dtype=np.int32)))

    def score(self, logits: Array, rows: NDArray[np.int32], token_ids: NDArray[np.int32], k: int) -> Logprobs:
        """Raw log-probabilities of given tokens, ``int32[m]``, each at its own of `rows`, and of the `k` most likely
        ones. The logits stay as they are."""
        with self.device.scope():
            logits = self.device.from_logits(logits)
            padding = Padding(len(logits), logits.shape[1]) if self.device.static_shapes else None
            taken, given = (a if padding is None else padding.aligned(a) for a in (rows, token_ids))
            values = self.forbid_padding(self.ops.gather(logits, self.ops.asarray(taken)))
            scored = RawLogprobs(self.ops, values, rows, k, padding)
            scored.choose(rows, self.ops.asarray(given))
            return scored.result(self.device.download(scored.downloads).result())

    def raw_logprobs(
        self, logits: Array, wanted: NDArray[np.int32] | None, padding: Padding | None
    ) -> RawLogprobs | None:
        """Those of the rows for which `wanted`, `StepInput.num_logprobs`, is not -1; None if there are none."""
        if wanted is None or wanted.max() < 0:
            return None
        rows = np.flatnonzero(wanted >= 0).astype(np.int32)
        taken = rows if padding is None else padding.aligned(rows)
        raw = self.forbid_padding(self.ops.gather(logits, self.ops.asarray(taken)))
        return RawLogprobs(self.ops, raw, rows, int(wanted.max()), padding)

    def warm_up(self, logits: Callable[[], Array], num_rows: int) -> None:
        """Run steps of `num_rows` rows over fresh `logits`, so that requests find everything compiled: mask,
        temperatures, penalties, filters and log-probabilities. What a modifier does is not known here, nor how long the
        prompts will be whose log-probabilities are asked for."""
        with self.device.scope():
            rows = self.device.from_logits(logits())
            size = padded_size(1)
            while size < len(rows):
                self._meant(rows, size)
                size *= 2
        for step in dummy_steps(num_rows, self.context.logits_width):
            self.run(logits(), step, num_rows=num_rows)

    def forbid_padding(self, logits: Array) -> Array:
        """`logits` with the columns past the vocabulary at -inf."""
        if self.context.logits_width == self.context.vocabulary_size:
            return logits
        return self.ops.forbid_from(logits, self.context.vocabulary_size)

    def entries(self, stage: Stage, step: StepInput) -> list[tuple[Entry, Payload]]:
        """The modifiers of `stage` that have something to do in this step, in order."""
        payloads = step.payloads
        if not payloads:
            return []
        return [(entry, payloads[entry.name]) for entry in self._by_stage[stage] if entry.name in payloads]

    def all_rows(self, num_rows: int) -> Array:
        """``int32[num_rows]`` on the device: 0, 1, 2, ..."""
        if num_rows not in self._all_rows:
            if len(self._all_rows) == MOST_SIZES:
                self._all_rows.clear()
            self._all_rows[num_rows] = self.ops.asarray(np.arange(num_rows, dtype=np.int32))
        return self._all_rows[num_rows]
