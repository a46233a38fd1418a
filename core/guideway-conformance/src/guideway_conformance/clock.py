"""A clock that is moved, while a plugin works."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["HOURS", "clock_moved"]

HOURS = 5 * 3600.0
"""Seconds."""
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


@contextmanager
def clock_moved(component: type | ModuleType, seconds: float) -> Iterator[None]:
    """All clocks of `time`, and ``datetime.now``, ahead by `seconds`, also where modules of the package of `component`
    imported them by name. For one thread."""

    def ahead(clock: Callable[[], Any], by: float) -> Callable[[], Any]:
        return lambda: clock() + by

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=seconds)

    changed: dict[Any, Any] = {datetime.datetime: Later}
    for name in CLOCKS:
        clock, in_ns = getattr(time, name), getattr(time, f"{name}_ns")
        changed |= {clock: ahead(clock, seconds), in_ns: ahead(in_ns, int(seconds * 1e9))}
    name = component.__name__ if isinstance(component, ModuleType) else component.__module__
    package = name.partition(".")[0]
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
