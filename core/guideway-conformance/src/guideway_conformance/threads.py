"""Threads that take turns often, in the midst of a plugin's code."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

__all__ = ["interleaved"]

ONE_IN = 12
"""A thread pauses after one in so many lines of the plugin, so that another one goes on: to change threads by the clock
alone depends on what else the machine does."""
MOST = 20_000
"""Pauses in all, unless a check says how many."""


@contextmanager
def interleaved(component: type | ModuleType, most: int = MOST) -> Iterator[None]:
    """Threads that are started within change often, and in the midst of the code of `component`'s package: `most` times
    in all, each of which may wait for an operation of another one over a whole array."""
    name = component.__name__ if isinstance(component, ModuleType) else component.__module__
    top = sys.modules[name.partition(".")[0]]
    folders = tuple(f"{Path(path).resolve()}/" for path in getattr(top, "__path__", ()))
    files = (*folders, str(Path(sys.modules[name].__file__ or "?").resolve()))
    left = most
    rng = random.Random(0)

    def pause(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if event == "line" and left and not rng.randrange(ONE_IN):
            left -= 1
            time.sleep(1e-6)
        return pause

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        return pause if frame.f_code.co_filename.startswith(files) else None

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threading.settrace(enter)
    try:
        yield
    finally:
        threading.settrace(None)
        sys.setswitchinterval(interval)
