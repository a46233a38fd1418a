"""Measures of a JSON Schema, taken in one walk without recursion, in time linear in its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from typing import Any, Final
from urllib.parse import unquote

from guideway.json_schema.ranges import coefficient
from guideway.json_schema.walking import ONE_SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS, Chain, Pointer
from guideway.runtime.constraints.guard.measures import CAP, Measures
from guideway.runtime.constraints.guard.references import Block, Reference, follow
from guideway.runtime.constraints.guard.regex import shape_of
from guideway.runtime.constraints.guard.shapes import Unit

__all__ = ["measure_json", "measure_pattern", "measure_schema"]

DEFINITIONS: Final = frozenset({"$defs", "definitions"})
TOGETHER: Final = frozenset({"allOf", "$ref", "if", "then", "else", "dependentSchemas"})
"""Keywords whose subschemas apply to the same value as the schema around them."""
REPEATED: Final = frozenset({"items", "additionalItems", "contains", "unevaluatedItems"})
REPEATED_VALUES: Final = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
LENGTHS: Final = ("minLength", "maxLength")
ITEMS: Final = ("minItems", "maxItems", "minContains", "maxContains")
MEMBERS: Final = ("minProperties", "maxProperties")
NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
FORMAT: Final = 8
"""String length to assume for a ``format``, since libraries use their own patterns."""
BOUNDS: Final = frozenset((*LENGTHS, *ITEMS, *MEMBERS))
INTERESTING: Final = frozenset(
    {*ONE_SCHEMA, *SCHEMA_LISTS, *SCHEMA_MAPS, *NUMBERS, "$ref", "pattern", "multipleOf", "enum", "const", "format"}
)


def measure_schema(schema: Any, measures: Measures, prefix: Chain = None) -> None:
    """Measure `schema`, which was checked."""
    if not isinstance(schema, Mapping):
        return
    walk = _Walk(schema, measures, prefix)
    walk.run()
    if walk.references:
        walk.follow()


def measure_pattern(pattern: str, measures: Measures, place: Callable[[], str], factor: int = 1) -> Unit:
    """Measure a pattern that is repeated `factor` times, and return its unit."""
    shape = shape_of(pattern, measures, place)
    whole = shape.whole
    at = measures.at
    at("depth", shape.depth, place)
    at("alternatives", shape.alternatives, place)
    at("repetition", shape.repetition, place)
    at("repetitions", min(CAP, max(1, whole.product) * factor), place)
    at("pattern", whole.size, place)
    measures.string(pattern, whole.size, place)
    at("stars", whole.stars, place)
    at("nested_stars", whole.star_depth, place)
    at("nul", pattern.count("\0"), place)
    return whole


def measure_json(value: Any, measures: Measures, place: Callable[[], str], depth: int = 0, text: bool = False) -> None:
    """Measure any JSON value; as a literal if `text`."""
    stack = [(value, depth + 1)]
    characters, deepest, nodes = 0, 0, 0
    while stack:
        item, level = stack.pop()
        if isinstance(item, str):
            characters += len(item)
            continue
        if isinstance(item, Mapping):
            children = item.values()
            characters += sum(map(len, item))
        elif isinstance(item, list | tuple):
            children = item  # type: ignore[assignment]
        else:
            characters += 8
            continue
        deepest = max(deepest, level)
        nodes += len(item)
        if nodes > 1000:
            measures.count(nodes, place)
            nodes = 0
        stack.extend((child, level + 1) for child in children)
    measures.count(nodes, place)
    measures.at("depth", deepest, place)
    if text:
        measures.literal(characters, place)


class _Walk:
    """One pass over a schema. The schema itself and each definition start a block."""

    def __init__(self, schema: Mapping[str, Any], measures: Measures, prefix: Chain) -> None:
        self.schema = schema
        self.measures = measures
        self.prefix = prefix
        self.blocks = [Block()]
        self.starts = {id(schema): 0}
        """Block indices, by the id of the schema that starts the block."""
        self.references: list[tuple[Block, Reference, str, Chain]] = []

    def run(self) -> None:
        measures = self.measures
        at, count = measures.at, measures.count
        root, deepest = self.blocks[0], 0
        # schema, pointer, JSON depth, block, level in the block, product of bounds around it, combinations around it
        stack: list[tuple[Any, Chain, int, Block, int, int, list[int]]] = [
            (self.schema, self.prefix, 1, root, 0, 1, root.combinations)
        ]
        while stack:
            node, chain, depth, block, level, factor, together = stack.pop()
            if not isinstance(node, Mapping):
                continue
            here = Pointer(chain).__str__
            count(len(node), here)
            if depth > deepest:
                deepest = depth
                at("depth", depth, here)
            if level > block.levels:
                block.levels = level
            size, items, members = 1, 1, 1
            if not BOUNDS.isdisjoint(node):
                length, items, members = (self.bound(node, names, chain) for names in (LENGTHS, ITEMS, MEMBERS))
                if length > 1:
                    size += length
                    measures.string((node.get("minLength"), node.get("maxLength")), length, here)
                product = factor * max(length, items, members)
                if product > block.product:
                    block.product = min(product, CAP)
                at("repetitions", product, here)
            for keyword, value in node.items():
                if keyword not in INTERESTING:
                    if type(value) in (dict, list) and value and keyword not in ("required", "type"):
                        measure_json(value, measures, Pointer((chain, keyword)).__str__, depth)
                    continue
                if keyword in SCHEMA_MAPS:
                    if not isinstance(value, Mapping) or not value:
                        continue
                    link: Chain = (chain, keyword)
                    place = Pointer(link).__str__
                    count(len(value), place)
                    if keyword in DEFINITIONS:
                        for name, child in value.items():
                            if isinstance(child, Mapping):
                                inner = Block()
                                self.starts[id(child)] = len(self.blocks)
                                self.blocks.append(inner)
                                stack.append((child, (link, name), depth + 2, inner, 0, 1, inner.combinations))
                        continue
                    at("properties", len(value), place)
                    measures.literal(sum(map(len, value)), place)
                    if keyword == "patternProperties":
                        for name in value:
                            size += measure_pattern(name, measures, Pointer((link, name)).__str__, factor).size
                    times = min(factor * members, CAP) if keyword in REPEATED_VALUES else factor
                    for name, child in value.items():
                        cell = together if keyword == "dependentSchemas" else [1]
                        stack.append((child, (link, name), depth + 2, block, level + 1, times, cell))
                elif keyword in SCHEMA_LISTS or (keyword == "items" and isinstance(value, list)):
                    if not isinstance(value, list):
                        continue
                    link = (chain, keyword)
                    count(len(value), Pointer(link).__str__)
                    if keyword in ("anyOf", "oneOf"):
                        place = Pointer(link).__str__
                        at("alternatives", len(value), place)
                        together[0] = min(together[0] * len(value), CAP)
                        at("combinations", together[0], place)
                    for i, child in enumerate(value):
                        cell = together if keyword == "allOf" else [1]
                        stack.append((child, (link, i), depth + 2, block, level + 1, factor, cell))
                elif keyword in ONE_SCHEMA:
                    times = factor * items if keyword in REPEATED else factor
                    times = times * members if keyword in REPEATED_VALUES else times
                    cell = together if keyword in TOGETHER else [1]
                    stack.append((value, (chain, keyword), depth + 1, block, level + 1, min(times, CAP), cell))
                elif keyword == "$ref":
                    if isinstance(value, str) and value.startswith("#"):
                        reference = Reference(-1, level + 1, factor, together)
                        self.references.append((block, reference, value, (chain, keyword)))
                elif keyword == "pattern":
                    if isinstance(value, str):
                        size += measure_pattern(value, measures, Pointer((chain, keyword)).__str__, factor).size
                elif keyword == "enum":
                    if isinstance(value, list):
                        place = Pointer((chain, keyword)).__str__
                        at("enum", len(value), place)
                        measure_json(value, measures, place, depth, text=True)
                        size += len(value)
                elif keyword == "const":
                    measure_json(value, measures, Pointer((chain, keyword)).__str__, depth, text=True)
                elif keyword == "format":
                    measures.string((keyword, measures.nodes), FORMAT, here)
                elif keyword == "multipleOf":
                    self.multiple(value, Pointer((chain, keyword)).__str__)
                else:
                    at("digits", _digits(value), Pointer((chain, keyword)).__str__)
            block.size = min(CAP, block.size + size * factor)
        at("expanded", root.size, "#")

    def bound(self, node: Mapping[str, Any], names: tuple[str, ...], chain: Chain) -> int:
        """Return the largest of some bounds of a schema, at least 1."""
        most = 1
        for name in names:
            if name in node:
                value = _count(node[name])
                if value > most:
                    most = value
                    self.measures.at("repetition", value, Pointer((chain, name)).__str__)
        return most

    def multiple(self, value: Any, place: Callable[[], str]) -> None:
        if not isinstance(value, int | float):
            return
        self.measures.at("digits", _digits(value), place)
        totals = self.measures.totals
        totals["multiple_of"] = min(CAP, lcm(totals["multiple_of"], max(1, coefficient(value))))
        self.measures.at("multiple_of", totals["multiple_of"], place)

    def follow(self) -> None:
        """Resolve references and add the measures of their targets."""
        targets: dict[str, int | None] = {}
        for block, reference, text, _ in self.references:
            if text not in targets:
                targets[text] = self.target(text)
            if (target := targets[text]) is None:
                continue
            reference.target = target
            block.references.append(reference)
        follow(self.blocks)
        root, at = self.blocks[0], self.measures.at
        place = Pointer(self.prefix).__str__
        for block in self.blocks:  # unreferenced blocks too: libraries may read them
            at("chain", block.levels, place)
        for _, reference, _, chain in self.references:
            at("combinations", reference.together[0], Pointer(chain).__str__)
        at("expanded", root.size, place)
        at("repetitions", root.product, place)

    def target(self, reference: str) -> int | None:
        """Return the index of the innermost block around the target of a local reference, or None."""
        block = 0
        node: Any = self.schema
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(key)
            elif isinstance(node, list) and key.isdecimal() and len(key) < 10 and int(key) < len(node):
                node = node[int(key)]
            else:
                return None
            block = self.starts.get(id(node), block)
        return block if isinstance(node, Mapping) else None


def _count(value: Any) -> int:
    return int(min(value, CAP)) if isinstance(value, int | float) else 1


def _digits(value: Any) -> int:
    """Return the number of digits of a number written without an exponent."""
    if isinstance(value, int):
        return value.bit_length() * 3 // 10 + 1
    if not isinstance(value, float):
        return 0
    mantissa, _, exponent = repr(value).partition("e")
    return len(mantissa) + abs(int(exponent or 0))
