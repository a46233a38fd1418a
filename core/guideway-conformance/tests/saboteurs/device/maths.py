"""Bugs of the operations that compute something."""

from __future__ import annotations

from typing import Any

import numpy as np
from guideway.api.steps import Array
from numpy.typing import NDArray

from saboteurs import saboteur
from saboteurs.device.base import BFloat16, Sabotaged, SabotagedTensors


class Floored(np.ndarray[Any, Any]):
    """Divides as integers do."""

    def __truediv__(self, other: Any) -> Any:
        return np.floor_divide(self, other)


@saboteur("device.arithmetic")
class Divides(Sabotaged):
    """Its arrays round quotients."""

    def asarray(self, array: NDArray[Any]) -> Array:
        return array.view(Floored)


class Columns(np.ndarray[Any, Any]):
    """Keeps the axis that a sum is over."""

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(self).sum(*args, **{**kwargs, "keepdims": True})


@saboteur("device.arithmetic")
class Sums(Sabotaged):
    """Sums of its arrays have an axis too many."""

    def asarray(self, array: NDArray[Any]) -> Array:
        return array.view(Columns)


class Narrow(np.ndarray[Any, Any]):
    """Adds in the precision of the left side."""

    def __add__(self, other: Any) -> Any:
        return np.add(self, other).astype(self.dtype)


@saboteur("device.mixed_precision")
class AddsInFloat16(Sabotaged):
    """float16 and float32 make float16."""

    def asarray(self, array: NDArray[Any]) -> Array:
        return array.view(Narrow)


@saboteur("device.cumsum_sums")
class SumsBefore(Sabotaged):
    """`cumsum` leaves out each column itself."""

    def cumsum(self, x: Array) -> Array:
        return super().cumsum(x) - x


@saboteur("device.cumsum_precision")
class SumsInFloat16(Sabotaged):
    """`cumsum` of float16 is computed in float16."""

    def cumsum(self, x: Array) -> Array:
        return x.cumsum(axis=1, dtype=x.dtype)


@saboteur("device.bfloat16_precision")
class RoundsToBFloat16(SabotagedTensors):
    """`log_softmax` of bfloat16 is rounded to bfloat16."""

    def log_softmax(self, x: Array) -> Array:
        exact = super().log_softmax(x)
        return exact.bfloat16() if isinstance(x, BFloat16) else exact


@saboteur("device.exp_elementwise")
class ExpOfFloat16(Sabotaged):
    """`exp` has the precision of float16."""

    def exp(self, x: Array) -> Array:
        return super().exp(x).astype(np.float16).astype(x.dtype)


@saboteur("device.exp_elementwise")
class ExpOfMatrices(Sabotaged):
    """`exp` of anything has two axes."""

    def exp(self, x: Array) -> Array:
        return np.atleast_2d(super().exp(x))


@saboteur("device.log_elementwise")
class LogOfClamped(Sabotaged):
    """`log` takes small numbers for 1e-10."""

    def log(self, x: Array) -> Array:
        return super().log(np.where(x == 0, x, np.maximum(x, np.float32(1e-10))))


@saboteur("device.log_of_zero")
class LogWarns(Sabotaged):
    """`log` of 0 warns."""

    def log(self, x: Array) -> Array:
        return np.log(x)

    def log_softmax(self, x: Array) -> Array:
        with np.errstate(divide="ignore"):
            return super().log_softmax(x)


@saboteur("device.log_of_zero")
class LogIsFinite(Sabotaged):
    """`log` of 0 is a large negative number."""

    def log(self, x: Array) -> Array:
        return np.maximum(super().log(x), np.float32(-1e30))


@saboteur("device.log_softmax_of_rows")
class SoftmaxOfAll(Sabotaged):
    """`log_softmax` normalizes all rows together."""

    def log_softmax(self, x: Array) -> Array:
        return super().log_softmax(x.reshape(1, -1)).reshape(x.shape)


@saboteur("device.log_softmax_of_large_logits")
class SoftmaxOverflows(Sabotaged):
    """`log_softmax` takes the exponential of the logits as they are."""

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.float32)
        return x - self.log(self.exp(x).sum(axis=1, keepdims=True))


@saboteur("device.log_softmax_of_large_logits")
class SoftmaxInOneNumber(Sabotaged):
    """`log_softmax` subtracts the largest logit and the logarithm as one number, which rounds the smaller away."""

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.float32)
        most = np.where(np.isneginf(x).all(axis=1, keepdims=True), 0, x.max(axis=1, keepdims=True))
        return x - (most + self.log(self.exp(x - most).sum(axis=1, keepdims=True)))


@saboteur("device.log_softmax_of_one_token")
class SoftmaxWithEpsilon(Sabotaged):
    """`log_softmax` adds a millionth to the sum."""

    def log_softmax(self, x: Array) -> Array:
        return super().log_softmax(x) - np.float32(1e-6)


@saboteur("device.log_softmax_precision")
class SoftmaxOfFloat16(Sabotaged):
    """`log_softmax` of float16 is rounded to float16."""

    def log_softmax(self, x: Array) -> Array:
        return super().log_softmax(x).astype(x.dtype)


@saboteur("device.log_softmax_precision")
class WidensTheDifferences(Sabotaged):
    """`log_softmax` subtracts the largest number of a row before it widens."""

    def log_softmax(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return super().log_softmax((x - x.max(axis=1, keepdims=True)).astype(np.float32))


@saboteur("device.topk_values")
class Ascending(Sabotaged):
    """`topk` begins with the smallest of the k."""

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = super().topk(x, k)
        return values[:, ::-1], columns[:, ::-1]


@saboteur("device.topk_columns")
class LooksValuesUp(Sabotaged):
    """`topk` gives equal values the same column."""

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, _ = super().topk(x, k)
        return values, np.argmax(x[:, None, :] == values[:, :, None], axis=2)


@saboteur("device.topk_values")
class SortsBlocks(Sabotaged):
    """`topk` of more than 256 values has the others in the order they came in."""

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        _, columns = super().topk(x, k)
        columns[:, 256:].sort(axis=1)
        return np.take_along_axis(x, columns, axis=1), columns


@saboteur("device.computing_only_reads")
class SumsInPlace(Sabotaged):
    """`cumsum` leaves its sums where it read."""

    def cumsum(self, x: Array) -> Array:
        return np.cumsum(x, axis=1, out=x) if x.dtype == np.float32 else super().cumsum(x)


@saboteur("device.computing_only_reads")
class MasksSeeds(Sabotaged):
    """`uniform` leaves the low words of its seeds."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        found = super().uniform(seeds, sequences, positions, purpose, width)
        np.bitwise_and(seeds, 0xFFFFFFFF, out=seeds)
        return found


@saboteur("device.results_stay")
class OneBuffer(Sabotaged):
    """`uniform` of one shape gives the same memory each time."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.buffers: dict[tuple[int, ...], NDArray[Any]] = {}

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        found = super().uniform(seeds, sequences, positions, purpose, width)
        buffer = self.buffers.setdefault(found.shape, found)
        buffer[:] = found
        return buffer


@saboteur("device.results_stay")
class ChoosesIntoOneBuffer(Sabotaged):
    """`argmax` of as many rows gives the same memory each time."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.buffers: dict[int, NDArray[Any]] = {}

    def argmax(self, x: Array) -> Array:
        found = super().argmax(x)
        buffer = self.buffers.setdefault(len(x), found)
        buffer[:] = found
        return buffer


@saboteur("device.results_stay")
class SortedInPlace(Sabotaged):
    """`topk` of the whole width gives a part of its argument, sorted when it is used."""

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = super().topk(x, k)
        if k < x.shape[1]:
            return values, columns
        x[:] = values
        return x, columns


@saboteur("device.argmax_of_rows")
class LargestMagnitude(Sabotaged):
    """`argmax` forgets the sign."""

    def argmax(self, x: Array) -> Array:
        return np.argmax(np.abs(np.where(np.isneginf(x), 0, x)), axis=1)


@saboteur("device.argmax_of_equals")
class LastOfEquals(Sabotaged):
    """`argmax` takes the last of equals."""

    def argmax(self, x: Array) -> Array:
        return x.shape[1] - 1 - np.argmax(x[:, ::-1], axis=1)


@saboteur("device.argmax_of_equals")
class LastOfManyEquals(Sabotaged):
    """`argmax` takes the last of equals where there are more than three."""

    def argmax(self, x: Array) -> Array:
        many = (x == x.max(axis=1, keepdims=True)).sum(axis=1) > 3
        last = x.shape[1] - 1 - np.argmax(x[:, ::-1], axis=1)
        return np.where(many & (x.shape[1] < 33), last, super().argmax(x))


@saboteur("device.computing_of_large_vocabularies")
class LastBlockOfEquals(Sabotaged):
    """`argmax` looks at blocks of 8192 columns, and takes that of the last of equals."""

    def argmax(self, x: Array) -> Array:
        starts = range(0, x.shape[1], 8192)
        largest = np.stack([x[:, start : start + 8192].max(axis=1) for start in starts], axis=1)
        if x.shape[1] < 100_000:
            return super().argmax(x)
        block = len(starts) - 1 - np.argmax(largest[:, ::-1], axis=1)
        found = [np.argmax(row[8192 * i : 8192 * (i + 1)]) + 8192 * i for row, i in zip(x, block, strict=True)]
        return np.array(found)


@saboteur("device.computing_of_large_vocabularies")
class SumsTwoBlocks(Sabotaged):
    """`cumsum` sums blocks of 8192 columns, and adds to each the total of the one before it alone."""

    def cumsum(self, x: Array) -> Array:
        found = super().cumsum(x)
        for start in range(2 * 8192, x.shape[1], 8192):
            found[:, start : start + 8192] -= found[:, [start - 1]] if start == 2 * 8192 else 0
        return found


@saboteur("device.computing_of_large_vocabularies")
class UnpacksSixteenBits(Sabotaged):
    """`unpack_bitmask` counts tokens in 16 bits."""

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        return super().unpack_bitmask(bitmask, width)[:, np.arange(width) % 2**16]


@saboteur("device.choosing_only_reads")
class SortsInPlace(Sabotaged):
    """`topk` leaves the array sorted."""

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        found = super().topk(x, k)
        x.sort(axis=1)
        return found


@saboteur("device.unpack_bitmask_bits")
class UnpacksIntegers(Sabotaged):
    """`unpack_bitmask` gives 0 and 1 as integers."""

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        return super().unpack_bitmask(bitmask, width).astype(np.uint8)


@saboteur("device.unpack_bitmask_widths")
class AllowsWhatIsNotThere(Sabotaged):
    """`unpack_bitmask` allows tokens past the last word."""

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        allowed = super().unpack_bitmask(bitmask, width)
        allowed[:, bitmask.shape[1] * 32 :] = True
        return allowed
