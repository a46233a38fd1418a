"""Two attention backends: a block of keys at a time (Milakov and Gimelshein, 2018), and rows of one length together."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from guideway.api import AttentionBackend, UnsupportedCapability

BLOCK = 16


class Stream(AttentionBackend):
    contract = "1.0"
    name = "stream"
    layout = "packed"

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Any:
        group = query.shape[1] // key.shape[1]
        result = torch.empty_like(query)
        for stop, length in zip(accumulate(lengths), lengths, strict=True):
            own = slice(stop - length, stop)
            queries = query[0, :, own].float() * scale
            sums = queries.new_zeros(*queries.shape[:2], 1)
            largest = torch.full_like(sums, torch.finfo(sums.dtype).min)  # finite: a block may show nothing
            mixed = torch.zeros_like(queries)
            for first in range(stop - length, stop, BLOCK):
                block = slice(first, min(first + BLOCK, stop))
                keys, values = (x[0, :, block].float().repeat_interleave(group, dim=0) for x in (key, value))
                scores = queries @ keys.transpose(1, 2)
                distance = torch.arange(length)[:, None] - torch.arange(keys.shape[1]) - (first - own.start)
                hidden = distance < 0 if causal else distance != distance
                if window is not None:
                    hidden = hidden | (distance.abs() >= window)
                scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
                highest = largest.maximum(scores.amax(dim=2, keepdim=True))
                weights, kept = (scores - highest).exp(), (largest - highest).exp()
                mixed = mixed * kept + weights @ values
                sums = sums * kept + weights.sum(dim=2, keepdim=True)
                largest = highest
            result[0, :, own] = (mixed / sums).to(query.dtype)
        return result


class Rows(AttentionBackend):
    """A row for each sequence, in float32, without windows."""

    contract = "1.0"
    name = "rows"
    layout = "padded"
    capabilities = frozenset({"float32", "float16", "bfloat16", "causal", "grouped_query"})

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Any:
        if window is not None:
            raise UnsupportedCapability("rows has no windows", field="window")
        if not lengths or not query.shape[2]:
            return torch.empty_like(query)
        group = query.shape[1] // key.shape[1]
        keys, values = (x.float().repeat_interleave(group, dim=1) for x in (key, value))
        scores = (query.float() * scale) @ keys.transpose(2, 3)
        place = torch.arange(query.shape[2], device=query.device)
        past = place[None, :] >= torch.tensor(lengths, device=query.device)[:, None]
        hidden = past[:, None, None, :]
        if causal:
            hidden = hidden | (place[None, :] > place[:, None])
        scores = scores.masked_fill(hidden, -1e38).softmax(dim=3)
        return (scores @ values).to(query.dtype)
