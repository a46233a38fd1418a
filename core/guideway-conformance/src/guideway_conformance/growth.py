"""The work and the memory of a plugin, measured without a clock."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from guideway_conformance.subjects import expect

__all__ = [
    "Kept",
    "Meter",
    "Open",
    "Work",
    "alive",
    "expect_same_work",
    "resident",
    "traced",
]

PATIENCE_SECONDS = 5.0
"""Seconds that threads may take to end."""


@dataclass(frozen=True, slots=True)
class Open:
    """The threads and the open files of this process; only Python's own threads if the system has no /proc."""

    threads: int
    files: int

    @staticmethod
    def now() -> Open:
        """Count them."""
        try:
            return Open(*(len(list(Path("/proc/self", name).iterdir())) for name in ("task", "fd")))
        except OSError:
            return Open(threading.active_count(), 0)

    @staticmethod
    def soon(wanted: Open) -> Open:
        """Count them when there are no more than `wanted`, or after a while: threads need a moment to end."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            gc.collect()
            found = Open.now()
            if (found.threads <= wanted.threads and found.files <= wanted.files) or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def expect_no_more_than(self, earlier: Open, what: str) -> None:
        """Fail if there are more than at an earlier time."""
        more = max(0, self.threads - earlier.threads), max(0, self.files - earlier.files)
        expect(not any(more), f"{what} left {more[0]} threads and {more[1]} open files behind")


def alive(references: Iterable[weakref.ref[Any]]) -> int:
    """Return the number of different referents that still exist, though nothing should keep them alive."""
    gc.collect()
    return len({id(found) for reference in references if (found := reference()) is not None})


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Trace allocations. The yielded function returns the bytes allocated since then, by Python and NumPy, and not yet
    freed."""
    tracemalloc.start()
    try:

        def held() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        yield held
    finally:
        tracemalloc.stop()


def resident() -> int:
    """Return the bytes of memory that this process uses; 0 if the system has no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Kept:
    """The memory that each round of a function leaves allocated, after some rounds to warm up."""

    def __init__(self, once: Callable[[int], object], *, warm_up: int, rounds: int) -> None:
        with traced() as held:
            for number in range(warm_up):
                once(number)
            before = held()
            for number in range(warm_up, warm_up + rounds):
                once(number)
            self.nbytes = (held() - before) / rounds
            """Bytes per round."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a typical call: the median of several, so that an occasional expensive call, as when a table grows,
    does not count."""

    lines: float
    """Lines of Python executed, counting every iteration of a loop."""
    nbytes: float
    """Peak of allocated memory in bytes."""
    seconds: float
    """CPU seconds of the cheapest call, which is the least disturbed."""


UNITS = {"lines": "lines of Python", "nbytes": "bytes of memory", "seconds": "seconds of processor time"}


class Meter:
    """Counts the work of calls: lines of Python and memory of every other call, CPU time of the rest, because counting
    slows a call down."""

    def __init__(self) -> None:
        self._lines: list[int] = []
        self._nbytes: list[int] = []
        self._seconds: list[float] = []

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function`, and count its work."""
        if len(self._lines) > len(self._seconds):
            began = time.thread_time()
            try:
                return function(*args)
            finally:
                self._seconds.append(time.thread_time() - began)
        lines = 0

        def count(_frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        tracemalloc.start()
        before = sys.gettrace()
        sys.settrace(count)
        try:
            return function(*args)
        finally:
            sys.settrace(before)
            self._lines.append(lines)
            self._nbytes.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    def work(self) -> Work:
        """Return the work of all calls. There must have been at least two."""
        return Work(statistics.median(self._lines), statistics.median(self._nbytes), min(self._seconds))


FACTORS = Work(1.5, 4, 16)
"""Growth that may be noise. Lines are counted exactly; CPU time is the least reliable."""


def expect_same_work(early: Work, late: Work, more: Work, what: str) -> None:
    """Fail if later calls do several times the work of earlier ones, and at least `more` in addition."""
    for name in ("lines", "nbytes", "seconds"):
        first, last, factor, least = (getattr(work, name) for work in (early, late, FACTORS, more))
        expect(
            last <= factor * first or last - first < least,
            f"{what} took {last:g} {UNITS[name]} for a token late in an output, and {first:g} for an early one",
        )
