"""The most by which the shortest ending of an output may grow with one token: when closing has to begin."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from guideway.api.types import Choice, Constraint, JsonObject, JsonSchema, Regex, StructuralTag
from guideway.api.vocabulary import Vocabulary
from guideway.json_schema import Schema, resolve
from guideway.runtime.constraints.closing.fewest import Spelling, fewest_tokens
from guideway.runtime.constraints.closing.patterns import Pattern
from guideway.runtime.constraints.closing.search import MAX_MASKS, MAX_TRIED
from guideway.runtime.constraints.guard.measures import Measures
from guideway.runtime.constraints.guard.regex import shape_of

__all__ = ["Reserve"]

UNKNOWN = 24
"""Tokens that one token may add where the constraint does not say how many."""
SCALAR = 6
"""Tokens to the end of any number, ``true``, ``false`` or ``null`` that has begun."""
CHARACTER = 3
"""To the end of any character that has begun: its bytes in UTF-8."""
FORMATS = {
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@a.aa",
    "idn-email": "a@a.aa",
    "hostname": "a",
    "idn-hostname": "a",
    "ipv4": "1.1.1.1",
    "ipv6": "::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "a:/",
    "iri": "a:/",
    "uri-reference": "/",
    "iri-reference": "/",
    "uri-template": "/",
    "json-pointer": "/",
    "relative-json-pointer": "0",
    "regex": "a",
}
"""An example of each, as short as one may be."""
FORMAT = 40
"""Tokens of a string of any other format."""
MOST = 1 << 20
"""The upper bound of any size."""
MOST_WITNESSES = 32
SCHEMAS = ("json_schema", "schema")
"""The names that a structural tag has for the schemas of its regions, in its newer form and the older one."""
PLAIN = re.compile(
    r"(?:[a-zA-Z0-9 ,;:_~!@#%&=<>/'\"`-]|[])|*+?{}.^$]|\[(?!\^)|\((?!\?[^:])|\\[^\W\dAZbBuxNpP]|\\\W)*",
    re.ASCII,
)
"""A pattern whose every character may be one of a byte, and whose size is what Python's parser says, whoever reads
it."""
OF_BYTES = re.compile(r"(?:[^.\\]|\\[^dDsSwW])*")
"""One whose characters are of a byte all: none can be drawn in part."""
TRIED_PER_TOKEN = 16
"""Tokens that are tried for one of a completion, at most."""
MOST_TRIED = 80_000
"""Tokens that a search tries, however long what it looks for may be."""
ENDLESS = MOST // 2
"""The size past which a schema is in itself without an end."""
PASSES = 8
"""Over a schema that is met in itself: each is told what the one before found."""
DEEPEST = 100
"""References and schemas in one another that are followed."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """The knowledge of the ends of its outputs, in tokens, from the constraint alone. What estimates miss makes an
    output end at its limit, not complete; it is never wrong for it."""

    growth: int
    """By so many tokens the shortest ending grows at most with one token: says when to look at it, and forbids
    nothing."""
    level: int
    """So many are needed at most to end one open array or object, what is in it included; of what is no JSON, to end
    the output."""
    is_json: bool
    witnesses: tuple[str, ...] = ()
    """Examples of what strings or, of what is no JSON, the output may be: an end that asks for something far away is
    found by trying the ends of these."""
    is_bound: bool = False
    """True if `level` is no estimate: with that many tokens and a stop token left, any token may be drawn before."""
    fewest: int = 1
    """No output has fewer tokens, its stop token included: this is no estimate."""
    triggers: tuple[str, ...] = ()
    """Texts that open a tag in free text; empty where there is no free text."""
    regions: tuple[tuple[str, str], ...] = ()
    """What begins and ends each tag whose content is JSON."""
    ends: tuple[str, ...] = ()
    """What ends each tag."""

    def most_tried(self, limit: int) -> int:
        """So many tokens a search for an ending of at most `limit` tokens tries: more where it may be long."""
        return min(MAX_TRIED + TRIED_PER_TOKEN * min(limit, max(self.fewest, self.level)), MOST_TRIED)

    @property
    def most_masks(self) -> int:
        """And so many bitmasks it fills."""
        return MAX_MASKS + 2 * self.fewest

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reserve:
        """Return the reserve whose fields were written as values of JSON."""
        return cls(**{name: _freeze(value) for name, value in values.items()})

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary) -> Reserve:
        """The reserve for a constraint that a strategy has compiled."""
        return replace(
            cls._estimated(constraint, vocabulary),
            fewest=fewest_tokens(constraint, _spelling(tuple(vocabulary.tokens))),
        )

    @classmethod
    def _estimated(cls, constraint: Constraint, vocabulary: Vocabulary) -> Reserve:
        size = _sizes(vocabulary)
        match constraint:
            case JsonSchema():
                found = _Sizes(constraint.parsed, size)
                witnesses = tuple(found.witnesses)[:MOST_WITNESSES]
                return cls(found.growth, found.level, True, witnesses)
            case JsonObject():
                return cls(8 + CHARACTER, 8 + CHARACTER, True)
            case Choice():
                longest = max(len(choice.encode()) for choice in constraint.choices)
                return cls(longest, longest, False, is_bound=True)
            case Regex():
                size_of_it, examples = _read(constraint.pattern)
                is_bound = PLAIN.fullmatch(constraint.pattern) is not None and bool(Pattern.of(constraint.pattern))
                longest = size_of_it + CHARACTER
                level = size_of_it if is_bound and OF_BYTES.fullmatch(constraint.pattern) else longest
                return cls(longest, level, False, examples, is_bound)
            case StructuralTag():
                regions = [_Sizes(schema, size) for schema in _schemas_in(constraint.parsed)]
                marks = max((size(text) for text in _marks_in(constraint.parsed)), default=0)
                growth = 2 * marks + max((each.growth for each in regions), default=UNKNOWN)
                level = 2 * marks + max((each.level for each in regions), default=UNKNOWN)
                examples = tuple(dict.fromkeys(text for each in regions for text in each.witnesses))
                nodes = list(_nodes_in(constraint.parsed))
                triggers = [text for node in nodes for text in node.get("triggers", ()) if isinstance(text, str)]
                return cls(
                    growth,
                    level,
                    False,
                    examples[:MOST_WITNESSES],
                    triggers=tuple(dict.fromkeys(triggers)),
                    regions=tuple(dict.fromkeys(_regions_in(nodes))),
                    ends=tuple(dict.fromkeys(end for node in nodes if isinstance(end := node.get("end"), str))),
                )
            case _:
                return cls(UNKNOWN, 4 * UNKNOWN, False)


def _freeze(value: Any) -> Any:
    """Return a value of JSON with tuples in place of lists."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _nodes_in(tag: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of a structural tag, those of its schemas not included."""
    left = [tag]
    while left:
        node = left.pop()
        if isinstance(node, Mapping):
            yield node
            left += [child for key, child in node.items() if key not in SCHEMAS]
        elif isinstance(node, list):
            left += node


def _regions_in(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what begins and ends each tag whose content is JSON."""
    for node in nodes:
        begin, end, content = node.get("begin"), node.get("end"), node.get("content", node)
        is_json = isinstance(content, Mapping) and any(key in content for key in SCHEMAS)
        if isinstance(begin, str) and isinstance(end, str) and is_json:
            yield begin, end


def _schemas_in(tag: Any) -> list[Schema]:
    return [node[key] for node in _nodes_in(tag) for key in SCHEMAS if isinstance(node.get(key), Mapping)]


def _marks_in(tag: Any) -> list[str]:
    """Return what begins and ends its regions."""
    return [node[key] for node in _nodes_in(tag) for key in ("begin", "end") if isinstance(node.get(key), str)]


_spelling = lru_cache(maxsize=1)(Spelling)
"""The spelling of the vocabulary in use: it takes a while to make."""


def _sizes(vocabulary: Vocabulary) -> Callable[[str], int]:
    """Count the tokens of a text."""

    def size(text: str) -> int:
        data = text.encode(errors="replace")
        token_ids = vocabulary.encode(data)
        return len(data) if token_ids is None else len(token_ids)

    return size


class _Sizes:
    """The sizes of the shortest instances of a schema and its parts."""

    def __init__(self, schema: Schema, size: Callable[[str], int]) -> None:
        self._root = schema
        self._size = size
        self._known: dict[int, int] = {}
        self._before: dict[int, int] = {}
        """The sizes that the pass before found: of a schema that is met in itself again, it is as good as known."""
        self._has_recursion = False
        self._doing: set[int] = set()
        self._per_character = max(0.5, size("a" * 32) / 32)
        """Tokens of a string that is to be long."""
        self.witnesses: dict[str, None] = {}
        """A dict for its order."""
        for _ in range(PASSES):
            self._known, self.growth, self.within, self.level = {}, SCALAR, SCALAR, 8
            self._least(schema)
            if not self._has_recursion or self._known == self._before:
                break
            self._before = self._known
        self.growth += self.within
        self.level += self.within

    def _least(self, schema: Any) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) in self._known:
            return self._known[id(schema)]
        if id(schema) in self._doing or len(self._doing) > DEEPEST:
            if id(schema) not in self._doing:
                return UNKNOWN
            self._has_recursion = True
            return self._before.get(id(schema), MOST)
        self._doing.add(id(schema))
        found = min(MOST, self._measure(schema))
        self._doing.discard(id(schema))
        self._known[id(schema)] = found
        return found

    def _measure(self, schema: Mapping[str, Any]) -> int:
        if "const" in schema:
            return self._value(schema["const"])
        if "enum" in schema:
            sizes = [self._value(value) for value in schema["enum"]] or [1]
            self.within = max(self.within, *sizes)
            return min(sizes)
        needed = sum(self._least(child) for child in schema.get("allOf", ()))
        if (reference := schema.get("$ref")) is not None and isinstance(reference, str):
            needed += self._least(resolve(self._root, reference))
        for keyword in ("anyOf", "oneOf"):
            if children := schema.get(keyword, ()):
                branches = [self._least(child) for child in children]
                needed += min(branches)
                self._grow(max(branches) - min(branches))
                self._choose(children)
        needed += max(self._least(schema.get(keyword)) for keyword in ("then", "else"))
        self._choose([schema.get("then"), schema.get("else")])
        types = schema.get("type", ())
        types = [types] if isinstance(types, str) else list(types)
        sizes = []
        if "object" in types or (not types and schema.keys() & OBJECT_KEYWORDS):
            sizes.append(self._object(schema))
        if "array" in types or (not types and schema.keys() & ARRAY_KEYWORDS):
            sizes.append(self._array(schema))
        if "string" in types or (not types and schema.keys() & STRING_KEYWORDS):
            sizes.append(self._string(schema))
        if "number" in types or "integer" in types:
            sizes.append(self._number(schema))
        if not sizes or {"null", "boolean"} & set(types):
            sizes.append(1)
        self._grow(max(sizes) - (min(sizes) if types else 1))  # without a type it may be any scalar
        return needed + min(sizes)

    def _grow(self, *sizes: int) -> None:
        """One token may add so much; what has no end is not written."""
        self.growth = max(self.growth, *(size for size in (0, *sizes) if size < ENDLESS))

    def _choose(self, branches: Sequence[Any]) -> None:
        """A property or item that is a string or number may tell which of these it is that has begun."""
        for keywords, kind in ((OBJECT_KEYWORDS, "object"), (ARRAY_KEYWORDS, "array")):
            sizes = [self._least(each) for each in branches if self._may_be(each, kind, keywords)]
            if sizes and (most := max(size for size in (0, *sizes) if size < ENDLESS)) > min(sizes):
                self._grow(most - min(sizes))

    def _may_be(self, schema: Any, kind: str, keywords: frozenset[str], depth: int = 0) -> bool:
        """Return whether a schema may be of an object, or of an array, in which something is to be."""
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return schema is None  # a branch of a condition that asks for nothing
        if isinstance(reference := schema.get("$ref"), str):
            return self._may_be(resolve(self._root, reference), kind, keywords, depth + 1)
        types = schema.get("type", ())
        if types:
            return kind in ([types] if isinstance(types, str) else types)
        parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
        return bool(schema.keys() & keywords) or any(self._may_be(part, kind, keywords, depth + 1) for part in parts)

    def _value(self, value: Any) -> int:
        """Tokens of a value that is spelt out."""
        return self._size(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) + 1

    def _string(self, schema: Mapping[str, Any]) -> int:
        found = 2 + round(_count(schema.get("minLength")) * self._per_character)
        if (pattern := schema.get("pattern")) is not None:
            found += self._pattern(pattern)
        if (name := schema.get("format")) is not None:
            example = FORMATS.get(name)
            found += FORMAT if example is None else len(example)
            self.witnesses |= dict.fromkeys([example] if example else ())
        self.within = max(self.within, found - 2)
        return found

    def _pattern(self, pattern: str) -> int:
        size, examples = _read(pattern)
        self.witnesses |= dict.fromkeys(examples)
        return size

    def _number(self, schema: Mapping[str, Any]) -> int:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        found = max((len(str(schema[bound])) for bound in bounds if bound in schema), default=1)
        self.within = max(self.within, found)
        return found

    def _array(self, schema: Mapping[str, Any]) -> int:
        items = schema.get("items")
        first = schema.get("prefixItems", items if isinstance(items, list) else ())
        others = schema.get("additionalItems") if isinstance(items, list) else items
        each = max(self._least(others), self._least(schema.get("unevaluatedItems")))
        least = _count(schema.get("minItems"))
        needed = 2 + sum(1 + self._least(child) for child in first[:least]) + max(0, least - len(first)) * (1 + each)
        if isinstance(contains := schema.get("contains"), Mapping):
            needed += max(1, _count(schema.get("minContains", 1))) * (1 + self._least(contains))
        self._grow(1 + each, *(1 + self._least(child) for child in first))
        self.level = max(self.level, needed if needed < ENDLESS else 0)
        return needed

    def _object(self, schema: Mapping[str, Any]) -> int:
        declared = schema.get("properties", {})
        names = list(dict.fromkeys(schema.get("required", ())))
        needed = 2 + sum(self._property(name, declared.get(name)) for name in names)
        others = [self._property(name, child) for name, child in declared.items() if name not in names]
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            others.append(4 + self._least(schema.get(keyword)))
        for pattern, child in schema.get("patternProperties", {}).items():
            others.append(4 + self._pattern(pattern) + self._least(child))
        for keyword in ("dependentSchemas", "dependentRequired", "dependencies"):
            for child in (schema.get(keyword) or {}).values():
                first = child if isinstance(child, list) else ()
                others.append(self._least(child) + sum(self._property(name, declared.get(name)) for name in first))
        missing = max(0, _count(schema.get("minProperties")) - len(names))
        needed += missing * min([8, *others])
        self._grow(*others)
        self.level = max(self.level, needed if needed < ENDLESS else 0)
        return needed

    def _property(self, name: str, schema: Any) -> int:
        """With its name, colon and comma."""
        return self._size(json.dumps(name, ensure_ascii=False)) + 3 + self._least(schema)


OBJECT_KEYWORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties", "minProperties"})
ARRAY_KEYWORDS = frozenset({"items", "prefixItems", "minItems", "contains"})
STRING_KEYWORDS = frozenset({"pattern", "minLength", "format"})


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def _read(pattern: str) -> tuple[int, tuple[str, ...]]:
    """Characters to the end of a regular expression's text from anywhere in it, at most, and examples of it."""
    read = Pattern.of(pattern)
    if read is None:
        return max(1, min(MOST, shape_of(pattern, Measures(MOST), str).whole.least)), ()
    return max(1, read.farthest), read.examples
