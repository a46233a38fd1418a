"""The memory that all hosts of this process may hold together."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol
from weakref import WeakSet

__all__ = ["HELD", "Holder", "Memory", "usable_bytes"]


class Holder(Protocol):
    """The part of `Host` that `Memory` calls."""

    @property
    def held_bytes(self) -> int:
        """Bytes that the host holds in addition to the bytes at its fork, at the last check."""
        ...

    @property
    def is_busy(self) -> bool:
        """True if a call is running."""
        ...

    def end_for_memory(self) -> None:
        """Kill the process because all hosts together use too much memory."""
        ...


class Memory:
    """The sum of the memory of all hosts.

    If it exceeds the limit when a host is checked, the largest idle host is ended if that is enough, which loses no
    work. Otherwise the largest host is ended, and its call fails.
    """

    def __init__(self) -> None:
        self._holders: WeakSet[Holder] = WeakSet()
        self._lock = threading.Lock()

    def add(self, holder: Holder) -> None:
        with self._lock:
            self._holders.add(holder)

    def remove(self, holder: Holder) -> None:
        with self._lock:
            self._holders.discard(holder)

    def check(self, most: int) -> None:
        """End hosts until all together use at most `most` bytes."""
        with self._lock:
            left = {holder: holder.held_bytes for holder in self._holders}
        while left and (excess := sum(left.values()) - most) > 0:
            enough = [holder for holder, held in left.items() if held >= excess and not holder.is_busy]
            chosen = max(enough or left, key=left.__getitem__)
            del left[chosen]
            chosen.end_for_memory()


HELD = Memory()
"""The memory of all hosts of this process, of all engines."""


def usable_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use: the machine's, or a lower limit of one of its control
    groups or of `resource`. `root` is the folder with ``proc`` and ``sys``."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroups(root)]
    limits += [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def _cgroups(root: Path) -> Iterator[int]:
    """Yield the memory limits of the control groups, version 1 or 2, that this process is in, and of their parents."""
    mounted = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, file = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
        path = PurePosixPath(group.lstrip("/"))
        # in a container the path may be the host system's, of which only the end is mounted: the top has the limit then
        for each in (path, *path.parents):
            for text in _lines(top / each / file):
                if text.isdigit():
                    yield int(text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []
