"""The NumPy device, the reference for every other device: simple rather than fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api import InvalidConfiguration
from guideway.api import bitmask as bits
from guideway.api.device import ArrayOps, DeviceBackend
from guideway.api.steps import Array
from guideway.devices.philox import WORD, multiply_64, philox4x32

__all__ = ["Downloaded", "NumpyDevice", "NumpyOps"]

LARGEST_HALF = np.float32(65504)
"""The largest finite number of float16."""


class NumpyOps(ArrayOps):
    """Every operation on NumPy arrays, in place where the contract allows it."""

    def asarray(self, array: NDArray[Any]) -> Array:
        return array

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        values = np.asarray(values)
        if x.dtype == np.float16:  # a value out of range would become inf, and inf + -inf is NaN
            values = np.where(np.isinf(values), values, np.clip(values, -LARGEST_HALF, LARGEST_HALF))
        np.add.at(x, (rows, columns), values.astype(x.dtype))
        return x

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        # in float16 a factor out of range would become 0 or inf, and -inf times 0 is NaN
        with np.errstate(over="ignore", under="ignore"):
            x[rows] = (x[rows] * factors[:, None]).astype(x.dtype)
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        x[rows] = np.where(condition, np.asarray(values).astype(x.dtype), x[rows])
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows] if columns is None else x[rows[:, None], columns]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows[:, None], columns] = np.asarray(values).astype(x.dtype)
        return x

    def cumsum(self, x: Array) -> Array:
        # a running sum in float32 has an error of 3e-6 after 1,000 probabilities, which would move a top-p cut at 0.999
        return x.cumsum(axis=1, dtype=np.float64).astype(np.promote_types(x.dtype, np.float32))

    def forbid_from(self, x: Array, column: int) -> Array:
        x[:, column:] = -np.inf
        return x

    def exp(self, x: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.exp(x)

    def log(self, x: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(x)

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.promote_types(x.dtype, np.float32))
        shifted = x - _finite_max(x)
        with np.errstate(invalid="ignore"):  # a row of only -inf gives NaN
            return shifted - self.log(self.exp(shifted).sum(axis=1, keepdims=True))

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        columns = np.argsort(-x, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(x, columns, axis=1), columns

    def argmax(self, x: Array) -> Array:
        return np.argmax(x, axis=1)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        wide = logprobs.astype(np.float64)
        weights = self.exp(wide - _finite_max(wide))
        cumulative = weights.cumsum(axis=1)
        # NumPy sums from left to right, so the first column past the target has a positive weight; there is one, since
        # a float32 below 1 times the total, in float64, is below the total
        return np.argmax(cumulative > uniforms[:, None] * cumulative[:, -1:], axis=1)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds, sequences, positions = (
            a.astype(np.int64).view(np.uint64)[:, None] for a in (seeds, sequences, positions)
        )
        blocks = np.arange(-(-width // 4), dtype=np.uint64)[None, :]
        counter = (blocks, positions & WORD, sequences & WORD, np.uint64(purpose & WORD))
        block = philox4x32(counter, (seeds & WORD, seeds >> 32), multiply_64)
        words = np.stack(block, axis=2).reshape(len(seeds), 4 * blocks.size)[:, :width]
        return ((words >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        covered = min(width, bitmask.shape[1] * bits.BITS_PER_WORD)
        allowed = np.zeros((len(bitmask), width), dtype=np.bool_)
        allowed[:, :covered] = bits.unpack(bitmask, covered)
        return allowed


def _finite_max(x: NDArray[Any]) -> NDArray[Any]:
    """Return each row's largest value, ``[rows, 1]``; 0 for a row of -inf, to avoid -inf - -inf."""
    largest: NDArray[Any] = x.max(axis=1, keepdims=True)
    return np.where(np.isneginf(largest), 0, largest)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A finished `Download`."""

    arrays: Mapping[str, NDArray[Any]]

    def result(self) -> Mapping[str, NDArray[Any]]:
        return self.arrays


class NumpyDevice(DeviceBackend):
    """NumPy arrays on the CPU."""

    contract = "1.0"
    name = "numpy"
    arrays = "numpy"

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise InvalidConfiguration(
                f"device backend {self.name!r} runs on 'cpu' only, not on {device!r}", field="device"
            )
        super().__init__(device)
        self.ops = NumpyOps()

    def from_logits(self, logits: Array) -> Array:
        """Return a writable array of `logits`, which may come from any library with CPU arrays. bfloat16 tensors of
        torch become float32 (the same values), since NumPy has no bfloat16."""
        if hasattr(logits, "detach"):  # a torch tensor
            logits = logits.detach().cpu()
            if str(logits.dtype) == "torch.bfloat16":
                logits = logits.float()
        array = np.asarray(logits)
        # rows that share memory, as after torch's `expand`, cannot be masked separately
        return array if array.flags.writeable and 0 not in array.strides else array.copy()

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        allowed = self.ops.unpack_bitmask(bitmask, logits.shape[1])
        for i, row in enumerate(rows):
            if row != -1:
                logits[row, ~allowed[i]] = -np.inf
        return logits

    def download(self, arrays: Mapping[str, Array]) -> Downloaded:
        return Downloaded({name: np.array(array) for name, array in arrays.items()})
