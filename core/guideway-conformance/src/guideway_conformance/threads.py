"""Threads that are switched often, in the middle of a plugin's code."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeVar

__all__ = ["amid", "interleaved"]

T = TypeVar("T")

ONE_IN = 12
"""A thread pauses, so that another can run, after one in this many lines of the plugin: thread switches by the clock
depend on what else the machine does."""
MOST = 20_000
"""Maximum pauses, unless a check sets another number."""


@contextmanager
def interleaved(component: type | ModuleType, most: int = MOST) -> Iterator[None]:
    """Switch threads that are started in the meantime often, in the middle of the code of `component`'s package; `most`
    times in all, because each may wait for another thread's operation on a whole array."""
    files = _files(component)
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


def amid(component: type | ModuleType, call: Callable[[], T], other: Callable[[], object]) -> Iterator[T]:
    """Yield the values of `call` with another thread that does all of `other` before one line of `component`'s package,
    for each such line in turn: all orders of two calls in which one is interrupted once. Where a lock makes `other`
    wait, `call` continues first."""
    files = _files(component)
    place = 0
    while place < LINES:
        found, came = _interrupt(files, call, other, place)
        if not came:
            return
        yield found
        place += 1


LINES = 200
"""Maximum lines of a call that are interrupted."""
PATIENCE = 0.05
"""Seconds that an interrupted call waits for the other."""


def _interrupt(
    files: tuple[str, ...], call: Callable[[], T], other: Callable[[], object], place: int
) -> tuple[T, bool]:
    """Return the value of `call` with `other` before the `place`-th new line, and whether there is such a line."""
    seen: set[tuple[str, int]] = set()
    thread: threading.Thread | None = None

    def line(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal thread
        where = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and thread is None and where not in seen:
            seen.add(where)
            if len(seen) > place:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join(PATIENCE)
        return line

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(files) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        found = call()
    finally:
        sys.settrace(before)
        if thread is not None:
            thread.join()
    return found, thread is not None


def _files(component: type | ModuleType) -> tuple[str, ...]:
    """Return the path prefixes of the files of `component`'s package."""
    name = component.__name__ if isinstance(component, ModuleType) else component.__module__
    top = sys.modules[name.partition(".")[0]]
    folders = tuple(f"{Path(path).resolve()}/" for path in getattr(top, "__path__", ()))
    return (*folders, str(Path(sys.modules[name].__file__ or "?").resolve()))
