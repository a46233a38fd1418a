"""What a JSON Schema asserts, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from guideway.json_schema.walking import Schema, walk

__all__ = ["KEYWORDS", "TYPES", "combine", "keywords", "pattern_details", "root_keywords"]

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")

KEYWORDS: tuple[str, ...] = (
    *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"),
    *("format", "pattern", "minLength", "maxLength"),
    *("multipleOf", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("required", "dependentRequired", "dependentSchemas", "dependencies", "minProperties", "maxProperties"),
    *("prefixItems", "items", "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains"),
    *("minItems", "maxItems", "uniqueItems"),
)
"""The keywords that can make an instance invalid, besides ``type``. Combinations are named in this order. ``then``
and ``else`` count as ``if``."""

_ORDER = {keyword: i for i, keyword in enumerate(KEYWORDS)}


def keywords(schema: Schema) -> frozenset[str]:
    """What a checked schema asserts, by name. Of each subschema:

    - its keywords that can make an instance invalid (`KEYWORDS`, ``type``), where they stand beside what they need;
      ``false`` for one that refuses all;
    - every two of them that stand side by side, ``pattern+maxLength``, because engines lose one beside the other;
    - how they stand with ``type``: ``anyOf+type`` where both are there (``$ref`` to ``const`` in `KEYWORDS`, which
      need none; ``enum`` and ``const`` only where a value is of another type), and for the others
      ``minLength+types`` beside a list of types, ``minLength+untyped`` without any;
    - in place of the plain name, where it matters: ``format:date``; ``$ref:remote`` out of the document and
      ``$ref:anchor``; ``allOf:several`` and ``patternProperties:several``;
      ``oneOf:disjoint`` where no two branches have the same type; ``multipleOf:number`` unless the type is ``integer``;
      ``required:undeclared`` for names that are not in ``properties``; ``minProperties:optional`` beside properties
      that are not required; ``propertyNames:untyped`` unless the names' type is ``string``; ``items:false``;
      ``items:list`` and ``exclusiveMinimum:draft4`` from older drafts;
    - ``pattern:lookaround`` and the like (`pattern_details`), ``pattern:escaped`` for one of the characters that JSON's
      strings escape and ``pattern:unescaped`` for all but some of them, ``number:large`` where a number is past
      2**53, which engines round, and ``number:fraction`` where a value is like 0.1, which no double is.
    """
    found: set[str] = set()
    seen: set[frozenset[str]] = set()
    for _, subschema in walk(schema):
        if isinstance(subschema, bool):
            found |= set() if subschema else {"false"}
            continue
        own = _own(subschema)
        pattern = subschema.get("pattern", "")
        details = {f"pattern:{detail}" for detail in (*pattern_details(pattern), *_string_details(pattern))}
        values = _values(subschema)
        if any(map(_is_large, _numbers([*values, *(subschema[name] for name in _NUMERIC & subschema.keys())]))):
            details.add("number:large")
        if any(map(_is_fraction, _numbers(values))):
            details.add("number:fraction")
        typed = subschema.get("type")
        told = _are_of_type(values, typed)
        key = frozenset(own | details | {str(typed), str(told)})
        if key in seen:
            continue
        seen.add(key)
        found |= own | details
        if typed is not None:
            found.add("type")
        found.update(_combinations(own))
        how = {how for name in own if (how := _beside_type(name, typed)) is not None}
        found |= how - {"enum+type", "const+type"} if told else how
    return frozenset(found)


def root_keywords(schema: Schema) -> frozenset[str]:
    """What a checked schema asserts by its own keywords, as `keywords` names them, and not by those of its subschemas,
    which hang from these."""
    if isinstance(schema, bool):
        return frozenset() if schema else frozenset({"false"})
    return frozenset(_own(schema) | ({"type"} & schema.keys()))


def combine(first: str, second: str) -> str:
    """The name of two keywords side by side; all formats count as one there."""
    (both,) = _combinations((first, second))
    return both


def _combinations(names: Iterable[str]) -> Iterable[str]:
    names = ("format" if name.startswith("format:") else name for name in names)
    return map("+".join, combinations(sorted(names, key=lambda name: _ORDER[name.partition(":")[0]]), 2))


def pattern_details(pattern: str) -> frozenset[str]:
    """What a regular expression uses that engines may lack: ``lookaround``, ``backreference``, ``boundary``,
    ``property``. Errs on the side of naming too much."""
    return frozenset(detail for detail, search in _PATTERN_DETAILS.items() if search(pattern))


def _own(schema: Mapping[str, Any]) -> set[str]:
    return {_name(keyword, schema) for keyword in KEYWORDS if keyword in schema and _asserts(keyword, schema)}


def _numbers(values: list[Any]) -> Iterator[int | float]:
    """Those in some values, however deep."""
    pending = [*values]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, int | float):
            yield value


def _is_large(number: float) -> bool:
    return not -(2**53) <= number <= 2**53


def _is_fraction(number: float) -> bool:
    return f"{number:.17g}" != f"{number:.15g}" and not _is_large(number)


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """Those of ``enum`` and ``const``."""
    return [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]


def _are_of_type(values: list[Any], types: str | list[str] | None) -> bool:
    """Whether a type says nothing beside these values."""
    names = {types} if isinstance(types, str) else set(types or ())
    return all(not names.isdisjoint(_types_of(value)) for value in values)


def _types_of(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("integer", "number") if value.is_integer() else ("number",)
        case str():
            return ("string",)
    return ("array",) if isinstance(value, list) else ("object",)


def _asserts(keyword: str, schema: Mapping[str, Any]) -> bool:
    """Whether `keyword` says anything where it stands."""
    match keyword:
        case "format":
            return "type" not in schema or "string" in schema["type"]
        case "additionalItems":
            return isinstance(schema.get("items"), list)
        case "minContains" | "maxContains":
            return "contains" in schema
        case "if":
            return "then" in schema or "else" in schema
    return True


def _beside_type(name: str, typed: object) -> str | None:
    if name.partition(":")[0] in _NEED_NO_TYPE:
        return None if typed is None else f"{name}+type"
    name = "format" if name.startswith("format:") else name
    return None if isinstance(typed, str) else f"{name}+{'untyped' if typed is None else 'types'}"


def _name(keyword: str, schema: Mapping[str, Any]) -> str:
    value = schema[keyword]
    declared = schema.get("properties", {})
    match keyword:
        case "format":
            return f"format:{value}"
        case "$ref" if value != "#" and not value.startswith("#/"):
            return "$ref:anchor" if value.startswith("#") else "$ref:remote"
        case "allOf" if len(value) > 1:
            return "allOf:several"
        case "oneOf" if _are_of_different_types(value):
            return "oneOf:disjoint"
        case "multipleOf" if schema.get("type") != "integer":
            return "multipleOf:number"
        case "required" if not all(name in declared for name in value):
            return "required:undeclared"
        case "minProperties" | "maxProperties" if not declared.keys() <= set(schema.get("required", ())):
            return f"{keyword}:optional"
        case "patternProperties" if len(value) > 1:
            return "patternProperties:several"
        case "propertyNames" if not (isinstance(value, Mapping) and value.get("type") == "string"):
            return "propertyNames:untyped"
        case "items" if isinstance(value, list):
            return "items:list"
        case "items" if value is False:
            return "items:false"
        case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):
            return f"{keyword}:draft4"
    return keyword


def _are_of_different_types(schemas: list[Any]) -> bool:
    types = [schema.get("type") if isinstance(schema, Mapping) else None for schema in schemas]
    names = {"number" if name == "integer" else name for name in types if isinstance(name, str)}
    return len(names) == len(schemas)


_NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}

_NEED_NO_TYPE = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"})

_ALL_BUT = re.compile(r"\[\^(?:\\.|[^\]\\])*\]", re.DOTALL)
"""A class of all characters but some."""
_ESCAPED = re.compile(r'["\x00-\x1f]|\\(?:\\|[nrtfv]|c|x(?:22|5[cC]|[01])|u00(?:22|5[cC]|[01]))')

_PATTERN_DETAILS: dict[str, Callable[[str], object]] = {
    "lookaround": re.compile(r"\(\?<?[=!]").search,
    "backreference": re.compile(r"\\[1-9]|\\k<").search,
    "boundary": re.compile(r"\\[bB]").search,
    "property": re.compile(r"\\[pP]").search,
}


def _string_details(pattern: str) -> Iterator[str]:
    """What a regular expression says of characters that JSON's strings escape: that there is one, ``escaped``, or all
    but one, ``unescaped``."""
    if _ESCAPED.search(_ALL_BUT.sub("", pattern)):
        yield "escaped"
    if any(map(_ESCAPED.search, _ALL_BUT.findall(pattern))):
        yield "unescaped"
