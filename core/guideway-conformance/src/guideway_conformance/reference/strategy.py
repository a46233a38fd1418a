"""The reference as a grammar strategy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    GrammarStrategy,
    InvalidGrammar,
    JsonObject,
    JsonSchema,
    Matcher,
    Regex,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    parse_options,
)
from guideway.api.bitmask import allow_only
from guideway.json_schema import check_schema, keywords, subschemas
from guideway.json_schema.cursor import START, JsonCursor

from guideway_conformance.reference.expressions import Expression, Language
from guideway_conformance.reference.json_language import JsonLanguage, check_not_empty, why_not
from guideway_conformance.reference.regex import parse_regex

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask

_BEYOND = frozenset({"$ref:missing", "$ref:siblings", "$ref:nested-id", "$recursiveRef"})
"""The forms of references that it does not read."""

NBYTES_PER_ENTRY = 300
"""A node or a remembered derivative takes about this much."""


@dataclass(frozen=True)
class Options:
    """There are none."""


@dataclass
class TokenTree:
    """Token ids by their bytes: those that end here, and what follows by the next byte."""

    token_ids: list[int] = field(default_factory=list)
    children: dict[int, TokenTree] = field(default_factory=dict)


class Strategy(GrammarStrategy):
    """Anything with a subset of each kind; what it compiles, it enforces to the letter."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str] = "reference"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "json_object", "regex", "choice"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        parse_options(Options, options, where="grammar.reference")

    @cached_property
    def _tree(self) -> TokenTree:
        root = TokenTree()
        for token_id, token in enumerate(self.vocabulary.tokens):
            node = root
            for byte in token:
                node = node.children.setdefault(byte, TokenTree())
            if token:
                node.token_ids.append(token_id)
        return root

    @property
    def takes(self) -> Set[str]:
        return frozenset({"type"})

    def supports(self, constraint: Constraint) -> Support:
        source = constraint.source()
        if constraint.kind != "json_schema":
            reason = _why_not_pattern(source) if constraint.kind == "regex" else None
            return Support(enforced=frozenset({constraint.kind}) if reason is None else frozenset(), reason=reason)
        schema = json.loads(source)
        try:
            check_schema(schema)
        except InvalidGrammar as error:
            return Support(reason=str(error))
        if beyond := _BEYOND & keywords(schema):
            return Support(reason=f"beyond the reference: {', '.join(sorted(beyond))}")
        for pointer, subschema in subschemas(schema):
            reason = why_not(subschema)
            if reason is not None:
                return Support(reason=f"{pointer}: {reason}")
            if isinstance(subschema, Mapping) and "pattern" in subschema:
                reason = _why_not_pattern(subschema["pattern"])
                if reason is not None:
                    return Support(reason=f"{pointer}/pattern: {reason}")
        return Support(enforced=frozenset(name for name in keywords(schema) if "+" not in name))

    def compile(self, constraint: Constraint) -> ReferenceCompiled:
        kind = constraint.kind
        if kind not in self.kinds:
            raise UnsupportedGrammar(f"the reference has no constraints of kind {kind}", feature=kind)
        source, language = constraint.source(), Language()
        try:
            match constraint:
                case JsonSchema():
                    schema = json.loads(source)
                    check_schema(schema)
                    if beyond := _BEYOND & keywords(schema):
                        raise UnsupportedGrammar(f"beyond the reference: {', '.join(sorted(beyond))}", feature=kind)
                    built = JsonLanguage(language, schema, constraint.spacing).build()
                case JsonObject():
                    built = JsonLanguage(language, {"type": "object"}, constraint.spacing).build()
                case Regex():
                    built = parse_regex(language, source)
                case _:
                    built = language.either(*(language.text(choice.encode()) for choice in json.loads(source)))
        except RecursionError as error:
            raise UnsupportedGrammar("the constraint is nested too deeply for the reference", feature=kind) from error
        cursor = START if isinstance(constraint, JsonSchema | JsonObject) else None
        start = Rest(check_not_empty(language, built), cursor)
        return ReferenceCompiled(language, start, self.vocabulary, self._tree)


def _why_not_pattern(pattern: str) -> str | None:
    try:
        parse_regex(Language(), pattern)
    except (InvalidGrammar, UnsupportedGrammar) as error:
        return str(error)
    except RecursionError:
        return "the pattern is nested too deeply"
    return None


class Rest(NamedTuple):
    """The expression of what may follow; in JSON also the names so far, of which none may come again in its object."""

    expression: Expression
    cursor: JsonCursor | None

    @property
    def has_empty(self) -> bool:
        """True if the output may end."""
        return self.expression.has_empty


class ReferenceCompiled(CompiledGrammar):
    """An expression. Threads may share it: they can only remember the same derivative twice."""

    def __init__(self, language: Language, start: Rest, vocabulary: Vocabulary, tree: TokenTree) -> None:
        self.language, self.start, self.vocabulary, self.tree = language, start, vocabulary, tree
        self.NOTHING = Rest(language.NOTHING, None)

    def derive(self, state: Rest, byte: int) -> Rest:
        """The state after a byte; `NOTHING` if it may not follow."""
        expression, cursor = self.language.derive(state.expression, byte), state.cursor
        if expression is not self.language.NOTHING and cursor is not None:
            cursor = cursor.within(bytes((byte,)), "any")
            expression = self.language.NOTHING if cursor is None else expression
        return self.NOTHING if expression is self.language.NOTHING else Rest(expression, cursor)

    def matcher(self, stop_token_ids: frozenset[int]) -> ReferenceMatcher:
        return ReferenceMatcher(self, stop_token_ids, (self.start,))

    @property
    def nbytes(self) -> int:
        return NBYTES_PER_ENTRY * len(self.language)


class ReferenceMatcher(Matcher):
    """The states after each token so far; a stop token leaves None."""

    def __init__(
        self, compiled: ReferenceCompiled, stop_token_ids: frozenset[int], states: tuple[Rest | None, ...]
    ) -> None:
        self._compiled, self._stop_token_ids, self._states = compiled, stop_token_ids, states

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            state = self._states[-1]
            if state is None or not self._is_legal(state, token_id):
                return count
            self._states = (*self._states, None if token_id in self._stop_token_ids else self._after(state, token_id))
        return len(token_ids)

    def _is_legal(self, state: Rest, token_id: int) -> bool:
        if token_id in self._stop_token_ids:
            return state.has_empty
        token = self._compiled.vocabulary.tokens[token_id]
        return bool(token) and self._after(state, token_id) is not self._compiled.NOTHING

    def _after(self, state: Rest, token_id: int) -> Rest:
        for byte in self._compiled.vocabulary.tokens[token_id]:
            state = self._compiled.derive(state, byte)
        return state

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        state = self._states[-1]
        legal = [] if state is None else list(self._legal(state))
        if not legal:
            raise DeadEnd("the grammar allows no token of this vocabulary here")
        allow_only(bitmask, row, legal)

    def _legal(self, state: Rest) -> Iterator[int]:
        if state.has_empty:
            yield from self._stop_token_ids
        compiled, pending = self._compiled, [(self._compiled.tree, state)]
        while pending:
            node, reached = pending.pop()
            yield from node.token_ids
            for byte, child in node.children.items():
                after = compiled.derive(reached, byte)
                if after is not compiled.NOTHING:
                    pending.append((child, after))

    def is_terminated(self) -> bool:
        return self._states[-1] is None

    def is_accepting(self) -> bool:
        state = self._states[-1]
        return state is not None and state.has_empty

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self._states):
            raise ValueError(f"cannot roll back {num_tokens} tokens, {len(self._states) - 1} were accepted")
        self._states = self._states[: len(self._states) - num_tokens]

    def fork(self) -> ReferenceMatcher:
        return ReferenceMatcher(self._compiled, self._stop_token_ids, self._states)
