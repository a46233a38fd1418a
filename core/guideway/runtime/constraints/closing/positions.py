"""Position in an output that is JSON, or in text with tags whose content has JSON."""

from __future__ import annotations

import re
from typing import NamedTuple

from guideway.json_schema.cursor import BLANKS, START, JsonCursor, Place
from guideway.runtime.constraints.closing.lexicon import MAYBE

__all__ = ["Position"]

IN_SCALARS = frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""Bytes of numbers, ``true``, ``false`` and ``null``, and more letters. Any other byte ends them."""
ELEMENT = re.compile(rb"<([^\s<>/=|](?:[^<>/=]*?[^\s<>/=|])?)(?:(?:\s+\w+)?=[^<>]*)?>")
"""The beginning of an element in text that resembles XML, such as ``<parameter=name>`` or ``<a b name="c">``, whose end
is ``</a b>``. ``<|end|>`` is none."""

MOST = 256
"""Most bytes of the beginning of an element, which limits the memory for each token. Longer ones have no end."""


class Position(NamedTuple):
    """The position after a text."""

    json: JsonCursor | None = None
    """The position in JSON; None outside JSON."""
    begins: tuple[tuple[bytes, bytes], ...] = ()
    """The texts before JSON, without white space, each with the JSON that it contains, which contains the content of a
    tag. Empty if the whole output is JSON, or none of it."""
    written: bytes = b""
    """Outside JSON: the last bytes of the text without white space, as many as the longest of `begins` may have."""
    element: bytes = b""
    """Outside JSON: the text from the last ``<`` to the next ``>``, at most `MOST` bytes."""

    def after(self, text: bytes) -> Position:
        """Return the position after `text`."""
        json, begins, written, element = self
        if not begins:
            return self if json is None else Position(json.after(text))
        most = max(len(begin) for begin, _ in begins)
        if json is None:
            joined = written + text.translate(None, BLANKS)
            if not any(begin in joined for begin, _ in begins):
                return Position(None, begins, joined[-most:], _longer(element, text))
        for byte in text:
            if json is not None:
                if not _has_ended(json, byte):
                    json = json.after(bytes((byte,)))
                    continue
                json = None
            element = _longer(element, bytes((byte,)))
            if byte in BLANKS:
                continue
            written = (written + bytes((byte,)))[-most:]
            if known := [pair for pair in begins if written.endswith(pair[0])]:
                json, written = START.after(max(known, key=lambda pair: len(pair[0]))[1]), b""
        return Position(json, begins, written, element)

    def spaced(self, text: bytes) -> bytes:
        """Return `text`, which comes next, with `MAYBE` and no blank after each comma and colon of JSON."""
        found, position = bytearray(), self
        for i in range(len(text)):
            byte = text[i : i + 1]
            if byte != b" " or not found.endswith(MAYBE):
                found += byte
                position = position.after(byte)
                if byte in (b",", b":") and position.json is not None and not position.json.in_string:
                    found += MAYBE
        return bytes(found)

    @property
    def end(self) -> bytes:
        """The text that ends the last element that began, or its beginning, if the text resembles XML; else empty."""
        if begun := ELEMENT.match(self.element):
            return b"</" + begun[1] + b">"
        return b"" if not self.element or self.element.endswith(b">") else b">"


def _has_ended(json: JsonCursor, byte: int) -> bool:
    """Return whether a JSON value ended before its next byte."""
    return not json.open and (json.place is Place.AFTER or (json.place is Place.SCALAR and byte not in IN_SCALARS))


def _longer(element: bytes, text: bytes) -> bytes:
    """Return `Position.element` after more text."""
    if (at := text.rfind(b"<")) >= 0:
        element, text = b"", text[at:]
    elif not element or element.endswith(b">"):
        return element
    return (element + text[: text.find(b">") + 1 or len(text)])[:MOST]
