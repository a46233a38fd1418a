"""The size of outlines-core's index of a pattern, computed without building it.

outlines-core builds a deterministic automaton and then follows every token of the vocabulary from every state, without
bounds. Here the automaton is built over characters, from sets of positions in the pattern (Glushkov), and abandoned
when it becomes too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guideway_outlines.regular import Either, Node, One, Ranges, Repeat, unsupported
from guideway_outlines.regular import Sequence as Concatenation

MAX_POSITIONS = 20_000
"""Maximum characters of a pattern with its repetitions written out."""
MAX_WORK = 1_000_000
"""Maximum elementary steps of the estimate, about a second."""
STEPS_PER_ENTRY = 32
"""Tokens that outlines-core can exclude by their first byte in the time it takes to store a legal one."""
STATES_IN_CHARACTER = 8
"""States inside the bytes of a non-ASCII character, for a class that is not tiny."""


def first_bytes(tokens: Sequence[bytes]) -> list[int]:
    """Count the tokens that begin with each byte."""
    counts = [0] * 256
    for token in tokens:
        if token:
            counts[token[0]] += 1
    return counts


def check_size(node: Node, counts: Sequence[int], max_entries: int) -> None:
    """Raise `UnsupportedGrammar` if the index of a simplified `node` would have more than `max_entries` entries: legal
    tokens of a state, summed over all states. `counts` is the result of `first_bytes`."""
    automaton = _Automaton(node)
    in_characters = sum(counts[0x80:])
    every_state = sum(counts) // STEPS_PER_ENTRY + 1
    entries = 0
    for legal in automaton.states():
        entries += every_state + sum(sum(counts[low : min(high, 0x7F) + 1]) for low, high in legal if low <= 0x7F)
        if legal and legal[-1][1] > 0x7F:
            entries += in_characters + STATES_IN_CHARACTER * every_state
        if entries > max_entries:
            unsupported(
                f"the index of this constraint would have more than {max_entries} entries, the limit "
                "grammar.outlines.max_entries",
                "size",
            )


@dataclass(slots=True)
class _Part:
    """A piece of the pattern: whether it can be empty, and the positions it can begin and end with, as bits."""

    empty: bool
    first: int
    last: int


class _Automaton:
    def __init__(self, node: Node) -> None:
        self.work = 0
        self.ranges: list[Ranges] = []
        self.follow: list[int] = []
        self.whole = self.build(node)

    def spend(self, steps: int) -> None:
        self.work += steps
        if self.work > MAX_WORK:
            unsupported("this constraint is too complex to tell its size", "size")

    def build(self, node: Node) -> _Part:
        self.spend(4)
        match node:
            case One(ranges):
                if len(self.ranges) == MAX_POSITIONS:
                    unsupported(
                        f"with its repetitions written out, a pattern may have {MAX_POSITIONS} characters", "size"
                    )
                bit = 1 << len(self.ranges)
                self.ranges.append(ranges)
                self.follow.append(0)
                return _Part(False, bit, bit)
            case Concatenation(parts):
                return self.joined(self.build(part) for part in parts)
            case Either(parts):
                built = [self.build(part) for part in parts]
                return _Part(any(p.empty for p in built), _or(p.first for p in built), _or(p.last for p in built))
            case Repeat(part, low, high):
                return self.repeated(part, low, high)

    def repeated(self, node: Node, low: int, high: int | None) -> _Part:
        whole = self.joined(self.copies(node, low if high is not None else max(low - 1, 0)))
        if high is None:
            part = self.build(node)
            self.link(part.last, part.first)
            return self.joined(iter((whole, _Part(part.empty or low == 0, part.first, part.last))))
        # x{0,3} as (x(x(x)?)?)?, where each copy follows only the previous one
        before, reachable = whole.last, whole.empty
        for part in self.copies(node, high - low):
            self.link(before, part.first)
            whole.first |= part.first if reachable else 0
            whole.last |= part.last
            before = part.last | (before if part.empty else 0)
            reachable = reachable and part.empty
        return whole

    def copies(self, node: Node, count: int) -> Iterator[_Part]:
        for _ in range(count):
            part = self.build(node)
            yield part
            if not part.first:  # repeating the empty text changes nothing
                return

    def joined(self, parts: Iterator[_Part]) -> _Part:
        whole = _Part(True, 0, 0)
        for part in parts:
            self.link(whole.last, part.first)
            whole = _Part(
                whole.empty and part.empty,
                whole.first | (part.first if whole.empty else 0),
                part.last | (whole.last if part.empty else 0),
            )
        return whole

    def link(self, last: int, first: int) -> None:
        for position in self.bits(last):
            self.follow[position] |= first

    def bits(self, mask: int) -> Iterator[int]:
        while mask:
            low = mask & -mask
            self.spend(1 + mask.bit_length() // 4096)
            yield low.bit_length() - 1
            mask ^= low

    def states(self) -> Iterator[Ranges]:
        """Yield the legal characters of each state when it is found; their ranges are not merged."""
        atoms = self.atoms()
        seen = {self.whole.first}
        pending = [self.whole.first]
        while pending:
            candidates = pending.pop()
            legal = []
            matched: dict[int, None] = {}
            self.spend(len(atoms) * (1 + len(self.ranges) // 2048))
            for low, high, positions in atoms:
                if candidates & positions:
                    legal.append((low, high))
                    matched[candidates & positions] = None
            yield tuple(legal)
            for positions in matched:
                state = _or(self.follow[position] for position in self.bits(positions))
                # states also differ by whether they accept, which adds at most one state for each
                if state not in seen:
                    seen.add(state)
                    pending.append(state)

    def atoms(self) -> list[tuple[int, int, int]]:
        """Return ranges of characters that every position treats alike, with the positions that they match."""
        by_ranges: dict[Ranges, int] = {}
        for position, ranges in enumerate(self.ranges):
            by_ranges[ranges] = by_ranges.get(ranges, 0) | 1 << position
        cuts = sorted({cut for ranges in by_ranges for low, high in ranges for cut in (low, high + 1)})
        index = {cut: i for i, cut in enumerate(cuts)}
        self.spend(sum(index[high + 1] - index[low] for ranges in by_ranges for low, high in ranges))
        positions = [0] * len(cuts)
        for ranges, mask in by_ranges.items():
            for low, high in ranges:
                for i in range(index[low], index[high + 1]):
                    positions[i] |= mask
        return [(cut, cuts[i + 1] - 1, positions[i]) for i, cut in enumerate(cuts[:-1]) if positions[i]]


def _or(masks: Iterator[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
