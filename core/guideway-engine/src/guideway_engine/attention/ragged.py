"""The attention calls of one forward pass over a ragged row, computed by a backend in its layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from guideway.api.attention import AttentionBackend
from torch import Tensor

__all__ = ["RaggedStep", "Sight"]

MAX_WASTE = 1.25
"""Sequences share a padded call while the longest is at most this many times as long as the shortest."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Positions visible to an attention call, see `guideway.api.AttentionBackend.attend`."""

    causal: bool
    window: int | None


@dataclass(slots=True)
class RaggedStep:
    """Handles the attention calls of one forward pass (`guideway_engine.attention.interface.AttentionStep`).

    The calls must come in the same order as when the model was probed: a layer may be called more than once, for
    example if layers share their weights.
    """

    backend: AttentionBackend
    sights: Sequence[Sight]
    """Visible positions of each call."""
    lengths: tuple[int, ...]
    """Lengths of the sequences in the row, in order."""
    calls: int = field(default=0, init=False)

    def attend(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: dict[str, Any],
    ) -> Tensor:
        """Return ``[1, total, heads, dim]`` from ``[1, heads or key heads, total, dim]``."""
        sight = self.sights[self.calls]
        self.calls += 1
        scaling = options.get("scaling")
        scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
        if self.backend.layout == "packed":
            result = self._call(query, key, value, self.lengths, scale, sight)
            return result.transpose(1, 2)
        pieces = []
        for run, start, stop in _runs(self.lengths):
            padded = [_pad(x[0, :, start:stop], run) for x in (query, key, value)]
            result = self._call(padded[0], padded[1], padded[2], run, scale, sight)
            pieces.append(_unpad(result, run))
        return torch.cat(pieces).unsqueeze(0)

    def _call(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float, sight: Sight
    ) -> Tensor:
        result: Tensor = self.backend.attend(
            query, key, value, lengths=lengths, scale=scale, causal=sight.causal, window=sight.window
        )
        return result


def _runs(lengths: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield groups of neighbors that share a call: their lengths, and the positions where they start and stop."""
    first = start = stop = 0
    for i, length in enumerate(lengths):
        run = lengths[first : i + 1]
        if max(run[0], length) > MAX_WASTE * min(run[0], length):
            yield lengths[first:i], start, stop
            first, start = i, stop
        stop += length
    yield lengths[first:], start, stop


def _pad(row: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return ``[sequences, heads, length, dim]``, padded with zeros, from ``[heads, tokens, dim]``."""
    longest = max(lengths)
    if min(lengths) == longest:
        return row.view(row.shape[0], len(lengths), longest, row.shape[2]).transpose(0, 1)
    padded = row.new_zeros(len(lengths), longest, row.shape[0], row.shape[2])
    padded[_places(lengths, longest, row.device)] = row.transpose(0, 1)
    return padded.transpose(1, 2)


def _unpad(result: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return ``[tokens, heads, dim]`` from ``[sequences, heads, length, dim]``."""
    rows = result.transpose(1, 2)
    longest = max(lengths)
    return rows.flatten(0, 1) if min(lengths) == longest else rows[_places(lengths, longest, result.device)]


def _places(lengths: tuple[int, ...], longest: int, device: torch.device) -> Tensor:
    """Return ``bool[sequences, length]``, True where there is a token."""
    return torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
