"""torch's SDPA on padded rows, with a mask if the rows differ in length."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
from guideway.api.attention import AttentionBackend
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["SdpaAttention"]

MASKED_ON_CUDA = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels for masked attention. Excludes cuDNN, which torch prefers on Hopper since 2.11: on an H200, in float16 and
bfloat16, it attended to masked keys where scores are about 10^4 (pytorch#196678 reports another score that its mask
does not hide)."""


class SdpaAttention(AttentionBackend):
    """``torch.nn.functional.scaled_dot_product_attention``, called once for all sequences."""

    contract = "1.0"
    name = "sdpa"
    layout = "padded"

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
        """Attend in one call. Keys past a row's length are masked, unless they follow every query that is read."""
        length = query.shape[2]
        if not query.numel():
            return torch.empty_like(query)
        if window is not None and window >= length:
            window = None
        mask = None
        if window is not None or (not causal and min(lengths) < length):
            mask = _mask(lengths, length, causal, window, query.device)
        with _kernels(query, mask):
            return scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                is_causal=causal and mask is None,
                scale=scale,
                enable_gqa=query.shape[1] > key.shape[1],
            )


def _kernels(query: Tensor, mask: Tensor | None) -> AbstractContextManager[object]:
    """Return a context that selects the kernels. torch's switches are process-wide: concurrent calls of other threads
    get the same results, but may be slower."""
    return nullcontext() if mask is None or query.device.type != "cuda" else sdpa_kernel(MASKED_ON_CUDA)


@lru_cache(maxsize=4)  # the layers of a model need only one or two, again and again
def _mask(lengths: tuple[int, ...], length: int, causal: bool, window: int | None, device: torch.device) -> Tensor:
    """Return ``bool[sequences, 1, 1 or length, length]``, True where a query sees a key."""
    with torch.inference_mode(False):  # the cached mask outlives the caller's mode
        places = torch.arange(length, device=device)
        mask = (places < torch.tensor(lengths, device=device)[:, None])[:, None, None]
        distance = places[:, None] - places
        if causal:
            mask = mask & (distance >= 0)
        if window is not None:
            mask = mask & (distance.abs() < window)
        return mask
