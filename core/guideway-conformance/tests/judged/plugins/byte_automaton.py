"""Regular expressions, read by Python's own parser and run as a lazy automaton over bytes."""

from __future__ import annotations

import re
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from re import _constants as op
from re import _parser
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from guideway.api import (
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
    hookimpl,
    parse_options,
)
from guideway.api.bitmask import Bitmask, num_words
from guideway.api.options import Range

ALL = ((0, 0xD7FF), (0xE000, 0x10FFFF))
CATEGORIES = {
    op.CATEGORY_DIGIT: ((48, 57),),
    op.CATEGORY_WORD: ((48, 57), (65, 90), (95, 95), (97, 122)),
    op.CATEGORY_SPACE: ((9, 13), (32, 32)),
}
NEGATED = {op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT, op.CATEGORY_NOT_WORD: op.CATEGORY_WORD}
NEGATED[op.CATEGORY_NOT_SPACE] = op.CATEGORY_SPACE


def outside(ranges):
    found, start = [], 0
    for low, high in (*sorted(ranges), (0x110000, 0x110000)):
        if start < low:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return found


def scalars(ranges):
    """Ranges of characters without surrogates, merged."""
    cut = [(max(a, c), min(b, d)) for a, b in ranges for c, d in ALL if max(a, c) <= min(b, d)]
    return tuple(outside([*outside(cut), (0xD800, 0xDFFF)]))


def utf8(low, high):
    """Sequences of byte ranges that spell the characters from `low` to `high`."""
    for most in (0x7F, 0x7FF, 0xFFFF):
        if low <= most < high:
            return [*utf8(low, most), *utf8(most + 1, high)]
    first, last = chr(low).encode(), chr(high).encode()
    for i in range(1, len(first)):
        span = 1 << 6 * i
        if low // span != high // span:
            if low % span:
                middle = low - low % span + span
                return [*utf8(low, middle - 1), *utf8(middle, high)]
            if (high + 1) % span:
                middle = high - high % span
                return [*utf8(low, middle - 1), *utf8(middle, high)]
    return [tuple(zip(first, last, strict=True))]


class Part:
    """The rest of one character of a set: its possible bytes."""

    def __init__(self, sequences) -> None:
        self.sequences, self.steps = sequences, {}

    def step(self, byte: int) -> Part | bool:
        """The part after `byte`; True if the character is whole, False if there is none."""
        if byte not in self.steps:
            rest = [s[1:] for s in self.sequences if s[0][0] <= byte <= s[0][1]]
            self.steps[byte] = bool(rest) if not rest or not rest[0] else Part(rest)
        return self.steps[byte]


@dataclass(frozen=True)
class Options:
    threads: Annotated[int, Range(1, 16)] = 2
    masks: Annotated[int, Range(1)] = 256


class Regexes(GrammarStrategy):
    contract = "1.0"
    name = "regexes"
    kinds = frozenset({"regex"})
    capabilities = frozenset({"fork"})
    max_rollback = None
    limits = MappingProxyType({"pattern": 4000})

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.regexes")
        self.root: tuple[dict, list] = ({}, [])
        special = {*vocabulary.special_tokens, *vocabulary.stop_token_ids}
        self.texts = [b"" if i in special else text for i, text in enumerate(vocabulary.tokens)]
        for token_id, text in enumerate(self.texts):
            node = self.root
            for byte in text:
                node = node[0].setdefault(byte, ({}, []))
            if text:
                node[1].append(token_id)
        self.pool: ThreadPoolExecutor | None = None

    def supports(self, constraint: Constraint) -> Support:
        try:
            parse(constraint.source())
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        return Support(enforced=frozenset({"regex"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        return Automaton(parse(constraint.source()), self.root, self.texts, self.options.masks)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> np.ndarray:
        if len(jobs) < 8:
            return np.array([fill_one(job, bitmask) for job in jobs], dtype=np.int32)
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.options.threads, "regexes")
        return np.array(list(self.pool.map(lambda job: fill_one(job, bitmask), jobs)), dtype=np.int32)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


def fill_one(job: FillJob, bitmask: Bitmask) -> int:
    try:
        job.error = None
        matcher = job.matcher
        state = matcher.states[-1]
        matcher.write(state, bitmask, job.first_row)
        for count, token_id in enumerate(job.draft_token_ids):
            state = matcher.after(state, token_id)
            if state is None:
                return count
            if not state:
                return count + 1
            try:
                matcher.write(state, bitmask, job.first_row + count + 1)
            except DeadEnd:
                return count
        return len(job.draft_token_ids)
    except Exception as error:
        job.error = error
        return -1


def parse(pattern: str):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _parser.parse(pattern)
        if tree.state.flags & ~re.UNICODE:
            raise UnsupportedGrammar("flags are not supported", feature="flags")
        builder = Builder()
        return builder, builder.sequence(tree, builder.add("match"))
    except re.error as error:
        if "bad escape" in str(error) or "unknown extension" in str(error) or "look-behind" in str(error):
            raise UnsupportedGrammar(f"not supported: {error}", feature="regex") from error
        raise InvalidGrammar(f"no regular expression: {error}") from error
    except (RecursionError, OverflowError) as error:
        raise UnsupportedGrammar("the pattern is too large", feature="size") from error


class Builder:
    """Makes nodes from the last to the first; what leads nowhere is None."""

    def __init__(self) -> None:
        self.nodes: list[tuple] = []
        self.parts: dict[tuple, Part] = {}

    def add(self, *node) -> int:
        self.nodes.append(node)
        if len(self.nodes) > 50_000:
            raise UnsupportedGrammar("the pattern is too large", feature="size")
        return len(self.nodes) - 1

    def split(self, ways) -> int | None:
        ways = [way for way in ways if way is not None]
        return self.add("split", *ways) if ways else None

    def sequence(self, items, then):
        for item in reversed(items):
            then = self.item(*item, then)
        return then

    def item(self, code, value, then):
        if code is op.SUBPATTERN and not value[1] and not value[2]:
            return self.sequence(value[3], then)
        if code is op.BRANCH:
            return self.split([self.sequence(way, then) for way in value[1]])
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self.repeat(*value, then)
        if code is op.LITERAL:
            return self.set([(value, value)], then)
        if code is op.NOT_LITERAL:
            return self.set(outside([(value, value)]), then)
        if code is op.ANY:
            return self.set(outside([(10, 10)]), then)
        if code is op.IN:
            negate, ranges = value[0][0] is op.NEGATE, []
            for kind, what in value:
                if kind is op.LITERAL:
                    ranges.append((what, what))
                elif kind is op.RANGE:
                    ranges.append(what)
                elif kind is op.CATEGORY:
                    ranges += CATEGORIES[what] if what in CATEGORIES else outside(CATEGORIES[NEGATED[what]])
            return self.set(outside(ranges) if negate else ranges, then)
        raise UnsupportedGrammar(f"{code} is not supported", feature=str(code).lower())

    def set(self, ranges, then):
        key = scalars(ranges)
        if then is None or not key:
            return None
        if key not in self.parts:
            self.parts[key] = Part([s for low, high in key for s in utf8(low, high)])
        return self.add("set", self.parts[key], then)

    def repeat(self, least, most, body, then):
        if most is op.MAXREPEAT:
            if then is not None:
                loop = self.add("split")
                start = self.sequence(body, loop)
                self.nodes[loop] = ("split", then) if start is None else ("split", start, then)
                then = loop
        else:
            after = then
            for _ in range(most - least):
                then = self.split([self.sequence(body, then), after])
        for _ in range(least):
            then = self.sequence(body, then)
        return then


class Automaton(CompiledGrammar):
    def __init__(self, parsed, root, texts, most_masks: int) -> None:
        builder, start = parsed
        if start is None:
            raise InvalidGrammar("the pattern matches no text at all")
        self.nodes, self.root, self.texts, self.most_masks = builder.nodes, root, texts, most_masks
        self.final = (0, None)
        self.steps: dict[tuple[frozenset, int], frozenset] = {}
        self.masks: OrderedDict[frozenset, np.ndarray] = OrderedDict()
        self.lock = threading.Lock()
        self.start = frozenset(self.closure([start]))

    def closure(self, stack):
        found, seen = set(), set()
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            kind, *rest = self.nodes[place]
            if kind == "split":
                stack += rest
            else:
                found.add((place, rest[0] if kind == "set" else None))
        return found

    def step(self, state: frozenset, byte: int) -> frozenset:
        key = (state, byte)
        found = self.steps.get(key)
        if found is None:
            items: set = set()
            for place, part in state:
                after = part.step(byte) if part is not None else False
                if after is True:
                    items |= self.closure([self.nodes[place][2]])
                elif after is not False:
                    items.add((place, after))
            found = frozenset(items)
            with self.lock:
                if len(self.steps) > 20_000:
                    self.steps.clear()
                self.steps[key] = found
        return found

    def mask(self, state: frozenset) -> np.ndarray:
        with self.lock:
            if state in self.masks:
                self.masks.move_to_end(state)
                return self.masks[state]
        legal = np.zeros(num_words(len(self.texts)) * 32, dtype=np.bool_)
        stack = [(self.root, state)]
        while stack:
            (below, token_ids), place = stack.pop()
            legal[token_ids] = True
            for byte, child in below.items():
                after = self.step(place, byte)
                if after:
                    stack.append((child, after))
        words = np.packbits(legal, bitorder="little").view(np.int32)
        with self.lock:
            self.masks[state] = words
            if len(self.masks) > self.most_masks:
                self.masks.popitem(last=False)
        return words

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return RegexMatcher(self, stop_token_ids, [self.start])

    @property
    def nbytes(self) -> int:
        with self.lock:
            masks = sum(mask.nbytes + 400 for mask in self.masks.values())
            return 200 * len(self.nodes) + masks + 600 * len(self.steps)


OVER: frozenset = frozenset()


class RegexMatcher(Matcher):
    """`states`: what the automaton was in, the last now; empty once terminated."""

    def __init__(self, compiled: Automaton, stop_token_ids: frozenset[int], states: list[frozenset]) -> None:
        self.compiled, self.stop_token_ids, self.states = compiled, stop_token_ids, states

    def after(self, state: frozenset, token_id: int) -> frozenset | None:
        if not state:
            return None
        if token_id in self.stop_token_ids:
            return OVER if self.compiled.final in state else None
        for byte in self.compiled.texts[token_id]:
            state = self.compiled.step(state, byte)
        return state if state and self.compiled.texts[token_id] else None

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            state = self.after(self.states[-1], token_id)
            if state is None:
                return count
            self.states.append(state)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        state = self.states[-1]
        for count, token_id in enumerate(token_ids):
            state = self.after(state, token_id)
            if state is None:
                return count
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.states):
            raise ValueError(f"cannot roll back {num_tokens} tokens")
        del self.states[len(self.states) - num_tokens :]

    def fork(self) -> Matcher:
        return type(self)(self.compiled, self.stop_token_ids, self.states.copy())

    def write(self, state: frozenset, bitmask: Bitmask, row: int) -> None:
        words = self.compiled.mask(state)
        if self.compiled.final in state:
            words = words.copy()
            for stop in self.stop_token_ids:
                words.view(np.uint32)[stop // 32] |= np.uint32(1 << stop % 32)
        if not words.any():
            raise DeadEnd("no token of the vocabulary goes on with the pattern")
        bitmask[row, : len(words)] = words
        bitmask[row, len(words) :] = 0

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.write(self.states[-1], bitmask, row)

    def is_terminated(self) -> bool:
        return not self.states[-1]

    def is_accepting(self) -> bool:
        return self.compiled.final in self.states[-1]


BACK = 128


class Bounded(Regexes):
    """Rolls back 128 tokens, and fills by itself as `Regexes` does."""

    name = "bounded"
    max_rollback = BACK

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        return BoundedAutomaton(parse(constraint.source()), self.root, self.texts, self.options.masks)


class BoundedAutomaton(Automaton):
    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return BoundedMatcher(self, stop_token_ids, deque([self.start], BACK + 1))


class BoundedMatcher(RegexMatcher):
    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.states):
            raise ValueError(f"cannot roll back {num_tokens} tokens")
        for _ in range(num_tokens):
            self.states.pop()


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Regexes
