"""Attention with a running softmax: no more than one block of scores is in memory. A padded row for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import AttentionBackend

if TYPE_CHECKING:
    from torch import Tensor

QUERIES = 32
KEYS = 48


class Online(AttentionBackend):
    contract = "1.0"
    name = "online"
    layout = "padded"

    @classmethod
    def available(cls) -> str | None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            return f"torch is not installed: {error}"
        return None

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

        heads, key_heads = query.shape[1], key.shape[1]
        group = heads // key_heads
        result = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        for row, length in enumerate(lengths):
            keys, values = key[row, :, :length].float(), value[row, :, :length].float()
            for first in range(0, length, QUERIES):
                stop = min(first + QUERIES, length)
                # [key heads, query heads that share one, places, dim]
                queries = query[row, :, first:stop].float().unflatten(0, (key_heads, group)) * scale
                own = torch.arange(first, stop, device=query.device)[:, None]
                least = 0 if window is None else max(0, first - window + 1)
                most = stop if causal else length if window is None else min(length, stop + window - 1)
                largest = queries.new_full((*queries.shape[:3], 1), -torch.inf)
                total = torch.zeros_like(largest)
                mixed = torch.zeros_like(queries)
                for block in range(least, most, KEYS):
                    end = min(block + KEYS, most)
                    scores = queries @ keys[:, None, block:end].transpose(2, 3)
                    distance = own - torch.arange(block, end, device=query.device)
                    if causal:
                        scores = scores.masked_fill(distance < 0, -torch.inf)
                    if window is not None:
                        scores = scores.masked_fill(distance.abs() >= window, -torch.inf)
                    highest = torch.maximum(largest, scores.amax(3, keepdim=True))
                    base = highest.masked_fill(highest == -torch.inf, 0)  # nothing seen as yet
                    weights, kept = (scores - base).exp(), total * (largest - base).exp()
                    total = kept + weights.sum(3, keepdim=True)
                    share = total.clamp(min=torch.finfo(torch.float32).tiny)
                    # divided at once: a sum of many large values could be more than float32 holds
                    mixed = mixed * (kept / share) + (weights / share) @ values[:, None, block:end]
                    largest = highest
                result[row, :, first:stop] = mixed.flatten(0, 1).to(query.dtype)
        return result
