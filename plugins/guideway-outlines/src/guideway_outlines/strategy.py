"""outlines-core as a grammar strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast

from guideway.api import (
    WHITESPACE,
    Constraint,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    Regex,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    Whitespace,
    parse_options,
)
from guideway.json_schema import WritingRule, check_schema
from guideway.json_schema.expressions import python, spelled_out
from guideway.json_schema.support import SupportTable, Table
from outlines_core import Index  # type: ignore[import-untyped]
from outlines_core import Vocabulary as NativeVocabulary

from guideway_outlines import schema as schemas
from guideway_outlines.matcher import OutlinesCompiled
from guideway_outlines.regular import NEVER, START, Either, Node, literal, parse, simplified, to_rust
from guideway_outlines.size import check_size, first_bytes


@dataclass(frozen=True)
class Options:
    """The settings of an operator under ``[grammar.outlines]``."""

    max_entries: int = 1 << 24
    """Maximum legal tokens of a grammar, summed over its states. The default takes up to 7 s and half a gigabyte: a
    larger one would be ended by the limit of compilations."""


_ANY = r"[ \t\n\r]*"
# Bounds would take 42 states of the index at each place, so the index allows any white space, and a rule bounds it.
_WHITESPACE: Mapping[Whitespace, str] = {"bounded": _ANY, "compact": "", "spaced": "[ ]?", "any": _ANY}


class Strategy(GrammarStrategy):
    """A grammar strategy with one native vocabulary for all grammars.

    The vocabulary has additional tokens, with ids past the real ones: `START`, and every byte that is not a token,
    because outlines-core refuses a grammar if any of its states has no legal token.
    """

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str] = "outlines"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "regex", "choice"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork", "serialize"})
    max_rollback: ClassVar[int | None] = None
    limits = MappingProxyType({"alternatives": 300, "enum": 300, "literals": 4000})

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self._options = parse_options(Options, options, where="grammar.outlines")
        if self._options.max_entries < 1:
            raise InvalidConfiguration(
                f"option 'max_entries' of grammar.outlines must be at least 1, not {self._options.max_entries}",
                field="grammar.outlines.max_entries",
            )
        size = len(vocabulary)
        ids: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(vocabulary.tokens):
            if token:
                ids.setdefault(token, []).append(token_id)
        for byte in range(256):
            ids.setdefault(bytes([byte]), []).append(size + 1 + byte)
        self._start_id = size + 1 + 256
        ids.setdefault(chr(START).encode(), []).append(self._start_id)
        self._native = NativeVocabulary(size, ids)
        self._rules = {word: WritingRule(vocabulary.tokens, word) for word in WHITESPACE}
        self._first_bytes = first_bytes(vocabulary.tokens)

    @property
    def takes(self) -> Set[str]:
        return SUPPORT.takes()

    def supports(self, constraint: Constraint) -> Support:
        if isinstance(constraint, JsonSchema):
            return SUPPORT.support(constraint)
        if isinstance(constraint, Regex):
            return SUPPORT.support_of_regex(constraint)
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> OutlinesCompiled:
        kind = constraint.kind
        if kind not in self.kinds:
            raise UnsupportedGrammar(f"{SUPPORT.library} has no constraints of kind {kind}", feature=kind)
        try:
            node = simplified(self._node(constraint))
            if node == NEVER:
                raise InvalidGrammar("no text matches the constraint")
            check_size(node, self._first_bytes, self._options.max_entries)
            pattern = rf"\x{{{START:X}}}(?:{to_rust(node)})\z"
        except RecursionError as error:
            raise UnsupportedGrammar("the constraint is nested too deeply", feature="depth") from error
        try:
            index = Index(pattern, self._native)
        except ValueError as error:
            raise UnsupportedGrammar(f"{SUPPORT.library}: {str(error)[:300]}", feature=kind) from error
        compiled = self._wrap(index, constraint.spacing)
        if compiled.start not in compiled.finals and not compiled.mask(compiled.start).any():
            raise InvalidGrammar("no text of this vocabulary matches the constraint")
        return compiled

    def from_bytes(self, data: bytes) -> OutlinesCompiled:
        whitespace, _, index = data.partition(b"\n")
        return self._wrap(Index.from_binary(index), cast("Whitespace", whitespace.decode()) if whitespace else None)

    def _wrap(self, index: Index, whitespace: Whitespace | None) -> OutlinesCompiled:
        start = index.get_next_state(index.get_initial_state(), self._start_id)
        serialized = index.__reduce__()[1][0]
        rule = None if whitespace is None else self._rules[whitespace]
        return OutlinesCompiled(index, start, len(self.vocabulary), serialized, rule)

    def _node(self, constraint: Constraint) -> Node:
        if isinstance(constraint, JsonSchema):
            constraint.cached(check_schema)
            if constraint.parsed is False:
                raise InvalidGrammar("the schema `false` allows nothing")
            return schemas.to_node(constraint.parsed, _WHITESPACE[constraint.spacing])
        if constraint.kind == "choice":
            return Either(tuple(map(literal, json.loads(constraint.source()))))
        return parse(spelled_out(constraint.source(), python()))


def _measure() -> Table:
    from guideway.json_schema.prober import byte_vocabulary, probe_holders_apart

    return probe_holders_apart(Strategy(byte_vocabulary(), {}))


SUPPORT = SupportTable("outlines-core", "guideway_outlines", _measure)
"""The keywords that the installed outlines-core enforces: a table per version, by ``python -m
guideway_outlines.probe``."""
