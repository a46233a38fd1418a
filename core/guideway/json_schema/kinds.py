"""The kinds of JSON values, as bits of an integer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["ANY", "ARRAY", "BOOLEAN", "FRACTION", "INTEGER", "NULL", "NUMBER", "OBJECT", "STRING", "TYPES", "equal"]
__all__ += ["OF_KIND", "kind_of", "kinds_among", "kinds_of"]

NULL, BOOLEAN, STRING, INTEGER, FRACTION, ARRAY, OBJECT = (1 << i for i in range(7))
"""``FRACTION`` is a number that is not an integer; 1.0 is an integer."""
NUMBER = INTEGER | FRACTION
ANY = 127
TYPES = {
    "string": STRING,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": BOOLEAN,
    "null": NULL,
    "array": ARRAY,
    "object": OBJECT,
}
OF_KIND: Mapping[int, frozenset[str]] = {
    ARRAY: frozenset(
        {"items", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", "prefixItems"}
        | {"additionalItems", "unevaluatedItems"}
    ),
    OBJECT: frozenset(
        {"properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties"}
        | {"propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"}
    ),
    NUMBER: frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    STRING: frozenset({"minLength", "maxLength", "pattern", "format"}),
}
"""The keywords that apply only to values of one kind."""


def kinds_of(typed: str | Iterable[str]) -> int:
    """Return the kinds that the value of ``type`` allows."""
    if isinstance(typed, str):
        return TYPES.get(typed, 0)
    found = 0
    for name in typed:
        found |= TYPES.get(name, 0)
    return found


def kinds_among(values: Iterable[Any]) -> int:
    """Return the kinds of some parsed JSON values."""
    found = 0
    for value in values:
        found |= kind_of(value)
    return found


def kind_of(value: Any) -> int:
    """Return the kind of a parsed JSON value."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, str):
        return STRING
    if isinstance(value, int):
        return INTEGER
    if isinstance(value, float):
        return INTEGER if value.is_integer() else FRACTION
    return ARRAY if isinstance(value, list) else OBJECT


def equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if kind_of(first) != kind_of(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    return bool(first == second)
