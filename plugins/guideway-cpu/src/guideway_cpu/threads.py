"""Threads that share the rows of a batch.

numba's own layers of threads do not outlive a fork, and some end the forked process; an executor is made anew there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["in_threads"]

_executors: dict[int, ThreadPoolExecutor] = {}
"""By number of threads; each starts them with its first tasks."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executors.clear)


def in_threads(count: int, work: Callable[[int, int], None]) -> None:
    """``work(first, count)`` for each `first` below `count`, the first in this thread. Returns when all have ended, and
    raises what one of them raised."""
    executor = _executors.get(count)
    if executor is None:
        executor = _executors.setdefault(count, ThreadPoolExecutor(count - 1, thread_name_prefix="guideway-cpu"))
    others = [executor.submit(work, first, count) for first in range(1, count)]
    try:
        work(0, count)
    finally:  # they may be writing to memory that is freed after this
        failures = [other.exception() for other in others]
    for failure in failures:
        if failure is not None:
            raise failure
