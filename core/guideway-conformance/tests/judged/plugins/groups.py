"""Padded attention by einsum: query heads that share a key head are one more axis, so no key is ever repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import AttentionBackend, UnsupportedCapability

if TYPE_CHECKING:
    from torch import Tensor

BUDGET = 1 << 22
"""The most scores that are in memory at a time."""


class Groups(AttentionBackend):
    contract = "1.0"
    name = "groups"
    layout = "padded"
    capabilities = frozenset({"float32", "float16", "bfloat16", "causal", "window", "grouped_query"})

    def __init__(self) -> None:
        self._hidden: dict[tuple[object, ...], Tensor] = {}

    @classmethod
    def available(cls) -> str | None:
        try:
            import torch  # noqa: F401
        except ImportError:
            return "torch is not installed"
        return None

    def _check(self, query: Tensor, key: Tensor, causal: bool, window: int | None) -> None:
        needs = {str(query.dtype).removeprefix("torch.")}
        if causal:
            needs.add("causal")
        if window is not None:
            needs.add("window" if causal else "two_sided_window")
        if query.shape[1] != key.shape[1]:
            needs.add("grouped_query")
        if missing := sorted(needs - self.capabilities):
            raise UnsupportedCapability(f"attention 'groups' has no {', '.join(missing)}")

    def _out_of_sight(self, length: int, causal: bool, window: int | None, device: object) -> Tensor:
        """``bool[length, length]``: which places a place does not see, were all of them its own."""
        import torch

        key = (length, causal, window, device)
        if key not in self._hidden:
            if len(self._hidden) > 32:
                self._hidden.clear()
            places = torch.arange(length, device=device)
            distance = places[:, None] - places
            hidden = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
            if window is not None:
                hidden = hidden | (distance >= window)
            self._hidden[key] = hidden
        return self._hidden[key]

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

        self._check(query, key, causal, window)
        result = torch.zeros_like(query, memory_format=torch.contiguous_format)
        sequences, heads, longest, dim = query.shape
        if not sequences or not longest:
            return result
        shared = key.shape[1]
        grouped = query.float().reshape(sequences, shared, heads // shared, longest, dim) * scale
        keys, values = key.float(), value.float()
        count = torch.tensor(lengths, device=query.device)
        beyond = torch.arange(longest, device=query.device) >= count[:, None]
        hidden = self._out_of_sight(longest, causal, window, query.device)

        at_once = max(1, BUDGET // (heads * longest * longest))
        for first in range(0, sequences, at_once):
            part = slice(first, first + at_once)
            scores = torch.einsum("skgqd,sktd->skgqt", grouped[part], keys[part])
            unseen = hidden | beyond[part, None, None, None, :]
            scores = scores.masked_fill(unseen, -torch.inf)
            # a place of padding may see nothing, and gives NaN that nobody reads
            weights = scores.softmax(dim=-1)
            mixed = torch.einsum("skgqt,sktd->skgqd", weights, values[part])
            result[part] = mixed.reshape(-1, heads, longest, dim).to(query.dtype)
        return result

    def close(self) -> None:
        self._hidden.clear()
