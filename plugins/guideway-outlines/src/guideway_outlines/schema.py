"""JSON Schemas as patterns.

outlines-core writes the pattern. Where that would be wrong, the schema is corrected first, or refused: a ``pattern`` or
``format`` that allows unescaped quotes and line feeds in a JSON string, names that need an escape, and ``allOf``, whose
branches it would write one after the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn

import jsonschema  # type: ignore[import-untyped]
from guideway.api import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema import FORMATS, KEYWORDS, Chain, Pointer, Schema, prefix_errors, resolve, subschemas
from guideway.json_schema.ecma import with_python_patterns
from guideway.json_schema.expressions import ECMA, spelled_out
from outlines_core import json_schema  # type: ignore[import-untyped]

from guideway_outlines.regular import MAX_LENGTH, Node, in_json, parse, simplified, to_rust

MAX_DEPTH = 40
"""Maximum depth of schemas inside schemas, references followed."""
CHARACTERS_OF_ANY = 7_000
"""Characters that outlines-core writes for an object or array of anything."""


def to_node(schema: Schema, whitespace: str) -> Node:
    """Return the pattern of a checked schema, with the pattern `whitespace` between JSON tokens."""
    if not isinstance(schema, Mapping):
        _refuse(Pointer(None), "outlines does not compile the schema `true`", "true")
    _check_size(schema)
    repaired = json.dumps(_repair(schema, None))
    try:
        pattern = json_schema.build_regex_from_schema(repaired, whitespace)
    except ValueError as error:
        message = str(error).split(" \nMake sure")[0][:300]
        raise UnsupportedGrammar(f"outlines-core: {message}", feature="json_schema") from error
    return parse(pattern)


def _repair(schema: Any, place: Chain) -> Any:
    """Return a copy of the subschema at `place` that outlines-core compiles correctly."""
    if not isinstance(schema, Mapping):
        return schema
    if not schema:
        return {"anyOf": [{}]}  # `{}` alone would be alternatives without a group around them
    if "const" in schema or "enum" in schema:
        return _values(schema, place)
    new = _of_its_type(schema)
    if schema.get("minItems", 0) > schema.get("maxItems", schema.get("minItems", 0)):
        raise InvalidGrammar(
            f"{Pointer(place)}: no array has at least `minItems` and at most `maxItems` items",
            field="constraint.schema",
        )
    if len(schema.get("allOf", ())) > 1:
        _refuse(Pointer((place, "allOf")), "outlines does not compile `allOf` of several schemas", "allOf")
    for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        if keyword in new:
            new[keyword] = [_repair(child, ((place, keyword), i)) for i, child in enumerate(schema[keyword])]
    for keyword in ("items", "additionalProperties", "not"):
        if keyword in new and isinstance(schema[keyword], Mapping):
            new[keyword] = _repair(schema[keyword], (place, keyword))
    for keyword in ("$defs", "definitions"):
        if keyword in schema:
            here = (place, keyword)
            new[keyword] = {name: _repair(child, (here, name)) for name, child in schema[keyword].items()}
    if "properties" in new:
        here = (place, "properties")
        new["properties"] = {
            _escape(name): _repair(child, (here, name)) for name, child in schema["properties"].items()
        }
    if "required" in new:
        new["required"] = [_escape(name) for name in schema["required"]]
    if "pattern" in new:
        with prefix_errors(Pointer((place, "pattern"))):
            new["pattern"] = _in_string(schema["pattern"], search=True)
    elif new.get("format") in FORMATS:
        new["pattern"] = _in_string(FORMATS[schema["format"]], search=False)
        del new["format"]
    return new


def _of_its_type(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy without the keywords of other types than its ``type``, some of which outlines-core would prefer."""
    types = schema.get("type", tuple(_SAY))
    types = [types] if isinstance(types, str) else types
    others = {name for kind, names in _SAY.items() if kind not in types for name in names}
    return {name: value for name, value in schema.items() if name not in others}


_SAY = {
    "object": ("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
}
"""Keywords of one type that outlines-core reads."""


def _values(schema: Mapping[str, Any], place: Chain) -> dict[str, Any]:
    """Return the schema of the values of ``const`` or ``enum`` that its other keywords allow, except ``$ref``.
    outlines-core would read some of those keywords instead."""
    values = [schema["const"]] if "const" in schema else schema["enum"]
    plain = {name: value for name, value in schema.items() if name in ASSERTING}
    if any(_refers(value) for name, value in plain.items() if name not in ("const", "enum")):
        message = "outlines does not compile `enum` or `const` beside a keyword with references"
        _refuse(Pointer(place), message, "$ref")
    dialect = jsonschema.Draft7Validator if isinstance(plain.get("items"), list) else jsonschema.Draft202012Validator
    if any(isinstance(plain.get(name), bool) for name in ("exclusiveMinimum", "exclusiveMaximum")):
        dialect = jsonschema.Draft4Validator
    try:
        validator = dialect(with_python_patterns(plain)[0])
        kept = [value for value in values if validator.is_valid(value)]
    except Exception as error:  # such as a pattern that Python cannot compile
        raise UnsupportedGrammar(
            f"{Pointer(place)}: outlines does not compile `enum` or `const` beside an uncheckable keyword: {error}",
            feature="enum",
        ) from error
    if not kept:
        raise InvalidGrammar(
            f"{Pointer(place)}: no value of `enum` or `const` satisfies the other keywords", field="constraint.schema"
        )
    return {"enum": list(map(_with_literal_names, kept))}


def _with_literal_names(value: Any) -> Any:
    """Return a listed value with its names as outlines-core writes strings: it copies names into the pattern."""
    if isinstance(value, list):
        return list(map(_with_literal_names, value))
    if isinstance(value, Mapping):
        return {re.escape(_escape(name)): _with_literal_names(child) for name, child in value.items()}
    return value


ASSERTING = frozenset({"type", "then", "else", *KEYWORDS}) - {"$ref", "$dynamicRef", "$recursiveRef"}


def _refers(value: Any) -> bool:
    """Return whether `value` contains a reference, or anything that looks like one."""
    return '"$' in json.dumps(value)


@lru_cache(maxsize=256)
def _in_string(pattern: str, *, search: bool) -> str:
    return f"^{to_rust(simplified(in_json(parse(spelled_out(pattern, ECMA), search=search))))}$"


def _escape(name: str) -> str:
    """Return a property's name as written between quotes."""
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _check_size(schema: Mapping[str, Any]) -> None:
    """Refuse a schema whose pattern would be too long. References are inlined, items are written twice, and optional
    properties once for each property that could be the last."""
    sizes: dict[int, int] = {}
    entered: set[int] = set()

    def size(node: Any, depth: int) -> int:
        if not isinstance(node, Mapping):
            return CHARACTERS_OF_ANY
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in entered:
            _refuse(_find(node, schema), "outlines does not compile recursive schemas", "$ref:recursive")
        if depth > MAX_DEPTH:
            _refuse(_find(node, schema), f"schemas may be nested {MAX_DEPTH} deep", "depth")
        entered.add(id(node))
        own = len(
            json.dumps([node.get("enum"), node.get("const"), node.get("pattern"), list(node.get("properties", ()))])
        )
        total = 100 + 2 * own + sum(factor * size(child, depth + 1) for factor, child in _children(node, schema))
        entered.remove(id(node))
        if total > MAX_LENGTH:
            _refuse(_find(node, schema), "the pattern of this schema would be too long", "size")
        sizes[id(node)] = total
        return total

    for _, subschema in subschemas(schema):
        size(subschema, 0)


def _children(node: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield the schemas that are inlined in `node`'s pattern, and how often."""
    for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        yield from ((1, child) for child in node.get(keyword, ()))
    types = node.get("type", ())
    types = [types] if isinstance(types, str) else types
    if "items" in node or ("array" in types and "prefixItems" not in node):
        yield 2, node.get("items")
    properties = node.get("properties", {})
    optional = len(properties.keys() - set(node.get("required", ())))
    yield from ((max(optional, 1), child) for child in properties.values())
    if "object" in types and not properties:
        yield 2, node.get("additionalProperties")
    if isinstance(node.get("$ref"), str) and node["$ref"].startswith("#"):
        yield 1, resolve(root, node["$ref"])


def _find(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Pointer:
    """Return the place of a subschema."""
    return next(pointer for pointer, subschema in subschemas(schema) if subschema is node)


def _refuse(place: Pointer, message: str, feature: str) -> NoReturn:
    raise UnsupportedGrammar(f"{place}: {message}", feature=feature)
