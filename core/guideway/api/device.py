"""Device backends apply masks and move arrays where the logits are.

Some operations may change their argument x or `logits`: `add_at`, `scale_rows`, `where_rows`, `scatter` and
`forbid_from` of `ArrayOps`, `apply_bitmask`, `apply_token_lists` and `warp_masked` of `DeviceBackend`. After these the
caller uses the RETURNED array and treats the argument as dead: libraries with mutable arrays change it in place and
return it, others return a new one. All other operations only read. No later call changes a result. Operations that only
read return arrays that share no memory with their arguments; `asarray` and `from_logits` may return shared memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import TokenLists

if TYPE_CHECKING:
    from guideway.api.steps import Array, Payload

__all__ = ["FUSED_OPERATIONS", "ArrayOps", "DeviceBackend", "Download", "Draw", "padded_size"]

FUSED_OPERATIONS = ("apply_token_lists", "masked_argmax", "masked_sample", "warp_masked")
"""Optional methods of `DeviceBackend`; the mandatory ones do the same in more passes."""

Triples: TypeAlias = "tuple[Array, Array, Array]"


def padded_size(count: int) -> int:
    """Return the number of rows that `count` rows of logits are padded to for a device with `static_shapes`: the next
    power of two, at least 8."""
    return max(8, 1 << (count - 1).bit_length())


class Download(Protocol):
    """A pending copy of arrays from a device to the host."""

    def result(self) -> Mapping[str, NDArray[Any]]:
        """Wait for the copy and return the arrays."""
        ...


class ArrayOps(ABC):
    """The operations a transform may use to run on every device. x is ``float[rows, width]`` unless stated otherwise.

    Rows and columns are counted from 0. An index out of range has undefined effects, also on the arguments: a device
    may notice it after a partial write, or so late that the whole step fails. So modifiers check indices on the host.
    An operation that raises for any other reason leaves its arguments unchanged. Arrays may have any strides: views
    with gaps, transposed views. `gather`, `scatter` and `where_rows` also take x of integers or bools. ``+ - * /``,
    unary ``-``, comparisons, ``.reshape(...)``, ``.sum(axis=...)`` and indexing by arrays, slices and None mean the
    same in every array library and may be used too. The NumPy implementation is the reference for all others.
    """

    @abstractmethod
    def asarray(self, array: NDArray[Any]) -> Array:
        """Return a device array with the values of a host array, without waiting for the device. The host array must
        not change until a later download has arrived."""

    @abstractmethod
    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        """``x[rows[i], columns[i]] += values[i]`` for each i; pairs may repeat. Values are finite or -inf, so -inf
        stays -inf, even if they are float32 and larger than any number of x's dtype."""

    @abstractmethod
    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        """``x[rows[i]] *= factors[i]``, in float32 and rounded once; factors must be positive, so -inf stays -inf."""

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
        """Compute running sums along each row, in at least float32."""

    @abstractmethod
    def forbid_from(self, x: Array, column: int) -> Array:
        """``x[:, column:] = -inf``: forbid the padding columns of the model's logits, which no token has."""

    @abstractmethod
    def exp(self, x: Array) -> Array:
        """Compute the exponential elementwise, any shape."""

    @abstractmethod
    def log(self, x: Array) -> Array:
        """Compute the natural logarithm elementwise, any shape; 0 gives -inf without a warning. A device may treat
        numbers below 2**-126 as 0, but no float16 number."""

    @abstractmethod
    def log_softmax(self, x: Array) -> Array:
        """Compute ``x - log(sum(exp(x)))`` for each row in at least float32; exact for a row of -inf and one finite
        value."""

    @abstractmethod
    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        """Return the k largest values of each row in descending order, and their columns, both ``[rows, k]``."""

    @abstractmethod
    def argmax(self, x: Array) -> Array:
        """Return ``int[rows]``: the column of each row's largest value, the first among equals."""

    @abstractmethod
    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        """Return ``int[rows]``: one draw per row by inversion of the cumulative distribution at ``uniforms``
        float[rows] in (0, 1); never a column whose log-probability is -inf. Rows need not be normalized."""

    @abstractmethod
    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        """Return ``float32[m, width]`` in (0, 1): Philox4x32-10 of key ``seeds[i]`` (64 bits, low word first) at
        counter ``(j // 4, positions[i], sequences[i], purpose)``, word ``j % 4`` of the block for column j, as
        ``((word >> 9) + 0.5) * 2**-23``, which float32 holds exactly. `seeds` is int64[m], the others int32[m],
        reinterpreted as uint32; `purpose` is from 0 to 2**32 - 1. All devices return the same bits. (Salmon et al.,
        Parallel random numbers: as easy as 1, 2, 3, SC'11.)"""

    @abstractmethod
    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        """Convert ``int32[rows, words]`` to ``bool[rows, width]``; tokens past the last word are forbidden."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The parameters of the draw of each row of logits: device arrays, aligned with the rows."""

    temperatures: Array
    """``float32[rows]``; 0: greedy."""
    seeds: Array
    """``int64[rows]``"""
    sequences: Array
    """``int32[rows]``"""
    positions: Array
    """``int32[rows]``"""
    purpose: int
    """With the three arrays above, the arguments of `ArrayOps.uniform`."""


class DeviceBackend(ABC):
    """One type of device and the array library of its logits.

    `device` is the library's own name of the device, such as ``cpu``. A backend for torch tensors may derive from
    `guideway.devices.torch.device.TorchDevice` and override operations that its hardware does better.
    """

    contract: ClassVar[str]
    """The version of the contract that the class was written for, such as ``"1.0"``. Every plugin's class sets it."""
    name: ClassVar[str]
    arrays: ClassVar[str]
    """The array library of its arrays: ``numpy``, ``torch``, ``jax``, ..."""
    fused: ClassVar[frozenset[str]] = frozenset()
    """The members of `FUSED_OPERATIONS` that the class overrides. A host prefers them to the mandatory operations they
    replace, and never calls one that is not declared."""
    donates: ClassVar[bool] = False
    """True if a dead argument (see the module) is unusable once the operation has returned, as donated buffers of jax
    are. A host then makes more copies, to be able to restore. If False, the argument holds the values of the result or
    its old ones; but after `warp_masked`, also if it raises, `logits` may hold anything."""
    static_shapes: bool = False
    """True if the device compiles for each shape of its arrays. Runners then pad the logits (`padded_size`) and hosts
    pad lists of rows to few sizes, and dummy steps of each shape run before the first request. May be set by
    ``__init__``."""
    ops: ArrayOps

    def __init__(self, device: str) -> None:
        self.device = device

    @classmethod
    def available(cls) -> str | None:
        """Return None if this backend can run here, else the reason. Never raises, even if the device or a package is
        missing."""
        return None

    def scope(self) -> AbstractContextManager[object]:
        """Return a context that a host enters around one step's work with this device's arrays, such as a library's
        inference mode. Each step enters a new one, in its own thread; steps of one backend may overlap in several
        threads."""
        return nullcontext()

    @abstractmethod
    def from_logits(self, logits: Array) -> Array:
        """Return the model's logits as an array of this backend's library. No copy is needed, since only this step
        uses the logits.

        The logits are arrays of this library, NumPy arrays or, if torch is installed, torch tensors on the CPU, in
        float16, bfloat16 (not NumPy) or float32, with any strides: rows may share all of their memory, as after
        ``expand``, but do not overlap in part. A dtype that the device lacks is converted to a wider one."""

    @abstractmethod
    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        """Forbid tokens::

            for i, row in enumerate(rows):                       # rows: int[m], each at most once
                if row == -1: continue                           # padding; any number of entries may be -1
                for token in range(logits.shape[1]):
                    if bit `token` of bitmask[i] is 0 or past its last word: logits[row, token] = -inf

        Other rows and allowed logits keep their bits. `logits` is float16, bfloat16 or float32 ``[rows, width]``, with
        any strides. `bitmask` and `rows` are both device arrays, or both host (NumPy) arrays, which then must not
        change until a later download has arrived, as for `ArrayOps.asarray`.
        """

    @abstractmethod
    def download(self, arrays: Mapping[str, Array]) -> Download:
        """Start copying small arrays to the host and return at once. The result may be read-only."""

    def upload(self, payload: Payload) -> Payload:
        """Return `payload` with its arrays on the device, without waiting for the device. The caller may change the
        host arrays as soon as this returns."""

        def moved(array: Array) -> Array:
            return self.ops.asarray(np.array(array, order="C"))  # a copy, as `asarray` may share the host's memory

        return replace(
            payload,
            rows=moved(payload.rows),
            arrays={name: moved(array) for name, array in payload.arrays.items()},
            shared={name: moved(array) for name, array in payload.shared.items()},
        )

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Called once, when the worker shuts down or fails to start, outside of every `scope`; the backend is not used
        later. Exceptions are logged."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        """Do `apply_bitmask` with masks given as lists of allowed or forbidden tokens, which take fewer bytes. `lists`
        and `rows` are on the host and must not change until a later download has arrived; a row may be -1. (fused)"""
        bitmask = lists.bitmask(logits.shape[1])
        return self.apply_bitmask(logits, self.ops.asarray(bitmask), self.ops.asarray(rows))

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        """Return ``float32[rows, width]``, computed in float32: `apply_bitmask` of `logits`, then `add_at` with
        ``added`` (rows, columns and finite values, each ``[m]``), then each row times its factor in ``factors``
        ``float32[rows]`` (one over the temperature, positive). -inf stays -inf. A host calls it in steps without bans
        (`Warp.added`) and never uses `logits` again. (fused)"""
        x = self.apply_bitmask(logits, bitmask, rows) + self.ops.asarray(np.zeros((1, 1), dtype=np.float32))
        if added is not None:
            x = self.ops.add_at(x, *added)
        return self.ops.scale_rows(x, self._every_row(x), factors)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        """Return ``int[rows]`` and ``float32[rows]``: the column of each row's largest logit, the first among equals,
        and that logit. Only columns below `num_tokens` count, and for the rows in `rows` only those the mask allows, as
        in `apply_bitmask`. If a logit that counts is NaN, the returned logit is NaN; if none counts, it is -inf; the
        column is then any from 0 to `num_tokens` - 1. `logits` does not change. (fused)"""
        x = self.ops.gather(logits, self._every_row(logits))
        x = self.ops.forbid_from(self.apply_bitmask(x, bitmask, rows), num_tokens)
        x = x + self.ops.asarray(np.zeros((1, 1), dtype=np.float32))
        columns = self.ops.argmax(x)
        largest = self.ops.gather(x, self._every_row(x), columns[:, None])
        # an argmax need not find NaN
        has_nan = ((x != x).sum(axis=1) > 0)[:, None]
        return columns, self.ops.where_rows(largest, self._every_row(x), has_nan, float("nan"))[:, 0]

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        """Do `masked_argmax`, but draw from each row whose temperature is not 0: among the same columns, column j with
        a probability proportional to ``exp(logits[i, j] / temperatures[i])``, by the Gumbel-max method: the column of
        the largest ``logits[i, j] / temperatures[i] - log(-log(u[i, j]))`` where u is
        ``ops.uniform(seeds, sequences, positions, purpose, width)``. The returned logit is still the row's largest.
        (fused)

        If the device declares this operation, a host always draws by this formula, so other requests in the batch do
        not change a request's draws. (Maddison, Tarlow, Minka: A* sampling, NIPS 2014; Gumbel 1954.)
        """
        ops = self.ops
        greedy, best = self.masked_argmax(logits, bitmask, rows, num_tokens)
        x = ops.gather(logits, self._every_row(logits))
        x = ops.forbid_from(self.apply_bitmask(x, bitmask, rows), num_tokens)
        x = x + ops.asarray(np.zeros((1, 1), dtype=np.float32))
        cold = draw.temperatures == 0
        x = x / (draw.temperatures + cold)[:, None]
        u = ops.uniform(draw.seeds, draw.sequences, draw.positions, draw.purpose, logits.shape[1])
        drawn = ops.argmax(x - ops.log(0 - ops.log(u)))
        every = self._every_row(logits)
        return ops.where_rows(drawn[:, None], every, cold[:, None], greedy[:, None])[:, 0], best

    def _every_row(self, x: Array) -> Array:
        return self.ops.asarray(np.arange(len(x), dtype=np.int32))
