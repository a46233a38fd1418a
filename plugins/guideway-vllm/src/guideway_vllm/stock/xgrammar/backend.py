"""vLLM's backend ``xgrammar``.

It accepts special tokens for the text of their names. In JSON, regular expressions and choices they are masked here; in
grammars and structural tags, where they may be intended, they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from guideway.api import GrammarExample, Whitespace
from guideway.json_schema import IN_PLACE_APPLICATORS, hides_names, subschemas

from guideway_vllm.stock.strategy import EXAMPLES, GRAMMARS, KINDS, StockStrategy

__all__ = ["Xgrammar"]


class Xgrammar(StockStrategy):
    """vLLM's backend ``xgrammar``."""

    name: ClassVar[str] = "vllm_xgrammar"
    backend: ClassVar[str] = "xgrammar"
    library: ClassVar[str | None] = "xgrammar"
    kinds: ClassVar[frozenset[str]] = KINDS | GRAMMARS
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None
    # enum values are always compact, so spaces cannot be required there
    whitespace: ClassVar[Sequence[Whitespace]] = ("bounded", "compact", "any")
    limits = MappingProxyType({"strings": 640, "properties": 600, "stars": 150})
    examples: ClassVar[Sequence[GrammarExample]] = EXAMPLES

    def make(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> Any:
        from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

        return XgrammarBackend(vllm_config, tokenizer=tokenizer, vocab_size=vocab_size)

    def validate(self, params: Any, tokenizer: Any) -> None:
        from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

        validate_xgrammar_grammar(params)

    def lacking(self, schema: Any) -> str | None:
        from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

        if has_xgrammar_unsupported_json_features(schema):
            return "by vLLM's own account the schema has features xgrammar does not support"
        for pointer, node in subschemas(schema):
            names = node.get("propertyNames") if isinstance(node, dict) else None
            values = [*names.get("enum", ()), names.get("const", "")] if isinstance(names, dict) else []
            is_known = not (isinstance(names, dict) and names.keys() & IN_PLACE_APPLICATORS)
            if not (is_known and all(isinstance(value, str) for value in values)):
                return f"{pointer}/propertyNames: xgrammar may write values that are no strings as names"
            if hides_names(node):
                return f"{pointer}/properties: xgrammar takes names beyond ASCII for additional ones as well"
        return None

    def copy_grammar(self, native: Any) -> Any:
        return replace(native, matcher=native.matcher.fork())

    def nbytes(self, native: Any, spec: str) -> int:
        return int(native.ctx.memory_size_bytes)
