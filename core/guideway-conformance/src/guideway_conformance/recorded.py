"""Dicts and lists that record every write to them, even one that is undone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

__all__ = ["Lent", "recorded"]

T = TypeVar("T")


class Lent(Mapping[str, Any]):
    """A read-only mapping that is not a dict."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def __getitem__(self, name: str) -> Any:
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return repr(self._content)


def _note_writes(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(write)
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        before = len(self), list(self)
        found = write(self, *arguments, **named)
        if name in ("__setitem__", "sort", "reverse") or before != (len(self), list(self)):
            self.written.append(name)
        return found

    return noted


class _RecordedDict(dict[Any, Any]):
    written: list[str]

    def __reduce__(self) -> Any:  # a copy is a plain dict
        return dict, (dict(self),)


class _RecordedList(list[Any]):
    written: list[str]

    def __reduce__(self) -> Any:
        return list, (list(self),)


for _class, _of, _names in (
    (_RecordedDict, dict, ("pop", "popitem", "clear", "update", "setdefault", "__ior__")),
    (_RecordedList, list, ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse")),
    (_RecordedList, list, ("__iadd__", "__imul__")),
):
    for _name in (*_names, "__setitem__", "__delitem__"):
        setattr(_class, _name, _note_writes(_name, getattr(_of, _name)))


def recorded(value: T, written: list[str]) -> T:
    """Return `value`, with dicts and lists in it that append a note to `written` for every change."""
    return _record(value, written)  # type: ignore[no-any-return]


def _record(value: Any, written: list[str]) -> Any:
    found: Any = value
    if type(value) is dict:
        found = _RecordedDict({name: recorded(each, written) for name, each in value.items()})
        found.written = written
    elif type(value) is list:
        found = _RecordedList(recorded(each, written) for each in value)
        found.written = written
    elif type(value) is tuple and not all(isinstance(each, int) for each in value):
        found = tuple(recorded(each, written) for each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        found = copy.copy(value)
        for each in fields(value):
            object.__setattr__(found, each.name, recorded(getattr(value, each.name), written))
    return found
