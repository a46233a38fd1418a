"""Keeps an output out of places where only names of properties could follow that stand already.

A grammar that a schema is turned into lets a name stand twice, and a `WritingRule` does not. Where a schema says which
names there are, as ``"^[ab]$"`` in ``patternProperties`` does, that may leave nothing to write: after ``{"a":1,"b":2``
a comma leads nowhere, and after ``{"ab":1,"a`` neither does ``b`` where two letters are the most. A grammar knows of no
names that stood before, so one looks ahead here: through the names that begin as those do, until another may follow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from guideway.api.types import Constraint, JsonSchema
from guideway.json_schema.assertions import assertions
from guideway.json_schema.cursor import DUE, KEY, KEY_START, JsonCursor

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema.walking import Schema

__all__ = ["MaskAfter", "NamesAhead", "hides_names", "names_may_run_out"]

MaskAfter = Callable[[Sequence[int]], "Bitmask | None"]
"""Gives the row of a bitmask that the grammar alone has after some more tokens; None if it does not take them. Where
the output stands does not change."""

After = Callable[[JsonCursor, int], "JsonCursor | None"]
"""Gives the state after a token; None if it may not follow."""

MOST_MASKS = 256
"""Masks that are computed for one place, at most; if they do not tell, it counts as leading on. The bound is that of
each place by itself, so that a row and `NamesAhead.leads_on` agree."""

ENTERING = re.compile(rb'(?:\A|,)[ \t\n\r]*(?:"(?:[^"\\]|\\.)*\\?)?\Z', re.DOTALL)
"""A token after which an output may stand inside a name, or before one."""

_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties")

RUNNING_OUT: Final = frozenset(
    {"patternProperties", "patternProperties:several", "propertyNames", "propertyNames:untyped"}
)


def hides_names(node: Schema) -> bool:
    """True if a property of this schema whose name is beyond ASCII, or has characters that JSON escapes, stands beside
    names that it does not list: xgrammar takes that name for one of those, too."""
    if not isinstance(node, Mapping) or all(node.get(keyword, False) is False for keyword in _OPENING):
        return False
    return not all(map(_PLAIN.fullmatch, node.get("properties", ())))


def names_may_run_out(constraint: Constraint) -> bool:
    """Return whether an object of a checked schema may have as many names as there are, or such that no longer one
    begins with: where ``propertyNames`` limits them, or ``patternProperties`` says how they end. (xgrammar takes a
    pattern for all of a name, and that it need not begin or end one is why no pattern is left out here.)"""
    return isinstance(constraint, JsonSchema) and not RUNNING_OUT.isdisjoint(constraint.cached(assertions).keywords)


class NamesAhead:
    """Looks ahead for one rule, by which `after` gives the state after a token; what was found out of the tokens is
    kept."""

    def __init__(self, after: After, tokens: Sequence[bytes]) -> None:
        self._after = after
        self._entering = np.array([i for i, token in enumerate(tokens) if ENTERING.search(token)], dtype=np.int64)
        self._by_text: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(tokens):
            if token:
                self._by_text.setdefault(token, []).append(token_id)

    def keep(self, state: JsonCursor, words: Bitmask, mask_after: MaskAfter) -> None:
        """Take from a row of tokens that may follow those after which no name can."""
        if not any(state.open):
            return
        search = _Search(self._after, mask_after)
        for token_id in self._candidates(state, words):
            if not search.leads_on(state, token_id):
                words.view(np.uint32)[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))

    def leads_on(self, state: JsonCursor, token_id: int, mask_after: MaskAfter) -> bool:
        """Return whether a name can follow a token, if one has to."""
        return _Search(self._after, mask_after).leads_on(state, token_id)

    def _candidates(self, state: JsonCursor, words: Bitmask) -> list[int]:
        """The tokens of a row after which the output may stand in a name that begins as another one does."""
        found = self._entering.tolist()
        if state.place is KEY:
            for name in state.open[-1] or ():
                if name.startswith(state.name):
                    rest = name[len(state.name) :]
                    found += (i for end in range(1, len(rest) + 1) for i in self._by_text.get(rest[:end], ()))
        view = words.view(np.uint32)
        ids = np.unique(np.array(found, dtype=np.int64))
        ids = ids[ids < 32 * view.size]
        kept: list[int] = ids[(view[ids >> 5] >> (ids & 31).astype(np.uint32)) & 1 == 1].tolist()
        return kept


class _Search:
    """Looks ahead for the tokens of one row, each place once."""

    def __init__(self, after: After, mask_after: MaskAfter) -> None:
        self._after = after
        self._mask_after = mask_after
        self._left = 0
        self._verdicts: dict[Any, bool] = {}

    def leads_on(self, state: JsonCursor, token_id: int) -> bool:
        after = self._after(state, token_id)
        if after is None or not _repeats(after):
            return True
        where = (after.place, after.name, after.open)
        if where not in self._verdicts:
            self._left = MOST_MASKS
            self._verdicts[where] = self._has_name(after, (token_id,))
        return self._verdicts[where]

    def _has_name(self, state: JsonCursor, token_ids: tuple[int, ...]) -> bool:
        """Return whether a name that does not stand yet may follow in `state`, which is that after `token_ids`."""
        if not self._left:
            return True
        self._left -= 1
        row = self._mask_after(token_ids)
        if row is None:
            return True  # not one of the grammar's
        further: dict[bytes, tuple[JsonCursor, int]] = {}
        for token_id in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
            after = self._after(state, token_id)
            if after is None or ((after.place, after.name) == (state.place, state.name) and state.blanks != DUE):
                continue  # white space, or a token without bytes
            if not _repeats(after):
                return True
            further.setdefault(after.name, (after, token_id))
        return any(self._has_name(after, (*token_ids, token_id)) for after, token_id in further.values())


def _repeats(state: JsonCursor) -> bool:
    """Return whether a text stands before a name, or in one, of which all that is written begins one that stands."""
    if state.place is not KEY and state.place is not KEY_START:
        return False
    written = state.name if state.place is KEY else b""
    return any(name.startswith(written) for name in state.open[-1] or ())
