"""torch's SDPA without padding: each run of sequences of one length is a rectangular view of the row.

No data is copied to build the views. With a window, long sequences are split into blocks of queries, so that the work
is linear in the length and not quadratic.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

import torch
from guideway.api.attention import AttentionBackend
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["PackedAttention"]

MIN_BLOCK = 64
"""Minimum number of queries of a separate call."""


class PackedAttention(AttentionBackend):
    """``torch.nn.functional.scaled_dot_product_attention``, called once for each run of equal lengths."""

    contract = "1.0"
    name = "packed"
    layout = "packed"

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
        """Attend run by run; the results are joined as ``[total, heads, dim]``, which the next layer can use without a
        copy."""
        rows = [x[0].transpose(0, 1) for x in (query, key, value)]
        pieces: list[Tensor] = []
        start = 0
        for length, run in groupby(lengths):
            count = sum(1 for _ in run)
            stop = start + count * length
            if start == stop:
                continue
            q, k, v = (x[start:stop].view(count, length, *x.shape[1:]).transpose(1, 2) for x in rows)
            pieces.append(_attend(q, k, v, scale, causal, window).transpose(1, 2).flatten(0, 1))
            start = stop
        if not pieces:
            return torch.empty_like(query)
        return torch.cat(pieces).transpose(0, 1).unsqueeze(0)


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None) -> Tensor:
    """Return ``[sequences, heads, length, dim]`` from arguments of the same shape, all sequences having that length."""
    length, grouped = query.shape[2], query.shape[1] > key.shape[1]
    if window is None or window >= length:
        return scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale, enable_gqa=grouped)
    size = max(window, MIN_BLOCK)
    blocks: list[Tensor] = []
    for first in range(0, length, size):
        stop = min(first + size, length)
        first_key = max(0, first - window + 1)
        stop_key = stop if causal else min(length, stop + window - 1)
        mask = _mask(stop - first, stop_key - first_key, first - first_key, causal, window, query.device)
        keys, values = key[:, :, first_key:stop_key], value[:, :, first_key:stop_key]
        blocks.append(
            scaled_dot_product_attention(
                query[:, :, first:stop], keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
            )
        )
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)


@lru_cache(maxsize=64)
def _mask(queries: int, keys: int, offset: int, causal: bool, window: int, device: torch.device) -> Tensor:
    """Return ``bool[queries, keys]``, True where a query sees a key; the first query is `offset` positions after the
    first key."""
    with torch.inference_mode(False):  # the cached mask outlives the caller's mode
        distance = torch.arange(queries, device=device)[:, None] + offset - torch.arange(keys, device=device)
        seen = distance.abs() < window
        return seen & (distance >= 0) if causal else seen
