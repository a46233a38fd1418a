"""Strategies for languages of their own: days of the calendar, and brackets that close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidGrammar,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import Bitmask, allow_only

DAYS = {1: 31, 3: 31, 4: 30, 5: 31, 6: 30, 7: 31, 8: 31, 9: 30, 10: 31, 11: 30, 12: 31}
ORDERS = ("Y-M-D", "Y/M/D", "YMD")


def days_in(year: str, month: int) -> int:
    if month == 2:
        leap = int(year) % 4 == 0 and (int(year) % 100 != 0 or int(year) % 400 == 0)
        return 29 if leap else 28
    return DAYS[month]


def begins(order: str, text: bytes) -> bool:
    """Return whether a day of the years 0001 to 9999, written in `order`, begins with `text`."""
    separator = order[1].encode() if len(order) == 5 else b""
    digits = bytearray()
    for place, byte in enumerate(text):
        if separator and place in (4, 7):
            if byte != separator[0]:
                return False
        elif not 48 <= byte <= 57 or len(digits) == 8:
            return False
        else:
            digits.append(byte)
    year, month, day = (digits[a:b].decode() for a, b in ((0, 4), (4, 6), (6, 8)))
    if year == "0000":
        return False
    if not month:
        return True
    months = [m for m in range(1, 13) if f"{m:02}".startswith(month)]
    return any(f"{d:02}".startswith(day) for m in months for d in range(1, days_in(year, m) + 1))


def whole(order: str, text: bytes) -> bool:
    return len(text) == (10 if len(order) == 5 else 8)


class Calendar(GrammarStrategy):
    """Days that there are: no 31st of April, and a 29th of February every fourth year but for some."""

    contract = "1.0"
    name = "calendar"
    kinds = frozenset({"grammar:calendar"})
    capabilities = frozenset({"fork"})
    max_rollback = None
    examples = (
        GrammarExample(
            Grammar("Y-M-D", "calendar"),
            (b"2027-01-31", b"2028-02-29", b"2000-02-29", b"0001-12-31"),
            (b"2027-02-29", b"1900-02-29", b"2027-04-31", b"2027-13-01", b"2027-1-31", b"0000-01-01", b""),
        ),
        GrammarExample(Grammar("YMD", "calendar"), (b"20270131", b"20240229"), (b"2027-01-31", b"20270100")),
    )

    def supports(self, constraint: Constraint) -> Support:
        if constraint.kind not in self.kinds:
            return Support(reason="it writes days alone")
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        order = constraint.source()
        if order not in ORDERS:
            raise InvalidGrammar(f"a calendar is one of {', '.join(ORDERS)}", field="constraint")
        return CompiledCalendar(order, self.vocabulary)


class CompiledCalendar(CompiledGrammar):
    def __init__(self, order: str, vocabulary: Vocabulary) -> None:
        self.order, self.tokens = order, vocabulary.tokens
        letters = frozenset(b"0123456789-/")
        self.usable = [
            (token_id, token)
            for token_id, token in enumerate(self.tokens)
            if token and len(token) <= 10 and letters.issuperset(token) and token_id not in vocabulary.special_tokens
        ]

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return CalendarMatcher(self, stop_token_ids, [b""])

    @property
    def nbytes(self) -> int:
        return 1000 + 150 * len(self.usable)


class CalendarMatcher(Matcher):
    """Knows the text at the start and after each token; None once it is over."""

    def __init__(self, compiled: CompiledCalendar, stops: frozenset[int], path: list[bytes | None]) -> None:
        self.compiled, self.stops, self.path = compiled, stops, path

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if token_id not in self.legal():
                return count
            text = self.path[-1]
            assert text is not None
            self.path.append(None if token_id in self.stops else text + self.compiled.tokens[token_id])
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        return self.fork().accept(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if num_tokens < 0:
            raise ValueError("a negative number of tokens")
        del self.path[len(self.path) - num_tokens :]

    def fork(self) -> Matcher:
        return CalendarMatcher(self.compiled, self.stops, list(self.path))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        legal = self.legal()
        if not legal:
            raise DeadEnd("no token of the vocabulary goes on with this day")
        allow_only(bitmask, row, sorted(legal))

    def is_terminated(self) -> bool:
        return self.path[-1] is None

    def is_accepting(self) -> bool:
        text = self.path[-1]
        return text is not None and whole(self.compiled.order, text)

    def legal(self) -> frozenset[int]:
        text = self.path[-1]
        if text is None:
            return frozenset()
        if whole(self.compiled.order, text):
            return self.stops
        order = self.compiled.order
        return frozenset(token_id for token_id, token in self.compiled.usable if begins(order, text + token))


@dataclass(frozen=True, slots=True)
class Open:
    """A bracket that has been opened, what closes it, and the one around it."""

    closer: int
    depth: int
    around: Open | None


State = tuple[bool, "Open | None"]
"""A flag that something was written, and the innermost bracket that is open."""
EMPTY: State = (False, None)


class Brackets(GrammarStrategy):
    """Brackets in pairs: ``"()[] 3"`` are those of the two kinds, at most three within each other."""

    contract = "1.0"
    name = "brackets"
    kinds = frozenset({"grammar:brackets"})
    capabilities = frozenset({"fork", "shortest_completion"})
    max_rollback = None
    examples = (
        GrammarExample(Grammar("()[] 3", "brackets"), (b"()", b"([()])[]", b"()()"), (b"(", b"(]", b"(((())))", b"")),
        GrammarExample(Grammar("{} 12", "brackets"), (b"{}{{}}", b"{" * 12 + b"}" * 12), (b"}{", b"{}}", b"()")),
    )

    def supports(self, constraint: Constraint) -> Support:
        if constraint.kind not in self.kinds:
            return Support(reason="it writes brackets alone")
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        pairs, _, depth = constraint.source().rpartition(" ")
        if not pairs or len(pairs) % 2 or not pairs.isascii() or len(set(pairs)) != len(pairs):
            raise InvalidGrammar("brackets come in pairs of different characters", field="constraint")
        if not (depth.isascii() and depth.isdecimal() and 1 <= int(depth) <= 100):
            raise InvalidGrammar("the depth is from 1 to 100", field="constraint")
        signs = pairs.encode()
        return CompiledBrackets(dict(zip(signs[::2], signs[1::2], strict=True)), int(depth), self.vocabulary)


class CompiledBrackets(CompiledGrammar):
    def __init__(self, closers: Mapping[int, int], depth: int, vocabulary: Vocabulary) -> None:
        self.closers, self.depth, self.tokens = closers, depth, vocabulary.tokens
        signs = {*closers, *closers.values()}
        self.usable = [
            token_id
            for token_id, token in enumerate(self.tokens)
            if token and signs.issuperset(token) and token_id not in vocabulary.special_tokens
        ]

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return BracketsMatcher(self, stop_token_ids, [EMPTY])

    @property
    def nbytes(self) -> int:
        return 1000 + 40 * len(self.usable) + 300 * len(self.closers)

    def after(self, state: State, token: bytes) -> State | None:
        """The state after `token`; None where it cannot come."""
        innermost = state[1]
        for byte in token:
            if byte in self.closers:
                depth = 1 if innermost is None else innermost.depth + 1
                if depth > self.depth:
                    return None
                innermost = Open(self.closers[byte], depth, innermost)
            elif innermost is not None and byte == innermost.closer:
                innermost = innermost.around
            else:
                return None
        return True, innermost


class BracketsMatcher(Matcher):
    def __init__(self, compiled: CompiledBrackets, stops: frozenset[int], path: list[State | None]) -> None:
        self.compiled, self.stops, self.path = compiled, stops, path

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if token_id not in self.legal():
                return count
            state = self.path[-1]
            assert state is not None
            over = token_id in self.stops
            self.path.append(None if over else self.compiled.after(state, self.compiled.tokens[token_id]))
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        return BracketsMatcher(self.compiled, self.stops, self.path[-1:]).accept(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if num_tokens < 0:
            raise ValueError("a negative number of tokens")
        del self.path[len(self.path) - num_tokens :]

    def fork(self) -> Matcher:
        return BracketsMatcher(self.compiled, self.stops, list(self.path))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        legal = self.legal()
        if not legal:
            raise DeadEnd("no token of the vocabulary opens or closes a bracket here")
        allow_only(bitmask, row, sorted(legal))

    def is_terminated(self) -> bool:
        return self.path[-1] is None

    def is_accepting(self) -> bool:
        return self.path[-1] == (True, None)

    def legal(self) -> frozenset[int]:
        state, compiled = self.path[-1], self.compiled
        if state is None:
            return frozenset()
        text = (token_id for token_id in compiled.usable if compiled.after(state, compiled.tokens[token_id]))
        return frozenset(text) | (self.stops if self.is_accepting() else frozenset())

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        """Looks at all that can come, level by level; what is open decides, so that little is looked at twice."""
        state = self.path[-1]
        if state is None or not self.stops:
            return None
        ways: list[tuple[State, tuple[int, ...]]] = [(state, ())]
        seen = {signature(state)}
        for _ in range(limit):
            further: list[tuple[State, tuple[int, ...]]] = []
            for now, way in ways:
                if now == (True, None):
                    return (*way, min(self.stops))
                for token_id in self.compiled.usable:
                    after = self.compiled.after(now, self.compiled.tokens[token_id])
                    if after is not None and signature(after) not in seen:
                        seen.add(signature(after))
                        further.append((after, (*way, token_id)))
            ways = further
        return None


def signature(state: State) -> tuple[bool, tuple[int, ...]]:
    closers: list[int] = []
    innermost = state[1]
    while innermost is not None:
        closers.append(innermost.closer)
        innermost = innermost.around
    return state[0], tuple(closers)
