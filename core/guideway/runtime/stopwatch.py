"""A watch for which of many short calls took too long."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping
from typing import Any

from guideway.runtime.threads import Deadline

__all__ = ["Stopwatch"]

FRESH_SECONDS = 0.05
"""For so long a reading of the thread's clock serves: it takes ten times as long to read as the other, and longer than
most calls."""


class _Collector(threading.local):
    """The time that the collector of garbage has taken of each thread: it looks through all objects of the process, in
    whichever thread happens to make one, and that may take longer than a deadline allows."""

    seconds = 0.0
    """Seconds of a processor."""
    _began = 0.0

    def watch(self) -> None:
        """Know of all collections from now on."""
        if self.heard not in gc.callbacks:
            gc.callbacks.append(self.heard)

    def heard(self, phase: str, info: Mapping[str, Any]) -> None:
        if not info["generation"]:  # of the youngest: many, and short
            return
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


_COLLECTOR = _Collector()


class Stopwatch:
    """Finds the call that missed a deadline, among calls of one thread after another.

    Of a call it knows what it took by the clock, and of a processor at least that: what the thread has taken since a
    moment before the call, less the time that passed from that moment to the call, and less what the collector of
    garbage took of it meanwhile.
    """

    def __init__(self, deadline: Deadline) -> None:
        _COLLECTOR.watch()
        self._deadline = deadline
        self._thread = 0
        self._read_at = 0.0
        self._processor = 0.0
        """Seconds the thread had taken then."""
        self._left_out = self._worked = 0.0
        """Seconds of the call that do not count, by the clock and, at most, of a processor."""
        self._collected = 0.0
        """Seconds that the collector had taken of the thread when the call began."""

    def start(self) -> float:
        """The time at which a call begins."""
        self._left_out = self._worked = 0.0
        self._collected = _COLLECTOR.seconds
        now = time.monotonic()
        if now - self._read_at > FRESH_SECONDS or self._thread != threading.get_ident():
            self._thread, self._read_at, self._processor = threading.get_ident(), now, time.thread_time()
        return now

    def leave_out(self, began: float, *, waited: bool) -> None:
        """Leave out of the call's time what passed since then; `waited`: for another process, which takes no time of a
        processor here."""
        seconds = time.monotonic() - began
        self._left_out += seconds
        self._worked += 0.0 if waited else seconds

    def overrun(self, began: float, share: float = 1.0) -> float:
        """Return how many seconds by the clock the call took that `began` then, if that missed the deadline, or `share`
        times the deadline; else 0."""
        taken = time.monotonic() - began - self._left_out
        if taken <= self._deadline.processor_seconds * share:
            return 0.0
        processor = time.thread_time() - self._processor - (began - self._read_at) - self._worked
        processor -= _COLLECTOR.seconds - self._collected
        self._thread = 0  # what the call took is not the next one's
        missed = processor > self._deadline.processor_seconds * share or taken > self._deadline.wall_seconds * share
        return taken if missed else 0.0
