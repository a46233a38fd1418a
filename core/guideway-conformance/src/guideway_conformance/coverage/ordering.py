"""Write the properties of an instance in the order of its schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from guideway.json_schema.reading import Node, Source

__all__ = ["in_declared_order"]

MAX_DEPTH = 60
"""Nesting levels of an instance to put in order."""


def in_declared_order(schema: Any) -> Callable[[Any], Any]:
    """Return a function that returns an instance of a checked schema with the properties of its objects in the order of
    ``properties`` and ``required``, also in other schemas that apply to the same value; other properties come last."""
    source = Source(schema)

    def order(value: Any, schemas: Iterable[Any], depth: int = 0) -> Any:
        if not isinstance(value, dict | list) or depth > MAX_DEPTH:
            return value
        nodes: list[Node] = []
        for each in schemas:
            _gather(source, each, nodes, set())
        if isinstance(value, list):
            return [order(item, _item_schemas(nodes, i), depth + 1) for i, item in enumerate(value)]
        places: dict[str, int] = {}
        for node in nodes:
            for name in (*node.keywords.get("properties", ()), *node.keywords.get("required", ())):
                places.setdefault(name, len(places))
        names = sorted(value, key=lambda name: places.get(name, len(places)))
        return {name: order(value[name], _property_schemas(nodes, name), depth + 1) for name in names}

    return lambda value: order(value, [schema])


def _gather(source: Source, schema: Any, nodes: list[Node], seen: set[int]) -> None:
    """Append the schemas that may apply to the same value as `schema`, in their order."""
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return
    seen.add(id(schema))
    node = source.read(schema, None)
    nodes.append(node)
    for keyword, value in node.keywords.items():
        if keyword == "$ref":
            _gather(source, source.target(node, keyword), nodes, seen)
        elif keyword in ("allOf", "anyOf", "oneOf"):
            for part in value:
                _gather(source, part, nodes, seen)
        elif keyword in ("if", "then", "else"):
            _gather(source, value, nodes, seen)
        elif keyword == "dependentSchemas":
            for part in value.values():
                _gather(source, part, nodes, seen)


def _item_schemas(nodes: Iterable[Node], place: int) -> Iterator[Any]:
    for node in nodes:
        first = node.keywords.get("prefixItems", ())
        yield first[place] if place < len(first) else node.keywords.get("items")


def _property_schemas(nodes: Iterable[Node], name: str) -> Iterator[Any]:
    for node in nodes:
        found = [
            schema for pattern, schema in node.keywords.get("patternProperties", {}).items() if _has(pattern, name)
        ]
        if name in node.keywords.get("properties", {}):
            found.append(node.keywords["properties"][name])
        yield from found or [node.keywords.get("additionalProperties")]


def _has(pattern: str, name: str) -> bool:
    with suppress(re.error):
        return re.search(pattern, name) is not None
    return False
