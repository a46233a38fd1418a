"""A host process, as the serving process uses it: it is asked, waited for within limits, and killed."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from guideway.errors import GuidewayError, LimitExceeded
from guideway.plugins.limits import Limits
from guideway.runtime.work.metrics import HOST_BYTES, HOSTS_ENDED

from guideway_hosts.children import Child, is_stopped
from guideway_hosts.codec import encode
from guideway_hosts.messages import BROKEN, IDLE, Frames, SharedMasks, read_error

__all__ = ["HELD", "Allowed", "Host", "HostDied"]

log = logging.getLogger(__name__)

LOOKS_EVERY = 0.02
"""Seconds between two checks of the processor time that a host has used."""

STOPPED_FOR = 0.5
"""Seconds between two checks whether a host is stopped (SIGSTOP, for example). Two in a row end it."""

CLOSING_SECONDS = 5.0
"""CPU seconds that a search for a completion may take in addition. The search limits its own work, so this ends only
one that hangs, or whose matcher takes milliseconds for each token."""

WEIGHS_EVERY = 0.02
"""Seconds between two checks of the memory that a host uses."""


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


class _Line:
    """One of the two sockets of a host, with the call over it."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.lock = threading.RLock()
        """One call at a time is over a socket."""
        self.is_busy = False
        """True if a call is running."""
        self.watch(IDLE, 0.0)

    def watch(self, on: int, taken: float) -> None:
        """Begin to measure the work on an object, given by its number: `IDLE` for work on several. `taken` are the CPU
        seconds that the host has used until now."""
        self.on, self.taken, self.began = on, taken, time.monotonic()
        self._looked, self._stopped = 0.0, False

    def is_stopped(self, pid: int, waited: float) -> bool:
        """Return whether the host is stopped, and was at the last check, `STOPPED_FOR` seconds before."""
        if waited <= self._looked + STOPPED_FOR:
            return False
        before, self._looked, self._stopped = self._stopped, waited, is_stopped(pid)
        return before and self._stopped


class Memory:
    """The sum of the memory of all hosts.

    If it exceeds the limit when a host is checked, the largest idle host is ended if that is enough, which loses no
    work. Otherwise the largest host is ended, and its call fails.
    """

    def __init__(self) -> None:
        self.hosts: WeakSet[Host] = WeakSet()
        self.lock = threading.Lock()

    def check(self, most: int) -> None:
        """End hosts until all together use at most `most` bytes."""
        with self.lock:
            left = {host: host.held_bytes for host in self.hosts}
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
        child: Child,
        reap: Callable[[], int | None],
        commands: Frames,
        beside: Frames,
        masks: SharedMasks,
        limits: Limits,
        total_bytes: int,
    ) -> None:
        self._child = child
        self._reap = reap
        """Returns once, after the kill, how the process ended: its exit status, or the negative number of a signal."""
        self._owner = os.getpid()
        self._lines = _Line(commands), _Line(beside)
        """The one for commands, and the one for calls beside them."""
        self._amid_both = False
        """True if calls over both were running when it ended."""
        self._killed: tuple[_Line, str] | None = None
        """The line of the call that it was killed for, and the limit exceeded; empty: it was stopped."""
        self._is_largest = False
        """True if it was killed because all hosts together used too much memory."""
        self._limits = limits
        self.masks = masks
        self._lock = threading.Lock()
        self.alive = True
        self.given_up = False
        """True if it was killed because its result is no longer needed."""
        self._bytes = 0
        """The bytes that the metric counts for this host."""
        self._total_bytes = total_bytes
        """The bytes that all hosts may use together."""
        self._began_with = child.memory()[1]
        self._grown = 0
        self._weighed_at = 0.0
        self._status: int | None = None
        self._is_counted = False
        for frames in (commands, beside):  # sending a long command to a stopped host would block forever
            frames.socket.settimeout(limits.compile_seconds * limits.wall_factor)
        with HELD.lock:
            HELD.hosts.add(self)

    @property
    def pid(self) -> int:
        return self._child.pid

    def call(self, name: str, *arguments: Any, seconds: float, beside: bool = False) -> tuple[Any, bytes | None]:
        """Return the host's answer, and the bytes sent with it. `seconds` is `Allowed.alone`. Raises the strategy's
        errors, and `HostDied`."""
        with self._lines[beside].lock:
            self.send(name, *map(encode, arguments), beside=beside)
            answer = self.answer(Allowed(seconds), beside=beside)
            assert answer is not None
            return answer

    def send(self, name: str, *arguments: Any, beside: bool = False) -> None:
        """Start a call with encoded arguments. `answer` waits for its result. Raises `HostDied`."""
        if os.getpid() != self._owner:
            raise HostDied("a forked process cannot use the hosts of its parent")
        line = self._lines[beside]
        with line.lock, self._watch_end(line):
            line.is_busy = True
            line.watch(IDLE if beside else self.masks.working_on, self._child.processor_seconds())
            line.frames.send((name, *arguments))

    def answer(
        self, allowed: Allowed, *, patience: Allowed | None = None, beside: bool = False
    ) -> tuple[Any, bytes | None] | None:
        """Return the result of the call that `send` started, as `call` does. None if `patience` ends first: call
        again."""
        line = self._lines[beside]
        with line.lock, self._watch_end(line):
            if not self._await(line, allowed, patience):
                return None
            answer = line.frames.receive()
            data = line.frames.receive_bytes() if answer.get("bytes") else None
            line.is_busy = False
            self._weigh()
        if "error" in answer:
            raise read_error(answer["error"])
        return answer["value"], data

    def is_answered(self, allowed: Allowed) -> bool:
        """Return whether `answer` would return without waiting. Raises `HostDied`."""
        line = self._lines[False]
        with line.lock, self._watch_end(line):
            return self._await(line, allowed, Allowed(0.0))

    @contextmanager
    def _watch_end(self, line: _Line) -> Iterator[None]:
        """Raise `HostDied` if the body cannot use the socket, and close the host if the body is interrupted."""
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

    def kill(self) -> None:
        """Kill the process without waiting. Calls then raise `HostDied`."""
        if self.alive and os.getpid() == self._owner:
            self.given_up = True
            self._child.kill()

    @property
    def held_bytes(self) -> int:
        """Bytes that the host holds in addition to the bytes at its fork, at the last check."""
        return self._grown if self.alive and os.getpid() == self._owner else 0

    @property
    def is_busy(self) -> bool:
        """True if a call is running."""
        return any(line.is_busy for line in self._lines)

    def end_for_memory(self) -> None:
        """Kill the process because all hosts together use too much memory. A running call raises `HostDied`."""
        busy = [line for line in self._lines if line.is_busy]
        if busy and self._killed is None:
            self._is_largest = True
            self._killed = (
                busy[0],
                f"all hosts together may hold {self._total_bytes} bytes (limits.total_memory_bytes), and the one at "
                f"work on it held the most, {self._grown}",
            )
        log.warning(
            "a host that held %d bytes was ended: all together may hold %d (limits.total_memory_bytes)",
            self._grown,
            self._total_bytes,
        )
        self._grown = 0
        self._child.kill()

    def is_gone(self) -> bool:
        """Return whether the process has ended while no call was running."""
        # a process that the host forked may keep the socket open
        return not self.alive or self._child.has_ended(0) or self.has_news()

    def has_news(self) -> bool:
        """Return whether an answer has begun to arrive, or the process has ended."""
        return self._lines[False].frames.has_news()

    def close(self) -> None:
        """End the process. If a call of another thread is running, the call raises `HostDied`."""
        with self._lock:
            if not self.alive or os.getpid() != self._owner:
                return
            self.alive = False
            HOST_BYTES.dec(self._bytes)
            with HELD.lock:
                HELD.hosts.discard(self)
            self._amid_both = all(line.is_busy for line in self._lines)
            self._child.kill()
            self._status = self._reap()
        for line in self._lines:
            with line.lock:  # a running call fails at once, because the process has ended
                line.frames.close()

    def _await(self, line: _Line, allowed: Allowed, patience: Allowed | None) -> bool:
        """Wait for an answer, at most for `patience`, and return whether it has arrived. Raises EOFError if the process
        ended or must be killed because it took too long."""
        sock, beside, factor = line.frames.socket, line is self._lines[True], self._limits.wall_factor
        poll, looks_every, impatient_at = self._child.watch(sock), LOOKS_EVERY, float("inf")
        if patience is not None:
            looks_every = min(LOOKS_EVERY, patience.alone * factor)
            impatient_at = time.monotonic() + patience.alone * factor
        while not (news := poll.poll(looks_every * 1000)):
            on = line.on if beside else self.masks.working_on
            if on != line.on:
                line.watch(on, self._child.processor_seconds())
            limit = max(allowed.alone, allowed.together) if on == IDLE else allowed.alone + allowed.more.get(on, 0.0)
            if self.masks.is_closing and not beside:
                limit += CLOSING_SECONDS
            amid_both = self._lines[True].is_busy and not beside  # the second thread's CPU time counts too
            most = limit + (self._limits.compile_seconds if amid_both else 0)
            used, waited = self._child.processor_seconds() - line.taken, time.monotonic() - line.began
            if used > most:
                self._killed = line, f"it exceeded its limit of {limit:g} s processor time"
            elif waited > most * factor:
                self._killed = line, f"it did not answer within {waited:.1f} s"
            elif line.is_stopped(self._child.pid, waited):
                self._killed = line, ""
            if self._killed is not None:
                raise EOFError(self._killed[1])
            self._weigh()
            if patience is not None:
                is_late = used > (patience.together if on == IDLE else patience.alone) and not amid_both
                if is_late or time.monotonic() > impatient_at:
                    return False
        if sock.fileno() not in dict(news):
            raise EOFError("it has ended")
        return True

    def _weigh(self) -> None:
        """Check the memory of the host every `WEIGHS_EVERY` seconds. End the largest host if all use too much."""
        with self._lock:
            if not self.alive or time.monotonic() - self._weighed_at < WEIGHS_EVERY:
                return
            self._weighed_at = time.monotonic()
            before, (self._bytes, of_its_own) = self._bytes, self._child.memory()
            self._grown = max(0, of_its_own - self._began_with)
            HOST_BYTES.inc(self._bytes - before)
        HELD.check(self._total_bytes)

    def _count(self, how: str) -> None:
        if not self._is_counted:
            self._is_counted = True
            HOSTS_ENDED.labels(how).inc()

    def _death(self, line: _Line) -> HostDied:
        """Close the host and return the reason of its end for a call over this line."""
        working_on = self.masks.working_on
        self.close()
        if self._killed is not None and self._killed[1] and self._killed[0] is line:
            self._count("limit")
            return HostDied(self._killed[1], broke=True, by_itself=not self._is_largest, working_on=working_on)
        status = self._status
        # with calls over both sockets it is unknown which one crashed: each is tried again, and crashes alone
        if self._killed is None and not self._amid_both and status is not None and status not in INNOCENT:
            self._count("crash")
            if status == -signal.SIGABRT:  # native code usually aborts if it cannot allocate memory
                why = "its process aborted (signal SIGABRT), as native code does that runs out of memory"
                return HostDied(why, broke=True, by_itself=True, working_on=working_on)
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            return HostDied(f"its process crashed ({how})", by_itself=True, working_on=working_on)
        if not self.given_up:
            self._count("outside")
        return HostDied("its process was killed or stopped from outside", working_on=working_on)


INNOCENT = (-signal.SIGKILL, -signal.SIGTERM, 0, 70)
"""Ends of a host that its work did not cause: killed, terminated, its socket closed, or a failed start (70)."""
