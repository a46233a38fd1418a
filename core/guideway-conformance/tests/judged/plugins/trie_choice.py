"""A grammar strategy for choices: a trie of their bytes. The tokens of the vocabulary are sorted once, and a walk down
the trie beside the sorted tokens finds the ways out of a node. It forces what cannot be otherwise, and completes."""

from __future__ import annotations

import json
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

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
    parse_options,
)
from guideway.api.bitmask import Bitmask, allow_only

ROOT, OVER = 0, -1
MOST_RESTS = 32  # more endings than these are not compared to find what they begin with
MOST_SPARES = 16


@dataclass(frozen=True)
class NoOptions:
    pass


class Lexicon:
    """The tokens that stand for text, in the order of their bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = vocabulary.tokens
        self.vocabulary = vocabulary
        self.ids = [i for i, token in enumerate(tokens) if token and i not in vocabulary.special_tokens]
        self.ids.sort(key=tokens.__getitem__)
        self.texts = [tokens[i] for i in self.ids]


class Trie:
    """The bytes of all choices. A node is a number, larger than that of its parent."""

    def __init__(self, choices: Sequence[bytes], lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.children: list[dict[int, int]] = [{}]
        self.ends: set[int] = set()
        for choice in choices:
            node = ROOT
            for byte in choice:
                if byte not in self.children[node]:
                    self.children[node][byte] = len(self.children)
                    self.children.append({})
                node = self.children[node][byte]
            self.ends.add(node)
        self.found: dict[int, dict[int, int]] = {}

    def ways(self, start: int) -> Mapping[int, int]:
        """The tokens that lead on from a node, and where to."""
        known = self.found.get(start)
        if known is not None:
            return known
        ids, texts = self.lexicon.ids, self.lexicon.texts
        ways: dict[int, int] = {}
        open_ = [(start, b"", 0, len(texts))]
        while open_:
            node, before, low, high = open_.pop()
            for byte, child in self.children[node].items():
                text = before + bytes((byte,))
                at = bisect_left(texts, text, low, high)
                end = high if byte == 255 else bisect_left(texts, before + bytes((byte + 1,)), at, high)
                while at < end and texts[at] == text:
                    ways[ids[at]] = child
                    at += 1
                if at < end:
                    open_.append((child, text, at, end))
        self.found[start] = ways
        return ways

    def rests(self, start: int) -> Iterator[bytes]:
        """Texts that may follow a node, to the end."""
        open_ = [(start, b"")]
        while open_:
            node, before = open_.pop()
            if node in self.ends:
                yield before
            open_.extend((child, before + bytes((byte,))) for byte, child in self.children[node].items())

    def forced(self, start: int) -> tuple[int, ...]:
        """The tokens with which the tokenizer begins every rest."""
        common: list[int] | None = None
        for count, rest in enumerate(self.rests(start)):
            written = self.lexicon.vocabulary.encode(rest) if rest and count < MOST_RESTS else None
            if not written:
                return ()
            if common is None:
                common = list(written)
            while common != written[: len(common)]:
                common.pop()
        node, legal = start, []
        for token in common or ():
            if token not in self.ways(node):
                break
            node = self.ways(node)[token]
            legal.append(token)
        return tuple(legal)

    def shortest(self, start: int, most: int) -> tuple[int, ...] | None:
        """The fewest tokens, and at most `most`, that lead from a node to an end."""
        came: dict[int, tuple[int, int]] = {start: (OVER, OVER)}
        front = [start]
        for _ in range(most + 1):
            for node in front:
                if node in self.ends:
                    tokens = []
                    while node != start:
                        node, token = came[node]
                        tokens.append(token)
                    return tuple(reversed(tokens))
            following = []
            for node in front:
                for token, child in self.ways(node).items():
                    if child not in came:
                        came[child] = (node, token)
                        following.append(child)
            front = following
        return None


class ChoiceMatcher(Matcher):
    __slots__ = ("path", "stops", "trie")

    def __init__(self, trie: Trie, stops: frozenset[int], path: list[int]) -> None:
        self.trie, self.stops = trie, stops
        self.path = path  # the node at the start and after each accepted token

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token in enumerate(token_ids):
            there = self._after(self.path[-1], token)
            if there is None:
                return count
            self.path.append(there)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        here: int | None = self.path[-1]
        for count, token in enumerate(token_ids):
            here = self._after(here, token)
            if here is None:
                return count
        return len(token_ids)

    def _after(self, node: int, token: int) -> int | None:
        if node == OVER:
            return None
        if token in self.stops:
            return OVER if node in self.trie.ends else None
        return self.trie.ways(node).get(token)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        here = self.path[-1]
        ways = self.trie.ways(here)
        if here in self.trie.ends:
            allow_only(bitmask, row, [*ways, *self.stops])
        elif ways:
            allow_only(bitmask, row, ways)
        else:
            raise DeadEnd("no token of the vocabulary goes on with any of the choices")

    def is_terminated(self) -> bool:
        return self.path[-1] == OVER

    def is_accepting(self) -> bool:
        return self.path[-1] in self.trie.ends

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"{num_tokens} tokens to roll back, of {len(self.path) - 1}")
        del self.path[len(self.path) - num_tokens :]

    def fork(self) -> Matcher:
        return ChoiceMatcher(self.trie, self.stops, self.path.copy())

    def forced_tokens(self) -> Sequence[int]:
        return () if self.is_terminated() else self.trie.forced(self.path[-1])

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        if self.is_terminated() or limit < 1:
            return None
        tokens = self.trie.shortest(self.path[-1], limit - 1)
        return None if tokens is None else (*tokens, min(self.stops))


class CompiledChoice(CompiledGrammar):
    def __init__(self, choices: Sequence[str], lexicon: Lexicon) -> None:
        self.choices = tuple(choices)
        self.trie = Trie([choice.encode() for choice in choices], lexicon)
        self._fixed = sum(map(sys.getsizeof, self.choices)) + sum(map(sys.getsizeof, self.trie.children))
        self._fixed += sys.getsizeof(self.trie.children) + sys.getsizeof(self.trie.ends) + 64 * len(self.trie.children)
        self._spares: deque[ChoiceMatcher] = deque()
        self._lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        with self._lock:
            spare = self._spares.pop() if self._spares else None
        if spare is None:
            return ChoiceMatcher(self.trie, stop_token_ids, [ROOT])
        spare.stops = stop_token_ids
        return spare

    def recycle(self, matcher: Matcher) -> None:
        assert isinstance(matcher, ChoiceMatcher)
        matcher.path = [ROOT]
        with self._lock:
            if len(self._spares) < MOST_SPARES:
                self._spares.append(matcher)

    @property
    def nbytes(self) -> int:
        return self._fixed + sum(sys.getsizeof(ways) + 32 * len(ways) for ways in list(self.trie.found.values()))

    def to_bytes(self) -> bytes:
        return json.dumps(self.choices).encode()


class TrieChoice(GrammarStrategy):
    contract = "1.0"
    name = "trie"
    kinds = frozenset({"choice"})
    capabilities = frozenset({"fork", "forced_tokens", "shortest_completion", "serialize"})
    max_rollback = None
    limits = MappingProxyType({"literals": 100_000})

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        parse_options(NoOptions, options, where="grammar.trie")
        self.lexicon = Lexicon(vocabulary)

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"choice"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind != "choice":
            raise UnsupportedGrammar(f"trie compiles choices, not {constraint.kind}", feature=constraint.kind)
        return CompiledChoice(json.loads(constraint.source()), self.lexicon)

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        try:
            return CompiledChoice(json.loads(data), self.lexicon)
        except ValueError as error:
            raise InvalidGrammar(f"these bytes are no choices of this strategy: {error}") from error


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return TrieChoice
