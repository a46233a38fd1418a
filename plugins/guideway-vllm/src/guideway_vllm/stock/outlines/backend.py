"""vLLM's backend ``outlines``.

It cannot fork, and rolls back at most 32 tokens; the host replays beyond that. Of alternatives it uses the first that
matches (``a|ab`` is ``a``), and it confuses some tokens that hold part of a character with other text.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar

from guideway_vllm.stock.strategy import StockStrategy

__all__ = ["Outlines"]


class Outlines(StockStrategy):
    """vLLM's backend ``outlines``."""

    name: ClassVar[str] = "vllm_outlines"
    backend: ClassVar[str] = "outlines"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "regex", "choice"})
    enforced: ClassVar[frozenset[str]] = frozenset({"type", "enum", "const", "properties", "required", "maxLength"})
    max_rollback: ClassVar[int | None] = 32
    # its index is not bounded
    limits = MappingProxyType({"alternatives": 300, "enum": 300, "literals": 4000, "expanded": 1000, "stars": 50})

    def make(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> Any:
        from vllm.v1.structured_output.backend_outlines import OutlinesBackend

        backend = OutlinesBackend(vllm_config, tokenizer=tokenizer, vocab_size=vocab_size)
        backend.cache = _Last()
        return backend

    def validate(self, params: Any, tokenizer: Any) -> None:
        from vllm.v1.structured_output.backend_outlines import validate_structured_output_request_outlines

        validate_structured_output_request_outlines(params)

    def copy_grammar(self, native: Any) -> Any:
        guide = import_module("outlines_core").Guide
        return replace(native, guide=guide(native.index, max_rollback=self.max_rollback))

    def _compile(self, kind: str, params: Any) -> tuple[Any, str]:
        native, spec = super()._compile(kind, params)
        native.index = self._backend().cache.index  # a guide does not expose its index
        return native, spec


class _Last(threading.local):
    """Replaces the backend's cache, which is not thread-safe and which guideway's cache makes redundant. It keeps the
    index that this thread compiled last."""

    def __init__(self) -> None:
        self.index: Any = None

    def __contains__(self, key: object) -> bool:
        return False

    def __setitem__(self, key: str, index: Any) -> None:
        self.index = index
