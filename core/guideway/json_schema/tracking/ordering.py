"""Write a schema whose objects take their properties in any order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from guideway.json_schema.rewriting.automata import Unknown, literal, searched
from guideway.json_schema.rewriting.joining import all_of, any_of
from guideway.json_schema.rewriting.regular import union
from guideway.json_schema.tracking.alternatives import STEPS, Alternatives, NotTracked
from guideway.json_schema.walking import Schema, walk

__all__ = ["has_order", "in_any_order"]

MOST_PATTERNS: Final = 100
"""Names of one object that are patterns of their own: llguidance compares each with each."""
MOST_VALUES: Final = 70
"""Objects and arrays in one ``enum``: a rewriting lists as many arrays."""
IN_PATTERNS = frozenset(r"\^$.|?*+()[]{}/-")


def has_order(schema: Schema) -> bool:
    """Return whether strategies would write the properties of a checked schema in an order of theirs."""
    return any(
        isinstance(node, Mapping)
        and (
            bool(node.get("properties") or node.get("required"))
            or any(map(_has_order, [node.get("const"), *node.get("enum", ())]))
        )
        for _, node, _ in walk(schema)
    )


def in_any_order(schema: Schema, automata: int) -> tuple[Schema, Schema]:
    """Return a form of a rewritten schema whose properties engines take in any order, and the schema that a
    `RequiredTracker` needs beside it. Raises `NotTracked`, also if it needs more than so many automata of patterns."""
    ordered = _listed_apart(schema)
    Alternatives(ordered, automata)
    return _without_order(ordered), ordered


def _listed_apart(schema: Any) -> Any:
    """Return a rewritten schema with the objects and arrays of ``enum`` and ``const`` as schemas of their parts, which
    `Alternatives` follow. Raises `NotTracked`."""
    if not isinstance(schema, Mapping):
        return schema
    found = _with_parts(schema, _listed_apart)
    values = found.get("enum", [found["const"]] if "const" in found else [])
    others = [_written(value) for value in values if isinstance(value, list | dict)]
    if not others:
        return found
    if len(others) > MOST_VALUES:
        raise NotTracked("too many objects or arrays are listed")
    rest = {keyword: value for keyword, value in found.items() if keyword not in ("enum", "const")}
    if "enum" in found and "const" in found:
        rest["enum"] = found["enum"]
        return all_of([_listed_apart(rest), _listed_apart({"const": found["const"]})])
    plain = [value for value in values if not isinstance(value, list | dict)]
    definitions = {"$defs": rest.pop("$defs")} if "$defs" in rest else {}
    both = all_of([rest, any_of([*([{"enum": plain}] if plain else []), *others])])
    return {**both, **definitions} if isinstance(both, dict) else both


def _without_order(schema: Any) -> Schema:
    """Return a rewritten schema with ``patternProperties`` in place of ``properties``, which engines take in any order,
    and without ``required`` and the number of properties. Raises `NotTracked`."""
    if not isinstance(schema, Mapping):
        return bool(schema)
    found = _with_parts(schema, _without_order)
    for keyword in ("required", "minProperties", "maxProperties"):
        found.pop(keyword, None)
    properties = found.pop("properties", {})
    if properties:
        found["patternProperties"] = _patterns(properties, found.get("patternProperties", {}))
    if "anyOf" not in found:
        return found
    branches = any_of(found.pop("anyOf"))
    if isinstance(branches, bool):
        return found if branches else False
    if branches.keys() == {"anyOf"}:
        return {**found, **branches}
    return {**found, "allOf": [*found.get("allOf", ()), branches]}


def _with_parts(schema: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """Return a schema with another form of its subschemas."""
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties", "$defs"):
            found[keyword] = {name: change(each) for name, each in value.items()}
        elif keyword in ("allOf", "anyOf", "prefixItems"):
            found[keyword] = [change(each) for each in value]
        elif keyword in ("items", "additionalProperties"):
            found[keyword] = change(value)
        else:
            found[keyword] = value
    return found


def _patterns(properties: Mapping[str, Schema], patterns: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return properties as patterns, apart from other patterns."""
    own = {name: [schema] for name, schema in properties.items()}
    others: dict[str, Schema] = {}
    try:
        for pattern, schema in patterns.items():
            automaton = searched(pattern, STEPS)
            both = tuple(name for name in own if name in automaton)
            for name in both:
                own[name].append(schema)
            if both:
                automaton = automaton.meet(literal(both, STEPS).complement())
                pattern = automaton.pattern()
            if not automaton.is_empty():
                others[pattern] = schema
    except Unknown as error:
        raise NotTracked("the patterns of names cannot be told apart from properties") from error
    names = {f"^{_escaped(name)}$": all_of(parts) for name, parts in own.items()}
    if len(names) > MOST_PATTERNS:
        names = _with_equal_schemas(names)
    return {**names, **others}


def _with_equal_schemas(patterns: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return patterns of which those with equal schemas are one. Raises `NotTracked` if there are many then."""
    found: dict[str, list[str]] = {}
    for pattern, schema in patterns.items():
        found.setdefault(json.dumps(schema), []).append(pattern)
    if len(found) > MOST_PATTERNS:
        raise NotTracked(f"an object has more than {MOST_PATTERNS} different properties")
    return {union(each): patterns[each[0]] for each in found.values()}


def _escaped(name: str) -> str:
    return "".join(f"\\{each}" if each in IN_PATTERNS else each for each in name)


def _has_order(value: Any) -> bool:
    """Return whether a value has several spellings that differ in the order of names."""
    if isinstance(value, list):
        return any(map(_has_order, value))
    return isinstance(value, dict) and (len(value) > 1 or any(map(_has_order, value.values())))


def _written(value: Any) -> Schema:
    """Return the schema of one value, whose objects and arrays are not listed."""
    if isinstance(value, dict):
        parts = {name: _written(each) for name, each in value.items()}
        return {"type": "object", "properties": parts, "required": list(value), "additionalProperties": False}
    if not isinstance(value, list):
        return {"const": value}
    length = len(value)
    items = {"prefixItems": list(map(_written, value)), "items": False, "minItems": length} if value else {}
    return {"type": "array", **items, "maxItems": length}
