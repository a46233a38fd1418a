"""Prove that a schema refuses a value, for the values of ``enum`` and ``const``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guideway.json_schema.kinds import ARRAY, NUMBER, OBJECT, STRING, kind_of, kinds_of
from guideway.json_schema.ranges import MOST_EXACT, counts, number_range

__all__ = ["equal", "refuses"]

DEEPEST = 8
"""Maximum levels of a value to compare with its schema."""


def refuses(schema: Any, value: Any, depth: int = 0) -> bool:
    """Return True if `value` is certainly not an instance of a checked schema. False proves nothing: patterns,
    formats, references, negations and conditions are not checked."""
    if not isinstance(schema, Mapping):
        return schema is False
    kind = kind_of(value)
    if "type" in schema and not kind & kinds_of(schema["type"]):
        return True
    if "const" in schema and not equal(value, schema["const"]):
        return True
    if "enum" in schema and not any(equal(value, each) for each in schema["enum"]):
        return True
    if depth >= DEEPEST:
        return False
    if any(refuses(part, value, depth + 1) for part in schema.get("allOf", ())):
        return True
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if branches and all(refuses(branch, value, depth + 1) for branch in branches):
            return True
    if kind & NUMBER:
        low, above, high, below, multiple = number_range([schema])
        outside = value < low or value > high or (above and value == low) or (below and value == high)
        if outside or multiple is None or not isinstance(value, int) or abs(value) > MOST_EXACT:
            return outside  # validators divide doubles, and may disagree about multiples
        return value % multiple != 0
    if kind == STRING:
        return _is_outside(len(value), schema, "minLength", "maxLength")
    if kind == ARRAY:
        return _is_outside(len(value), schema, "minItems", "maxItems") or _refuses_items(schema, value, depth)
    if kind == OBJECT:
        return _is_outside(len(value), schema, "minProperties", "maxProperties") or _refuses_members(
            schema, value, depth
        )
    return False


def equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if kind_of(first) != kind_of(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    return bool(first == second)


def _is_outside(count: int, schema: Mapping[str, Any], least: str, most: str) -> bool:
    low, high = counts([schema], least, most)
    return not low <= count <= high


def _refuses_items(schema: Mapping[str, Any], value: list[Any], depth: int) -> bool:
    first, rest = schema.get("prefixItems", ()), schema.get("items", True)
    if isinstance(rest, list):
        first, rest = rest, schema.get("additionalItems", True)
    return any(refuses(first[i] if i < len(first) else rest, item, depth + 1) for i, item in enumerate(value))


def _refuses_members(schema: Mapping[str, Any], value: Mapping[str, Any], depth: int) -> bool:
    if not value.keys() >= set(schema.get("required", ())):
        return True
    declared = schema.get("properties", {})
    other = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
    return any(refuses(declared.get(name, other), member, depth + 1) for name, member in value.items())
