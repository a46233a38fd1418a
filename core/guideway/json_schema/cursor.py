"""Track the position in JSON at which a text ends, which a grammar's matcher does not reveal."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from guideway.api.types import MAX_INDENTATION, WHITESPACE, Whitespace

__all__ = ["NO_NAMES", "START", "Cursor", "JsonCursor", "Names", "Place", "Reader"]


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
COMMA, BRACKET = b",["
SECOND_BYTES = {0xE0: range(0xA0, 0xC0), 0xED: range(0x80, 0xA0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
"""The valid second bytes in UTF-8 after first bytes that restrict them: excludes surrogates, overlong encodings and
code points past the last."""
BLANKS = b" \t\n\r"
LITERALS = (b"true", b"false", b"null")

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


T = TypeVar("T")


class Cursor(NamedTuple, Generic[T]):
    """The position at which a JSON prefix ends. Arbitrary for a text that is not JSON."""

    place: Place = VALUE
    open: tuple[T, ...] = ()
    """The state of each open object and array, the outermost first."""
    text: bytes = b""
    """The bytes written of the current name, string, literal or number, if these are kept."""
    escape: bytes = b""
    """The bytes written of an unfinished escape, or of a character that may be invalid UTF-8."""
    blanks: int = BEGINNING
    """The state of the white space at the end, outside strings; `BEGINNING` for white space of any kind."""
    is_due: bool = False
    """True after a comma, and before the next name or item."""

    @property
    def in_string(self) -> bool:
        """True if the text ends inside a string, including property names."""
        return self.place is STRING or self.place is KEY


C = TypeVar("C", bound="Cursor[Any]")


class Reader(ABC, Generic[T]):
    """Reads JSON, and keeps a state of each open object and array, which subclasses define. The other abstract methods
    return these states after a part of the text; None if the subclass does not allow this part."""

    whitespace: Whitespace | None = None
    """The white space to allow. If not None, text is UTF-8, no escape is a surrogate (so each character of a string is
    at most one escape), and names have no unnecessary escapes (so each has one spelling)."""

    @abstractmethod
    def in_array(self, opened: tuple[T, ...]) -> bool:
        """Return whether the innermost is an array, or the whole text."""

    @abstractmethod
    def keeps(self, opened: tuple[T, ...], is_name: bool) -> bool:
        """Return whether the bytes of a name, or of another string, a literal or a number, are needed."""

    @abstractmethod
    def name(self, opened: tuple[T, ...], text: bytes) -> tuple[T, ...] | None:
        """End a name."""

    @abstractmethod
    def scalar(self, opened: tuple[T, ...], text: bytes, is_string: bool) -> tuple[T, ...] | None:
        """End a string, a literal or a number. `text` is empty if it is not kept."""

    @abstractmethod
    def begin(self, opened: tuple[T, ...], is_array: bool) -> tuple[T, ...] | None:
        """Begin an array or object."""

    @abstractmethod
    def end(self, opened: tuple[T, ...]) -> tuple[T, ...] | None:
        """End the innermost array or object. None is open in a text that is not JSON."""

    def read(self, cursor: C, text: bytes) -> C | None:
        """Return the position after more text; None if it is not allowed."""
        place, opened, written, escape, blanks, is_due = cursor
        if (place is STRING or place is KEY) and not escape and BETWEEN.search(text) is None:
            return cursor._replace(text=written + text) if self.keeps(opened, place is KEY) else cursor
        strict = self.whitespace is not None
        found: tuple[T, ...] | None
        for byte in text:
            if place is STRING or place is KEY:
                if escape:
                    escape += bytes((byte,))
                    if strict and not _may_begin(escape, place):
                        return None
                    if len(escape) == 6 or (len(escape) == 2 and byte != 0x75):
                        escape = b""
                elif byte == BACKSLASH or byte in SECOND_BYTES:
                    escape = bytes((byte,))
                elif byte == QUOTE:
                    found = self.name(opened, written) if place is KEY else self.scalar(opened, written, True)
                    if found is None:
                        return None
                    place, opened, written = COLON if place is KEY else AFTER, found, b""
                    continue
                if self.keeps(opened, place is KEY):
                    written += bytes((byte,))
                continue
            if place is SCALAR and byte in b" \t\n\r,]}":
                found = self.scalar(opened, written, False)
                if found is None:
                    return None
                place, opened, written = AFTER, found, b""
            if byte in BLANKS:
                blanks = _after_blank(blanks, byte, self.whitespace)
                if blanks == REFUSED:
                    return None
                continue
            if blanks < BEGINNING and strict:
                return None
            blanks = SPACE_DUE if byte in b",:" and self.whitespace == "spaced" else BEGINNING
            if byte in b",:":
                is_due = byte == COMMA
                place = KEY_START if is_due and not self.in_array(opened) else VALUE
                continue
            if byte in b"}]":
                found = self.end(opened)
                place = AFTER
            elif byte in b"{[":
                found = self.begin(opened, byte == BRACKET)
                place = VALUE if byte == BRACKET else KEY_START
            elif byte == QUOTE:
                found = opened
                place = KEY if place is KEY_START else STRING
            else:
                place, found = SCALAR, opened
                if self.keeps(opened, False):
                    written += bytes((byte,))
                    if written in LITERALS:
                        place, found, written = AFTER, self.scalar(opened, written, False), b""
            if found is None:
                return None
            opened, is_due = found, False
        return type(cursor)(place, opened, written, escape, blanks, is_due)


class Names:
    """The names in an object, as written, with their closing quote. A persistent list, as every token of an output has
    its own cursor."""

    __slots__ = ("_before", "_hash", "_name")

    def __init__(self, before: Names | None = None, name: bytes = b"") -> None:
        self._before = before
        self._name = name
        self._hash: int | None = None

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
        if self._hash is None:
            self._hash = hash(frozenset(self))
        return self._hash


NO_NAMES = Names()
Opened: TypeAlias = "tuple[Names | None, ...]"
"""The open objects and arrays: the names in an object; None for an array."""


class JsonCursor(Cursor["Names | None"]):
    """A position in a text of which the names in open objects are kept."""

    __slots__ = ()

    def after(self, text: bytes) -> JsonCursor:
        """Return the position after `text`."""
        found = self.within(text, None)
        assert found is not None
        return found

    def within(self, text: bytes, whitespace: Whitespace | None) -> JsonCursor | None:
        """Return the position after `text`; None if it is not written as `Reader.whitespace` says. With `whitespace`,
        names are unique in an object."""
        return _WRITING[whitespace].read(self, text)


class _Writing(Reader["Names | None"]):
    def __init__(self, whitespace: Whitespace | None) -> None:
        self.whitespace = whitespace

    def in_array(self, opened: Opened) -> bool:
        return not opened or opened[-1] is None

    def keeps(self, opened: Opened, is_name: bool) -> bool:
        return is_name

    def name(self, opened: Opened, text: bytes) -> Opened | None:
        names, name = opened[-1], text + b'"'
        assert names is not None, "a name stands in an object"
        if self.whitespace is not None and name in names:
            return None
        return (*opened[:-1], Names(names, name))

    def scalar(self, opened: Opened, text: bytes, is_string: bool) -> Opened:
        return opened

    def begin(self, opened: Opened, is_array: bool) -> Opened:
        return (*opened, None if is_array else NO_NAMES)

    def end(self, opened: Opened) -> Opened:
        return opened[:-1]


_WRITING = {each: _Writing(each) for each in (None, *WHITESPACE)}


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
