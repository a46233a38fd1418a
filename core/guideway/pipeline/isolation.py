"""Apply transforms so that a failure affects only the failing rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import TokenLists, token_lists
from guideway.api.modifier import Sampler
from guideway.api.steps import Array, Fault, Payload
from guideway.errors import ConformanceError, contain
from guideway.pipeline.context import Entry, PipelineContext
from guideway.pipeline.padding import Padding
from guideway.pipeline.view import StepData, StepView

__all__ = ["TransformRunner"]


class TransformRunner:
    """A runner of one step's transforms, which stores the arrays they emit."""

    def __init__(self, context: PipelineContext, data: StepData, padding: Padding | None) -> None:
        self._context = context
        self._device = context.device
        self._data = data
        self._padding = padding
        self.faults: dict[int, Fault] = {}
        """Failures by row."""
        self._emitted: dict[str, list[tuple[NDArray[np.int32], dict[str, Array]]]] = {}
        self._uploads: dict[int, tuple[Payload, Payload]] = {}
        """Payloads and their device copies, by `id`: hard constraints are applied twice but uploaded once."""
        self._lists: dict[int, tuple[Payload, TokenLists, NDArray[np.int32], Payload]] = {}
        """Payloads of bitmasks, with their masks as token lists, the rows of these, and a payload of the other rows,
        by `id`."""

    def apply(self, entry: Entry, payload: Payload, logits: Array) -> Array:
        """Apply `entry` to its rows; if that fails, apply it row by row and restore the failing rows."""
        ops = self._context.ops
        # an idempotent transform needs no copy to restore, unless the device donates its arguments
        rows = before = None
        if self._device.donates:
            before = ops.gather(logits, self._context.all_rows(len(logits)))
        elif not entry.transform.idempotent:
            rows = ops.asarray(payload.rows if self._padding is None else self._padding.rows(payload.rows))
            before = ops.gather(logits, rows)
        try:
            return self._apply(entry, payload, logits)
        except BaseException as error:
            contain(error)
            if before is not None:
                logits = before if rows is None else ops.where_rows(logits, rows, True, before)
            if len(payload) == 1:
                self.faults.setdefault(int(payload.rows[0]), self._fault(entry, error))
                return logits
        for one in _one_by_one(payload):
            logits = self.apply(entry, one, logits)
        return logits

    def sample(self, entry: Entry, payload: Payload, logprobs: Array) -> list[tuple[NDArray[np.int32], Array]]:
        """Draw tokens with the `Sampler` of `entry`, for all its rows at once or, after a failure, row by row."""
        try:
            view = self._view(entry, payload)
            uploaded = self.upload(payload)
            ids = self._drawn(cast("Sampler", entry.transform), payload, logprobs, uploaded, view)
            whole = isinstance(ids, type(logprobs)) and "int" in str(ids.dtype)
            if not whole or tuple(ids.shape) != (len(uploaded),):
                raise ConformanceError(
                    f"sample must return {len(uploaded)} whole numbers as a {type(logprobs).__name__}; it returned "
                    f"{describe(ids)}"
                )
            self._keep_emitted(entry, payload, view, type(logprobs))
            return [(payload.rows, ids)]
        except BaseException as error:
            contain(error)
            if len(payload) == 1:
                self.faults.setdefault(int(payload.rows[0]), Fault.of(f"modifier.{entry.name}", "sample", error))
                return []
        return [part for one in _one_by_one(payload) for part in self.sample(entry, one, logprobs)]

    def _drawn(self, sampler: Sampler, payload: Payload, logprobs: Array, uploaded: Payload, view: StepView) -> Array:
        """Return the tokens that `sampler` draws for `payload`, of which `uploaded` is the copy on the device."""
        batch = self._data.step.batch
        if not len(batch.draft_token_ids) or type(sampler).verify is Sampler.verify:
            return sampler.sample(logprobs, uploaded, view)
        drafts = batch.following()[payload.rows]
        drafts = drafts if self._padding is None else self._padding.aligned(drafts)
        return sampler.verify(logprobs, uploaded, self._context.ops.asarray(drafts), view)

    def upload(self, payload: Payload) -> Payload:
        """Return `payload` on the device, padded if the device has static shapes; uploaded once per step."""
        if id(payload) not in self._uploads:
            padded = payload if self._padding is None else self._padding.payload(payload)
            self._uploads[id(payload)] = (payload, self._device.upload(padded))
        return self._uploads[id(payload)][1]

    def downloads(self) -> dict[str, Array]:
        """Return the emitted arrays, still on the device, by the names that `feedback` expects."""
        return {
            f"feedback/{name}/{i}/{key}": array
            for name, parts in self._emitted.items()
            for i, (_, arrays) in enumerate(parts)
            for key, array in arrays.items()
        }

    def feedback(self, host: Mapping[str, NDArray[Any]]) -> dict[str, Payload]:
        """Build `StepOutput.feedback` from `downloads`, copied to the host."""
        feedback = {}
        for name, parts in self._emitted.items():
            arrays = {}
            for key, (_, dtype) in self._context.emits[name].items():
                values = [host[f"feedback/{name}/{i}/{key}"][: len(rows)] for i, (rows, _) in enumerate(parts)]
                arrays[key] = np.concatenate(values).astype(dtype, subok=False)
            feedback[name] = Payload(np.concatenate([rows for rows, _ in parts]), arrays)
        return feedback

    def _apply(self, entry: Entry, payload: Payload, logits: Array) -> Array:
        view = None
        if entry.transform.bitmask is not None:
            modified = self._apply_bitmask(logits, payload, entry.transform.bitmask)
        else:
            view = self._view(entry, payload)
            modified = entry.transform.apply(logits, self.upload(payload), view)
        alike = isinstance(modified, type(logits)) and modified.dtype == logits.dtype
        if not alike or modified.shape != logits.shape or not is_writable(modified):
            raise ConformanceError(
                f"apply must return the logits, {describe(logits)}, as an array of its own; it returned "
                f"{describe(modified)}"
            )
        if self._device.donates:
            modified[:1]  # raises here, where the plugin is known, if it returned a donated array
        if view is not None:
            self._keep_emitted(entry, payload, view, type(logits))
        return modified

    def _apply_bitmask(self, logits: Array, payload: Payload, name: str) -> Array:
        """Apply masks as token lists where the device supports them and they are shorter, else as bitmasks."""
        if self._padding is None and "apply_token_lists" in self._device.fused:
            if id(payload) not in self._lists:
                found, short = token_lists(payload.arrays[name], self._context.num_tokens)
                others = payload.take(payload.rows[~short]) if short.any() else payload
                self._lists[id(payload)] = (payload, found, payload.rows[short], others)
            _, lists, rows, payload = self._lists[id(payload)]
            if len(rows):
                logits = self._device.apply_token_lists(logits, lists, rows)
            if not len(payload):
                return logits
        uploaded = self.upload(payload)
        return self._device.apply_bitmask(logits, uploaded.arrays[name], uploaded.rows)

    def _keep_emitted(self, entry: Entry, payload: Payload, view: StepView, array_type: type) -> None:
        for name, array in view.emitted.items():
            if not isinstance(array, array_type):
                raise ConformanceError(f"{name!r} was emitted as {describe(array)}, not as a {array_type.__name__}")
        if missing := view.emitted.keys() ^ entry.transform.emits.keys():
            raise ConformanceError(f"{entry.name!r} did not emit {', '.join(sorted(missing))}")
        if view.emitted:
            self._emitted.setdefault(entry.name, []).append((payload.rows, view.emitted))

    def _view(self, entry: Entry, payload: Payload) -> StepView:
        num_entries = len(payload) if self._padding is None else self._padding.num_rows
        return StepView(self._data, entry.modifier, entry.transform, num_entries)

    def _fault(self, entry: Entry, error: BaseException) -> Fault:
        if entry.transform.bitmask is not None:  # the device applied it
            return Fault.of(f"device.{self._device.name}", "apply_bitmask", error)
        return Fault.of(f"modifier.{entry.name}", "apply", error)


def describe(value: object) -> str:
    """Describe a wrong return value, for an error message."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"a {type(value).__name__}"
    return f"a {type(value).__name__} of {getattr(value, 'dtype', '?')} and shape {tuple(shape)}"


def is_writable(array: Array) -> bool:
    """Return whether `array` can be changed in place; True for libraries that never do."""
    return bool(getattr(getattr(array, "flags", None), "writeable", True))


def _one_by_one(payload: Payload) -> list[Payload]:
    return [payload.take(np.array([row], dtype=np.int32)) for row in payload.rows.tolist()]
