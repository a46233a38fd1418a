"""Arrays on their way to a backend and back, and what they are compared with.

The suite knows no array library: it makes arrays with `ArrayOps.asarray` and `DeviceBackend.from_logits`, reads them
with `DeviceBackend.download`, and uses only the arrays that are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from guideway.api import DeviceBackend
from guideway.api.steps import Array
from numpy.typing import ArrayLike, NDArray

from guideway_conformance.device.oracles import forbidden
from guideway_conformance.subjects import expect

__all__ = ["BFLOAT16", "Bench", "Host", "expect_bits", "expect_close", "expect_equal"]

Host: TypeAlias = NDArray[Any]

BFLOAT16: dict[str, Callable[[Any], Any]] = {
    "jax": lambda array: array.astype("bfloat16"),
    "torch": lambda array: array.bfloat16(),
}
"""By array library: its cast from float32, since there is no host array to start from."""


class Bench:
    """A backend with arrays to try it on."""

    def __init__(self, backend: DeviceBackend) -> None:
        self.backend = backend
        self.ops = backend.ops

    def array(self, values: ArrayLike, dtype: Any = None) -> Array:
        """A device array of memory that is nobody else's."""
        return self.ops.asarray(np.array(values, dtype=dtype))

    def ints(self, values: ArrayLike) -> Array:
        """Indices, as int32."""
        return self.array(values, np.int32)

    def floats(self, values: ArrayLike, dtype: str = "float32") -> Array:
        """Logits as the backend takes them from a model, so that an operation may change them in place."""
        if dtype == "bfloat16":
            return self.backend.from_logits(BFLOAT16[self.backend.arrays](self.array(values, np.float32)))
        return self.backend.from_logits(self.array(values, dtype))

    def read(self, array: Array) -> Host:
        """A copy on the host."""
        return np.array(self.backend.download({"array": array}).result()["array"])

    def masked(self, logits: Array, bitmask: ArrayLike, rows: ArrayLike) -> Array:
        """`logits` after `DeviceBackend.apply_bitmask`."""
        return self.backend.apply_bitmask(logits, self.ints(bitmask), self.ints(rows))

    def expect_masked(self, logits: Array, bitmask: Host, rows: Host) -> None:
        """Expect that `DeviceBackend.apply_bitmask` does to `logits` what its loop does."""
        before = self.read(logits)
        got = self.read(self.masked(logits, bitmask, rows))
        self.expect_loop(before, got, bitmask, rows)

    def expect_loop(self, before: Host, got: Host, bitmask: Host, rows: Host) -> None:
        """Expect that `got` is what the loop of `DeviceBackend.apply_bitmask` makes of `before`."""
        expect(got.shape == before.shape, f"logits of shape {before.shape} came back as {got.shape}")
        expect(got.dtype == before.dtype, f"logits of {before.dtype} came back as {got.dtype}")
        forbids = forbidden(bitmask.tolist(), rows.tolist(), before.shape)
        allowed_there = forbids & ~np.isneginf(got)
        if allowed_there.any():
            row, token = np.argwhere(allowed_there)[0].tolist()
            raise AssertionError(
                f"the mask forbids {forbids.sum()} logits of shape {got.shape}, {allowed_there.sum()} of them are not "
                f"-inf afterwards, first token {token} of row {row}: {got[row, token]}"
            )
        changed = ~forbids & (_bits(got) != _bits(before))
        if changed.any():
            row, token = np.argwhere(changed)[0].tolist()
            whose = "which the mask allows" if row in rows.tolist() else f"whose row is none of {rows.tolist()}"
            raise AssertionError(
                f"{changed.sum()} logits changed that should keep their bits, first token {token} of row {row}, "
                f"{whose}: from {before[row, token]} to {got[row, token]}"
            )


def expect_bits(got: Host, wanted: Host, what: str) -> None:
    """The same shape, dtype and bits."""
    expect(got.shape == wanted.shape, f"{what} has shape {got.shape} instead of {wanted.shape}")
    expect(got.dtype == wanted.dtype, f"{what} is {got.dtype} instead of {wanted.dtype}")
    _expect_all(_bits(got) == _bits(wanted), got, wanted, what)


def expect_equal(got: Host, wanted: ArrayLike, what: str) -> None:
    """The same shape and values, NaN for NaN, whatever the dtype."""
    wanted = np.asarray(wanted)
    expect(got.shape == wanted.shape, f"{what} has shape {got.shape} instead of {wanted.shape}")
    same = (got == wanted) | ((got != got) & (wanted != wanted))
    _expect_all(np.asarray(same), got, wanted, what)


def expect_close(got: Host, wanted: ArrayLike, what: str, tolerance: float = 1e-5) -> None:
    """The same shape, infinities exactly, other values up to `tolerance` of them or of 1, whichever is more.

    1e-5 is some 80 roundings of float32, more than any library's fast exponential errs by, and a hundredth of one
    rounding of float16.
    """
    wanted = np.asarray(wanted, dtype=np.float64)
    expect(got.shape == wanted.shape, f"{what} has shape {got.shape} instead of {wanted.shape}")
    got = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - wanted) <= tolerance * np.maximum(1.0, np.abs(wanted))
    _expect_all(np.where(np.isfinite(wanted), near, got == wanted), got, wanted, what)


def _expect_all(same: NDArray[np.bool_], got: Host, wanted: Host, what: str) -> None:
    if not same.all():
        place = tuple(np.argwhere(~same)[0].tolist())
        raise AssertionError(
            f"{what}: {np.count_nonzero(~same)} of {same.size} values are wrong, first at {place}: {got[place]} "
            f"instead of {wanted[place]}"
        )


def _bits(array: Host) -> Host:
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.itemsize}")
