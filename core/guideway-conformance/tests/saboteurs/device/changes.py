"""Bugs of the operations that change some values of an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from guideway.api.steps import Array
from guideway.devices.numpy.device import Downloaded

from saboteurs import saboteur
from saboteurs.device.base import BFloat16, Sabotaged, SabotagedTensors

LEAST = np.finfo(np.float32).min


@saboteur("device.add_at_adds")
class Assigns(Sabotaged):
    """`add_at` replaces what was there."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows, columns] = values
        return x


@saboteur("device.add_at_repeated_pairs")
class AddsOncePerPair(Sabotaged):
    """`add_at` adds the last value of those with the same pair."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows, columns] += values.astype(x.dtype)
        return x


@saboteur("device.add_at_minus_infinity")
class AddsToTheLeast(Sabotaged):
    """`add_at` works on finite numbers alone."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return super().add_at(np.maximum(x, LEAST), rows, columns, values)


@saboteur("device.add_at_minus_infinity")
class CastsWhatItAdds(Sabotaged):
    """`add_at` makes values numbers of the type of x, which makes some infinite."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        with np.errstate(all="ignore"):
            np.add.at(x, (rows, columns), values.astype(x.dtype))
        return x


@saboteur("device.scale_rows_scales")
class ScalesFromAbove(Sabotaged):
    """`scale_rows` takes factor i for the i-th of the rows from above."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return super().scale_rows(x, np.sort(rows), factors)


@saboteur("device.scale_rows_minus_infinity")
class ScalesTheLeast(Sabotaged):
    """`scale_rows` makes -inf finite."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return super().scale_rows(np.maximum(x, LEAST / 8), rows, factors)


@saboteur("device.where_rows_chooses")
class ChoosesFromAbove(Sabotaged):
    """`where_rows` takes entry i for the i-th of the rows from above."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        return super().where_rows(x, np.sort(rows), condition, values)


@saboteur("device.where_rows_minus_infinity")
class Blends(Sabotaged):
    """`where_rows` multiplies by the condition, so that what is not chosen still counts if it is not finite."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        share = np.asarray(condition, dtype=x.dtype)
        with np.errstate(invalid="ignore"):
            x[rows] = share * values + (1 - share) * x[rows]
        return x


@saboteur("device.where_rows_broadcasts")
class RepeatsInOrder(Sabotaged):
    """`where_rows` repeats values one after the other instead of along an axis."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        return super().where_rows(x, rows, condition, np.resize(values, (len(rows), x.shape[1])))


@saboteur("device.where_rows_broadcasts")
class OneValuePerRow(Sabotaged):
    """`where_rows` takes as many values as there are rows for a column of them."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        column = values.ndim == 1 and len(values) == len(rows)
        return super().where_rows(x, rows, condition, values[:, None] if column else values)


@saboteur("device.where_rows_plain_condition")
class AnyBoolIsTrue(Sabotaged):
    """`where_rows` takes a plain condition for one that holds."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        return super().where_rows(x, rows, isinstance(condition, bool) or condition, values)


@saboteur("device.where_rows_plain_value")
class WantsArrays(Sabotaged):
    """`where_rows` fails for a plain number."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        return super().where_rows(x, rows, condition, values.astype(x.dtype))


@saboteur("device.gather_rows")
class GathersASet(Sabotaged):
    """`gather` sorts rows and drops repeated ones."""

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return super().gather(x, np.unique(rows) if columns is None else rows, columns)


@saboteur("device.gather_rows")
class GathersAllInOrder(Sabotaged):
    """`gather` of as many rows as there are copies the array as it is."""

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x.copy() if columns is None and len(rows) == len(x) else super().gather(x, rows, columns)


@saboteur("device.gather_columns")
class GathersFromAbove(Sabotaged):
    """`gather` takes columns of row i instead of row ``rows[i]``."""

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return super().gather(x, rows if columns is None else np.arange(len(rows)), columns)


@saboteur("device.gather_copies")
class GathersViews(Sabotaged):
    """`gather` of all rows in order is the array itself."""

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        is_all = columns is None and np.array_equal(rows, np.arange(len(x)))
        return x if is_all else super().gather(x, rows, columns)


@saboteur("device.gather_copies")
class GathersOneRowAsView(Sabotaged):
    """`gather` of a single row is a part of the array."""

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        is_one = columns is None and len(rows) == 1
        return x[rows[0] : rows[0] + 1] if is_one else super().gather(x, rows, columns)


@saboteur("device.donates_or_keeps")
class DonatesNow(Sabotaged):
    """`donates` is a word."""

    donates: ClassVar[Any] = "sometimes"


@saboteur("device.donates_or_keeps")
class AddsTwice(Sabotaged):
    """`add_at` returns an array of its own, and adds to its argument twice."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        added = super().add_at(x, rows, columns, values).copy()
        super().add_at(x, rows, columns, values)
        return added


@saboteur("device.donates_or_keeps")
class ScalesAScratch(Sabotaged):
    """`scale_rows` works in its argument's memory, and leaves its last row there as it was."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        scaled = super().scale_rows(x.copy(), rows, factors)
        super().scale_rows(x, rows[:-1], factors[:-1])
        return scaled


@saboteur("device.donates_or_keeps")
class ChoosesAScratch(Sabotaged):
    """`where_rows` leaves zeros where it read."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        chosen = super().where_rows(x.copy(), rows, condition, values)
        x[rows] = 0
        return chosen


@saboteur("device.donates_or_keeps")
class ScattersAScratch(Sabotaged):
    """`scatter` leaves what it wrote in the first row of its argument, and returns another array."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        written = super().scatter(x.copy(), rows, columns, values)
        super().scatter(x, rows[:1], columns[:1], values[:1])
        return written


@saboteur("device.donates_or_keeps")
class ForbidsAScratch(Sabotaged):
    """`forbid_from` leaves its argument forbidden as a whole."""

    def forbid_from(self, x: Array, column: int) -> Array:
        forbidden = super().forbid_from(x.copy(), column)
        x[:] = -np.inf
        return forbidden


@saboteur("device.donates_or_keeps")
class DonatesInSilence(Sabotaged):
    """The argument of `forbid_from` is gone afterwards."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.gone: list[Array] = []

    def forbid_from(self, x: Array, column: int) -> Array:
        self.gone.append(x)
        return super().forbid_from(x.copy(), column)

    def download(self, arrays: Mapping[str, Array]) -> Downloaded:
        if any(array is gone for array in arrays.values() for gone in self.gone):
            raise RuntimeError("this array was donated")
        return super().download(arrays)


@saboteur("device.scatter_writes")
class ScattersSums(Sabotaged):
    """`scatter` adds."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows[:, None], columns] += values.astype(x.dtype)
        return x


@saboteur("device.scatter_repeated_rows")
class ScattersWholeRows(Sabotaged):
    """`scatter` writes whole rows back, so that the last of equal rows wins."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        chosen = x[rows]
        np.put_along_axis(chosen, columns.astype(np.int64), values.astype(x.dtype), axis=1)
        x[rows] = chosen
        return x


@saboteur("device.forbid_from_forbids")
class ForbidsTooLate(Sabotaged):
    """`forbid_from` leaves the first of the columns."""

    def forbid_from(self, x: Array, column: int) -> Array:
        return super().forbid_from(x, column + 1)


@saboteur("device.forbid_from_forbids")
class ForbidsByAdding(Sabotaged):
    """`forbid_from` adds 0 to the columns before, so that -0.0 loses its sign."""

    def forbid_from(self, x: Array, column: int) -> Array:
        x[:, :column] += 0.0
        return super().forbid_from(x, column)


@saboteur("device.what_raises_changes_nothing")
class ScattersRowByRow(Sabotaged):
    """`scatter` writes one row after the other, until it finds no values."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        for i, row in enumerate(rows):
            x[row, columns[i]] = values[i]
        return x


@saboteur("device.what_raises_changes_nothing")
class ScalesRowByRow(Sabotaged):
    """`scale_rows` multiplies one row after the other, until it finds no factor."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        for i, row in enumerate(rows):
            x[row] *= factors[i]
        return x


@saboteur("device.changes_of_large_vocabularies")
class AddsInFifteenBits(Sabotaged):
    """`add_at` counts columns in 15 bits."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return super().add_at(x, rows, columns % 2**15, values)


@saboteur("device.changes_of_large_vocabularies")
class ForbidsInSixteenBits(Sabotaged):
    """`forbid_from` counts columns in 16 bits."""

    def forbid_from(self, x: Array, column: int) -> Array:
        return super().forbid_from(x, column if x.shape[1] < 2**16 else column % 2**16)


@saboteur("device.changes_of_no_rows")
class LooksForTheLeast(Sabotaged):
    """`scale_rows` looks for its smallest factor, also where there is none."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        if factors.min() <= 0:
            raise ValueError("factors must be positive")
        return super().scale_rows(x, rows, factors)


@saboteur("device.changes_of_integers_and_bools")
class ChoosesInFloat32(Sabotaged):
    """`where_rows` computes in float32, whatever the dtype."""

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        return super().where_rows(x.astype(np.float32), rows, condition, values).astype(x.dtype)


@saboteur("device.changes_of_integers_and_bools")
class ScattersNumbers(Sabotaged):
    """`scatter` adds the difference to what is there, which bools have none of."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return super().scatter(x, rows, columns, x[rows[:, None], columns] + (values - x[rows[:, None], columns]))


@saboteur("device.float16_changes")
class ScalesIntoFloat32(Sabotaged):
    """`scale_rows` returns float32 for float16."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return super().scale_rows(x.astype(np.float32), rows, factors)


@saboteur("device.bfloat16_changes")
class ScattersIntoFloat16(SabotagedTensors):
    """`scatter` returns float16 for bfloat16."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return super().scatter(x.astype(np.float16) if isinstance(x, BFloat16) else x, rows, columns, values)


@saboteur("device.changes_take_either_integer")
class GathersByInt32(Sabotaged):
    """`gather` reads the memory of any rows as int32."""

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return super().gather(x, rows.view(np.int32)[: len(rows)], columns)


@saboteur("device.indices_are_only_read")
class LeavesLogarithms(Sabotaged):
    """`scale_rows` leaves the logarithms of its factors in their place."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        x = super().scale_rows(x, rows, factors)
        np.log2(factors, out=factors)
        return x


@saboteur("device.indices_are_only_read")
class LeavesFlatIndices(Sabotaged):
    """`scatter` leaves places in the flat array where its columns were."""

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x = super().scatter(x, rows, columns, values)
        columns += rows[:, None] * x.shape[1]
        return x
