"""A host process, as the serving process uses it: it is asked, waited for within limits, and killed."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from guideway.errors import GuidewayError, LimitExceeded
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.closing import SEARCH_SECONDS
from guideway.runtime.work.metrics import HOST_BYTES, HOSTS_ENDED

from guideway_hosts.children import Child, is_stopped
from guideway_hosts.codec import encode
from guideway_hosts.memory import HELD
from guideway_hosts.messages import BROKEN, IDLE, Frames, SharedMasks, error_of

__all__ = ["Allowed", "Host", "HostDied", "Patience"]

log = logging.getLogger(__name__)

LOOKS_EVERY = 0.02
"""Seconds between two checks of the processor time that a host has used."""

STOPPED_FOR = 0.5
"""Seconds between two checks whether a host is stopped (SIGSTOP, for example). Two in a row end the host."""

CLOSING_SECONDS = SEARCH_SECONDS + 1.0
"""CPU seconds that a search for a completion may take in addition. The search limits its own work to
`SEARCH_SECONDS`, so this ends only one that hangs."""

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

    def error(self) -> GuidewayError:
        """Return the error for the request that the host was working for."""
        return LimitExceeded(str(self), field="constraint") if self.broke else self


@dataclass(frozen=True, slots=True)
class Patience:
    """CPU seconds to wait for an answer."""

    alone: float
    """CPU seconds for work on one matcher. Also the wall-clock limit of the whole wait, times `Limits.wall_factor`."""
    together: float
    """CPU seconds for work on several matchers at once."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """CPU seconds that a call may take before its host is killed."""

    alone: float
    """CPU seconds since the beginning of the call, or since the host started to work on another matcher."""
    together: float = 0.0
    """CPU seconds for work on several matchers at once, if that is more than `alone`."""
    more: Mapping[int, float] = field(default_factory=dict)
    """By the number of a matcher the CPU seconds in addition to `alone`."""


@dataclass(slots=True)
class _Watch:
    """The beginning of the current work of a call, against which its limits are checked."""

    on: int
    """The number of the matcher that the host was working on then; `IDLE` for work on several."""
    taken: float
    """The CPU seconds that the host had used then."""
    began: float = field(default_factory=time.monotonic)
    looked: float = 0.0
    """Seconds from `began` to the last check whether the host was stopped."""
    stopped: bool = False
    """The result of that check."""

    def is_stopped(self, pid: int, waited: float) -> bool:
        """Return whether the host is stopped now and was at the last check."""
        before, self.looked, self.stopped = self.stopped, waited, is_stopped(pid)
        return before and self.stopped


class Host:
    """One host process. A call that exceeds a limit kills it."""

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
        self._frames = {False: commands, True: beside}
        self._talking = {False: threading.RLock(), True: threading.RLock()}
        """Locks for the two sockets: one call at a time over each."""
        self._busy = {False: False, True: False}
        self._watch = {beside: _Watch(IDLE, 0.0) for beside in (False, True)}
        self._amid_both = False
        """True if calls over both sockets were running when it ended."""
        self._killed: tuple[bool, str] | None = None
        """The socket of the call that it was killed for (as in `_frames`), and the limit exceeded; empty: it was
        stopped."""
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
        HELD.add(self)

    @property
    def pid(self) -> int:
        return self._child.pid

    def call(self, name: str, *arguments: Any, seconds: float, beside: bool = False) -> tuple[Any, bytes | None]:
        """Return the host's answer, and the bytes sent with it. `seconds` is `Allowed.alone`. Raises the strategy's
        errors, and `HostDied`."""
        with self._talking[beside]:
            self.send(name, *map(encode, arguments), beside=beside)
            answer = self.answer(Allowed(seconds), beside=beside)
            assert answer is not None
            return answer

    def send(self, name: str, *arguments: Any, beside: bool = False) -> None:
        """Start a call with encoded arguments. `answer` waits for its result. Raises `HostDied`."""
        if os.getpid() != self._owner:
            raise HostDied("a forked process cannot use the hosts of its parent")
        with self._talking[beside]:
            self._busy[beside] = True
            self._watch[beside] = _Watch(IDLE if beside else self.masks.working_on, self._child.processor_seconds())
            with self._until_gone(beside):
                self._frames[beside].send((name, *arguments))

    def answer(
        self, allowed: Allowed, *, patience: Patience | None = None, beside: bool = False
    ) -> tuple[Any, bytes | None] | None:
        """Return the result of the call that `send` started, as `call` does. None if `patience` ends first: call
        again."""
        with self._talking[beside]:
            if not self.is_answered(allowed, patience=patience, beside=beside):
                return None
            with self._until_gone(beside):
                answer = self._frames[beside].receive()
                data = self._frames[beside].receive_bytes() if answer.get("bytes") else None
            self._busy[beside] = False
            self._weigh()
        if "error" in answer:
            raise error_of(answer["error"])
        return answer["value"], data

    def is_answered(self, allowed: Allowed, *, patience: Patience | None = None, beside: bool = False) -> bool:
        """Wait as `answer` does, but do not read the answer. Return False if `patience` ends first."""
        with self._talking[beside], self._until_gone(beside):
            return self._await(self._frames[beside].socket, allowed, patience, beside)

    @contextmanager
    def _until_gone(self, beside: bool) -> Iterator[None]:
        """Raise `HostDied` if the body cannot use the socket, and close the host if the body is interrupted."""
        try:
            yield
        except BROKEN as error:
            death = self._death(beside)
            self._busy[beside] = False
            raise death from error
        except BaseException:  # interrupted: the next call would take this answer for its own
            self.close()
            self._busy[beside] = False
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
        return any(self._busy.values())

    def end_for_memory(self) -> None:
        """Kill the process because all hosts together use too much memory. A running call raises `HostDied`."""
        busy = [beside for beside, is_busy in self._busy.items() if is_busy]
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
        return self._frames[False].has_news()

    def close(self) -> None:
        """End the process. If a call of another thread is running, the call raises `HostDied`."""
        with self._lock:
            if not self.alive or os.getpid() != self._owner:
                return
            self.alive = False
            HOST_BYTES.dec(self._bytes)
            HELD.remove(self)
            self._amid_both = all(self._busy.values())
            self._child.kill()
            self._status = self._reap()
        for beside, frames in self._frames.items():
            with self._talking[beside]:  # a running call fails at once, because the process has ended
                frames.close()

    def _await(self, sock: socket.socket, allowed: Allowed, patience: Patience | None, beside: bool) -> bool:
        """Wait for an answer, at most for `patience`, and return whether it has arrived. Raises EOFError if the process
        ended or must be killed because it took too long."""
        poll = self._child.watched(sock)
        watch, factor = self._watch[beside], self._limits.wall_factor
        looks_every, lost_patience = LOOKS_EVERY, float("inf")
        if patience is not None:
            looks_every = min(LOOKS_EVERY, patience.alone * factor)
            lost_patience = time.monotonic() + patience.alone * factor
        while not (news := poll.poll(looks_every * 1000)):
            on = watch.on if beside else self.masks.working_on
            if on != watch.on:
                watch = self._watch[beside] = _Watch(on, self._child.processor_seconds())
            limit = max(allowed.alone, allowed.together) if on == IDLE else allowed.alone + allowed.more.get(on, 0.0)
            if self.masks.is_closing and not beside:
                limit += CLOSING_SECONDS
            amid_both = self._busy[True] and not beside  # the second thread's CPU time counts too
            most = limit + (self._limits.compile_seconds if amid_both else 0)
            used, waited = self._child.processor_seconds() - watch.taken, time.monotonic() - watch.began
            if used > most:
                self._killed = beside, f"it exceeded its limit of {limit:g} s processor time"
            elif waited > most * factor:
                self._killed = beside, f"it did not answer within {waited:.1f} s"
            elif waited > watch.looked + STOPPED_FOR and watch.is_stopped(self._child.pid, waited):
                self._killed = beside, ""
            if self._killed is not None:
                raise EOFError(self._killed[1])
            self._weigh()
            if patience is not None:
                impatient = used > (patience.together if on == IDLE else patience.alone) and not amid_both
                if impatient or time.monotonic() > lost_patience:
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

    def _death(self, beside: bool) -> HostDied:
        """Close the host and return the reason of its end for a call over one of the sockets."""
        working_on = self.masks.working_on
        self.close()
        if self._killed is not None and self._killed[1] and self._killed[0] is beside:
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
