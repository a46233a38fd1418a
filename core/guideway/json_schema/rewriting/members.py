"""Write the keywords of objects: names, properties, and their number."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from math import comb
from typing import Any, Final

from guideway.json_schema.kinds import ANY, OBJECT, STRING
from guideway.json_schema.patterns import pattern_details
from guideway.json_schema.reading import Node
from guideway.json_schema.rewriting.joining import Written, all_of, any_of, typed
from guideway.json_schema.rewriting.regular import (
    complement,
    finds_all,
    intersection,
    only_texts,
    partition,
    split,
    union,
)
from guideway.json_schema.rewriting.writer import Writer
from guideway.json_schema.walking import Schema

__all__ = ["write"]

ASSERTING: Final = frozenset(
    {"type", "enum", "const", "pattern", "minLength", "maxLength", "format", "anyOf", "oneOf", "allOf", "not", "if"}
    | {"$ref", "$dynamicRef", "$recursiveRef"}
)
"""Keywords that may refuse a name."""
MOST_DEEP = 8


def write(writer: Writer, node: Node, own: Written) -> Iterator[Schema]:
    """Write the keywords of an object into `own`, and yield schemas that must hold in addition."""
    keywords = node.keywords
    properties: dict[str, Schema] = {
        name: writer.yes(value, node.at("properties", name)) for name, value in keywords.get("properties", {}).items()
    }
    rest: Schema | None = None
    if "additionalProperties" in keywords:
        rest = writer.yes(keywords["additionalProperties"], node.at("additionalProperties"))
    patterns, rest = _patterns(writer, node, rest)
    if every := [patterns.pop(name) for name in [*patterns] if writer.build(("every", name), partial(finds_all, name))]:
        rest = None  # there are no other names
        yield {"additionalProperties": all_of(every)}
    if len(patterns) > 1:
        patterns = _separate(writer, node, patterns)
    if keywords.get("unevaluatedProperties", True) is not True:
        if node.applies_others:
            yield writer.lose(node.chain, "unevaluatedProperties", "other schemas apply to the same object", True)
        elif rest is None and not every and "additionalProperties" not in keywords:
            rest = writer.yes(keywords["unevaluatedProperties"], node.at("unevaluatedProperties"))
    if rest is False and not patterns:
        properties = {name: value for name, value in properties.items() if value is not False}
    own |= {"properties": properties} if properties else {}
    own |= {"patternProperties": patterns} if patterns else {}
    own |= {} if rest is None else {"additionalProperties": rest}
    if keywords.get("propertyNames", True) is not True:
        yield _names(writer, node, own)
    for name, needed in keywords.get("dependentRequired", {}).items():
        if not set(needed) <= {name, *own.get("required", ())}:
            yield any_of([{"properties": {name: False}}, {"required": list(dict.fromkeys([name, *needed]))}])
    for name, value in keywords.get("dependentSchemas", {}).items():
        dependent = writer.yes(value, node.at("dependentSchemas", name))
        # engines count properties where those that are declared are required
        yield any_of([{"properties": {name: False}}, all_of([{"required": [name]}, dependent])])
    if "minProperties" in keywords or "maxProperties" in keywords:
        yield from _counts(writer, node, own)


def _patterns(writer: Writer, node: Node, rest: Schema | None) -> tuple[dict[str, Schema], Schema | None]:
    """Return ``patternProperties`` that engines read, and ``additionalProperties``."""
    found: dict[str, Schema] = {}
    for name, value in node.keywords.get("patternProperties", {}).items():
        written = writer.yes(value, node.at("patternProperties", name))
        pattern = _name_pattern(writer, name)
        if pattern is not None:
            found[pattern] = all_of([found.get(pattern, True), written])
        elif written is not True or rest is not None or "unevaluatedProperties" in node.keywords:
            writer.lose(node.chain, "patternProperties", f"engines do not read the pattern {name}", True)
            rest = True
    return found, rest


def _separate(writer: Writer, node: Node, found: dict[str, Schema]) -> dict[str, Schema]:
    """Return ``patternProperties`` whose patterns exclude each other."""
    names, most = list(found), writer.budget.overlaps
    parts = writer.build(("apart", *names), partial(partition, names, most=most))
    if parts is not None:
        return {pattern: all_of(found[name] for name in together) for pattern, together in parts}
    if most > 0:
        return found  # the engine may tell that they exclude each other
    writer.lose(node.chain, "patternProperties", "several patterns may be found in one name", True)
    return {union(names): any_of(found.values())}


def _name_pattern(writer: Writer, pattern: str) -> str | None:
    parts = split(pattern)
    if parts is None:
        return None
    if parts == [(True, pattern)]:
        refused = {f"pattern:{each}" for each in pattern_details(pattern)} - writer.takes
        return None if refused else pattern
    found = writer.build(("all", pattern), partial(intersection, parts))
    return found["pattern"] if isinstance(found, dict) else None


def _names(writer: Writer, node: Node, own: Written) -> Schema:
    names = node.keywords["propertyNames"]
    if "propertyNames" in writer.takes and isinstance(names, dict) and names.get("type") == "string":
        own["propertyNames"] = writer.yes(names, node.at("propertyNames"))
        return True
    if not writer.emptiness.kinds(names) & STRING:
        return any_of([typed(ANY & ~OBJECT), {"maxProperties": 0}])
    pattern = _pattern_of(writer, names, node, 0)
    if pattern is True:
        return True
    if pattern is None:
        return writer.lose(node.chain, "propertyNames", "the names are not one pattern", True)
    return {"patternProperties": {pattern: True}, "additionalProperties": False}


def _pattern_of(writer: Writer, schema: Any, node: Node, depth: int) -> str | bool | None:
    """Return a pattern that is found in exactly the names that satisfy a schema; True if all do, None if unknown."""
    if isinstance(schema, bool) or depth > MOST_DEEP:
        return True if schema is True else None
    inner = writer.source.read(schema, node.chain)
    keywords = {keyword: value for keyword, value in inner.keywords.items() if keyword in ASSERTING}
    if "type" in keywords and "string" in keywords.pop("type"):
        pass
    elif "type" in inner.keywords:
        return None
    if not keywords:
        return True
    if keywords.keys() == {"$ref"}:
        target = writer.source.target(inner, "$ref")
        return None if target is None else _pattern_of(writer, target, inner, depth + 1)
    if keywords.keys() == {"pattern"}:
        return _name_pattern(writer, keywords["pattern"])
    if keywords.keys() <= {"enum", "const"} and (values := inner.values) is not None and len(keywords) == 1:
        words = [value for value in values if isinstance(value, str)]
        return writer.build(("only", *words), lambda steps: only_texts(words, steps))
    if keywords.keys() <= {"minLength", "maxLength"}:
        return rf"^[\s\S]{{{keywords.get('minLength', 0)},{keywords.get('maxLength', '')}}}$"
    if keywords.keys() == {"anyOf"}:
        parts = [_pattern_of(writer, part, inner, depth + 1) for part in keywords["anyOf"]]
        if any(part is True for part in parts):
            return True
        texts = [part for part in parts if isinstance(part, str)]
        return union(texts) if len(texts) == len(parts) else None
    if keywords.keys() == {"not"}:
        part = _pattern_of(writer, keywords["not"], inner, depth + 1)
        if not isinstance(part, str):
            return None
        found = writer.build(part, lambda steps: complement(part, steps))
        return found["pattern"] if isinstance(found, dict) else None
    return None


def _counts(writer: Writer, node: Node, own: Written) -> Iterator[Schema]:
    """Write the bounds of the number of properties, by cases of the properties that need not be there."""
    least, most = node.keywords.get("minProperties", 0), node.keywords.get("maxProperties")
    names = [name for name, value in own.get("properties", {}).items() if value is not False]
    required = list(dict.fromkeys(own.get("required", ())))
    optional = [name for name in names if name not in required]
    closed = own.get("additionalProperties") is False and "patternProperties" not in own
    if least <= len(required):
        least = 0
    if most is not None and closed and most >= len({*names, *required}):
        most = None
    counts: Written = {"minProperties": least} if least else {}
    counts |= {"maxProperties": most} if most is not None else {}
    if not counts:
        return
    if not optional or {f"{keyword}:optional" for keyword in counts} <= writer.takes:
        own.update(counts)
        return
    cases = _cases(optional, len(required), least, most, closed, writer.budget.cases)
    if cases is None:
        for keyword in counts:
            writer.lose(node.chain, keyword, "too many choices of properties satisfy it", True)
        return
    yield any_of([typed(ANY & ~OBJECT), *cases])


def _cases(
    optional: list[str], required: int, least: int, most: int | None, closed: bool, limit: int
) -> list[Written] | None:
    """Return one case for each choice of optional properties; None if there are more than `limit`."""
    need = max(0, least - required)
    highest = min(len(optional), most - required if most is not None else need)
    if highest < 0:
        return []
    sizes = [size for size in range(highest + 1) if not closed or size >= need]
    if sum(comb(len(optional), size) for size in sizes) > limit:
        return None
    cases: list[Written] = []
    for size in sizes:
        for chosen in combinations(optional, size):
            case: Written = {"type": "object", "required": list(chosen)} if chosen else {"type": "object"}
            if most is not None or size < need:  # exactly these
                case["properties"] = {name: False for name in optional if name not in chosen}
            if not closed:
                case |= {"minProperties": least} if least and size < need else {}
                case |= {"maxProperties": most} if most is not None else {}
            cases.append(case)
    return cases
