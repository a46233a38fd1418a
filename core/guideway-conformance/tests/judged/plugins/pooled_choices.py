"""Exact choices: a trie of bytes over the strings, whose nodes learn which tokens lead where."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    GrammarStrategy,
    Matcher,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    hookimpl,
    parse_options,
)
from guideway.api.bitmask import Bitmask, allow_only
from guideway.api.options import Range

OVER = -1
POOL = 32
MANY = 32


@dataclass(frozen=True)
class Options:
    max_choices: Annotated[int, Range(1)] = 5000


class Words:
    """The textual tokens of a vocabulary as a trie: children by byte, and the ids that end here."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.root: tuple[dict, list] = ({}, [])
        self.texts = list(vocabulary.tokens)
        for token_id in {*vocabulary.special_tokens, *vocabulary.stop_token_ids}:
            self.texts[token_id] = b""
        for token_id, text in enumerate(self.texts):
            node = self.root
            for byte in text:
                node = node[0].setdefault(byte, ({}, []))
            if text:
                node[1].append(token_id)


class Choices(GrammarStrategy):
    contract = "1.0"
    name = "choices"
    kinds = frozenset({"choice"})
    capabilities = frozenset({"fork", "forced_tokens", "shortest_completion", "serialize"})
    max_rollback = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.choices")
        self.words = Words(vocabulary)

    def supports(self, constraint: Constraint) -> Support:
        number = len(json.loads(constraint.source()))
        if number > self.options.max_choices:
            return Support(reason=f"{number} choices are more than {self.options.max_choices}")
        return Support(enforced=frozenset({"choice"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        choices = json.loads(constraint.source())
        if len(choices) > self.options.max_choices:
            raise UnsupportedGrammar(f"more than {self.options.max_choices} choices", feature="choice")
        return CompiledChoices(choices, self.vocabulary, self.words)

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        return self.compile(Choice(json.loads(data.decode())))


class CompiledChoices(CompiledGrammar):
    def __init__(self, choices: list[str], vocabulary: Vocabulary, words: Words) -> None:
        self.choices, self.vocabulary, self.words = choices, vocabulary, words
        self.children: list[dict[int, int]] = [{}]
        self.finals: set[int] = set()
        for choice in choices:
            node = 0
            for byte in choice.encode():
                if byte not in self.children[node]:
                    self.children[node][byte] = len(self.children)
                    self.children.append({})
                node = self.children[node][byte]
            self.finals.add(node)
        self.learnt: dict[int, dict[int, int]] = {}
        self.pool: list[ChoiceMatcher] = []
        self.lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        with self.lock:
            matcher = self.pool.pop() if self.pool else ChoiceMatcher()
        return matcher.begin(self, stop_token_ids, [0])

    def recycle(self, matcher: Matcher) -> None:
        matcher.begin(None, frozenset(), [0])
        with self.lock:
            if len(self.pool) < POOL:
                self.pool.append(matcher)

    @property
    def nbytes(self) -> int:
        with self.lock:
            return 250 * len(self.children) + sum(300 + 110 * len(moves) for moves in self.learnt.values())

    def to_bytes(self) -> bytes:
        return json.dumps(self.choices, ensure_ascii=False).encode()

    def moves(self, node: int) -> dict[int, int]:
        """The nodes to which the tokens lead that may come at `node`."""
        with self.lock:
            found = self.learnt.get(node)
        if found is None:
            found, stack = {}, [(self.words.root, node)]
            while stack:
                (below, token_ids), place = stack.pop()
                found.update(dict.fromkeys(token_ids, place))
                children = self.children[place]
                stack += [(below[byte], children[byte]) for byte in children if byte in below]
            with self.lock:
                self.learnt[node] = found
        return found

    def rests(self, node: int) -> list[bytes] | None:
        """All that can follow `node`, or None if that is much."""
        found, stack = [], [(node, b"")]
        while stack:
            place, text = stack.pop()
            if place in self.finals:
                found.append(text)
            if len(found) + len(stack) > MANY:
                return None
            stack += [(child, text + bytes((byte,))) for byte, child in self.children[place].items()]
        return found


class ChoiceMatcher(Matcher):
    def begin(self, compiled: CompiledChoices | None, stop_token_ids: frozenset[int], path: list[int]) -> ChoiceMatcher:
        self.compiled, self.stop_token_ids, self.path = compiled, stop_token_ids, path
        return self

    def after(self, node: int, token_id: int) -> int | None:
        if node == OVER:
            return None
        if token_id in self.stop_token_ids:
            return OVER if node in self.compiled.finals else None
        return self.compiled.moves(node).get(token_id)

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            node = self.after(self.path[-1], token_id)
            if node is None:
                return count
            self.path.append(node)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        node = self.path[-1]
        for count, token_id in enumerate(token_ids):
            node = self.after(node, token_id)
            if node is None:
                return count
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.path):
            raise ValueError(f"cannot roll back {num_tokens} tokens")
        del self.path[len(self.path) - num_tokens :]

    def fork(self) -> Matcher:
        return ChoiceMatcher().begin(self.compiled, self.stop_token_ids, list(self.path))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        legal = set(self.compiled.moves(self.path[-1]))
        if self.is_accepting():
            legal |= self.stop_token_ids
        if not legal:
            raise DeadEnd("no token of the vocabulary goes on with any of the choices")
        allow_only(bitmask, row, legal)

    def is_terminated(self) -> bool:
        return self.path[-1] == OVER

    def is_accepting(self) -> bool:
        return self.path[-1] in self.compiled.finals

    def forced_tokens(self) -> Sequence[int]:
        if self.is_terminated():
            return ()
        rests = self.compiled.rests(self.path[-1])
        if rests is None or b"" in rests:
            return ()
        encoded = [self.compiled.vocabulary.encode(rest) for rest in rests]
        if None in encoded:
            return ()
        forced = []
        for column in zip(*encoded, strict=False):
            if len(set(column)) > 1:
                break
            forced.append(column[0])
        return tuple(forced[: self.validate(tuple(forced))])

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        if limit < 1 or self.is_terminated():
            return None
        stop = min(self.stop_token_ids)
        ways: dict[int, tuple[int, ...]] = {self.path[-1]: ()}
        edge = [self.path[-1]]
        for _ in range(limit):
            for node in edge:
                if node in self.compiled.finals:
                    return (*ways[node], stop)
            reached = []
            for node in edge:
                for token_id, target in self.compiled.moves(node).items():
                    if target not in ways:
                        ways[target] = (*ways[node], token_id)
                        reached.append(target)
            edge = reached
        return None


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Choices
