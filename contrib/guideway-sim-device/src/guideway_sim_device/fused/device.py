"""The simulated device with its own kernels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from guideway.api import Array, Draw, padded_size
from guideway.api.bitmask import TokenLists
from guideway.api.device import FUSED_OPERATIONS
from numpy.typing import NDArray

from guideway_sim_device.sim.device import REFERENCE, SimDevice

__all__ = ["FusedSimDevice"]

Host = NDArray[Any]


class FusedSimDevice(SimDevice):
    """An accelerator that has kernels for all fused operations, too."""

    name = "sim_fused"
    fused: ClassVar[frozenset[str]] = frozenset(FUSED_OPERATIONS)

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        num_ids = len(lists.token_ids)
        token_ids = np.zeros(padded_size(num_ids), dtype=np.int32)
        token_ids[:num_ids] = lists.token_ids

        def work(logits: Host, offsets: Host, token_ids: Host, allow: Host, rows: Host) -> Array:
            return REFERENCE.apply_token_lists(logits, TokenLists(offsets, token_ids[: offsets[-1]], allow), rows)

        operands = [self.ops.asarray(array) for array in (lists.offsets, token_ids, lists.allow, rows)]
        return self.machine.compute("apply_token_lists", work, logits, *operands, donates=True)

    def warp_masked(
        self, logits: Array, bitmask: Array, rows: Array, added: tuple[Array, Array, Array] | None, factors: Array
    ) -> Array:
        def work(logits: Host, bitmask: Host, rows: Host, factors: Host, *added: Any) -> Array:
            return REFERENCE.warp_masked(logits, bitmask, rows, added or None, factors)

        operands = *self.on_device(bitmask, rows), factors, *(added or ())
        return self.machine.compute("warp_masked", work, logits, *operands, donates=True)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        def work(logits: Host, bitmask: Host, rows: Host) -> tuple[Host, Host]:
            columns, best = REFERENCE.masked_argmax(logits, bitmask, rows, num_tokens)
            return columns.astype(np.int32), best

        operands = self.on_device(bitmask, rows)
        columns, best = self.machine.launch("masked_argmax", work, logits, *operands, static=(num_tokens,))
        return columns, best

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        def work(logits: Host, bitmask: Host, rows: Host, *decides: Any) -> tuple[Host, Host]:
            temperatures, seeds, sequences, positions = decides
            here = Draw(temperatures, seeds, sequences, positions, draw.purpose)
            columns, best = REFERENCE.masked_sample(logits, bitmask, rows, num_tokens, here)
            return columns.astype(np.int32), best

        decides = draw.temperatures, draw.seeds, draw.sequences, draw.positions
        operands = *self.on_device(bitmask, rows), *decides
        columns, best = self.machine.launch("masked_sample", work, logits, *operands, static=(num_tokens,))
        return columns, best
