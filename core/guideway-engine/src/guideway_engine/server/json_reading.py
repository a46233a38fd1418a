"""Parsing of JSON that lets other threads run meanwhile: `json.loads` holds the GIL for the whole text."""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder
from typing import Any, NoReturn

from guideway.errors import LimitExceeded

__all__ = ["MAX_CONTAINERS", "MAX_DEPTH", "MAX_NAMES", "MAX_VALUES", "read_json"]

MAX_DEPTH = 16
"""Maximum nesting of lists and objects."""

MAX_CONTAINERS = 1 << 13
"""Maximum number of lists and objects of one text: four for each input of a call. An empty one takes 2 bytes of text
and up to 64 bytes of memory."""

MAX_NAMES = 64
"""Maximum number of names of one object. Objects of the API have at most ten."""

MAX_VALUES = 1 << 21
"""Maximum number of numbers and strings of one text: as many as 2048 inputs of 1024 token ids."""

DELIMITER = re.compile(r"[ \t\n\r]*(.?)", re.DOTALL)


def _too_many(what: str) -> LimitExceeded:
    return LimitExceeded(f"the body has more than {what}; send several calls", field="body")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


SCALARS = JSONDecoder(parse_constant=_refuse_constant)


def read_json(text: str) -> Any:
    """Return the value of JSON text, in time linear in its length. Raises ValueError, also for duplicate names in an
    object, and for NaN and infinity; `LimitExceeded` above `MAX_DEPTH`, `MAX_CONTAINERS`, `MAX_NAMES` or `MAX_VALUES`.
    """
    reader = _Reader(text)
    value, at = reader.value(0, 0)
    following, at = reader.delimiter(at)
    if following:
        raise JSONDecodeError("Extra data", text, at - 1)
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._num_containers = 0
        self._num_values = 0

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """Return the value that begins at a position, after white space, and the position of its end."""
        opening, at = self.delimiter(at)
        if opening == "[" or opening == "{":
            if depth == MAX_DEPTH:
                raise _too_many(f"{MAX_DEPTH} lists and objects inside each other")
            self._num_containers += 1
            if self._num_containers > MAX_CONTAINERS:
                raise _too_many(f"{MAX_CONTAINERS} lists and objects")
            return (self._list if opening == "[" else self._object)(at, depth + 1)
        return self._scalar(at - len(opening))

    def _scalar(self, at: int) -> tuple[Any, int]:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise _too_many(f"{MAX_VALUES} numbers and strings")
        return SCALARS.raw_decode(self._text, at)

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        delimiter, end = self.delimiter(at)
        if delimiter == "]":
            return items, end
        while True:
            item, at = self.value(at, depth)
            items.append(item)
            delimiter, at = self.delimiter(at)
            if delimiter == "]":
                return items, at
            if delimiter != ",":
                raise JSONDecodeError("Expecting ',' delimiter", self._text, at - len(delimiter))

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        delimiter, end = self.delimiter(at)
        if delimiter == "}":
            return members, end
        while True:
            delimiter, at = self.delimiter(at)
            if delimiter != '"':
                raise JSONDecodeError("Expecting a name in double quotes", self._text, at - len(delimiter))
            name, at = self._scalar(at - 1)
            if name in members:
                raise ValueError(f"the key {name[:64]!r} appears twice in one object")
            if len(members) == MAX_NAMES:
                raise _too_many(f"{MAX_NAMES} names in one object")
            delimiter, at = self.delimiter(at)
            if delimiter != ":":
                raise JSONDecodeError("Expecting ':' delimiter", self._text, at - len(delimiter))
            members[name], at = self.value(at, depth)
            delimiter, at = self.delimiter(at)
            if delimiter == "}":
                return members, at
            if delimiter != ",":
                raise JSONDecodeError("Expecting ',' delimiter", self._text, at - len(delimiter))

    def delimiter(self, at: int) -> tuple[str, int]:
        """Return the next character that is not white space, empty at the end, and the position after it."""
        found = DELIMITER.match(self._text, at)
        assert found is not None  # it matches any text
        return found[1], found.end()
