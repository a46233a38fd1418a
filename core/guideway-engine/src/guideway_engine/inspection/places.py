"""Tell where in a text a byte stands, for a person who has the text in an editor."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from guideway.json_schema.walking import Chain, Pointer

__all__ = ["Place", "json_place", "place_of"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("?)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of a text."""

    offset: int
    """Bytes before it."""
    line: int
    """From 1."""
    column: int
    """In characters, from 1."""
    pointer: str | None
    """JSON pointer to the value it belongs to, such as ``#/age``; None where the text need not be JSON."""


def place_of(text: bytes, offset: int, *, is_json: bool) -> Place:
    """Return where the byte at `offset` of `text` stands; in the middle of a character, where that begins."""
    before = text[:offset].decode(errors="ignore")
    pointer = json_place(before) if is_json else None
    return Place(offset, before.count("\n") + 1, len(before) - before.rfind("\n"), pointer)


def json_place(before: str) -> str:
    """JSON pointer to the value that goes on, or begins, where the JSON text `before` ends. Of a text that is no JSON
    it is anything."""
    parts: list[str | int | None] = []  # per open array an index, per open object a name, None where one is due
    over = False  # whether the innermost value has ended
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
    except ValueError:  # an escape that is none
        return text[1:-1]
