"""Prove that a schema refuses a value, for the values of ``enum`` and ``const``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guideway.json_schema.kinds import ARRAY, NUMBER, OBJECT, STRING, equal, kind_of, kinds_of
from guideway.json_schema.ranges import MOST_EXACT, counts, number_range
from guideway.json_schema.reading import Source

__all__ = ["refuse", "refuses"]

DEEPEST = 8
"""Maximum levels of a value to compare with its schema."""


def refuses(source: Source, schema: Any, value: Any, depth: int = 0) -> bool:
    """Return True if `value` is certainly not an instance of a part of a checked schema. False proves nothing:
    patterns, formats, references, negations and conditions are not checked."""
    if not isinstance(schema, Mapping):
        return schema is False
    return refuse(source, source.read(schema).keywords, value, depth)


def refuse(source: Source, keywords: Mapping[str, Any], value: Any, depth: int = 0) -> bool:
    """Return `refuses` for the keywords that were read of a subschema."""
    kind = kind_of(value)
    if "type" in keywords and not kind & kinds_of(keywords["type"]):
        return True
    if "const" in keywords and not equal(value, keywords["const"]):
        return True
    if "enum" in keywords and not any(equal(value, each) for each in keywords["enum"]):
        return True
    if depth >= DEEPEST:
        return False
    if any(refuses(source, part, value, depth + 1) for part in keywords.get("allOf", ())):
        return True
    for keyword in ("anyOf", "oneOf"):
        branches = keywords.get(keyword)
        if branches and all(refuses(source, branch, value, depth + 1) for branch in branches):
            return True
    if kind & NUMBER:
        numbers = number_range([keywords])
        if not numbers.has(value) or numbers.multiple is None or not isinstance(value, int) or abs(value) > MOST_EXACT:
            return not numbers.has(value)  # validators divide doubles, and may disagree about multiples
        return value % numbers.multiple != 0
    if kind == STRING:
        return _is_outside(len(value), keywords, "minLength", "maxLength")
    if kind == ARRAY:
        first, rest = keywords.get("prefixItems", ()), keywords.get("items", True)
        return _is_outside(len(value), keywords, "minItems", "maxItems") or any(
            refuses(source, first[i] if i < len(first) else rest, item, depth + 1) for i, item in enumerate(value)
        )
    if kind == OBJECT:
        declared = keywords.get("properties", {})
        other = True if keywords.get("patternProperties") else keywords.get("additionalProperties", True)
        return (
            _is_outside(len(value), keywords, "minProperties", "maxProperties")
            or not value.keys() >= set(keywords.get("required", ()))
            or any(refuses(source, declared.get(name, other), each, depth + 1) for name, each in value.items())
        )
    return False


def _is_outside(count: int, keywords: Mapping[str, Any], least: str, most: str) -> bool:
    low, high = counts([keywords], least, most)
    return not low <= count <= high
