"""A strategy for a small part of regular expressions and for choices: a finite automaton over ASCII bytes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    GrammarStrategy,
    InvalidGrammar,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import Bitmask
from numpy.typing import NDArray

OVER = -1
MOST_STATES = 20_000
CLASSES = {
    "d": frozenset(b"0123456789"),
    "w": frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
}
ESCAPED = {"n": b"\n", "t": b"\t", "r": b"\r"}
SPECIAL = frozenset("\\^$.|?*+()[]{}/-")


class Parser:
    """A recursive-descent parser of a pattern, which adds states and empty moves to an automaton."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.place, self.depth = pattern, 0, 0
        self.moves: list[list[tuple[frozenset[int], int]]] = []
        self.empty: list[list[int]] = []

    def state(self) -> int:
        if len(self.moves) > MOST_STATES:
            raise UnsupportedGrammar("the pattern has too many states", feature="size")
        self.moves.append([])
        self.empty.append([])
        return len(self.moves) - 1

    def peek(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def take(self) -> str:
        if self.place >= len(self.pattern):
            raise InvalidGrammar("the pattern ends too early", field="constraint.pattern")
        self.place += 1
        return self.pattern[self.place - 1]

    def parse(self) -> tuple[int, int]:
        ends = self.alternatives()
        if self.peek():
            raise InvalidGrammar(f"{self.peek()!r} closes nothing", field="constraint.pattern")
        return ends

    def alternatives(self) -> tuple[int, int]:
        first, last = self.state(), self.state()
        while True:
            begin, end = self.sequence()
            self.empty[first].append(begin)
            self.empty[end].append(last)
            if self.peek() != "|":
                return first, last
            self.take()

    def sequence(self) -> tuple[int, int]:
        first = last = self.state()
        while self.peek() not in ("", "|", ")"):
            begin, end = self.repeated()
            self.empty[last].append(begin)
            last = end
        return first, last

    def repeated(self) -> tuple[int, int]:
        start = self.place
        ends = self.atom()
        stop = self.place
        least, most = self.bounds()
        if self.peek() in ("*", "+", "?") and stop != self.place:
            raise UnsupportedGrammar("lazy and possessive repetition", feature="quantifier")
        if (least, most) == (1, 1):
            return ends
        after = self.place
        first = last = self.state()
        for _ in range(least):
            begin, end = self.again(start)
            self.empty[last].append(begin)
            last = end
        if most is None:
            begin, end = self.again(start)
            self.empty[last].append(begin)
            self.empty[end].append(last)
        else:
            final = self.state()
            for _ in range(most - least):
                self.empty[last].append(final)
                begin, end = self.again(start)
                self.empty[last].append(begin)
                last = end
            self.empty[last].append(final)
            last = final
        self.place = after
        return first, last

    def again(self, start: int) -> tuple[int, int]:
        self.place = start
        begin, end = self.atom()
        lone = self.state()  # the end of one repetition may only be reached through it
        self.empty[end].append(lone)
        return begin, lone

    def bounds(self) -> tuple[int, int | None]:
        sign = self.peek()
        if sign in ("*", "+", "?"):
            self.take()
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        if sign != "{":
            return 1, 1
        inside, closed, _ = self.pattern[self.place + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not low.isdecimal() or (high and not high.isdecimal()):
            raise UnsupportedGrammar("a brace that is no repetition", feature="quantifier")
        self.place += len(inside) + 2
        least, most = int(low), (int(high) if high else None if comma else int(low))
        if most is not None and most < least:
            raise InvalidGrammar("the bounds of a repetition are out of order", field="constraint.pattern")
        return least, most

    def atom(self) -> tuple[int, int]:
        sign = self.take()
        if sign == "(":
            if self.peek() == "?":
                self.take()
                if self.take() != ":":
                    raise UnsupportedGrammar("groups that look around or have a name", feature="group")
            self.depth += 1
            if self.depth > 60:
                raise UnsupportedGrammar("groups within groups", feature="depth")
            ends = self.alternatives()
            self.depth -= 1
            if self.take() != ")":
                raise InvalidGrammar("a group is not closed", field="constraint.pattern")
            return ends
        if sign in ("*", "+", "?"):
            raise InvalidGrammar(f"nothing for {sign!r} to repeat", field="constraint.pattern")
        if sign in (".", "^", "$", "{", "}", "]"):
            raise UnsupportedGrammar(f"{sign!r} outside of a class", feature=sign)
        begin, end = self.state(), self.state()
        self.moves[begin].append((self.set_of(sign), end))
        return begin, end

    def set_of(self, sign: str) -> frozenset[int]:
        if sign == "[":
            return self.character_class()
        if sign == "\\":
            return self.escape()
        return frozenset({self.byte(sign)})

    def escape(self) -> frozenset[int]:
        sign = self.take()
        if sign in CLASSES:
            return CLASSES[sign]
        if sign in ESCAPED:
            return frozenset(ESCAPED[sign])
        if sign in SPECIAL:
            return frozenset(sign.encode())
        raise UnsupportedGrammar(f"the escape \\{sign}", feature=f"\\{sign}")

    def character_class(self) -> frozenset[int]:
        if self.peek() == "^":
            raise UnsupportedGrammar("classes of what is not listed", feature="[^")
        found: set[int] = set()
        while self.peek() != "]":
            sign = self.take()
            if sign in ("[", "&", "~"):
                raise UnsupportedGrammar("a set within a class", feature="[")
            members = self.escape() if sign == "\\" else frozenset({self.byte(sign)})
            if self.peek() == "-" and self.pattern[self.place + 1 : self.place + 2] not in ("", "]"):
                self.take()
                if len(members) != 1 or self.peek() in ("[", "\\"):
                    raise UnsupportedGrammar("a range to or from a class", feature="range")
                low, high = min(members), self.byte(self.take())
                if high < low:
                    raise InvalidGrammar("the bounds of a range are out of order", field="constraint.pattern")
                members = frozenset(range(low, high + 1))
            found |= members
        self.take()
        if not found:
            raise UnsupportedGrammar("an empty class", feature="[]")
        return frozenset(found)

    @staticmethod
    def byte(sign: str) -> int:
        if ord(sign) >= 128:
            raise UnsupportedGrammar("characters beyond ASCII", feature="unicode")
        return ord(sign)


Automaton = tuple[list[dict[int, int]], list[bool]]
"""By state, the state after each byte; and by state, whether a text may end there."""


def determined(parser: Parser, start: int, end: int) -> Automaton:
    """Return an automaton without empty moves, whose states all lead to an end."""

    def closed(states: set[int]) -> frozenset[int]:
        todo = list(states)
        while todo:
            for after in parser.empty[todo.pop()]:
                if after not in states:
                    states.add(after)
                    todo.append(after)
        return frozenset(states)

    known = {closed({start}): 0}
    todo = list(known)
    edges: list[dict[int, int]] = []
    for states in todo:
        if len(known) > MOST_STATES:
            raise UnsupportedGrammar("the pattern has too many states", feature="size")
        by_byte: dict[int, set[int]] = {}
        for state in states:
            for members, after in parser.moves[state]:
                for byte in members:
                    by_byte.setdefault(byte, set()).add(after)
        row: dict[int, int] = {}
        for byte, targets in by_byte.items():
            target = closed(targets)
            if target not in known:
                known[target] = len(known)
                todo.append(target)
            row[byte] = known[target]
        edges.append(row)
    return edges, [end in states for states in todo]


def of_choices(choices: Sequence[str]) -> Automaton:
    edges: list[dict[int, int]] = [{}]
    final = [False]
    for choice in choices:
        state = 0
        for byte in choice.encode():
            if byte not in edges[state]:
                edges[state][byte] = len(edges)
                edges.append({})
                final.append(False)
            state = edges[state][byte]
        final[state] = True
    return edges, final


class Small(GrammarStrategy):
    contract = "1.0"
    name = "small"
    kinds = frozenset({"regex", "choice"})
    capabilities = frozenset({"fork", "forced_tokens", "shortest_completion", "serialize"})
    max_rollback = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.by_first: dict[int, list[tuple[int, bytes]]] = {}
        for token_id, token in enumerate(vocabulary.tokens):
            if token and token_id not in vocabulary.special_tokens:
                self.by_first.setdefault(token[0], []).append((token_id, token))

    def supports(self, constraint: Constraint) -> Support:
        if constraint.kind not in self.kinds:
            return Support(reason=f"{self.name} compiles regex and choice")
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        source = constraint.source()
        if isinstance(constraint, Choice):
            return CompiledSmall(self, of_choices(constraint.choices))
        parser = Parser(source)
        return CompiledSmall(self, determined(parser, *parser.parse()))

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        edges, final = json.loads(data)
        return CompiledSmall(self, ([{int(byte): after for byte, after in row.items()} for row in edges], final))

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        accepted = np.zeros(len(jobs), dtype=np.int32)
        for i, job in enumerate(jobs):
            matcher = job.matcher
            if not isinstance(matcher, SmallMatcher):
                accepted[i : i + 1] = super().fill((job,), bitmask)
                continue
            try:
                matcher.fill_bitmask(bitmask, job.first_row)
                state = matcher.path[-1]
                for token_id in job.draft_token_ids:
                    state = matcher.after(state, token_id)
                    if state is None:
                        break
                    if state != OVER and not matcher.legal(state).any():
                        break
                    accepted[i] += 1
                    if state == OVER:
                        break
                    bitmask[job.first_row + accepted[i]] = matcher.legal(state)
            except Exception as error:
                job.error = error
                accepted[i] = -1
        return accepted


class CompiledSmall(CompiledGrammar):
    def __init__(self, strategy: Small, automaton: Automaton) -> None:
        self.vocabulary, self.by_first = strategy.vocabulary, strategy.by_first
        self.edges, self.final = automaton
        self.words = -(-self.vocabulary.logits_width // 32)
        self.tables: dict[int, tuple[dict[int, int], Bitmask]] = {}
        self.pool: list[SmallMatcher] = []
        self.lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        with self.lock:
            recycled = self.pool.pop() if self.pool else None
        if recycled is None:
            return SmallMatcher(self, stop_token_ids, [0])
        recycled.stop_token_ids = stop_token_ids
        recycled.path = [0]
        recycled.masks = {}
        return recycled

    def recycle(self, matcher: Matcher) -> None:
        assert isinstance(matcher, SmallMatcher)
        with self.lock:
            if len(self.pool) < 64 and not any(matcher is other for other in self.pool):
                self.pool.append(matcher)

    @property
    def nbytes(self) -> int:
        edges = sum(232 + 100 * len(row) for row in self.edges)
        tables = sum(400 + 100 * len(tokens) + mask.nbytes for tokens, mask in list(self.tables.values()))
        return edges + 40 * len(self.final) + tables + 1000

    def to_bytes(self) -> bytes:
        return json.dumps([self.edges, self.final]).encode()

    def table(self, state: int) -> tuple[dict[int, int], Bitmask]:
        """Return the state after each token of text from `state`, and these tokens as a mask."""
        found = self.tables.get(state)
        if found is None:
            tokens: dict[int, int] = {}
            for byte in self.edges[state]:
                for token_id, token in self.by_first.get(byte, ()):
                    after: int | None = state
                    for other in token:
                        after = self.edges[after].get(other)
                        if after is None:
                            break
                    if after is not None:
                        tokens[token_id] = after
            found = self.tables[state] = tokens, self.pack(tokens)
        return found

    def pack(self, token_ids: Any) -> Bitmask:
        ids = np.fromiter(token_ids, dtype=np.int64)
        mask = np.zeros(self.words, dtype=np.uint32)
        np.bitwise_or.at(mask, ids // 32, (np.uint32(1) << (ids % 32).astype(np.uint32)))
        return mask.view(np.int32)


class SmallMatcher(Matcher):
    def __init__(self, compiled: CompiledSmall, stop_token_ids: frozenset[int], path: list[int]) -> None:
        self.compiled, self.stop_token_ids, self.path = compiled, stop_token_ids, path
        self.masks: dict[int, Bitmask] = {}

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            after = self.after(self.path[-1], token_id)
            if after is None:
                return count
            self.path.append(after)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        state = self.path[-1]
        for count, token_id in enumerate(token_ids):
            after = self.after(state, token_id)
            if after is None:
                return count
            state = after
        return len(token_ids)

    def after(self, state: int, token_id: int) -> int | None:
        if state == OVER:
            return None
        if token_id in self.stop_token_ids:
            return OVER if self.compiled.final[state] else None
        return self.compiled.table(state)[0].get(token_id)

    def legal(self, state: int) -> Bitmask:
        mask = self.masks.get(state)
        if mask is None:
            mask = self.compiled.table(state)[1]
            if self.compiled.final[state]:
                mask = mask | self.compiled.pack(sorted(self.stop_token_ids))
            self.masks[state] = mask
        return mask

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > 0:
            del self.path[-num_tokens:]

    def fork(self) -> Matcher:
        return SmallMatcher(self.compiled, self.stop_token_ids, list(self.path))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        mask = self.legal(self.path[-1])
        if not mask.any():
            raise DeadEnd("no token of the vocabulary goes on here")
        bitmask[row] = mask

    def is_terminated(self) -> bool:
        return self.path[-1] == OVER

    def is_accepting(self) -> bool:
        return self.path[-1] != OVER and self.compiled.final[self.path[-1]]

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokenizer's tokens of the rest, if only one text can follow."""
        state, text = self.path[-1], bytearray()
        if state == OVER:
            return ()
        edges, final = self.compiled.edges, self.compiled.final
        while len(edges[state]) == 1 and not final[state] and len(text) < 1000:
            (byte,) = edges[state]
            text.append(byte)
            state = edges[state][byte]
        if edges[state] or not text:
            return ()
        spelled = self.compiled.vocabulary.encode(bytes(text))
        return tuple(spelled) if spelled is not None and self.validate(spelled) == len(spelled) else ()

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        if self.path[-1] == OVER or limit < 1:
            return None
        stop = min(self.stop_token_ids)
        seen = {self.path[-1]}
        ways: list[tuple[int, tuple[int, ...]]] = [(self.path[-1], ())]
        for _ in range(limit):
            further: list[tuple[int, tuple[int, ...]]] = []
            for state, way in ways:
                if self.compiled.final[state]:
                    return (*way, stop)
                for token_id, after in self.compiled.table(state)[0].items():
                    if after not in seen:
                        seen.add(after)
                        further.append((after, (*way, token_id)))
            ways = further
        return None
