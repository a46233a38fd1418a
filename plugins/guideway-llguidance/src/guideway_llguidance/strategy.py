"""llguidance as a grammar strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from guideway.api import (
    Constraint,
    GrammarStrategy,
    InvalidGrammar,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    parse_options,
)
from llguidance import LLMatcher

from guideway_llguidance.matcher import MAX_MESSAGE, LlguidanceCompiled
from guideway_llguidance.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


@dataclass(frozen=True)
class Options:
    """What an operator may set under ``[grammar.llguidance]``."""

    whitespace: Literal["any", "compact", "spaced"] = "any"
    """Between JSON tokens: any whitespace, none, or one space after each comma and colon."""


class Strategy(GrammarStrategy):
    """One `LLTokenizer` for all grammars; each is parsed once and copied for every matcher."""

    name: ClassVar[str] = "llguidance"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "json_object", "regex", "choice", "grammar:lark"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork", "forced_tokens"})
    max_rollback: ClassVar[int | None] = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        whitespace = parse_options(Options, options, where="grammar.llguidance").whitespace
        self._json_options: JsonCompileOptions = {
            "whitespace_flexible": whitespace == "any",
            "item_separator": ", " if whitespace == "spaced" else ",",
            "key_separator": ": " if whitespace == "spaced" else ":",
            "coerce_one_of": False,
            "lenient": False,
        }
        self._tokenizer, self._eos_token_id = build_tokenizer(vocabulary)

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> LlguidanceCompiled:
        grammar = self._grammar(constraint.kind, constraint.source())
        native = LLMatcher(self._tokenizer, grammar, log_level=0)
        if not native.is_error():
            native.compute_bitmask()
        if native.is_error():
            raise InvalidGrammar(f"llguidance: {native.get_error()[:MAX_MESSAGE]}")
        return LlguidanceCompiled(native, self.vocabulary, self._eos_token_id, len(grammar))

    def _grammar(self, kind: str, source: str) -> str:
        match kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(source, overrides=self._json_options)
            case "json_object":
                return LLMatcher.grammar_from_json_schema('{"type":"object"}', overrides=self._json_options)
            case "regex":
                return LLMatcher.grammar_from_regex(source)
            case "choice":
                return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(source))))
            case "grammar:lark":
                return LLMatcher.grammar_from_lark(source)
        raise UnsupportedGrammar(f"llguidance does not compile {kind}", feature=kind)
