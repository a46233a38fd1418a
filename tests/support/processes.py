"""Linux processes: their parents, memory and CPU time, and which are grammar hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = [
    "children",
    "fields",
    "hosts_of",
    "is_alive",
    "living",
    "memory_of",
    "owner_of_host",
    "resident_bytes",
    "role_of",
    "seconds_of",
    "seconds_of_tree",
    "tree",
    "until",
]


TICKS = os.sysconf("SC_CLK_TCK")


def fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name: first the state, then the parent. Empty if the process is
    gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return bool(found := fields(pid)) and found[0] != "Z"


def living() -> Iterator[int]:
    """Yield all living processes."""
    numbers = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return (pid for pid in numbers if is_alive(pid))


def children(*parents: int) -> set[int]:
    """Return the living children of these processes."""
    return {pid for pid in living() if (found := fields(pid)) and int(found[1]) in parents}


def owner_of_host(pid: int) -> int | None:
    """Return the process that a host, or a fork server of hosts, works for; None for any other process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return int(words[-2]) if words[2:4] == [b"-m", b"guideway_hosts"] else None


def hosts_of(*owners: int) -> set[int]:
    """Return the hosts of these processes, with fork servers."""
    return {pid for pid in living() if owner_of_host(pid) in owners}


def tree(pid: int) -> set[int]:
    """Return a process, all its descendants, and the grammar hosts of all of them."""
    found, new = {pid}, {pid}
    while new:
        new = (children(*new) | hosts_of(*new)) - found
        found |= new
    return found


def role_of(pid: int) -> str:
    """Return the name in lists of processes; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def memory_of(pid: int) -> tuple[int, int]:
    """Return the resident bytes of a process, with shared memory divided among its processes, and its private bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    found = {name: int(size.split()[0]) << 10 for name, _, size in (line.partition(":") for line in lines)}
    return found["Pss"], found["Private_Clean"] + found["Private_Dirty"]


def resident_bytes(pids: set[int]) -> int:
    """Return the resident bytes of these processes, counting shared memory once."""
    return sum(memory_of(pid)[0] for pid in pids)


def seconds_of_tree() -> float:
    """Return the CPU seconds of this process and of the living rest of its `tree`, including ended children."""
    ended = os.times()
    own = time.process_time() + ended.children_user + ended.children_system
    return own + seconds_of(tree(os.getpid()) - {os.getpid()})


def seconds_of(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes, if they live, including ended children. Only the seconds of ended
    children are in ticks of 10 ms, which are longer than many a batch."""
    return sum(_own_seconds(pid) + sum(map(int, fields(pid)[13:15])) / TICKS for pid in pids)


def _own_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the number that Linux gives the process's CPU clock
    except OSError:
        return 0.0


def until(happened: Callable[[], bool]) -> None:
    """Wait for an effect of another process or thread. Raises TimeoutError after a minute."""
    deadline = time.monotonic() + 60
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)
