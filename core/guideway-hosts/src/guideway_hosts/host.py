"""A host process, as the serving process uses it: it is asked, waited for within limits, and killed."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
from guideway.errors import GuidewayError, LimitExceeded
from guideway.plugins.limits import Limits
from guideway.runtime.work.metrics import HOST_BYTES, HOSTS_ENDED
from guideway.runtime.work.wanted import is_wanted
from numpy.typing import NDArray

from guideway_hosts.codec import encode
from guideway_hosts.line import LOOKS_EVERY, Line
from guideway_hosts.messages import BROKEN, IDLE, SharedMasks, read_error
from guideway_hosts.process import Process, how_ended, is_stopped

__all__ = ["HELD", "Allowed", "Host", "HostDied"]

log = logging.getLogger(__name__)

STOPPED_FOR = 0.5
"""Seconds between two checks whether a host is stopped (SIGSTOP, for example). Two in a row end it."""

CLOSING_SECONDS = 5.0
"""CPU seconds that a search for a completion may take in addition. The search limits its own work, so this ends only
one that hangs, or whose matcher takes milliseconds for each token."""

WEIGHS_EVERY = 0.02
"""Seconds between two checks of the memory that a host uses."""

ENDS_WITHIN = 1.0
"""Seconds that are waited for the end of a host that was killed."""

INNOCENT = (-signal.SIGKILL, -signal.SIGTERM, 0, 70, None)
"""Ends of a host that its work did not cause: killed, terminated, its socket closed, a failed start (70), unknown."""


class HostDied(GuidewayError):
    """The host process has ended.

    `broke`: because of a limit. `by_itself`: because it exceeded a limit of its own or crashed; otherwise it was killed
    or stopped from outside, or all hosts together used too much memory. `working_on` is the number of the object that
    it was working on; None if that is unknown.
    """

    def __init__(
        self, message: str, *, broke: bool = False, by_itself: bool = False, working_on: int | None = None
    ) -> None:
        super().__init__(message)
        self.broke = broke
        self.by_itself = by_itself
        self.working_on = working_on

    def error(self, field: str = "constraint", during: str = "") -> GuidewayError:
        """Return the error for the request that the host was working for: `LimitExceeded` if a limit ended it. `field`
        is the part of the request, and `during` an introduction."""
        return LimitExceeded(during + str(self), field=field) if self.broke else self


@dataclass(frozen=True, slots=True)
class Allowed:
    """CPU seconds that a call may take before its host is killed, or for which a caller waits.

    The limits by the clock are `Limits.wall_factor` times as long.
    """

    alone: float
    """CPU seconds since the beginning of the call, or since the host started to work on another object."""
    together: float = 0.0
    """CPU seconds for work on several matchers at once, if that is more than `alone`."""
    more: Mapping[int, float] = field(default_factory=dict)
    """By the number of an object the CPU seconds in addition to `alone`."""


class _CallLine(Line):
    """One of the two sockets of a host, with the call over it."""

    def __init__(
        self, sock: socket.socket, process: Process, threads: NDArray[np.int64], beside: _CallLine | None = None
    ) -> None:
        """`threads` is `SharedMasks.threads`, and `beside` the second thread's line; None for that line itself."""
        super().__init__(sock, process)
        self._process, self._threads, self._beside = process, threads, beside
        self._others_seconds = 0.0
        """The CPU seconds of the host's other thread, when they were last read."""
        self.lock = threading.RLock()
        """One call at a time is over a socket."""
        self.is_busy = False
        """True if a call is running."""
        self.broke = ""
        """The limit that its call exceeded, for which the host is killed."""
        self.measure(IDLE)

    def measure(self, on: int) -> None:
        """Begin to measure the work on an object, given by its number: `IDLE` for work on several."""
        others = self._read_others()
        self.on, self._taken, self._began = on, self._process.processor_seconds() - others, time.monotonic()
        self._looks_at, self._was_stopped = self._began + STOPPED_FOR, False

    @property
    def seconds(self) -> tuple[float, float]:
        """The CPU seconds that the host has used since then, except its other thread, and the seconds by the clock."""
        # the other thread may work between two readings, which is never counted for this one
        used = self._process.processor_seconds() - self._read_others()
        return used - self._taken, time.monotonic() - self._began

    def _read_others(self) -> float:
        """Return the CPU seconds of the host's other thread."""
        if self._beside is None or self._beside.is_busy:  # it is seldom, and reading costs 10 us
            thread = self._threads[0 if self._beside is None else 1]
            self._others_seconds = self._process.thread_seconds(int(thread))
        return self._others_seconds

    def stays_stopped(self) -> bool:
        """Return whether the host is stopped, and was at the last check, `STOPPED_FOR` seconds before."""
        if time.monotonic() < self._looks_at:
            return False
        before, self._was_stopped = self._was_stopped, is_stopped(self._process.pid)
        self._looks_at = time.monotonic() + STOPPED_FOR
        return before and self._was_stopped


class Memory:
    """The sum of the memory of all hosts.

    If it exceeds the limit when a host is checked, the largest idle host is ended if that is enough, which loses no
    work. Otherwise the largest host is ended, and its call fails.
    """

    def __init__(self) -> None:
        self._hosts: WeakSet[Host] = WeakSet()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes that all hosts hold in addition to the bytes at their forks."""
        with self._lock:
            return sum(host.held_bytes for host in self._hosts)

    def add(self, host: Host) -> None:
        with self._lock:
            self._hosts.add(host)

    def remove(self, host: Host) -> None:
        with self._lock:
            self._hosts.discard(host)
            HOST_BYTES.set(sum(host.resident_bytes for host in self._hosts))

    def check(self, most: int) -> None:
        """End hosts until all together hold at most `most` bytes."""
        with self._lock:
            left = {host: host.held_bytes for host in self._hosts}
            HOST_BYTES.set(sum(host.resident_bytes for host in left))
        while left and (excess := sum(left.values()) - most) > 0:
            enough = [host for host, held in left.items() if held >= excess and not host.is_busy]
            chosen = max(enough or left, key=left.__getitem__)
            del left[chosen]
            chosen.end_for_memory()


HELD = Memory()
"""The memory of all hosts of this process, of all engines."""


class Host:
    """One host process. A call that exceeds a limit kills it. ``beside=True`` is a call that the host's second thread
    executes next to the others."""

    def __init__(
        self,
        process: Process,
        ends: tuple[socket.socket, socket.socket],
        masks: SharedMasks,
        limits: Limits,
        total_bytes: int,
        reap: Callable[[], None],
    ) -> None:
        self._process = process
        commands, beside = ends
        self.masks = masks
        second = _CallLine(beside, process, masks.threads)
        self._lines = _CallLine(commands, process, masks.threads, second), second
        """The socket for commands, and the socket of the second thread."""
        self._limits = limits
        self._total_bytes = total_bytes
        """The bytes that all hosts may hold together."""
        self._reap = reap
        """Lets the parent of the process reap it."""
        self._status: int | None = None
        self._lock = threading.Lock()
        self.alive = True
        self.given_up = False
        """True if it was killed because its result is no longer needed."""
        self._is_largest = False
        """True if it was killed because all hosts together used too much memory."""
        self._amid_both = False
        """True if calls over both sockets were running when it ended."""
        self._began_with = process.memory()[1]
        self.resident_bytes = self.held_bytes = 0
        self._weighs_at = 0.0
        HELD.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, name: str, *arguments: Any, seconds: float, beside: bool = False) -> tuple[Any, bytes | None]:
        """Return the host's answer, and the bytes sent with it. `seconds` is `Allowed.alone`. Raises the strategy's
        errors, and `HostDied`."""
        with self._lines[beside].lock:
            self.send(name, *map(encode, arguments), beside=beside)
            answer = self.answer(Allowed(seconds), beside=beside)
            assert answer is not None
            return answer

    def send(self, *command: Any, beside: bool = False) -> None:
        """Start a call, given its name and its encoded arguments; without these it is the last step again. `answer`
        waits for its result. Raises `HostDied`."""
        if not self._process.is_ours:
            raise HostDied("a forked process cannot use the hosts of its parent")
        line = self._lines[beside]
        with self._using(line, Allowed(self._limits.compile_seconds)):
            line.is_busy, line.broke = True, ""
            line.measure(IDLE if beside else self.masks.working_on)
            line.send(command or None)

    def answer(
        self, allowed: Allowed, *, patience: Allowed | None = None, beside: bool = False
    ) -> tuple[Any, bytes | None] | None:
        """Return the result of the call that `send` started, as `call` does. None if `patience` ends first: call
        again."""
        line = self._lines[beside]
        with self._using(line, allowed):
            if patience is not None and not self._begins(line, patience):
                return None
            answer = line.receive() or {"value": None}
            data = line.receive_bytes() if answer.get("bytes") else None
            line.is_busy = False
            self._weigh()
        if "error" in answer:
            raise read_error(answer["error"])
        return answer["value"], data

    def has_news(self) -> bool:
        """Return whether an answer has begun to arrive, or the process has ended."""
        return not self.alive or self._lines[False].has_news()

    @property
    def is_busy(self) -> bool:
        """True if a call is running."""
        return any(line.is_busy for line in self._lines)

    @property
    def is_slow(self) -> bool:
        """True if its call has taken more than `Limits.late_seconds`, with no call in the second thread."""
        commands, beside = self._lines
        return not beside.is_busy and commands.seconds[0] > self._limits.late_seconds

    def is_gone(self) -> bool:
        """Return whether the process has ended while no call was running. Then it is closed."""
        # a process that the host forked may keep the socket open
        if self._process.has_ended() or self.has_news():
            self.close()
        return not self.alive

    def kill(self) -> None:
        """Kill the process without waiting, because its result is no longer needed. Calls then raise `HostDied`."""
        if self.alive:
            self.given_up = True
            self._process.kill()

    def end_for_memory(self) -> None:
        """Kill the process because all hosts together use too much memory. A running call raises `HostDied`."""
        log.warning(
            "a host that held %d bytes was ended: all together may hold %d (limits.total_memory_bytes)",
            self.held_bytes,
            self._total_bytes,
        )
        busy = [line for line in self._lines if line.is_busy]
        if not any(line.broke for line in self._lines):
            self._is_largest = True
            (busy or self._lines)[0].broke = (
                f"all hosts together may hold {self._total_bytes} bytes (limits.total_memory_bytes), and the one at "
                f"work on it held the most, {self.held_bytes}"
            )
        self.held_bytes = 0
        self._process.kill()

    def close(self) -> None:
        """End the process. If a call of another thread is running, the call raises `HostDied`."""
        with self._lock:
            if not self.alive or not self._process.is_ours:
                return
            self.alive = False
            HELD.remove(self)
            self._amid_both = all(line.is_busy for line in self._lines)
            self._process.kill()
            self._process.has_ended(ENDS_WITHIN)
            self._status = self._process.exit_status()
            self._reap()
            if not self.given_up:
                broke = any(line.broke for line in self._lines)
                HOSTS_ENDED.labels("limit" if broke else "outside" if self._status in INNOCENT else "crash").inc()
        for line in self._lines:
            with line.lock:  # a running call fails at once, because the process has ended
                line.close()

    @contextmanager
    def _using(self, line: _CallLine, allowed: Allowed) -> Iterator[None]:
        """Use a line within these limits. Raises `HostDied` if the body cannot use it, and closes the host if the body
        is interrupted."""
        with line.lock:
            line.look = partial(self._look, line, allowed)
            try:
                yield
            except BROKEN as error:
                death = self._death(line)
                line.is_busy = False
                raise death from error
            except BaseException:  # interrupted: the next call would take this answer for its own
                self.close()
                line.is_busy = False
                raise
            finally:
                line.look = _do_nothing  # it refers to this host

    def _begins(self, line: _CallLine, patience: Allowed) -> bool:
        """Return whether an answer begins to arrive before `patience` ends."""
        seconds = patience.alone * self._limits.wall_factor
        until = time.monotonic() + seconds
        while not line.is_ready(min(LOOKS_EVERY, seconds)):
            line.look()
            most = patience.together if line.on == IDLE else patience.alone
            if line.seconds[0] > most or time.monotonic() > until:
                return False
        return True

    def _look(self, line: _CallLine, allowed: Allowed) -> None:
        """Raise EOFError if the host must be killed, because it exceeded a limit or is stopped."""
        beside = line is self._lines[True]
        on = line.on if beside else self.masks.working_on
        if on != line.on:
            line.measure(on)
        limit = max(allowed.alone, allowed.together) if on == IDLE else allowed.alone + allowed.more.get(on, 0.0)
        if self.masks.is_closing and not beside:
            limit += CLOSING_SECONDS
        used, waited = line.seconds
        if used > limit:
            line.broke = f"it exceeded its limit of {limit:g} s processor time"
        elif waited > limit * self._limits.wall_factor:
            line.broke = f"it did not answer within {waited:.1f} s"
        # the second thread's work is short for its host, which others use too: it was tried in another one before
        self.given_up = self.given_up or not (beside or is_wanted())
        if line.broke or self.given_up or line.stays_stopped():
            raise EOFError(line.broke)
        self._weigh()

    def _weigh(self) -> None:
        """Check the memory of the host every `WEIGHS_EVERY` seconds. End the largest host if all use too much."""
        with self._lock:
            if not self.alive or time.monotonic() < self._weighs_at:
                return
            self._weighs_at = time.monotonic() + WEIGHS_EVERY
            self.resident_bytes, of_its_own = self._process.memory()
            self.held_bytes = max(0, of_its_own - self._began_with)
        HELD.check(self._total_bytes)

    def _death(self, line: _CallLine) -> HostDied:
        """Close the host and return the reason of its end for a call over this line."""
        working_on = self.masks.working_on
        self.close()
        if line.broke:
            return HostDied(line.broke, broke=True, by_itself=not self._is_largest, working_on=working_on)
        # with calls over both sockets it is unknown which one crashed: each is tried again, and crashes alone
        if self._status in INNOCENT or self._amid_both:
            return HostDied("its process was killed or stopped from outside", working_on=working_on)
        assert self._status is not None
        if self._status == -signal.SIGABRT:  # native code usually aborts if it cannot allocate memory
            why = "its process aborted (signal SIGABRT), as native code does that runs out of memory"
            return HostDied(why, broke=True, by_itself=True, working_on=working_on)
        return HostDied(f"its process crashed ({how_ended(self._status)})", by_itself=True, working_on=working_on)


def _do_nothing() -> None:
    """Do nothing while a socket is not used."""
