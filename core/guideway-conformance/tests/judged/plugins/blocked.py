"""Attention `blocked`: packed; sequences of one length at a time, and of these a block of queries with the keys it may
see."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

from guideway.api import AttentionBackend

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 48
MOST = 1 << 20
"""About how many scores may be in memory at once."""


class Blocked(AttentionBackend):
    contract = "1.0"
    name = "blocked"
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
        import torch

        result = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        first_of: defaultdict[int, list[int]] = defaultdict(list)
        for stop, length in zip(accumulate(lengths), lengths, strict=True):
            if length:
                first_of[length].append(stop - length)
        for length, firsts in first_of.items():
            at_once = max(1, MOST // (query.shape[1] * BLOCK * length))
            for some in range(0, len(firsts), at_once):
                starts = torch.tensor(firsts[some : some + at_once], device=query.device)
                places = starts[:, None] + torch.arange(length, device=query.device)  # [sequences, length]
                self._of_one_length(query, key, value, places, result, scale, causal, window)
        return result

    def _of_one_length(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        places: Tensor,
        result: Tensor,
        scale: float,
        causal: bool,
        window: int | None,
    ) -> None:
        import torch

        heads, shared = query.shape[1], key.shape[1]
        length = places.shape[1]
        # [sequences, key heads, 1, length, dim]
        keys, values = (x[0][:, places].transpose(0, 1).unsqueeze(2).double() for x in (key, value))
        for first in range(0, length, BLOCK):
            stop = min(first + BLOCK, length)
            low = 0 if window is None else max(0, first - window + 1)
            high = length if window is None else min(length, stop + window - 1)
            if causal:
                high = stop
            queries = query[0][:, places[:, first:stop]].transpose(0, 1).double() * scale
            queries = queries.reshape(len(places), shared, heads // shared, stop - first, -1)
            scores = queries @ keys[..., low:high, :].transpose(-1, -2)
            distance = torch.arange(first, stop)[:, None] - torch.arange(low, high)
            hidden = torch.zeros_like(distance, dtype=torch.bool)
            if causal:
                hidden |= distance < 0
            if window is not None:
                hidden |= distance.abs() >= window
            scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
            mixed = scores.softmax(dim=-1) @ values[..., low:high, :]
            mixed = mixed.reshape(len(places), heads, stop - first, -1).transpose(0, 1)
            result[0, :, places[:, first:stop]] = mixed.to(result.dtype)
