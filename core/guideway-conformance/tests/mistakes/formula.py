"""Attention by its formula, one sequence after the other."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from guideway.api import ATTENTION_CAPABILITIES, AttentionBackend

if TYPE_CHECKING:
    from torch import Tensor


class Formula(AttentionBackend):
    contract = "1.0"
    name = "formula"
    layout = "packed"
    capabilities = frozenset(ATTENTION_CAPABILITIES)

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
        result = torch.empty_like(query)
        for stop, length in zip(accumulate(lengths), lengths, strict=True):
            own = slice(stop - length, stop)
            result[:, :, own] = self._alone(query[:, :, own], key[:, :, own], value[:, :, own], scale, causal, window)
        return result

    def _alone(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        """Attend within one sequence."""
        group = query.shape[1] // key.shape[1]
        keys, values = (x.float().repeat_interleave(group, dim=1) for x in (key, value))
        scores = query.float() @ keys.transpose(2, 3) * scale
        return scores.masked_fill(~self._seen(query.shape[2], causal, window), -torch.inf).softmax(dim=-1) @ values

    def _seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        """``bool[length, length]``, True where a query sees a key."""
        distance = torch.arange(length)[:, None] - torch.arange(length)
        seen = distance >= 0 if causal else distance == distance
        return seen if window is None else seen & (distance.abs() < window)
