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
    """A host."""

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds beyond those that it was forked with, as last seen."""
        ...

    @property
    def is_busy(self) -> bool:
        """True if a call is under way."""
        ...

    def end_for_memory(self) -> None:
        """End it, because all hosts together hold too much."""
        ...


class Memory:
    """The account of what hosts hold. Whenever one is weighed and the sum is over the limit, the largest idle host is
    ended if that is enough, by which nothing is lost; else the largest of all, whose work fails."""

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
        """End hosts until all together hold at most so many bytes."""
        with self._lock:
            left = {holder: holder.held_bytes for holder in self._holders}
        while left and (excess := sum(left.values()) - most) > 0:
            enough = [holder for holder, held in left.items() if held >= excess and not holder.is_busy]
            chosen = max(enough or left, key=left.__getitem__)
            del left[chosen]
            chosen.end_for_memory()


HELD = Memory()
"""That of all hosts of this process, whichever engine they serve."""


def usable_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use: those of the machine, or a lower limit of a control group
    that it is in, or of `resource`. `root` is where ``proc`` and ``sys`` are."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroups(root)]
    limits += [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def _cgroups(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups that this process is in, of version 1 or 2, and of those above them."""
    mounted = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, file = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
        path = PurePosixPath(group.lstrip("/"))
        # in a container the path may be that of the host, of which only the end is mounted: then the top has the limit
        for each in (path, *path.parents):
            for text in _lines(top / each / file):
                if text.isdigit():
                    yield int(text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []
