"""A grammar strategy for regular expressions: sets of states of an automaton over bytes, made as they are met. Options:
``max_states``, above which an expression is refused, and ``kept_masks``, of each grammar."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    UnsupportedCapability,
    UnsupportedGrammar,
    Vocabulary,
    hookimpl,
    parse_options,
)
from guideway.api.bitmask import Bitmask, num_words
from guideway.api.options import Range

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
SETS = {"d": "0123456789", "w": "0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "s": " \t\n\r\f\v"}
ASCII = frozenset(range(128))
TAIL = range(0x80, 0xC0)
WIDE = (  # all characters past ASCII, as UTF-8
    *((range(0xC2, 0xE0), TAIL), (range(0xE0, 0xE1), range(0xA0, 0xC0), TAIL), (range(0xE1, 0xED), TAIL, TAIL)),
    *((range(0xED, 0xEE), range(0x80, 0xA0), TAIL), (range(0xEE, 0xF0), TAIL, TAIL)),
    *((range(0xF0, 0xF1), range(0x90, 0xC0), TAIL, TAIL), (range(0xF1, 0xF4), TAIL, TAIL, TAIL)),
    (range(0xF4, 0xF5), range(0x80, 0x90), TAIL, TAIL),
)


@dataclass(frozen=True)
class Options:
    max_states: Annotated[int, Range(1)] = 20_000
    kept_masks: Annotated[int, Range(0)] = 128


class Reader:
    """Reads an expression into a tree: ("bytes", set), ("all", parts), ("any", parts), ("times", part, least, most)."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def next(self) -> str:
        self.at += 1
        if self.at > len(self.text):
            raise InvalidGrammar("the regular expression ends too early", field="constraint.pattern")
        return self.text[self.at - 1]

    def whole(self) -> Any:
        tree = self.any()
        if self.peek():
            raise InvalidGrammar("a ) closes nothing", field="constraint.pattern")
        return tree

    def any(self) -> Any:
        branches = [[]]
        while self.peek() not in ("", ")"):
            if self.peek() == "|":
                self.next()
                branches.append([])
            else:
                branches[-1].append(self.repeated(self.atom()))
        return ("any", [("all", parts) for parts in branches])

    def atom(self) -> Any:
        char = self.next()
        if char in "*+?":
            raise InvalidGrammar(f"nothing stands before {char}", field="constraint.pattern")
        if char in "^${}":
            raise UnsupportedGrammar(f"lazyre does not support {char}", feature=f"regex:{char}")
        if char == "(":
            if self.peek() == "?":
                self.next()
                if self.next() != ":":
                    raise UnsupportedGrammar("lazyre knows groups ( and (?: only", feature="regex:(?")
            tree = self.any()
            if self.next() != ")":
                raise InvalidGrammar("a ( is not closed", field="constraint.pattern")
            return tree
        if char == ".":
            return negated(frozenset(b"\n"))
        if char == "[":
            return self.set()
        if char == "\\":
            found = self.escape()
            return found if isinstance(found, tuple) else spelled(found)
        return spelled(char)

    def repeated(self, tree: Any) -> Any:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self.peek())
        if bounds:
            self.next()
        elif self.peek() == "{":
            end = self.text.find("}", self.at)
            least, comma, most = self.text[self.at + 1 : end].partition(",")
            if end < 0 or not (least.isdecimal() and least.isascii()) or not (most or "0").isdecimal():
                raise UnsupportedGrammar("lazyre knows {n}, {n,} and {n,m} only", feature="regex:{")
            self.at = end + 1
            if max(len(least), len(most)) > 6:
                raise UnsupportedGrammar("a repetition this large is not supported", feature="regex:{n,m}")
            bounds = (int(least), (int(most) if most else None) if comma else int(least))
            if bounds[1] is not None and bounds[0] > bounds[1]:
                raise InvalidGrammar("the bounds of a repetition are reversed", field="constraint.pattern")
        else:
            return tree
        if self.peek() and self.peek() in "*+?{":
            raise UnsupportedGrammar("lazyre repeats nothing twice", feature="regex:repetition")
        return ("times", tree, *bounds)

    def escape(self) -> Any:
        char = self.next()
        if char in SETS:
            return ("bytes", frozenset(SETS[char].encode()))
        if char.lower() in SETS:
            return negated(frozenset(SETS[char.lower()].encode()))
        if char.isalnum() and char not in ESCAPES:
            raise UnsupportedGrammar(f"lazyre does not know \\{char}", feature=f"regex:\\{char}")
        return ESCAPES.get(char, char)

    def set(self) -> Any:
        flip = self.peek() == "^"
        self.at += flip
        chosen: set[int] = set()
        first = True
        while first or self.peek() != "]":
            first, low = False, self.member(chosen)
            if low is not None and self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("", "]"):
                self.next()
                high = self.member(chosen)
                if high is None or high < low:
                    raise InvalidGrammar("a range of a set is reversed or has no end", field="constraint.pattern")
                chosen.update(range(low, high + 1))
            elif low is not None:
                chosen.add(low)
        self.next()
        return negated(frozenset(chosen)) if flip else ("bytes", frozenset(chosen))

    def member(self, chosen: set[int]) -> int | None:
        char = self.next()
        if char == "[":
            raise UnsupportedGrammar("write \\[ in a set", feature="regex:[[")
        if char == "\\":
            found = self.escape()
            if isinstance(found, tuple):
                if found[0] != "bytes":
                    raise UnsupportedGrammar("lazyre knows no \\D, \\W and \\S in sets", feature="regex:[\\D]")
                chosen |= found[1]
                return None
            char = found
        if not char.isascii():
            raise UnsupportedGrammar("lazyre knows no characters past ASCII in sets", feature="regex:[non-ascii]")
        return ord(char)


def spelled(char: str) -> Any:
    return ("all", [("bytes", frozenset({byte})) for byte in char.encode()])


def negated(chosen: frozenset[int]) -> Any:
    wide = [("all", [("bytes", frozenset(each)) for each in ranges]) for ranges in WIDE]
    return ("any", [("bytes", ASCII - chosen), *wide])


class Automaton:
    """States are numbers; 0 is the end. Each has bytes that lead to another, or states it is also in."""

    def __init__(self, tree: Any, most: int) -> None:
        self.most = most
        self.reads: list[tuple[frozenset[int], int] | None] = [None]
        self.also: list[tuple[int, ...]] = [()]
        self.begin = self.closure([self.build(tree, 0)])

    def add(self, reads: tuple[frozenset[int], int] | None, also: Sequence[int] = ()) -> int:
        if len(self.reads) >= self.most:
            raise UnsupportedGrammar(f"it takes more than {self.most} states (option max_states)", feature="regex:size")
        self.reads.append(reads)
        self.also.append(tuple(also))
        return len(self.reads) - 1

    def build(self, tree: Any, then: int) -> int:
        """The state in which a text of `tree`, and then what `then` takes, may follow."""
        what, parts, *bounds = tree
        if what == "bytes":
            return self.add((parts, then))
        if what == "any":
            return self.add(None, [self.build(part, then) for part in parts])
        if what == "all":
            for part in reversed(parts):
                then = self.build(part, then)
            return then
        least, most = bounds
        if most is None:
            loop = self.add(None)
            self.also[loop] = (self.build(parts, loop), then)
            then = loop
        else:
            end = then
            for _ in range(most - least):
                then = self.add(None, [self.build(parts, then), end])
        for _ in range(least):
            then = self.build(parts, then)
        return then

    def closure(self, states: Sequence[int]) -> frozenset[int]:
        found, open_ = set(states), list(states)
        while open_:
            for state in self.also[open_.pop()]:
                if state not in found:
                    found.add(state)
                    open_.append(state)
        return frozenset(state for state in found if state == 0 or (self.reads[state] or (None,))[0])

    def step(self, states: frozenset[int], byte: int) -> frozenset[int]:
        reads = self.reads
        return self.closure([reads[s][1] for s in states if s and byte in reads[s][0]])  # type: ignore[index]

    def trim(self) -> None:
        """Drop the ways that never reach the end."""
        came: list[list[int]] = [[] for _ in self.reads]
        for state, (read, also) in enumerate(zip(self.reads, self.also, strict=True)):
            for to in (*also, *((read[1],) if read and read[0] else ())):
                came[to].append(state)
        alive, open_ = {0}, [0]
        while open_:
            for state in came[open_.pop()]:
                if state not in alive:
                    alive.add(state)
                    open_.append(state)
        self.reads = [read if i in alive else None for i, read in enumerate(self.reads)]
        self.begin = self.begin & alive
        self.also = [tuple(alive.intersection(also)) for also in self.also]


class CompiledRegex(CompiledGrammar):
    def __init__(self, automaton: Automaton, strategy: LazyRegex) -> None:
        self.automaton, self.tree, self.vocabulary = automaton, strategy.tree, strategy.vocabulary
        self.kept = strategy.options.kept_masks
        self._masks: OrderedDict[frozenset[int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return RegexMatcher(self, stop_token_ids, deque([self.automaton.begin], LazyRegex.max_rollback + 1))

    @property
    def nbytes(self) -> int:
        masks = list(self._masks)
        row = 4 * num_words(len(self.vocabulary)) + 200
        states = sum(200 + (8 * len(read[0]) if read else 0) for read in self.automaton.reads)
        return 1024 + states + sum(row + 40 * len(states) for states in masks)

    def after(self, states: frozenset[int], token_id: int) -> frozenset[int]:
        if token_id in self.vocabulary.special_tokens or not self.vocabulary.tokens[token_id]:
            return frozenset()
        for byte in self.vocabulary.tokens[token_id]:
            states = self.automaton.step(states, byte)
        return states

    def mask(self, states: frozenset[int]) -> np.ndarray:
        with self._lock:
            if (mask := self._masks.get(states)) is not None:
                self._masks.move_to_end(states)
                return mask
        steps: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        allowed = np.zeros(num_words(len(self.vocabulary)) * 32, np.bool_)
        open_ = [(self.tree, states)]
        while open_:
            node, at = open_.pop()
            for byte, child in node.items():
                if byte == -1:
                    allowed[child] = True
                    continue
                if (further := steps.get((at, byte))) is None:
                    further = steps[at, byte] = self.automaton.step(at, byte)
                if further:
                    open_.append((child, further))
        mask = np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)
        if self.kept:
            with self._lock:
                self._masks[states] = mask
                while len(self._masks) > self.kept:
                    self._masks.popitem(last=False)
        return mask


class RegexMatcher(Matcher):
    def __init__(self, compiled: CompiledRegex, stops: frozenset[int], path: deque[frozenset[int] | None]) -> None:
        self.compiled, self.stops, self.path = compiled, stops, path  # None stands after a stop token

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            states = self.path[-1]
            if states is None:
                return count
            if token_id in self.stops:
                if 0 not in states:
                    return count
                self.path.append(None)
                continue
            further = self.compiled.after(states, token_id)
            if not further:
                return count
            self.path.append(further)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        return self.fork().accept(token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        states = self.path[-1]
        assert states is not None
        mask = self.compiled.mask(states)
        if 0 not in states and not mask.any():
            raise DeadEnd("no token of the vocabulary goes on with the expression")
        target = bitmask[row].view(np.uint32)
        target[: len(mask)] = mask
        target[len(mask) :] = 0
        if 0 in states:
            for stop in self.stops:
                target[stop // 32] |= np.uint32(1 << stop % 32)

    def is_terminated(self) -> bool:
        return self.path[-1] is None

    def is_accepting(self) -> bool:
        return self.path[-1] is not None and 0 in self.path[-1]

    def rollback(self, num_tokens: int) -> None:
        if num_tokens < 0:
            raise ValueError("a negative number of tokens")
        if num_tokens >= len(self.path):
            raise UnsupportedCapability(f"lazyre goes back {LazyRegex.max_rollback} tokens", field="rollback")
        for _ in range(num_tokens):
            self.path.pop()

    def fork(self) -> Matcher:
        return RegexMatcher(self.compiled, self.stops, self.path.copy())


class LazyRegex(GrammarStrategy):
    contract = "1.0"
    name = "lazyre"
    kinds = frozenset({"regex"})
    capabilities = frozenset({"fork"})
    max_rollback = 64

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.lazyre")
        self.tree: dict[Any, Any] = {}
        for i, token in enumerate(vocabulary.tokens):
            if token and i not in vocabulary.special_tokens:
                node = self.tree
                for byte in token:
                    node = node.setdefault(byte, {})
                node.setdefault(-1, []).append(i)

    def supports(self, constraint: Constraint) -> Support:
        try:
            Reader(constraint.source()).whole()
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        except RecursionError:
            return Support(reason="the expression is nested too deeply")
        return Support(enforced=frozenset({"regex"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind != "regex":
            raise UnsupportedGrammar(f"lazyre does not compile {constraint.kind}", feature=constraint.kind)
        try:
            automaton = Automaton(Reader(constraint.source()).whole(), self.options.max_states)
        except RecursionError as error:
            raise UnsupportedGrammar("the expression is nested too deeply", feature="regex:depth") from error
        automaton.trim()
        if not automaton.begin:
            raise InvalidGrammar("no text matches this regular expression", field="constraint.pattern")
        return CompiledRegex(automaton, self)


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return LazyRegex
