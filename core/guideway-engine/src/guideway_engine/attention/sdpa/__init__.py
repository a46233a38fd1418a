"""The component ``attention.sdpa``: torch's SDPA on padded rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.attention import AttentionBackend


@hookimpl
def guideway_attention_backend() -> type[AttentionBackend]:
    from guideway_engine.attention.sdpa.backend import SdpaAttention

    return SdpaAttention
