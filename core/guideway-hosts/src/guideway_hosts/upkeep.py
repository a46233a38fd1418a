"""Functions that a process of hosts calls on itself: for its name in process lists, its end and its memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
import time
from contextlib import suppress

from guideway.runtime.work.stacks import STACK_BYTES

from guideway_hosts.process import Process

__all__ = ["Heap", "die_before_others", "die_with_parent", "limit_memory", "pad_pid", "show_as", "show_owner"]

TRIMS_EVERY = 5.0
"""Seconds between two times that a host returns free memory to the system."""

TRIMS_AT = 8 << 20
"""Growth in bytes after which a host returns free memory earlier."""

LOOKS_EVERY = 0.02
"""Seconds between two checks of the growth. Growing that much takes longer than this."""

DIGITS = 10
"""Most digits of a PID."""

ARGUMENTS_END = 46
"""Index, after the name, of the field of ``/proc/PID/stat`` with the address at which the process's arguments end."""

HEAP_BYTES = 64 << 20
"""Bytes of address space that glibc reserves for each thread's heap, however little is allocated."""

PDEATHSIG = 1
"""The option of Linux's ``prctl`` that sets the signal sent to a process when its parent ends."""


class Heap:
    """The heap of native code. glibc keeps the memory of a large grammar after it is freed, and so does the heap of
    each thread."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._trimmed_at = self._looked_at = time.monotonic()
        self._process = Process(os.getpid())
        self._kept = self._process.memory()[0]
        """The resident bytes after the last time."""

    def tidy(self) -> None:
        """Return free memory to the system, at most every `TRIMS_EVERY` seconds or `TRIMS_AT` bytes of growth."""
        now = time.monotonic()
        if self._trim is None or now < self._looked_at + LOOKS_EVERY:
            return
        self._looked_at = now
        grown = self._process.memory()[0] - self._kept
        if grown > TRIMS_AT or now > self._trimmed_at + TRIMS_EVERY:
            self._trim(0)
            self._trimmed_at, self._kept = now, self._process.memory()[0]


def die_with_parent() -> None:
    """Let Linux kill this process when its parent ends, even if native code never returns. Other systems have only the
    closed socket to end it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)


def die_before_others() -> None:
    """Let the kernel kill this process and its children before any other when memory runs out: their work can be
    repeated, the serving process's state cannot."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - as in `_pages`
        file.write("1000")


def show_as(role: str) -> None:
    """Show a role as the name of this process in process lists, if the system allows it: the first 15 characters."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:  # noqa: PTH123 - as in `_pages`
        file.write(role)


def pad_pid(pid: int) -> str:
    """Return a PID as the last argument of a command, padded so that `show_owner` can replace it with any other."""
    return str(pid).ljust(DIGITS)


def show_owner(pid: int) -> None:
    """Replace the last argument of this process's command, in process lists, with another PID."""
    with suppress(OSError):
        with open("/proc/self/stat") as file:  # noqa: PTH123 - as in `_pages`
            end = int(file.read().rpartition(")")[2].split()[ARGUMENTS_END])
        address = end - DIGITS - 1
        if end and ctypes.string_at(address, DIGITS + 1).rstrip(b" \0").isdigit():
            ctypes.memmove(address, pad_pid(pid).encode(), DIGITS)


def limit_memory(num_bytes: int) -> None:
    """Limit the memory that the process may allocate from now on to `num_bytes`."""
    if not (pages := _pages()):
        return
    limit = pages * mmap.PAGESIZE + num_bytes + 2 * (STACK_BYTES + HEAP_BYTES)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _pages() -> int:
    """Return the pages of this process's address space; 0 if the system does not report them."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - a path for each look costs more
            return int(file.read(256).split()[0])
    except OSError:
        return 0
