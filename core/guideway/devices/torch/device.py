"""The torch device: logits in torch tensors on any torch device, without custom kernels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from guideway.api import InvalidConfiguration
from guideway.api import bitmask as bits
from guideway.api.device import ArrayOps, DeviceBackend, Download
from guideway.api.steps import Array
from guideway.devices.numpy.device import Downloaded
from guideway.devices.philox import WORD, multiply_64, philox4x32
from guideway.devices.torch.mask import can_forbid, forbid

__all__ = ["TorchDevice", "TorchOps"]

BLOCK = 512
"""Weights per block. A draw finds the block by its sum, then the weight within it."""


class TorchOps(ArrayOps):
    """Every operation on torch tensors, in place where the contract allows it. Draws need float64 on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def asarray(self, array: NDArray[Any]) -> Tensor:
        # torch warns about read-only memory and refuses negative strides, which even a contiguous array may have
        if not array.flags.writeable or not array.flags.c_contiguous or min(array.strides, default=0) < 0:
            array = array.copy()
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def add_at(self, x: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        if x.dtype.itemsize < values.dtype.itemsize:  # a value out of range would become inf, and inf + -inf is NaN
            most = torch.finfo(x.dtype).max
            values = torch.where(values.isinf(), values, values.clamp(-most, most))
        return x.index_put_((rows.long(), columns.long()), values.to(x.dtype), accumulate=True)

    def scale_rows(self, x: Tensor, rows: Tensor, factors: Tensor) -> Tensor:
        rows = rows.long()
        return x.index_copy_(0, rows, (x[rows] * factors[:, None]).to(x.dtype))  # factors may exceed float16's range

    def where_rows(self, x: Tensor, rows: Tensor, condition: Tensor | bool, values: Array) -> Tensor:
        rows = rows.long()
        # The device fills in a Python scalar; copying it to the device would wait.
        if isinstance(condition, bool):
            condition = torch.full((), condition, device=x.device)
        values = values.to(x.dtype) if isinstance(values, Tensor) else x.new_full((), values)
        return x.index_copy_(0, rows, torch.where(condition, values, x[rows]))

    def gather(self, x: Tensor, rows: Tensor, columns: Tensor | None = None) -> Tensor:
        rows = rows.long()
        return x[rows] if columns is None else x[rows[:, None], columns.long()]

    def scatter(self, x: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        return x.index_put_((rows.long()[:, None], columns.long()), values.to(x.dtype))

    def cumsum(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, dim=1, dtype=torch.promote_types(x.dtype, torch.float32))

    def forbid_from(self, x: Tensor, column: int) -> Tensor:
        x[:, column:] = -torch.inf
        return x

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def log(self, x: Tensor) -> Tensor:
        return torch.log(x)

    def log_softmax(self, x: Tensor) -> Tensor:
        return torch.log_softmax(x, dim=1, dtype=torch.promote_types(x.dtype, torch.float32))

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if k == x.shape[1] and x.device.type == "cpu" and x.dtype == torch.float32:
            # A full sort, as top-p needs; NumPy's takes a fifth of the time of torch's on one core.
            columns = torch.from_numpy(np.argsort(-x.numpy(), axis=1))
            return x.gather(1, columns), columns
        values, columns = torch.topk(x, k, dim=1)
        return values, columns

    def argmax(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.dtype == torch.float32:
            return torch.from_numpy(x.numpy().argmax(axis=1))  # a tenth of the time of torch's on one core
        return torch.argmax(x, dim=1)

    def categorical(self, logprobs: Tensor, uniforms: Tensor) -> Tensor:
        # float64 sums of a whole row would take as long as a small model: sum blocks, then search in one
        rows, width = logprobs.shape
        # softmax and not exp, which on a CPU takes four times as long if most of a row is -inf
        weights = torch.softmax(logprobs, dim=1, dtype=torch.promote_types(logprobs.dtype, torch.float32))
        if width % BLOCK:
            weights = torch.nn.functional.pad(weights, (0, -width % BLOCK))
        blocks = weights.view(rows, -1, BLOCK)
        sums = blocks.sum(dim=2).double()
        target = uniforms * sums.sum(dim=1)
        block, before = _first_past(sums, target)
        within = blocks[torch.arange(rows, device=block.device), block].double()
        column, _ = _first_past(within, target - before)
        return (block * BLOCK + column).clamp_(max=width - 1)  # NaN weights give a column past the end

    def uniform(self, seeds: Tensor, sequences: Tensor, positions: Tensor, purpose: int, width: int) -> Tensor:
        seeds, sequences, positions = (a.long()[:, None] for a in (seeds, sequences, positions))
        blocks = torch.arange(-(-width // 4), device=seeds.device)[None, :]
        counter = (blocks, positions & WORD, sequences & WORD, purpose & WORD)
        block = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
        words = torch.stack(block, dim=2).reshape(len(seeds), 4 * blocks.numel())[:, :width]
        return ((words >> 9).float() + 0.5) * 2**-23

    def unpack_bitmask(self, bitmask: Tensor, width: int) -> Tensor:
        # As bytes, which torch shifts fastest; its devices are all little-endian. The clone has the strides of a
        # contiguous tensor even if it is empty.
        words = bitmask[:, : bits.num_words(width)].clone(memory_format=torch.contiguous_format)
        as_bytes = words.view(torch.uint8)
        shifts = torch.arange(8, dtype=torch.uint8, device=bitmask.device)
        allowed = ((as_bytes[:, :, None] >> shifts) & 1).view(torch.bool).flatten(1)[:, :width]
        return torch.nn.functional.pad(allowed, (0, width - allowed.shape[1]))


def _first_past(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each row the first column at which the running sum of weights exceeds `target`, or else the last
    column with a positive weight; and the sum of the weights before it."""
    cumulative = weights.cumsum(dim=1)
    # A parallel sum may not be monotonic because of rounding, so only columns with a positive weight count.
    past = (cumulative > target[:, None]) & (weights > 0)
    last = weights.shape[1] - 1 - torch.argmax((weights > 0).flip(1).byte(), dim=1)
    column = torch.where(past.any(dim=1), torch.argmax(past.byte(), dim=1), last)
    before = (cumulative - weights).gather(1, column[:, None])[:, 0]
    return column, before


@dataclass(frozen=True, slots=True)
class _Copying:
    """A `Download` whose copies run in the device's stream until `event`."""

    tensors: Mapping[str, Tensor]
    event: torch.Event

    def result(self) -> Mapping[str, NDArray[Any]]:
        self.event.synchronize()
        return {name: tensor.numpy() for name, tensor in self.tensors.items()}


class TorchDevice(DeviceBackend):
    """torch tensors on one torch device."""

    contract = "1.0"
    name = "torch"
    arrays = "torch"
    ops: TorchOps

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            self._device = torch.empty(0, device=device).device
        except (AssertionError, RuntimeError) as error:  # torch raises either, depending on how it was built
            hint = "; write 'cuda', as torch names it" if device.partition(":")[0].lower() == "gpu" else ""
            raise InvalidConfiguration(
                f"torch cannot use the device {device!r}{hint}: {error}", field="device"
            ) from error
        self.ops = TorchOps(self._device)

    def scope(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def from_logits(self, logits: Array) -> Tensor:
        """Return `logits` itself if it is a tensor on this device whose rows do not share memory, else a copy; NumPy
        arrays on the CPU are shared."""
        if isinstance(logits, np.ndarray):
            return self.ops.asarray(logits)
        if not isinstance(logits, Tensor):
            logits = from_dlpack(logits).clone()  # the other library's arrays may be immutable
        tensor: Tensor = logits.detach().to(self._device)
        # rows that share memory, as after `expand`, cannot be masked separately
        return tensor.clone(memory_format=torch.contiguous_format) if 0 in tensor.stride() else tensor

    def apply_bitmask(self, logits: Tensor, bitmask: Array, rows: Array) -> Tensor:
        if can_forbid(logits):
            return forbid(logits, np.asarray(bitmask), np.asarray(rows))
        bitmask, rows = (self.ops.asarray(a) if isinstance(a, np.ndarray) else a for a in (bitmask, rows))
        num_rows, width = logits.shape
        # -1 addresses an extra last row, so the host need not wait to learn which entries are padding.
        forbidden = torch.zeros((num_rows + 1, width), dtype=torch.bool, device=logits.device)
        forbidden.index_copy_(0, rows.long() % (num_rows + 1), ~self.ops.unpack_bitmask(bitmask, width))
        return logits.masked_fill_(forbidden[:num_rows], -torch.inf)

    def download(self, arrays: Mapping[str, Tensor]) -> Download:
        # NumPy has no bfloat16; float32 holds the same values.
        plain = {name: a.detach().float() if a.dtype == torch.bfloat16 else a.detach() for name, a in arrays.items()}
        if self._device.type == "cpu":
            return Downloaded({name: np.array(tensor.numpy()) for name, tensor in plain.items()})
        copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in plain.items()}
        event = torch.Event(self._device)
        event.record()
        return _Copying(copies, event)
