"""What a grammar strategy needs to know of a JSON Schema before it compiles it: whether it is one at all, its
subschemas, and by name what it asserts. Linear in the schema's size and without recursion, so that a hostile schema
costs no more than its length.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

from guideway.errors import InvalidGrammar

__all__ = [
    "KEYWORDS",
    "Pointer",
    "Schema",
    "check_schema",
    "combine",
    "keywords",
    "misspelt_keywords",
    "pattern_details",
    "resolve",
    "subschemas",
]

Schema: TypeAlias = Mapping[str, Any] | bool

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

_KNOWN = frozenset(
    {*KEYWORDS, "type", "then", "else", "$id", "id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor"}
    | {"$recursiveRef", "$vocabulary", "$comment", "$defs", "definitions", "title", "description", "default"}
    | {"examples", "example", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"}
    | {"contentSchema", "nullable", "discriminator", "xml", "externalDocs", "enumNames", "links", "media"}
)
MAX_UNKNOWN_KEYS = 100
"""How many unknown keys are looked at for misspellings: a hostile constraint has no end of them."""

_ORDER = {keyword: i for i, keyword in enumerate(KEYWORDS)}
_ONE_SCHEMA = frozenset(
    {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)

# A pointer is a chain of pairs until somebody wants to read it: as text it would grow with the depth, times the size.
_Pointer: TypeAlias = "tuple[_Pointer, str | int] | None"


def check_schema(schema: object) -> None:
    """Raise `InvalidGrammar` unless `schema`, a parsed JSON value, is a JSON Schema. The message says where it is
    wrong, as a JSON pointer, and what would be accepted. Whether anything satisfies it is not asked."""
    if not isinstance(schema, Mapping | bool):
        _refuse(None, "a JSON Schema", "an object or a boolean", schema)
    nested_ids = False
    local_references: list[tuple[_Pointer, str]] = []
    for pointer, subschema in _walk(schema):
        if isinstance(subschema, bool):
            continue
        for keyword, value in subschema.items():
            check = _CHECKS.get(keyword)
            if check is not None:
                check((pointer, keyword), keyword, value)
        nested_ids |= pointer is not None and "$id" in subschema
        if str(subschema.get("$ref", "")).partition("/")[0] == "#":
            local_references.append(((pointer, "$ref"), subschema["$ref"]))
    if nested_ids:  # a reference is then relative to the nearest of them
        return
    for pointer, reference in local_references:
        if not isinstance(resolve(schema, reference), Mapping | bool):
            _refuse(pointer, "`$ref`", "a reference to a schema that exists in this document", reference)


class Pointer:
    """A JSON pointer. It becomes text, such as ``#/properties/a``, when `str` asks for it: all texts together would
    be as long as the schema's depth times its size, and few are read."""

    __slots__ = ("_chain",)

    def __init__(self, chain: _Pointer) -> None:
        self._chain = chain

    def __str__(self) -> str:
        return _text(self._chain)


def subschemas(schema: Schema) -> Iterator[tuple[Pointer, Schema]]:
    """Every subschema of a checked schema with its JSON pointer, itself first (``#``), ``$defs`` and whatever local
    references reach included, each once. A boolean that is a keyword's whole value (``additionalProperties: false``)
    belongs to that keyword and is not listed."""
    for pointer, subschema in _walk(schema):
        yield Pointer(pointer), subschema


def resolve(schema: object, reference: str) -> Any:
    """What the local reference `reference` (``#`` or ``#/...``) points to in `schema`; None if there is nothing."""
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(key)
        elif isinstance(schema, Sequence) and not isinstance(schema, str) and _is_index(key, len(schema)):
            schema = schema[int(key)]
        else:
            return None
    return schema


def _is_index(key: str, length: int) -> bool:
    # as many digits as `int` refuses to read, or takes long over, are no index of anything
    return key.isdecimal() and len(key) <= len(str(length)) and int(key) < length


def misspelt_keywords(*schemas: Schema) -> frozenset[str]:
    """Keys of subschemas that JSON Schema does not know but that look like a keyword that asserts something, such as
    ``patern`` or ``maxLenght``. (All other unknown keys are annotations, as the specification has it.)"""
    unknown: set[str] = set()
    for _, subschema in (found for schema in schemas for found in _walk(schema)):
        if isinstance(subschema, Mapping):
            unknown |= subschema.keys() - _KNOWN
            if len(unknown) > MAX_UNKNOWN_KEYS:
                break
    return frozenset(key for key in sorted(unknown)[:MAX_UNKNOWN_KEYS] if _looks_like_a_keyword(key))


@lru_cache(maxsize=1024)
def _looks_like_a_keyword(key: str) -> bool:
    return len(key) < 30 and bool(difflib.get_close_matches(key, ("type", *KEYWORDS), n=1, cutoff=0.84))


def keywords(schema: Schema) -> frozenset[str]:
    """What a checked schema asserts, by name. Of each subschema:

    - its keywords that can make an instance invalid (`KEYWORDS`, ``type``), where they stand beside what they need;
      ``false`` for one that refuses all;
    - every two of them that stand side by side, ``pattern+maxLength``, because engines lose one beside the other;
    - how they stand with ``type``: ``anyOf+type`` where both are there (``$ref`` to ``const`` in `KEYWORDS`, which
      need none), and for the others ``minLength+types`` beside a list of types, ``minLength+untyped`` without any;
    - in place of the plain name, where it matters: ``format:date``; ``$ref:remote`` out of the document and
      ``$ref:anchor``; ``allOf:several``; ``oneOf:disjoint`` where no two
      branches have the same type; ``multipleOf:number`` unless the type is ``integer``;
      ``required:undeclared`` for names that are not in ``properties``; ``minProperties:optional`` beside properties
      that are not required; ``items:list`` and ``exclusiveMinimum:draft4`` from older drafts;
    - ``pattern:lookaround`` and the like (`pattern_details`).
    """
    found: set[str] = set()
    seen: set[frozenset[str]] = set()
    for _, subschema in _walk(schema):
        if isinstance(subschema, bool):
            found |= set() if subschema else {"false"}
            continue
        own = {_name(k, subschema) for k in KEYWORDS if k in subschema and _asserts(k, subschema)}
        details = {f"pattern:{detail}" for detail in pattern_details(subschema.get("pattern", ""))}
        typed = subschema.get("type")
        key = frozenset(own | details | {str(typed)})
        if key in seen:
            continue
        seen.add(key)
        found |= own | details
        if typed is not None:
            found.add("type")
        found.update(_combinations(own))
        found |= {how for name in own if (how := _beside_type(name, typed)) is not None}
    return frozenset(found)


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
        case "items" if isinstance(value, list):
            return "items:list"
        case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):
            return f"{keyword}:draft4"
    return keyword


def _are_of_different_types(schemas: list[Any]) -> bool:
    types = [schema.get("type") if isinstance(schema, Mapping) else None for schema in schemas]
    names = {"number" if name == "integer" else name for name in types if isinstance(name, str)}
    return len(names) == len(schemas)


_NEED_NO_TYPE = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"})

_PATTERN_DETAILS: dict[str, Callable[[str], object]] = {
    "lookaround": re.compile(r"\(\?<?[=!]").search,
    "backreference": re.compile(r"\\[1-9]|\\k<").search,
    "boundary": re.compile(r"\\[bB]").search,
    "property": re.compile(r"\\[pP]").search,
}


def _walk(schema: Schema) -> Iterator[tuple[_Pointer, Schema]]:
    """Every subschema, breadth of a node before its depth; also of what is not yet checked."""
    pending: list[tuple[_Pointer, Any]] = [(None, schema)]
    seen: set[int] = set()
    while pending:
        pointer, node = pending.pop()
        if isinstance(node, bool):
            yield pointer, node
            continue
        if not isinstance(node, Mapping):
            _refuse(pointer, "a subschema", "an object or a boolean", node)
        if id(node) in seen:  # a reference into it, or one object used twice by the caller
            continue
        seen.add(id(node))
        yield pointer, node
        pending.extend(reversed(list(_children(pointer, node, schema))))


def _children(pointer: _Pointer, node: Mapping[str, Any], root: Schema) -> Iterator[tuple[_Pointer, Any]]:
    for keyword, value in node.items():
        here: _Pointer = (pointer, keyword)
        if keyword in _SCHEMA_MAPS and isinstance(value, Mapping):
            for name, child in value.items():
                if keyword != "dependencies" or not isinstance(child, list):
                    yield (here, name), child
        elif isinstance(value, list) and (keyword in _SCHEMA_LISTS or keyword == "items"):
            for i, child in enumerate(value):
                yield (here, i), child
        elif keyword in _ONE_SCHEMA and not isinstance(value, bool):
            yield here, value
        elif keyword == "$ref" and isinstance(value, str) and value.startswith("#/"):
            target = resolve(root, value)
            if isinstance(target, Mapping | bool):
                chain: _Pointer = None
                for part in value.split("/")[1:]:
                    chain = (chain, unquote(part).replace("~1", "/").replace("~0", "~"))
                yield chain, target


def _text(pointer: _Pointer) -> str:
    parts = []
    while pointer is not None:
        pointer, part = pointer
        parts.append(str(part).replace("~", "~0").replace("/", "~1"))
    return "/".join(["#", *reversed(parts)])


def _refuse(pointer: _Pointer, what: str, accepted: str, value: object) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise InvalidGrammar(f"{_text(pointer)}: {what} must be {accepted}, not {shown}", field="constraint.schema")


_Check: TypeAlias = Callable[[_Pointer, str, object], None]


def _expect(accepted: str, accepts: Callable[[Any], bool]) -> _Check:
    def check(pointer: _Pointer, keyword: str, value: object) -> None:
        if not accepts(value):
            _refuse(pointer, f"`{keyword}`", accepted, value)

    return check


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_types(value: object) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v in TYPES for v in value)


def _build_checks() -> dict[str, _Check]:
    types = f"one of {', '.join(TYPES)} or a list of these"
    groups: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
        ("type", types, _is_types),
        ("enum", "a list of at least one value", lambda v: isinstance(v, list) and bool(v)),
        ("$ref $dynamicRef $id $anchor format pattern", "a string", lambda v: isinstance(v, str)),
        (
            "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains",
            "a non-negative integer",
            _is_count,
        ),
        ("minimum maximum", "a number", _is_number),
        # draft 4 wrote booleans
        ("exclusiveMinimum exclusiveMaximum", "a number", lambda v: _is_number(v) or isinstance(v, bool)),
        ("multipleOf", "a number above 0", lambda v: _is_number(v) and v > 0),
        ("uniqueItems", "true or false", lambda v: isinstance(v, bool)),
        ("required", "a list of strings", _is_strings),
        (
            "dependentRequired",
            "an object of lists of strings",
            lambda v: isinstance(v, Mapping) and all(map(_is_strings, v.values())),
        ),
        (
            "dependencies",
            "an object of schemas and lists of strings",
            lambda v: isinstance(v, Mapping) and all(not isinstance(c, list) or _is_strings(c) for c in v.values()),
        ),
        (
            "$defs definitions dependentSchemas patternProperties properties",
            "an object of schemas",
            lambda v: isinstance(v, Mapping),
        ),
        (" ".join(_SCHEMA_LISTS), "a list of at least one schema", lambda v: isinstance(v, list) and bool(v)),
    )
    return {name: _expect(accepted, accepts) for names, accepted, accepts in groups for name in names.split()}


_CHECKS = _build_checks()
