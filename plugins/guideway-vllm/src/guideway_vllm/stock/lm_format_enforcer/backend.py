"""vLLM's backend ``lm-format-enforcer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar

from guideway.api import PluginUnavailable, Vocabulary, Whitespace

from guideway_vllm.stock.strategy import KINDS, StockStrategy

__all__ = ["LmFormatEnforcer"]


class LmFormatEnforcer(StockStrategy):
    """vLLM's backend ``lm-format-enforcer``. It does not work in vLLM 0.32, which lacks the tokenizer module that the
    library imports."""

    name: ClassVar[str] = "vllm_lm_format_enforcer"
    backend: ClassVar[str] = "lm-format-enforcer"
    kinds: ClassVar[frozenset[str]] = KINDS
    # it allows white space before and after the value
    whitespace: ClassVar[Sequence[Whitespace]] = ()
    limits = MappingProxyType({"alternatives": 200, "properties": 300, "nested_stars": 1})

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

    def copy_grammar(self, native: Any) -> Any:
        return replace(native, current_tokens_prefix=list(native.current_tokens_prefix))
