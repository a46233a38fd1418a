"""Separate the patterns of names in several objects' schemas that apply to one object, as engines combine these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from guideway.json_schema.rewriting.joining import Written, all_of, parts_of
from guideway.json_schema.walking import Schema

__all__ = ["Parts", "Together", "replace_patterns"]

START = "#/$defs/"
DEEPEST = 12
Parts: TypeAlias = Mapping[str, Sequence[str]]
"""For patterns of names, those to write in their place, which exclude each other."""


class Together:
    """Finds the patterns that stand in different maps of a written schema and apply to the same object."""

    def __init__(self, schema: Mapping[str, Any], most: int) -> None:
        self._definitions: Mapping[str, Schema] = schema.get("$defs", {})
        self._left = most
        self._pairs: dict[tuple[str, str], None] = {}
        for each in (schema, *parts_of(schema)):
            self._visit(each, 0)

    def groups(self, overlap: Callable[[str, str], bool]) -> list[list[str]]:
        """Return sets of patterns: those that `overlap` when they apply together, and others that overlap these."""
        found: list[list[str]] = []
        for pair in self._pairs:
            if overlap(*pair):
                joined = [group for group in found if not set(pair).isdisjoint(group)]
                found = [group for group in found if group not in joined]
                found.append(list(dict.fromkeys([*(name for group in joined for name in group), *pair])))
        return found

    def _visit(self, schema: Schema, depth: int) -> set[str]:
        """Return the patterns for the names of an object that a subschema applies to."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth > DEEPEST or self._left < 0:
            return set()
        parts = [set(schema.get("patternProperties", ()))]
        parts += [self._visit(each, depth + 1) for each in schema.get("allOf", ())]
        parts.append(set().union(*(self._visit(each, depth + 1) for each in schema.get("anyOf", ()))))
        if "$ref" in schema:
            parts.append(self._visit(self._definitions[schema["$ref"].removeprefix(START)], depth + 1))
        for first, second in combinations(parts, 2):
            self._pairs |= {(min(a, b), max(a, b)): None for a in sorted(first) for b in sorted(second) if a != b}
        return set().union(*parts)


def replace_patterns(schema: Any, parts: Parts) -> Any:
    """Return a written schema with other patterns of names. A pattern without parts is left out, and so is what is said
    of the names in which no pattern is found."""
    if isinstance(schema, list):
        return [replace_patterns(each, parts) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    out: Written = {}
    for keyword, value in schema.items():
        if keyword in ("enum", "const"):
            out[keyword] = value
        elif keyword == "patternProperties":
            found: Written = {}
            for name, each in value.items():
                for part in parts.get(name, [name]):
                    found[part] = all_of([found.get(part, True), replace_patterns(each, parts)])
            out |= {keyword: found} if found else {}
        elif keyword in ("properties", "$defs"):
            out[keyword] = {name: replace_patterns(each, parts) for name, each in value.items()}
        else:
            out[keyword] = replace_patterns(value, parts)
    if any(not parts.get(name, [name]) for name in schema.get("patternProperties", ())):
        out.pop("additionalProperties", None)
    return out
