"""Attention in a packed row: sequences of equal lengths together, and for a short window only its keys."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from guideway.api import AttentionBackend, UnsupportedCapability

if TYPE_CHECKING:
    from torch import Tensor

TYPES = ("float32", "float16")
MOST_SCORES = 1 << 20
KEPT = 16


class Ragged(AttentionBackend):
    contract = "1.0"
    name = "ragged"
    layout = "packed"
    capabilities = frozenset({*TYPES, "causal", "window", "grouped_query"})

    def __init__(self) -> None:
        self.bands: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

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

        if str(query.dtype).removeprefix("torch.") not in TYPES:
            raise UnsupportedCapability(f"ragged computes in {' and '.join(TYPES)}, not in {query.dtype}")
        if window is not None and not causal:
            raise UnsupportedCapability("ragged has a window in causal attention only")
        result = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        first = 0
        for length, run in groupby(lengths):
            count = len(list(run))
            # as many sequences at once as keep the scores small
            at_once = max(1, MOST_SCORES // max(1, query.shape[1] * length * length))
            for done in range(0, count, at_once):
                number = min(at_once, count - done)
                stop = first + number * length
                parts = (x[0, :, first:stop].unflatten(1, (number, length)).float() for x in (query, key, value))
                mixed = self._together(*parts, scale=scale, causal=causal, window=window)
                result[0, :, first:stop] = mixed.flatten(1, 2).to(query.dtype)
                first = stop
        return result

    def _together(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        """Attend in sequences of one length: ``[heads, sequences, length, dim]``."""
        import torch

        length, group = query.shape[2], query.shape[0] // key.shape[0]
        key, value = (x if group == 1 else x.repeat_interleave(group, dim=0) for x in (key, value))
        queries = query * scale
        if window is not None and 2 * window < length:
            places, hidden = self._band(length, window, query.device)
            near = key[:, :, places]  # [heads, sequences, length, window, dim]
            scores = torch.einsum("hsqd,hsqwd->hsqw", queries, near).masked_fill(hidden, -torch.inf)
            return torch.einsum("hsqw,hsqwd->hsqd", scores.softmax(-1), value[:, :, places])
        scores = queries @ key.transpose(-1, -2)
        if causal:
            own = torch.arange(length, device=query.device)
            distance = own[:, None] - own
            hidden = distance < 0
            if window is not None:
                hidden = hidden | (distance >= window)
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ value

    def _band(self, length: int, window: int, device: torch.device) -> tuple[Tensor, Tensor]:  # noqa: F821
        """Return the ``window`` positions up to each position, and which of them are before the first."""
        import torch

        made = self.bands.get((length, window, device))
        if made is None:
            with torch.inference_mode(False):  # they are also used outside of it
                places = torch.arange(length, device=device)[:, None] - torch.arange(window, device=device)
                made = places.clamp(min=0), places < 0
            if len(self.bands) >= KEPT:
                self.bands.pop(next(iter(self.bands)))
            self.bands[length, window, device] = made
        return made

    def close(self) -> None:
        self.bands.clear()
