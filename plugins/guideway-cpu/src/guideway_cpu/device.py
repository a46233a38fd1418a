"""The CPU device: torch tensors in the host's memory, masked by compiled loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from guideway.api import Array, InvalidConfiguration
from guideway.builtin.torch_device import TorchDevice
from torch import Tensor

from guideway_cpu.kernels import argmax_kernel, forbid_kernel
from guideway_cpu.threads import in_threads

__all__ = ["CpuDevice"]

INFINITY = {torch.float32: 0x7F800000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""The bits of infinity, by dtype of the logits."""
WORTH_A_THREAD = 1 << 20
"""So many bytes of logits are worth waking a thread."""


class CpuDevice(TorchDevice):
    """torch tensors on ``cpu``. A mask costs what it writes: words that allow all of their tokens nothing, runs of
    words that allow none one fill each.

    The loops are compiled, or loaded from numba's cache, when a device is made. As many threads as
    ``torch.get_num_threads()`` share the rows, where there is enough to do for them.
    """

    name = "cpu"
    fused = frozenset({"masked_argmax"})

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise InvalidConfiguration(
                f"device backend {self.name!r} runs on 'cpu' only; for {device!r} take the backend 'torch'",
                field="device",
            )
        super().__init__(device)
        self._forbid, self._argmax = forbid_kernel(), argmax_kernel()

    def apply_bitmask(self, logits: Tensor, bitmask: Array, rows: Array) -> Tensor:
        size, (num_rows, width), (row_step, step) = logits.element_size(), logits.shape, logits.stride()
        words, chosen = _masks(bitmask, len(rows)), _integers(rows)
        arguments = (
            logits.data_ptr(), num_rows, size * row_step, size * step, width, *_memory(words),
            _address(chosen), chosen.itemsize,
        )  # fmt: skip
        forbidden = INFINITY[logits.dtype] - (1 << 8 * size - 1)

        def work(first: int, every: int) -> None:
            self._forbid(*arguments, first, len(chosen), every, size, forbidden)

        _share(work, len(chosen), size * width)
        return logits

    def masked_argmax(self, logits: Tensor, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Tensor, Tensor]:
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        size, num_rows = logits.element_size(), len(logits)
        words = _masks(bitmask, len(rows))
        masks = np.full(num_rows + 1, -1, dtype=np.int64)
        masks[np.asarray(rows)] = np.arange(len(rows))  # a row of -1 is the one past the last
        columns, best = torch.from_numpy(masks)[:-1], torch.empty(num_rows, dtype=logits.dtype)
        arguments = logits.data_ptr(), size * logits.stride(0), num_tokens, *_memory(words), columns.data_ptr()

        def work(first: int, every: int) -> None:
            self._argmax(*arguments, first, num_rows, every, best.data_ptr(), INFINITY[logits.dtype], size)

        _share(work, num_rows, size * num_tokens)
        return columns, best.float()


def _masks(bitmask: Array, count: int) -> Array:
    """`bitmask` with the words of each row side by side."""
    if len(bitmask) < count:
        raise ValueError(f"there are {count} rows to mask, but only {len(bitmask)} masks")
    if isinstance(bitmask, np.ndarray):
        return bitmask if bitmask.strides[1] == bitmask.itemsize else np.ascontiguousarray(bitmask)
    return bitmask if bitmask.stride(1) == 1 else bitmask.contiguous()


def _memory(words: Array) -> tuple[int, int, int]:
    """Where the first row is, how far the next is from it, and how many words each has."""
    steps = words.strides[0] if isinstance(words, np.ndarray) else words.stride(0) * words.itemsize
    return _address(words), steps, words.shape[1]


def _address(array: Array) -> int:
    address: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()
    return address


def _integers(rows: Array) -> Array:
    """`rows` as int32 or int64, one beside the other."""
    if isinstance(rows, np.ndarray):
        return np.ascontiguousarray(rows if rows.itemsize >= 4 else rows.astype(np.int64))
    return (rows if rows.itemsize >= 4 else rows.long()).contiguous()


def _share(work: Callable[[int, int], None], num_rows: int, size: int) -> None:
    """``work(first, every)`` for all rows, of `size` bytes each, in as many threads as pay."""
    count = min(torch.get_num_threads(), num_rows, num_rows * size // WORTH_A_THREAD)
    if count > 1:
        in_threads(count, work)
    else:
        work(0, 1)
