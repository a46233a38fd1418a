"""A subset of JSON Schema by Brzozowski derivatives: the state of an output is the expression for the rest of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    GrammarExample,
    GrammarStrategy,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import Bitmask
from guideway.api.options import Range, parse_options
from guideway.json_schema import check_schema

KNOWN = frozenset(
    [
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
    ]
)
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
ROWS = 512


@dataclass(frozen=True)
class Options:
    digits: Annotated[int, Range(1, 300)] = 18
    """The most digits of a number before its point, and after it."""
    ascii_strings: bool = False
    """True if strings are written without characters past ASCII."""


class SchemaLite(GrammarStrategy):
    contract = "1.0"
    name = "schema_lite"
    kinds = frozenset({"json_schema"})
    capabilities = frozenset({"fork"})
    max_rollback = None
    limits = MappingProxyType({"properties": 60, "depth": 24})
    examples = (
        GrammarExample(
            JsonSchema(
                {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
                    "required": ["a"],
                    "additionalProperties": False,
                }
            ),
            (b'{"a":1,"b":null}', b'{"a":-20}'),
            (b'{"b":null}', b'{"a":1.5}', b'{"a":1,"c":2}', b'{"a":1,}'),
        ),
        GrammarExample(
            JsonSchema({"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 1, "maxItems": 3}),
            (b'["a"]', b'["","bc","d"]', '["ü\\n"]'.encode()),
            (b"[]", b'["abc"]', b'["a","b","c","d"]', b'["a",]'),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.schema_lite")
        self.trie: tuple[list[int], dict[int, Any]] = ([], {})
        for token_id, token in enumerate(vocabulary.tokens):
            node = self.trie
            for byte in token:
                node = node[1].setdefault(byte, ([], {}))
            if token:
                node[0].append(token_id)

    def supports(self, constraint: Constraint) -> Support:
        try:
            constraint.cached(check_schema)
            named = keywords(constraint.parsed)
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        except RecursionError:
            return Support(reason="it is nested too deeply")
        return Support(enforced=frozenset(named))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind != "json_schema":
            raise UnsupportedGrammar(f"schema_lite cannot compile {constraint.kind}", feature=constraint.kind)
        constraint.cached(check_schema)
        try:
            keywords(constraint.parsed)
            algebra = Algebra(self.options, constraint.spacing)
            start = algebra.schema(constraint.parsed)
        except RecursionError as error:
            raise UnsupportedGrammar("it is nested too deeply", feature="depth") from error
        if start is algebra.none:
            raise InvalidGrammar("no value satisfies this schema")
        return Compiled(self, algebra, start)


def keywords(schema: Any) -> set[str]:
    """The keywords of a schema and its parts. Raises `UnsupportedGrammar` for what is not in the subset."""
    if schema is False:
        return set()
    if schema is True or not isinstance(schema, dict) or not {"type", "enum", "const"} & schema.keys():
        raise UnsupportedGrammar("schema_lite needs a type, enum or const", feature="type")
    if not isinstance(schema.get("required", []), list) or not isinstance(schema.get("properties", {}), dict):
        raise UnsupportedGrammar("schema_lite knows no older drafts", feature="required")
    if unknown := sorted(schema.keys() - KNOWN):
        raise UnsupportedGrammar(f"schema_lite does not know {unknown[0]}", feature=unknown[0])
    if not isinstance(schema.get("additionalProperties", False), bool):
        raise UnsupportedGrammar("schema_lite writes no other properties", feature="additionalProperties")
    values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    if any(isinstance(value, dict | list) for value in values):
        raise UnsupportedGrammar("schema_lite knows only simple values", feature="enum")
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if "array" in types and not values and "items" not in schema:
        raise UnsupportedGrammar("schema_lite needs items of an array", feature="items")
    absent = set(schema.get("required", ())) - schema.get("properties", {}).keys()
    if absent and not values and "object" in types and schema.get("additionalProperties", True):
        raise UnsupportedGrammar("schema_lite writes no other properties", feature="required")
    found = set(schema)
    for part in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        found |= keywords(part)
    return found


def is_of(value: Any, name: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "string": isinstance(value, str), "boolean": isinstance(value, bool), "null": value is None,
        "number": number, "integer": number and value == int(value),
    }.get(name, False)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


class Node:
    """An expression, which its `Algebra` makes once."""

    __slots__ = ("args", "first", "nullable", "op")

    def __init__(self, op: str, args: tuple, nullable: bool) -> None:
        self.op, self.args, self.nullable = op, args, nullable
        if op == "byte":
            self.first = sum(1 << byte for byte in args[0])  # the bytes it can begin with, as bits
        elif op == "or":
            self.first = 0
            for part in args:
                self.first |= part.first
        elif op == "times":
            self.first = args[0].first
        else:
            self.first = args[0].first | (args[1].first if args[0].nullable else 0) if args else 0


class Algebra:
    def __init__(self, options: Options, spacing: str) -> None:
        self.options = options
        self.nodes: dict[tuple, Node] = {}
        self.steps: dict[tuple[Node, int], Node] = {}
        self.none, self.empty = self.make("none", (), False), self.make("empty", (), True)
        self.comma, self.colon = (self.separator(sign, spacing) for sign in b",:")
        self.characters = self.character()

    def make(self, op: str, args: tuple, nullable: bool) -> Node:
        key = (op, frozenset(args)) if op == "or" else (op, args)
        return self.nodes.get(key) or self.nodes.setdefault(key, Node(op, args, nullable))

    def byte(self, *spans: tuple[int, int]) -> Node:
        return self.make("byte", (frozenset(b for lo, hi in spans for b in range(lo, hi + 1)),), False)

    def text(self, text: bytes) -> Node:
        return self.all(*(self.byte((b, b)) for b in text))

    def all(self, *parts: Node) -> Node:
        result = self.empty
        for part in reversed(parts):
            if self.none in (part, result):
                return self.none
            if result is self.empty:
                result = part
            elif part.op == "then":  # to the right, so that equal texts are equal expressions
                result = self.all(part.args[0], self.all(part.args[1], result))
            elif part is not self.empty:
                result = self.make("then", (part, result), part.nullable and result.nullable)
        return result

    def any(self, *parts: Node) -> Node:
        found: dict[Node, None] = {}
        for part in parts:
            found.update(dict.fromkeys(part.args if part.op == "or" else () if part is self.none else (part,)))
        if len(found) < 2:
            return next(iter(found), self.none)
        return self.make("or", tuple(found), any(part.nullable for part in found))

    def times(self, part: Node, least: int, most: int | None) -> Node:
        if most == 0 or (part is self.none and least == 0) or part is self.empty:
            return self.empty
        if part is self.none or (most is not None and least > most):
            return self.none
        return part if least == most == 1 else self.make("times", (part, least, most), least == 0 or part.nullable)

    def separator(self, sign: int, spacing: str) -> Node:
        space = {"compact": self.empty, "spaced": self.text(b" ")}.get(spacing)
        return self.all(self.byte((sign, sign)), space or self.times(self.text(b" "), 0, 1))

    def character(self) -> Node:
        byte, tail = self.byte, self.byte((0x80, 0xBF))
        hex_digit = byte((48, 57), (65, 70), (97, 102))
        unicode = self.any(  # no surrogates: one escape is one character
            self.all(byte((48, 57), (65, 67), (69, 70), (97, 99), (101, 102)), *[hex_digit] * 3),
            self.all(byte((68, 68), (100, 100)), byte((48, 55)), *[hex_digit] * 2),
        )
        escape = self.any(byte(*((c, c) for c in b'"\\/bfnrt')), self.all(self.text(b"u"), unicode))
        plain = byte((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))
        wide = [
            self.all(byte((0xC2, 0xDF)), tail),
            self.all(byte((0xE0, 0xE0)), byte((0xA0, 0xBF)), tail),
            self.all(byte((0xE1, 0xEC), (0xEE, 0xEF)), tail, tail),
            self.all(byte((0xED, 0xED)), byte((0x80, 0x9F)), tail),
            self.all(byte((0xF0, 0xF0)), byte((0x90, 0xBF)), tail, tail),
            self.all(byte((0xF1, 0xF3)), tail, tail, tail),
            self.all(byte((0xF4, 0xF4)), byte((0x80, 0x8F)), tail, tail),
        ]
        return self.any(plain, self.all(self.text(b"\\"), escape), *(() if self.options.ascii_strings else wide))

    def schema(self, schema: Any) -> Node:
        if schema is False:
            return self.none
        types = schema.get("type", TYPES)
        types = (types,) if isinstance(types, str) else types
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            if "const" in schema:
                values = [value for value in values if same(value, schema["const"])]
            least, most = schema.get("minLength", 0), schema.get("maxLength")
            return self.any(
                *(
                    self.text(json.dumps(value, ensure_ascii=self.options.ascii_strings).encode())
                    for value in values
                    if any(is_of(value, name) for name in types)
                    and (not isinstance(value, str) or (least <= len(value) and (most is None or len(value) <= most)))
                )
            )
        return self.any(*(getattr(self, name)(schema) for name in types))

    def object(self, schema: Any) -> Node:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        if required - properties.keys():
            return self.none
        later = first = self.text(b"}")  # what follows when a property was written, and when none was
        for name, part in reversed(properties.items()):
            text = self.text(json.dumps(name, ensure_ascii=self.options.ascii_strings).encode())
            written = self.all(text, self.colon, self.schema(part), later)
            later_with, first_with = self.all(self.comma, written), written
            later, first = (
                (later_with, first_with)
                if name in required
                else (self.any(later_with, later), self.any(first_with, first))
            )
        return self.all(self.text(b"{"), first)

    def array(self, schema: Any) -> Node:
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        most = None if most is None else int(most)
        if most is not None and least > most:
            return self.none
        item = self.schema(schema["items"])
        more = self.times(self.all(self.comma, item), max(least - 1, 0), None if most is None else max(most - 1, 0))
        some = self.none if most == 0 else self.all(item, more)
        return self.all(self.text(b"["), some if least else self.any(self.empty, some), self.text(b"]"))

    def string(self, schema: Any) -> Node:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        most = None if most is None else int(most)
        if most is not None and least > most:
            return self.none
        quote = self.text(b'"')
        return self.all(quote, self.times(self.characters, least, most), quote)

    def integer(self, schema: Any) -> Node:
        digits = self.times(self.byte((48, 57)), 0, self.options.digits - 1)
        whole = self.any(self.text(b"0"), self.all(self.byte((49, 57)), digits))
        return self.all(self.times(self.text(b"-"), 0, 1), whole)

    def number(self, schema: Any) -> Node:
        fraction = self.all(self.text(b"."), self.times(self.byte((48, 57)), 1, self.options.digits))
        exponent = self.all(
            self.byte((69, 69), (101, 101)),
            self.any(self.empty, self.byte((43, 43), (45, 45))),
            self.times(self.byte((48, 57)), 1, 2),
        )
        return self.all(self.integer(schema), self.times(fraction, 0, 1), self.times(exponent, 0, 1))

    def boolean(self, schema: Any) -> Node:
        return self.any(self.text(b"true"), self.text(b"false"))

    def null(self, schema: Any) -> Node:
        return self.text(b"null")

    def after(self, node: Node, byte: int) -> Node:
        """The derivative: what may follow `byte`."""
        if not node.first >> byte & 1:
            return self.none
        found = self.steps.get((node, byte))
        if found is None:
            found = self.steps[node, byte] = self.derive(node, byte)
        return found

    def derive(self, node: Node, byte: int) -> Node:
        if node.op == "byte":
            return self.empty if byte in node.args[0] else self.none
        if node.op == "then":
            left, right = node.args
            gone = self.all(self.after(left, byte), right)
            return self.any(gone, self.after(right, byte)) if left.nullable else gone
        if node.op == "or":
            return self.any(*(self.after(part, byte) for part in node.args))
        if node.op == "times":
            part, least, most = node.args
            rest = self.times(part, max(least - 1, 0), None if most is None else most - 1)
            return self.all(self.after(part, byte), rest)
        return self.none


class Compiled(CompiledGrammar):
    def __init__(self, strategy: SchemaLite, algebra: Algebra, start: Node) -> None:
        self.vocabulary, self.trie = strategy.vocabulary, strategy.trie
        self.algebra, self.start = algebra, start
        self.rows: dict[Node, tuple[int, ...]] = {}
        self.held = 0
        self.lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return SchemaMatcher(self, stop_token_ids, [self.start])

    @property
    def nbytes(self) -> int:
        return 450 * len(self.algebra.nodes) + 180 * len(self.algebra.steps) + self.held

    def legal(self, node: Node) -> Any:
        """The ids of the text tokens that may come next. The last `ROWS` that were asked for are kept."""
        ids = self.rows.get(node)
        if ids is None:
            found, stack, after = [], [(self.trie, node)], self.algebra.after
            while stack:
                (here, children), state = stack.pop()
                found += here
                for byte, child in children.items():
                    reached = after(state, byte)
                    if reached is not self.algebra.none:
                        stack.append((child, reached))
            ids = np.array(sorted(found), dtype=np.int64)
            with self.lock:
                if node not in self.rows:
                    if len(self.rows) >= ROWS:
                        self.held -= 150 + self.rows.pop(next(iter(self.rows))).nbytes
                    self.rows[node] = ids
                    self.held += 150 + ids.nbytes
        return ids


class SchemaMatcher(Matcher):
    def __init__(self, compiled: Compiled, stops: frozenset[int], path: list[Node | None]) -> None:
        self.compiled, self.stops = compiled, stops
        self.path = path  # what may follow, at the start and after each token; None: terminated

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            state = self.path[-1]
            if state is None:
                return count
            if token_id in self.stops:
                if not state.nullable:
                    return count
                self.path.append(None)
                continue
            token = self.compiled.vocabulary.tokens[token_id]
            for byte in token:
                state = self.compiled.algebra.after(state, byte)
            if not token or state is self.compiled.algebra.none:
                return count
            self.path.append(state)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} tokens")
        del self.path[len(self.path) - num_tokens :]

    def fork(self) -> Matcher:
        return SchemaMatcher(self.compiled, self.stops, self.path.copy())

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        state = self.path[-1]
        ids = self.compiled.legal(state)
        if state.nullable:
            ids = np.concatenate([ids, np.fromiter(self.stops, dtype=np.int64)])
        if not len(ids):
            raise DeadEnd("no token of the vocabulary goes on with an instance of the schema")
        bits = np.zeros(bitmask.shape[1] * 32, dtype=np.bool_)
        bits[ids] = True
        bitmask[row] = np.packbits(bits, bitorder="little").view("<i4")

    def is_terminated(self) -> bool:
        return self.path[-1] is None

    def is_accepting(self) -> bool:
        return self.path[-1].nullable
