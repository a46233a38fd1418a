"""The question whether the result of a thread's work is still wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["asking", "is_wanted"]

_ASKS: ContextVar[Callable[[], bool]] = ContextVar("asks", default=lambda: True)


@contextmanager
def asking(asks: Callable[[], bool]) -> Iterator[None]:
    """Let `is_wanted` return the answer of `asks` to this thread in the body."""
    token = _ASKS.set(asks)
    try:
        yield
    finally:
        _ASKS.reset(token)


def is_wanted() -> bool:
    """Return whether the result of this thread's work is still wanted. Work that can end early asks now and then, and
    raises an error after the answer False."""
    return _ASKS.get()()
