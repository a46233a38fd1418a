"""JSON, and a subset of JSON Schema, as expressions.

White space stands outside strings only where it is ``spaced``, however much there may be. Declared properties come in
their declared order and before others, as in the grammar libraries. Strings may use every JSON escape but those of
surrogates; keys that are not declared, and strings with a ``pattern``, use none but the ones a character needs. That a
name stands once in an object is no affair of the expression.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guideway.errors import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema import TYPES, Schema, resolve

from guideway_conformance.reference.expressions import Expression, Language
from guideway_conformance.reference.regex import Ranges, characters, intersect, parse_regex, without

if TYPE_CHECKING:
    from guideway.api import Whitespace

__all__ = ["JsonLanguage", "why_not"]

_MAX_INTEGERS = 10_000
_ANNOTATIONS = {"$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples"}
_OWN = {
    "string": {"minLength", "maxLength", "pattern"},
    "integer": {"minimum", "maximum"},
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
}
_ALONE = {"$ref", "anyOf", "enum", "const"}
"""Keywords that say everything, beside which nothing else may stand; `type` may beside the last two."""

_UNESCAPED: Ranges = without(((0, 31), (34, 34), (92, 92)))
_SHORT_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}


def why_not(schema: Schema) -> str | None:
    """Why one subschema, without those below it, is beyond the subset; None: it is not."""
    if isinstance(schema, bool):
        return None
    used = set(schema) - _ANNOTATIONS
    types = schema.get("type", list(TYPES))
    types = {types} if isinstance(types, str) else set(types)
    alone = used & _ALONE
    if alone:
        allowed = {"type"} if alone <= {"enum", "const"} and len(alone) == 1 else set()
        beside = used - alone - allowed
        if beside or len(alone) > 1:
            return f"{' beside '.join(sorted(alone | beside))} is not supported"
        if not str(schema.get("$ref", "#")).startswith("#") or schema.get("$ref", "#/")[1:2] not in ("", "/"):
            return "a $ref may only be # or start with #/"
        return None
    own = {keyword for name in types for keyword in _OWN.get(name, ())}
    unknown = used - own - {"type"}
    if unknown:
        return f"{', '.join(sorted(unknown))} is not supported for type {', '.join(sorted(types))}"
    if "pattern" in used and used & {"minLength", "maxLength"}:
        return "pattern beside minLength or maxLength is not supported"
    if used & {"minimum", "maximum"}:
        low, high = schema.get("minimum"), schema.get("maximum")
        bounded = isinstance(low, int) and isinstance(high, int) and high - low <= _MAX_INTEGERS
        if "number" in types or not bounded:
            return f"minimum and maximum are supported only together, for integers at most {_MAX_INTEGERS} apart"
    if not isinstance(schema.get("additionalProperties", True), bool):
        return "additionalProperties is supported only as true or false"
    undeclared = sorted(set(schema.get("required", ())) - schema.get("properties", {}).keys())
    if undeclared and schema.get("additionalProperties", True):
        return f"required names {undeclared[0]!r}, which is not in properties"
    if isinstance(schema.get("items"), list):
        return "items is supported only as one schema"
    return None


class JsonLanguage:
    """Expressions for the schemas of one document, `root`, already checked."""

    def __init__(self, language: Language, root: Schema, whitespace: Whitespace) -> None:
        self.language, self.root = language, root
        self._separators = (", ", ": ") if whitespace == "spaced" else (",", ":")
        self._comma, self._colon = (language.text(separator.encode()) for separator in self._separators)
        self._lazy: dict[str, Schema] = {}
        self._productive: set[str] = set()

    def build(self) -> Expression:
        """The whole document. Schemas inside objects and arrays become definitions, because they may lead back to
        where they are. One is worth a reference only if it has a string at all, for which others may have to have one
        first: so begin as if none had, and build again until no more turn out to."""
        while True:
            built = self._schema(self.root, frozenset())
            definitions = self.language.definitions
            definitions.clear()
            while len(definitions) < len(self._lazy):
                for name in self._lazy.keys() - definitions.keys():
                    definitions[name] = self._schema(self._lazy[name], frozenset())
            productive = {name for name, target in definitions.items() if target is not self.language.NOTHING}
            if productive == self._productive:
                return built
            self._productive = productive

    def _below(self, schema: Schema) -> Expression:
        """A schema inside an object or array."""
        if isinstance(schema, bool):
            name = str(schema)
        else:
            name = schema["$ref"] if "$ref" in schema else f"object {id(schema)}"
        self._lazy[name] = schema
        return self.language.reference(name) if name in self._productive else self.language.NOTHING

    def _schema(self, schema: Schema, inside: frozenset[str]) -> Expression:
        """`inside` names the references being followed: one that leads to itself adds no string of its own."""
        lang = self.language
        if isinstance(schema, bool):
            return lang.either(*(self._type(name, {}) for name in TYPES)) if schema else lang.NOTHING
        reason = why_not(schema)
        if reason is not None:
            raise UnsupportedGrammar(reason, feature="json_schema")
        if "$ref" in schema:
            name = schema["$ref"]
            return lang.NOTHING if name in inside else self._schema(resolve(self.root, name), inside | {name})
        if "anyOf" in schema:
            return lang.either(*(self._schema(choice, inside) for choice in schema["anyOf"]))
        types = schema.get("type", list(TYPES))
        types = [types] if isinstance(types, str) else types
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return lang.either(*(self.value(value) for value in values if any(_has_type(value, t) for t in types)))
        return lang.either(*(self._type(name, schema) for name in types))

    def _type(self, name: str, schema: Mapping[str, Any]) -> Expression:
        match name:
            case "string":
                return self._string(schema)
            case "integer":
                if "minimum" in schema:
                    return self.language.either(*map(self.value, range(schema["minimum"], schema["maximum"] + 1)))
                return parse_regex(self.language, "-?(0|[1-9][0-9]*)")
            case "number":
                return parse_regex(self.language, "-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?")
            case "boolean":
                return self.language.either(self.value(True), self.value(False))
            case "null":
                return self.value(None)
            case "array":
                return self._array(schema)
        return self._object(schema)

    def value(self, value: Any) -> Expression:
        """Exactly `value`."""
        return self.language.text(json.dumps(value, ensure_ascii=False, separators=self._separators).encode())

    def _quoted(self, body: Expression) -> Expression:
        return self.language.sequence(self.language.text(b'"'), body, self.language.text(b'"'))

    def _string(self, schema: Mapping[str, Any]) -> Expression:
        if "pattern" in schema:
            return self._quoted(parse_regex(self.language, schema["pattern"], self._character, search=True))
        escape = parse_regex(self.language, r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')
        one = self.language.either(characters(self.language, _UNESCAPED), escape)
        high = schema.get("maxLength")
        return self._quoted(
            self.language.repeat(one, int(schema.get("minLength", 0)), None if high is None else int(high))
        )

    def _character(self, ranges: Ranges) -> Expression:
        """One character of a string, escaped where JSON demands it."""
        written = [characters(self.language, intersect(ranges, _UNESCAPED))]
        for code in (*range(32), 34, 92):
            if intersect(ranges, ((code, code),)):
                short = _SHORT_ESCAPES.get(code)
                written.append(self.language.text(f"\\{short or f'u{code:04x}'}".encode()))
        return self.language.either(*written)

    def _object(self, schema: Mapping[str, Any]) -> Expression:
        lang, declared = self.language, schema.get("properties", {})
        required = set(schema.get("required", ()))
        if required - declared.keys():  # nor may there be others
            return lang.NOTHING
        if not schema.get("additionalProperties", True):
            other = lang.NOTHING
        else:
            key = self._quoted(self._key_not_in(declared))
            other = lang.sequence(key, self._colon, self._below(True))
        comma = self._comma
        # what may follow once a member was written, and while none was
        later = lang.repeat(lang.sequence(comma, other))
        first = lang.optional(lang.sequence(other, later))
        for name, subschema in reversed(declared.items()):
            member = lang.sequence(self.value(name), self._colon, self._below(subschema))
            taken_first, taken_later = lang.sequence(member, later), lang.sequence(comma, member, later)
            if name in required:
                first, later = taken_first, taken_later
            else:
                first, later = lang.either(taken_first, first), lang.either(taken_later, later)
        return lang.sequence(lang.text(b"{"), first, lang.text(b"}"))

    def _key_not_in(self, names: Sequence[str] | Mapping[str, Any]) -> Expression:
        """Any string without escapes but `names`: at each character, leave all of them or go on with some."""
        lang = self.language
        by_first: dict[str, list[str]] = {}
        for name in names:
            if name:
                by_first.setdefault(name[0], []).append(name[1:])
        other = intersect(_UNESCAPED, without(tuple((ord(c), ord(c)) for c in by_first)))
        return lang.either(
            lang.NOTHING if "" in names else lang.EMPTY,
            lang.sequence(characters(lang, other), lang.repeat(characters(lang, _UNESCAPED))),
            *(
                lang.sequence(characters(lang, intersect(_UNESCAPED, ((ord(c), ord(c)),))), self._key_not_in(rest))
                for c, rest in by_first.items()
            ),
        )

    def _array(self, schema: Mapping[str, Any]) -> Expression:
        lang, prefix = self.language, schema.get("prefixItems", [])
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        item, comma = self._below(schema.get("items", True)), self._comma
        num_listed = len(prefix) if high is None else min(len(prefix), int(high))
        # after the listed ones, all items are alike
        rest = lang.repeat(
            lang.sequence(comma, item),
            max(low - max(num_listed, 1), 0),
            None if high is None else int(high) - max(num_listed, 1),
        )
        if num_listed == 0:
            if high == 0:
                body = lang.EMPTY if low == 0 else lang.NOTHING
            else:
                body = lang.sequence(item, rest)
                body = lang.optional(body) if low == 0 else body
        else:
            body = rest
            for i in reversed(range(num_listed)):
                element = lang.sequence(comma if i else lang.EMPTY, self._below(prefix[i]), body)
                body = lang.optional(element) if low <= i else element
        return lang.sequence(lang.text(b"["), body, lang.text(b"]"))


def _has_type(value: Any, name: str) -> bool:
    match value:
        case bool():
            return name == "boolean"
        case int():
            return name in ("integer", "number")
        case float():
            return name == "number" or (name == "integer" and value.is_integer())
    kinds: dict[str, type] = {"string": str, "null": type(None), "array": list, "object": dict}
    return name in kinds and isinstance(value, kinds[name])


def check_not_empty(language: Language, built: Expression) -> Expression:
    """`built`, unless no text at all belongs to it."""
    if built is language.NOTHING:
        raise InvalidGrammar("no text matches the constraint")
    return built
