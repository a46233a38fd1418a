"""Write the negation of a subschema in keywords that an engine takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

from guideway.json_schema.kinds import (
    ARRAY,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    kind_of,
    kinds_of,
)
from guideway.json_schema.reading import Node
from guideway.json_schema.rewriting.joining import Written, all_of, any_of, typed
from guideway.json_schema.rewriting.regular import complement, split, without_texts
from guideway.json_schema.rewriting.writer import Writer
from guideway.json_schema.walking import Schema

__all__ = ["write"]

UNKNOWN_NAME = "some other name would have to be there"
MOST_NAMES = 4
"""Properties of an object to consider for an additional one."""
_OPPOSITES = (
    ("minimum", "exclusiveMaximum"),
    ("maximum", "exclusiveMinimum"),
    ("exclusiveMinimum", "maximum"),
    ("exclusiveMaximum", "minimum"),
)


def write(writer: Writer, node: Node, kinds: int) -> Schema:
    """Return a schema that every value which is not an instance of `node` satisfies, if its kind is one of `kinds`."""
    keywords = node.keywords
    cases: list[Schema] = []
    if "type" in keywords:
        lacking = kinds & ~kinds_of(keywords["type"])
        if lacking & FRACTION and not lacking & INTEGER:
            cases.append(writer.lose(node.chain, "type", "a number would have to be no integer", {"type": "number"}))
        cases.append(typed(lacking if lacking & INTEGER else lacking & ~FRACTION))
    left = kinds & node.kinds  # of values of other kinds nothing more is said
    if (values := node.values) is not None:
        cases.append(_values(writer, node, values, kinds))
    if left & STRING:
        cases += _strings(writer, node)
    if left & NUMBER:
        cases += _numbers(writer, node)
    if left & ARRAY:
        cases += _arrays(writer, node)
    if left & OBJECT:
        cases += _objects(writer, node)
    cases += _in_place(writer, node, kinds)
    return any_of(cases)


def _values(writer: Writer, node: Node, values: list[Any], kinds: int) -> Schema:
    listed: dict[int, list[Any]] = {}
    for value in values:
        kind = kind_of(value)
        listed.setdefault(NUMBER if kind & NUMBER else kind, []).append(value)
    rest = kinds
    for kind in listed:
        rest &= ~kind
    cases = [typed(rest if rest & INTEGER else rest & ~FRACTION)]
    keyword = "const" if "const" in node.keywords else "enum"
    if kinds & STRING and STRING in listed:
        texts = listed[STRING]
        found = writer.build(("without", *texts), lambda steps: without_texts(texts, steps))
        if found is None:
            found = writer.lose(node.chain, keyword, "too many texts", True)
        cases.append(all_of([{"type": "string"}, found]))
    if kinds & BOOLEAN and BOOLEAN in listed:
        cases += [{"const": value} for value in (True, False) if value not in listed[BOOLEAN]]
    if kinds & NUMBER and NUMBER in listed:
        points = sorted(set(listed[NUMBER]))
        if len(points) > writer.budget.cases:
            cases.append(writer.lose(node.chain, keyword, "too many numbers", typed(kinds & NUMBER)))
        else:
            cases += _between(points, "number" if kinds & FRACTION else "integer")
    for kind, name, least in ((ARRAY, "array", "minItems"), (OBJECT, "object", "minProperties")):
        if kinds & kind and kind in listed:
            if all(not value for value in listed[kind]):
                cases.append({"type": name, least: 1})
            else:
                cases.append(writer.lose(node.chain, keyword, f"one of its values is an {name}", {"type": name}))
    return any_of(cases)


def _between(points: list[Any], name: str) -> Iterator[Schema]:
    """Yield the open intervals around some numbers; for integers, with bounds that they include."""
    if name == "integer":
        points = [int(point) for point in points if isinstance(point, int) or point.is_integer()]
        least, most, lows, highs = "minimum", "maximum", [each + 1 for each in points], [each - 1 for each in points]
    else:
        least, most, lows, highs = "exclusiveMinimum", "exclusiveMaximum", points, points
    if not points:
        yield {"type": name}
        return
    yield {"type": name, most: highs[0]}
    for low, high in zip(lows, highs[1:], strict=False):
        if low <= high:
            yield {"type": name, least: low, most: high}
    yield {"type": name, least: lows[-1]}


def _strings(writer: Writer, node: Node) -> Iterator[Schema]:
    keywords = node.keywords
    if keywords.get("minLength", 0):
        yield {"type": "string", "maxLength": keywords["minLength"] - 1}
    if (most := keywords.get("maxLength")) is not None:
        if most < writer.budget.count and (most < 1000 or "minLength>1000" in writer.takes):
            yield {"type": "string", "minLength": most + 1}
        else:
            yield writer.lose(node.chain, "maxLength", "such a text would be too long", {"type": "string"})
    if "pattern" in keywords:
        parts = split(keywords["pattern"])
        if parts is None:
            yield writer.lose(node.chain, "pattern", "its lookaround is not understood", {"type": "string"})
        for is_found, part in parts or ():
            if not is_found:
                yield {"type": "string", "pattern": part}
                continue
            found = writer.build(part, partial(complement, part))
            if found is None:
                found = writer.lose(node.chain, "pattern", "its complement is too large", True)
            yield all_of([{"type": "string"}, found])
    if "format" in keywords:
        yield writer.lose(node.chain, "format", "it has no complement", {"type": "string"})


def _numbers(writer: Writer, node: Node) -> Iterator[Schema]:
    for keyword, opposite in _OPPOSITES:
        if keyword in node.keywords:
            yield {"type": "number", opposite: node.keywords[keyword]}
    if "multipleOf" in node.keywords:
        yield writer.lose(node.chain, "multipleOf", "it has no complement", {"type": "number"})


def _arrays(writer: Writer, node: Node) -> Iterator[Schema]:
    keywords = node.keywords
    if keywords.get("minItems", 0):
        yield {"type": "array", "maxItems": keywords["minItems"] - 1}
    if "maxItems" in keywords:
        yield {"type": "array", "minItems": keywords["maxItems"] + 1}
    prefix = keywords.get("prefixItems", [])
    for i, item in enumerate(prefix):
        bad = writer.no(item, node.at("prefixItems", i))
        if bad is not False:
            yield {"type": "array", "minItems": i + 1, "prefixItems": [*[True] * i, bad]}
    if "items" in keywords:
        yield from _bad_item(writer, node, len(prefix))
    if keywords.get("uniqueItems") is True:
        yield writer.lose(
            node.chain, "uniqueItems", "two items would have to be equal", {"type": "array", "minItems": 2}
        )
    if "contains" in keywords:
        if keywords.get("minContains", 1) == 1 and "maxContains" not in keywords:
            yield {"type": "array", "items": writer.no(keywords["contains"], node.at("contains"))}
        elif keywords.get("minContains", 1) != 0 or "maxContains" in keywords:
            yield writer.lose(node.chain, "contains", "its count has no complement", {"type": "array"})
    if keywords.get("unevaluatedItems", True) is not True:
        yield writer.lose(node.chain, "unevaluatedItems", "it has no complement", {"type": "array"})


def _bad_item(writer: Writer, node: Node, start: int) -> Iterator[Schema]:
    bad = writer.no(node.keywords["items"], node.at("items"))
    longest = node.keywords.get("maxItems", start + writer.budget.positions + 1)
    some: Written = {"type": "array", "minItems": start + 1}
    if bad is True:
        yield some
    elif bad is not False and longest - start <= writer.budget.positions:
        for i in range(start, longest):
            yield {"type": "array", "minItems": i + 1, "prefixItems": [*[True] * i, bad]}
    elif bad is not False:
        yield writer.lose(node.chain, "items", "one of many items would have to be invalid", some)


def _objects(writer: Writer, node: Node) -> Iterator[Schema]:
    keywords = node.keywords
    some: Written = {"type": "object", "minProperties": 1}
    if keywords.get("minProperties", 0):
        yield {"type": "object", "maxProperties": keywords["minProperties"] - 1}
    if "maxProperties" in keywords:
        yield {"type": "object", "minProperties": keywords["maxProperties"] + 1}
    for name in keywords.get("required", ()):
        yield {"type": "object", "properties": {name: False}}
    for name, value in keywords.get("properties", {}).items():
        bad = writer.no(value, node.at("properties", name))
        if bad is not False:
            yield {"type": "object", "properties": {name: bad}, "required": [name]}
    for name, value in keywords.get("patternProperties", {}).items():
        if writer.no(value, node.at("patternProperties", name)) is not False:
            yield writer.lose(node.chain, "patternProperties", UNKNOWN_NAME, some)
    if "additionalProperties" in keywords:
        yield from _bad_additional(writer, node, some)
    names = keywords.get("propertyNames", True)
    if names is not True:
        yield some if names is False else writer.lose(node.chain, "propertyNames", UNKNOWN_NAME, some)
    for name, needed in keywords.get("dependentRequired", {}).items():
        for other in needed:
            yield {"type": "object", "required": [name], "properties": {other: False}}
    for name, value in keywords.get("dependentSchemas", {}).items():
        bad = writer.no(value, node.at("dependentSchemas", name), OBJECT)
        yield all_of([{"type": "object", "required": [name]}, bad])
    if keywords.get("unevaluatedProperties", True) is not True:
        yield writer.lose(node.chain, "unevaluatedProperties", "it has no complement", some)


def _bad_additional(writer: Writer, node: Node, some: Written) -> Iterator[Schema]:
    bad = writer.no(node.keywords["additionalProperties"], node.at("additionalProperties"))
    names = list(node.keywords.get("properties", {}))
    if bad is False:
        return
    if bad is not True or "patternProperties" in node.keywords or len(names) > MOST_NAMES:
        yield writer.lose(node.chain, "additionalProperties", UNKNOWN_NAME, some)
        return
    for size in range(len(names) + 1):
        for chosen in combinations(names, size):
            case: Written = {"type": "object", "minProperties": size + 1}
            if names:
                case |= {"required": list(chosen), "properties": {name: name in chosen for name in names}}
            yield case


def _in_place(writer: Writer, node: Node, kinds: int) -> Iterator[Schema]:
    keywords = node.keywords
    for keyword in keywords:
        match keyword:
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                yield writer.refer(node, keyword, kinds)
            case "allOf":
                for i, part in enumerate(keywords["allOf"]):
                    yield writer.no(part, node.at("allOf", i), kinds)
            case "anyOf" | "oneOf":
                branches = [(part, node.at(keyword, i)) for i, part in enumerate(keywords[keyword])]
                yield all_of(writer.no(part, chain, kinds) for part, chain in branches)
                if keyword == "oneOf":
                    for (first, here), (second, there) in combinations(branches, 2):
                        if not writer.emptiness.excludes(first, second, {}):
                            yield all_of([writer.yes(first, here, kinds), writer.yes(second, there, kinds)])
            case "not":
                yield writer.yes(keywords["not"], node.at("not"), kinds)
            case "if":
                condition = keywords["if"]
                for branch, is_met in (("then", True), ("else", False)):
                    if branch in keywords:
                        write_condition = writer.yes if is_met else writer.no
                        met = write_condition(condition, node.at("if"), kinds)
                        yield all_of([met, writer.no(keywords[branch], node.at(branch), kinds)])
