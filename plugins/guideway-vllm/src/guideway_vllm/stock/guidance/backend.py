"""vLLM's backend ``guidance``.

If only one text can follow, it allows only the first token of the usual tokenization of that text. If no token contains
the first byte of that text, it raises an error instead of reporting a dead end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from guideway.api import GrammarExample

from guideway_vllm.stock.strategy import EXAMPLES, GRAMMARS, KINDS, StockStrategy

__all__ = ["Guidance"]


class Guidance(StockStrategy):
    """vLLM's backend ``guidance``."""

    name: ClassVar[str] = "vllm_guidance"
    backend: ClassVar[str] = "guidance"
    library: ClassVar[str | None] = "llguidance"
    kinds: ClassVar[frozenset[str]] = KINDS | GRAMMARS
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None
    examples: ClassVar[Sequence[GrammarExample]] = EXAMPLES

    def make(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> Any:
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend

        return GuidanceBackend(vllm_config, tokenizer=tokenizer, vocab_size=vocab_size)

    def validate(self, params: Any, tokenizer: Any) -> None:
        from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar

        # vLLM provides only Mistral's llguidance tokenizer here
        validate_guidance_grammar(params, tokenizer=getattr(tokenizer, "llg_tokenizer", None))

    def lacking(self, schema: Any) -> str | None:
        from vllm.v1.structured_output.backend_guidance import has_guidance_unsupported_json_features

        if has_guidance_unsupported_json_features(schema):
            return "by vLLM's own account the schema has features guidance does not support"
        return None

    def lacking_tokenizer(self, tokenizer: Any) -> str | None:
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend

        judges = getattr(GuidanceBackend, "is_tokenizer_supported", None)  # since vLLM 0.32
        if judges is not None and not judges(tokenizer):
            return f"vLLM's backend guidance does not work with a {type(tokenizer).__name__}: it needs a fast tokenizer"
        return None

    def copy_grammar(self, native: Any) -> Any:
        return replace(native, ll_matcher=native.ll_matcher.deep_copy())

    def failure(self, native: Any) -> str | None:
        matcher = native.ll_matcher
        return str(matcher.get_error()).split("<state>")[0] if matcher.is_error() else None

    def is_dead_end(self, failure: str) -> bool:
        return failure.startswith("NoExtensionBias")
