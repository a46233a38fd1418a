"""A rule that restricts texts to UTF-8, which xgrammar's character classes do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from guideway.api.bitmask import num_words

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask

__all__ = ["CharacterRule"]

_SECOND = {0xE0: rb"\x80-\x9f", 0xED: rb"\xa0-\xbf", 0xF0: rb"\x80-\x8f", 0xF4: rb"\x90-\xbf"}
"""For some first bytes of a character, the continuation bytes that may not follow (Unicode, table 3-7). xgrammar itself
refuses bytes that cannot begin a character."""
_WRONG = re.compile(b"|".join(re.escape(bytes((first,))) + b"[%s]" % second for first, second in _SECOND.items()))
_WRONG_AFTER = {first: re.compile(b"[%s]" % second) for first, second in _SECOND.items()}


class CharacterRule:
    """A rule for which of these tokens may follow, so that the text is UTF-8: xgrammar takes surrogates (``ED A0 80``)
    for characters. A matcher must ask its library as well."""

    start = 0
    """The state before the first token. A state is the last byte of the text if that is the first byte of a character
    which not every byte may follow, else 0."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._allowed: dict[int, Bitmask | None] = {}
        self._lock = Lock()

    def prepare(self) -> None:
        """Examine all tokens, once."""
        with self._lock:
            if not self._allowed:
                beyond = [(i, token) for i, token in enumerate(self._tokens) if not token.isascii()]
                wrong = [i for i, token in beyond if _WRONG.search(token)]
                after = {
                    first: [i for i, token in beyond if pattern.match(token)] for first, pattern in _WRONG_AFTER.items()
                }
                self._allowed = {0: self._without(wrong)} | {
                    first: self._without([*wrong, *refused]) for first, refused in after.items()
                }

    def allowed(self, state: int) -> Bitmask | None:
        """Return the tokens that may follow, as a row of a bitmask; None: all may."""
        return self._allowed[state]

    def after(self, state: int, token_id: int) -> int | None:
        """Return the state after a token; None if it may not follow."""
        token = self._tokens[token_id]
        if not token:
            return state
        if (state and _WRONG_AFTER[state].match(token)) or (not token.isascii() and _WRONG.search(token)):
            return None
        return token[-1] if token[-1] in _SECOND else 0

    def _without(self, refused: Sequence[int]) -> Bitmask | None:
        """Return a row of all tokens except `refused`; None if `refused` is empty."""
        if not refused:
            return None
        row = np.full(num_words(len(self._tokens)) * 32, True)
        row[refused] = False
        packed: Bitmask = np.packbits(row, bitorder="little").view(np.int32)
        return packed
