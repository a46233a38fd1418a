"""Combine written schemas, without changing what a keyword means beside others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from guideway.json_schema.kinds import (
    ANY,
    ARRAY,
    BOOLEAN,
    FRACTION,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    kind_of,
    kinds_among,
    kinds_of,
)
from guideway.json_schema.walking import Schema

__all__ = ["Written", "all_of", "any_of", "parts_of", "possible_kinds", "typed"]

Written: TypeAlias = dict[str, Any]

OF_OBJECTS = frozenset({"properties", "patternProperties", "additionalProperties"})
COUNTS = frozenset({"minProperties", "maxProperties"})
"""Keywords that engines take beside some properties only; apart from these, the engine decides when it compiles."""
OF_ARRAYS = frozenset({"prefixItems", "items"})
APPLYING = frozenset({"$ref", "allOf", "anyOf"})
NAMES = ("object", OBJECT), ("array", ARRAY), ("string", STRING), ("boolean", BOOLEAN), ("null", NULL)


def typed(kinds: int) -> Schema:
    """Return a schema for values of some kinds. A kind of number without the other becomes both, unless it is
    ``INTEGER``."""
    names = [name for name, kind in NAMES if kinds & kind]
    if kinds & NUMBER:
        names.append("integer" if not kinds & FRACTION else "number")
    if len(names) == len(NAMES) + 1 and kinds & FRACTION:
        return True
    return {"type": names[0] if len(names) == 1 else names} if names else False


def possible_kinds(schema: Schema, depth: int = 0) -> int:
    """Return the kinds of the instances of a written schema, perhaps too many."""
    if not isinstance(schema, Mapping):
        return ANY if schema else 0
    found = kinds_of(schema["type"]) if "type" in schema else ANY
    if "const" in schema:
        found &= kind_of(schema["const"])
    if "enum" in schema:
        found &= kinds_among(schema["enum"])
    if depth < 6:
        for part in schema.get("allOf", ()):
            found &= possible_kinds(part, depth + 1)
        if "anyOf" in schema:
            found &= _union(possible_kinds(part, depth + 1) for part in schema["anyOf"])
    return found


def any_of(cases: Iterable[Schema]) -> Schema:
    """Return the union of written schemas."""
    found: dict[str, Schema] = {}
    for case in cases:
        if case is True or case == {}:
            return True
        parts = case["anyOf"] if isinstance(case, Mapping) and case.keys() == {"anyOf"} else [case]
        found.update((json.dumps(part), part) for part in parts if part is not False)
    types = [key for key, part in found.items() if isinstance(part, Mapping) and part.keys() == {"type"}]
    if len(types) > 1:
        merged = typed(_union(kinds_of(found.pop(key)["type"]) for key in types))  # type: ignore[index]
        if merged is True:
            return True
        found = {"": merged, **found}
    left = list(found.values())
    return {"anyOf": left} if len(left) > 1 else left[0] if left else False


def all_of(parts: Iterable[Schema]) -> Schema:
    """Return the intersection of written schemas. Properties keep their order."""
    out: Written = {}
    choices: list[list[Schema]] = []
    flat = list(_flat(parts))
    kinds = ANY
    for part in flat:
        kinds &= possible_kinds(part)
    if not kinds:
        return False
    for part in flat:
        if part is True or part == {}:
            continue
        if isinstance(part, Mapping) and part.keys() == {"anyOf"}:
            branches = [branch for branch in part["anyOf"] if possible_kinds(branch) & kinds]
            if len(branches) > 1:
                choices.append(branches)
                continue
            part = branches[0] if branches else False
        if part is False:
            return False
        for each in _flat([part]):
            if not isinstance(each, Mapping):
                if each:
                    continue
                return False
            _add(out, each)
    for branches in choices:
        if any(branch is True or branch == {} for branch in branches):
            continue
        _add(out, {"anyOf": branches})
    return out or True


def parts_of(schema: Schema) -> Iterator[Schema]:
    """Yield the subschemas of a written schema, and theirs."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping):
            continue
        parts = [
            node[keyword]
            for keyword in ("items", "additionalProperties", "contains", "propertyNames")
            if keyword in node
        ]
        for keyword in ("allOf", "anyOf", "prefixItems"):
            parts += node.get(keyword, ())
        for keyword in ("properties", "patternProperties", "$defs"):
            parts += node.get(keyword, {}).values()
        yield from parts
        pending += parts


def _add(out: Written, part: Mapping[str, Any]) -> None:
    if "type" in part and part["type"] == out.get("type"):
        part = {keyword: value for keyword, value in part.items() if keyword != "type"}
    if part.keys() == {"required"} and "required" in out:
        out["required"] = list(dict.fromkeys([*out["required"], *part["required"]]))
    elif part.keys() == {"properties"} and not any(each is not False for each in part["properties"].values()):
        out["properties"] = {**out.get("properties", {}), **part["properties"]}  # forbidden names have no order
    elif _can_merge(out, part):
        out.update(part)
    else:
        out["allOf"] = [*out.get("allOf", ()), dict(part)]


def _can_merge(out: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Return whether the keywords of a part mean the same among those of `out`, and its properties do not move before
    those of other schemas that apply."""
    if out.keys() & part.keys():
        return False
    if APPLYING & out.keys() and part.keys() & {"properties", "required", "$ref"}:
        return False
    if any(COUNTS & one.keys() and "properties" in other for one, other in ((out, part), (part, out))):
        return False
    if "additionalProperties" in {*out, *part} and OF_OBJECTS & out.keys() and OF_OBJECTS & part.keys():
        return False
    return not (OF_ARRAYS & out.keys() and OF_ARRAYS & part.keys())


def _flat(parts: Iterable[Schema]) -> Iterable[Schema]:
    for part in parts:
        if isinstance(part, Mapping) and part.keys() == {"allOf"}:
            yield from _flat(part["allOf"])
        else:
            yield part


def _union(kinds: Iterable[int]) -> int:
    found = 0
    for each in kinds:
        found |= each
    return found
