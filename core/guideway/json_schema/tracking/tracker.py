"""Masks that keep the items of arrays unique.

A grammar compiled without ``uniqueItems`` does not remember earlier items. This module forbids the byte that would
finish an equal item; for a number that is the delimiter. It also forbids what would lead to a position from where only
equal items can follow, such as a comma after all values of an ``enum``: it searches ahead in the masks of the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from guideway.api.bitmask import is_allowed, num_words
from guideway.errors import DeadEnd
from guideway.json_schema.naming import Search, clear, ids, row_of
from guideway.json_schema.tracking.cursor import START, TrackedText, UniqueReader
from guideway.json_schema.tracking.values import is_unfinished

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.api.grammar import Matcher
    from guideway.api.vocabulary import Vocabulary
    from guideway.json_schema.tracking.places import UniqueArrays

__all__ = ["Tracker"]

Ahead: TypeAlias = "Callable[[], Matcher]"

_PAIR = re.compile(rb"\[.*,", re.DOTALL)
_OUTSIDE = re.compile(
    rb"""[,\]}\[{] | \A[^"]*[ \t\n\r:el] | \A[tfn] | ".*" | \A[0-9]*[-+.E] | (?:\A|[^0-9.])0\Z""",
    re.DOTALL | re.VERBOSE,
)
"""Tokens that may end or begin an item outside of strings, except those that only begin a string or continue a number
with digits. No digit can follow the number 0."""
_TAIL = re.compile(rb'([^"\\]*)"')
_TWICE = re.compile(rb'[^"]*"[^"]*?[,\]}][ \t\n\r]*[^ \t\n\r]')
"""Tokens that end a string, perhaps with its item, and continue after it."""


class _TokenClasses:
    """Classes of the vocabulary's tokens by their effect in JSON, as rows of bitmasks."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.pairs = row_of(tokens, _PAIR.search)
        """Tokens that may begin an array and end several items of it."""
        self.quoted = row_of(tokens, lambda token: b'"' in token or b"\\" in token)
        self.escaped = row_of(tokens, lambda token: b"\\" in token)
        self.twice = row_of(tokens, lambda token: _TWICE.match(token) is not None or (b"\\" in token and b'"' in token))
        self.outside = row_of(tokens, _OUTSIDE.search)
        self.by_tail: dict[bytes, list[int]] = {}
        """Tokens by the text before their first quote."""
        self.by_text: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(tokens):
            if tail := _TAIL.match(token):
                self.by_tail.setdefault(tail[1], []).append(token_id)
            if token:
                self.by_text.setdefault(token, []).append(token_id)


@lru_cache(maxsize=4)
def _classes(tokens: tuple[bytes, ...]) -> _TokenClasses:
    return _TokenClasses(tokens)


class Tracker:
    """Keeps the items of some arrays unique in the outputs of one grammar."""

    start = START
    """The state before the first token."""

    def __init__(self, arrays: UniqueArrays, vocabulary: Vocabulary) -> None:
        self._arrays = arrays
        self._reader = UniqueReader(arrays)
        self._tokens = vocabulary.tokens
        self.num_words = num_words(vocabulary.logits_width)
        self._classes = _classes(tuple(vocabulary.tokens))

    def after(self, state: TrackedText, token_id: int) -> TrackedText | None:
        """Return the state after a token; None if it would finish an item that the array has already."""
        return self._reader.read(state, self._tokens[token_id])

    def step(self, state: TrackedText, token_id: int, ahead: Ahead) -> TrackedText | None:
        """Return the state after a token; None if the token finishes a repeated item, or only repeated ones can follow
        where an item must. ``ahead()`` returns a new matcher of the grammar alone, before the token."""
        return self._step(state, token_id, self._search(ahead))

    def keep(self, state: TrackedText, words: Bitmask, ahead: Ahead) -> None:
        """Clear the bits of a row for tokens that are not allowed."""
        search = self._search(ahead)
        clear(words, [i for i in self._candidates(state, words) if self._step(state, i, search) is None])

    def _step(self, state: TrackedText, token_id: int, search: Search[TrackedText]) -> TrackedText | None:
        after = self.after(state, token_id)
        is_sure = after is None or not after.open or after == state
        return after if is_sure or search.leads_on(state, token_id) else None

    def _search(self, ahead: Ahead) -> Search[TrackedText]:
        def mask_after(token_ids: Sequence[int]) -> Bitmask | None:
            matcher = ahead()
            if matcher.accept(token_ids) < len(token_ids):
                return None
            bitmask = np.zeros((1, self.num_words), dtype=np.int32)
            with suppress(DeadEnd):
                matcher.fill_bitmask(bitmask, 0)
            row: Bitmask = bitmask[0]
            return row

        return Search(self.after, mask_after, lambda state: state.may_repeat(self._arrays), TrackedText.shortened)

    def _candidates(self, state: TrackedText, words: Bitmask) -> Iterable[int]:
        """Return tokens of a row that may not be allowed."""
        classes = self._classes
        arrays = [each for each in state.open if each.is_unique]
        if not arrays:
            return ids(words[: len(classes.pairs)] & classes.pairs)
        if any(len(each.seen) + 1 >= self._arrays.num_values(each.inside(self._arrays)) for each in arrays):
            if not state.in_string:
                return ids(words)
            found = set(ids(words[: len(classes.quoted)] & classes.quoted))
            found.update(i for i in self._beginning(state.strings(self._arrays)) if is_allowed(words[np.newaxis], 0, i))
            return sorted(found)
        strings = list(state.strings(self._arrays)) if any(each.seen for each in arrays) else []
        row = classes.outside
        if state.in_string:
            row = classes.twice | classes.escaped if strings else classes.twice
            row = classes.quoted if strings and is_unfinished(state.text) else row
        found = set(ids(words[: len(row)] & row))
        listed = [i for rest in strings for i in classes.by_tail.get(_encode(rest), ())]
        listed += self._beginning(strings if strings and not state.is_free(self._arrays) else ())
        listed += self._beginning(() if state.in_string else state.numbers())
        found.update(i for i in listed if is_allowed(words[np.newaxis], 0, i))
        return sorted(found)

    def _beginning(self, texts: Iterable[str]) -> Iterator[int]:
        """Yield the tokens that begin one of some texts."""
        for text in map(_encode, texts):
            for end in range(1, len(text) + 1):
                yield from self._classes.by_text.get(text[:end], ())


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
