"""Choices as a trie over bytes, with a batch fill of its own, completions, forced tokens and serialization."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    DeadEnd,
    GrammarStrategy,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import Bitmask
from guideway.api.options import Range, parse_options

OVER = -1


@dataclass(frozen=True)
class Options:
    forced_branches: Annotated[int, Range(1, 4096)] = 64
    """Beyond so many outputs that are still possible, no tokens are forced."""


class ChoiceTrie(GrammarStrategy):
    contract = "1.0"
    name = "choice_trie"
    kinds = frozenset({"choice"})
    capabilities = frozenset({"fork", "forced_tokens", "shortest_completion", "serialize"})
    max_rollback = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.choice_trie")
        self.ids: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(vocabulary.tokens):
            if token:
                self.ids.setdefault(token, []).append(token_id)
        self.longest = max(map(len, self.ids), default=0)

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"choice"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind != "choice":
            raise UnsupportedGrammar(f"choice_trie cannot compile {constraint.kind}", feature=constraint.kind)
        return Trie(self, sorted({choice.encode() for choice in json.loads(constraint.source())}))

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        return Trie(self, [bytes.fromhex(choice) for choice in json.loads(data)])

    def fill(self, jobs, bitmask):
        accepted = np.zeros(len(jobs), dtype=np.int32)
        rows: dict[tuple[int, int, frozenset[int]], Any] = {}  # equal states of a step have equal rows
        for i, job in enumerate(jobs):
            try:
                accepted[i] = fill_job(job, bitmask, rows)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                job.error = error
                accepted[i] = -1
        return accepted


def fill_job(job, bitmask: Bitmask, rows: dict) -> int:
    matcher, node, count = job.matcher, job.matcher.path[-1], 0
    trie, stops = matcher.trie, matcher.stops
    key = (id(trie), node, stops)
    if key not in rows:
        matcher.fill_bitmask(bitmask, job.first_row)
        rows[key] = bitmask[job.first_row].copy()
    bitmask[job.first_row] = rows[key]
    for token_id in job.draft_token_ids:
        node = trie.step(node, token_id, stops)
        if node is None:
            break
        if node == OVER:
            return count + 1
        key = (id(trie), node, stops)
        if key not in rows:
            if not trie.is_alive(node):
                break  # the draft led to a dead end
            rows[key] = trie.row(node, stops, bitmask.shape[1])
        count += 1
        bitmask[job.first_row + count] = rows[key]
    return count


class Trie(CompiledGrammar):
    def __init__(self, strategy: ChoiceTrie, choices: list[bytes]) -> None:
        self.choices = choices
        self.vocabulary, self.ids, self.longest = strategy.vocabulary, strategy.ids, strategy.longest
        self.branches = strategy.options.forced_branches
        self.children: list[dict[int, int]] = [{}]
        self.final: set[int] = set()
        for choice in choices:
            node = 0
            for byte in choice:
                if byte not in self.children[node]:
                    self.children[node][byte] = len(self.children)
                    self.children.append({})
                node = self.children[node][byte]
            self.final.add(node)
        self.known: dict[int, tuple[int, ...]] = {}

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return TrieMatcher(self, stop_token_ids, [0])

    @property
    def nbytes(self) -> int:
        learnt = sum(len(legal) for legal in tuple(self.known.values()))
        return 300 * len(self.children) + 100 * len(self.choices) + 120 * len(self.known) + 40 * learnt

    def to_bytes(self) -> bytes:
        return json.dumps([choice.hex() for choice in self.choices]).encode()

    def legal(self, node: int) -> tuple[int, ...]:
        """The ids of the tokens whose bytes lead on from `node`."""
        if node not in self.known:
            found, stack = [], [(node, b"")]
            while stack:
                here, text = stack.pop()
                found += self.ids.get(text, ())
                if len(text) < self.longest:
                    stack += [(child, text + bytes((byte,))) for byte, child in self.children[here].items()]
            self.known[node] = tuple(found)
        return self.known[node]

    def is_alive(self, node: int) -> bool:
        return node in self.final or bool(self.legal(node))

    def row(self, node: int, stops: frozenset[int], words: int) -> Any:
        row = np.zeros(words, dtype=np.uint32)
        ids = np.array([*self.legal(node), *(stops if node in self.final else ())], dtype=np.int64)
        np.bitwise_or.at(row, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        return row.view(np.int32)

    def step(self, node: int, token_id: int, stops: frozenset[int]) -> int | None:
        if node == OVER:
            return None
        if token_id in stops:
            return OVER if node in self.final else None
        token = self.vocabulary.tokens[token_id]
        at: int | None = node if token else None
        for byte in token:
            at = self.children[at].get(byte)
            if at is None:
                return None
        return at

    def endings(self, node: int, most: int) -> list[bytes] | None:
        """The texts that may follow `node`, or None if that is more than `most` texts."""
        found, stack = [], [(node, b"")]
        while stack:
            here, text = stack.pop()
            if here in self.final:
                found.append(text)
            if len(found) + len(stack) > most:
                return None
            stack += [(child, text + bytes((byte,))) for byte, child in self.children[here].items()]
        return found


class TrieMatcher(Matcher):
    def __init__(self, trie: Trie, stops: frozenset[int], path: list[int]) -> None:
        self.trie, self.stops, self.path = trie, stops, path

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            node = self.trie.step(self.path[-1], token_id, self.stops)
            if node is None:
                return count
            self.path.append(node)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        node: int | None = self.path[-1]
        for count, token_id in enumerate(token_ids):
            node = self.trie.step(node, token_id, self.stops)
            if node is None:
                return count
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} of {len(self.path) - 1} tokens")
        del self.path[len(self.path) - num_tokens :]

    def fork(self) -> Matcher:
        return TrieMatcher(self.trie, self.stops, list(self.path))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        if not self.trie.is_alive(self.path[-1]):
            raise DeadEnd("no token of the vocabulary leads on to one of the choices")
        bitmask[row] = self.trie.row(self.path[-1], self.stops, bitmask.shape[1])

    def is_terminated(self) -> bool:
        return self.path[-1] == OVER

    def is_accepting(self) -> bool:
        return self.path[-1] in self.trie.final

    def forced_tokens(self) -> Sequence[int]:
        if self.path[-1] == OVER:
            return ()
        endings = self.trie.endings(self.path[-1], self.trie.branches)
        if endings is None:
            return ()
        written = [self.trie.vocabulary.encode(text) for text in endings]
        if any(ids is None for ids in written):
            return ()
        same = 0
        while all(same < len(ids) for ids in written) and len({ids[same] for ids in written}) == 1:
            same += 1
        return tuple(written[0][:same])

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        if self.path[-1] == OVER:
            return None
        level, seen = {self.path[-1]: ()}, set()
        for _ in range(limit):
            for node, tokens in level.items():
                if node in self.trie.final:
                    return (*tokens, min(self.stops))
            seen |= level.keys()
            following: dict[int, tuple[int, ...]] = {}
            for node, tokens in level.items():
                for token_id in self.trie.legal(node):
                    after = self.trie.step(node, token_id, frozenset())
                    if after not in seen:
                        following.setdefault(after, (*tokens, token_id))
            level = following
        return None
