"""From tokens to text, piece by piece: whole characters only, and nothing that a stop string may still take back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Piece", "TextStream"]


@dataclass(frozen=True, slots=True)
class TextStream:
    """The text that has been decoded and not shown yet. A value: `extended` returns the next one."""

    undecoded: bytes = b""
    """The first bytes of a character whose others are still to come."""
    held: str = ""
    """Characters a stop string may begin with."""

    def extended(self, data: bytes, stop: Sequence[str], *, look: bool = True) -> Piece:
        """After `data`: the text that is final now. A stop string is found wherever it begins, also in earlier data;
        unless `look`, none ends anything yet, but one may have begun."""
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
        """Return what was withheld, now that nothing follows; a half character as U+FFFD."""
        return self.held + self.undecoded.decode(errors="replace")


class Piece(NamedTuple):
    """Text that became final."""

    text: str
    stop: str | None
    """The stop string right after `text`."""
    stream: TextStream


def _beginning(text: str, stop: Sequence[str]) -> int:
    """Count how many of the last characters of `text` a stop string begins with, at most."""
    longest = min(len(text), max(map(len, stop)) - 1)
    for length in range(longest, 0, -1):
        ending = text[-length:]
        if any(string.startswith(ending) and len(string) > length for string in stop):
            return length
    return 0
