"""Stages applied to logits in the one order that holds everywhere, and the draw.

::

    raw logits -> pre_warp -> mask -> temperature -> log-softmax -> post_warp -> sample

Columns past the vocabulary are forbidden with the mask, after `pre_warp`, which sees finite logits only.

Nothing here waits for the device before the one download at the end, and a transform that fails costs the sequences
it failed for and no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from guideway.api.errors import ConformanceError, InvalidConfiguration
from guideway.api.modifier import LogitModifier, LogitTransform, Sampler, WorkerContext
from guideway.api.steps import MAX_FEEDBACK_BYTES_PER_ROW, Array, Fault, Payload, Stage, StepInput, StepOutput
from guideway.pipeline.view import StepData, StepView, purpose_id

__all__ = ["Pipeline"]

STAGES = tuple(Stage)
DRAW = purpose_id("guideway", "draw")
"""Purpose of the random number behind each draw of the default sampler."""


@dataclass(frozen=True, slots=True)
class _Entry:
    modifier: type[LogitModifier[Any]]
    transform: LogitTransform

    @property
    def name(self) -> str:
        return self.modifier.name


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
        entries = [_Entry(cls, self._build(cls, options)) for cls, options in modifiers]
        entries.sort(key=lambda entry: (STAGES.index(entry.modifier.stage), entry.modifier.order, entry.name))
        self.emits = {entry.name: entry.transform.emits for entry in entries}
        self._by_stage = {stage: [e for e in entries if e.modifier.stage is stage] for stage in STAGES}

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
        size = sum(
            np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)) for shape, dtype in transform.emits.values()
        )
        if size > MAX_FEEDBACK_BYTES_PER_ROW:
            raise InvalidConfiguration(
                f"modifier {cls.name!r} emits {size} bytes a row; the limit is {MAX_FEEDBACK_BYTES_PER_ROW}",
                field=f"modifiers.{cls.name}",
            )
        return transform(self.context, options)

    def run(self, logits: Array, step: StepInput, hidden_states: Array | None = None) -> StepOutput:
        """One step from raw logits ``[num_rows + companions, width]`` to drawn tokens. `logits` is dead afterwards."""
        return _Run(self, step, hidden_states).run(self.device.from_logits(logits))

    def entries(self, stage: Stage, step: StepInput) -> list[tuple[_Entry, Payload]]:
        """The modifiers of `stage` that have something to do in this step, in order."""
        payloads = step.payloads
        return [(entry, payloads[entry.name]) for entry in self._by_stage[stage] if entry.name in payloads]


class _Run:
    """One step's passage through the stages."""

    def __init__(self, pipeline: Pipeline, step: StepInput, hidden_states: Array | None) -> None:
        self.pipeline = pipeline
        self.device = pipeline.device
        self.ops = pipeline.ops
        self.step = step
        self.faults: dict[int, Fault] = {}
        self.emitted: dict[str, list[tuple[NDArray[np.int32], dict[str, Array]]]] = {}
        mask = pipeline.entries(Stage.MASK, step)
        self.mask = mask[0] if mask else None
        self.data = StepData(
            step, self.ops, pipeline.context.logits_width, hidden_states, self.mask[1] if self.mask else None
        )

    def run(self, logits: Array) -> StepOutput:
        ops, step = self.ops, self.step
        downloads: dict[str, Array] = {}
        early = self.pipeline.entries(Stage.PRE_WARP, step)
        raw = ops.gather(logits, ops.asarray(np.arange(step.batch.num_rows, dtype=np.int32))) if early else None
        for entry, payload in early:
            logits = self._apply(entry, payload, logits)
        logits = self._forbid_padding(logits)
        if self.mask is not None:
            logits = self._apply(*self.mask, logits)
        if raw is not None:
            logits, downloads["empty"] = self._rescue_empty_rows(logits, raw)
        warm = np.flatnonzero((step.temperatures > 0) & (step.temperatures != 1)).astype(np.int32)
        if len(warm):
            logits = ops.scale_rows(logits, ops.asarray(warm), ops.asarray(1 / step.temperatures[warm]))
        drawn = np.flatnonzero(step.temperatures > 0).astype(np.int32)
        late = self.pipeline.entries(Stage.POST_WARP, step)
        owners = self.pipeline.entries(Stage.SAMPLE, step)
        if late or owners or len(drawn):
            logits = ops.log_softmax(logits)
        for entry, payload in late:
            logits = self._apply(entry, payload, logits)
        if late and owners:
            logits = ops.log_softmax(logits)
        downloads["greedy"] = ops.argmax(logits)
        if len(drawn):
            rows = ops.asarray(drawn)
            downloads["drawn"] = ops.categorical(ops.gather(logits, rows), self.data.uniform(DRAW, rows, 1)[:, 0])
        owned = [(entry, rows, ids) for entry, payload in owners for rows, ids in self._sample(entry, payload, logits)]
        for i, (_, _, ids) in enumerate(owned):
            downloads[f"owned/{i}"] = ids
        for name, parts in self.emitted.items():
            for i, (_, arrays) in enumerate(parts):
                downloads |= {f"feedback/{name}/{i}/{key}": array for key, array in arrays.items()}
        return self._collect(self.device.download(downloads).result(), drawn, [(e, rows) for e, rows, _ in owned])

    def _collect(
        self, host: Mapping[str, NDArray[Any]], drawn: NDArray[np.int32], owned: list[tuple[_Entry, NDArray[np.int32]]]
    ) -> StepOutput:
        step = self.step
        token_ids = np.array(host["greedy"][: step.batch.num_rows], dtype=np.int32)
        if len(drawn):
            token_ids[drawn] = host["drawn"]
        for i, (entry, rows) in enumerate(owned):
            ids = host[f"owned/{i}"]
            num_tokens = self.pipeline.context.vocabulary_size
            outside = (ids < 0) | (ids >= num_tokens)
            for sequence in self._sequences(rows[outside]).tolist():
                message = f"it drew a token id outside 0..{num_tokens - 1}"
                self.faults[sequence] = Fault(f"modifier.{entry.name}", "sample", message)
            token_ids[rows] = np.where(outside, 0, ids)
        overruled: dict[int, tuple[str, ...]] = {}
        if "empty" in host and host["empty"].any():
            rows = np.flatnonzero(host["empty"]).astype(np.int32)
            for entry, payload in self.pipeline.entries(Stage.PRE_WARP, step):
                for sequence in self._sequences(rows[np.isin(rows, payload.rows)]).tolist():
                    overruled[sequence] = (*overruled.get(sequence, ()), entry.name)
        return StepOutput(token_ids, self._feedback(host), self.faults, overruled)

    def _feedback(self, host: Mapping[str, NDArray[Any]]) -> dict[str, Payload]:
        feedback = {}
        for name, parts in self.emitted.items():
            emits = next(e for es in self.pipeline._by_stage.values() for e in es if e.name == name).transform.emits
            rows = np.concatenate([rows for rows, _ in parts])
            arrays = {
                key: np.concatenate([host[f"feedback/{name}/{i}/{key}"] for i in range(len(parts))]).astype(
                    emits[key][1]
                )
                for key in parts[0][1]
            }
            feedback[name] = Payload(rows, arrays)
        return feedback

    def _forbid_padding(self, logits: Array) -> Array:
        context = self.pipeline.context
        if context.logits_width == context.vocabulary_size:
            return logits
        return self.ops.forbid_from(logits, context.vocabulary_size)

    def _rescue_empty_rows(self, logits: Array, raw: Array) -> tuple[Array, Array]:
        """Where pre-warp modifiers and the mask left a row without a token, the grammar wins: raw logits, masked."""
        raw = self._forbid_padding(raw)
        if self.mask is not None:
            raw = self.mask[0].transform.apply(raw, self.device.upload(self.mask[1]), self._view(*self.mask))
        rows = self.ops.asarray(np.arange(self.step.batch.num_rows, dtype=np.int32))
        best = self.ops.gather(logits, rows, self.ops.argmax(logits)[: len(rows), None])
        empty = best == -np.inf
        return self.ops.where_rows(logits, rows, empty, raw), empty[:, 0]

    def _apply(self, entry: _Entry, payload: Payload, logits: Array) -> Array:
        """`entry` applied to its rows; if it fails, applied sequence by sequence, leaving those alone it fails for."""
        is_mask = entry.modifier.stage is Stage.MASK  # idempotent, so it needs no copy to go back to
        rows = self.ops.asarray(payload.rows)
        before = None if is_mask else self.ops.gather(logits, rows)
        try:
            return self._call(entry, payload, logits)
        except Exception as error:
            if before is not None:
                logits = self.ops.where_rows(logits, rows, self._all(len(payload)), before)
            sequences = np.unique(self._sequences(payload.rows)).tolist()
            if len(sequences) == 1:
                self.faults[sequences[0]] = Fault.of(f"modifier.{entry.name}", "apply", error)
                return logits
        for sequence in sequences:
            logits = self._apply(entry, payload.take(self._rows(sequence)), logits)
        return logits

    def _call(self, entry: _Entry, payload: Payload, logits: Array) -> Array:
        view = self._view(entry, payload)
        modified = entry.transform.apply(logits, self.device.upload(payload), view)
        if getattr(modified, "shape", None) != logits.shape:
            raise ConformanceError(
                f"apply must return the logits, of shape {tuple(logits.shape)}; it returned {describe(modified)}"
            )
        self._keep_emitted(entry, payload, view)
        return modified

    def _sample(self, entry: _Entry, payload: Payload, logprobs: Array) -> list[tuple[NDArray[np.int32], Array]]:
        try:
            view = self._view(entry, payload)
            ids = cast("Sampler", entry.transform).sample(logprobs, self.device.upload(payload), view)
            if tuple(getattr(ids, "shape", ())) != (len(payload),):
                raise ConformanceError(f"sample must return {len(payload)} token ids; it returned {describe(ids)}")
            self._keep_emitted(entry, payload, view)
            return [(payload.rows, ids)]
        except Exception as error:
            sequences = np.unique(self._sequences(payload.rows)).tolist()
            if len(sequences) == 1:
                self.faults[sequences[0]] = Fault.of(f"modifier.{entry.name}", "sample", error)
                return []
        parts = [self._sample(entry, payload.take(self._rows(sequence)), logprobs) for sequence in sequences]
        return [part for found in parts for part in found]

    def _keep_emitted(self, entry: _Entry, payload: Payload, view: StepView) -> None:
        if missing := view.emitted.keys() ^ entry.transform.emits.keys():
            raise ConformanceError(f"{entry.name!r} did not emit {', '.join(sorted(missing))}")
        if view.emitted:
            self.emitted.setdefault(entry.name, []).append((payload.rows, view.emitted))

    def _view(self, entry: _Entry, payload: Payload) -> StepView:
        return StepView(self.data, entry.modifier, entry.transform, len(payload))

    def _all(self, num_rows: int) -> Array:
        return self.ops.asarray(np.ones((num_rows, 1), dtype=np.bool_))

    def _sequences(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Index in the batch of each row's sequence."""
        return np.searchsorted(self.step.batch.row_start, rows, side="right") - 1

    def _rows(self, sequence: int) -> NDArray[np.int32]:
        start = self.step.batch.row_start
        return np.arange(start[sequence], start[sequence + 1], dtype=np.int32)


def describe(value: object) -> str:
    """What a wrong return value looks like, for an error message."""
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"
