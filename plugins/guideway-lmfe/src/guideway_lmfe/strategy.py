"""lm-format-enforcer as a grammar strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from guideway.api import (
    Constraint,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    parse_options,
)
from guideway.json_schema import check_schema
from guideway.json_schema.prober import support

from guideway_lmfe.json_language import json_language, legal_tokens
from guideway_lmfe.matcher import LmfeCompiled
from guideway_lmfe.places import Language
from guideway_lmfe.regex_language import choice_language, regex_language
from guideway_lmfe.support import SUPPORT
from guideway_lmfe.tokens import JsonTokens


@dataclass(frozen=True)
class Options:
    """What an operator may set under ``[grammar.lmfe]``."""

    max_whitespace: int | None = None
    """Whitespace characters in a row, spaces inside strings included; None: any number."""


BASE_NBYTES = 1 << 16
NBYTES_PER_CHARACTER = 200
"""Of a constraint's text; objects of Python."""


class Strategy(GrammarStrategy):
    """The tokens sorted once; grammars hold parsers only."""

    name: ClassVar[str] = "lmfe"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "json_object", "regex", "choice"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self._max_whitespace = parse_options(Options, options, where="grammar.lmfe").max_whitespace
        if self._max_whitespace is not None and self._max_whitespace < 1:
            raise InvalidConfiguration(
                f"option 'max_whitespace' of grammar.lmfe must be at least 1, not {self._max_whitespace}",
                field="grammar.lmfe.max_whitespace",
            )
        self._tokens = JsonTokens(vocabulary)

    def supports(self, constraint: Constraint) -> Support:
        if constraint.kind != "json_schema":
            return Support(enforced=frozenset({constraint.kind}))
        try:
            schema = json.loads(constraint.source())
            check_schema(schema)
        except InvalidGrammar as error:
            return Support(reason=str(error))
        return support(schema, SUPPORT.installed(), SUPPORT.library)

    def compile(self, constraint: Constraint) -> LmfeCompiled:
        kind = constraint.kind
        if kind not in self.kinds:
            raise UnsupportedGrammar(f"{SUPPORT.library} has no constraints of kind {kind}", feature=kind)
        source = constraint.source()
        try:
            language = self._language(kind, source)
        except RecursionError as error:
            raise UnsupportedGrammar("the constraint is nested too deeply", feature="depth") from error
        find = legal_tokens if kind in ("json_schema", "json_object") else None
        tokens = self._tokens
        compiled = LmfeCompiled(
            language,
            self.vocabulary,
            lambda place: find(language, place, tokens) if find else tokens.all.legal(language, place),
            BASE_NBYTES + NBYTES_PER_CHARACTER * len(source),
        )
        if not language.ends(language.start) and not compiled.mask(language.start).any():
            raise InvalidGrammar("no text of this vocabulary matches the constraint")
        return compiled

    def _language(self, kind: str, source: str) -> Language:
        match kind:
            case "json_schema":
                schema = json.loads(source)
                check_schema(schema)
                if schema is False:
                    raise InvalidGrammar("the schema `false` allows nothing")
                return json_language(schema, source, self._max_whitespace)
            case "json_object":
                return json_language({"type": "object"}, source, self._max_whitespace)
            case "choice":
                return choice_language(json.loads(source))
            case _:
                return regex_language(source)
