"""SIGTERM as a wish to stop, for a command that has something to save when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIG_DFL, SIGTERM, getsignal, signal
from threading import current_thread, main_thread
from typing import NoReturn

__all__ = ["Terminated", "interrupted_by_sigterm", "status_of"]


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C does is done, and the exit status says which of them it was."""


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Within, SIGTERM raises `Terminated` in the main thread. Without effect in other threads, and where SIGTERM is
    handled or ignored already."""
    if current_thread() is not main_thread() or getsignal(SIGTERM) is not SIG_DFL:
        yield
        return
    signal(SIGTERM, _terminate)
    try:
        yield
    finally:
        signal(SIGTERM, SIG_DFL)


def status_of(interrupt: KeyboardInterrupt) -> int:
    """The exit status of a program that was ended so."""
    return 143 if isinstance(interrupt, Terminated) else 130


def _terminate(*_: object) -> NoReturn:
    raise Terminated
