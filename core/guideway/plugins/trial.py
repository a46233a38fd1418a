"""Load a plugin in a fork first, so that a command survives plugins that end the importing process."""

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
"""Seconds to wait for the fork. A fork that takes longer is killed and counts as successful; the load itself may then
hang."""

DONE = b"."


def ending(load: Callable[[], object]) -> int | None:
    """Call `load` in a fork of this process and suppress its output. Return the fork's exit status, negative for a
    signal, if the call ended it. Return None if the call returned or raised, as it will for the caller."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing threads in the fork, which only imports
        child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            sys.stdout = sys.stderr = open(null, "w")  # noqa: SIM115, PTH123 - which may have other descriptors
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
        if said != b"":  # otherwise it has ended
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.close(reading)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if said == b"" else None


@contextmanager
def marked_interrupts() -> Iterator[None]:
    """Raise Ctrl-C's KeyboardInterrupt from a recognizable handler, to distinguish it from a plugin's, and again at the
    end of the block: modules that are imported meanwhile may catch it, or raise another error for it."""
    if current_thread() is not main_thread() or getsignal(SIGINT) is not default_int_handler:
        yield
        return
    came = False

    def interrupt(*_: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    signal.signal(SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(SIGINT, default_int_handler)
        if came:
            raise KeyboardInterrupt
