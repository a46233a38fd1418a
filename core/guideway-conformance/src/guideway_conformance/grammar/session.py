"""A matcher as a host uses it, and what can be seen of its state."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from guideway.api import CompiledGrammar, DeadEnd, GrammarStrategy, Matcher, Vocabulary
from guideway.api.bitmask import allocate, num_words, unpack

from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.subjects import expect

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from numpy.typing import NDArray

__all__ = [
    "Seen",
    "Session",
    "allowed",
    "difference",
    "expect_same",
    "legal",
    "new_rows",
    "observe",
    "row_of",
    "walk",
]

Seen: TypeAlias = tuple[bool, bool | None, bytes | None]
"""The state as it shows: terminated or not, accepting or not, and its mask; None where there is none."""


class Session(Matcher):
    """Remembers what its matcher accepted. What the strategy does not declare it can undo or copy is done by replay, so
    every matcher can be tested. A host has such a wrapper too, and the default `fill` gets it."""

    def __init__(
        self,
        strategy: GrammarStrategy,
        compiled: CompiledGrammar,
        vocabulary: Vocabulary,
        name: str,
        stop_token_ids: frozenset[int] | None = None,
    ) -> None:
        self.strategy, self.compiled, self.vocabulary, self.name = strategy, compiled, vocabulary, name
        self.stop_token_ids = vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        self.matcher = compiled.matcher(self.stop_token_ids)
        self.token_ids: list[int] = []
        self._undoable = 0

    @property
    def text(self) -> bytes:
        """The text it accepted."""
        return self.vocabulary.decode(self.token_ids)

    @property
    def place(self) -> str:
        """The place where it is, for messages."""
        return f"after {show(self.vocabulary, self.token_ids)}" if self.token_ids else "at the start"

    def hosted(self) -> Matcher:
        """Return what a host would work with: the bare matcher, if it can roll back and fork without limit."""
        can = self.strategy.max_rollback is None and "fork" in self.strategy.capabilities
        return self.matcher if can else self

    def can_lend(self, num_drafts: int) -> bool:
        """Return whether its matcher can accept so many drafts and roll them back."""
        limit = self.strategy.max_rollback
        return limit is None or num_drafts <= limit

    def lend(self, num_drafts: int) -> Matcher:
        """The bare matcher, which may accept so many drafts and rolls them back: it has that much less to undo."""
        if self.strategy.max_rollback is not None:
            self._undoable = min(self._undoable, self.strategy.max_rollback - num_drafts)
        return self.matcher

    def accept(self, token_ids: Sequence[int]) -> int:
        count = self.matcher.accept(tuple(token_ids))
        expect(0 <= count <= len(token_ids), f"accept of {len(token_ids)} tokens returned {count}")
        self.note(token_ids[:count])
        return count

    def note(self, token_ids: Sequence[int]) -> None:
        """Remember what its matcher accepted."""
        self.token_ids += token_ids
        self._undoable += len(token_ids)

    def take(self, token_ids: Sequence[int]) -> Session:
        """Accept all of them."""
        here = self.place
        count = self.accept(token_ids)
        expect(
            count == len(token_ids),
            f"{self.name}: {here}, accept of {show(self.vocabulary, token_ids)} returned {count}, though all are legal",
        )
        return self

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.matcher.fill_bitmask(bitmask, row)

    def is_terminated(self) -> bool:
        return bool(self.matcher.is_terminated())

    def is_accepting(self) -> bool:
        return bool(self.matcher.is_accepting())

    @property
    def undoable(self) -> int:
        """The number of tokens that its matcher has to be able to roll back."""
        limit = self.strategy.max_rollback
        return len(self.token_ids) if limit is None else min(limit, self._undoable)

    def rollback(self, num_tokens: int) -> None:
        kept = self.token_ids[: len(self.token_ids) - num_tokens]
        if num_tokens <= self.undoable:
            self.matcher.rollback(num_tokens)
            self._undoable = self.undoable - num_tokens
        else:
            self._replay(kept)
        self.token_ids = kept

    def fork(self) -> Session:
        if "fork" not in self.strategy.capabilities:
            return self.twin()
        other = self._new()
        other.matcher = self.matcher.fork()
        other.token_ids, other._undoable = list(self.token_ids), self._undoable
        return other

    def twin(self) -> Session:
        """Another one in the same state, by replay."""
        other = self._new()
        other._replay(list(self.token_ids))
        return other

    def fresh(self) -> Session:
        """Another one at the start."""
        return self._new()

    def _new(self) -> Session:
        return Session(self.strategy, self.compiled, self.vocabulary, self.name, self.stop_token_ids)

    def _replay(self, token_ids: list[int]) -> None:
        self.matcher, self.token_ids, self._undoable = self.compiled.matcher(self.stop_token_ids), [], 0
        self.take(token_ids)


def row_of(matcher: Matcher, vocabulary: Vocabulary) -> NDArray[np.int32]:
    """The row a live matcher fills. Raises `DeadEnd`."""
    bitmask = np.zeros((1, num_words(vocabulary.logits_width)), dtype=np.int32)
    matcher.fill_bitmask(bitmask, 0)
    row: NDArray[np.int32] = bitmask[0]
    return row


def legal(session: Session) -> list[int]:
    """The token ids its mask allows, ascending; none where it has no mask."""
    try:
        row = row_of(session.matcher, session.vocabulary)
    except DeadEnd:
        return []
    return [int(i) for i in np.flatnonzero(unpack(row[None], len(session.vocabulary))[0])]


def observe(session: Session) -> Seen:
    """All that can be seen of a state."""
    if session.is_terminated():
        return True, None, None
    try:
        row = row_of(session.matcher, session.vocabulary).tobytes()
    except DeadEnd:
        row = None
    return False, session.is_accepting(), row


def allowed(seen: Seen, vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens of the mask in what was seen."""
    if seen[2] is None:
        return frozenset()
    row = np.frombuffer(seen[2], dtype=np.int32)[None]
    return frozenset(int(i) for i in np.flatnonzero(unpack(row, len(vocabulary))[0]))


def difference(found: Seen, wanted: Seen, vocabulary: Vocabulary) -> str:
    """In what two states differ, for messages."""
    if found[0] != wanted[0]:
        return f"is_terminated is {found[0]}, not {wanted[0]}"
    if found[1] != wanted[1]:
        return f"is_accepting is {found[1]}, not {wanted[1]}"
    has, needs = allowed(found, vocabulary), allowed(wanted, vocabulary)
    words = []
    if has - needs:
        words.append(f"the mask has {show(vocabulary, sorted(has - needs))} too many")
    if needs - has:
        words.append(f"the mask lacks {show(vocabulary, sorted(needs - has))}")
    if not words and found[2] != wanted[2]:
        is_dead_end = found[2] is None or wanted[2] is None
        words.append("no token is legal in one of them" if is_dead_end else "the masks differ past the vocabulary")
    return " and ".join(words) or "they are the same"


def expect_same(found: Session | Seen, wanted: Session | Seen, vocabulary: Vocabulary, when: str) -> None:
    """Fail unless two states are the same to the last bit."""
    one = observe(found) if isinstance(found, Session) else found
    other = observe(wanted) if isinstance(wanted, Session) else wanted
    expect(one == other, f"{when}: {difference(one, other, vocabulary)}")


def walk(
    session: Session, seed: int | str, steps: int, on_step: Callable[[Session], None] = lambda _: None
) -> list[int]:
    """Accept random legal tokens, up to `steps` or to the end, and return them; `on_step` sees each state before its
    token. Often a token that closes something, so that outputs end."""
    rng, taken = random.Random(str(seed)), []
    for _ in range(steps):
        if session.is_terminated():
            break
        on_step(session)
        choices = legal(session)
        if not choices:
            break
        closing = [
            t for t in choices if t in session.stop_token_ids or session.vocabulary.tokens[t] in (b'"', b"}", b"]")
        ]
        token_id = rng.choice(closing if closing and rng.random() < 0.4 else choices)
        session.take([token_id])
        taken.append(token_id)
    return taken


def new_rows(num_rows: int, vocabulary: Vocabulary, value: int) -> Bitmask:
    """A bitmask of that many rows, each word `value`."""
    bitmask = allocate(num_rows, vocabulary.logits_width)
    bitmask[:] = value
    return bitmask
