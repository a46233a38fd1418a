"""The types of a plugin's options, found while it parses them, and other values of these types."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from types import FrameType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from guideway.api import parse_options

__all__ = ["BORDERS", "Hints", "hints_read", "typed"]

BORDERS = (0, 31, 32, 63, 64)
"""Token ids at the beginning or the end of a word in a bitmask."""


class Hints(dict[str, Any]):
    """The type hints of options, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.defaults: dict[str, Any] = {}
        """Default values, used where an operator sets none."""


@contextmanager
def hints_read() -> Iterator[Hints]:
    """Collect the type hints of all options that this thread reads with `parse_options` in the meantime."""
    found = Hints()

    def called(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code is parse_options.__code__:
            cls = frame.f_locals["cls"]
            hints = get_type_hints(cls, include_extras=True)
            fields = [field for field in dataclasses.fields(cls) if field.init]
            found.update({field.name: hints[field.name] for field in fields})
            found.defaults.update({field.name: field.default for field in fields})

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)


def typed(options: Mapping[str, Any], hints: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Yield `options` with one option at a time, of those in `hints`, set to another value of its type: a number that
    is not finite, a token id of a vocabulary of `size` tokens or the one past it, an empty list and a longer one."""
    changed = [
        [{**options, key: other} for other in _others(hint, options.get(key), size)] for key, hint in hints.items()
    ]
    yield from (found for some in zip_longest(*changed) for found in some if found is not None)


def _others(hint: Any, value: Any, size: int) -> Iterator[Any]:
    """Yield values of the type `hint`, some of them near `value`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _others(args[0], value, size)
    elif origin in (Union, types.UnionType):
        for member in args:
            yield from [None] if member is types.NoneType else _others(member, value, size)
    elif origin is Literal:
        yield from args
    elif hint is bool:
        yield from (True, False)
    elif hint is int:
        whole = value if isinstance(value, int) else 4
        yield from (size, whole + 1, whole // 2, 0, 2 * whole, whole - 1, -1, size - 1, 1)
    elif hint is float:
        real = value if isinstance(value, int | float) else 0.5
        yield from (math.nan, real / 2, math.inf, 0.0, 2 * real, -real, -math.inf, 1.0, real + 0.01)
    elif hint is str:
        text = value if isinstance(value, str) else ""
        yield from ("ab", text + text, "", text[:-1], text.swapcase(), "b\u00e9 a")
    elif origin in (tuple, list):
        entries = list(value) if isinstance(value, list | tuple) else []
        others = list(_others(args[0], entries[0] if entries else None, size)) if args else []
        borders = _at_borders(args[0], entries) if args else []
        yield from ([*entries, *others[:1]], [], [*entries, *borders], [*entries, *entries], entries[:1], entries[::-1])
        yield from ([*entries, other] for other in others[1:])
    elif isinstance(origin, type) and issubclass(origin, Mapping) and args:
        known = dict(value) if isinstance(value, Mapping) else {}
        key, entry = next(iter(known.items()), (None, None))
        entries = list(_others(args[1], entry, size))
        yield from ({**known, other: found} for other, found in zip(_others(args[0], key, size), entries, strict=False))
        yield {}
        yield from ({**known, key: found} for found in entries if known)


def _at_borders(hint: Any, entries: list[Any]) -> list[Any]:
    """Return entries of the type `hint` with the token ids of `BORDERS`; in entries that are lists, as the last
    item."""
    if hint is int:
        return list(BORDERS)
    if get_origin(hint) in (tuple, list) and get_args(hint):
        start = list(entries[0])[:-1] if entries else []
        return [[*begin, one] for one in _at_borders(get_args(hint)[0], start) for begin in ([], start)]
    return []
