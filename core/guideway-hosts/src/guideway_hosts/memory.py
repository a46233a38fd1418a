"""The memory that this process may use."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["usable_bytes"]


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
