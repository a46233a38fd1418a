"""The CPU device: torch tensors in the host's memory, masked by compiled loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from guideway.api import Array, InvalidConfiguration
from guideway.devices.torch.device import TorchDevice
from torch import Tensor

from guideway_cpu.kernels import argmax_kernel, choose_kernel, forbid_kernel
from guideway_cpu.threads import in_threads

__all__ = ["CpuDevice"]

INFINITY = {torch.float32: 0x7F800000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Bits of infinity, by dtype of the logits."""
WORDS = frozenset({torch.int32, np.dtype(np.int32)})
"""Dtypes of a bitmask."""
NUMBERS = frozenset({torch.int32, torch.int64, np.dtype(np.int32), np.dtype(np.int64)})
"""Dtypes of rows that the kernels read in place; other integers are copied."""
WORTH_A_THREAD = 16 << 20
"""Bytes of logits per thread. Measured: below 32 MiB in all, two threads are slower than one."""


class CpuDevice(TorchDevice):
    """Device backend for torch tensors on ``cpu``. A mask costs as much as it writes: words that allow all their
    tokens cost nothing, and a run of words that allow none costs one fill.

    The loops are compiled, or loaded from numba's cache, when a device is constructed. Up to
    ``torch.get_num_threads()`` threads share the rows of a large batch.
    """

    contract = "1.0"
    name = "cpu"
    fused = frozenset({"masked_argmax"})

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise InvalidConfiguration(
                f"device backend {self.name!r} runs on 'cpu' only; for {device!r} take the backend 'torch'",
                field="device",
            )
        super().__init__(device)
        self._forbid, self._choose, self._argmax = forbid_kernel(), choose_kernel(), argmax_kernel()

    def apply_bitmask(self, logits: Tensor, bitmask: Array, rows: Array) -> Tensor:
        """Raise IndexError for a row that the logits do not have, ValueError for fewer masks than rows, and TypeError
        for another dtype; the logits are unchanged then."""
        infinity, rows = _infinity(logits), _numbers(rows)
        start, (num_rows, width), (row_step, step), size = _layout(logits)
        chosen, (count,), (chosen_step,), row_size = _layout(rows)
        bitmask, words, num_words, mask_step = _masks(bitmask, count)
        forbidden = infinity - (1 << 8 * size - 1)

        def work(first: int, every: int, _kept: object = (logits, bitmask, rows)) -> None:
            self._forbid(
                start, num_rows, row_step, step, width, words, mask_step, num_words,
                chosen, chosen_step, row_size, first, count, every, size, forbidden,
            )  # fmt: skip

        _share(work, count, size * width)
        return logits

    def masked_argmax(self, logits: Tensor, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Raise the errors of `apply_bitmask`, and ValueError for more tokens than the logits have columns."""
        infinity, rows = _infinity(logits), _numbers(rows)
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        start, (num_rows, width), (row_step, _), size = _layout(logits)
        if not 0 <= num_tokens <= width:
            raise ValueError(f"num_tokens must be at most {width}, the width of the logits, not {num_tokens}")
        chosen, (count,), (chosen_step,), row_size = _layout(rows)
        bitmask, words, num_words, mask_step = _masks(bitmask, count)
        columns, best = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=logits.dtype)
        found, values = columns.data_ptr(), best.data_ptr()
        self._choose(chosen, chosen_step, row_size, count, found, num_rows)

        def work(first: int, every: int, _kept: object = (logits, bitmask, columns, best)) -> None:
            self._argmax(
                start, row_step, num_tokens, words, mask_step, num_words,
                found, first, num_rows, every, values, infinity, size,
            )  # fmt: skip

        _share(work, num_rows, size * num_tokens)
        return columns, best.float()


def _infinity(logits: Array) -> int:
    """Return the bits of infinity in the dtype of `logits`."""
    infinity = INFINITY.get(logits.dtype)
    if infinity is None:
        raise TypeError(f"logits must be one of {', '.join(map(str, INFINITY))}, not {logits.dtype}")
    return infinity


def _numbers(rows: Array) -> Array:
    """Return `rows`, converted to int64 if they are integers of another dtype than `NUMBERS`."""
    if rows.dtype in NUMBERS:
        return rows
    numbers = np.asarray(rows)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"rows must be integers, not {rows.dtype}")
    return numbers.astype(np.int64)


def _layout(array: Array) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Return the address, shape, strides and item size of an array; strides and size in bytes."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data, array.shape, array.strides, array.itemsize
    size = array.element_size()
    return array.data_ptr(), array.shape, tuple([size * step for step in array.stride()]), size


def _masks(bitmask: Array, count: int) -> tuple[Array, int, int, int]:
    """Return `bitmask` with contiguous rows, its address, the words per row and the bytes between rows. The address is
    valid while the returned array is referenced."""
    if bitmask.dtype not in WORDS:
        raise TypeError(f"a bitmask must be of int32, not {bitmask.dtype}")
    address, (num_masks, num_words), (step, word_step), size = _layout(bitmask)
    if num_masks < count:
        raise ValueError(f"there are {count} rows to mask, but only {num_masks} masks")
    if word_step != size:
        bitmask = np.ascontiguousarray(bitmask)
        address, _, (step, _), _ = _layout(bitmask)
    return bitmask, address, num_words, step


def _share(work: Callable[[int, int], None], num_rows: int, size: int) -> None:
    """Run ``work(first, every)`` for all rows, of `size` bytes each, in as many threads as pay off. `work` must
    reference the arrays whose addresses it has: if an interrupt strikes while threads start, a thread may outlast this
    call."""
    count = min(torch.get_num_threads(), num_rows, num_rows * size // WORTH_A_THREAD)
    if count > 1:
        in_threads(count, work)
    else:
        work(0, 1)
