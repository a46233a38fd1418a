"""The `Step` that a transform gets, limited to the needs that its modifier declared."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import FULL, num_words
from guideway.api.device import ArrayOps
from guideway.api.modifier import LogitModifier, LogitTransform
from guideway.api.steps import Array, Need, Payload, StepInput
from guideway.errors import ConformanceError, UnsupportedCapability

__all__ = ["DRAW", "StepData", "StepView", "purpose_id"]


def purpose_id(owner: str, purpose: str) -> int:
    """Return the Philox counter word that separates random numbers of different owners and purposes."""
    return zlib.crc32(f"{owner}/{purpose}".encode()) & 0x7FFFFFFF


DRAW = purpose_id("guideway", "draw")
"""Purpose of the random numbers for draws without a sampler."""


@dataclass(slots=True)
class StepData:
    """The data shared by all views of one step; device arrays are created on first use."""

    step: StepInput
    ops: ArrayOps
    width: int
    hidden_states: Array | None
    bitmask: Callable[[], Payload | None]
    """Combines all bitmasks of the step, on the host."""
    _cache: dict[str, Array] = field(default_factory=dict)

    def positions(self) -> Array:
        return self._upload_once("positions", self.step.batch.positions)

    def allowed(self, rows: Array) -> Array:
        """Return ``bool[len(rows), width]`` from the bitmasks; a row without one allows everything."""
        if "bitmask" not in self._cache:
            mask = self.bitmask()
            lookup = np.zeros(self.step.batch.num_rows, dtype=np.int32)
            if mask is None:
                bitmask = np.full((1, num_words(self.width)), FULL, dtype=np.int32)
            else:
                packed = mask.arrays["bitmask"]
                bitmask = np.concatenate([np.full((1, packed.shape[1]), FULL, dtype=np.int32), packed])
                lookup[mask.rows] = np.arange(1, len(bitmask), dtype=np.int32)
            self._cache["lookup"] = self.ops.asarray(lookup)
            self._cache["bitmask"] = self.ops.asarray(bitmask)
        return self.ops.unpack_bitmask(self._cache["bitmask"][self._cache["lookup"][rows]], self.width)

    def uniform(self, purpose: int, rows: Array, width: int) -> Array:
        """Return the random numbers of `Step.uniform`."""
        seeds = self._upload_once("seeds", self.step.seeds)
        sequences = self._upload_once("sequence_indices", self.step.sequence_indices)
        return self.ops.uniform(seeds[rows], sequences[rows], self.positions()[rows], purpose, width)

    def _upload_once(self, name: str, array: NDArray[Any]) -> Array:
        if name not in self._cache:
            self._cache[name] = self.ops.asarray(array)
        return self._cache[name]


class StepView:
    """The `guideway.api.Step` of one call of one transform."""

    def __init__(
        self, data: StepData, modifier: type[LogitModifier[Any]], transform: LogitTransform, num_entries: int
    ) -> None:
        self._data = data
        self._modifier = modifier
        self._transform = transform
        self._num_entries = num_entries
        self.emitted: dict[str, Array] = {}

    @property
    def ops(self) -> ArrayOps:
        return self._data.ops

    @property
    def positions(self) -> Array:
        return self._data.positions()

    @property
    def companion_rows(self) -> Array:
        self._check(Need.COMPANIONS)
        none = np.full((self._data.step.batch.num_rows, 1), -1, dtype=np.int32)
        return self.ops.asarray(self._data.step.companion_rows.get(self._modifier.name, none))

    def hidden_states(self, rows: Array) -> Array:
        self._check(Need.HIDDEN_STATES)
        if self._data.hidden_states is None:
            raise UnsupportedCapability("this host did not provide hidden states", field="hidden_states")
        return self.ops.gather(self._data.hidden_states, rows)

    def bitmask(self, rows: Array) -> Array:
        self._check(Need.BITMASK)
        return self._data.allowed(rows)

    def history(self, rows: Array) -> Array:
        self._check(Need.HISTORY)
        history, length = self._data.step.history, self._transform.history_length
        if history is None or history.shape[1] < length:
            raise UnsupportedCapability("this host did not provide the token history", field="history")
        return self.ops.asarray(np.ascontiguousarray(history[:, history.shape[1] - length :]))[rows]

    def uniform(self, purpose: str, rows: Array, width: int = 1) -> Array:
        self._check(Need.UNIFORM)
        return self._data.uniform(purpose_id(self._modifier.name, purpose), rows, width)

    def emit(self, name: str, array: Array) -> None:
        self._check(Need.FEEDBACK)
        if name not in self._transform.emits:
            raise ConformanceError(f"{self._modifier.name!r} emits {name!r}, which its `emits` does not declare")
        shape, _ = self._transform.emits[name]
        expected = (self._num_entries, *shape)
        if tuple(array.shape) != expected:
            raise ConformanceError(
                f"{self._modifier.name!r} emits {name!r} of shape {tuple(array.shape)}, not {expected}"
            )
        self.emitted[name] = array

    def _check(self, need: Need) -> None:
        if need not in self._modifier.needs:
            raise UnsupportedCapability(
                f"modifier {self._modifier.name!r} reads {need.value} but does not declare Need.{need.name} in `needs`",
                field=need.value,
            )
