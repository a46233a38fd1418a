"""Attention `rowwise`: padded; one product for all sequences under a mask, which is kept for the layers that follow."""

from __future__ import annotations

from collections import OrderedDict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from guideway.api import AttentionBackend, UnsupportedCapability

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 8
MOST = 1 << 22
"""About how many scores may be in memory at once."""


class Rowwise(AttentionBackend):
    contract = "1.0"
    name = "rowwise"
    layout = "padded"
    capabilities = frozenset({"float32", "float16", "causal", "window", "grouped_query"})
    devices = frozenset({"cpu"})

    def __init__(self) -> None:
        self.masks: OrderedDict[Any, Tensor] = OrderedDict()

    @classmethod
    def available(cls) -> str | None:
        return None if find_spec("torch") else "torch is not installed"

    def _hidden(self, lengths: tuple[int, ...], length: int, causal: bool, window: int | None) -> Tensor:
        """``bool[sequences, length, length]``: what a place does not see. A place always sees itself, so that padding
        has something to look at."""
        import torch

        key = (lengths, length, causal, window)
        if key in self.masks:
            self.masks.move_to_end(key)
            return self.masks[key]
        at = torch.arange(length)
        distance = at[:, None] - at
        hidden = (at >= torch.tensor(lengths, dtype=torch.int64)[:, None])[:, None, :].expand(-1, length, -1).clone()
        if causal:
            hidden |= distance < 0
        if window is not None:
            hidden |= distance.abs() >= window
        hidden &= distance != 0
        self.masks[key] = hidden
        while len(self.masks) > KEPT:
            self.masks.popitem(last=False)
        return hidden

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Tensor:
        import torch

        dtype = str(query.dtype).removeprefix("torch.")
        if dtype not in self.capabilities:
            raise UnsupportedCapability(f"rowwise attends in float32 and float16, not in {dtype}")
        if window is not None and not causal:
            raise UnsupportedCapability("rowwise has no window to both sides")
        sequences, heads, length, dim = query.shape
        result = torch.empty((sequences, heads, length, dim), dtype=query.dtype)
        if not sequences or not length:
            return result
        shared = key.shape[1]
        at_once = max(1, MOST // (heads * length * length))
        # products of float16 fit into float32, those of float32 into float64
        exact = torch.float32 if query.dtype == torch.float16 else torch.float64
        hidden = self._hidden(lengths, length, causal, window)
        for first in range(0, sequences, at_once):
            some = slice(first, first + at_once)
            queries = query[some].to(exact).reshape(-1, shared, heads // shared, length, dim) * scale
            keys, values = (x[some].to(exact)[:, :, None] for x in (key, value))
            scores = queries @ keys.transpose(-1, -2)
            scores.masked_fill_(hidden[some, None, None], -torch.inf)
            mixed = scores.softmax(dim=-1) @ values
            result[some] = mixed.reshape(-1, heads, length, dim).to(result.dtype)
        return result

    def close(self) -> None:
        self.masks.clear()
