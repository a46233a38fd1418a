"""vLLM's four backends, each as a grammar strategy.

What vLLM itself would refuse for a backend is refused here, by vLLM's own functions and with their reason; the next
strategy is then tried for that request, and only for that one. What vLLM would let pass and the backend drop is named,
from a table of what it does. Where a backend falls short of the contract, it does so here:

* xgrammar takes special tokens for the text of their names. In JSON, regular expressions and choices they are closed
  here; in grammars and structural tags, where they may be meant, they are not;
* where only one text can follow, guidance allows only the first token of its usual tokenization; and where no token of
  the vocabulary has a byte of that text, its request fails rather than meets a dead end;
* outlines cannot fork, and rolls back 32 tokens: for more the host replays. Of alternatives it takes the first that
  fits (``a|ab`` is ``a``), and some tokens that hold part of a character it takes for another text.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from guideway.api import Example, Grammar, PluginUnavailable, Vocabulary

from guideway_vllm.stock.strategy import StockStrategy

__all__ = ["STRATEGIES"]

LISTS = {
    "ebnf": 'root ::= "[" (number ("," number)*)? "]"\nnumber ::= [0-9]+',
    "lark": 'start: "[" (NUMBER ("," NUMBER)*)? "]"\nNUMBER: /[0-9]+/',
}
EXAMPLES: Sequence[Example] = tuple(
    Example(Grammar(text, dialect), (b"[]", b"[1,22,3]"), (b"[", b"[1,]", b"[01,x]", b""))
    for dialect, text in LISTS.items()
)
KINDS = frozenset({"json_schema", "json_object", "regex", "choice"})
GRAMMARS = frozenset({"grammar:ebnf", "grammar:lark", "structural_tag"})


class Xgrammar(StockStrategy):
    """vLLM's backend ``xgrammar``."""

    name: ClassVar[str] = "vllm_xgrammar"
    backend: ClassVar[str] = "xgrammar"
    kinds: ClassVar[frozenset[str]] = KINDS | GRAMMARS
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None
    examples: ClassVar[Sequence[Example]] = EXAMPLES

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
        return None

    def copied(self, native: Any) -> Any:
        return replace(native, matcher=native.matcher.fork())

    def nbytes(self, native: Any, spec: str) -> int:
        return int(native.ctx.memory_size_bytes)


class Guidance(StockStrategy):
    """vLLM's backend ``guidance``."""

    name: ClassVar[str] = "vllm_guidance"
    backend: ClassVar[str] = "guidance"
    kinds: ClassVar[frozenset[str]] = KINDS | GRAMMARS
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None
    examples: ClassVar[Sequence[Example]] = EXAMPLES

    def make(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> Any:
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend

        return GuidanceBackend(vllm_config, tokenizer=tokenizer, vocab_size=vocab_size)

    def validate(self, params: Any, tokenizer: Any) -> None:
        from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar

        # of llguidance's tokenizers, vLLM has only Mistral's at hand here
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

    def copied(self, native: Any) -> Any:
        return replace(native, ll_matcher=native.ll_matcher.deep_copy())

    def failure(self, native: Any) -> str | None:
        matcher = native.ll_matcher
        return str(matcher.get_error()).split("<state>")[0] if matcher.is_error() else None

    def is_dead_end(self, failure: str) -> bool:
        return failure.startswith("NoExtensionBias")


class Outlines(StockStrategy):
    """vLLM's backend ``outlines``."""

    name: ClassVar[str] = "vllm_outlines"
    backend: ClassVar[str] = "outlines"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "regex", "choice"})
    enforced: ClassVar[frozenset[str]] = frozenset({"type", "enum", "const", "properties", "required", "maxLength"})
    max_rollback: ClassVar[int | None] = 32

    def make(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> Any:
        from vllm.v1.structured_output.backend_outlines import OutlinesBackend

        backend = OutlinesBackend(vllm_config, tokenizer=tokenizer, vocab_size=vocab_size)
        backend.cache = _Last()
        return backend

    def validate(self, params: Any, tokenizer: Any) -> None:
        from vllm.v1.structured_output.backend_outlines import validate_structured_output_request_outlines

        validate_structured_output_request_outlines(params)

    def copied(self, native: Any) -> Any:
        guide = import_module("outlines_core").Guide
        return replace(native, guide=guide(native.index, max_rollback=self.max_rollback))

    def _compile(self, kind: str, params: Any) -> tuple[Any, str]:
        native, spec = super()._compile(kind, params)
        native.index = self._backend().cache.index  # a guide does not give away what it was made of
        return native, spec


class _Last(threading.local):
    """In place of the backend's cache, which is not made for several threads and which the host has one of: what this
    thread compiled last."""

    def __init__(self) -> None:
        self.index: Any = None

    def __contains__(self, key: object) -> bool:
        return False

    def __setitem__(self, key: str, index: Any) -> None:
        self.index = index


class LmFormatEnforcer(StockStrategy):
    """vLLM's backend ``lm-format-enforcer``, where it works: not in vLLM 0.32, whose tokenizer module the library looks
    for in vain."""

    name: ClassVar[str] = "vllm_lm_format_enforcer"
    backend: ClassVar[str] = "lm-format-enforcer"
    kinds: ClassVar[frozenset[str]] = KINDS

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        try:
            import_module("lmformatenforcer.integrations.vllm")
        except Exception as error:
            import vllm

            raise PluginUnavailable(
                f"vLLM's backend lm-format-enforcer does not work in vLLM {vllm.__version__}: the installed "
                f"lm-format-enforcer cannot be imported there ({error.__cause__ or error.__context__ or error}); use "
                "the strategy 'lmfe' of guideway-lmfe",
                plugin=f"grammar.{self.name}",
            ) from error

    def make(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> Any:
        from vllm.v1.structured_output.backend_lm_format_enforcer import LMFormatEnforcerBackend

        return LMFormatEnforcerBackend(vllm_config, tokenizer=tokenizer, vocab_size=vocab_size)

    def validate(self, params: Any, tokenizer: Any) -> None:
        from vllm.v1.structured_output.backend_lm_format_enforcer import (
            validate_structured_output_request_lm_format_enforcer,
        )

        validate_structured_output_request_lm_format_enforcer(params)

    def copied(self, native: Any) -> Any:
        return replace(native, current_tokens_prefix=list(native.current_tokens_prefix))


STRATEGIES: dict[str, type[StockStrategy]] = {cls.name: cls for cls in (Xgrammar, Guidance, Outlines, LmFormatEnforcer)}
"""By name."""
