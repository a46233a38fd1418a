"""Positions in a text as an editor shows them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from guideway.json_schema.walking import Chain, Pointer

__all__ = ["Place", "json_place", "place_of"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("?)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a byte of a text."""

    offset: int
    """Number of bytes before it."""
    line: int
    """Line number, from 1."""
    column: int
    """Column in characters, from 1."""
    pointer: str | None
    """JSON pointer to the value that contains it, such as ``#/age``; None if the text need not be JSON."""


def place_of(text: bytes, offset: int, *, is_json: bool) -> Place:
    """Return the position of the byte at `offset` of `text`; inside a character, the position of its first byte."""
    before = text[:offset].decode(errors="ignore")
    pointer = json_place(before) if is_json else None
    return Place(offset, before.count("\n") + 1, len(before) - before.rfind("\n"), pointer)


def json_place(before: str) -> str:
    """Return the JSON pointer to the value that continues, or begins, at the end of the JSON text `before`. Arbitrary
    if the text is not JSON."""
    parts: list[str | int | None] = []  # an index per open array, a name per open object, None where a name is expected
    over = False  # True once the innermost value has ended
    for token in _TOKEN.finditer(before):
        text = token[0]
        if text in "{[":
            parts.append(None if text == "{" else 0)
            over = False
        elif text in "}]":
            del parts[-1:]
            over = True
        elif text == ",":
            if parts:
                parts[-1] = parts[-1] + 1 if isinstance(parts[-1], int) else None
            over = False
        elif text[0] == '"' and parts and parts[-1] is None:
            if token[1]:
                parts[-1] = _name(text)
        elif text != ":":
            over = bool(token[1]) or text in ("true", "false", "null")
    if over:
        del parts[-1:]
    chain: Chain = None
    for part in parts:
        if part is not None:
            chain = (chain, part)
    return str(Pointer(chain))


def _name(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:  # an invalid escape
        return text[1:-1]
