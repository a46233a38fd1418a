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
        start, (num_rows, width), (row_step, step), size = _layout(logits)
        chosen, (count,), (chosen_step,), row_size = _layout(rows)
        if row_size < 4:
            return self.apply_bitmask(logits, bitmask, np.array(rows, dtype=np.int64))
        _kept, words, num_words, mask_step = _masks(bitmask, count)
        forbidden = INFINITY[logits.dtype] - (1 << 8 * size - 1)

        def work(first: int, every: int) -> None:
            self._forbid(
                start, num_rows, row_step, step, width, words, mask_step, num_words,
                chosen, chosen_step, row_size, first, count, every, size, forbidden,
            )  # fmt: skip

        _share(work, count, size * width)
        return logits

    def masked_argmax(self, logits: Tensor, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Tensor, Tensor]:
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        start, (num_rows, _), (row_step, _), size = _layout(logits)
        _kept, words, num_words, mask_step = _masks(bitmask, len(rows))
        masks = np.full(num_rows + 1, -1, dtype=np.int64)
        masks[np.asarray(rows)] = np.arange(len(rows))  # a row of -1 is the one past the last
        columns, best = torch.from_numpy(masks)[:-1], torch.empty(num_rows, dtype=logits.dtype)
        found, values, infinity = columns.data_ptr(), best.data_ptr(), INFINITY[logits.dtype]

        def work(first: int, every: int) -> None:
            self._argmax(
                start, row_step, num_tokens, words, mask_step, num_words,
                found, first, num_rows, every, values, infinity, size,
            )  # fmt: skip

        _share(work, num_rows, size * num_tokens)
        return columns, best.float()


def _layout(array: Array) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Address, shape, steps and size of an element, in bytes."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data, array.shape, array.strides, array.itemsize
    size = array.element_size()
    return array.data_ptr(), array.shape, tuple([size * step for step in array.stride()]), size


def _masks(bitmask: Array, count: int) -> tuple[Array, int, int, int]:
    """An array in which each row is in one piece, its address, the words of a row and the step to the next. The address
    is good while the array is kept."""
    address, (num_masks, num_words), (step, word_step), size = _layout(bitmask)
    if num_masks < count:
        raise ValueError(f"there are {count} rows to mask, but only {num_masks} masks")
    if word_step != size:
        bitmask = np.ascontiguousarray(bitmask)
        address, _, (step, _), _ = _layout(bitmask)
    return bitmask, address, num_words, step


def _share(work: Callable[[int, int], None], num_rows: int, size: int) -> None:
    """``work(first, every)`` for all rows, of `size` bytes each, in as many threads as pay."""
    count = min(torch.get_num_threads(), num_rows, num_rows * size // WORTH_A_THREAD)
    if count > 1:
        in_threads(count, work)
    else:
        work(0, 1)
