"""A grammar strategy for small JSON schemas: integers in a range, booleans, null, choices from lists of scalars, and
arrays of these. It writes no white space unless it is `spaced`. Other keywords are refused by name."""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    GrammarExample,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    InvalidRequest,
    JsonSchema,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    hookimpl,
)
from guideway.api.bitmask import Bitmask, num_words
from guideway.json_schema import check_schema

SCALARS = {"null": type(None), "boolean": bool, "string": str}
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
KNOWN = {"integer": BOUNDS | {"multipleOf"}, "array": frozenset({"items", "minItems", "maxItems", "uniqueItems"})}
NOT_ENFORCED = frozenset({"multipleOf", "uniqueItems"})
MOST_ROWS = 256
LARGEST = 2**53


class Literals:
    """One of several texts. The state is a node of their trie."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.edges: dict[tuple[int, int], int] = {}
        self.ends: set[int] = set()
        self.bytes = frozenset(b"".join(texts))
        for text in texts:
            node = 0
            for byte in text:
                node = self.edges.setdefault((node, byte), len(self.edges) + 1)
            self.ends.add(node)

    start = 0

    def step(self, state: Any, byte: int) -> Any:
        return self.edges.get((state, byte))

    def done(self, state: Any) -> bool:
        return state in self.ends


class Integer:
    """An integer from `low` to `high`; None: no bound. The state is (is negative, digits), with None for no digits yet
    and ANY once every further digit fits."""

    ANY = -1
    start = (False, None)
    bytes = frozenset(b"-0123456789")

    def __init__(self, low: int | None, high: int | None) -> None:
        self.sizes: dict[bool, tuple[int, int | None] | None] = {
            False: None if high is not None and high < 0 else (max(0, low or 0), high),
            True: None if low is not None and low >= 0 else (max(1, -high) if high is not None else 1, low and -low),
        }

    def step(self, state: Any, byte: int) -> Any:
        negative, digits = state
        if byte == 45:
            return (True, None) if state == self.start and self.sizes[True] is not None else None
        digit = byte - 48
        if not 0 <= digit <= 9 or digits == 0 or (negative and digits is None and digit == 0):
            return None
        if digits == self.ANY:
            return state
        size = (digits or 0) * 10 + digit
        if self.sizes[negative] is None:
            return None
        least, most = self.sizes[negative]
        if most is None:
            return (negative, self.ANY if size >= max(least, 1) else size) if size or least == 0 else None
        low = high = size
        while low <= most:
            if high >= least:
                return negative, size
            if size == 0:
                return None
            low, high = low * 10, high * 10 + 9
        return None

    def done(self, state: Any) -> bool:
        negative, digits = state
        if digits is None or self.sizes[negative] is None:
            return False
        least, most = self.sizes[negative]
        return digits == self.ANY or (least <= digits and (most is None or digits <= most))


class Array:
    """``[`` items ``]``. The state is (place, items begun, state of the item)."""

    start = ("open", 0, None)

    def __init__(self, item: Any, least: int, most: int | None, comma: bytes) -> None:
        self.item, self.least, self.comma = item, least, comma
        self.most = 0 if item is None else most
        self.bytes = frozenset(b"[]" + comma) | (item.bytes if item is not None else frozenset())

    def step(self, state: Any, byte: int) -> Any:
        place, count, inner = state
        if place == "open":
            return ("first", 0, None) if byte == 91 else None
        if place == "comma":
            expected = self.comma[inner]
            if byte != expected:
                return None
            return ("next", count, None) if inner + 1 == len(self.comma) else ("comma", count, inner + 1)
        if place == "item":
            further = self.item.step(inner, byte)
            if further is not None:
                return "item", count, further
            if not self.item.done(inner):
                return None
            if byte == 93:
                return ("end", 0, None) if count >= self.least else None
            if byte == self.comma[0] and (self.most is None or count < self.most):
                return ("next", count, None) if len(self.comma) == 1 else ("comma", count, 1)
            return None
        if place == "first" and byte == 93:
            return ("end", 0, None) if self.least == 0 else None
        if place == "end" or self.most == 0:
            return None
        begun = self.item.step(self.item.start, byte)
        count = count + 1 if self.most is not None else min(count + 1, self.least)
        return None if begun is None else ("item", count, begun)

    def done(self, state: Any) -> bool:
        return state[0] == "end"


def read(schema: Any, comma: bytes, seen: set[str]) -> Any:
    """Return the language of a schema, None if it is empty. Adds the schema's keywords to `seen`."""
    if not isinstance(schema, dict):
        raise UnsupportedGrammar("schemas true and false are not supported", feature=json.dumps(schema))
    schema = {key: value for key, value in schema.items() if key not in {"title", "description", "$comment"}}
    seen.update(schema)
    kind = schema.get("type")
    if "enum" in schema or "const" in schema:
        return _listed(schema)
    if kind in ("boolean", "null"):
        _only(schema, frozenset())
        return Literals([b"true", b"false"] if kind == "boolean" else [b"null"])
    if kind == "integer":
        _only(schema, KNOWN["integer"])
        bounds = {key: _whole(key, schema[key]) for key in BOUNDS & schema.keys()}
        lows = [bounds[key] for key in ("minimum",) if key in bounds]
        lows += [bounds[key] + (schema[key] >= bounds[key]) for key in ("exclusiveMinimum",) if key in bounds]
        highs = [math.floor(schema[key]) for key in ("maximum",) if key in bounds]
        highs += [bounds[key] - 1 for key in ("exclusiveMaximum",) if key in bounds]
        low, high = max(lows, default=None), min(highs, default=None)
        return None if low is not None and high is not None and low > high else Integer(low, high)
    if kind == "array" and "items" in schema:
        _only(schema, KNOWN["array"])
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        item = read(schema["items"], comma, seen)
        if (most is not None and least > most) or (item is None and least > 0):
            return None
        return Array(item, int(least), None if most is None else int(most), comma)
    raise UnsupportedGrammar(f"ranges does not know the type {json.dumps(kind)[:40]}", feature="type")


def _listed(schema: Mapping[str, Any]) -> Literals | None:
    _only(schema, frozenset({"enum", "const"}))
    kind = schema.get("type", "any")
    values = schema.get("enum", [schema.get("const")])
    for value in values:
        if not isinstance(value, str | bool | None) and type(value) is not int:
            raise UnsupportedGrammar("ranges lists strings, integers, booleans and null", feature="enum")
    if "enum" in schema and "const" in schema:
        raise UnsupportedGrammar("enum beside const is not supported", feature="enum+const")
    if kind not in (*SCALARS, "integer", "any"):
        raise UnsupportedGrammar("ranges lists values of one scalar type", feature="type")
    if kind != "any":
        wanted = SCALARS.get(kind, int)
        values = [value for value in values if type(value) is wanted]
    return Literals([json.dumps(value, ensure_ascii=False).encode() for value in values]) if values else None


def _only(schema: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in schema:
        if key != "type" and key not in known:
            raise UnsupportedGrammar(f"ranges does not support {key} here", feature=key)


def _whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and abs(value) >= LARGEST):
        raise UnsupportedGrammar(f"ranges does not support {key} of this form", feature=key)
    return math.ceil(value)


class CompiledRanges(CompiledGrammar):
    def __init__(self, language: Any, vocabulary: Vocabulary) -> None:
        self.language, self.size = language, len(vocabulary)
        self.tree: dict[Any, Any] = {}  # of the tokens that the language has the bytes for; key -1: their ids
        self._nodes = 1
        for i, token in enumerate(vocabulary.tokens):
            if token and i not in vocabulary.special_tokens and language.bytes.issuperset(token):
                node = self.tree
                for byte in token:
                    self._nodes += byte not in node
                    node = node.setdefault(byte, {})
                node.setdefault(-1, []).append(i)
        self.tokens = vocabulary.tokens
        self.special = frozenset(vocabulary.special_tokens)
        self._rows: OrderedDict[Any, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return RangeMatcher(self, stop_token_ids, self.language.start)

    @property
    def nbytes(self) -> int:
        return 256 * self._nodes + len(self._rows) * num_words(self.size) * 4 + 1024

    def after(self, state: Any, token_id: int) -> Any:
        token = self.tokens[token_id]
        if not token or token_id in self.special:
            return None
        for byte in token:
            state = self.language.step(state, byte)
            if state is None:
                return None
        return state

    def words(self, state: Any) -> np.ndarray:
        """Return the tokens that are legal as text, as a row. The row is shared: do not change it."""
        with self._lock:
            row = self._rows.get(state)
            if row is not None:
                self._rows.move_to_end(state)
                return row
        legal: list[int] = []
        open_ = [(self.tree, state)]
        while open_:
            node, at = open_.pop()
            for byte, child in node.items():
                if byte == -1:
                    legal += child
                elif (further := self.language.step(at, byte)) is not None:
                    open_.append((child, further))
        row = np.zeros(num_words(self.size), np.uint32)
        ids = np.array(legal, np.int64)
        np.bitwise_or.at(row, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        with self._lock:
            self._rows[state] = row
            if len(self._rows) > MOST_ROWS:
                self._rows.popitem(last=False)
        return row


class RangeMatcher(Matcher):
    def __init__(self, compiled: CompiledRanges, stops: frozenset[int], state: Any, over: bool = False) -> None:
        self.compiled, self.stops, self.state, self.over = compiled, stops, state, over

    def accept(self, token_ids: Sequence[int]) -> int:
        count, self.state, self.over = self._walk(token_ids)
        return count

    def validate(self, token_ids: Sequence[int]) -> int:
        return self._walk(token_ids)[0]

    def _walk(self, token_ids: Sequence[int]) -> tuple[int, Any, bool]:
        state, over = self.state, self.over
        for count, token_id in enumerate(token_ids):
            if over:
                return count, state, over
            if token_id in self.stops:
                if not self.compiled.language.done(state):
                    return count, state, over
                over = True
                continue
            further = self.compiled.after(state, token_id)
            if further is None:
                return count, state, over
            state = further
        return len(token_ids), state, over

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.write(self.state, bitmask, row)

    def write(self, state: Any, bitmask: Bitmask, row: int) -> None:
        words = self.compiled.words(state)
        done = self.compiled.language.done(state)
        if not done and not words.any():
            raise DeadEnd("no token of the vocabulary goes on with this JSON")
        target = bitmask[row].view(np.uint32)
        target[: len(words)] = words
        target[len(words) :] = 0
        for stop in self.stops if done else ():
            target[stop // 32] |= np.uint32(1 << stop % 32)

    def is_terminated(self) -> bool:
        return self.over

    def is_accepting(self) -> bool:
        return bool(self.compiled.language.done(self.state))

    def fork(self) -> Matcher:
        return RangeMatcher(self.compiled, self.stops, self.state, self.over)


class Ranges(GrammarStrategy):
    contract = "1.0"
    name = "ranges"
    kinds = frozenset({"json_schema"})
    capabilities = frozenset({"fork"})
    examples = (
        GrammarExample(
            JsonSchema({"type": "integer", "minimum": -12, "maximum": 340}),
            (b"-12", b"-9", b"0", b"7", b"99", b"340"),
            (b"-13", b"-0", b"341", b"00", b"1000", b"", b"-", b" 1", b"1.0"),
        ),
        GrammarExample(
            JsonSchema({"type": "array", "items": {"type": "integer", "exclusiveMinimum": 5}, "minItems": 2}),
            (b"[6,6]", b"[10,123456789012345678901234567890,7]"),
            (b"[6]", b"[5,6]", b"[6,6", b"[6,,6]", b"[]"),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        if options:
            raise InvalidConfiguration(f"ranges has no option {next(iter(options))!r}", field="grammar.ranges")

    def supports(self, constraint: Constraint) -> Support:
        seen: set[str] = set()
        try:
            if self._language(constraint, seen) is None:
                return Support(reason="no text at all matches this schema")
        except InvalidRequest as error:
            return Support(reason=str(error))
        left = frozenset(seen & NOT_ENFORCED)
        return Support(enforced=frozenset(seen) - left, unenforced=left)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        language = self._language(constraint, set())
        if language is None:
            raise InvalidGrammar("no text at all matches this schema")
        return CompiledRanges(language, self.vocabulary)

    def _language(self, constraint: Constraint, seen: set[str]) -> Any:
        if not isinstance(constraint, JsonSchema):
            raise UnsupportedGrammar(f"ranges does not compile {constraint.kind}", feature=constraint.kind)
        constraint.cached(check_schema)
        try:
            return read(constraint.parsed, b", " if constraint.spacing == "spaced" else b",", seen)
        except RecursionError as error:
            raise UnsupportedGrammar("the schema is nested too deeply", feature="depth") from error

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> np.ndarray:
        accepted = np.zeros(len(jobs), np.int32)
        for i, job in enumerate(jobs):
            try:
                accepted[i] = self._fill(job, bitmask)
            except Exception as error:
                job.error, accepted[i] = error, -1
        return accepted

    def _fill(self, job: FillJob, bitmask: Bitmask) -> int:
        """Fill the rows of a job. Drafts are accepted by a fork, so nothing must be rolled back."""
        job.matcher.fill_bitmask(bitmask, job.first_row)
        at = job.matcher.fork()
        for count, token_id in enumerate(job.draft_token_ids):
            if not at.accept((token_id,)):
                return count
            if at.is_terminated():
                return count + 1
            try:
                at.fill_bitmask(bitmask, job.first_row + count + 1)
            except DeadEnd:
                return count
        return len(job.draft_token_ids)


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Ranges
