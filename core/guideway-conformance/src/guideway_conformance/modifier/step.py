"""The view a transform has of a step: exactly what its modifier declares, nothing more."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, LogitModifier, LogitTransform, Need, UnsupportedCapability
from numpy.typing import NDArray

from guideway_conformance.subjects import expect

__all__ = ["OracleStep", "StepArrays"]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """One step's data on the host; the leading axis is ``num_rows`` unless said otherwise."""

    positions: NDArray[np.int32]
    seeds: NDArray[np.int64]
    sequence_indices: NDArray[np.int32]
    companion_rows: NDArray[np.int32]
    hidden_states: NDArray[np.float32]
    """``[num_rows + companions, hidden]``"""
    bitmask: NDArray[np.bool_]
    history: NDArray[np.int32]


class OracleStep:
    """`guideway.api.Step` for one call of one transform."""

    def __init__(
        self,
        arrays: StepArrays,
        ops: ArrayOps,
        modifier: type[LogitModifier[Any]],
        transform: LogitTransform,
        num_entries: int,
    ) -> None:
        self._arrays = arrays
        self._ops = ops
        self._modifier = modifier
        self._transform = transform
        self._num_entries = num_entries
        self._positions = ops.asarray(arrays.positions.copy())
        self._companion_rows = ops.asarray(arrays.companion_rows.copy())
        for shared in (self._positions, self._companion_rows):
            if isinstance(shared, np.ndarray):
                shared.setflags(write=False)
        self.emitted: dict[str, Array] = {}

    @property
    def ops(self) -> ArrayOps:
        return self._ops

    @property
    def positions(self) -> Array:
        return self._positions

    @property
    def companion_rows(self) -> Array:
        self._check(Need.COMPANIONS)
        return self._companion_rows

    def hidden_states(self, rows: Array) -> Array:
        self._check(Need.HIDDEN_STATES)
        return self._ops.asarray(self._arrays.hidden_states.copy())[rows]

    def bitmask(self, rows: Array) -> Array:
        self._check(Need.BITMASK)
        return self._ops.asarray(self._arrays.bitmask.copy())[rows]

    def history(self, rows: Array) -> Array:
        self._check(Need.HISTORY)
        return self._ops.asarray(self._arrays.history.copy())[rows]

    def uniform(self, purpose: str, rows: Array, width: int = 1) -> Array:
        self._check(Need.UNIFORM)
        word = zlib.crc32(f"{self._modifier.name}/{purpose}".encode()) & 0x7FFFFFFF
        address = (self._arrays.seeds, self._arrays.sequence_indices, self._arrays.positions)
        seeds, indices, positions = (self._ops.asarray(array.copy())[rows] for array in address)
        return self._ops.uniform(seeds, indices, positions, word, width)

    def emit(self, name: str, array: Array) -> None:
        self._check(Need.FEEDBACK)
        expect(name in self._transform.emits, f"it emits {name!r}, which its `emits` does not declare")
        expected = (self._num_entries, *self._transform.emits[name][0])
        expect(
            tuple(array.shape) == expected,
            f"for {self._num_entries} entries it emits {name!r} of shape {tuple(array.shape)}, not {expected}",
        )
        self.emitted[name] = array

    def _check(self, need: Need) -> None:
        if need not in self._modifier.needs:
            raise UnsupportedCapability(
                f"the transform reads {need.value} but its modifier does not declare Need.{need.name} in `needs`",
                field=need.value,
            )
