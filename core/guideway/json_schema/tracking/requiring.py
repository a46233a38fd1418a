"""Masks that demand what an object requires where its names may come in any order.

A grammar compiled without ``required`` lets an object end at any time. This module forbids the ``}`` before all
required names are written, in at least one of the alternatives that the text satisfies. Where the grammar may still
follow an alternative that this excludes, such as another branch of ``anyOf``, it forbids what only that one allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from guideway.json_schema.naming import clear, ids, row_of
from guideway.json_schema.tracking.members import Members, MembersReader

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.api.grammar import Matcher
    from guideway.api.vocabulary import Vocabulary
    from guideway.json_schema.tracking.alternatives import Alternatives

__all__ = ["RequiredTracker"]

Ahead: TypeAlias = "Callable[[], Matcher]"

_SPECIAL = re.compile(rb'["\\]')
_NESTS = re.compile(rb"[\[\]{}]")
_NESTS_AFTER_STRING = re.compile(rb'".*[\[\]{}]', re.DOTALL)


class _Rows:
    """Classes of the vocabulary's tokens, as rows of bitmasks."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.special = row_of(tokens, _SPECIAL.search)
        """Tokens that may end a string, or have an escape."""
        self.nesting = row_of(tokens, _NESTS.search)
        """Tokens that may begin or end an array or object, in which other alternatives are alive."""
        self.nesting_after_string = row_of(tokens, _NESTS_AFTER_STRING.search)


@lru_cache(maxsize=4)
def _rows(tokens: tuple[bytes, ...]) -> _Rows:
    return _Rows(tokens)


class RequiredTracker:
    """Demands the required properties in the outputs of one grammar."""

    def __init__(self, schema: Alternatives, vocabulary: Vocabulary) -> None:
        self._reader = MembersReader(schema)
        self.start = self._reader.start()
        """The state before the first token."""
        self._schema = schema
        self._tokens = vocabulary.tokens
        self._rows = _rows(tuple(vocabulary.tokens))

    def step(self, state: Members, token_id: int, ahead: Ahead) -> Members | None:
        """Return the state after a token; None if it is not allowed, or nothing that is allowed could follow."""
        after = self._reader.read(state, self._tokens[token_id])
        return after if after is not None and after.leads_on(self._schema) else None

    def keep(self, state: Members, words: Bitmask, ahead: Ahead) -> None:
        """Clear the bits of a row for tokens that are not allowed."""
        clear(words, [i for i in self._candidates(state, words) if self.step(state, i, ahead) is None])

    def _candidates(self, state: Members, words: Bitmask) -> Iterable[int]:
        """Return tokens of a row that may not be allowed."""
        if not state.open[-1].differs:  # the grammar knows the values and names that are allowed here
            row = self._rows.nesting_after_string if state.in_string else self._rows.nesting
        elif state.escape or not state.takes_any_string(self._schema):
            return ids(words)
        else:
            row = self._rows.special
        return ids(words[: len(row)] & row)
