"""The component ``attention.packed``: torch's SDPA, on sequences of one length at a time, without padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.attention import AttentionBackend


@hookimpl
def guideway_attention_backend() -> type[AttentionBackend]:
    from guideway_engine.attention.packed.backend import PackedAttention

    return PackedAttention
