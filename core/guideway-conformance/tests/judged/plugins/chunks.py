"""Packed attention by chunks: of a window's band only those chunks of keys are multiplied that a chunk of queries sees.
Neighbors of one length are one batch."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from guideway.api import AttentionBackend, UnsupportedCapability

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 32


class Chunks(AttentionBackend):
    contract = "1.0"
    name = "chunks"
    layout = "packed"
    capabilities = frozenset({"float32", "bfloat16", "causal", "window", "two_sided_window", "grouped_query"})

    def __init__(self) -> None:
        self._bands: dict[tuple[object, ...], Tensor] = {}

    def _band(self, offset: int, rows: int, columns: int, causal: bool, window: int | None, device: object) -> Tensor:
        """Mark what a chunk of `rows` queries does not see of `columns` keys, the first query being `offset` after the
        first key."""
        import torch

        name = (offset, rows, columns, causal, window, device)
        if name not in self._bands:
            before = torch.arange(rows, device=device)[:, None] + offset - torch.arange(columns, device=device)
            hidden = before < 0 if causal else torch.zeros_like(before, dtype=torch.bool)
            if window is not None:
                hidden |= before.abs() >= window
            if len(self._bands) >= 256:
                self._bands.pop(next(iter(self._bands)))
            self._bands[name] = hidden
        return self._bands[name]

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

        if query.dtype not in (torch.float32, torch.bfloat16):
            raise UnsupportedCapability(f"attention 'chunks' has no {query.dtype}")
        result = torch.empty_like(query, memory_format=torch.contiguous_format)
        start = 0
        for length, same in groupby(lengths):
            count = len(list(same))
            stop = start + count * length
            if length:
                own = [x[0, :, start:stop].unflatten(1, (count, length)).transpose(0, 1) for x in (query, key, value)]
                mixed = self._alike(*own, scale=scale, causal=causal, window=window)
                result[0, :, start:stop] = mixed.transpose(0, 1).flatten(1, 2)
            start = stop
        return result

    def _alike(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        """Sequences of one length: ``[count, heads, length, dim]``."""
        import torch

        count, heads, length, dim = query.shape
        group = heads // key.shape[1]
        result = torch.empty((count, heads, length, dim), dtype=query.dtype, device=query.device)
        reach = length if window is None else window - 1
        for first in range(0, length, CHUNK):
            last = min(first + CHUNK, length)
            # keys from whole chunks on, so that there are few different bands
            low = max(0, first - reach) // CHUNK * CHUNK
            high = last if causal else min(length, last + reach)
            queries = query[:, :, first:last].float() * scale
            queries = queries.reshape(count, key.shape[1], group * (last - first), dim)
            keys, values = key[:, :, low:high].float(), value[:, :, low:high].float()
            scores = queries @ keys.transpose(2, 3)
            hidden = self._band(first - low, last - first, high - low, causal, window, query.device)
            scores = scores.unflatten(2, (group, last - first)).masked_fill(hidden, -torch.inf)
            scores = scores - scores.amax(dim=-1, keepdim=True)
            weights = scores.exp()
            weights = weights / weights.sum(dim=-1, keepdim=True)
            mixed = weights.flatten(2, 3) @ values
            result[:, :, first:last] = mixed.unflatten(2, (group, last - first)).flatten(1, 2).to(query.dtype)
        return result

    def close(self) -> None:
        self._bands.clear()
