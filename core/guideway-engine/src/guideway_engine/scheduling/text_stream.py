"""Incremental decoding of tokens to text: only whole characters, and no text that a stop string may still remove."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Piece", "TextStream"]


@dataclass(frozen=True, slots=True)
class TextStream:
    """Decoded text that is not final yet. Immutable: `extended` returns the next stream."""

    undecoded: bytes = b""
    """First bytes of an incomplete character."""
    held: str = ""
    """Characters that may be the beginning of a stop string."""
    skip: int = 0
    """Number of bytes to come that are not text; nothing is undecoded or held before them."""

    def extended(self, data: bytes, stop: Sequence[str], *, look: bool = True) -> Piece:
        """Return the text that becomes final when `data` is appended. A stop string may begin in earlier data. Without
        `look` no stop string ends the text, but one may begin in it."""
        if self.skip:
            if len(data) <= self.skip:
                return Piece("", None, TextStream(skip=self.skip - len(data)))
            return TextStream().extended(data[self.skip :], stop, look=look)
        data = self.undecoded + data
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        rest = data[consumed:]
        text = self.held + text
        if not stop:
            return Piece(text, None, TextStream(rest) if rest or self.undecoded or self.held else self)
        if look:
            found = [(text.find(string), -len(string), string) for string in stop if string in text]
            if found:
                start, _, string = min(found)
                return Piece(text[:start], string, TextStream())
        shown = len(text) - _beginning(text, stop)
        return Piece(text[:shown], None, TextStream(rest, text[shown:]))

    def end(self) -> str:
        """Return the withheld text; an incomplete character becomes U+FFFD. Call it when no data follows."""
        return self.held + self.undecoded.decode(errors="replace")


class Piece(NamedTuple):
    """Text that became final."""

    text: str
    stop: str | None
    """Stop string that follows `text`."""
    stream: TextStream


def _beginning(text: str, stop: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that is the beginning of a longer stop string."""
    longest = min(len(text), max(map(len, stop)) - 1)
    for length in range(longest, 0, -1):
        ending = text[-length:]
        if any(string.startswith(ending) and len(string) > length for string in stop):
            return length
    return 0
