"""The NumPy device as one class, with fused operations, and with arrays that can be of bfloat16."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from guideway.api.bitmask import TokenLists
from guideway.api.device import FUSED_OPERATIONS, Draw
from guideway.api.steps import Array
from guideway.devices.numpy.device import NumpyDevice, NumpyOps
from numpy.typing import NDArray

Triples: TypeAlias = tuple[Array, Array, Array]


class Whole(NumpyDevice, NumpyOps):
    """A NumPy device that is also its operations, so that a mistake is one method."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ops = self

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        """Apply without `unpack_bitmask`, so that a mistake in one is not one in the other."""
        allowed = allowed_tokens(bitmask, logits.shape[1])
        for i, row in enumerate(rows):
            if row != -1:
                logits[row, ~allowed[i]] = -np.inf
        return logits


class Fused(Whole):
    """A device that declares fused operations; they are the default ones."""

    fused = frozenset(FUSED_OPERATIONS)

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        return super().apply_token_lists(logits, lists, rows)

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        return super().warp_masked(logits, bitmask, rows, added, factors)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        return super().masked_argmax(logits, bitmask, rows, num_tokens)

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        return super().masked_sample(logits, bitmask, rows, num_tokens, draw)


def allowed_tokens(bitmask: Array, width: int) -> NDArray[np.bool_]:
    """Return what `ArrayOps.unpack_bitmask` has to return."""
    tokens = np.arange(width)
    words = np.pad(bitmask, ((0, 0), (0, max(0, width // 32 + 1 - bitmask.shape[1]))))
    allowed: NDArray[np.bool_] = (words[:, tokens // 32] >> (tokens % 32) & 1).astype(np.bool_)
    return allowed


class Tensor(np.ndarray[Any, Any]):
    """A NumPy array with the cast torch tensors have."""

    def bfloat16(self) -> BFloat16:
        return (self.view(np.ndarray).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).view(BFloat16)


class BFloat16(Tensor):
    """Values of bfloat16, held in float32."""


class Tensors(Whole):
    """A device with arrays of a library that has bfloat16."""

    arrays = "torch"

    def asarray(self, array: NDArray[Any]) -> Array:
        return array.view(Tensor)

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, Tensor):
            return logits if logits.flags.writeable else logits.copy()
        return super().from_logits(logits).view(Tensor)


class Plugin(Whole):
    pass
