"""Estimates from a constraint alone: when closing has to start, and texts for it to try."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from guideway.api.types import Choice, Constraint, JsonObject, JsonSchema, Regex, StructuralTag
from guideway.api.vocabulary import Vocabulary
from guideway.json_schema import Schema, resolve, subschemas
from guideway.json_schema.tracking import TrackedSchema
from guideway.runtime.constraints.closing.patterns import Pattern
from guideway.runtime.constraints.closing.spelling import Spelling

__all__ = ["Reserve"]

UNKNOWN = 24
"""Tokens by which one token may lengthen the shortest completion, if the constraint does not tell."""
SCALAR = 6
"""Tokens to the end of any number or word that has begun, or of a character in a string. An estimate."""
MOST = 1 << 20
"""Upper bound of any size, in tokens. A size of at least half of it means that the value has no end."""
MOST_WITNESSES = 32
"""Most examples of strings, and most names, to keep, because a search tries each of them at each string."""
MOST_TEXTS = 300
"""Most texts of a schema to spell for `Size.fewest`, which limits the time. Further texts count 0 tokens."""
DEEPEST = 60
"""Most nested schemas to measure, references included. Deeper schemas count as unknown."""
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
"""One example of each format, as short as possible."""
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
    """Names of required properties. A search tries them before optional ones."""
    fewest: int = 1
    """Proved lower bound of the tokens of any output, stop token included."""
    triggers: tuple[str, ...] = ()
    """Texts that open a tag in free text; empty if the constraint has no free text."""
    regions: tuple[tuple[str, str], ...] = ()
    """Texts that begin and end each tag whose content is JSON."""
    ends: tuple[str, ...] = ()
    """Texts that end tags."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reserve:
        """Return the reserve from its fields as JSON values."""
        return cls(**{name: _freeze(value) for name, value in values.items()})

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary) -> Reserve:
        """Return the reserve for a constraint that a strategy has compiled."""
        spelling = _spelling(tuple(vocabulary.tokens))
        if isinstance(constraint, TrackedSchema) and constraint.alternatives is not None:
            constraint = JsonSchema(constraint.ordered, whitespace=constraint.whitespace)
        match constraint:
            case JsonSchema():
                sizes = _Sizes([constraint.parsed], spelling)
                return cls(sizes.growth, sizes.level, True, sizes.examples, sizes.names, 1 + max(1, sizes.fewest))
            case JsonObject():
                return cls(2 * SCALAR, 2 * SCALAR, True)
            case Choice():
                longest = max(len(choice.encode()) for choice in constraint.choices)
                fewest = min(spelling.whole(choice.encode()) for choice in constraint.choices)
                return cls(longest, 0, False, fewest=1 + fewest)
            case Regex():
                read = Pattern.of(constraint.pattern) or Pattern(0, UNKNOWN)
                size = read.farthest + SCALAR
                return cls(size, 0, False, read.examples, fewest=1 + spelling.any_of(read.least, straddled=False))
            case StructuralTag():
                return cls._of_tags(constraint.parsed, spelling)
            case _:
                return cls(UNKNOWN, 4 * UNKNOWN, False)

    @classmethod
    def _of_tags(cls, tag: Any, spelling: Spelling) -> Reserve:
        nodes = list(_nodes_in(tag))
        schemas = [node[key] for node in nodes for key in SCHEMAS if isinstance(node.get(key), Mapping)]
        sizes = _Sizes(schemas, spelling)
        marks = [node[key] for node in nodes for key in ("begin", "end") if isinstance(node.get(key), str)]
        more = 2 * max(map(spelling.whole, map(str.encode, marks)), default=0) + (0 if schemas else UNKNOWN)
        regions = [
            (node["begin"], node["end"])
            for node in nodes
            if isinstance(node.get("begin"), str) and isinstance(node.get("end"), str)
            if isinstance(content := node.get("content", node), Mapping) and content.keys() & set(SCHEMAS)
        ]
        return cls(
            sizes.growth + more,
            sizes.level + more,
            False,
            sizes.examples,
            sizes.names,
            triggers=_unique(text for node in nodes for text in node.get("triggers", ()) if isinstance(text, str)),
            regions=tuple(dict.fromkeys(regions)),
            ends=_unique(end for node in nodes if isinstance(end := node.get("end"), str)),
        )


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _freeze(value: Any) -> Any:
    """Return a JSON value with tuples in place of lists."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _nodes_in(tag: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a structural tag, except for the objects inside its schemas."""
    left = [tag]
    while left:
        node = left.pop()
        if isinstance(node, Mapping):
            yield node
            left += [child for key, child in node.items() if key not in SCHEMAS]
        elif isinstance(node, list):
            left += node


_spelling = lru_cache(maxsize=1)(Spelling)
"""Cached constructor of `Spelling`. It keeps the last vocabulary's, because building one takes long."""


class Size(NamedTuple):
    """Numbers of tokens of the shortest value of a schema."""

    fewest: int
    """Proved lower bound of the tokens that begin within the value."""
    least: int
    """Estimate of its tokens."""


KINDS = {
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties", "minProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "contains"}),
    "string": frozenset({"pattern", "minLength", "format"}),
}
"""Keywords that imply a type of the values of a schema without ``type``."""


class _Sizes:
    """Sizes of schemas, measured recursively.

    Lower bounds rely on a rule for strategies: they spell names of required properties, constants and members of
    enumerations as JSON, without optional escapes.
    """

    def __init__(self, schemas: Sequence[Schema], spelling: Spelling) -> None:
        self._spelling = spelling
        self.fewest = 0
        self.growth, self.level, self._within = SCALAR, SCALAR, SCALAR
        self._examples: dict[str, None] = {}
        """Examples of strings, in a dict to keep their order."""
        self._names: dict[str, None] = {}
        """Names of required properties, in order."""
        self._counts: dict[bytes, int] = {}
        for self._root in schemas:
            self._is_one: bool | None = None
            self._before: dict[int, Size] = {}
            for _ in range(2):  # the second pass knows the sizes of recursive schemas
                self._known: dict[int, Size] = {}
                self._depth = self._num_texts = 0
                self.fewest = self._size(self._root).fewest
                self._before = self._known
        self.growth = max(self.growth, self._within) + SCALAR
        self.level += self._within
        self.examples, self.names = tuple(self._examples)[:MOST_WITNESSES], tuple(self._names)[:MOST_WITNESSES]

    def _size(self, schema: Any) -> Size:
        if not isinstance(schema, Mapping):
            return Size(0, 1)
        if id(schema) not in self._known:
            if self._depth > DEEPEST:
                return Size(0, UNKNOWN)
            self._known[id(schema)] = Size(0, self._before.get(id(schema), Size(0, MOST)).least)
            self._depth += 1
            fewest, least = self._measure(schema)
            self._depth -= 1
            self._known[id(schema)] = Size(min(MOST, fewest), min(MOST, least))
        return self._known[id(schema)]

    def _measure(self, schema: Mapping[str, Any]) -> Size:
        if values := [schema["const"]] if "const" in schema else schema.get("enum"):
            sizes = [self._value(value) for value in values]
            self._within = max(self._within, *(size.least for size in sizes))
            if isinstance(shortest := min(zip(sizes, values, strict=True), key=lambda it: it[0].least)[1], str):
                self._examples[shortest] = None
            fewest, least = _shortest(sizes)
        else:
            fewest, least = self._of_type(schema)
        parts = [self._size(child) for child in schema.get("allOf", ())]
        for keyword in ("anyOf", "oneOf"):
            if branches := [self._size(child) for child in schema.get(keyword, ())]:
                parts.append(_shortest(branches))
                self._grow(*(size.least for size in branches), but=parts[-1].least)
        fewest = max([fewest, *(part.fewest for part in parts)])
        conditional = [self._size(schema.get(keyword)).least for keyword in ("then", "else")]
        self._grow(*conditional, but=1)
        least += sum(part.least for part in parts) + max(conditional) - 1
        if isinstance(reference := schema.get("$ref"), str):  # some drafts also apply the keywords next to `$ref`
            target = self._size(resolve(self._root, reference))
            is_local = (reference == "#" or reference.startswith("#/")) and self._starts_from_root()
            return Size(target.fewest if is_local else 0, least + target.least)
        return Size(fewest, least)

    def _starts_from_root(self) -> bool:
        """Return whether all references start from the root, as no inner schema has an ``id``."""
        if self._is_one is None:
            inner = (each for _, each in subschemas(self._root) if isinstance(each, Mapping) and each is not self._root)
            self._is_one = not any(each.keys() & {"$id", "id"} for each in inner)
        return self._is_one

    def _grow(self, *sizes: int, but: int = 0) -> None:
        """Increase `growth` to the largest size minus `but`, the tokens needed anyway. Ignore sizes without an end."""
        self.growth = max(self.growth, *(size - but for size in (0, *sizes) if size < MOST // 2))

    def _of_type(self, schema: Mapping[str, Any]) -> Size:
        of_kind = {"object": self._object, "array": self._array, "string": self._string, "number": self._number}
        types = schema.get("type", ())
        names = {types} if isinstance(types, str) else {*types}
        names = {"number" if name == "integer" else name for name in names}
        names |= {kind for kind, keywords in KINDS.items() if not types and schema.keys() & keywords}
        sizes = [measure(schema) for kind, measure in of_kind.items() if kind in names]
        if not types or names - of_kind.keys():
            sizes.append(Size(0, 1))
        found = _shortest(sizes)
        self._grow(*(size.least for size in sizes), but=found.least)
        return found if isinstance(types, str) else Size(0, found.least)

    def _object(self, schema: Mapping[str, Any]) -> Size:
        declared = schema.get("properties", {})
        required = dict.fromkeys(schema.get("required", ()))  # in order: only the first `MOST_TEXTS` count
        self._names |= required
        fewest = sum(self._value(name).fewest + self._size(declared.get(name)).fewest for name in required)
        needed = self._count(b"{}") + sum(self._property(name, declared.get(name)) for name in required)
        others = [self._property(name, child) for name, child in declared.items() if name not in required]
        others += [2 + self._size(schema.get(f"{which}Properties")).least for which in ("additional", "unevaluated")]
        for pattern, child in schema.get("patternProperties", {}).items():
            others.append(2 + self._pattern(pattern) + self._size(child).least)
        for keyword in ("dependentSchemas", "dependentRequired", "dependencies"):
            for child in (schema.get(keyword) or {}).values():
                first = child if isinstance(child, list) else ()
                others.append(self._size(child).least + sum(self._property(name, declared.get(name)) for name in first))
        needed += max(0, _number(schema.get("minProperties")) - len(required)) * min(others)
        self._grow(*others)
        self.level = max(self.level, needed if needed < MOST // 2 else 0)
        return Size(fewest, needed)

    def _property(self, name: str, schema: Any) -> int:
        """Return an estimate of the tokens of a property, with its colon and comma."""
        return self._count(b"," + _json(name) + b":") + self._size(schema).least

    def _array(self, schema: Mapping[str, Any]) -> Size:
        items, least = schema.get("items"), _number(schema.get("minItems"))
        first = schema.get("prefixItems", items if isinstance(items, list) else ())
        other = self._size(schema.get("additionalItems") if isinstance(items, list) else items)
        each = 1 + max(other.least, self._size(schema.get("unevaluatedItems")).least)
        sizes = [1 + self._size(child).least for child in first]
        needed = self._count(b"[]") + sum(sizes[:least]) + max(0, least - len(first)) * each
        if isinstance(contains := schema.get("contains"), Mapping):
            needed += max(1, _number(schema.get("minContains", 1))) * (1 + self._size(contains).least)
        self._grow(each, *sizes)
        self.level = max(self.level, needed if needed < MOST // 2 else 0)
        return Size(0 if first else least * other.fewest, needed)

    def _string(self, schema: Mapping[str, Any]) -> Size:
        length = _number(schema.get("minLength"))
        read = Pattern.of(schema["pattern"]) if "pattern" in schema else None
        fewest = self._spelling.any_of(max(length, 0 if read is None else read.least), straddled=True)
        found = self._count(b'""') + self._count(b"a" * min(length, UNKNOWN)) * max(1, length // UNKNOWN)
        if "pattern" in schema:
            found += self._pattern(schema["pattern"])
        if (name := schema.get("format")) is not None:
            found += len(FORMATS.get(name, "." * UNKNOWN))
            self._examples |= dict.fromkeys([FORMATS[name]] if name in FORMATS else ())
        self._within = max(self._within, found)
        return Size(fewest, found)

    def _pattern(self, pattern: str) -> int:
        """Return the most characters to the end of a text of `pattern` from any position in it. Keep its examples."""
        read = Pattern.of(pattern)
        self._examples |= dict.fromkeys(read.examples if read else ())
        return max(1, read.farthest) if read else UNKNOWN

    def _number(self, schema: Mapping[str, Any]) -> Size:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        found = max((len(str(schema[bound])) for bound in bounds if bound in schema), default=1)
        self._within = max(self._within, found)
        return Size(0, found)

    def _value(self, value: Any) -> Size:
        """Return the size of a given value.

        Numbers, escapes and characters that are not ASCII have several spellings, so they count 0 in `Size.fewest`.
        """
        fewest = 0
        if isinstance(value, list):
            fewest = sum(self._value(each).fewest for each in value)
        elif isinstance(value, Mapping):
            fewest = sum(self._value(name).fewest + self._value(child).fewest for name, child in value.items())
        elif isinstance(value, bool) or value is None or (isinstance(value, str) and json.dumps(value) == f'"{value}"'):
            self._num_texts += 1
            fewest = self._spelling.part(json.dumps(value).encode()) if self._num_texts <= MOST_TEXTS else 0
        return Size(fewest, self._count(_json(value)))

    def _count(self, text: bytes) -> int:
        if text not in self._counts:
            self._counts[text] = self._spelling.whole(text)
        return self._counts[text]


def _shortest(sizes: Sequence[Size]) -> Size:
    return Size(min(size.fewest for size in sizes), min(size.least for size in sizes))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0
