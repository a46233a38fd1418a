"""Attention of a packed row: sequences of one length go together, and long ones a block of queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from guideway.api import AttentionBackend, UnsupportedCapability

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128  # queries
TOGETHER = 1 << 22  # scores in memory at once, about


def runs(lengths: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """``start, length, count`` of every run of neighbors that have one length."""
    start = index = 0
    while index < len(lengths):
        length, count = lengths[index], 1
        while index + count < len(lengths) and lengths[index + count] == length:
            count += 1
        if length:
            yield start, length, count
        start, index = start + length * count, index + count


class SameLengths(AttentionBackend):
    contract = "1.0"
    name = "same_lengths"
    layout = "packed"
    capabilities = frozenset({"float32", "float16", "bfloat16", "causal", "window", "grouped_query"})

    def __init__(self) -> None:
        self._hidden: dict[tuple[object, ...], Tensor] = {}

    @classmethod
    def available(cls) -> str | None:
        return None if find_spec("torch") else "torch is not installed"

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

        if window is not None and not causal:
            raise UnsupportedCapability("same_lengths has no window to both sides (two_sided_window)")
        heads, total, dim = query.shape[1:]
        group = heads // key.shape[1]
        result = torch.zeros(1, heads, total, dim, dtype=query.dtype, device=query.device)
        for start, length, count in runs(lengths):
            most = max(1, TOGETHER // (heads * min(length, BLOCK) * length))
            for first in range(0, count, most):
                here = min(most, count - first)
                own = slice(start + first * length, start + (first + here) * length)
                # [sequences, key heads, group, length, dim]
                queries = query[0, :, own].reshape(key.shape[1], group, here, length, dim).permute(2, 0, 1, 3, 4)
                keys, values = (
                    x[0, :, own].reshape(key.shape[1], 1, here, length, dim).permute(2, 0, 1, 3, 4).float()
                    for x in (key, value)
                )
                mixed = torch.empty(queries.shape, dtype=query.dtype, device=query.device)
                for begin in range(0, length, BLOCK):
                    block = slice(begin, min(begin + BLOCK, length))
                    seen = slice(0 if window is None else max(0, begin - window + 1), block.stop if causal else length)
                    scores = (queries[..., block, :].float() * scale) @ keys[..., seen, :].transpose(-1, -2)
                    if causal:
                        scores = scores.masked_fill(self._mask(block, seen, window, scores.device), -torch.inf)
                    weights = self._softmax(scores)
                    mixed[..., block, :] = (weights @ values[..., seen, :]).to(query.dtype)
                result[0, :, own] = mixed.permute(1, 2, 0, 3, 4).reshape(heads, here * length, dim)
        return result

    def _mask(self, block: slice, seen: slice, window: int | None, device: object) -> Tensor:
        """``bool[block, seen]``: what a query does not see. It depends on the places only by how far they are apart."""
        import torch

        shape = block.stop - block.start, seen.stop - seen.start
        key = (*shape, block.start - seen.start, window, str(device))
        if key not in self._hidden:
            if len(self._hidden) >= 256:
                self._hidden.clear()
            places = torch.arange(block.start, block.stop, device=device)[:, None]
            distance = places - torch.arange(seen.start, seen.stop, device=device)
            hidden = distance < 0
            self._hidden[key] = hidden if window is None else hidden | (distance >= window)
        return self._hidden[key]

    @staticmethod
    def _softmax(scores: Tensor) -> Tensor:
        largest = scores.amax(dim=-1, keepdim=True)  # every query sees itself
        weights = (scores - largest).exp_()
        return weights.div_(weights.sum(dim=-1, keepdim=True))

    def close(self) -> None:
        self._hidden.clear()
