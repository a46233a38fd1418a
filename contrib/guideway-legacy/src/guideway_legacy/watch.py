"""Detects state in a processor that all sequences share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Watch"]

MAX_ITEMS = 256
"""Containers longer than this are compared by their length only."""

Holdings = dict[str, tuple[Any, tuple[Any, ...]]]
"""By name: the object, and its items if it is a container. References to all of them keep addresses unique."""


class Watch:
    """Compares the contents of a callable before and after each of its calls.

    It detects a change of attributes, closure cells, the object of a bound method and the members of a processor list;
    changed items of containers among them; and tensors changed in place. It does not detect changes of globals, of
    objects inside objects, or in C code. The very first call may change something, because many processors fill a cache
    then.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._called = False
        self._before: Holdings = {}

    def begin(self) -> None:
        """Record the contents just before a call."""
        if self._called:
            self._before = _holdings(self._target)

    def changed(self) -> str | None:
        """Return the name of something that the call changed and should not have."""
        if not self._called:
            self._called = True
            return None
        before, self._before = self._before, {}
        after = _holdings(self._target)
        for name in sorted(before.keys() | after.keys()):
            if name not in before or name not in after or not _same(before[name], after[name]):
                return name
        return None


def _same(old: tuple[Any, tuple[Any, ...]], new: tuple[Any, tuple[Any, ...]]) -> bool:
    return (
        _alike(old[0], new[0])
        and len(old[1]) == len(new[1])
        and all(_alike(a, b) for a, b in zip(old[1], new[1], strict=True))
    )


def _alike(old: Any, new: Any) -> bool:
    """Return whether both are one object, or equal numbers, texts or the like; equal containers or tensors do not
    count."""
    try:
        return old is new or (type(old) is type(new) and hash(old) == hash(new) and (old == new) is True)
    except Exception:  # no hash, or no comparison
        return False


def _holdings(target: Any) -> Holdings:
    if isinstance(target, list):  # a transformers LogitsProcessorList
        members = [(f"[{i}].{name}", held) for i, one in enumerate(target) for name, held in _holdings(one).items()]
        return dict(members)
    found: Holdings = {}
    for owner in (getattr(target, "__self__", None), target):
        for name, value in getattr(owner, "__dict__", {}).items():
            found[name] = (value, tuple(_items(value)))
    names = getattr(getattr(target, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(target, "__closure__", None) or (), strict=False):
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        found[name] = (value, tuple(_items(value)))
    return found


def _items(value: Any) -> Iterator[Any]:
    """Yield values that differ between any two states of an object."""
    if isinstance(value, list | tuple | dict | set | bytearray):
        yield len(value)
        if len(value) <= MAX_ITEMS:
            for item in value:
                yield item
                if isinstance(value, dict):
                    yield value[item]
    elif hasattr(value, "is_inference") and not value.is_inference():
        yield getattr(value, "_version", None)  # a tensor counts its changes in place
