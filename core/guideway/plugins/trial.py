"""Load a plugin in a fork first, so that a command outlives a plugin that ends the process which imports it."""

from __future__ import annotations

import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import _exit
from select import select
from signal import SIGINT, default_int_handler, getsignal
from threading import current_thread, main_thread

__all__ = ["ending", "marked_interrupts"]

PATIENCE = 60.0
"""Seconds that a fork may take. One that takes longer hangs, as the load itself may; that is not judged here."""

DONE = b"."


def ending(load: Callable[[], object]) -> int | None:
    """Call `load` in a fork of this process. Returns the exit status of the fork, less than 0 for a signal, if the call
    ended it, and None if it returned or raised: the caller sees that again. What it prints is not shown."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that a fork has not: it does nothing but import
        child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            sys.stdout = sys.stderr = open(null, "w")  # noqa: SIM115, PTH123 - which may be elsewhere
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with suppress(BaseException):
                load()
            os.write(writing, DONE)
        finally:
            _exit(0)
    os.close(writing)
    said: bytes | None = None
    try:
        if select([reading], [], [], PATIENCE)[0]:
            said = os.read(reading, 1)
    finally:
        if said != b"":  # else it has ended
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.close(reading)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if said == b"" else None


@contextmanager
def marked_interrupts() -> Iterator[None]:
    """Within, what Ctrl-C raises in the main thread can be told from a KeyboardInterrupt that a plugin raises."""
    if current_thread() is not main_thread() or getsignal(SIGINT) is not default_int_handler:
        yield
        return
    signal.signal(SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(SIGINT, default_int_handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
