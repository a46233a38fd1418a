"""xgrammar as a grammar strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import xgrammar as xgr
from guideway.api import (
    Constraint,
    DeadEnd,
    GrammarStrategy,
    InvalidGrammar,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    parse_options,
)
from guideway.api.bitmask import allocate, num_words

from guideway_xgrammar.matcher import XgrammarCompiled


@dataclass(frozen=True)
class Options:
    """What an operator may set under ``[grammar.xgrammar]``."""

    whitespace: Literal["any", "compact", "spaced"] = "any"
    """Between JSON tokens: any whitespace, none, or one space after each comma and colon."""
    strict: bool = True
    """Treat objects and arrays that do not say otherwise as closed: only declared properties and items."""
    max_threads: int = 4
    """Threads of one compile."""


_SEPARATORS = {"any": None, "compact": (",", ":"), "spaced": (", ", ": ")}


class Strategy(GrammarStrategy):
    """Compiles with one `xgrammar.GrammarCompiler`; its cache is off because the host has one."""

    name: ClassVar[str] = "xgrammar"
    kinds: ClassVar[frozenset[str]] = frozenset(
        {"json_schema", "json_object", "regex", "choice", "grammar:ebnf", "grammar:lark", "structural_tag"}
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork", "serialize"})
    max_rollback: ClassVar[int | None] = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self._options = parse_options(Options, options, where="grammar.xgrammar")
        self._tokenizer_info = xgr.TokenizerInfo(
            list(vocabulary.tokens),
            xgr.VocabType.RAW,
            # whole words, so that every bit past the vocabulary belongs to a token xgrammar knows to be special
            vocab_size=num_words(vocabulary.logits_width) * 32,
            # each matcher brings its own; a token listed here would be legal as text of no bytes in the others
            stop_token_ids=[],
        )
        self._compiler = xgr.GrammarCompiler(
            self._tokenizer_info, max_threads=self._options.max_threads, cache_enabled=False
        )

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> XgrammarCompiled:
        source = constraint.source()
        try:
            compiled = XgrammarCompiled(self._compile(constraint.kind, source), self.vocabulary)
        except RuntimeError as error:
            raise InvalidGrammar(f"xgrammar: {error}") from error
        self._probe(compiled)
        return compiled

    def _compile(self, kind: str, source: str) -> xgr.CompiledGrammar:
        compiler = self._compiler
        match kind:
            case "json_schema" | "json_object":
                return compiler.compile_json_schema(
                    '{"type":"object"}' if kind == "json_object" else source,
                    any_whitespace=self._options.whitespace == "any",
                    separators=_SEPARATORS[self._options.whitespace],
                    strict_mode=self._options.strict and kind == "json_schema",
                )
            case "regex":
                return compiler.compile_regex(source)
            case "choice":
                return compiler.compile_grammar("root ::= " + " | ".join(map(_ebnf_literal, json.loads(source))))
            case "grammar:ebnf":
                return compiler.compile_grammar(source)
            case "grammar:lark":
                return compiler.compile_lark(source)
            case "structural_tag":
                return compiler.compile_structural_tag(source)
        raise UnsupportedGrammar(f"xgrammar does not compile {kind}", feature=kind)

    def _probe(self, compiled: XgrammarCompiled) -> None:
        bitmask = allocate(1, self.vocabulary.logits_width)
        specials = [i for i, token in enumerate(self.vocabulary.tokens) if not token]
        try:
            compiled.matcher(frozenset(specials[:1])).fill_bitmask(bitmask, 0)
        except DeadEnd as error:
            raise InvalidGrammar("the constraint matches no text at all") from error

    def from_bytes(self, data: bytes) -> XgrammarCompiled:
        native = xgr.CompiledGrammar.deserialize_json(data.decode(), self._tokenizer_info)
        return XgrammarCompiled(native, self.vocabulary)


def _ebnf_literal(text: str) -> str:
    return "".join(('"', "".join(f"\\U{ord(c):08x}" for c in text), '"'))
