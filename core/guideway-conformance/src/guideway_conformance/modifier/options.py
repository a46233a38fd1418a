"""Options of requests that differ from those of an example."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from guideway.api import Example

from guideway_conformance.hints import Hints

__all__ = ["BORDERS", "nearly", "texts", "typed", "with_texts"]

BORDERS = (0, 31, 32, 63, 64)
"""Token ids where a word of a bitmask begins or ends."""


def typed(options: Mapping[str, Any], hints: Hints, size: int) -> Iterator[dict[str, Any]]:
    """`options` with one of those that `hints` are known of as another value of its type: a number that is not finite,
    a token id of a vocabulary of `size` tokens or the one past it, an empty list and a longer one."""
    changed = [
        [{**options, key: other} for other in _others(hint, options.get(key), size)] for key, hint in hints.items()
    ]
    yield from (found for some in zip_longest(*changed) for found in some if found is not None)


def _others(hint: Any, value: Any, size: int) -> Iterator[Any]:
    """Values of the type `hint`, some of them near `value`."""
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
        borders = BORDERS if args and args[0] is int else ()
        yield from ([*entries, *others[:1]], [], [*entries, *borders], [*entries, *entries], entries[:1], entries[::-1])
        yield from ([*entries, other] for other in others[1:])


def nearly(options: Mapping[str, Any], examples: Sequence[Example]) -> Iterator[dict[str, Any]]:
    """`options` with one of them left out, changed a little, or as in another of the `examples`."""
    yield from ({key: options[key] for key in options if key != left} for left in options)
    changed = [[{**options, key: other} for other in _changed(options[key])] for key in options]
    yield from (found for some in zip_longest(*changed) for found in some if found is not None)
    for example in examples:
        yield from (
            {**options, key: value}
            for key, value in example.options.items()
            if key not in options or options[key] != value
        )


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A plain value with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: with_texts(entry, change) for key, entry in value.items()}
    return [with_texts(entry, change) for entry in value] if isinstance(value, list | tuple) else value


def texts(value: Any) -> Iterator[bytes]:
    """The texts in a plain value."""
    if isinstance(value, str):
        yield value.encode(errors="replace")
    elif isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from texts(entry)


def _changed(value: Any) -> Iterator[Any]:
    """Plain values that differ from `value` in one place, and not by much."""
    if isinstance(value, str):
        yield from (value.swapcase(), value[::-1], value[:-1])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (value + 1, value + 1e-3 if isinstance(value, float) else value + 2)
    elif isinstance(value, Mapping):
        yield from ({**value, key: other} for key in value for other in _changed(value[key]))
    elif isinstance(value, list | tuple):
        yield from (value[::-1], value[:-1])
        for i, entry in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in _changed(entry))
