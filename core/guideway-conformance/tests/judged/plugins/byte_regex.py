"""A regex engine over bytes: Python's own parser, a Thompson automaton, and a deterministic one made as needed."""

from __future__ import annotations

import re
import threading
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from re import _constants as op
from re import _parser
from types import MappingProxyType
from typing import Annotated, Any

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
)
from guideway.api.bitmask import Bitmask, num_words
from guideway.api.options import Range, parse_options

DEAD, OVER, BACK, TOP = -1, -2, 8, 0x10FFFF


@dataclass(frozen=True)
class Options:
    max_states: Annotated[int, Range(16, 1_000_000)] = 60_000
    pool: Annotated[int, Range(0, 1024)] = 16


class ByteRegex(GrammarStrategy):
    contract = "1.0"
    name = "byte_regex"
    kinds = frozenset({"regex"})
    capabilities = frozenset({"fork"})
    max_rollback = BACK
    limits = MappingProxyType({"pattern": 4000})

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.byte_regex")
        self.order = sorted((token, i) for i, token in enumerate(vocabulary.tokens) if token)
        self.shared = [0] * len(self.order)  # how many bytes each token has in common with the one before it
        for i in range(1, len(self.order)):
            a, b, n = self.order[i - 1][0], self.order[i][0], 0
            while n < len(a) and n < len(b) and a[n] == b[n]:
                n += 1
            self.shared[i] = n

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"regex"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind != "regex":
            raise UnsupportedGrammar(f"byte_regex cannot compile {constraint.kind}", feature=constraint.kind)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parsed = _parser.parse(constraint.source())
            if parsed.state.flags != re.UNICODE.value:
                raise unsupported("flags")
            nfa = Nfa(self.options.max_states)
            start, end = nfa.node(), nfa.node()
            nfa.sequence(parsed, start, end)
        except (re.error, OverflowError) as error:
            if str(error).startswith("bad escape"):  # other dialects have some that Python lacks
                raise unsupported("this escape") from error
            raise InvalidGrammar(f"not a regular expression: {error}") from error
        except RecursionError as error:
            raise unsupported("deep nesting") from error
        return Dfa(self, nfa, start, end)


def unsupported(what: str) -> UnsupportedGrammar:
    return UnsupportedGrammar(f"byte_regex does not know {what}", feature=f"regex {what}")


@cache
def category(name: object) -> tuple[tuple[int, int], ...]:
    """The ranges of the characters of ``\\d``, ``\\s`` and ``\\w``, as `re` has them."""
    test = {"digit": str.isdecimal, "space": str.isspace, "word": lambda c: c.isalnum() or c == "_"}[str(name)]
    return ranges(code for code in range(TOP + 1) if test(chr(code)))


def ranges(codes) -> tuple[tuple[int, int], ...]:
    found: list[list[int]] = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return tuple((lo, hi) for lo, hi in found)


def complement(parts) -> list[tuple[int, int]]:
    found, at = [], 0
    for lo, hi in sorted(parts):
        if lo > at:
            found.append((at, lo - 1))
        at = max(at, hi + 1)
    return found + ([(at, TOP)] if at <= TOP else [])


def members(items) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    negated = False
    for code, value in items:
        if code is op.NEGATE:
            negated = True
        elif code is op.LITERAL:
            found.append((value, value))
        elif code is op.RANGE:
            found.append(value)
        elif code is op.CATEGORY:
            name = str(value).removeprefix("CATEGORY_").lower()
            parts = category(name.removeprefix("not_"))
            found += complement(parts) if name.startswith("not_") else parts
        else:
            raise unsupported(str(code))
    return complement(found) if negated else found


def utf8(lo: int, hi: int):
    """Sequences of byte ranges that spell exactly the characters from `lo` to `hi`."""
    for least, most in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, TOP)):
        a, b = max(lo, least), min(hi, most)
        if a <= b:
            yield from split(chr(a).encode(), chr(b).encode())


def split(a: bytes, b: bytes):
    if len(a) == 1:
        yield ((a[0], b[0]),)
    elif a[0] == b[0]:
        yield from (((a[0], a[0]), *rest) for rest in split(a[1:], b[1:]))
    else:
        low, high, n = b"\x80" * (len(a) - 1), b"\xbf" * (len(a) - 1), len(a)
        first, last = a[0], b[0]
        if a[1:] != low:
            yield from (((first, first), *rest) for rest in split(a[1:], high))
            first += 1
        if b[1:] != high:
            yield from (((last, last), *rest) for rest in split(low, b[1:]))
            last -= 1
        if first <= last:
            yield ((first, last), *[(0x80, 0xBF)] * (n - 1))


class Nfa:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.free: list[list[int]] = []  # where to go without a byte
        self.moves: list[list[tuple[int, int, int]]] = []

    def node(self) -> int:
        if len(self.free) >= self.limit:
            raise unsupported(f"patterns of more than {self.limit} states")
        self.free.append([])
        self.moves.append([])
        return len(self.free) - 1

    def sequence(self, items, start: int, end: int) -> None:
        for code, value in items:
            after = self.node()
            self.item(code, value, start, after)
            start = after
        self.free[start].append(end)

    def item(self, code, value, start: int, end: int) -> None:
        if code is op.LITERAL:
            self.characters([(value, value)], start, end)
        elif code is op.NOT_LITERAL:
            self.characters(complement([(value, value)]), start, end)
        elif code is op.ANY:
            self.characters(complement([(10, 10)]), start, end)
        elif code is op.IN:
            self.characters(members(value), start, end)
        elif code is op.BRANCH:
            for branch in value[1]:
                self.sequence(branch, start, end)
        elif code is op.SUBPATTERN and not value[1] and not value[2]:
            self.sequence(value[3], start, end)
        elif code in (op.MAX_REPEAT, op.MIN_REPEAT):
            self.repeat(*value, start, end)
        else:
            raise unsupported(str(code).lower())

    def repeat(self, least, most, items, start: int, end: int) -> None:
        for _ in range(least):
            after = self.node()
            self.sequence(items, start, after)
            start = after
        if most is op.MAXREPEAT:
            loop = self.node()
            self.free[start].append(loop)
            self.sequence(items, loop, loop)
            self.free[loop].append(end)
            return
        for _ in range(most - least):
            self.free[start].append(end)
            after = self.node()
            self.sequence(items, start, after)
            start = after
        self.free[start].append(end)

    def characters(self, parts, start: int, end: int) -> None:
        for lo, hi in parts:
            for spelled in utf8(lo, hi):
                here = start
                for a, b in spelled[:-1]:
                    after = self.node()
                    self.moves[here].append((a, b, after))
                    here = after
                self.moves[here].append((*spelled[-1], end))

    def leading_to(self, end: int) -> frozenset[int]:
        back: dict[int, list[int]] = {}
        for node in range(len(self.free)):
            for after in (*self.free[node], *(move[2] for move in self.moves[node])):
                back.setdefault(after, []).append(node)
        found, stack = {end}, [end]
        while stack:
            for node in back.get(stack.pop(), ()):
                if node not in found:
                    found.add(node)
                    stack.append(node)
        return frozenset(found)


class Dfa(CompiledGrammar):
    def __init__(self, strategy: ByteRegex, nfa: Nfa, start: int, end: int) -> None:
        self.nfa, self.end, self.useful = nfa, end, nfa.leading_to(end)
        if start not in self.useful:
            raise InvalidGrammar("the pattern matches no text")
        self.vocabulary, self.order, self.shared = strategy.vocabulary, strategy.order, strategy.shared
        self.room = strategy.options.pool
        self.lock = threading.Lock()
        self.sets: list[frozenset[int]] = []
        self.index: dict[frozenset[int], int] = {}
        self.edges: dict[tuple[int, int], int] = {}
        self.masks: dict[int, Any] = {}
        self.pool: list[RegexMatcher] = []
        self.held = 0
        self.number(self.closure({start}))

    def closure(self, nodes) -> frozenset[int]:
        found, stack = set(), [node for node in nodes if node in self.useful]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += [after for after in self.nfa.free[node] if after in self.useful]
        return frozenset(node for node in found if self.nfa.moves[node] or node == self.end)

    def number(self, nodes: frozenset[int]) -> int:
        if not nodes:
            return DEAD
        with self.lock:
            if nodes not in self.index:
                self.sets.append(nodes)
                self.index[nodes] = len(self.sets) - 1
                self.held += 300 + 60 * len(nodes)
            return self.index[nodes]

    def step(self, state: int, byte: int) -> int:
        after = self.edges.get((state, byte))
        if after is None:
            moves = (move for node in self.sets[state] for move in self.nfa.moves[node])
            after = self.number(self.closure({to for lo, hi, to in moves if lo <= byte <= hi}))
            self.edges[state, byte] = after
        return after

    def final(self, state: int) -> bool:
        return state >= 0 and self.end in self.sets[state]

    def after_token(self, state: int, token_id: int, stops: frozenset[int]) -> int:
        if state < 0:
            return DEAD
        if token_id in stops:
            return OVER if self.final(state) else DEAD
        token = self.vocabulary.tokens[token_id]
        if not token:
            return DEAD
        for byte in token:
            state = self.step(state, byte)
            if state == DEAD:
                return DEAD
        return state

    def mask(self, state: int) -> Any:
        """The packed mask of text tokens; a token whose beginning died with an earlier token is passed over."""
        mask = self.masks.get(state)
        if mask is None:
            mask = np.zeros(num_words(len(self.vocabulary)), dtype=np.uint32)
            path, dead = [state], None
            for (token, token_id), shared in zip(self.order, self.shared, strict=True):
                if dead is not None and shared >= dead:
                    continue
                dead = None
                del path[shared + 1 :]
                for byte in token[shared:]:
                    after = self.step(path[-1], byte)
                    if after == DEAD:
                        dead = len(path)
                        break
                    path.append(after)
                else:
                    mask[token_id // 32] |= np.uint32(1 << token_id % 32)
            self.masks[state] = mask
        return mask

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        try:
            matcher = self.pool.pop()
        except IndexError:
            return RegexMatcher(self, stop_token_ids, [0])
        matcher.__init__(self, stop_token_ids, [0])
        return matcher

    def recycle(self, matcher: Matcher) -> None:
        if len(self.pool) < self.room:
            matcher.dfa = None  # so that grammar and matcher do not keep each other alive
            matcher.path.clear()
            self.pool.append(matcher)

    @property
    def nbytes(self) -> int:
        masks = len(self.masks) * (150 + 4 * num_words(len(self.vocabulary)))
        return 250 * len(self.nfa.free) + self.held + 130 * len(self.edges) + masks


class RegexMatcher(Matcher):
    def __init__(self, dfa: Dfa, stops: frozenset[int], path) -> None:
        self.dfa, self.stops = dfa, stops
        self.path = deque(path, maxlen=2 * BACK + 1)  # twice, as drafts are rolled back too

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            state = self.dfa.after_token(self.path[-1], token_id, self.stops)
            if state == DEAD:
                return count
            self.path.append(state)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        state = self.path[-1]
        for count, token_id in enumerate(token_ids):
            state = self.dfa.after_token(state, token_id, self.stops)
            if state == DEAD:
                return count
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} tokens")
        for _ in range(num_tokens):
            self.path.pop()

    def fork(self) -> Matcher:
        return RegexMatcher(self.dfa, self.stops, self.path)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        state = self.path[-1]
        mask, final = self.dfa.mask(state), self.dfa.final(state)
        if not final and not mask.any():
            raise DeadEnd("no token of the vocabulary goes on with a match")
        words = bitmask[row].view(np.uint32)
        words[: len(mask)] = mask
        words[len(mask) :] = 0
        if final:
            for stop in self.stops:
                words[stop // 32] |= np.uint32(1 << stop % 32)

    def is_terminated(self) -> bool:
        return self.path[-1] == OVER

    def is_accepting(self) -> bool:
        return self.dfa.final(self.path[-1])
