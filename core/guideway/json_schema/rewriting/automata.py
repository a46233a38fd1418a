"""Finite automata over code points: from regular expressions of ECMA-262, and back.

JSON Schema searches a text for its expressions. An automaton here accepts the whole texts in which one is found.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from guideway.json_schema.expressions import Ranges, count, pieces, takes
from guideway.json_schema.patterns import pattern_details

__all__ = ["Automaton", "Unknown", "literal", "searched"]

UNREADABLE: Final = frozenset(
    {"backreference", "boundary", "property", "group", "flags", "possessive", "double", "escape", "brace", "class"}
    | {"range", "lookaround", "\\A", "\\Z"}
)
"""Features that engines read differently, or that are not regular."""
MOST_REPEATS = 64
MOST_STATES = 1000
"""States of an automaton, before it is minimized."""
MOST_TEXT = 12_000
"""Characters of an expression to write."""
SURROGATES = range(0xD800, 0xE000)
EVERY: Final[Ranges] = ((0, sys.maxunicode),)
ANYTHING = r"[\s\S]"

Node: TypeAlias = tuple[Any, ...]
"""A parsed expression: ``("set", ranges)``, ``("cat", nodes)``, ``("or", nodes)``, ``("rep", node, least, most)``,
``("^",)`` or ``("$",)``."""


class Unknown(Exception):
    """An expression is not understood, or its automaton is too large."""


class Automaton:
    """A deterministic automaton. `cuts` are the first code points of its symbols; `moves` has a row for each state,
    with a state for each symbol. The first state is the initial one."""

    def __init__(self, cuts: tuple[int, ...], moves: list[list[int]], accepts: list[bool], steps: int) -> None:
        self._steps = steps
        self.cuts, self.moves, self.accepts = cuts, *_minimized(moves, accepts, steps)

    def __contains__(self, text: str) -> bool:
        return self.accepts[self._after(text)]

    def begins(self, text: str) -> bool:
        """Return whether a text that is accepted begins with `text`."""
        state = self._after(text)
        # minimized: from at most one state no text is accepted
        return self.accepts[state] or any(each != state for each in self.moves[state])

    def is_empty(self) -> bool:
        """Return whether no text is accepted."""
        return not any(self.accepts)  # minimized: all states can be reached

    def is_universal(self) -> bool:
        """Return whether every text is accepted."""
        return all(self.accepts)

    def complement(self) -> Automaton:
        """Return the automaton of all other texts."""
        return Automaton(self.cuts, self.moves, [not each for each in self.accepts], self._steps)

    def meet(self, other: Automaton) -> Automaton:
        """Return the automaton of the texts that both accept. Raises `Unknown` if it is too large."""
        cuts = tuple(sorted({*self.cuts, *other.cuts}))
        mine, theirs = ([bisect_right(each.cuts, cut) - 1 for cut in cuts] for each in (self, other))

        def move(pair: tuple[int, int]) -> list[tuple[int, int]]:
            first, second = self.moves[pair[0]], other.moves[pair[1]]
            return [(first[a], second[b]) for a, b in zip(mine, theirs, strict=True)]

        def accept(pair: tuple[int, int]) -> bool:
            return self.accepts[pair[0]] and other.accepts[pair[1]]

        return Automaton(cuts, *_explored((0, 0), move, accept, self._steps), self._steps)

    def _after(self, text: str) -> int:
        state = 0
        for character in text:
            state = self.moves[state][bisect_right(self.cuts, ord(character)) - 1]
        return state

    def pattern(self) -> str:
        """Return an expression that matches exactly these texts, between ``^`` and ``$``. Raises `Unknown` if it would
        be too long."""
        size = len(self.moves)
        begin, end = size, size + 1
        out: list[dict[int, str]] = [{} for _ in range(size + 2)]
        into: list[set[int]] = [set() for _ in range(size + 2)]

        def connect(a: int, b: int, text: str) -> None:
            out[a][b] = text if b not in out[a] else _either(out[a][b], text)
            into[b].add(a)
            if len(out[a][b]) > MOST_TEXT:
                raise Unknown

        connect(begin, 0, "")
        for state, row in enumerate(self.moves):
            symbols: dict[int, list[int]] = {}
            for symbol, target in enumerate(row):
                symbols.setdefault(target, []).append(symbol)
            for target, each in symbols.items():
                connect(state, target, self._class(each))
            if self.accepts[state]:
                connect(state, end, "")
        left = set(range(size))
        while left:
            state = min(left, key=lambda each: (len(into[each]) * len(out[each]), each))
            left.discard(state)
            loop = out[state].pop(state, None)
            middle = "" if loop is None else _star(loop)
            for b in out[state]:
                into[b].discard(state)
            for a in sorted(into[state] - {state}):
                first = out[a].pop(state) + middle
                for b, last in out[state].items():
                    connect(a, b, first + last)
        return f"^{out[begin][end]}$" if end in out[begin] else r"^[^\s\S]$"

    def _class(self, symbols: Sequence[int]) -> str:
        ranges: list[tuple[int, int]] = []
        for symbol in symbols:
            low = self.cuts[symbol]
            high = self.cuts[symbol + 1] - 1 if symbol + 1 < len(self.cuts) else sys.maxunicode
            if ranges and ranges[-1][1] == low - 1:
                low = ranges.pop()[0]
            ranges.append((low, high))
        if tuple(ranges) == EVERY:
            return ANYTHING
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return _character(ranges[0][0])
        return f"[{''.join(_character(a) if a == b else f'{_character(a)}-{_character(b)}' for a, b in ranges)}]"


@lru_cache(maxsize=1024)
def searched(pattern: str, steps: int) -> Automaton:
    """Return the automaton of the texts in which an expression is found. Raises `Unknown`."""
    if pattern_details(pattern) & UNREADABLE:
        raise Unknown
    cut = list(pieces(pattern))
    if len(cut) > 1000 or sum(map(count, cut)) > MOST_REPEATS:
        raise Unknown
    return _determinize(_Parser(cut).parse(), steps)


@lru_cache(maxsize=1024)
def literal(texts: tuple[str, ...], steps: int) -> Automaton:
    """Return the automaton of some texts. Raises `Unknown`."""
    words = [("cat", [("^",), *(("set", ((ord(c), ord(c)),)) for c in text), ("$",)]) for text in texts]
    return _determinize(("or", words), steps)


class _Parser:
    """Parses the pieces of an expression."""

    def __init__(self, cut: list[str]) -> None:
        self._cut, self._at, self._depth = cut, 0, 0

    def parse(self) -> Node:
        found = self._alternatives()
        if self._at < len(self._cut):
            raise Unknown
        return found

    def _peek(self) -> str:
        return self._cut[self._at] if self._at < len(self._cut) else ""

    def _alternatives(self) -> Node:
        self._depth += 1
        if self._depth > 30:
            raise Unknown
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        self._depth -= 1
        return found[0] if len(found) == 1 else ("or", found)

    def _sequence(self) -> Node:
        found: list[Node] = []
        while (piece := self._peek()) and piece not in "|)":
            self._at += 1
            if piece in ("^", "$"):
                found.append((piece,))
                continue
            if piece[0] == "(":
                if piece not in ("(", "(?:") and not piece.startswith("(?<"):
                    raise Unknown
                node = self._alternatives()
                if self._peek() != ")":
                    raise Unknown
                self._at += 1
            elif piece in "*+?" or not (ranges := takes(piece)):
                raise Unknown
            else:
                node = ("set", ranges)
            found.append(self._repeated(node))
        return ("cat", found)

    def _repeated(self, node: Node) -> Node:
        piece = self._peek()
        most: int | None
        if piece and piece in "*+?":
            least, most = int(piece == "+"), 1 if piece == "?" else None
        elif piece.startswith("{"):
            low, comma, high = piece[1:-1].partition(",")
            least = int(low)
            most = int(high) if high else None if comma else least
        else:
            return node
        self._at += 1
        if self._peek() == "?":  # lazy: the same texts
            self._at += 1
        return ("rep", node, least, most)


class _Nfa:
    """A nondeterministic automaton: edges of characters, and edges that are free, or free only at the beginning or end
    of the text."""

    def __init__(self) -> None:
        self.sets: list[list[tuple[Ranges, int]]] = []
        self.free: list[list[tuple[str, int]]] = []

    def state(self) -> int:
        if len(self.sets) >= 4000:
            raise Unknown
        self.sets.append([])
        self.free.append([])
        return len(self.sets) - 1

    def build(self, node: Node, start: int) -> int:
        """Add a parsed expression after a state, and return its last state."""
        match node[0]:
            case "set":
                end = self.state()
                self.sets[start].append((node[1], end))
                return end
            case "cat":
                for each in node[1]:
                    start = self.build(each, start)
                return start
            case "or":
                end = self.state()
                for each in node[1]:
                    first = self.state()
                    self.free[start].append(("", first))
                    self.free[self.build(each, first)].append(("", end))
                return end
            case "rep":
                _, inner, least, most = node
                for _ in range(least):
                    start = self.build(inner, start)
                if most is None:
                    hub, end = self.state(), self.state()
                    self.free[start].append(("", hub))
                    self.free[self.build(inner, hub)].append(("", hub))
                    self.free[hub].append(("", end))
                    return end
                end = self.state()
                for _ in range(most - least):
                    self.free[start].append(("", end))
                    start = self.build(inner, start)
                self.free[start].append(("", end))
                return end
        end = self.state()
        self.free[start].append((node[0], end))
        return end

    def closure(self, states: Iterable[int], at: str = "") -> frozenset[int]:
        """Return the states that are reached without a character. `at` has ``^`` at the beginning of the text, and
        ``$`` at its end."""
        found, pending = set(states), list(states)
        while pending:
            for condition, target in self.free[pending.pop()]:
                if target not in found and (not condition or condition in at):
                    found.add(target)
                    pending.append(target)
        return frozenset(found)


def _determinize(node: Node, steps: int) -> Automaton:
    nfa = _Nfa()
    start = nfa.state()
    goal = nfa.build(node, start)
    edges = {0}
    for state in nfa.sets:
        edges |= {code for ranges, _ in state for low, high in ranges for code in (low, high + 1)}
    cuts = tuple(sorted(code for code in edges if code <= sys.maxunicode))
    if len(cuts) > 200 or any(code in SURROGATES for code in cuts):
        raise Unknown
    symbols = [
        [
            ([i for i, cut in enumerate(cuts) if any(a <= cut <= b for a, b in ranges)], target)
            for ranges, target in each
        ]
        for each in nfa.sets
    ]
    found: frozenset[int] = frozenset({-1})
    again = nfa.closure([start])

    def settle(states: frozenset[int]) -> frozenset[int]:
        return found if goal in states else states

    def move(states: frozenset[int]) -> list[frozenset[int]]:
        if states is found or states == found:
            return [found] * len(cuts)
        targets: list[set[int]] = [set() for _ in cuts]
        for state in states:
            for each, target in symbols[state]:
                for symbol in each:
                    targets[symbol].add(target)
        known: dict[frozenset[int], frozenset[int]] = {}
        rows = []
        for reached in map(frozenset, targets):
            if reached not in known:
                known[reached] = settle(nfa.closure(reached) | again)
            rows.append(known[reached])
        return rows

    first = settle(nfa.closure([start], "^"))

    def accept(states: frozenset[int]) -> bool:
        return states == found or goal in nfa.closure(states, "$")

    if first != found and goal in nfa.closure([start], "^$"):  # the empty text alone
        opening: frozenset[int] = first | {-2}

        def move_first(states: frozenset[int]) -> list[frozenset[int]]:
            return move(states - {-2})

        return Automaton(cuts, *_explored(opening, move_first, lambda s: -2 in s or accept(s), steps), steps)
    return Automaton(cuts, *_explored(first, move, accept, steps), steps)


def _explored(
    first: Any, move: Callable[[Any], list[Any]], accept: Callable[[Any], bool], steps: int
) -> tuple[list[list[int]], list[bool]]:
    """Return the moves and the acceptance of all states that can be reached."""
    numbers, order, moves = {first: 0}, [first], []
    for state in order:
        row = move(state)
        steps -= len(row)
        for target in row:
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
        if steps < 0 or len(order) > MOST_STATES:
            raise Unknown
        moves.append([numbers[target] for target in row])
    return moves, list(map(accept, order))


def _minimized(moves: list[list[int]], accepts: list[bool], steps: int) -> tuple[list[list[int]], list[bool]]:
    """Merge states that accept the same texts (Moore's algorithm). All states must be reachable."""
    block = [int(each) for each in accepts]
    num_blocks = len(set(block))
    while True:
        steps -= len(moves) * len(moves[0])
        if steps < 0:
            raise Unknown
        keys: dict[tuple[int, ...], int] = {}
        finer = [keys.setdefault((block[i], *(block[t] for t in row)), len(keys)) for i, row in enumerate(moves)]
        block = finer
        if len(keys) == num_blocks:
            break
        num_blocks = len(keys)
    first = {number: i for i, number in reversed(list(enumerate(block)))}
    order = sorted(first, key=lambda number: first[number])
    place = {number: i for i, number in enumerate(order)}
    rows = [[place[block[target]] for target in moves[first[number]]] for number in order]
    return rows, [accepts[first[number]] for number in order]


def _character(code: int) -> str:
    if code < 128 and chr(code).isalnum():
        return chr(code)
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else chr(code)


def _either(first: str, second: str) -> str:
    if not first or not second:
        return f"(?:{first or second})?"
    return f"(?:{first}|{second})"


def _star(text: str) -> str:
    is_one = text == ANYTHING or len(text) == 1 or (text[0] == "[" and text.find("]") == len(text) - 1)
    return f"{text}*" if is_one else f"(?:{text})*"
