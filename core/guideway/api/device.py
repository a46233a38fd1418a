"""Device backends: applying masks and moving arrays where the logits live.

Some operations may change the array x or `logits` they are given: `add_at`, `scale_rows`, `where_rows`, `scatter` and
`forbid_from` of `ArrayOps`, `apply_bitmask`, `apply_token_lists` and `warp_masked` of `DeviceBackend`. After these the
caller uses the RETURNED array and treats that argument as dead: libraries with mutable arrays change it in place and
return it, others return a new one. All others only read. No later call changes a result. Results of those that only
read are arrays of their own, so that nor does a change of what they were computed from; those of `asarray` and
`from_logits` may share the memory of their argument.
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
"""Methods of `DeviceBackend` that are optional: what one does can be done with the others, in more passes."""

Triples: TypeAlias = "tuple[Array, Array, Array]"


def padded_size(count: int) -> int:
    """The number of rows to which `count` rows of logits are padded for a device with `static_shapes`: the next power
    of two, at least 8."""
    return max(8, 1 << (count - 1).bit_length())


class Download(Protocol):
    """Arrays on their way from a device to the host."""

    def result(self) -> Mapping[str, NDArray[Any]]:
        """Wait for the copy and return the arrays."""
        ...


class ArrayOps(ABC):
    """The operations a transform may use to run on every device. x is ``float[rows, width]`` unless said otherwise.

    Rows and columns are counted from 0. The effect of an index outside is undefined, also on the arguments: a device
    may notice it when it has written half of what it was given, or late, at the expense of the whole step. So a
    modifier checks on the host what it looks up. An operation that raises for any other reason leaves its arguments as
    they were. Arrays may be part of another one, with gaps, and lie transposed in memory. `gather`, `scatter` and
    `where_rows` take x of integers or bools as well. Beside these
    operations ``+ - * /``, unary ``-``, comparisons, ``.reshape(...)``, ``.sum(axis=...)`` and indexing by arrays,
    slices and None mean the same in every array library.
    The NumPy implementation is the reference the others are checked against.
    """

    @abstractmethod
    def asarray(self, array: NDArray[Any]) -> Array:
        """A device array with the values of a host array, without waiting for the device. The host array has to stay
        as it is until a later download is there."""

    @abstractmethod
    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        """``x[rows[i], columns[i]] += values[i]`` for each i; pairs may repeat. Values are finite or -inf, so that -inf
        stays -inf, also where they are of float32 and larger than any number of x's type."""

    @abstractmethod
    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        """``x[rows[i]] *= factors[i]``, in float32 and rounded once; factors must be positive, so that -inf stays
        -inf."""

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
        """Elementwise natural logarithm, any shape; 0 gives -inf without a warning. A device may take numbers below
        2**-126 for 0, but none of float16."""

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
        ``((word >> 9) + 0.5) * 2**-23``, which float32 holds exactly. `seeds` is int64[m], the others int32[m], of
        which a negative number stands for the word of the same bits; `purpose` is from 0 to 2**32 - 1. The same bits
        on every device.
        (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11.)"""

    @abstractmethod
    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        """``int32[rows, words]`` to ``bool[rows, width]``; tokens past the last word are forbidden."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The values that decide the draw of each row of the logits: arrays of the device, aligned with the rows."""

    temperatures: Array
    """``float32[rows]``; 0: greedy."""
    seeds: Array
    """``int64[rows]``"""
    sequences: Array
    """``int32[rows]``"""
    positions: Array
    """``int32[rows]``"""
    purpose: int
    """With the three arrays above: where the random numbers come from, see `ArrayOps.uniform`."""


class DeviceBackend(ABC):
    """One type of device and the array library its logits come in.

    `device` is the library's own name of the device, such as ``cpu``. Where the logits are tensors of torch, a backend
    may derive from `guideway.devices.torch.device.TorchDevice` and replace what its hardware does better.
    """

    contract: ClassVar[str]
    """The version of the contract it was written for, such as ``"1.0"``: each plugin's class states its own."""
    name: ClassVar[str]
    arrays: ClassVar[str]
    """The array library of its arrays: ``numpy``, ``torch``, ``jax``, ..."""
    fused: ClassVar[frozenset[str]] = frozenset()
    """The members of `FUSED_OPERATIONS` that it implements itself. A host prefers them to the sequence of mandatory
    operations they replace, and never calls one that is not declared."""
    donates: ClassVar[bool] = False
    """True if an argument that the contract calls dead is lost once the operation returned, as buffers jax
    was given are. A host copies more then, to have a way back. Elsewhere its values are those of what is returned, or
    those it had; but the logits given to `warp_masked` may hold anything afterwards, also where it raises."""
    static_shapes: bool = False
    """True if it compiles for each shape of its arrays. A runner then pads its logits to few numbers of rows
    (`padded_size`), a host every list of rows, and dummy steps of each shape are run before the first request. May be
    set by ``__init__``."""
    ops: ArrayOps

    def __init__(self, device: str) -> None:
        self.device = device

    @classmethod
    def available(cls) -> str | None:
        """None if this backend can run here, else the reason why not. Never raises, not even where the device
        or a package is missing."""
        return None

    def scope(self) -> AbstractContextManager[object]:
        """Return the context that a host enters around its work with this device's arrays in one step, such as a
        library's switch for inference. Each step has a new one, entered in the thread of that step; steps of one
        backend may overlap in threads of their own."""
        return nullcontext()

    @abstractmethod
    def from_logits(self, logits: Array) -> Array:
        """The model's logits as an array of this backend's library, without a copy where that is possible, since they
        are this step's own.

        They are arrays of this library, NumPy arrays or, where torch is installed, tensors of torch on the CPU; in
        float16, bfloat16 (not NumPy) or float32 and with any strides: rows may have one memory, as those of ``expand``
        do, but none that overlap in part. A type that the device does not hold becomes a wider one."""

    @abstractmethod
    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        """Forbid tokens::

            for i, row in enumerate(rows):                       # rows: int[m], each at most once
                if row == -1: continue                           # padding; any number of entries may be
                for token in range(logits.shape[1]):
                    if bit `token` of bitmask[i] is 0 or past its last word: logits[row, token] = -inf

        Other rows and allowed logits keep their bits. `logits` is float16, bfloat16 or float32 ``[rows, width]``, with
        any strides. `bitmask` and `rows` are arrays of the device or both of the host (NumPy), which then stay as they
        are until a later download is there, as those of `ArrayOps.asarray`.
        """

    @abstractmethod
    def download(self, arrays: Mapping[str, Array]) -> Download:
        """Start copying small arrays to the host and return at once. The result may be read-only."""

    def upload(self, payload: Payload) -> Payload:
        """`payload` with its arrays on the device, without waiting for the device. The host's memory may change as soon
        as this returns."""

        def moved(array: Array) -> Array:
            return self.ops.asarray(np.array(array, order="C"))  # a copy, as `asarray` may share the host's memory

        return replace(
            payload,
            rows=moved(payload.rows),
            arrays={name: moved(array) for name, array in payload.arrays.items()},
            shared={name: moved(array) for name, array in payload.shared.items()},
        )

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Once, when its worker shuts down or fails to start, outside of every `scope`; it is not used later. What it
        raises is logged."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        """`apply_bitmask` of masks that are given as lists of the few tokens they allow, or refuse: fewer bytes to
        move. `lists` and `rows` are on the host, and stay as they are until a later download is there; a row may be
        -1. (fused)"""
        bitmask = lists.bitmask(logits.shape[1])
        return self.apply_bitmask(logits, self.ops.asarray(bitmask), self.ops.asarray(rows))

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        """``float32[rows, width]``: `logits` under the mask, as `apply_bitmask` does it, then with ``added``, rows,
        columns and finite values ``[m]``, then each row times ``factors`` ``float32[rows]``, which are positive (one
        over the temperature), all in float32. -inf stays -inf. A host calls it in steps without bans (`Warp.added`) and
        counts `logits` as lost. (fused)"""
        x = self.apply_bitmask(logits, bitmask, rows) + self.ops.asarray(np.zeros((1, 1), dtype=np.float32))
        if added is not None:
            x = self.ops.add_at(x, *added)
        return self.ops.scale_rows(x, self._every_row(x), factors)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        """``int[rows]`` and ``float32[rows]``: of every row of `logits` the column of the largest logit, the first of
        equals, and that logit. Considered are columns below `num_tokens`; of the rows in `rows`, as in
        `apply_bitmask`, only those the mask allows. If one considered is NaN the logit is NaN, if none is allowed it is
        -inf, and the column any from 0 to `num_tokens` - 1. `logits` itself does not change. (fused)"""
        x = self.ops.gather(logits, self._every_row(logits))
        x = self.ops.forbid_from(self.apply_bitmask(x, bitmask, rows), num_tokens)
        x = x + self.ops.asarray(np.zeros((1, 1), dtype=np.float32))
        columns = self.ops.argmax(x)
        largest = self.ops.gather(x, self._every_row(x), columns[:, None])
        # where a NaN is, an argmax need not go
        has_nan = ((x != x).sum(axis=1) > 0)[:, None]
        return columns, self.ops.where_rows(largest, self._every_row(x), has_nan, float("nan"))[:, 0]

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        """`masked_argmax`, but with a draw in each row whose temperature is not 0: among the same columns, column j
        with a probability proportional to ``exp(logits[i, j] / temperatures[i])``, by the Gumbel-max method: the
        column of the largest ``logits[i, j] / temperatures[i] - log(-log(u[i, j]))`` where u is
        ``ops.uniform(seeds, sequences, positions, purpose, width)``. The logit returned beside it is still the row's
        largest. (fused)

        A host whose device declares this draws by this formula always, so that it does not matter to a request what
        else is in the batch. (Maddison, Tarlow, Minka: A* sampling, NIPS 2014; Gumbel 1954.)
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
