"""Copies between the host and the device that run beside the work of the current stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from guideway.api import Download
from guideway.devices.numpy.device import Downloaded
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Copier"]

Key = TypeVar("Key")

ALIGNMENT = 16
"""Bytes: what each array of an upload begins at, for the kernels' widest access."""


@dataclass(frozen=True, slots=True)
class _Copying:
    """A `Download` whose copies are done when `event` is."""

    tensors: Mapping[str, Tensor]
    event: torch.cuda.Event

    def result(self) -> Mapping[str, NDArray[Any]]:
        self.event.synchronize()
        return {name: tensor.numpy() for name, tensor in self.tensors.items()}


class Copier:
    """Uploads and downloads in a stream of their own.

    Host memory on the way is pinned and comes from torch's cache, which hands a piece out again once the copies from it
    are done: after warm-up nothing is allocated, and nobody waits, however many uploads are under way.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def upload(self, arrays: Mapping[Key, NDArray[Any]]) -> dict[Key, Tensor]:
        """Copies on the device, in one transfer. The arrays may change as soon as this returns."""
        starts, size = {}, 0
        for name, array in arrays.items():
            starts[name] = size
            size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        staged = torch.empty(size, dtype=torch.uint8, pin_memory=self._stream is not None)
        memory = staged.numpy()
        for name, array in arrays.items():
            part = memory[starts[name] : starts[name] + array.nbytes]
            part.view(array.dtype).reshape(array.shape)[...] = array
        there = staged if self._stream is None else self._sent(staged, self._stream)
        return {
            name: there[starts[name] : starts[name] + array.nbytes].view(_dtype(array)).view(array.shape)
            for name, array in arrays.items()
        }

    def _sent(self, staged: Tensor, stream: torch.cuda.Stream) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(stream):
            there = staged.to(self._device, non_blocking=True)
        current.wait_stream(stream)
        there.record_stream(current)  # it belongs to the other stream, which must not reuse it before this one is done
        return there

    def download(self, tensors: Mapping[str, Tensor]) -> Download:
        """Copies on the host of what the arrays are now: the caller may overwrite them."""
        # NumPy has no bfloat16; float32 holds the same values
        taken = {
            name: tensor.detach().to(
                torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype,
                copy=True,
                memory_format=torch.contiguous_format,
            )
            for name, tensor in tensors.items()
        }
        if self._stream is None:
            return Downloaded({name: tensor.numpy() for name, tensor in taken.items()})
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in taken.items()}
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        for tensor in taken.values():
            tensor.record_stream(self._stream)
        return _Copying(copies, event)


def _dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
