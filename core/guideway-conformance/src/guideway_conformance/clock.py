"""Clocks that are changed while a plugin works."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import Any

__all__ = ["HOURS", "clock_moved", "clock_running"]

HOURS = 5 * 3600.0
"""Five hours, in seconds."""
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


@contextmanager
def clock_moved(component: type | ModuleType, seconds: float) -> Iterator[None]:
    """Set all clocks of `time`, and ``datetime.now``, ahead by `seconds`, also where modules of `component`'s package
    imported them by name. Affects only one thread."""
    with _clocks(component, lambda clock: lambda: clock() + seconds):
        yield


@contextmanager
def clock_running(component: type | ModuleType, seconds: float) -> Iterator[None]:
    """Replace the same clocks as `clock_moved` by clocks that advance by `seconds` with each reading, and stand still
    otherwise. 0 stops them, and a negative number turns them back. Affects only one thread."""

    def run(clock: Callable[[], float]) -> Callable[[], float]:
        began, times = clock(), count()
        return lambda: began + seconds * next(times)

    with _clocks(component, run):
        yield


@contextmanager
def _clocks(
    component: type | ModuleType, change: Callable[[Callable[[], float]], Callable[[], float]]
) -> Iterator[None]:
    today = change(time.time)

    class Changed(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(today(), tz)

    def in_ns(clock: Callable[[], float]) -> Callable[[], int]:
        changed = change(clock)
        return lambda: int(changed() * 1e9)

    changed: dict[Any, Any] = {datetime.datetime: Changed}
    for name in CLOCKS:
        clock = getattr(time, name)
        changed |= {clock: change(clock), getattr(time, f"{name}_ns"): in_ns(clock)}
    stem = component.__name__ if isinstance(component, ModuleType) else component.__module__
    package = stem.partition(".")[0]
    modules = [time, *(module for key, module in list(sys.modules.items()) if key.partition(".")[0] == package)]
    before = [
        (module, name, value)
        for module in modules
        for name, value in list(vars(module).items())
        if isinstance(value, type | type(time.time)) and value in changed
    ]
    try:
        for module, name, value in before:
            setattr(module, name, changed[value])
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
