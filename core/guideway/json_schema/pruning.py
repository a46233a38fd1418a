"""Remove the parts of a schema that no value satisfies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from guideway.errors import InvalidGrammar
from guideway.json_schema.emptiness import Emptiness
from guideway.json_schema.kinds import ARRAY, OF_KIND, TYPES, kinds_of
from guideway.json_schema.reading import Node, draft_of
from guideway.json_schema.walking import (
    ONE_SCHEMA,
    SCHEMA_MAPS,
    Chain,
    Pointer,
    Schema,
    parts_of,
    resolve,
    walk,
)

__all__ = ["check_satisfiable", "pruned"]

_DEFINITIONS = frozenset({"$defs", "definitions"})


def check_satisfiable(schema: Schema, prefix: Chain = None) -> None:
    """Raise `InvalidGrammar`, with the JSON pointer of the cause, if a checked schema is proved to be unsatisfiable.
    `prefix` is the place of the schema."""
    _check(Emptiness(schema), prefix)


def pruned(schema: Schema, prefix: Chain = None) -> Schema:
    """Return a checked schema without the parts that no value satisfies: properties, branches, items, and types that
    its other keywords exclude. The instances and the order of properties stay the same. Without such parts, the same
    object is returned. Raises `InvalidGrammar` as `check_satisfiable` does.

    Parts that cannot be removed, such as a property if others are allowed, become ``false``."""
    emptiness = Emptiness(schema)
    _check(emptiness, prefix)
    if not emptiness.is_found:
        return schema
    for drops_definitions in (True, False):
        copy = json.loads(json.dumps(schema))
        if (found := _without_empty(copy, drops_definitions)) is not None:
            if found == schema:
                return schema
            if isinstance(found, dict) and draft_of(found) != (draft := emptiness.source.draft):
                found = {"$schema": f"http://json-schema.org/draft-0{draft}/schema#", **found}  # its signs are removed
            return found
    return schema


def _check(emptiness: Emptiness, prefix: Chain) -> None:
    reason = emptiness.reason()
    if reason is None:
        return
    for part in parts_of(reason.place):
        prefix = (prefix, part)
    raise InvalidGrammar(
        f"{Pointer(prefix)}: {reason.text}, so no value satisfies the whole schema; change what is written there",
        field="constraint",
    )


def _without_empty(schema: dict[str, Any], drops_definitions: bool) -> Schema | None:
    """Remove empty parts from a schema in place. Return None if a reference has, or may have, another target
    afterwards."""
    emptiness = Emptiness(schema)
    targets = {id(node.schema): _target(node.schema, node.resource[1]) for node in emptiness.source}
    if any(_refers_by_name(node.schema) for node in emptiness.source):
        return None
    for node in emptiness.source:
        if not emptiness.is_empty(node.schema):
            _prune(node, emptiness, drops_definitions)
    for _, each, (_, resource) in walk(schema):
        if isinstance(each, Mapping) and _target(each, resource) is not targets[id(each)]:
            return None
    return schema


def _target(node: Mapping[str, Any], resource: Schema) -> Any:
    return resolve(resource, node["$ref"]) if "$ref" in node else None


def _refers_by_name(node: Mapping[str, Any]) -> bool:
    """Return whether a subschema refers to others other than by JSON pointer."""
    reference = node.get("$ref", "#")
    return "$dynamicRef" in node or "$recursiveRef" in node or not (reference == "#" or reference.startswith("#/"))


def _prune(read: Node, emptiness: Emptiness, drops_definitions: bool) -> None:
    node: dict[str, Any] = read.schema  # type: ignore[assignment]
    is_empty: Callable[[Any], bool] = emptiness.is_empty
    if lost := emptiness.lost_types.get(id(node)):
        typed = node.get("type", [name for name in TYPES if name != "integer"])
        left = [name for name in typed if name not in lost]
        node["type"] = left[0] if len(left) == 1 else left
        for keyword in (_keywords_of(lost) - _keywords_of(left)) & node.keys():
            del node[keyword]
    for keyword in ("anyOf", "oneOf"):
        if keyword in read.keywords:
            node[keyword] = [branch for branch in node[keyword] if not is_empty(branch)]
    if is_empty(read.keywords.get("not", True)):
        del node["not"]
    if is_empty(read.keywords.get("contains", True)) and (
        read.keywords.get("minContains") == 0 or not emptiness.kinds(node) & ARRAY
    ):
        for keyword in {"contains", "minContains", "maxContains"} & node.keys():
            del node[keyword]
    _prune_items(node, read, is_empty)
    if "properties" in node and is_empty(node.get("additionalProperties", True)) and not node.get("patternProperties"):
        node["properties"] = {name: part for name, part in node["properties"].items() if not is_empty(part)}
    for keyword in _DEFINITIONS & node.keys() if drops_definitions else ():
        node[keyword] = {name: part for name, part in node[keyword].items() if not is_empty(part)}
    for keyword, value in node.items():
        if keyword in SCHEMA_MAPS - _DEFINITIONS:
            node[keyword] = {name: False if is_empty(part) else part for name, part in value.items()}
        elif keyword in ONE_SCHEMA and is_empty(value):
            node[keyword] = False


def _keywords_of(types: list[str]) -> set[str]:
    """Return the keywords that apply only to values of some types."""
    return {keyword for kind, keywords in OF_KIND.items() if kind & kinds_of(types) for keyword in keywords}


def _prune_items(node: dict[str, Any], read: Node, is_empty: Callable[[Any], bool]) -> None:
    first, rest = (read.old_names.get(keyword, keyword) for keyword in ("prefixItems", "items"))
    items = read.keywords.get("prefixItems", [])
    length = next((i for i, item in enumerate(items) if is_empty(item)), len(items))
    if length == len(items) and not is_empty(read.keywords.get("items", True)):
        return
    if length:
        node[first], node["additionalItems" if first == "items" else rest] = items[:length], False
        return
    for keyword in {first, rest} & node.keys():
        del node[keyword]
    node["maxItems"] = 0
