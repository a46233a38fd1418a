"""Processes that this one did not fork itself, and uses."""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from guideway_hosts.messages import Frames

__all__ = ["Child", "answer_of", "await_bytes", "is_stopped"]

LOOKS_EVERY = 0.1
"""Seconds between two looks at whether who should answer was stopped."""


class Child:
    """One of them, until `close`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # a number that another process may have later is not enough to kill by
        self._handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        self._closed = False
        self._closing = threading.Lock()

    def kill(self) -> None:
        """End it, if it has not ended. Waits for nothing, not even for a lock: the collector of garbage may call."""
        if not self._closing.acquire(blocking=False):
            return
        try:
            if not self._closed:
                with suppress(OSError):
                    if self._handle is None:
                        os.kill(self.pid, signal.SIGKILL)
                    else:
                        signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        finally:
            self._closing.release()

    def close(self) -> None:
        """It is to be reaped, and its number may be another's from then on."""
        with self._closing:
            if not self._closed:
                self._closed = True
                if self._handle is not None:
                    os.close(self._handle)

    def end_orphan(self, within: float) -> None:
        """End one that is nobody's child, after it had so many seconds to end by itself."""
        if is_stopped(self.pid) or not self.has_ended(within):
            self.kill()
            self.has_ended(1.0)
        self.close()
        with suppress(ChildProcessError):  # it is a child after all where this process is that of all orphans
            os.waitpid(self.pid, os.WNOHANG)

    def has_ended(self, within: float) -> bool:
        """Return whether it ends within so many seconds; only where the system tells."""
        if self._handle is None:
            return False
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def watched(self, end: socket.socket) -> select.poll:
        """Tells that something is to be read, or that the process has ended: what it forked may keep its end of the
        socket open."""
        poll = select.poll()
        poll.register(end, select.POLLIN)
        if self._handle is not None:
            poll.register(self._handle, select.POLLIN)
        return poll

    def processor_seconds(self) -> float:
        """Return the seconds it has taken of a processor; 0 where the system does not tell."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the process's clock, as Linux numbers it
        except OSError:
            return 0.0

    def memory(self) -> tuple[int, int]:
        """Return the bytes of memory that it has, with what it shares, and those of them that belong to no file; zeros
        where the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:  # noqa: PTH123 - as below
                resident, of_files = map(int, file.read().split()[1:3])
        except OSError:
            return 0, 0
        return resident * mmap.PAGESIZE, (resident - of_files) * mmap.PAGESIZE


def is_stopped(pid: int) -> bool:
    """Return whether somebody stopped a process, by what Linux knows."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - a path for each look costs more
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def answer_of(frames: Frames, pid: int, seconds: float, without: Child | None = None) -> Any:
    """Return what a process answers within so many seconds. Raises what `await_bytes` raises, and ValueError for what
    is no answer."""
    await_bytes(frames, pid, seconds, without)
    return frames.receive()


def await_bytes(frames: Frames, pid: int, seconds: float, without: Child | None = None) -> None:
    """Wait until a process has sent something. Raises TimeoutError if it does not within so many seconds, and EOFError
    if it ended or was stopped, or `without` ended."""
    poll = select.poll()
    poll.register(frames.socket, select.POLLIN)
    end = time.monotonic() + seconds
    while not poll.poll(LOOKS_EVERY * 1000):
        if is_stopped(pid):
            raise EOFError("it was stopped")
        if without is not None and without.has_ended(0):  # somebody else may have its end of the socket open
            raise EOFError("it has ended")
        if time.monotonic() > end:
            raise TimeoutError(f"no answer in {seconds:g} s")
