"""Processes that this process uses but did not fork itself."""

from __future__ import annotations

import mmap
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Process", "how_ended", "is_stopped", "watch"]

EXIT_CODE = 49
"""Index, after the name, of the field of ``/proc/PID/stat`` with the status of a process that has ended."""


class Process:
    """A process that this process did not fork itself. A process that is forked from this one cannot kill it."""

    handle: int | None = None
    """A descriptor of the process, if the system has them. A PID is not safe to kill by: after the process was reaped,
    another one may have it."""
    _sizes = -1

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._user = os.getpid()
        if hasattr(os, "pidfd_open"):
            self.handle = os.pidfd_open(pid)
        with suppress(OSError):
            self._sizes = os.open(f"/proc/{pid}/statm", os.O_RDONLY)  # opening it costs 20 times as much as reading it

    def __del__(self) -> None:
        for descriptor in (self.handle, self._sizes):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked from the one that uses it."""
        return os.getpid() == self._user

    def kill(self) -> None:
        """Kill the process if it has not ended. Waits for nothing: the garbage collector may call it."""
        if self.is_ours:
            with suppress(OSError):
                if self.handle is None:
                    os.kill(self.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def end(self) -> None:
        """Kill a process whose parent has ended."""
        self.kill()
        self.has_ended(1.0)
        with suppress(ChildProcessError):  # orphans are children of this process if it is the init process
            os.waitpid(self.pid, os.WNOHANG)

    def has_ended(self, within: float = 0.0) -> bool:
        """Return whether the process ends within `within` seconds. False if the system has no pidfd."""
        if self.handle is None:
            return False
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def exit_status(self) -> int | None:
        """Return how the process ended, which it has not been reaped for: its exit status, or the negative number of a
        signal. None if the system does not report it."""
        fields = _fields_of(self.pid)
        return os.waitstatus_to_exitcode(int(fields[EXIT_CODE])) if fields[:1] == ["Z"] else None

    def processor_seconds(self) -> float:
        """Return the CPU seconds that the process has used; 0 if the system does not report them."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the number that Linux gives the process's CPU clock
        except OSError:
            return 0.0

    def thread_seconds(self, thread: int) -> float:
        """Return the CPU seconds that one of the process's threads has used; 0 if the system does not report them."""
        try:
            with open(f"/proc/{self.pid}/task/{thread}/schedstat") as file:  # noqa: PTH123 - as in `_fields_of`
                return int(file.read().split()[0]) / 1e9
        except (OSError, ValueError):
            return 0.0

    def memory(self) -> tuple[int, int]:
        """Return the resident bytes of the process, including shared ones, and the resident bytes without files; zeros
        if the system does not report them."""
        try:
            resident, of_files = map(int, os.pread(self._sizes, 256, 0).split()[1:3])
        except (OSError, ValueError):
            return 0, 0
        return resident * mmap.PAGESIZE, (resident - of_files) * mmap.PAGESIZE


def how_ended(status: int) -> str:
    """Return how a process ended in words, from its exit status or the negative number of a signal."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP or a debugger). False if the system does not report it."""
    return _fields_of(pid)[:1] in (["T"], ["t"])


def _fields_of(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name; none if the system does not report them."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - a path for each look costs more
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def watch(pid: int, seconds: float) -> Callable[[], None]:
    """Return a `Line.look` that raises EOFError when the process is stopped, and TimeoutError after `seconds`."""
    until = time.monotonic() + seconds

    def look() -> None:
        if is_stopped(pid):
            raise EOFError("it was stopped")
        if time.monotonic() > until:
            raise TimeoutError(f"no answer in {seconds:g} s")

    return look
