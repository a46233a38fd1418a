"""Balanced markup. A constraint lists the elements, the outermost first, and how deep they nest.

``p b i`` and then ``depth 3``: ``<p>text <b>bold <i>and more</i></b></p>``.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

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
from guideway.api.bitmask import Bitmask, allow_only
from guideway.api.options import Range

BACK = 100
LEARNT = 2000
TEXT = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,")
OVER = ((), b"over")
# A state: the open elements from the outermost, and what is written of a tag.
State = tuple[tuple[bytes, ...], bytes]


@dataclass(frozen=True)
class Options:
    max_depth: Annotated[int, Range(1, 20)] = 8


class Markup(GrammarStrategy):
    contract = "1.0"
    name = "markup"
    kinds = frozenset({"grammar:markup"})
    capabilities = frozenset({"fork", "forced_tokens", "shortest_completion"})
    max_rollback = BACK
    examples = (
        GrammarExample(
            Grammar("p b i\ndepth 3", "markup"),
            (b"<p></p>", b"<p>a <b>bold <i>x</i></b>.</p>", b"<p><p><p></p></p></p>"),
            (b"", b"<p>", b"<b></b>", b"<p><b></p></b>", b"<p></p><p></p>", b"<p><b><i><b></b></i></b></p>"),
        ),
        GrammarExample(
            Grammar("note bold\ndepth 2", "markup"),
            (b"<note><bold>x</bold></note>", b"<note>x</note>"),
            (b"<note></bold>", b"<note><bo></bo></note>", b"note", b"<note>\n</note>"),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.options = parse_options(Options, options, where="grammar.markup")

    @cached_property
    def words(self) -> tuple[dict, list]:
        """The tokens with text: by their next byte, and those that end."""
        root: tuple[dict, list] = ({}, [])
        special = {*self.vocabulary.special_tokens, *self.vocabulary.stop_token_ids}
        for token_id, text in enumerate(self.vocabulary.tokens):
            if token_id not in special and text:
                node = root
                for byte in text:
                    node = node[0].setdefault(byte, ({}, []))
                node[1].append(token_id)
        return root

    def supports(self, constraint: Constraint) -> Support:
        try:
            self.read(constraint)
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        return Support(enforced=frozenset({constraint.kind}))

    def read(self, constraint: Constraint) -> tuple[tuple[bytes, ...], int]:
        match = re.fullmatch(r"([A-Za-z]+(?: [A-Za-z]+)*)\ndepth ([1-9][0-9]?)", constraint.source())
        if not match:
            raise InvalidGrammar("markup is the names of elements and a line such as depth 3")
        names = match[1].encode().split(b" ")
        if len(set(names)) < len(names):
            raise InvalidGrammar("an element is named twice")
        if int(match[2]) > self.options.max_depth:
            raise UnsupportedGrammar(f"deeper than {self.options.max_depth}", feature="depth")
        return tuple(names), int(match[2])

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"{self.name} cannot compile {constraint.kind}", feature=constraint.kind)
        return CompiledMarkup(*self.read(constraint), self.vocabulary, self.words)


class CompiledMarkup(CompiledGrammar):
    def __init__(self, names: tuple[bytes, ...], depth: int, vocabulary: Vocabulary, words: tuple[dict, list]) -> None:
        self.names, self.depth, self.vocabulary, self.words = names, depth, vocabulary, words
        self.learnt: dict[State, dict[State, tuple[int, ...]]] = {}
        self.lock = threading.Lock()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return MarkupMatcher(self, stop_token_ids, deque([((), b"")], BACK + 1))

    @property
    def nbytes(self) -> int:
        with self.lock:
            return 2000 + sum(
                500 + sum(300 + 36 * len(ids) for ids in moves.values()) for moves in self.learnt.values()
            )

    def tags(self, stack: tuple[bytes, ...]) -> list[bytes]:
        """The tags that may come inside `stack`."""
        if not stack:
            return [b"<" + self.names[0] + b">"]
        closing = [b"</" + stack[-1] + b">"]
        return closing + [b"<" + name + b">" for name in self.names] if len(stack) < self.depth else closing

    def step(self, state: State, byte: int) -> State | None:
        stack, written = state
        if written == b"end":
            return None
        if not written and byte in TEXT and stack:
            return state
        written += bytes((byte,))
        tags = [tag for tag in self.tags(stack) if tag.startswith(written)]
        if not tags:
            return None
        if written not in tags:
            return stack, written
        if not written.startswith(b"</"):
            return (*stack, written[1:-1]), b""
        return stack[:-1], b"end" if len(stack) == 1 else b""

    def moves(self, state: State) -> dict[State, tuple[int, ...]]:
        """By the state that it leads to: the tokens that may come."""
        with self.lock:
            found = self.learnt.get(state)
        if found is None:
            lists: dict[State, list[int]] = {}
            walk = [(self.words, state)]
            while walk:
                (below, token_ids), place = walk.pop()
                if token_ids:
                    lists.setdefault(place, []).extend(token_ids)
                for byte, child in below.items():
                    after = self.step(place, byte)
                    if after is not None:
                        walk.append((child, after))
            found = {place: tuple(token_ids) for place, token_ids in lists.items()}
            with self.lock:
                if len(self.learnt) >= LEARNT:
                    self.learnt.clear()
                self.learnt[state] = found
        return found

    def only_rest(self, state: State) -> bytes:
        """The rest of the output, if there is but one."""
        rest = b""
        while state[1] != b"end":
            stack, written = state
            tags = [tag for tag in self.tags(stack) if tag.startswith(written)]
            if len(tags) > 1 or (stack and not written):
                return b""
            for byte in tags[0][len(written) :]:
                rest += bytes((byte,))
                state = self.step(state, byte)
        return rest


class MarkupMatcher(Matcher):
    def __init__(self, compiled: CompiledMarkup, stop_token_ids: frozenset[int], states: deque[State]) -> None:
        self.compiled, self.stop_token_ids, self.states = compiled, stop_token_ids, states

    def after(self, state: State, token_id: int) -> State | None:
        if state == OVER:
            return None
        if token_id in self.stop_token_ids:
            return OVER if state[1] == b"end" else None
        vocabulary = self.compiled.vocabulary
        if token_id in vocabulary.special_tokens or not vocabulary.tokens[token_id]:
            return None
        for byte in vocabulary.tokens[token_id]:
            state = self.compiled.step(state, byte)
            if state is None:
                return None
        return state

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
        for _ in range(num_tokens):
            self.states.pop()

    def fork(self) -> Matcher:
        return MarkupMatcher(self.compiled, self.stop_token_ids, self.states.copy())

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        legal = [i for token_ids in self.compiled.moves(self.states[-1]).values() for i in token_ids]
        if self.is_accepting():
            legal += self.stop_token_ids
        if not legal:
            raise DeadEnd("no token of the vocabulary goes on with the markup")
        allow_only(bitmask, row, legal)

    def is_terminated(self) -> bool:
        return self.states[-1] == OVER

    def is_accepting(self) -> bool:
        return self.states[-1][1] == b"end"

    def forced_tokens(self) -> Sequence[int]:
        if self.is_terminated():
            return ()
        rest = self.compiled.only_rest(self.states[-1])
        tokens = tuple(self.compiled.vocabulary.encode(rest) or ()) if rest else ()
        return tokens[: self.validate(tokens)]

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        if self.is_terminated():
            return None
        ways: dict[State, tuple[int, ...]] = {self.states[-1]: ()}
        edge = [self.states[-1]]
        for _ in range(limit):
            for state in edge:
                if state[1] == b"end":
                    return (*ways[state], min(self.stop_token_ids))
            reached = []
            for state in edge:
                for target, token_ids in self.compiled.moves(state).items():
                    if target not in ways:
                        ways[target] = (*ways[state], token_ids[0])
                        reached.append(target)
            edge = reached
        return None


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Markup
