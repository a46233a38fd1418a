"""The Triton device: torch tensors on a GPU, masked and sampled by single-pass kernels."""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from guideway.api import Draw, InvalidConfiguration, Payload, TokenLists
from guideway.devices.torch.device import TorchDevice, TorchOps
from numpy.typing import NDArray
from torch import Tensor

from guideway_triton.copies import Copier

__all__ = ["TritonDevice", "TritonOps"]


class TritonOps(TorchOps):
    """torch's operations, except copies to the device and random numbers."""

    def __init__(self, device: torch.device, copier: Copier, launches: ModuleType) -> None:
        super().__init__(device)
        self._copier, self._launches = copier, launches

    def asarray(self, array: NDArray[Any]) -> Tensor:
        return self._copier.upload({"array": np.asarray(array)})["array"]

    def uniform(self, seeds: Tensor, sequences: Tensor, positions: Tensor, purpose: int, width: int) -> Tensor:
        numbers: Tensor = self._launches.uniform(seeds, sequences, positions, purpose, width)
        return numbers


class TritonDevice(TorchDevice):
    """Device backend for torch tensors on the CUDA or ROCm device `device`; on ``cpu`` in Triton's interpreter, for
    tests."""

    contract = "1.0"
    name = "triton"
    fused = frozenset({"apply_token_lists", "masked_argmax", "masked_sample", "warp_masked"})

    def __init__(self, device: str = "cuda") -> None:
        reason = self.available()
        if reason is not None:
            raise InvalidConfiguration(f"device backend {self.name!r} cannot run here: {reason}", field="device")
        super().__init__(device)
        # imported late: the module decorates kernels at import, which a device that cannot run does not need
        from guideway_triton import launches

        if self._device.type != "cuda" and not (self._device.type == "cpu" and launches.INTERPRETED):
            raise InvalidConfiguration(
                f"device backend {self.name!r} runs on 'cuda' (CUDA or ROCm), not on {device!r}; on 'cpu' only in "
                "Triton's interpreter, which is for tests: set TRITON_INTERPRET=1 before the program starts",
                field="device",
            )
        self._launches: ModuleType = launches
        self._copier = Copier(self._device)
        self.ops = TritonOps(self._device, self._copier, launches)

    @classmethod
    def available(cls) -> str | None:
        if find_spec("triton") is None:
            return "Triton is not installed; its packages are for Linux: pip install triton"
        if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET", "").lower() not in ("1", "on", "true"):
            return "torch finds no CUDA or ROCm device, and TRITON_INTERPRET=1 is not set, which runs it on the CPU"
        return None

    def upload(self, payload: Payload) -> Payload:
        """Copy all arrays of the payload in one transfer from pinned memory, on a separate stream."""
        named = {("rows", ""): payload.rows}
        named |= {("arrays", name): array for name, array in payload.arrays.items()}
        named |= {("shared", name): array for name, array in payload.shared.items()}
        there = self._copier.upload({name: np.asarray(array) for name, array in named.items()})
        return Payload(
            rows=there["rows", ""],
            arrays={name: there["arrays", name] for name in payload.arrays},
            shared={name: there["shared", name] for name in payload.shared},
        )

    def apply_bitmask(self, logits: Tensor, bitmask: Any, rows: Any) -> Tensor:
        self._launches.forbid(logits, *self._to_device(bitmask, rows))
        return logits

    def apply_token_lists(self, logits: Tensor, lists: TokenLists, rows: NDArray[np.int32]) -> Tensor:
        there = self._copier.upload(
            {
                "offsets": lists.offsets,
                "token_ids": lists.token_ids,
                "allow": lists.allow.astype(np.int32),
                "rows": np.asarray(rows),
            }
        )
        self._launches.forbid_lists(logits, *there.values())
        return logits

    def warp_masked(
        self, logits: Tensor, bitmask: Any, rows: Any, added: tuple[Tensor, Tensor, Tensor] | None, factors: Tensor
    ) -> Tensor:
        if added is not None:  # before the mask, which must also forbid tokens with additions
            logits = self.ops.add_at(logits.float(), *added)
        warped: Tensor = self._launches.warp(logits, *self._to_device(bitmask, rows), factors)
        return warped

    def masked_argmax(self, logits: Tensor, bitmask: Any, rows: Any, num_tokens: int) -> tuple[Tensor, Tensor]:
        chosen: tuple[Tensor, Tensor] = self._launches.choose(logits, *self._to_device(bitmask, rows), num_tokens, None)
        return chosen

    def masked_sample(
        self, logits: Tensor, bitmask: Any, rows: Any, num_tokens: int, draw: Draw
    ) -> tuple[Tensor, Tensor]:
        chosen: tuple[Tensor, Tensor] = self._launches.choose(logits, *self._to_device(bitmask, rows), num_tokens, draw)
        return chosen

    def _to_device(self, bitmask: Any, rows: Any) -> tuple[Tensor, Tensor]:
        """Return a mask and its rows on the device; they must be both on the device already, or both on the host."""
        if isinstance(bitmask, Tensor):
            return bitmask, rows
        there = self._copier.upload({"bitmask": np.asarray(bitmask), "rows": np.asarray(rows)})
        return there["bitmask"], there["rows"]
