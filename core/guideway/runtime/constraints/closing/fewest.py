"""The fewest tokens that an output may have: a bound that is proved, from the constraint and the vocabulary alone."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from guideway.api.types import Choice, Constraint, JsonSchema, Regex
from guideway.json_schema import Schema, resolve, subschemas
from guideway.runtime.constraints.closing.patterns import Pattern

__all__ = ["Spelling", "fewest_tokens"]

BETWEEN = b"\x00\xfd\xfe\xff\x00"
"""Stands between tokens. One that holds it makes a bound smaller, never wrong."""
LONGEST = 256
"""Bytes of a text that are looked at."""
MOST_TEXTS = 300
"""Texts that are looked at; what comes then counts as nothing."""
DEEPEST = 60
"""Schemas in one another, references included."""
MOST = 1 << 20
"""Tokens of anything."""


def fewest_tokens(constraint: Constraint, spelling: Spelling) -> int:
    """No output of a constraint has fewer tokens than this, its stop token included; all may have more.

    Every strategy spells the names of required properties, constants and members of enumerations as JSON does, without
    an escape that it can do without.
    """
    match constraint:
        case JsonSchema():
            schema = constraint.parsed
            return 1 + max(1, _Schemas(schema, spelling).fewest(schema))
        case Choice():
            return 1 + min(spelling.whole(choice.encode()) for choice in constraint.choices)
        case Regex():
            read = Pattern.of(constraint.pattern)
            return 1 + (0 if read is None else spelling.any_of(read.least, straddled=False))
        case _:
            return 1


class Spelling:
    """A count of how few tokens spell a text."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        self._tokens = frozenset(token for token in tokens if token)

    def whole(self, text: bytes) -> int:
        """Tokens of a text that begins and ends with its tokens, at the least."""
        if len(text) > LONGEST:
            return self.any_of(len(text), straddled=False)
        return self._spelt(text, [0] + [len(text)] * len(text))[-1]

    def part(self, text: bytes) -> int:
        """Tokens that begin within a text which is a part of the output, at the least: the first bytes of it may end a
        token, and the last begin one."""
        text = text[:LONGEST]
        if self._joined.count(text) > (text in self._tokens):  # a token holds it, and more
            return 0
        length = len(text)
        begun = [0 if i == 0 or _goes_on(self._reversed, text[:i][::-1]) else length for i in range(length + 1)]
        best = self._spelt(text, begun)
        over = (1 + best[i] for i in range(length) if _goes_on(self._sorted, text[i:]))
        return min([best[-1], *over])

    def any_of(self, length: int, *, straddled: bool) -> int:
        """The same of any text of so many bytes, or more."""
        before = self._longest - 1 if straddled else 0
        return max(0, -(-(length - before) // self._longest))

    def _spelt(self, text: bytes, best: list[int]) -> list[int]:
        """Count how few tokens bring a text as far as each of its bytes, `best` being what is known so far."""
        for end in range(1, len(text) + 1):
            starts = (i for i in range(max(0, end - self._longest), end) if text[i:end] in self._tokens)
            best[end] = min([best[end], *(1 + best[i] for i in starts)])
        return best

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self._tokens)

    @cached_property
    def _reversed(self) -> list[bytes]:
        return sorted(token[::-1] for token in self._tokens)

    @cached_property
    def _joined(self) -> bytes:
        return BETWEEN.join(self._sorted)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._tokens))


def _goes_on(tokens: list[bytes], text: bytes) -> bool:
    """Return whether one of some sorted tokens begins with `text` and is longer."""
    at = bisect_right(tokens, text)
    return at < len(tokens) and tokens[at].startswith(text)


class _Schemas:
    """The fewest tokens of a schema and its parts."""

    def __init__(self, root: Schema, spelling: Spelling) -> None:
        self._root = root
        self._spelling = spelling
        self._known: dict[int, int] = {}
        """0 of those that are being looked at: what requires itself is refused elsewhere."""
        self._depth = 0
        self._num_texts = 0

    def fewest(self, schema: Any) -> int:
        """Tokens that begin within a value of a schema, at the least."""
        if not isinstance(schema, Mapping) or self._depth > DEEPEST:
            return 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 0
            self._depth += 1
            self._known[id(schema)] = min(MOST, self._measured(schema))
            self._depth -= 1
        return self._known[id(schema)]

    def _measured(self, schema: Mapping[str, Any]) -> int:
        if "$ref" in schema:  # what stands beside it counts in some drafts
            reference = schema["$ref"]
            is_local = self._is_one and isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
            return self.fewest(resolve(self._root, reference)) if is_local else 0
        bounds = [0]
        if "const" in schema:
            bounds.append(self._value(schema["const"]))
        if enum := schema.get("enum"):
            bounds.append(min(map(self._value, enum)))
        bounds += [self.fewest(child) for child in schema.get("allOf", ())]
        for keyword in ("anyOf", "oneOf"):
            if branches := schema.get(keyword):
                bounds.append(min(map(self.fewest, branches)))
        match schema.get("type"):
            case "object":
                bounds.append(self._object(schema))
            case "array":
                items, least = schema.get("items"), schema.get("minItems", 0)
                if isinstance(items, Mapping) and "prefixItems" not in schema:
                    bounds.append(int(least) * self.fewest(items))
            case "string":
                bounds.append(self._string(schema))
        return max(bounds)

    @cached_property
    def _is_one(self) -> bool:
        """True if all references within it are from its root."""
        inner = (each for _, each in subschemas(self._root) if isinstance(each, Mapping) and each is not self._root)
        return not any(each.keys() & {"$id", "id"} for each in inner)

    def _object(self, schema: Mapping[str, Any]) -> int:
        declared = schema.get("properties", {})
        names = dict.fromkeys(schema.get("required", ()))  # in their order: not all texts may be looked at
        return sum(self._value(name) + self.fewest(declared.get(name)) for name in names)

    def _string(self, schema: Mapping[str, Any]) -> int:
        read = Pattern.of(schema["pattern"]) if "pattern" in schema else None
        least = max(int(schema.get("minLength", 0)), 0 if read is None else read.least)
        return self._spelling.any_of(least, straddled=True)

    def _value(self, value: Any) -> int:
        """Count the fewest tokens of a value that is spelt out. Numbers have many forms, and so has what is escaped or
        not ASCII."""
        match value:
            case str() if self._num_texts < MOST_TEXTS and (text := json.dumps(value)) == f'"{value}"':
                self._num_texts += 1
                return self._spelling.part(text.encode())
            case bool() | None:
                return self._spelling.part(json.dumps(value).encode())
            case Mapping():
                return sum(self._value(name) + self._value(child) for name, child in value.items())
            case list():
                return sum(map(self._value, value))
        return 0
