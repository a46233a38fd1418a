"""A stopwatch that finds slow calls among many short ones."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping
from typing import Any

from guideway.runtime.work.threads import Deadline

__all__ = ["Stopwatch"]

FRESH_SECONDS = 0.05
"""Seconds for which a reading of the thread's processor clock is reused. Reading it takes ten times as long as reading
the monotonic clock, and longer than most calls."""


class _Collector(threading.local):
    """Measures garbage collection per thread. A collection visits all objects of the process, in whichever thread
    happens to allocate, and may take longer than a deadline."""

    seconds = 0.0
    """Processor seconds spent in collections."""
    _began = 0.0

    def watch(self) -> None:
        """Start measuring collections."""
        if self.on_collection not in gc.callbacks:
            gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        if not info["generation"]:  # collections of the youngest generation are frequent and short
            return
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


_COLLECTOR = _Collector()


class Stopwatch:
    """Finds calls that missed a deadline among consecutive calls of one thread.

    A call's wall time is measured exactly. Its processor time is a lower bound: the thread's processor time since the
    last reading of its clock, less the wall time between that reading and the call, less garbage collection.
    """

    def __init__(self, deadline: Deadline) -> None:
        _COLLECTOR.watch()
        self._deadline = deadline
        self._thread = 0
        self._began = self._read_at = 0.0
        self._processor = 0.0
        """The thread's processor seconds at `_read_at`."""
        self._left_out = self._worked = 0.0
        """Wall seconds, and at most that many processor seconds, of the call that do not count."""
        self._collected = 0.0
        """Seconds that collections had taken in the thread when the call began."""

    def start(self) -> float:
        """Start a call and return its time on the monotonic clock."""
        self._left_out = self._worked = 0.0
        self._collected = _COLLECTOR.seconds
        now = time.monotonic()
        if now - self._read_at > FRESH_SECONDS or self._thread != threading.get_ident():
            self._thread, self._read_at, self._processor = threading.get_ident(), now, time.thread_time()
        self._began = now
        return now

    def lap(self) -> float:
        """End the call that the last `start` or `lap` began, begin the next one, and return what `overrun` does. For
        many short calls it costs half; collections since `start` do not count for any of them."""
        began, now = self._began, time.monotonic()
        self._began = now
        if now - began > self._deadline.processor_seconds:
            taken = self.overrun(began)
            self.start()
            return taken
        if self._left_out:
            self._left_out = self._worked = 0.0
        return 0.0

    def leave_out(self, began: float, *, waited: bool) -> None:
        """Exclude the time since `began` from the call. `waited`: it was spent waiting for another process, without
        processor time of this thread."""
        seconds = time.monotonic() - began
        self._left_out += seconds
        self._worked += 0.0 if waited else seconds

    def overrun(self, began: float, share: float = 1.0) -> float:
        """Return the wall seconds of the call that `began` then, if it missed the deadline times `share`; else 0."""
        taken = time.monotonic() - began - self._left_out
        if taken <= self._deadline.processor_seconds * share:
            return 0.0
        processor = time.thread_time() - self._processor - (began - self._read_at) - self._worked
        processor -= _COLLECTOR.seconds - self._collected
        self._thread = 0  # read the clock again for the next call
        missed = processor > self._deadline.processor_seconds * share or taken > self._deadline.wall_seconds * share
        return taken if missed else 0.0
