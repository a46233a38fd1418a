"""Track the position in JSON at which a text ends, which a grammar's matcher does not reveal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from guideway.api.types import MAX_INDENTATION, Whitespace

__all__ = ["NO_NAMES", "START", "JsonCursor", "Names", "Place"]


class Place(Enum):
    """The part of JSON that the next byte belongs to."""

    VALUE = auto()
    """A value begins, or an empty array ends."""
    SCALAR = auto()
    """A number, ``true``, ``false`` or ``null``, which may have ended."""
    STRING = auto()
    """A string that is a value."""
    KEY_START = auto()
    """A property's name begins, or an empty object ends."""
    KEY = auto()
    """The name of a property."""
    COLON = auto()
    AFTER = auto()
    """A value has ended."""

    __hash__ = object.__hash__  # Enum's own is slow


VALUE, SCALAR, STRING, KEY_START, KEY, COLON, AFTER = Place


BETWEEN = re.compile(rb'["\\\xe0\xed\xf0\xf4]')
"""Bytes in a string that need processing."""

QUOTE, BACKSLASH, BLANK, LINE_FEED, CARRIAGE_RETURN = b'"\\ \n\r'
SECOND_BYTES = {0xE0: range(0xA0, 0xC0), 0xED: range(0x80, 0xA0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
"""The valid second bytes in UTF-8 after first bytes that restrict them: excludes surrogates, overlong encodings and
code points past the last."""
BLANKS = b" \t\n\r"

REFUSED, SPACE_DUE, LINE_FEED_DUE, BEGINNING, INDENTED = -3, -2, -1, 0, 1
"""States of white space (`JsonCursor.blanks`): not allowed; a space must follow, as after a comma that is ``spaced``; a
line feed must follow, as after a carriage return; none yet; a line feed, where each further blank adds 1."""
FULL = INDENTED + MAX_INDENTATION
"""The state of white space after which no more may follow."""

_NEEDED = [rf"\{c}".encode() for c in '"\\bfnrt'] + [
    f"\\u{code:04x}".encode() for code in range(32) if chr(code) not in "\b\f\n\r\t"
]
_BEGUN_IN_NAMES = frozenset(escape[:length] for escape in _NEEDED for length in range(1, 7))
"""The usual escapes of characters that must be escaped, and their prefixes."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Names:
    """The names in an object, as written, with their closing quote. A persistent list, as every token of an output has
    its own cursor."""

    __slots__ = ("_before", "_name")

    def __init__(self, before: Names | None = None, name: bytes = b"") -> None:
        self._before = before
        self._name = name

    def with_name(self, name: bytes) -> Names:
        return Names(self, name)

    def __iter__(self) -> Iterator[bytes]:
        names = self
        while names._before is not None:
            yield names._name
            names = names._before

    def __contains__(self, name: object) -> bool:
        return any(each == name for each in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and set(self) == set(other)

    def __hash__(self) -> int:
        return hash(frozenset(self))


NO_NAMES = Names()


class JsonCursor(NamedTuple):
    """The position at which a JSON prefix ends. Arbitrary for a text that is not JSON."""

    place: Place = VALUE
    open: tuple[Names | None, ...] = ()
    """The open objects and arrays: the names in an object; None for an array."""
    name: bytes = b""
    """The bytes written of the current property's name."""
    escape: bytes = b""
    """The bytes written of an unfinished escape, or of a character that may be invalid UTF-8."""
    blanks: int = BEGINNING
    """The state of the white space at the end, outside strings; `BEGINNING` for white space of any kind."""

    @property
    def in_string(self) -> bool:
        """True if the text ends inside a string, including property names."""
        return self.place is STRING or self.place is KEY

    def after(self, text: bytes) -> JsonCursor:
        """Return the position after `text`."""
        found = self.within(text, None)
        assert found is not None
        return found

    def within(self, text: bytes, whitespace: Whitespace | None) -> JsonCursor | None:
        """Return the position after `text`; None if `text` has other white space. With `whitespace`, text is UTF-8, no
        escape is a surrogate (so each character of a string is at most one escape), and names have no unnecessary
        escapes (so each has one spelling) and are unique in an object."""
        place, opened, name, escape, blanks = self
        if (place is STRING or place is KEY) and not escape and BETWEEN.search(text) is None:
            return self if place is STRING else JsonCursor(place, opened, name + text)
        for byte in text:
            if place is STRING or place is KEY:
                if place is KEY:
                    name += bytes((byte,))
                if escape:
                    escape += bytes((byte,))
                    if whitespace is not None and not _may_begin(escape, place):
                        return None
                    if len(escape) == 6 or (len(escape) == 2 and byte != 0x75):
                        escape = b""
                elif byte == BACKSLASH or byte in SECOND_BYTES:
                    escape = bytes((byte,))
                elif byte == QUOTE and place is STRING:
                    place = AFTER
                elif byte == QUOTE:
                    names = opened[-1]
                    assert names is not None, "a name stands in an object"
                    if whitespace is not None and name in names:
                        return None
                    place, opened = COLON, (*opened[:-1], names.with_name(name))
                continue
            if byte in BLANKS:
                blanks = _after_blank(blanks, byte, whitespace)
                if blanks == REFUSED:
                    return None
                if place is SCALAR:
                    place = AFTER
                continue
            if blanks < BEGINNING and whitespace is not None:
                return None
            blanks = BEGINNING
            if byte == QUOTE:
                place, name = (KEY, b"") if place is KEY_START else (STRING, name)
            elif byte == 0x7B:
                place, opened = KEY_START, (*opened, NO_NAMES)
            elif byte == 0x5B:
                place, opened = VALUE, (*opened, None)
            elif byte in b"}]":
                place, opened = AFTER, opened[:-1]
            elif byte in b",:":
                in_object = bool(opened) and opened[-1] is not None
                place = KEY_START if byte == 0x2C and in_object else VALUE
                blanks = SPACE_DUE if whitespace == "spaced" else BEGINNING
            else:
                place = SCALAR
        return JsonCursor(place, opened, name if place is KEY else b"", escape, blanks)


def _may_begin(escape: bytes, place: Place) -> bool:
    if escape[0] != BACKSLASH:
        return escape[1] in SECOND_BYTES[escape[0]]
    return escape in _BEGUN_IN_NAMES if place is KEY else _SURROGATE.match(escape) is None


def after_blanks(blanks: int, text: bytes, whitespace: Whitespace | None) -> int:
    """Return the state of white space after `text`, more white space; `REFUSED` if it is not allowed."""
    for byte in text:
        blanks = _after_blank(blanks, byte, whitespace)
    return blanks


def _after_blank(blanks: int, byte: int, whitespace: Whitespace | None) -> int:
    if whitespace is None or whitespace == "any":
        return BEGINNING
    if whitespace == "spaced":
        return FULL if blanks == SPACE_DUE and byte == BLANK else REFUSED
    if whitespace == "compact":
        return REFUSED
    if blanks == BEGINNING and byte != LINE_FEED:
        return {BLANK: FULL, CARRIAGE_RETURN: LINE_FEED_DUE}.get(byte, REFUSED)
    if byte == LINE_FEED:
        return INDENTED if blanks in (BEGINNING, LINE_FEED_DUE) else REFUSED
    return blanks + 1 if INDENTED <= blanks < FULL and byte != CARRIAGE_RETURN else REFUSED


START = JsonCursor()
