"""Processes that this process uses, but did not fork itself."""

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

__all__ = ["Child", "await_bytes", "is_stopped", "receive_answer"]

LOOKS_EVERY = 0.1
"""Seconds between two checks whether the process that should answer was stopped."""


class Child:
    """A process that this process did not fork itself. Call `close` when it is no longer used."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # a PID is not safe to kill by, because another process may have it later
        self._handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        self._closed = False
        self._closing = threading.Lock()

    def kill(self) -> None:
        """Kill the process if it has not ended. Waits for nothing, not even a lock: the garbage collector may call
        it."""
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
        """Release the process, which will be reaped: another process may have its PID after that."""
        with self._closing:
            if not self._closed:
                self._closed = True
                if self._handle is not None:
                    os.close(self._handle)

    def end_orphan(self, within: float) -> None:
        """End a process whose parent has ended, after it had `within` seconds to end by itself."""
        if is_stopped(self.pid) or not self.has_ended(within):
            self.kill()
            self.has_ended(1.0)
        self.close()
        with suppress(ChildProcessError):  # orphans are children of this process if it is the init process
            os.waitpid(self.pid, os.WNOHANG)

    def has_ended(self, within: float) -> bool:
        """Return whether the process ends within `within` seconds. False if the system has no pidfd."""
        if self._handle is None:
            return False
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def watch(self, end: socket.socket) -> select.poll:
        """Return a poll for data at a socket or the end of the process. The socket alone is not enough: a process that
        it forked may keep the other end open."""
        poll = select.poll()
        poll.register(end, select.POLLIN)
        if self._handle is not None:
            poll.register(self._handle, select.POLLIN)
        return poll

    def processor_seconds(self) -> float:
        """Return the CPU seconds that the process has used; 0 if the system does not report them."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the number that Linux gives the process's CPU clock
        except OSError:
            return 0.0

    def memory(self) -> tuple[int, int]:
        """Return the resident bytes of the process, including shared ones, and the resident bytes without files; zeros
        if the system does not report them."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:  # noqa: PTH123 - as below
                resident, of_files = map(int, file.read().split()[1:3])
        except OSError:
            return 0, 0
        return resident * mmap.PAGESIZE, (resident - of_files) * mmap.PAGESIZE


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP or a debugger). False if the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - a path for each look costs more
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def receive_answer(frames: Frames, pid: int, seconds: float, without: Child | None = None) -> Any:
    """Return the message that a process sends within `seconds`. Raises the errors of `await_bytes`, and ValueError for
    a malformed message."""
    await_bytes(frames, pid, seconds, without)
    return frames.receive()


def await_bytes(frames: Frames, pid: int, seconds: float, without: Child | None = None) -> None:
    """Wait until a process has sent something. Raises TimeoutError after `seconds`, and EOFError if the process ended
    or was stopped, or `without` ended."""
    poll = select.poll()
    poll.register(frames.socket, select.POLLIN)
    end = time.monotonic() + seconds
    while not poll.poll(LOOKS_EVERY * 1000):
        if is_stopped(pid):
            raise EOFError("it was stopped")
        if without is not None and without.has_ended(0):  # another process may keep its end of the socket open
            raise EOFError("it has ended")
        if time.monotonic() > end:
            raise TimeoutError(f"no answer in {seconds:g} s")
