"""The place after a text: a parser of lm-format-enforcer's, and the bytes of an incomplete character.

lm-format-enforcer reads only characters of its alphabet. Here its alphabet is ASCII, the characters that the constraint
names, and one for all others (`Language.other`). So it can read every character, in one token or across several, and
the alphabet stays small.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FIRST_PRIVATE = 0xE000


@dataclass(frozen=True, slots=True)
class Place:
    """A state of the search. Parsers are immutable."""

    parser: Any
    pending: bytes = b""


class Language:
    """The operations on parsers: `legal` returns the characters that a parser may read, `can_end` whether the text may
    end there, and `read` the parser after a legal character. `named` are the characters that the constraint names."""

    def __init__(
        self,
        parser: Any,
        named: Iterable[str],
        legal: Callable[[Any], frozenset[str]],
        can_end: Callable[[Any], bool],
        read: Callable[[Any, str], Any] = lambda parser, character: parser.add_character(character),
    ) -> None:
        self.start = Place(parser)
        self.named = frozenset(named)
        self.other = other_than(self.named)
        self.legal = legal
        self.can_end = can_end
        self.read = read
        # parsers of one grammar write to a shared object
        self.lock = threading.RLock()

    def step(self, place: Place, byte: int) -> Place | None:
        """Return the place after `byte`; None if it is not legal."""
        if byte < 0x80:
            return None if place.pending else self._read(place.parser, chr(byte))
        pending = place.pending + bytes([byte])
        character = decoded(pending)
        if character is None:
            return None
        if character:
            return self._read(place.parser, character if character in self.named else self.other)
        legal = self.legal(place.parser)
        begun = span(pending)
        if any(ord(c) in begun for c in legal & self.named) or (
            self.other in legal and sum(ord(c) in begun for c in self.named) < len(begun)
        ):
            return Place(place.parser, pending)
        return None

    def walk(self, place: Place, text: bytes) -> Place | None:
        """Return the place after all of `text`; None if it is not legal."""
        found: Place | None = place
        for byte in text:
            if found is None:
                return None
            found = self.step(found, byte)
        return found

    def ends(self, place: Place) -> bool:
        return not place.pending and self.can_end(place.parser)

    def _read(self, parser: Any, character: str) -> Place | None:
        return Place(self.read(parser, character)) if character in self.legal(parser) else None


def other_than(named: Iterable[str]) -> str:
    """Return a character that is not in `named`."""
    taken = set(named)
    return next(chr(code) for code in range(FIRST_PRIVATE, 0x110000) if chr(code) not in taken)


@lru_cache(maxsize=4096)
def decoded(text: bytes) -> str | None:
    """Return the one character that `text` encodes, ``""`` if it begins one, None otherwise."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "" if 0 < len(text) < 4 and span(text) else None


@lru_cache(maxsize=4096)
def span(begun: bytes) -> range:
    """Return the code points whose UTF-8 begins with `begun`, an incomplete character."""
    low, high = (_complete(begun, byte) for byte in (0x80, 0xBF))
    least = {2: 0x80, 3: 0x800, 4: 0x10000}[len(low)]
    found = range(max(_code(low), least), min(_code(high), 0x10FFFF) + 1)
    if begun[:1] == b"\xed":  # surrogates are not characters
        found = range(found.start, min(found.stop, 0xD800))
    is_utf8 = 0xC2 <= begun[0] < 0xF5 and all(0x80 <= byte < 0xC0 for byte in begun[1:])
    return found if is_utf8 and len(begun) < len(low) else range(0)


def _complete(begun: bytes, byte: int) -> bytes:
    length = 2 if begun[0] < 0xE0 else 3 if begun[0] < 0xF0 else 4
    return begun.ljust(length, bytes([byte]))


def _code(text: bytes) -> int:
    code = text[0] & (0x1F, 0x0F, 0x07)[len(text) - 2]
    for byte in text[1:]:
        code = code << 6 | byte & 0x3F
    return code
