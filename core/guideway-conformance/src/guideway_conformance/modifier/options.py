"""Options of requests that differ from those of an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from guideway.api import Example

__all__ = ["nearly", "of_all_sorts", "repeated", "texts", "with_texts"]

LAST = 997
"""A token id near the end of the vocabulary, of neither a special token nor a stop token."""


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


def repeated(value: Any, length: int) -> Any:
    """A text or list of `length` entries, which are those of `value` again and again."""
    return (value * (length // len(value) + 1))[:length]


def of_all_sorts(value: Any, length: int) -> list[Any]:
    """A list of `length` entries, which are those of `value`, and then others like the last one."""
    return [*value, *(_another(value[-1], i) for i in range(length - len(value)))]


def _another(value: Any, number: int) -> Any:
    """The `number`-th value like `value`: another number, which may be a token id, or with that in it."""
    if isinstance(value, str):
        return f"{value} {number}"
    if isinstance(value, int) and not isinstance(value, bool):
        return LAST - number % LAST
    if isinstance(value, float):
        return value * (1 + number / 1000)
    if isinstance(value, Mapping):
        return {key: _another(entry, number) for key, entry in value.items()}
    return [*value[:-1], _another(value[-1], number)] if isinstance(value, list | tuple) and value else value


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
