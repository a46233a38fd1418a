"""Threads that take turns often, in the midst of a plugin's code."""

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
"""A thread pauses after one in so many lines of the plugin, so that another one goes on: to change threads by the clock
alone depends on what else the machine does."""
MOST = 20_000
"""Pauses in all, unless a check says how many."""


@contextmanager
def interleaved(component: type | ModuleType, most: int = MOST) -> Iterator[None]:
    """Threads that are started within change often, and in the midst of the code of `component`'s package: `most` times
    in all, each of which may wait for an operation of another one over a whole array."""
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
    """The values of `call` when another thread does all of `other` before one line of `component`'s package, for each
    such line in turn: each order of two calls in which one of them is interrupted once. Where a lock keeps `other`
    waiting, it goes on when `call` does."""
    files = _files(component)
    place = 0
    while place < LINES:
        found, came = _interrupted(files, call, other, place)
        if not came:
            return
        yield found
        place += 1


LINES = 200
"""The lines of a call that are interrupted at most."""
PATIENCE = 0.05
"""The seconds that an interrupted call waits for the other one."""


def _interrupted(
    files: tuple[str, ...], call: Callable[[], T], other: Callable[[], object], place: int
) -> tuple[T, bool]:
    """The value of `call` with `other` before the `place`-th line that is new, and whether there is such a line."""
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
    """The beginnings of the names of the files of `component`'s package."""
    name = component.__name__ if isinstance(component, ModuleType) else component.__module__
    top = sys.modules[name.partition(".")[0]]
    folders = tuple(f"{Path(path).resolve()}/" for path in getattr(top, "__path__", ()))
    return (*folders, str(Path(sys.modules[name].__file__ or "?").resolve()))
