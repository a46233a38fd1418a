"""A grammar strategy for the shape of JSON: types, objects, arrays, enums. What is only a bound or a pattern is named
as unenforced; what refers or combines is refused. A schema becomes a net of states (an NFA over bytes)."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    GrammarStrategy,
    InvalidGrammar,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    hookimpl,
)
from guideway.api.bitmask import Bitmask, num_words
from guideway.json_schema import check_schema

ENFORCED = frozenset(
    {"type", "enum", "const", "properties", "required", "items", "minItems", "maxItems", "additionalProperties"}
)
NOTES = frozenset(
    {"$schema", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
REFUSED = frozenset(
    {
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "extends",
        "disallow",
        "prefixItems",
    }
)
MOST_STATES, MOST_KEPT = 60_000, 4_000
DIGITS, DIGITS_1 = frozenset(b"0123456789"), frozenset(b"123456789")
HEX, SPACE = frozenset(b"0123456789abcdefABCDEF"), frozenset(b" \t\n\r")
TRAIL = frozenset(range(0x80, 0xC0))
SHORT = {"compact": (0, False), "spaced": (0, False), "bounded": (16, False), "any": (0, True)}


def kinds_of(schema: Any) -> list[str]:
    """The types a value of `schema` may have; raises UnsupportedGrammar where any may."""
    if "type" not in schema:
        raise UnsupportedGrammar("shape needs a type, an enum or a const in each schema", feature="any value")
    named = schema["type"]
    return [named] if isinstance(named, str) else list(named)


def has_type(value: Any, named: str) -> bool:
    if isinstance(value, bool) or value is None:
        return named == ("boolean" if isinstance(value, bool) else "null")
    if isinstance(value, int | float):
        return named == "number" or (named == "integer" and isinstance(value, int))
    return named == {str: "string", list: "array", dict: "object"}[type(value)]


def same(a: Any, b: Any) -> bool:
    """Equality of JSON: true is not 1, and 1.0 is."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


def obeys(value: Any, schema: Any) -> bool:
    """Tell whether a listed `value` has all that the enforced keywords ask for."""
    if isinstance(schema, bool):
        return schema
    if "type" in schema and not any(has_type(value, named) for named in kinds_of(schema)):
        return False
    if "const" in schema and not same(value, schema["const"]):
        return False
    if "enum" in schema and not any(same(value, each) for each in schema["enum"]):
        return False
    if isinstance(value, list):
        fit = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return fit and all(obeys(item, schema.get("items", True)) for item in value)
    if isinstance(value, dict):
        listed, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        if "patternProperties" in schema:
            rest = True
        return all(name in value for name in schema.get("required", ())) and all(
            obeys(part, listed.get(name, rest)) for name, part in value.items()
        )
    return True


def survey(schema: Any) -> tuple[frozenset[str], str | None]:
    """The keywords of `schema` and its parts, and why it is refused, or None."""
    found: set[str] = set()
    stack, reason = [schema], None
    while stack:
        each = stack.pop()
        if isinstance(each, bool):
            if each is True:
                reason = reason or "shape needs a type, an enum or a const in each schema"
            continue
        found |= each.keys()
        refused = sorted(REFUSED & each.keys())
        if refused:
            reason = reason or f"shape does not know {refused[0]}"
        listed = each.get("properties", {})
        if "enum" not in each and "const" not in each:
            if "type" not in each:
                reason = reason or "shape needs a type, an enum or a const in each schema"
            elif "array" in kinds_of(each) and "items" not in each and each.get("maxItems") != 0:
                reason = reason or "shape needs items in each array"
            elif (each.get("additionalProperties", True) is not False or "patternProperties" in each) and any(
                name not in listed for name in each.get("required", ())
            ):
                reason = reason or "shape needs each required property in properties"
        if isinstance(each.get("items"), list):
            reason = reason or "shape does not know items that are a list"
        elif "items" in each and each["items"] is not True:
            stack.append(each["items"])
        stack += [part for part in listed.values() if part is not True or not {"enum", "const"} & each.keys()]
        if isinstance(each.get("additionalProperties"), dict):
            stack.append(each["additionalProperties"])
    return frozenset(found), reason


class Net:
    """An NFA, built from its end to its start: each method makes what comes before `after` and returns its start."""

    def __init__(self, spacing: str) -> None:
        self.spacing = spacing
        self.moves: list[tuple[tuple[frozenset[int], int], ...]] = []
        self.free: list[tuple[int, ...]] = []
        self.end = self.state()

    def state(self, moves: Iterable[tuple[frozenset[int], int]] = (), free: Iterable[int] = ()) -> int:
        if len(self.moves) >= MOST_STATES:
            raise UnsupportedGrammar("this schema is too large for shape", feature="size")
        self.moves.append(tuple(moves))
        self.free.append(tuple(free))
        return len(self.moves) - 1

    def either(self, *starts: int) -> int:
        return self.state(free=starts)

    def one(self, allowed: Iterable[int], after: int) -> int:
        return self.state([(frozenset(allowed), after)])

    def text(self, data: bytes, after: int) -> int:
        for byte in reversed(data):
            after = self.one({byte}, after)
        return after

    def star(self, make: Callable[[int], int], after: int) -> int:
        loop = self.state()
        self.free[loop] = (make(loop), after)
        return loop

    def blank(self, after: int) -> int:
        count, endless = SHORT[self.spacing]
        if endless:
            return self.star(lambda loop: self.one(SPACE, loop), after)
        start = after
        for _ in range(count):
            start = self.either(self.one(SPACE, start), after)
        return start

    def behind(self, mark: bytes, after: int) -> int:
        """A comma or a colon, with the white space around it."""
        if self.spacing == "spaced":
            return self.text(mark + b" ", after)
        return self.blank(self.text(mark, self.blank(after)))

    def string(self, after: int) -> int:
        def char(loop: int) -> int:
            plain = frozenset(range(0x20, 0x80)) - frozenset(b'"\\')
            last = self.one(TRAIL, loop)
            two = self.one(TRAIL, last)
            code = self.one(HEX, self.one(HEX, loop))
            high = self.state(
                [
                    (HEX - frozenset(b"dD"), self.one(HEX, code)),
                    (frozenset(b"dD"), self.one(frozenset(b"01234567"), code)),
                ]
            )
            escape = self.state([(frozenset(b'"\\/bfnrt'), loop), (frozenset(b"u"), high)])
            return self.state(
                [
                    (plain, loop),
                    (frozenset(b"\\"), escape),
                    (frozenset(range(0xC2, 0xE0)), last),
                    (frozenset(b"\xe0"), self.one(range(0xA0, 0xC0), last)),
                    (frozenset({*range(0xE1, 0xED), 0xEE, 0xEF}), two),
                    (frozenset(b"\xed"), self.one(range(0x80, 0xA0), last)),
                    (frozenset(b"\xf0"), self.one(range(0x90, 0xC0), two)),
                    (frozenset(b"\xf1\xf2\xf3"), self.one(TRAIL, two)),
                    (frozenset(b"\xf4"), self.one(range(0x80, 0x90), two)),
                ]
            )

        return self.text(b'"', self.star(char, self.text(b'"', after)))

    def digits(self, after: int) -> int:
        return self.one(DIGITS, self.star(lambda loop: self.one(DIGITS, loop), after))

    def number(self, after: int, whole: bool) -> int:
        if not whole:
            signed = self.digits(after)
            power = self.one(b"eE", self.either(signed, self.one(b"+-", signed)))
            rest = self.either(power, after)
            after = self.either(self.text(b".", self.digits(rest)), rest)
        first = self.either(self.text(b"0", after), self.one(DIGITS_1, self.star(lambda s: self.one(DIGITS, s), after)))
        return self.either(first, self.text(b"-", first))

    def value(self, value: Any, after: int) -> int:
        """A listed value, as it is."""
        if isinstance(value, list):
            parts = [lambda s, item=item: self.value(item, s) for item in value]
            return self.fixed(b"[", parts, b"]", after)
        if isinstance(value, dict):
            parts = [
                lambda s, n=n, v=v: self.text(name_of(n), self.behind(b":", self.value(v, s))) for n, v in value.items()
            ]
            return self.fixed(b"{", parts, b"}", after)
        return self.text(json.dumps(value, ensure_ascii=False).encode(), after)

    def fixed(self, opening: bytes, parts: Sequence[Callable[[int], int]], closing: bytes, after: int) -> int:
        start = self.text(closing, after)
        for i, part in enumerate(reversed(parts)):
            start = part(self.blank(start) if i == 0 else self.behind(b",", start))
        return self.text(opening, self.blank(start))

    def schema(self, schema: Any, after: int) -> int:
        if schema is False:
            return self.state()  # no way on
        if schema is True:
            raise UnsupportedGrammar("shape needs a type, an enum or a const in each schema", feature="any value")
        if "const" in schema or "enum" in schema:
            listed = [schema["const"]] if "const" in schema else schema["enum"]
            return self.either(*(self.value(each, after) for each in listed if obeys(each, schema)))
        return self.either(*(self.typed(named, schema, after) for named in kinds_of(schema)))

    def typed(self, named: str, schema: Mapping[str, Any], after: int) -> int:
        match named:
            case "null":
                return self.text(b"null", after)
            case "boolean":
                return self.either(self.text(b"true", after), self.text(b"false", after))
            case "integer" | "number":
                return self.number(after, named == "integer")
            case "string":
                return self.string(after)
            case "array":
                return self.array(schema, after)
        return self.object(schema, after)

    def array(self, schema: Mapping[str, Any], after: int) -> int:
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        closing = self.text(b"]", after)
        if most is not None and most < max(least, 1):
            return self.text(b"[", self.blank(closing)) if least <= most else self.state()
        item, ending = schema["items"], self.blank(closing)
        if most is None:
            rest = self.star(lambda loop: self.behind(b",", self.schema(item, loop)), ending)
        else:
            rest = ending
            for _ in range(int(most) - max(least, 1)):
                rest = self.either(self.behind(b",", self.schema(item, rest)), ending)
        for _ in range(max(least, 1) - 1):
            rest = self.behind(b",", self.schema(item, rest))
        first = self.schema(item, rest)
        return self.text(b"[", self.blank(first if least else self.either(first, closing)))

    def object(self, schema: Mapping[str, Any], after: int) -> int:
        listed, required = schema.get("properties", {}), schema.get("required", ())
        if any(name not in listed for name in required):
            return self.state()
        none = self.text(b"}", after)
        some = self.blank(none)
        for name, part in reversed(listed.items()):
            member = self.text(name_of(name), self.behind(b":", self.schema(part, some)))
            skipped = () if name in required else (none, some)
            none = self.either(member, *skipped[:1])
            some = self.either(self.behind(b",", member), *skipped[1:])
        return self.text(b"{", self.blank(none))


def name_of(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()


class Shape(GrammarStrategy):
    contract = "1.0"
    name = "shape"
    kinds = frozenset({"json_schema"})
    capabilities = frozenset({"fork", "serialize"})
    max_rollback = None
    limits: ClassVar[Mapping[str, int]] = {"repetition": 2_000, "repetitions": 4_000, "enum": 1_000, "literals": 20_000}

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.words = Words(vocabulary)

    def supports(self, constraint: Constraint) -> Support:
        found, reason = constraint.cached(survey) if well(constraint) else (frozenset(), "no JSON Schema")
        if reason is not None:
            return Support(reason=reason)
        if isinstance(constraint.parsed, bool):
            return Support(enforced=frozenset({"false"}))
        return Support(enforced=found & (ENFORCED | NOTES), unenforced=found - ENFORCED - NOTES)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        constraint.cached(check_schema)
        _, reason = constraint.cached(survey)
        if reason is not None:
            raise UnsupportedGrammar(reason, feature=reason.rpartition(" ")[2])
        net = Net(constraint.spacing)
        try:
            start = net.schema(constraint.parsed, net.end)
        except RecursionError as error:
            raise UnsupportedGrammar("this schema is too deep for shape", feature="depth") from error
        return CompiledShape(self.words, *pruned(net, start))

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        return CompiledShape(self.words, *pickle.loads(data))


def well(constraint: Constraint) -> bool:
    try:
        constraint.cached(check_schema)
    except InvalidGrammar:
        return False
    return True


def pruned(net: Net, start: int) -> tuple[list[Any], list[tuple[int, ...]], int, int]:
    """The net without the states from which its end is out of reach."""
    back: list[list[int]] = [[] for _ in net.moves]
    for i, (moves, free) in enumerate(zip(net.moves, net.free, strict=True)):
        for target in (*(target for _, target in moves), *free):
            back[target].append(i)
    alive, stack = {net.end}, [net.end]
    while stack:
        for source in back[stack.pop()]:
            if source not in alive:
                alive.add(source)
                stack.append(source)
    if start not in alive:
        raise InvalidGrammar("no JSON value obeys this schema")
    moves = [tuple((allowed, to) for allowed, to in each if to in alive) for each in net.moves]
    return moves, [tuple(to for to in each if to in alive) for each in net.free], start, net.end


class Words:
    """The tokens of a vocabulary as a tree of bytes: {byte: [ids that end here, tree]}."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.size = len(vocabulary)
        self.tokens = tuple(b"" if i in vocabulary.special_tokens else t for i, t in enumerate(vocabulary.tokens))
        self.tree: dict[int, Any] = {}
        for token_id, token in enumerate(self.tokens):
            tree = self.tree
            for byte in token[:-1]:
                tree = tree.setdefault(byte, [[], {}])[1]
            if token:
                tree.setdefault(token[-1], [[], {}])[0].append(token_id)


class CompiledShape(CompiledGrammar):
    def __init__(self, words: Words, moves: list[Any], free: list[tuple[int, ...]], start: int, end: int) -> None:
        self.words, self.moves, self.free, self.end = words, moves, free, end
        self.lock = threading.Lock()
        self.steps: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self.masks: dict[frozenset[int], Bitmask | None] = {}
        self.start_at, self.start = start, self.closed({start})

    def closed(self, states: set[int]) -> frozenset[int]:
        found, stack = set(states), list(states)
        while stack:
            for target in self.free[stack.pop()]:
                if target not in found:
                    found.add(target)
                    stack.append(target)
        return frozenset(s for s in found if self.moves[s] or s == self.end)

    def step(self, states: frozenset[int], byte: int) -> frozenset[int]:
        key = (states, byte)
        after = self.steps.get(key)
        if after is None:
            after = self.closed({to for s in states for allowed, to in self.moves[s] if byte in allowed})
            with self.lock:
                if len(self.steps) >= MOST_KEPT:
                    self.steps.clear()
                self.steps[key] = after
        return after

    def run(self, states: frozenset[int], data: bytes) -> frozenset[int]:
        for byte in data:
            states = self.step(states, byte)
            if not states:
                break
        return states

    def legal(self, states: frozenset[int]) -> list[int]:
        found: list[int] = []
        stack = [(states, self.words.tree)]
        while stack:
            at, tree = stack.pop()
            for byte, (ids, below) in tree.items():
                after = self.step(at, byte)
                if after:
                    found += ids
                    if below:
                        stack.append((after, below))
        return found

    def mask(self, states: frozenset[int]) -> Bitmask:
        """The row of all tokens with bytes that may come next."""
        row = self.masks.get(states)
        if row is None:
            bits = np.zeros(num_words(self.words.size) * 32, dtype=np.uint8)
            bits[self.legal(states)] = 1
            row = np.packbits(bits, bitorder="little").view(np.int32)
            row.flags.writeable = False
            with self.lock:
                if (len(self.masks) + 1) * row.nbytes > 16 << 20:
                    self.masks.clear()
                self.masks[states] = row
        return row

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return ShapeMatcher(self, stop_token_ids, [self.start])

    @property
    def nbytes(self) -> int:
        with self.lock:
            kept = sum(row.nbytes for row in self.masks.values())
            return 4_096 + 900 * len(self.moves) + 400 * len(self.steps) + kept + 400 * len(self.masks)

    def to_bytes(self) -> bytes:
        return pickle.dumps((self.moves, self.free, self.start_at, self.end))


class ShapeMatcher(Matcher):
    def __init__(self, compiled: CompiledShape, stops: frozenset[int], path: list[frozenset[int] | None]) -> None:
        self.compiled, self.stops, self.path = compiled, stops, path  # None: a stop token was accepted

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if self.is_terminated():
                return count
            if token_id in self.stops:
                if not self.is_accepting():
                    return count
                self.path.append(None)
                continue
            token = self.compiled.words.tokens[token_id]
            after = self.compiled.run(self.path[-1], token) if token else frozenset()
            if not after:
                return count
            self.path.append(after)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} of {len(self.path) - 1} tokens")
        if num_tokens:
            del self.path[-num_tokens:]

    def fork(self) -> Matcher:
        return ShapeMatcher(self.compiled, self.stops, list(self.path))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        mask = self.compiled.mask(self.path[-1])
        stops = sorted(self.stops) if self.is_accepting() else []
        if not stops and not mask.any():
            raise DeadEnd("no token of the vocabulary can come next in this JSON")
        bitmask[row, : len(mask)] = mask
        bitmask[row, len(mask) :] = 0
        words = bitmask[row].view(np.uint32)
        for token_id in stops:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)

    def is_terminated(self) -> bool:
        return self.path[-1] is None

    def is_accepting(self) -> bool:
        return self.path[-1] is not None and self.compiled.end in self.path[-1]


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Shape
