"""Bugs of operations that remember, that want memory of their own, or that are not for steps that overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
from guideway.api.steps import Array
from guideway.devices.numpy.device import NumpyDevice

from saboteurs import saboteur
from saboteurs.device.base import Fused, Sabotaged, Triples, allowed_tokens


@saboteur("device.operations_do_not_remember")
class DrawsBySeedAndPlace(Sabotaged):
    """`uniform` gives what it gave for the same seeds and positions, whatever the sequences."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.asked: dict[Any, Array] = {}

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        key = seeds.tobytes(), positions.tobytes(), purpose, width
        if key not in self.asked:
            self.asked[key] = super().uniform(seeds, sequences, positions, purpose, width)
        return self.asked[key].copy()


@saboteur("device.operations_do_not_remember")
class CountsOfTheMaskBefore(Fused):
    """`masked_argmax` looks at the mask before where the rows are the same array."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.last: Any = (None, None)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        if self.last[0] is not rows:
            self.last = rows, bitmask
        return super().masked_argmax(logits, self.last[1], rows, num_tokens)


@saboteur("device.operations_do_not_remember")
class FactorsInOneMemory(Fused):
    """`warp_masked` returns the memory that it returned before, of an array of the same shape."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.kept: dict[tuple[int, ...], Array] = {}

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        found = super().warp_masked(logits, bitmask, rows, added, factors)
        kept = self.kept.setdefault(found.shape, found)
        kept[...] = found
        return kept


@saboteur("device.arguments_that_are_gone")
class RemembersTheId(Sabotaged):
    """`unpack_bitmask` gives what it gave for the array that had the same `id`."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.unpacked: dict[Any, Array] = {}

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        key = id(bitmask), width
        if key not in self.unpacked:
            self.unpacked[key] = super().unpack_bitmask(bitmask, width)
        return self.unpacked[key].copy()


@saboteur("device.arguments_that_are_gone")
class RemembersTheAddress(Sabotaged):
    """`cumsum` gives what it gave for the array of the same shape that lay at the same address."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.summed: dict[Any, Array] = {}

    def cumsum(self, x: Array) -> Array:
        key = x.ctypes.data, x.shape, x.strides
        if key not in self.summed:
            self.summed[key] = super().cumsum(x)
        return self.summed[key].copy()


@saboteur("device.operations_of_every_size")
class OfManyColumns(Sabotaged):
    """`scatter` is wrong where rows are as many as columns, which it takes for the other way round."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        if x.shape[0] == x.shape[1]:
            x[columns, rows[:, None]] = values
            return x
        return super().scatter(x, rows, columns, values)


@saboteur("device.operations_on_views")
class AddsToACopy(Sabotaged):
    """`add_at` adds in a flat view, which is a copy where rows have gaps."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        np.add.at(x.reshape(-1), rows.astype(np.int64) * x.shape[1] + columns, values.astype(x.dtype))
        return x


@saboteur("device.gather_copies")
class GathersAPart(Sabotaged):
    """`gather` of rows that follow one another is a view where the array is one."""

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        rows_in_turn = columns is None and len(rows) and (rows == np.arange(rows[0], rows[0] + len(rows))).all()
        if rows_in_turn and x.base is not None:
            return x[rows[0] : rows[0] + len(rows)]
        return super().gather(x, rows, columns)


@saboteur("device.operations_on_views")
class RowsAsTheyLie(Sabotaged):
    """`log_softmax` of logits whose last row lies first is that of its rows in the order of memory."""

    def log_softmax(self, x: Array) -> Array:
        return super().log_softmax(x[::-1] if x.strides[0] < 0 else x)


@saboteur("device.operations_on_views")
class ScalesWhatLiesBetween(Sabotaged):
    """`scale_rows` scales the memory in which a row lies, to the next one."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        base = x.base
        if base is None or base.ndim != 2 or len(base) != len(x) or x.strides[1] != x.itemsize:
            return super().scale_rows(x, rows, factors)
        super().scale_rows(base, rows, factors)
        return x


@saboteur("device.arguments_that_are_views")
class ReadsNeighbors(Sabotaged):
    """`scale_rows` reads factors as they lie in memory."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        if factors.base is not None and not factors.flags.c_contiguous:
            factors = factors.base.reshape(-1)[: len(factors)]
        return super().scale_rows(x, rows, factors)


@saboteur("device.overlapping_steps")
class OneScratchForAll(NumpyDevice):
    """Masks are made in memory that is kept by shape, which steps that overlap share."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.kept: dict[tuple[int, ...], Array] = {}

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        forbidden = self.kept.setdefault(logits.shape, np.empty(logits.shape, dtype=np.bool_))
        forbidden[...] = False
        allowed = allowed_tokens(bitmask, logits.shape[1])
        for i, row in enumerate(rows):
            if row != -1:
                forbidden[row] = ~allowed[i]
        logits[forbidden] = -np.inf
        return logits
