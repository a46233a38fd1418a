"""A watch for which of many short calls took too long."""

from __future__ import annotations

import threading
import time

from guideway.runtime.threads import Deadline

__all__ = ["Stopwatch"]

FRESH_SECONDS = 0.05
"""For so long a reading of the thread's clock serves: it takes ten times as long to read as the other, and longer than
most calls."""


class Stopwatch:
    """Finds the call that missed a deadline, among calls of one thread after another.

    Of a call it knows what it took by the clock, and of a processor at least that: what the thread has taken since a
    moment before the call, less the time that passed from that moment to the call.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._thread = 0
        self._read_at = 0.0
        self._processor = 0.0
        """Seconds the thread had taken then."""
        self._left_out = self._worked = 0.0
        """Seconds of the call that do not count, by the clock and, at most, of a processor."""

    def start(self) -> float:
        """The time at which a call begins."""
        self._left_out = self._worked = 0.0
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
        self._thread = 0  # what the call took is not the next one's
        missed = processor > self._deadline.processor_seconds * share or taken > self._deadline.wall_seconds * share
        return taken if missed else 0.0
