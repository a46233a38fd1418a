"""A grammar strategy for texts that are nearly a given word: the dialect ``near`` is ``2 colour``, and its outputs are
all texts at an edit distance of at most 2. The Levenshtein automaton is built as it is walked, and kept in part."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
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
    hookimpl,
    parse_options,
)
from guideway.api.bitmask import Bitmask, num_words
from guideway.api.options import Range

Place = tuple[tuple[int, ...], bytes]  # a row of the distance table, and the bytes of a character that is not whole yet
MOST_EDITS, LONGEST = 3, 100


@dataclass(frozen=True)
class Options:
    masks: Annotated[int, Range(1, 100_000)] = 256
    """Masks that a grammar keeps."""


class Near(GrammarStrategy):
    contract = "1.0"
    name = "near"
    kinds = frozenset({"grammar:near"})
    capabilities = frozenset({"fork", "shortest_completion"})
    max_rollback = None
    examples = (
        GrammarExample(
            Grammar("1 grey", "near"),
            (b"grey", b"gray", b"gre", b"greys"),
            (b"green", b"", b"gr", b"GREY"),
        ),
        GrammarExample(
            Grammar("2 na\u00efve", "near"),
            (b"naive", "na\u00efve".encode(), b"nave"),
            (b"nav\xc3", b"n", b"naive!!"),
        ),
        GrammarExample(Grammar("0 to be", "near"), (b"to be",), (b"to  be", b"tobe", b"to be\n")),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.near")
        self.words = Words(vocabulary)

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"near cannot compile {constraint.kind}", feature=constraint.kind)
        edits, space, word = constraint.source().partition(" ")
        if not space or not edits.isascii() or not edits.isdigit():
            raise InvalidGrammar("write a number of edits, a space and a word, such as '2 colour'")
        if not all(map(is_plain, word)):
            raise InvalidGrammar("the word of a near grammar has no control characters")
        if len(edits) > 2 or int(edits) > MOST_EDITS:
            raise UnsupportedGrammar(f"near allows at most {MOST_EDITS} edits", feature="edits")
        if len(word) > LONGEST:
            raise UnsupportedGrammar(f"near takes words of at most {LONGEST} characters", feature="length")
        return CompiledNear(self.words, word, int(edits), self.options.masks)


def is_plain(char: str) -> bool:
    return char >= " " and char != "\x7f"


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


class CompiledNear(CompiledGrammar):
    def __init__(self, words: Words, word: str, edits: int, most_masks: int) -> None:
        self.words, self.word, self.edits, self.most_masks = words, word, edits, most_masks
        self.encoded = sorted({(char.encode(), char) for char in word})
        self.lock = threading.Lock()
        self.steps: dict[tuple[Place, int], Place | None] = {}
        self.masks: OrderedDict[Place, tuple[Bitmask, dict[Place, int]]] = OrderedDict()
        self.start: Place = (tuple(min(i, edits + 1) for i in range(len(word) + 1)), b"")

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return NearMatcher(self, stop_token_ids, [self.start])

    @property
    def nbytes(self) -> int:
        with self.lock:
            masks = sum(row.nbytes + 250 * len(leaps) + 400 for row, leaps in self.masks.values())
            return 2_000 + masks + (300 + 8 * len(self.word)) * len(self.steps)

    def after(self, row: tuple[int, ...], char: str | None) -> tuple[int, ...] | None:
        """The next row of the table; `char` is None for one that the word does not have. None if all is lost."""
        over = self.edits + 1
        new = [min(row[0] + 1, over)]
        for i, wanted in enumerate(self.word):
            new.append(min(row[i] + (wanted != char), row[i + 1] + 1, new[i] + 1, over))
        return tuple(new) if min(new) < over else None

    def step(self, place: Place, byte: int) -> Place | None:
        key = (place, byte)
        try:
            return self.steps[key]
        except KeyError:
            found = self.find_step(place, byte)
        with self.lock:
            if len(self.steps) >= 20_000:
                self.steps.clear()
            self.steps[key] = found
        return found

    def find_step(self, place: Place, byte: int) -> Place | None:
        row, begun = place[0], place[1] + bytes([byte])
        try:
            char = begun.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                return None
            ways = [None, *(char for code, char in self.encoded if code.startswith(begun))]
            return (row, begun) if any(self.after(row, way) for way in ways) else None
        new = self.after(row, char) if is_plain(char) else None
        return None if new is None else (new, b"")

    def run(self, place: Place, data: bytes) -> Place | None:
        for byte in data:
            following = self.step(place, byte)
            if following is None:
                return None
            place = following
        return place

    def look(self, place: Place) -> tuple[Bitmask, dict[Place, int]]:
        """The mask of `place`, and for each place that one token leads to the first such token."""
        with self.lock:
            if place in self.masks:
                self.masks.move_to_end(place)
                return self.masks[place]
        row, leaps = np.zeros(num_words(self.words.size), dtype=np.uint32), {}
        stack = [(place, self.words.tree)]
        while stack:
            at, tree = stack.pop()
            for byte, (ids, below) in tree.items():
                following = self.step(at, byte)
                if following is None:
                    continue
                for token_id in ids:
                    row[token_id // 32] |= np.uint32(1 << token_id % 32)
                    leaps[following] = min(token_id, leaps.get(following, token_id))
                if below:
                    stack.append((following, below))
        with self.lock:
            self.masks[place] = row.view(np.int32), leaps
            while len(self.masks) > self.most_masks:
                self.masks.popitem(last=False)
        return row.view(np.int32), leaps

    def complete(self, place: Place) -> bool:
        return not place[1] and place[0][-1] <= self.edits

    def shortest(self, place: Place, limit: int) -> list[int] | None:
        """The fewest tokens, at most `limit`, that lead to a complete text."""
        came: dict[Place, tuple[Place, int] | None] = {place: None}
        level, length = [place], 0
        while level:
            for at in level:
                if self.complete(at):
                    path: list[int] = []
                    while (step := came[at]) is not None:
                        at, token_id = step
                        path.append(token_id)
                    return path[::-1]
            if length == limit:
                return None
            length += 1
            following = []
            for at in level:
                for to, token_id in sorted(self.look(at)[1].items(), key=lambda leap: leap[1]):
                    if to not in came:
                        came[to] = at, token_id
                        following.append(to)
            level = following
        return None


class NearMatcher(Matcher):
    def __init__(self, compiled: CompiledNear, stops: frozenset[int], path: list[Place | None]) -> None:
        self.compiled, self.stops, self.path = compiled, stops, path  # None: a stop token was accepted

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if self.is_terminated():
                return count
            if token_id in self.stops:
                if not self.is_accepting():
                    return count
                self.path.append(None)
            else:
                token = self.compiled.words.tokens[token_id]
                place = self.compiled.run(self.path[-1], token) if token else None
                if place is None:
                    return count
                self.path.append(place)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} of {len(self.path) - 1} tokens")
        del self.path[len(self.path) - num_tokens :]

    def fork(self) -> Matcher:
        return NearMatcher(self.compiled, self.stops, self.path.copy())

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        mask, _ = self.compiled.look(self.path[-1])
        stops = self.stops if self.is_accepting() else ()
        if not stops and not mask.any():
            raise DeadEnd(f"no token of the vocabulary leads on to {self.compiled.word!r}")
        bitmask[row] = 0
        bitmask[row, : len(mask)] = mask
        for token_id in stops:
            bitmask[row].view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        if limit < 1 or self.is_terminated():
            return None
        found = self.compiled.shortest(self.path[-1], limit - 1)
        return None if found is None else (*found, min(self.stops))

    def is_terminated(self) -> bool:
        return self.path[-1] is None

    def is_accepting(self) -> bool:
        return self.path[-1] is not None and self.compiled.complete(self.path[-1])


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Near
