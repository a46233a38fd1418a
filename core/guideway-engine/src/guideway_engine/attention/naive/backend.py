"""The formula of the contract, one sequence after the other: the reference for the other backends."""

from __future__ import annotations

from itertools import accumulate

import torch
from guideway.api.attention import AttentionBackend
from torch import Tensor

__all__ = ["NaiveAttention"]


class NaiveAttention(AttentionBackend):
    """Slow and short. Computes in float32 for all data types."""

    contract = "1.0"
    name = "naive"
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
        """Attend sequence by sequence, computing all scores."""
        group = query.shape[1] // key.shape[1]
        keys, values = (x.float().repeat_interleave(group, dim=1) for x in (key, value))
        result = torch.empty_like(query)
        for stop, length in zip(accumulate(lengths), lengths, strict=True):
            own = slice(stop - length, stop)
            scores = query[:, :, own].float() @ keys[:, :, own].transpose(2, 3) * scale
            distance = torch.arange(length, device=query.device)
            distance = distance[:, None] - distance  # positive if the key is before its query
            seen = distance >= 0 if causal else distance == distance
            if window is not None:
                seen = seen & (distance.abs() < window)
            result[:, :, own] = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ values[:, :, own]
        return result
