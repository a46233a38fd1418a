"""Threads that share the rows of a batch.

numba's own thread pools do not survive a fork, and some end the forked process; a child creates a new executor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["in_threads"]

_executors: dict[int, ThreadPoolExecutor] = {}
"""Executors by number of threads; each starts its threads with its first tasks."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executors.clear)


def in_threads(count: int, work: Callable[[int, int], None]) -> None:
    """Run ``work(first, count)`` for each `first` below `count`, the first in this thread. Return when all have ended,
    and raise the error of one that failed. An interrupt is raised when all have ended too."""
    executor = _executors.get(count)
    if executor is None:
        executor = _executors.setdefault(count, ThreadPoolExecutor(count - 1, thread_name_prefix="guideway-cpu"))
    others: list[Future[None]] = []
    try:
        for first in range(1, count):
            others.append(executor.submit(work, first, count))
        work(0, count)
    finally:  # they may be writing to memory that the caller frees
        _wait_for(others)
    for other in others:
        other.result()


def _wait_for(futures: list[Future[None]]) -> None:
    """Wait until all are done, whether or not they raise. Raise what interrupts the wait afterwards."""
    interrupt: BaseException | None = None
    for future in futures:
        while not future.done():
            try:
                future.exception()
            except BaseException as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt
