"""Handle SIGTERM like Ctrl-C, for commands that must save something when they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIG_DFL, SIGTERM, getsignal, signal
from threading import current_thread, main_thread
from typing import NoReturn

__all__ = ["Terminated", "interrupted_by_sigterm", "status_of"]


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM. Handled like Ctrl-C, with another exit status."""


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` in the main thread. No effect in other threads, or if SIGTERM is already handled
    or ignored."""
    if current_thread() is not main_thread() or getsignal(SIGTERM) is not SIG_DFL:
        yield
        return
    signal(SIGTERM, _terminate)
    try:
        yield
    finally:
        signal(SIGTERM, SIG_DFL)


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status of a program that `interrupt` ended."""
    return 143 if isinstance(interrupt, Terminated) else 130


def _terminate(*_: object) -> NoReturn:
    raise Terminated
