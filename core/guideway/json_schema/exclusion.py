"""Prove that no instance can satisfy two branches of a ``oneOf``, which is then equivalent to ``anyOf``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any, TypeAlias

from guideway.json_schema.walking import Schema, resolve, subschemas

__all__ = ["Exclusion"]

TYPES = frozenset({"string", "number", "boolean", "null", "array", "object"})
RANGES = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
Outer: TypeAlias = tuple[frozenset[str], frozenset[str]]
"""The possible types of an instance, and the names that it has if it is an object."""
ANYTHING: Outer = (TYPES, frozenset())
DEEPEST = 12
"""Maximum depth of references and nested schemas to follow."""
MOST_BRANCHES = 64
MOST_VALUES = 256
"""Maximum number of ``enum`` values to compare."""
MOST_PAIRS = 20_000
"""Maximum pairs of schemas to compare in a whole schema, which bounds the work."""


class Exclusion:
    """A prover that branches of a checked schema exclude each other."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._is_one: bool | None = None
        self._left = MOST_PAIRS
        dialect = str(root.get("$schema")) if isinstance(root, Mapping) else ""
        self._has_const = not any(draft in dialect for draft in ("/draft-03", "/draft-04"))

    def is_exclusive(self, schema: Mapping[str, Any]) -> bool:
        """Return True if it is proved, from types, constants and required properties, that no instance satisfies two
        branches of the ``oneOf`` of a subschema. False proves nothing."""
        branches = schema["oneOf"]
        if len(branches) > MOST_BRANCHES:
            return False
        return all(self.excludes(first, second, schema) for first, second in combinations(branches, 2))

    def excludes(self, first: Any, second: Any, around: Mapping[str, Any]) -> bool:
        """Return True if it is proved that no instance of the schema `around` two others satisfies both. False proves
        nothing."""
        outer = self._named_types(around), frozenset(around.get("required", ()))
        return self._exclude(first, second, outer, 0)

    def _exclude(self, first: Any, second: Any, outer: Outer, depth: int) -> bool:
        """Return whether no instance with the properties `outer` satisfies both."""
        if first is False or second is False:
            return True
        self._left -= 1
        if self._left < 0 or depth > DEEPEST or not isinstance(first, Mapping) or not isinstance(second, Mapping):
            return False
        for one, other in ((first, second), (second, first)):
            if "$ref" in one:  # siblings of $ref count in some drafts
                target = self._target(one)
                return target is not None and self._exclude(target, other, outer, depth + 1)
        types = self._types(first, depth) & self._types(second, depth) & outer[0]
        outer = types, outer[1]
        if (
            not types
            or _are_apart(first, second, types)
            or _have_no_value_in_common(self._values(first), self._values(second))
        ):
            return True
        for one, other in ((first, second), (second, first)):
            if any(self._exclude(part, other, outer, depth + 1) for part in one.get("allOf", ())):
                return True
            for keyword in ("anyOf", "oneOf"):
                parts = one.get(keyword, ())
                if parts and all(self._exclude(part, other, outer, depth + 1) for part in parts):
                    return True
        return types == {"object"} and self._objects_exclude(first, second, outer[1], depth)

    def _objects_exclude(
        self, first: Mapping[str, Any], second: Mapping[str, Any], required: frozenset[str], depth: int
    ) -> bool:
        required = required.union(first.get("required", ()), second.get("required", ()))
        if any(_forbids(each, name) for each in (first, second) for name in required):
            return True
        here, there = first.get("properties", {}), second.get("properties", {})
        return any(
            self._exclude(here[name], there[name], ANYTHING, depth + 1)
            for name in sorted(required & here.keys() & there.keys())
        )

    def _types(self, schema: Any, depth: int) -> frozenset[str]:
        """Return the possible types of an instance, perhaps too many."""
        if not isinstance(schema, Mapping) or depth > DEEPEST or self._left < 0:
            return TYPES
        if "$ref" in schema:
            target = self._target(schema)
            return TYPES if target is None else self._types(target, depth + 1)
        self._left -= 1
        found = self._named_types(schema)
        for part in schema.get("allOf", ()):
            found &= self._types(part, depth + 1)
        return found

    def _target(self, schema: Mapping[str, Any]) -> Schema | None:
        """Return the target of a schema's local reference; None if it is unknown."""
        reference = schema["$ref"]
        if not (reference == "#" or reference.startswith("#/")):
            return None
        if self._is_one is None:
            inner = (each for _, each in subschemas(self._root) if isinstance(each, Mapping) and each is not self._root)
            self._is_one = not any(each.keys() & {"$id", "id"} for each in inner)
        target = resolve(self._root, reference) if self._is_one else None
        return target if isinstance(target, Mapping | bool) else None

    def _named_types(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """Return the types that the schema's own keywords allow."""
        found = TYPES
        if (typed := schema.get("type")) is not None:
            names = [typed] if isinstance(typed, str) else typed
            found &= {"number" if name == "integer" else name for name in names}
        if (values := self._values(schema)) is not None:
            found &= {_type(value) for value in values}
        return found

    def _values(self, schema: Mapping[str, Any]) -> list[Any] | None:
        """Return the values that a schema lists; None if it has no list."""
        if self._has_const and "const" in schema:
            return [schema["const"]]
        return schema.get("enum")


def _type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
    return "array" if isinstance(value, list) else "object"


def _have_no_value_in_common(some: list[Any] | None, others: list[Any] | None) -> bool:
    """Return whether both lists are known and have no value in common."""
    if some is None or others is None or max(len(some), len(others)) > MOST_VALUES:
        return False
    if any(isinstance(value, dict | list) for value in (*some, *others)):  # equality is more than equal text
        return False
    return {_key(value) for value in some}.isdisjoint(_key(value) for value in others)


def _key(value: object) -> object:
    """Return a key that is equal for equal scalars of JSON Schema: 1 and 1.0, but not 1 and true."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)


def _are_apart(first: Mapping[str, Any], second: Mapping[str, Any], types: frozenset[str]) -> bool:
    """Return whether for each type, one schema's minimum is above the other's maximum."""

    def is_below(one: Mapping[str, Any], other: Mapping[str, Any], low: str, high: str) -> bool:
        return high in one and low in other and bool(one[high] < other[low])

    return all(
        kind in RANGES and (is_below(first, second, *RANGES[kind]) or is_below(second, first, *RANGES[kind]))
        for kind in types
    )


def _forbids(schema: Mapping[str, Any], name: str) -> bool:
    """Return whether no object of a schema has a property of this name."""
    if schema.get("properties", {}).get(name) is False:
        return True
    listed = name in schema.get("properties", {}) or "patternProperties" in schema
    return schema.get("additionalProperties") is False and not listed
