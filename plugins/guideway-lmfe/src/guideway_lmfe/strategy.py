"""lm-format-enforcer as a grammar strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from guideway.api import (
    WHITESPACE,
    Constraint,
    GrammarStrategy,
    InvalidGrammar,
    JsonSchema,
    Regex,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    parse_options,
)
from guideway.json_schema import WritingRule, check_schema
from guideway.json_schema.support import SupportTable, Table

from guideway_lmfe.json_language import json_language, legal_tokens
from guideway_lmfe.matcher import LmfeCompiled
from guideway_lmfe.places import Language
from guideway_lmfe.regex_language import choice_language, regex_language
from guideway_lmfe.tokens import JsonTokens


@dataclass(frozen=True)
class Options:
    """The settings of an operator under ``[grammar.lmfe]``."""

    """There are none."""


BASE_NBYTES = 1 << 16
NBYTES_PER_CHARACTER = 200
"""Bytes of Python objects for each character of a constraint's text."""


class Strategy(GrammarStrategy):
    """A grammar strategy that sorts the tokens once; its grammars contain only parsers."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str] = "lmfe"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "json_object", "regex", "choice"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None
    limits = MappingProxyType({"alternatives": 200, "properties": 300, "nested_stars": 1})

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        parse_options(Options, options, where="grammar.lmfe")
        self._rules = {word: WritingRule(vocabulary.tokens, word) for word in WHITESPACE}
        self._tokens = JsonTokens(vocabulary)

    @property
    def takes(self) -> Set[str]:
        return SUPPORT.takes()

    def supports(self, constraint: Constraint) -> Support:
        if isinstance(constraint, JsonSchema):
            return SUPPORT.support(constraint)
        if isinstance(constraint, Regex):
            return SUPPORT.support_of_regex(constraint)
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> LmfeCompiled:
        kind = constraint.kind
        if kind not in self.kinds:
            raise UnsupportedGrammar(f"{SUPPORT.library} has no constraints of kind {kind}", feature=kind)
        try:
            language = self._language(constraint)
        except RecursionError as error:
            raise UnsupportedGrammar("the constraint is nested too deeply", feature="depth") from error
        find = legal_tokens if kind in ("json_schema", "json_object") else None
        tokens = self._tokens
        compiled = LmfeCompiled(
            language,
            self.vocabulary,
            lambda place: find(language, place, tokens) if find else tokens.all.legal(language, place),
            BASE_NBYTES + NBYTES_PER_CHARACTER * len(constraint.source()),
            None if constraint.spacing is None else self._rules[constraint.spacing],  # parsers allow any white space
        )
        if not language.ends(language.start) and not compiled.mask(language.start).any():
            raise InvalidGrammar("no text of this vocabulary matches the constraint")
        return compiled

    def _language(self, constraint: Constraint) -> Language:
        source = constraint.source()
        if isinstance(constraint, JsonSchema):
            constraint.cached(check_schema)
            if constraint.parsed is False:
                raise InvalidGrammar("the schema `false` allows nothing")
            return json_language(constraint.parsed, source)
        match constraint.kind:
            case "json_object":
                return json_language({"type": "object"}, source)
            case "choice":
                return choice_language(json.loads(source))
        return regex_language(source)


def _measure() -> Table:
    from guideway.json_schema.prober import byte_vocabulary, probe_holders_apart

    return probe_holders_apart(Strategy(byte_vocabulary(), {}))


SUPPORT = SupportTable("lm-format-enforcer", "guideway_lmfe", _measure)
"""The keywords that the installed lm-format-enforcer enforces: a table per version, by ``python -m
guideway_lmfe.probe``."""
