"""Find the subschemas of a written schema that apply to the same value, as engines combine these, and separate their
patterns of names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, TypeAlias

from guideway.json_schema.rewriting.joining import Written, all_of, parts_of
from guideway.json_schema.walking import Schema

__all__ = ["Parts", "Together", "replace_patterns"]

START = "#/$defs/"
OWN = frozenset({"properties", "patternProperties", "additionalProperties", "prefixItems", "items"})
"""Keywords that apply to the parts of a value."""
Node: TypeAlias = Mapping[str, Any]
Parts: TypeAlias = Mapping[str, Sequence[str]]
"""For patterns of names, those to write in their place, which exclude each other."""


class Together:
    """The pairs of subschemas of a written schema with patterns that may apply to the same value, each as its `OWN`
    keywords. ``overlap(first, second)`` returns whether patterns may be found in one name, and ``finds(pattern, name)``
    whether one is found. Looks at `most` subschemas and pairs; engines tell what is not found."""

    def __init__(
        self, schema: Node, most: int, overlap: Callable[[str, str], bool], finds: Callable[[str, str], bool]
    ) -> None:
        self._definitions: Mapping[str, Schema] = schema.get("$defs", {})
        self._overlap, self._finds, self._left = overlap, finds, most
        self._pairs: dict[tuple[str, str], tuple[Node, Node]] = {}
        self._pending: list[tuple[Node, Node]] = []
        nodes = [each for each in (schema, *parts_of(schema)) if isinstance(each, Mapping)]
        if len({pattern for node in nodes for pattern in node.get("patternProperties", ())}) < 2:
            return
        for node in nodes:
            for first, second in combinations(_groups(node), 2):
                self._add(first, second)
        while self._pending:
            for one, other in self._inside(*self._pending.pop()):
                self._add([one], [other])

    def overlapping(self) -> list[list[str]]:
        """Return sets of patterns: those that overlap when they apply together, and others that overlap these."""
        pairs: dict[tuple[str, str], None] = {}
        for first, second in self._pairs.values():
            for one, other in product(first.get("patternProperties", ()), second.get("patternProperties", ())):
                if one != other:
                    pairs[min(one, other), max(one, other)] = None
        found: list[list[str]] = []
        for pair in pairs:
            if self._overlap(*pair):
                joined = [group for group in found if not set(pair).isdisjoint(group)]
                found = [group for group in found if group not in joined]
                found.append(list(dict.fromkeys([*(name for group in joined for name in group), *pair])))
        return found

    def _add(self, first: Sequence[Schema], second: Sequence[Schema]) -> None:
        """Add the pairs of one of the first subschemas, or of what applies where it does, and of one of the second."""
        for (one, node), (other, beside) in product(self._applying(first).items(), self._applying(second).items()):
            key = min(one, other), max(one, other)
            if one != other and key not in self._pairs and self._left > 0:
                self._left -= 1
                self._pairs[key] = node, beside
                self._pending.append((node, beside))

    def _applying(self, schemas: Sequence[Schema]) -> dict[str, Node]:
        """Return the own keywords of some subschemas, and of those that apply where they do; by their text."""
        found: dict[str, Node] = {}
        pending, seen = list(schemas), set()
        while pending and self._left > 0:
            node = pending.pop()
            if not isinstance(node, Mapping) or id(node) in seen:
                continue
            seen.add(id(node))
            self._left -= 1
            own = {keyword: value for keyword, value in node.items() if keyword in OWN}
            if own:
                found[json.dumps(own)] = own
            pending += [*node.get("allOf", ()), *node.get("anyOf", ())]
            if "$ref" in node:
                pending.append(self._definitions[node["$ref"].removeprefix(START)])
        return found

    def _inside(self, first: Node, second: Node) -> Iterator[tuple[Schema, Schema]]:
        """Yield what applies to the same parts of a value to which both apply."""
        for name in {**first.get("properties", {}), **second.get("properties", {})}:
            yield from product(self._named(first, name), self._named(second, name))
        patterns, others = first.get("patternProperties", {}), second.get("patternProperties", {})
        for (one, schema), (other, beside) in product(patterns.items(), others.items()):
            if one == other or self._overlap(one, other):
                yield schema, beside
        rest, other_rest = first.get("additionalProperties", True), second.get("additionalProperties", True)
        yield from ((rest, each) for each in (*others.values(), other_rest))
        yield from ((each, other_rest) for each in patterns.values())
        items, other_items = first.get("prefixItems", ()), second.get("prefixItems", ())
        for i in range(max(len(items), len(other_items)) + 1):
            yield _item(first, i), _item(second, i)

    def _named(self, node: Node, name: str) -> list[Schema]:
        """Return what applies to a property."""
        found = [each for pattern, each in node.get("patternProperties", {}).items() if self._finds(pattern, name)]
        if name in node.get("properties", {}):
            found.append(node["properties"][name])
        return found or [node.get("additionalProperties", True)]


def _groups(node: Node) -> list[Sequence[Schema]]:
    """Return the subschemas that apply where a node does, with its own keywords; one of each group."""
    groups: list[Sequence[Schema]] = [[{keyword: value for keyword, value in node.items() if keyword in OWN}]]
    groups += [[each] for each in node.get("allOf", ())]
    groups += [node["anyOf"]] if "anyOf" in node else []
    return groups + ([[{"$ref": node["$ref"]}]] if "$ref" in node else [])


def _item(node: Node, number: int) -> Schema:
    first = node.get("prefixItems", ())
    item: Schema = first[number] if number < len(first) else node.get("items", True)
    return item


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
