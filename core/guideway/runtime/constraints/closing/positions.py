"""Position in an output that is JSON, or in text with tags whose content is JSON."""

from __future__ import annotations

from typing import NamedTuple

from guideway.json_schema.cursor import START, JsonCursor, Place

__all__ = ["Position"]

IN_SCALARS = frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""Bytes of numbers, ``true``, ``false`` and ``null``, and more letters. Any other byte ends them."""


class Position(NamedTuple):
    """The position after a text."""

    json: JsonCursor | None = None
    """The position in JSON; None outside JSON."""
    begins: tuple[bytes, ...] = ()
    """Texts that begin tags with JSON. If one of them contains ``{``, the JSON begins there, and contains the content
    of the tag. Empty if the whole output is JSON, or none of it."""
    written: bytes = b""
    """Outside JSON: the last bytes of the text, as many as the beginning of a tag may have without its last byte."""

    def after(self, text: bytes) -> Position:
        """Return the position after `text`."""
        json, written = self.json, self.written
        if not self.begins:
            return self if json is None else Position(json.after(text))
        for byte in text:
            if json is not None and _has_ended(json, byte):
                json = None
            if json is not None:
                json = json.after(bytes((byte,)))
                continue
            written += bytes((byte,))
            begin = max((begin for begin in self.begins if written.endswith(begin)), key=len, default=b"")
            if begin:
                opened = begin.find(b"{")
                json, written = START.after(begin[opened:] if opened >= 0 else b""), b""
        most = max(map(len, self.begins)) - 1
        return Position(json, self.begins, written[-most:] if most else b"")


def _has_ended(json: JsonCursor, byte: int) -> bool:
    """Return whether a JSON value ended before its next byte."""
    return not json.open and (json.place is Place.AFTER or (json.place is Place.SCALAR and byte not in IN_SCALARS))
