"""Device backends: applying masks and moving arrays where the logits live.

Everywhere the caller uses the RETURNED array and treats the argument as dead: libraries with mutable arrays change
in place and return the argument, others return a new one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from guideway.api.steps import Array, Payload

__all__ = ["ArrayOps", "DeviceBackend", "Download"]


class Download(Protocol):
    """Arrays on their way from a device to the host."""

    def result(self) -> Mapping[str, NDArray[Any]]:
        """Wait for the copy and return the arrays."""
        ...


class ArrayOps(ABC):
    """The operations a transform may use to run on every device. x is ``float[rows, width]`` unless said otherwise.

    Beside these, ``+ - * /``, comparisons and ``.sum(axis=...)`` mean the same in every array library.
    The NumPy implementation is the reference the others are checked against.
    """

    @abstractmethod
    def asarray(self, array: NDArray[Any]) -> Array:
        """A device array with the values of a host array, without waiting for the device."""

    @abstractmethod
    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        """``x[rows[i], columns[i]] += values[i]`` for each i; pairs may repeat; -inf stays -inf."""

    @abstractmethod
    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        """``x[rows[i]] *= factors[i]``; factors must be positive, so that -inf stays -inf."""

    @abstractmethod
    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        """``x[rows[i]] = where(condition[i], values[i], x[rows[i]])``; `condition` (an array or a bool) and `values`
        (an array or a number) broadcast to ``[len(rows), width]``."""

    @abstractmethod
    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        """``x[rows]``, or with `columns` int[len(rows), k] ``x[rows[i], columns[i, j]]``. Always a copy."""

    @abstractmethod
    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        """``x[rows[i], columns[i, j]] = values[i, j]`` for int[m, k] `columns`; no pair repeats. The counterpart of
        `gather`."""

    @abstractmethod
    def cumsum(self, x: Array) -> Array:
        """Running sums along each row, in at least float32."""

    @abstractmethod
    def forbid_from(self, x: Array, column: int) -> Array:
        """``x[:, column:] = -inf``: columns a model pads its logits with, which no token stands for."""

    @abstractmethod
    def exp(self, x: Array) -> Array:
        """Elementwise, any shape."""

    @abstractmethod
    def log(self, x: Array) -> Array:
        """Elementwise natural logarithm, any shape; 0 gives -inf without a warning."""

    @abstractmethod
    def log_softmax(self, x: Array) -> Array:
        """Row-wise ``x - log(sum(exp(x)))`` in at least float32; a row of -inf and one finite value is exact."""

    @abstractmethod
    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k largest values of each row in descending order, and their columns, both ``[rows, k]``."""

    @abstractmethod
    def argmax(self, x: Array) -> Array:
        """``int[rows]``: the column of each row's largest value, the first one of equals."""

    @abstractmethod
    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        """``int[rows]``: one draw per row by inversion of the cumulative distribution at ``uniforms`` float[rows] in
        (0, 1); never a column whose log-probability is -inf. Rows need not be normalized."""

    @abstractmethod
    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        """``float32[m, width]`` in (0, 1): Philox4x32-10 of key ``seeds[i]`` (64 bits, low word first) at counter
        ``(j // 4, positions[i], sequences[i], purpose)``, word ``j % 4`` of the block for column j, as
        ``((word >> 9) + 0.5) * 2**-23``, which float32 holds exactly. `seeds` is int64[m], the others int32[m]. The
        same bits on every device.
        (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11.)"""

    @abstractmethod
    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        """``int32[rows, words]`` to ``bool[rows, width]``; tokens past the last word are forbidden."""


class DeviceBackend(ABC):
    """One type of device and the array library its logits come in.

    `device` is the library's own name of the device, such as ``cpu``.
    """

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str]
    arrays: ClassVar[str]
    """The array library of its arrays: ``numpy``, ``torch``, ``jax``, ..."""
    ops: ArrayOps

    def __init__(self, device: str) -> None:
        self.device = device

    @classmethod
    def available(cls) -> str | None:
        """None if this backend can run here, else the reason why not. Never raises for a missing device."""
        return None

    @abstractmethod
    def from_logits(self, logits: Array) -> Array:
        """The model's logits as an array of this backend's library, without a copy where that is possible."""

    @abstractmethod
    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        """Forbid tokens::

            for i, row in enumerate(rows):                       # rows: int[m], each at most once
                for token in range(logits.shape[1]):
                    if bit `token` of bitmask[i] is 0 or past its last word: logits[row, token] = -inf

        Other rows and allowed logits keep their bits. `logits` is float16, bfloat16 or float32 ``[rows, width]``.
        """

    @abstractmethod
    def download(self, arrays: Mapping[str, Array]) -> Download:
        """Start copying small arrays to the host and return at once."""

    def upload(self, payload: Payload) -> Payload:
        """`payload` with its arrays on the device, without waiting for the device."""
        asarray = self.ops.asarray
        return replace(
            payload,
            rows=asarray(np.asarray(payload.rows)),
            arrays={name: asarray(np.asarray(array)) for name, array in payload.arrays.items()},
            shared={name: asarray(np.asarray(array)) for name, array in payload.shared.items()},
        )
