"""The care of a process of hosts for itself: its name in lists, its end, its memory."""

from __future__ import annotations

import ctypes
import mmap
import resource
import signal
import sys
import time
from contextlib import suppress

from guideway.runtime.work.stacks import STACK_BYTES

__all__ = ["Heap", "die_before_others", "die_with_parent", "limit_memory", "show_as", "show_owner", "shown"]

TRIMS_EVERY = 5.0
"""Seconds of work after which a host gives the system back what was freed."""

TRIMS_AT = 8 << 20
"""The same, in bytes that it has grown by since."""

LOOKS_EVERY = 0.02
"""Seconds between two looks at that, each of which takes as long as a short answer; to grow so much takes longer."""

DIGITS = 10
"""The most that a process's number has."""

ARGUMENTS_END = 46
"""The place in ``/proc/PID/stat``, after the name, of the address at which the command of a process ends."""

HEAP_BYTES = 64 << 20
"""Address space that glibc takes for the heap of a thread, whatever is allocated in it."""

PDEATHSIG = 1
"""The option of Linux's ``prctl`` for which signal a process has when its parent ends."""


class Heap:
    """The memory that C allocates. glibc keeps what a large grammar had once that is freed, and so does every thread's
    heap."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._trimmed_at = self._looked_at = time.monotonic()
        self._pages = _pages(1)

    def tidy(self) -> None:
        """Give the system back what is free, now and then."""
        now = time.monotonic()
        if self._trim is None or now < self._looked_at + LOOKS_EVERY:
            return
        self._looked_at = now
        grown = (_pages(1) - self._pages) * mmap.PAGESIZE
        if grown > TRIMS_AT or now > self._trimmed_at + TRIMS_EVERY:
            self._trim(0)
            self._trimmed_at, self._pages = now, _pages(1)


def die_with_parent() -> None:
    """End with the process that forked this one, also amid native code that never returns. Elsewhere than on Linux the
    end of the socket has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)


def die_before_others() -> None:
    """Have the kernel end this process, or one that it forks, before any other one where memory runs out: what it did
    can be done again, and what the serving process holds cannot."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - as in `_pages`
        file.write("1000")


def show_as(role: str) -> None:
    """Have lists of processes show what this one is for, where the system lets it: its first 15 characters."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:  # noqa: PTH123 - as in `_pages`
        file.write(role)


def shown(pid: int) -> str:
    """The number of a process as the last argument of a command, where `show_owner` has room for any other."""
    return str(pid).ljust(DIGITS)


def show_owner(pid: int) -> None:
    """Have the command of this process, in lists of processes, end with another process's number."""
    with suppress(OSError):
        with open("/proc/self/stat") as file:  # noqa: PTH123 - as in `_pages`
            end = int(file.read().rpartition(")")[2].split()[ARGUMENTS_END])
        address = end - DIGITS - 1
        if end and ctypes.string_at(address, DIGITS + 1).rstrip(b" \0").isdigit():
            ctypes.memmove(address, shown(pid).encode(), DIGITS)


def limit_memory(num_bytes: int) -> None:
    """Let the process allocate so much more."""
    if not (pages := _pages(0)):
        return
    limit = pages * mmap.PAGESIZE + num_bytes + 2 * (STACK_BYTES + HEAP_BYTES)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _pages(which: int) -> int:
    """Count the pages of this process: 0: all it may use; 1: those that are in memory. 0 where the system does not
    tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - a path for each look costs more
            return int(file.read(256).split()[which])
    except OSError:
        return 0
