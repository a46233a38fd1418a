"""Write a subschema in keywords that an engine takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations, permutations
from math import perm
from typing import Any, Final

from guideway.json_schema.assertions import KEYWORDS
from guideway.json_schema.kinds import ANY, ARRAY, NUMBER, OBJECT, OF_KIND, STRING, kind_of
from guideway.json_schema.patterns import pattern_details
from guideway.json_schema.reading import Node
from guideway.json_schema.rewriting import members
from guideway.json_schema.rewriting.joining import Written, all_of, any_of, possible_kinds, typed
from guideway.json_schema.rewriting.regular import complement, intersection, split, without_lookaround
from guideway.json_schema.rewriting.writer import Writer
from guideway.json_schema.walking import Schema

__all__ = ["write"]

PLAIN: Final = frozenset(
    {"type", "enum", "const", "minLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minItems", "required"}
)
"""Keywords that are copied."""
MOST_ROWS = 70
"""Arrays to list for ``uniqueItems``."""
LEAST_NAMES = 8
"""Properties to assume for a schema with fewer, when alternatives are counted."""


def write(writer: Writer, node: Node, kinds: int) -> Schema:
    """Return a schema that every instance of `node` satisfies, if its kind is one of `kinds`."""
    kinds &= node.kinds
    lost = writer.emptiness.lost.get(id(node.schema), 0)
    left = typed(node.kinds & ~lost) if lost else True
    kinds &= ~lost
    skipped = {"type" if lost else ""}.union(*(keywords for kind, keywords in OF_KIND.items() if kind & lost))
    node = node._replace(keywords={key: value for key, value in node.keywords.items() if key not in skipped})
    own: Written = {keyword: value for keyword, value in node.keywords.items() if keyword in PLAIN}
    if "enum" in own and "type" in own:  # not every engine leaves out values of other types
        own["enum"] = [value for value in own["enum"] if kind_of(value) & node.kinds]
    if "multipleOf" in own and kinds & NUMBER and not writer.counts(own["multipleOf"]):
        del own["multipleOf"]
        writer.lose(node.chain, "multipleOf", "engines would have to count too far", True)
    more: list[Schema] = [left, *_counts(writer, node, own)]
    if kinds & STRING:
        more += _strings(writer, node, own)
    if kinds & ARRAY:
        more += _arrays(writer, node, own)
    if kinds & OBJECT:
        more += members.write(writer, node, own)
    more += _in_place(writer, node, kinds)
    return _limited(writer, node, all_of([own, *more]))


def _write_pattern(writer: Writer, node: Node, pattern: str) -> Iterator[Schema]:
    """Yield written schemas that together are a ``pattern``."""
    parts = split(pattern)
    if parts is None:
        writer.lose(node.chain, "pattern:lookaround", "it is not at the beginning of the expression", True)
        parts = [(True, without_lookaround(pattern))]
    if len(parts) > 1 and (one := writer.build(("all", pattern), partial(intersection, parts))) is not None:
        yield one  # not every engine combines patterns
        return
    for is_found, part in parts:
        refused = {f"pattern:{each}" for each in pattern_details(part)} - writer.takes
        if is_found and not refused:
            yield {"pattern": part}
            continue
        found = None if is_found else writer.build(part, partial(complement, part))
        if found is None:
            yield writer.lose(node.chain, "pattern", "engines do not read it", True)
        else:
            yield found


def _counts(writer: Writer, node: Node, own: Written) -> Iterator[Schema]:
    """Write the largest lengths and numbers of items."""
    for keyword, unit in (("maxLength", "characters"), ("maxItems", "items")):
        most = node.keywords.get(keyword)
        if most is None:
            continue
        if most > writer.budget.count or (most > 1000 and f"{keyword}>1000" not in writer.takes):
            yield writer.lose(node.chain, keyword, f"{most} {unit} are more than engines count", True)
        else:
            own[keyword] = most


def _strings(writer: Writer, node: Node, own: Written) -> Iterator[Schema]:
    if "format" in node.keywords:
        name = f"format:{node.keywords['format']}"
        if name in writer.takes or "format:*" in writer.takes:
            own["format"] = node.keywords["format"]
        else:
            yield writer.lose(node.chain, "format", "engines do not have it", True)
    if "pattern" in node.keywords:
        yield from _write_pattern(writer, node, node.keywords["pattern"])


def _arrays(writer: Writer, node: Node, own: Written) -> Iterator[Schema]:
    keywords = node.keywords
    if "prefixItems" in keywords:
        items = keywords["prefixItems"]
        own["prefixItems"] = [writer.yes(each, node.at("prefixItems", i)) for i, each in enumerate(items)]
    if "items" in keywords:
        own["items"] = writer.yes(keywords["items"], node.at("items"))
    if keywords.get("unevaluatedItems", True) is not True:
        if node.applies_others or "contains" in keywords:
            yield writer.lose(node.chain, "unevaluatedItems", "other schemas apply to the same array", True)
        elif "items" not in keywords:
            own["items"] = writer.yes(keywords["unevaluatedItems"], node.at("unevaluatedItems"))
    if False in (first := own.get("prefixItems", [])):
        own |= {"prefixItems": first[: first.index(False)], "items": False}
    if own.get("items") is False and not own.get("prefixItems"):
        own["maxItems"] = 0
        del own["items"]
        own.pop("prefixItems", None)
    if keywords.get("uniqueItems") is True and keywords.get("maxItems", 2) > 1:
        if "uniqueItems" in writer.takes:
            own["uniqueItems"] = True
        else:
            yield _unique(writer, node, own)
    if "contains" in keywords:
        yield _contains(writer, node)


def _unique(writer: Writer, node: Node, own: Written) -> Schema:
    """Write the arrays of few values without a double. They take the place of ``items``: engines combine each array
    with its items, and again wherever the schema is repeated beside itself."""
    values, are_all = None, False
    if "prefixItems" not in node.keywords:
        values, are_all = _listed(writer, node.keywords.get("items", True), node)
    if values is None or any(isinstance(value, list | dict) for value in values):
        return writer.lose(node.chain, "uniqueItems", "its items are not a few listed values", True)
    most = min(len(values), node.keywords.get("maxItems", len(values)))
    lengths = range(node.keywords.get("minItems", 0), most + 1)
    if sum(perm(len(values), length) for length in lengths) > MOST_ROWS:
        return writer.lose(
            node.chain, "uniqueItems", f"{len(values)} values have too many orders", {"maxItems": len(values)}
        )
    if are_all:
        own.pop("items", None)
    rows = [list(row) for length in lengths for row in permutations(values, length)]
    return any_of([typed(ANY & ~ARRAY), {"enum": rows} if rows else False])


def _listed(writer: Writer, schema: Any, node: Node) -> tuple[list[Any] | None, bool]:
    """Return the distinct values that a schema of items lists, or None, and whether it allows all of them."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return None, False
        found = writer.source.read(schema, node.chain)
        if found.keywords.keys() == {"$ref"}:
            schema = writer.source.target(found, "$ref")
            continue
        values = found.values
        if values is None:
            return None, False
        distinct: list[Any] = []
        for value in values:
            if kind_of(value) & found.kinds and not any(
                value == each and kind_of(value) == kind_of(each) for each in distinct
            ):
                distinct.append(value)
        return distinct, found.keywords.keys() & set(KEYWORDS) <= {"enum", "const"}
    return None, False


def _contains(writer: Writer, node: Node) -> Schema:
    keywords = node.keywords
    least, most = keywords.get("minContains", 1), keywords.get("maxContains")
    if least == 0 and (most is None or writer.emptiness.is_empty(keywords["contains"])):
        return True
    if most is None and {"contains", "minContains"} & keywords.keys() <= writer.takes:
        inner = writer.yes(keywords["contains"], node.at("contains"))
        return {"contains": inner, **({"minContains": least} if "minContains" in keywords else {})}
    length = keywords.get("maxItems", writer.budget.positions + 1)
    if most is None and least == 1 and length <= writer.budget.positions:
        found = writer.yes(keywords["contains"], node.at("contains"))
        rows = [{"type": "array", "minItems": i + 1, "prefixItems": [*[True] * i, found]} for i in range(length)]
        return any_of([typed(ANY & ~ARRAY), *rows])
    weaker: Schema = {"minItems": least} if least else True
    return writer.lose(node.chain, "contains", "engines would have to count the items of a longer array", weaker)


def _in_place(writer: Writer, node: Node, kinds: int) -> Iterator[Schema]:
    keywords = node.keywords
    for keyword in keywords:
        match keyword:
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                yield writer.refer(node, keyword)
            case "allOf":
                for i, part in enumerate(keywords["allOf"]):
                    yield writer.yes(part, node.at("allOf", i), kinds)
            case "anyOf":
                yield any_of(writer.yes(part, node.at("anyOf", i), kinds) for i, part in enumerate(keywords["anyOf"]))
            case "oneOf":
                yield _one_of(writer, node, kinds)
            case "not":
                yield writer.no(keywords["not"], node.at("not"), kinds)
            case "if":
                yield _conditional(writer, node, kinds)


def _conditional(writer: Writer, node: Node, kinds: int) -> Schema:
    condition = node.keywords["if"]
    then, other = (
        writer.yes(node.keywords.get(keyword, True), node.at(keyword), kinds) for keyword in ("then", "else")
    )
    if then is True and other is True:
        return True
    if then is True:
        return any_of([writer.yes(condition, node.at("if"), kinds), other])
    negation = writer.no(condition, node.at("if"), kinds)
    if other is True:
        return any_of([negation, then])
    return any_of([all_of([writer.yes(condition, node.at("if"), kinds), then]), all_of([negation, other])])


def _one_of(writer: Writer, node: Node, kinds: int) -> Schema:
    branches = node.keywords["oneOf"]
    written = [writer.yes(branch, node.at("oneOf", i), kinds) for i, branch in enumerate(branches)]
    if len(branches) > writer.budget.cases:
        if writer.emptiness.is_exclusive(node.schema):
            return any_of(written)
        return writer.lose(node.chain, "oneOf", "more than one of many branches may hold", any_of(written))
    overlapping: dict[int, list[int]] = {i: [] for i in range(len(branches))}
    for i, j in combinations(range(len(branches)), 2):
        if written[i] is False or written[j] is False:
            continue
        if possible_kinds(written[i]) & possible_kinds(written[j]) & kinds and not writer.emptiness.excludes(
            branches[i], branches[j], node.schema
        ):
            overlapping[i].append(j)
            overlapping[j].append(i)
    found = []
    for i, others in overlapping.items():
        here = kinds & possible_kinds(written[i])
        negations = [writer.no(branches[j], node.at("oneOf", j), here) for j in others]
        found.append(_limited(writer, node, all_of([written[i], *negations])))
    return any_of(found)


def _limited(writer: Writer, node: Node, written: Schema) -> Schema:
    """Leave out alternatives that would have too many combinations."""
    if not isinstance(written, dict) or "allOf" not in written:
        return written
    names = max(LEAST_NAMES, len(written.get("properties", ())))
    product = names * (len(written.get("anyOf", ())) or 1)
    kept = []
    for part in written["allOf"]:
        branches = len(part["anyOf"]) if isinstance(part, dict) and "anyOf" in part else 1
        if branches > 1 and product > names and product * branches > writer.budget.combinations:
            writer.lose(node.chain, "anyOf", "it has too many combinations of alternatives", True)
            rest = {keyword: value for keyword, value in part.items() if keyword != "anyOf"}
            if rest:
                kept.append(rest)
            continue
        product *= branches
        kept.append(part)
    return {**written, "allOf": kept} if kept else {key: value for key, value in written.items() if key != "allOf"}
