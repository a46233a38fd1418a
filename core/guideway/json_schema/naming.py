"""Keep outputs from positions where only names that the object already has could follow.

A grammar compiled from a schema allows duplicate names, and a `WritingRule` does not. If a schema limits the names,
like ``"^[ab]$"`` in ``patternProperties``, this may be a dead end: after ``{"a":1,"b":2`` no name can follow a comma,
and after ``{"ab":1,"a`` nothing can follow ``b`` if names have at most two letters. A grammar does not remember earlier
names, so this module searches ahead through names with the same beginnings, until it finds a new name.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from guideway.api.bitmask import is_allowed, pack
from guideway.api.types import Constraint, JsonSchema
from guideway.json_schema.assertions import assertions
from guideway.json_schema.cursor import BEGINNING, KEY, KEY_START, JsonCursor

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema.walking import Schema

__all__ = ["MaskAfter", "NamesAhead", "hides_names", "ids", "names_may_run_out", "row_of"]

MaskAfter = Callable[[Sequence[int]], "Bitmask | None"]
"""Returns the bitmask row of the grammar alone after some more tokens; None if it does not accept them. The output's
state does not change."""

After = Callable[[JsonCursor, int], "JsonCursor | None"]
"""Returns the state after a token; None if the token is not allowed."""

MOST_MASKS = 256
"""Maximum masks to compute for one position, which then counts as leading on. The bound applies to each position
separately, so that a row and `NamesAhead.leads_on` agree."""

ENTERING = re.compile(rb'(?:\A|,)[ \t\n\r]*(?:"(?:[^"\\]|\\.)*\\?)?\Z', re.DOTALL)
"""A token after which an output may be inside or before a name."""

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
        self._by_text: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(tokens):
            if token:
                self._by_text.setdefault(token, []).append(token_id)

    def keep(self, state: JsonCursor, words: Bitmask, mask_after: MaskAfter) -> None:
        """Clear the bits of a row for tokens after which no name can follow."""
        if not any(state.open):
            return
        search = _Search(self._after, mask_after)
        for token_id in self._candidates(state, words):
            if not search.leads_on(state, token_id):
                words.view(np.uint32)[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))

    def leads_on(self, state: JsonCursor, token_id: int, mask_after: MaskAfter) -> bool:
        """Return whether a name can follow a token, if one must."""
        return _Search(self._after, mask_after).leads_on(state, token_id)

    @staticmethod
    def num_proved(states: Sequence[JsonCursor]) -> int:
        """Count the states of a text, one after each token, that `leads_on` holds for as the text itself shows: those
        up to the last in which no name has to follow, or a new one has begun."""
        return next((i + 1 for i in reversed(range(len(states))) if not _repeats(states[i])), 0)

    def _candidates(self, state: JsonCursor, words: Bitmask) -> list[int]:
        """Return the tokens of a row after which the output may be in the beginning of an existing name."""
        found = set(ids(words[: len(self._entering)] & self._entering))
        if state.place is KEY:
            for name in state.open[-1] or ():
                if name.startswith(state.text):
                    rest = name[len(state.text) :]
                    more = (i for end in range(1, len(rest) + 1) for i in self._by_text.get(rest[:end], ()))
                    found.update(i for i in more if is_allowed(words[np.newaxis], 0, i))
        return sorted(found)


class _Search:
    """A search for the tokens of one row, which visits each position once."""

    def __init__(self, after: After, mask_after: MaskAfter) -> None:
        self._after = after
        self._mask_after = mask_after
        self._verdicts: dict[Any, bool] = {}

    def leads_on(self, state: JsonCursor, token_id: int) -> bool:
        after = self._after(state, token_id)
        if after is None or not _repeats(after):
            return True
        where = (after.place, after.text, after.open)
        if where not in self._verdicts:
            self._verdicts[where] = self._has_name(after, (token_id,))
        return self._verdicts[where]

    def _has_name(self, state: JsonCursor, token_ids: tuple[int, ...]) -> bool:
        """Return whether a new name may follow in `state`, the state after `token_ids`. Shorter beginnings are tried
        first: names that the object has may be long."""
        pending = deque([(state, token_ids)])
        for _ in range(MOST_MASKS):
            if not pending:
                return False
            state, token_ids = pending.popleft()
            row = self._mask_after(token_ids)
            if row is None:
                return True  # the grammar does not accept this token
            further: dict[bytes, tuple[JsonCursor, tuple[int, ...]]] = {}
            for token_id in ids(row):
                after = self._after(state, token_id)
                if after is None or (
                    (after.place, after.text) == (state.place, state.text) and state.blanks >= BEGINNING
                ):
                    continue  # white space, or a token without bytes
                if not _repeats(after):
                    return True
                further.setdefault(after.text, (after, (*token_ids, token_id)))
            pending += further.values()
        return True


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


def _repeats(state: JsonCursor) -> bool:
    """Return whether the text ends before a name or in one, and the object has a name with the same beginning."""
    if state.place is not KEY and state.place is not KEY_START:
        return False
    written = state.text if state.place is KEY else b""
    return any(name.startswith(written) for name in state.open[-1] or ())
