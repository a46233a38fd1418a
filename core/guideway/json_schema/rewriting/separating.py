"""Separate the patterns of names in several objects' schemas that apply to one object, as engines combine these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from guideway.json_schema.rewriting.joining import Written, all_of, parts_of
from guideway.json_schema.walking import Schema

__all__ = ["Parts", "Together", "replace_patterns"]

START = "#/$defs/"
Parts: TypeAlias = Mapping[str, Sequence[str]]
"""For patterns of names, those to write in their place, which exclude each other."""


class Together:
    """Finds the patterns that stand in different maps of a written schema and apply to the same object."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions: dict[str, frozenset[str]] = dict.fromkeys(schema.get("$defs", {}), frozenset())
        """The patterns for the names of an object that each definition applies to."""
        self._pairs: dict[tuple[str, str], None] = {}
        before = None
        while before != self._definitions:  # definitions may refer to themselves
            before = dict(self._definitions)
            for name in reversed(before):  # most refer to later ones
                self._definitions[name] = frozenset().union(*self._parts(schema["$defs"][name]))
        for each in (schema, *parts_of(schema)):
            for first, second in combinations(self._parts(each), 2):
                self._pairs |= {(min(a, b), max(a, b)): None for a in sorted(first) for b in sorted(second) if a != b}

    def groups(self, overlap: Callable[[str, str], bool]) -> list[list[str]]:
        """Return sets of patterns: those that `overlap` when they apply together, and others that overlap these."""
        found: list[list[str]] = []
        for pair in self._pairs:
            if overlap(*pair):
                joined = [group for group in found if not set(pair).isdisjoint(group)]
                found = [group for group in found if group not in joined]
                found.append(list(dict.fromkeys([*(name for group in joined for name in group), *pair])))
        return found

    def _parts(self, schema: Schema) -> list[frozenset[str]]:
        """Return the patterns of each part of a subschema that applies to the same object."""
        if not isinstance(schema, Mapping):
            return []
        parts = [frozenset(schema.get("patternProperties", ()))]
        parts += [frozenset().union(*self._parts(each)) for each in schema.get("allOf", ())]
        parts.append(frozenset().union(*(each for branch in schema.get("anyOf", ()) for each in self._parts(branch))))
        if "$ref" in schema:
            parts.append(self._definitions[schema["$ref"].removeprefix(START)])
        return [part for part in parts if part]


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
