"""A subset of JSON Schema, by derivatives of expressions over bytes. Objects are written with their declared names."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from guideway.api import (
    MAX_WHITESPACE,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    hookimpl,
)
from guideway.api.bitmask import Bitmask
from guideway.json_schema import check_schema

KEYWORDS = {
    "string": {"minLength", "maxLength"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
MASKS = 128


class Expressions:
    """Expressions, each once, so that equal ones are identical: tuples (kind, *parts) behind small objects."""

    def __init__(self) -> None:
        self.known: dict[tuple, Expression] = {}
        self.empty = self.make("empty")
        self.never = self.make("never")
        tail = self.byte(0x80, 0xBF)
        self.wide = self.alt(
            self.seq(self.byte(0xC2, 0xDF), tail),
            self.seq(self.byte(0xE0, 0xE0), self.byte(0xA0, 0xBF), tail),
            self.seq(self.alt(self.byte(0xE1, 0xEC), self.byte(0xEE, 0xEF)), tail, tail),
            self.seq(self.byte(0xED, 0xED), self.byte(0x80, 0x9F), tail),
            self.seq(self.byte(0xF0, 0xF0), self.byte(0x90, 0xBF), tail, tail),
            self.seq(self.byte(0xF1, 0xF3), tail, tail, tail),
            self.seq(self.byte(0xF4, 0xF4), self.byte(0x80, 0x8F), tail, tail),
        )

    def make(self, *key) -> Expression:
        found = self.known.get(key)
        return found if found is not None else self.known.setdefault(key, Expression(key))

    def byte(self, low: int, high: int) -> Expression:
        return self.make("byte", low, high)

    def text(self, text: str) -> Expression:
        return self.seq(*(self.byte(byte, byte) for byte in text.encode()))

    def seq(self, *parts: Expression) -> Expression:
        result = self.empty
        for part in reversed(parts):
            if part is self.never or result is self.never:
                return self.never
            if part is self.empty:
                continue
            if result is self.empty:
                result = part
            elif part.key[0] == "seq":
                result = self.seq(part.key[1], self.seq(part.key[2], result))
            else:
                result = self.make("seq", part, result)
        return result

    def alt(self, *parts: Expression) -> Expression:
        found: set[Expression] = set()
        for part in parts:
            if part.key[0] == "alt":
                found |= part.key[1]
            elif part is not self.never:
                found.add(part)
        if not found:
            return self.never
        return found.pop() if len(found) == 1 else self.make("alt", frozenset(found))

    def rep(self, body: Expression, least: int, most: int | None) -> Expression:
        if most == 0 or body is self.empty:
            return self.empty
        if body is self.never:
            return self.empty if least == 0 else self.never
        return body if (least, most) == (1, 1) else self.make("rep", body, least, most)

    def after(self, expression: Expression, byte: int) -> Expression:
        found = expression.steps.get(byte)
        if found is None:
            found = expression.steps[byte] = self.derive(expression.key, byte)
        return found

    def derive(self, key: tuple, byte: int) -> Expression:
        kind = key[0]
        if kind == "byte":
            return self.empty if key[1] <= byte <= key[2] else self.never
        if kind == "seq":
            first = self.seq(self.after(key[1], byte), key[2])
            return self.alt(first, self.after(key[2], byte)) if key[1].nullable else first
        if kind == "alt":
            return self.alt(*(self.after(part, byte) for part in key[1]))
        if kind == "rep":
            _, body, least, most = key
            rest = self.rep(body, max(0, least - 1), None if most is None else most - 1)
            return self.seq(self.after(body, byte), rest)
        return self.never


class Expression:
    __slots__ = ("key", "nullable", "steps")

    def __init__(self, key: tuple) -> None:
        self.key, self.steps = key, {}
        self.nullable = {
            "empty": lambda: True,
            "seq": lambda: key[1].nullable and key[2].nullable,
            "alt": lambda: any(part.nullable for part in key[1]),
            "rep": lambda: key[2] == 0 or key[1].nullable,
        }.get(key[0], lambda: False)()


class Writer(Expressions):
    """Makes the expression of a schema, or refuses it."""

    def __init__(self, spacing: str) -> None:
        super().__init__()
        blank = self.alt(*(self.byte(b, b) for b in b" \t\r\n"))
        most = {"bounded": MAX_WHITESPACE, "any": None}.get(spacing, 0)
        self.blanks = self.rep(blank, 0, most)
        spaced = self.text(" ") if spacing == "spaced" else self.blanks
        self.comma = self.seq(self.blanks, self.text(","), spaced)
        self.colon = self.seq(self.blanks, self.text(":"), spaced)
        digit, digits = self.byte(48, 57), self.rep(self.byte(48, 57), 0, None)
        whole = self.alt(self.text("0"), self.seq(self.byte(49, 57), digits))
        sign = self.alt(self.empty, self.text("-"))
        fraction = self.seq(self.text("."), digit, digits)
        exponent = self.seq(
            self.alt(self.text("e"), self.text("E")),
            self.alt(self.empty, self.text("+"), self.text("-")),
            digit,
            digits,
        )
        self.integer = self.seq(sign, whole)
        self.number = self.seq(self.integer, self.alt(self.empty, fraction), self.alt(self.empty, exponent))
        plain = self.alt(self.byte(0x20, 0x21), self.byte(0x23, 0x5B), self.byte(0x5D, 0x7F), self.wide)
        escaped = self.seq(self.text("\\"), self.alt(*(self.text(c) for c in '"\\/bfnrt')))
        self.character = self.alt(plain, escaped)

    def value(self, value: Any) -> Expression:
        if isinstance(value, dict):
            members = [self.seq(self.value(name), self.colon, self.value(item)) for name, item in value.items()]
            return self.list("{", members, "}")
        if isinstance(value, list):
            return self.list("[", [self.value(item) for item in value], "]")
        return self.text(json.dumps(value, ensure_ascii=False))

    def list(self, opening: str, parts: Sequence[Expression], closing: str) -> Expression:
        inside = [self.blanks]
        for i, part in enumerate(parts):
            inside += [self.comma, part] if i else [part]
        if parts:
            inside.append(self.blanks)
        return self.seq(self.text(opening), *inside, self.text(closing))

    def schema(self, schema: Any) -> Expression:
        if not isinstance(schema, dict):
            raise UnsupportedGrammar("a boolean schema is not supported", feature=str(schema).lower())
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if "enum" in schema or "const" in schema:
            self.only(schema, {"type", "enum"} if "enum" in schema else {"type", "const"})
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self.alt(*(self.value(v) for v in values if not types or any(is_a(v, t) for t in types)))
        if not types:
            raise UnsupportedGrammar("a schema without a type is not supported", feature="type")
        self.only(schema, {"type"}.union(*(KEYWORDS.get(t, ()) for t in types)))
        return self.alt(*(getattr(self, f"of_{t}")(schema) for t in types))

    def only(self, schema: dict, allowed: set[str]) -> None:
        for keyword in schema:
            if keyword not in allowed:
                raise UnsupportedGrammar(f"{keyword} is not supported here", feature=keyword)

    def of_null(self, schema: dict) -> Expression:
        return self.text("null")

    def of_boolean(self, schema: dict) -> Expression:
        return self.alt(self.text("true"), self.text("false"))

    def of_integer(self, schema: dict) -> Expression:
        return self.integer

    def of_number(self, schema: dict) -> Expression:
        return self.number

    def of_string(self, schema: dict) -> Expression:
        least, most = bounds(schema, "minLength", "maxLength")
        if most is not None and least > most:
            return self.never
        return self.seq(self.text('"'), self.rep(self.character, least, most), self.text('"'))

    def of_array(self, schema: dict) -> Expression:
        least, most = bounds(schema, "minItems", "maxItems")
        if most is not None and least > most:
            return self.never
        if "items" not in schema and most != 0:
            raise UnsupportedGrammar("an array without items is not supported", feature="array")
        item = self.schema(schema["items"]) if "items" in schema else self.never
        if item is self.never:
            most = 0
        none = self.list("[", [], "]") if least == 0 else self.never
        if most == 0:
            return none
        more = self.rep(self.seq(self.comma, item), max(0, least - 1), None if most is None else most - 1)
        return self.alt(none, self.seq(self.text("["), self.blanks, item, more, self.blanks, self.text("]")))

    def of_object(self, schema: dict) -> Expression:
        if schema.get("additionalProperties", False) is not False:
            raise UnsupportedGrammar("additionalProperties is supported as false only", feature="additionalProperties")
        properties, required = schema.get("properties", {}), schema.get("required", [])
        for name in required:
            if name not in properties:
                raise UnsupportedGrammar(f"required name {name!r} is not declared", feature="required")
        first, later = self.text("}"), self.seq(self.blanks, self.text("}"))
        for name, part in reversed(properties.items()):
            member = self.seq(self.value(name), self.colon, self.schema(part))
            here, there = self.seq(member, later), self.seq(self.comma, member, later)
            if name in required:
                first, later = here, there
            else:
                first, later = self.alt(here, first), self.alt(there, later)
        return self.seq(self.text("{"), self.blanks, first)


def bounds(schema: dict, least: str, most: str) -> tuple[int, int | None]:
    return int(schema.get(least, 0)), None if most not in schema else int(schema[most])


def is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    return kind == {str: "string", list: "array", dict: "object", type(None): "null"}[type(value)]


def keywords(schema: Any) -> set[str]:
    """The keywords of a schema and of its parts."""
    found = set(schema)
    for part in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        found |= keywords(part)
    return found


class Schemas(GrammarStrategy):
    contract = "1.0"
    name = "schemas"
    kinds = frozenset({"json_schema"})
    capabilities = frozenset({"fork", "serialize"})
    max_rollback = None
    limits = MappingProxyType({"depth": 32, "repetition": 20_000, "nodes": 2000})

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        if options:
            raise InvalidConfiguration(
                f"grammar.schemas has no option {next(iter(options))!r}", field="grammar.schemas"
            )
        special = {*vocabulary.special_tokens, *vocabulary.stop_token_ids}
        self.texts = [b"" if i in special else text for i, text in enumerate(vocabulary.tokens)]
        self.root: tuple[dict, list] = ({}, [])
        for token_id, text in enumerate(self.texts):
            node = self.root
            for byte in text:
                node = node[0].setdefault(byte, ({}, []))
            if text:
                node[1].append(token_id)

    def supports(self, constraint: Constraint) -> Support:
        try:
            constraint.cached(check_schema)
            Writer(constraint.spacing).schema(constraint.parsed)
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        return Support(enforced=frozenset(keywords(constraint.parsed)))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        constraint.cached(check_schema)
        writer = Writer(constraint.spacing)
        start = writer.schema(constraint.parsed)
        if start is writer.never:
            raise InvalidGrammar("no value obeys the schema")
        written = json.dumps([constraint.source(), constraint.spacing])
        return CompiledSchema(writer, start, written, self.root, self.texts)

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        schema, spacing = json.loads(data)
        return self.compile(JsonSchema(schema, whitespace=spacing))


class CompiledSchema(CompiledGrammar):
    def __init__(self, writer: Writer, start: Expression, written: str, root, texts) -> None:
        self.writer, self.start, self.written, self.root, self.texts = writer, start, written, root, texts
        self.masks: OrderedDict[Expression, np.ndarray] = OrderedDict()
        self.lock = threading.Lock()

    def to_bytes(self) -> bytes:
        return self.written.encode()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return SchemaMatcher(self, stop_token_ids, (self.start, None))

    @property
    def nbytes(self) -> int:
        known = list(self.writer.known.values())
        with self.lock:
            masks = sum(mask.nbytes for mask in self.masks.values())
        return masks + sum(400 + 60 * len(each.steps) for each in known) + len(self.written)

    def mask(self, state: Expression) -> np.ndarray:
        """``bool[vocabulary]``: the tokens with text that may come at `state`."""
        with self.lock:
            if state in self.masks:
                self.masks.move_to_end(state)
                return self.masks[state]
        legal = np.zeros(len(self.texts), dtype=np.bool_)
        stack = [(self.root, state)]
        while stack:
            (below, token_ids), place = stack.pop()
            legal[token_ids] = True
            for byte, child in below.items():
                after = self.writer.after(place, byte)
                if after is not self.writer.never:
                    stack.append((child, after))
        with self.lock:
            self.masks[state] = legal
            while len(self.masks) > MASKS:
                self.masks.popitem(last=False)
        return legal


class SchemaMatcher(Matcher):
    """`path`: the state now, and the path before it. Paths are shared by forks and never changed."""

    def __init__(self, compiled: CompiledSchema, stop_token_ids: frozenset[int], path: tuple) -> None:
        self.compiled, self.stop_token_ids, self.path = compiled, stop_token_ids, path

    def after(self, path: tuple, token_id: int) -> tuple | None:
        state, writer = path[0], self.compiled.writer
        if state is None:
            return None
        if token_id in self.stop_token_ids:
            return (None, path) if state.nullable else None
        text = self.compiled.texts[token_id]
        for byte in text:
            state = writer.after(state, byte)
        return (state, path) if text and state is not writer.never else None

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            path = self.after(self.path, token_id)
            if path is None:
                return count
            self.path = path
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        path = self.path
        for _ in range(num_tokens):
            path = path[1]
            if path is None:
                raise ValueError(f"cannot roll back {num_tokens} tokens")
        self.path = path

    def fork(self) -> Matcher:
        return SchemaMatcher(self.compiled, self.stop_token_ids, self.path)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        state = self.path[0]
        legal = self.compiled.mask(state)
        if state.nullable:
            legal = legal.copy()
            legal[list(self.stop_token_ids)] = True
        if not legal.any():
            raise DeadEnd("no token of the vocabulary goes on with the JSON")
        padded = np.zeros(bitmask.shape[1] * 32, dtype=np.bool_)
        padded[: len(legal)] = legal
        bitmask[row] = np.packbits(padded, bitorder="little").view("<i4")

    def is_terminated(self) -> bool:
        return self.path[0] is None

    def is_accepting(self) -> bool:
        return self.path[0].nullable


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Schemas
