"""torch's flex attention on padded rows: the mask is a function of query and key positions.

When compiled, it skips blocks that no query sees. On a GPU, compiling takes some seconds for each new layout, data type
or kind of mask. On a CPU it is not compiled and computes all scores: torch 2.13 would compile for a few seconds for
each new shape, and fails with dynamic shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import torch
from guideway.api.attention import AttentionBackend
from torch import Tensor

__all__ = ["FlexAttention"]


class FlexAttention(AttentionBackend):
    """``torch.nn.attention.flex_attention``."""

    contract = "1.0"
    name = "flex"
    layout = "padded"

    @classmethod
    def available(cls) -> str | None:
        """Return why torch has no flex attention; None if it has (since 2.5)."""
        try:
            import torch.nn.attention.flex_attention
        except ImportError:
            return f"torch {torch.__version__} has no flex attention"
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
        """Attend in one call. Queries past their row's length get unspecified results, which are ignored."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        count, _, length, _ = query.shape
        if not query.numel():
            return torch.empty_like(query)
        ends = torch.tensor(lengths, device=query.device)

        def sees(sequence: Tensor, head: Tensor, place: Tensor, other: Tensor) -> Tensor:  # noqa: ARG001
            seen = other < ends[sequence]
            if causal:
                seen = seen & (other <= place)
            return seen if window is None else seen & ((place - other).abs() < window)

        mask = create_block_mask(sees, count, None, length, length, device=str(query.device))
        grouped = query.shape[1] > key.shape[1]
        run = self._compiled if query.device.type != "cpu" else cast("Callable[..., Any]", flex_attention)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*called without torch.compile")
            result: Tensor = run(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
        return result

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        from torch.nn.attention.flex_attention import flex_attention

        compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
        return compiled
