"""Keep outputs from positions where only names that the object already has could follow.

A grammar compiled from a schema allows duplicate names, and a `WritingRule` does not. If a schema limits the names,
like ``"^[ab]$"`` in ``patternProperties``, this may be a dead end: after ``{"a":1,"b":2`` no name can follow a comma,
and after ``{"ab":1,"a`` nothing can follow ``b`` if names have at most two letters. Neither can anything
follow the beginning of an escape, if the grammar allows only one that the rule spells otherwise. A grammar does not
remember earlier names, so this module searches ahead through names with the same beginnings, until it finds a new name.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np

from guideway.api.bitmask import is_allowed, pack
from guideway.api.types import Constraint, JsonSchema
from guideway.json_schema.assertions import assertions
from guideway.json_schema.cursor import BEGINNING, KEY, KEY_START, NO_NAMES, JsonCursor, Names

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema.walking import Schema

__all__ = [
    "MaskAfter",
    "MasksAhead",
    "NamesAhead",
    "Search",
    "clear",
    "hides_names",
    "ids",
    "names_may_run_out",
    "row_of",
]

MaskAfter = Callable[[Sequence[int]], "Bitmask | None"]
"""Returns the bitmask row of the grammar alone after some more tokens, which the next call may overwrite; None if it
does not accept them. The output's state does not change."""

After = Callable[[JsonCursor, int], "JsonCursor | None"]
"""Returns the state after a token; None if the token is not allowed."""

S = TypeVar("S")

MOST_MASKS = 256
"""Maximum masks to compute for one position, which then counts as leading on. The bound applies to each position
separately, so that a row and `NamesAhead.leads_on` agree."""

ENTERING = re.compile(rb'(?:\A|,)[ \t\n\r]*(?:"(?:[^"\\]|\\.)*\\?)?\Z', re.DOTALL)
"""A token after which an output may be inside or before a name."""

ESCAPING = re.compile(rb"(?<!\\)(?:\\\\)*\\(?:u[0-9a-fA-F]{0,3})?\Z")
"""A token after which an output may be inside an escape."""
CONTINUING = re.compile(rb"(?=.)u?[0-9a-fA-F]{0,3}")
"""A token that continues an escape and does not end it."""

_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties")

RUNNING_OUT: Final = frozenset(
    {"patternProperties", "patternProperties:several", "propertyNames", "propertyNames:untyped"}
)


def hides_names(node: Schema) -> bool:
    """Return whether a schema lists a property whose name is not ASCII, or has characters that JSON escapes, and also
    allows unlisted names: xgrammar then treats this name as an unlisted one too."""
    if not isinstance(node, Mapping) or all(node.get(keyword, False) is False for keyword in _OPENING):
        return False
    return not all(map(_PLAIN.fullmatch, node.get("properties", ())))


def names_may_run_out(constraint: Constraint) -> bool:
    """Return whether an object of a checked schema may use up all allowed names, or all with some beginning: if
    ``propertyNames`` or ``patternProperties`` limits them. (xgrammar matches a pattern with the whole name, so
    unanchored patterns count too.)"""
    return isinstance(constraint, JsonSchema) and not RUNNING_OUT.isdisjoint(constraint.cached(assertions).keywords)


class NamesAhead:
    """The search ahead for one rule. ``after(state, token_id)`` returns the state after a token by this rule."""

    def __init__(self, after: After, tokens: Sequence[bytes]) -> None:
        self._after = after
        self._entering = row_of(tokens, ENTERING.search)
        self._escaping = row_of(tokens, ESCAPING.search)
        self._continuing = row_of(tokens, CONTINUING.fullmatch)
        self._by_text: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(tokens):
            if token:
                self._by_text.setdefault(token, []).append(token_id)

    def keep(self, state: JsonCursor, words: Bitmask, mask_after: MaskAfter) -> None:
        """Clear the bits of a row for tokens after which no name can follow."""
        if not any(state.open):
            return
        search = self._search(mask_after)
        clear(words, [i for i in self._candidates(state, words) if not search.leads_on(state, i)])

    def leads_on(self, state: JsonCursor, token_id: int, mask_after: MaskAfter) -> bool:
        """Return whether a name can follow a token, if one must."""
        return self._search(mask_after).leads_on(state, token_id)

    def _search(self, mask_after: MaskAfter) -> Search[JsonCursor]:
        return Search(self._after, mask_after, _Repeats(), _position)

    @staticmethod
    def num_proved(states: Sequence[JsonCursor]) -> int:
        """Count the states of a text, one after each token, that `leads_on` holds for as the text itself shows: those
        up to the last in which no name has to follow, or a new one has begun."""
        repeats = _Repeats()
        return next((i + 1 for i in reversed(range(len(states))) if not repeats(states[i])), 0)

    def _candidates(self, state: JsonCursor, words: Bitmask) -> list[int]:
        """Return the tokens of a row after which the output may be in the beginning of an existing name, or in an
        escape of a name."""
        found = set(ids(words[: len(self._entering)] & self._entering))
        if state.place is KEY:
            row = self._continuing if state.escape else self._escaping
            found.update(ids(words[: len(row)] & row))
            for name in state.open[-1] or ():
                if name.startswith(state.text):
                    rest = name[len(state.text) :]
                    more = (i for end in range(1, len(rest) + 1) for i in self._by_text.get(rest[:end], ()))
                    found.update(i for i in more if is_allowed(words[np.newaxis], 0, i))
        return sorted(found)


class MasksAhead(ABC):
    """The masks of a grammar alone after the tokens `before` and more tokens, for a search. One copy of the library's
    matcher reads all texts of a search, which mostly begin like the one before: a copy for each takes longer than their
    tokens."""

    def __init__(self, before: Sequence[int] = ()) -> None:
        self._before = tuple(before)
        self._read: list[int] | None = None
        """What the copy has read; None before there is one."""

    @abstractmethod
    def begin(self) -> None:
        """Copy the matcher."""

    @abstractmethod
    def back(self, num_tokens: int) -> bool:
        """Take the last tokens from the copy. Return False if that cannot be done."""

    @abstractmethod
    def read(self, token_id: int) -> Bitmask | None:
        """Return the mask after one more token, which the next call may overwrite; None if it is not accepted."""

    def __call__(self, token_ids: Sequence[int]) -> Bitmask | None:
        """Return the mask after some tokens, at least one, as `MaskAfter` says."""
        text = (*self._before, *token_ids)
        pairs = zip(self._read or (), text[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if self._read is None or not self.back(len(self._read) - shared):
            self.begin()
            self._read, shared = [], 0
        del self._read[shared:]
        row: Bitmask | None = None
        for token_id in text[shared:]:
            if (row := self.read(token_id)) is None:
                break
            self._read.append(token_id)
        return row


class Search(Generic[S]):
    """A search in the masks of a grammar for a text that ends where `repeats` does not hold, shorter texts first.
    Visits each position once; states with equal `position` are one. ``after(state, token_id)`` returns the state after
    a token; None if the token is not allowed."""

    def __init__(
        self,
        after: Callable[[S, int], S | None],
        mask_after: MaskAfter,
        repeats: Callable[[S], bool],
        position: Callable[[S], Hashable],
    ) -> None:
        self._after, self._mask_after, self._repeats, self._position = after, mask_after, repeats, position
        self._verdicts: dict[Hashable, bool] = {}

    def leads_on(self, state: S, token_id: int) -> bool:
        """Return whether there is such a text after a token."""
        after = self._after(state, token_id)
        if after is None or not self._repeats(after):
            return True
        where = self._position(after)
        if where not in self._verdicts:
            self._verdicts[where] = self._finds(after, (token_id,))
        return self._verdicts[where]

    def _finds(self, state: S, token_ids: tuple[int, ...]) -> bool:
        pending, seen = deque([(state, token_ids)]), {self._position(state)}
        for _ in range(MOST_MASKS):
            if not pending:
                return False
            state, token_ids = pending.popleft()
            row = self._mask_after(token_ids)
            if row is None:
                return True  # the grammar does not accept this token
            for token_id in ids(row):
                after = self._after(state, token_id)
                if after is None:
                    continue
                if not self._repeats(after):
                    return True
                if (where := self._position(after)) not in seen:
                    seen.add(where)
                    pending.append((after, (*token_ids, token_id)))
        return True


def clear(row: Bitmask, token_ids: Iterable[int]) -> None:
    """Clear the bits of tokens in a row of a bitmask."""
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))


def row_of(tokens: Sequence[bytes], belongs: Callable[[bytes], object]) -> Bitmask:
    """Return the tokens that belong to a class as a row of a bitmask."""
    row: Bitmask = pack(np.array([[bool(belongs(token)) for token in tokens]], dtype=np.bool_))[0]
    return row


def ids(row: Bitmask) -> Iterator[int]:
    """Yield the tokens of a row of a bitmask in order. Most searches end at one of the first."""
    words = row.view(np.uint32)
    for index in np.flatnonzero(words).tolist():
        word = int(words[index])
        while word:
            yield 32 * index + (word & -word).bit_length() - 1
            word &= word - 1


class _Repeats:
    """Whether a text ends before a name or in one, and the object has a name with the same beginning, or it ends in an
    escape of a name. Most texts of a search are in the same object, whose names are sorted once."""

    def __init__(self) -> None:
        self._sorted: dict[Names, list[bytes]] = {}

    def __call__(self, state: JsonCursor) -> bool:
        if state.place is not KEY and state.place is not KEY_START:
            return False
        if state.escape[:1] == b"\\":
            return True
        names = state.open[-1] or NO_NAMES
        if (known := self._sorted.get(names)) is None:
            known = self._sorted[names] = sorted(names)
        at = bisect_left(known, state.text)
        return at < len(known) and known[at].startswith(state.text)


def _position(state: JsonCursor) -> Hashable:
    """Return what decides about the next name."""
    return state.place, state.text, state.escape, state.open, min(state.blanks, BEGINNING)
