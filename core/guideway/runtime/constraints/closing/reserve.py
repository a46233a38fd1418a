"""Estimates from a constraint alone: when closing has to start, and texts for it to try."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from guideway.api.types import Choice, Constraint, JsonObject, JsonSchema, Regex, StructuralTag
from guideway.api.vocabulary import Vocabulary
from guideway.json_schema import Schema, resolve, tag_nodes
from guideway.json_schema.cursor import START
from guideway.json_schema.formats import FORMATS
from guideway.json_schema.tracking import TrackedSchema
from guideway.json_schema.walking import walk
from guideway.runtime.constraints.closing.lexicon import MOST
from guideway.runtime.constraints.closing.patterns import Pattern
from guideway.runtime.constraints.closing.positions import Position

__all__ = ["Reserve"]

UNKNOWN = 24
"""Tokens by which one token may lengthen the shortest completion, if the constraint does not tell."""
SCALAR = 6
"""Tokens to the end of any number or word that has begun, or of a character in a string. An estimate."""
MOST_WITNESSES = 32
"""Most examples of strings, and most names, to keep, because a search tries each of them at each string."""
PASSES = 8
"""Most times to measure each part of a schema. A target of a reference may be measured after it, for the next pass."""
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
NAMES = ("properties", "required", "dependentSchemas", "dependentRequired", "dependencies")
"""Keywords with names of properties, on which values may depend."""
MARKS = ("begin", "end", "value")
"""Keys of a structural tag for texts that an output has."""
CHOICES = ("tags", "structures")
"""Keys of a structural tag for tags of which an output has one, or one at a time."""
SCHEMAS = ("json_schema", "schema")
"""Keys of a structural tag for the schemas of its regions, in its newer form and its older form."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Estimates of the tokens that complete the outputs of one constraint.

    If an estimate is too low, an output may be cut at its budget. It is never invalid.
    """

    growth: int
    """Most tokens by which one token lengthens the shortest completion. Decides when to search; excludes nothing."""
    level: int
    """Most tokens to complete one open array or object, content included. 0 if any text is complete within `growth`."""
    is_json: bool
    witnesses: tuple[str, ...] = ()
    """Examples of strings, or of the whole output if it is not JSON. A search tries their ends, to find completions
    that it would not find token by token."""
    names: tuple[str, ...] = ()
    """Names of required properties, as JSON after the opening quote. A search tries them before optional ones."""
    triggers: tuple[str, ...] = ()
    """Texts that open a tag in free text; empty if the constraint has no free text."""
    begins: tuple[tuple[str, str], ...] = ()
    """Texts before JSON in tags, without white space, each with the JSON that it contains."""
    opens: tuple[str, ...] = ()
    """Texts that begin tags: each leads to other completions."""
    ends: tuple[str, ...] = ()
    """Texts that end tags, then other texts of a structural tag. Each of them may end a repetition."""
    excludes: tuple[str, ...] = ()
    """Texts that free text may not have, so they end it."""
    declared: tuple[str, ...] | None = ()
    """Names of all declared properties, as `names` has them; None if values may depend on patterns of other names."""

    @property
    def begin(self) -> Position:
        """The position before the first token."""
        begins = tuple((begin.encode(), json.encode()) for begin, json in self.begins)
        return Position(START if self.is_json else None, begins)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reserve:
        """Return the reserve from its fields as JSON values."""
        return cls(**{name: _freeze(value) for name, value in values.items()})

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary) -> Reserve:
        """Return the reserve for a constraint that a strategy has compiled."""
        if isinstance(constraint, TrackedSchema) and constraint.alternatives is not None:
            constraint = JsonSchema(constraint.ordered, whitespace=constraint.whitespace)
        match constraint:
            case JsonSchema():
                sizes = _Sizes([constraint.parsed], vocabulary)
                return cls(sizes.growth, sizes.level, True, sizes.examples, sizes.names, declared=sizes.declared)
            case JsonObject():
                return cls(2 * SCALAR, 2 * SCALAR, True)
            case Choice():
                return cls(max(len(choice.encode()) for choice in constraint.choices), 0, False)
            case Regex():
                if (read := Pattern.of(constraint.pattern)) is None:
                    return cls(UNKNOWN + SCALAR, 0, False)
                return cls(read.farthest + SCALAR, 0, False, read.examples)
            case StructuralTag():
                return cls._of_tags(constraint.parsed, vocabulary)
            case _:
                return cls(UNKNOWN, 4 * UNKNOWN, False)

    @classmethod
    def _of_tags(cls, tag: Any, vocabulary: Vocabulary) -> Reserve:
        nodes = list(tag_nodes(tag))
        schemas = [node[key] for node in nodes for key in SCHEMAS if isinstance(node.get(key), Mapping)]
        sizes = _Sizes(schemas, vocabulary)
        marks = [text for node in nodes for key in MARKS for text in _texts_in(node.get(key))]
        more = 2 * max((sizes.count(mark.encode()) for mark in marks), default=0) + (0 if schemas else UNKNOWN)
        more += UNKNOWN * (2 + len(sizes.names)) * any(map(_is_elements, nodes))
        return cls(
            sizes.growth + more,
            sizes.level + more + _longest(tag, lambda text: sizes.count(text.encode())),
            False,
            sizes.examples,
            sizes.names,
            triggers=_unique(text for node in nodes for text in _texts_in(node.get("triggers"))),
            begins=tuple(dict.fromkeys(pair for node in nodes for pair in _before_json(node, marks))),
            opens=_unique(text for node in nodes for text in _texts_in(node.get("begin")) if text),
            ends=_unique(
                text for key in MARKS[1:] for node in nodes for text in _texts_in(node.get(key)) if text.strip()
            ),
            excludes=_unique(text for node in nodes for text in _texts_in(node.get("excludes"))),
            declared=sizes.declared,
        )


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _texts_in(value: Any) -> list[str]:
    """Return the text or texts that are the value of a key of a structural tag."""
    texts = value if isinstance(value, list | tuple) else [value]
    return [text for text in texts if isinstance(text, str)]


def _freeze(value: Any) -> Any:
    """Return a JSON value with tuples in place of lists."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _before_json(node: Mapping[str, Any], marks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts before JSON that a node of a structural tag describes, as `Reserve.begins` has them.

    `marks` are the texts of all tags.
    """
    parts = [node.get("begin"), node.get("content", node), *(node.get("elements") or ())]
    for text, content in pairwise(parts):
        if isinstance(text, Mapping):
            text = text.get("value")
        if not isinstance(content, Mapping) or not content.keys() & set(SCHEMAS):
            continue
        if _is_elements(content):  # arrays and objects in elements are JSON, unless the tags have such brackets
            yield from ((begin, begin[1:]) for begin in (">{", ">[") if not any(begin in mark for mark in marks))
        elif isinstance(text, str) and text.split():
            yield "".join(text.split()), text[text.find("{") :] if "{" in text else ""


def _is_elements(node: Mapping[str, Any]) -> bool:
    """Return whether a node writes the properties of its schema as elements in place of JSON."""
    return bool(node.keys() & set(SCHEMAS)) and node.get("style", "json") != "json"


def _longest(node: Any, count: Callable[[str], int]) -> int:
    """Return the tokens of the texts of a structural tag, of the longest one where it offers several tags."""
    if isinstance(node, list):
        return sum(_longest(child, count) for child in node)
    if not isinstance(node, Mapping):
        return 0
    found = sum(count(text) for key in MARKS for text in _texts_in(node.get(key)))
    for key, child in node.items():
        if key not in SCHEMAS:
            choices = child if key in CHOICES and isinstance(child, list) else [child]
            found += max((_longest(choice, count) for choice in choices), default=0)
    return found


class _Sizes:
    """Estimates of the tokens of the shortest values of schemas, measured from the innermost parts outwards."""

    def __init__(self, schemas: Sequence[Schema], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[int, int] = {}
        """By the id of a part of a schema: the tokens of its shortest value."""
        self.examples: tuple[str, ...] = ()
        """Examples of strings, those of outer parts first."""
        self.names: tuple[str, ...] = ()
        """Names of required properties, as `Reserve.names` has them, those of outer parts first."""
        self.declared: tuple[str, ...] | None = ()
        """The names of properties, as `Reserve.declared` has them."""
        self.growth = self.level = self._scalar = SCALAR
        for schema in schemas:
            parts = list(walk(schema))
            self._declare([part for _, part, _ in parts if isinstance(part, Mapping)])
            for _ in range(PASSES):
                before = dict(self._known)
                for _, part, (_, self._root) in reversed(parts):
                    self._known[id(part)] = min(MOST, self._measure(part))
                if self._known == before:
                    break
        self.growth = max(self.growth, self._scalar) + SCALAR
        self.level += self._scalar

    def _declare(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Note the names of properties in the parts of a schema."""
        if any(part.get("patternProperties") for part in parts):
            self.declared = None
        if self.declared is not None:
            names = (name for part in parts for keyword in NAMES for name in part.get(keyword) or ())
            self.declared = _unique([*self.declared, *(_json(name)[1:].decode() for name in names)])

    def count(self, text: bytes) -> int:
        """Return the number of tokens of a text, at most its bytes."""
        return len(self._vocabulary.encode(text) or text)

    def _part(self, schema: Any, around: int = 0) -> int:
        """Return the tokens of a part of a value, of `schema` and `around` it. Note them: one token may begin it."""
        size = around + self._known.get(id(schema), 1)
        self.growth = max(self.growth, size)
        return size

    def _measure(self, schema: Schema) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if values := [schema["const"]] if "const" in schema else schema.get("enum"):
            sizes = [self.count(_json(value)) for value in values]
            found = min(sizes)
            self._scalar = max(self._scalar, *sizes)
            if isinstance(shortest := values[sizes.index(found)], str):
                self.examples = _before([shortest], self.examples)
        else:
            found = 2 + self._of_scalar(schema) + self._of_members(schema) + self._of_items(schema)
            self.level = max(self.level, found)
            if not isinstance(schema.get("type"), str):  # another type may be shorter
                self.growth, found = max(self.growth, found), 1
        found += sum(self._part(child) for child in schema.get("allOf", ()))
        for branches in (schema[keyword] for keyword in ("anyOf", "oneOf") if schema.get(keyword)):
            found += min([self._part(branch) for branch in branches])
        if isinstance(reference := schema.get("$ref"), str):
            found += self._part(resolve(self._root, reference))
        return found + max(self._part(schema.get(keyword)) for keyword in ("then", "else")) - 1

    def _of_members(self, schema: Mapping[str, Any]) -> int:
        declared, required = schema.get("properties", {}), dict.fromkeys(schema.get("required", ()))
        self.names = _before([_json(name)[1:].decode() for name in required], self.names)
        sizes = {name: self._property(name, declared.get(name)) for name in (*required, *declared)}
        others = [size for name, size in sizes.items() if name not in required]
        others += [self._part(schema.get(f"{which}Properties"), 2) for which in ("additional", "unevaluated")]
        for pattern, child in schema.get("patternProperties", {}).items():
            others.append(self._part(child, 2 + self._of_pattern(pattern)))
        for keyword in ("dependentSchemas", "dependentRequired", "dependencies"):
            for child in (schema.get(keyword) or {}).values():
                names = child if isinstance(child, list) else ()
                self._part(child, sum(self._property(name, declared.get(name)) for name in names))
        missing = max(0, _number(schema.get("minProperties")) - len(required))
        return sum(sizes[name] for name in required) + missing * min(others)

    def _property(self, name: str, schema: Any) -> int:
        """Return the tokens of a property, with its colon and comma."""
        return self._part(schema, self.count(b"," + _json(name) + b":"))

    def _of_items(self, schema: Mapping[str, Any]) -> int:
        items, least = schema.get("items"), _number(schema.get("minItems"))
        first = schema.get("prefixItems", items if isinstance(items, list) else ())
        other = schema.get("additionalItems") if isinstance(items, list) else items
        each = max(self._part(other, 1), self._part(schema.get("unevaluatedItems"), 1))
        sizes = [self._part(child, 1) for child in first]
        num_found = max(1, _number(schema.get("minContains", 1))) if "contains" in schema else 0
        found = num_found * self._part(schema.get("contains"), 1)
        return found + sum(sizes[:least]) + max(0, least - len(first)) * each

    def _of_scalar(self, schema: Mapping[str, Any]) -> int:
        """Return the tokens within a string or a number."""
        found = _number(schema.get("minLength")) + max(len(str(schema.get(bound, ""))) for bound in BOUNDS)
        if "pattern" in schema:
            found += self._of_pattern(schema["pattern"])
        if (name := schema.get("format")) is not None:
            found += self._of_pattern(FORMATS[name]) if name in FORMATS else UNKNOWN
        self._scalar = max(self._scalar, found)
        return found

    def _of_pattern(self, pattern: str) -> int:
        """Return the most tokens to the end of a text of `pattern` from any position in it. Keep its examples."""
        read = Pattern.of(pattern)
        self.examples = _before(read.examples if read else (), self.examples)
        return max(1, read.farthest) if read else UNKNOWN


def _before(first: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    return _unique([*first, *others])[:MOST_WITNESSES]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0
