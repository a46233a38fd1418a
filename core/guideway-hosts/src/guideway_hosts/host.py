"""One grammar host as the serving process sees it: asked, waited for within limits, killed."""

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
"""Seconds between two looks at how much time a host has taken."""

STOPPED_FOR = 0.5
"""Seconds between two looks at whether somebody stopped a host; twice in turn is enough."""

CLOSING_SECONDS = SEARCH_SECONDS + 1.0
"""The seconds of a processor that the search for the end of an output may take besides. It is bounded in work, and
gives up before; this is for what hangs in it."""

WEIGHS_EVERY = 0.02
"""Seconds of work between two looks at how much memory a host has."""


class HostDied(GuidewayError):
    """A host is gone. `broke`: for a limit; `by_itself`: it broke one of its own, or crashed; else somebody killed or
    stopped it, or all hosts together held too much memory."""

    def __init__(self, message: str, *, broke: bool = False, by_itself: bool = False, working_on: int = IDLE) -> None:
        super().__init__(message)
        self.broke = broke
        self.by_itself = by_itself
        self.working_on = working_on

    def error(self) -> GuidewayError:
        """Return what the request it worked for fails with."""
        return LimitExceeded(str(self), field="constraint") if self.broke else self


@dataclass(frozen=True, slots=True)
class Patience:
    """For how many seconds of a processor an answer is waited for."""

    alone: float
    """The seconds for work on one matcher; by the clock, for all of it, as many times as many as the limits say."""
    together: float
    """The seconds for work on several at once."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The seconds of a processor that a call may take, beyond which its host is killed."""

    alone: float
    """From its beginning, or from when the host last began with another matcher."""
    together: float = 0.0
    """The same of what it does for several at once, where that is more."""
    more: Mapping[int, float] = field(default_factory=dict)
    """By the number of a matcher, beside `alone`."""


@dataclass(slots=True)
class _Watch:
    """Since when a call is watched."""

    on: int
    """The work it did then."""
    taken: float
    """The host's processor time then."""
    began: float = field(default_factory=time.monotonic)
    looked: float = 0.0
    """Seconds after that when it was last looked whether somebody had stopped the host."""
    stopped: bool = False
    """True if somebody had stopped the host then."""

    def is_stopped(self, pid: int, waited: float) -> bool:
        """Return whether somebody has stopped the host, and had at the last look."""
        before, self.looked, self.stopped = self.stopped, waited, is_stopped(pid)
        return before and self.stopped


class Host:
    """One host. A call that breaks a limit kills it."""

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
        """The way it ended, asked once after it was killed: its exit status, or the negative number of a signal."""
        self._owner = os.getpid()
        self._frames = {False: commands, True: beside}
        self._talking = {False: threading.RLock(), True: threading.RLock()}
        """One call at a time over each of the two sockets."""
        self._busy = {False: False, True: False}
        self._watch = {beside: _Watch(IDLE, 0.0) for beside in (False, True)}
        self._amid_both = False
        """True if calls over both were under way when it ended."""
        self._killed: tuple[bool, str] | None = None
        """The call it was killed for, and the limit that broke; empty for none."""
        self._is_largest = False
        """True if it was killed because all hosts together held too much."""
        self._limits = limits
        self.masks = masks
        self._lock = threading.Lock()
        self.alive = True
        self.given_up = False
        """True if it was ended because nobody waits for what it does."""
        self._bytes = 0
        """As the metric has them."""
        self._total_bytes = total_bytes
        """The bytes that all hosts may hold together."""
        self._began_with = child.memory()[1]
        self._grown = 0
        self._weighed_at = 0.0
        self._status: int | None = None
        self._is_counted = False
        for frames in (commands, beside):  # a stopped host takes no long command
            frames.socket.settimeout(limits.compile_seconds * limits.wall_factor)
        HELD.add(self)

    @property
    def pid(self) -> int:
        return self._child.pid

    def call(self, name: str, *arguments: Any, seconds: float, beside: bool = False) -> tuple[Any, bytes | None]:
        """Return what the host answers, and the bytes with it. `seconds`: `Allowed.alone`. Raises what the strategy
        raised, and `HostDied`."""
        with self._talking[beside]:
            self.send(name, *map(encode, arguments), beside=beside)
            answer = self.answer(Allowed(seconds), beside=beside)
            assert answer is not None
            return answer

    def send(self, name: str, *arguments: Any, beside: bool = False) -> None:
        """Begin a call with encoded arguments, of which `answer` tells the end. Raises `HostDied`."""
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
        """`call` after `send`. With `patience`, None if there is no answer when that has ended: ask again."""
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
        """Wait as `answer` does, and leave the answer to it; False if there is none when `patience` has ended."""
        with self._talking[beside], self._until_gone(beside):
            return self._await(self._frames[beside].socket, allowed, patience, beside)

    @contextmanager
    def _until_gone(self, beside: bool) -> Iterator[None]:
        """Around what is said over a socket."""
        try:
            yield
        except BROKEN as error:
            death = self._death(beside)
            self._busy[beside] = False
            raise death from error
        except BaseException:  # interrupted: the answer would be taken for that of the next call
            self.close()
            self._busy[beside] = False
            raise

    def kill(self) -> None:
        """End it without waiting for anything: calls find it gone."""
        if self.alive and os.getpid() == self._owner:
            self.given_up = True
            self._child.kill()

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds beyond those that it was forked with, as last seen."""
        return self._grown if self.alive and os.getpid() == self._owner else 0

    @property
    def is_busy(self) -> bool:
        """True if a call is under way."""
        return any(self._busy.values())

    def end_for_memory(self) -> None:
        """End it, because all hosts together hold too much. A call under way raises `HostDied`."""
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
        """Return whether it ended while nobody called."""
        return not self.alive or self.has_news()

    def has_news(self) -> bool:
        """Return whether it has begun to answer, or ended."""
        return self._frames[False].has_news()

    def close(self) -> None:
        """End it, also amid a call of another thread, which then raises `HostDied`."""
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
            with self._talking[beside]:  # a call finds out at once, now that the process is gone
                frames.close()

    def _await(self, sock: socket.socket, allowed: Allowed, patience: Patience | None, beside: bool) -> bool:
        """Wait for an answer, and no longer than `patience`; whether there is one. Kills the host if it takes too
        long."""
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
            amid_both = self._busy[True] and not beside  # what is done beside takes time of the same process
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
        """Now and then, look how much memory the host has, and let the largest of all go if they have too much."""
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
        """Why it is gone, as a call over one of the sockets sees it."""
        working_on = self.masks.working_on
        self.close()
        if self._killed is not None and self._killed[1] and self._killed[0] is beside:
            self._count("limit")
            return HostDied(self._killed[1], broke=True, by_itself=not self._is_largest, working_on=working_on)
        status = self._status
        # of two calls nobody knows whose crash it was: each is tried again, and the culprit crashes alone
        if self._killed is None and not self._amid_both and status is not None and status not in INNOCENT:
            self._count("crash")
            if status == -signal.SIGABRT:  # how native code ends that does not go on without memory
                why = "its process aborted (signal SIGABRT), as native code does that runs out of memory"
                return HostDied(why, broke=True, by_itself=True, working_on=working_on)
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            return HostDied(f"its process crashed ({how})", by_itself=True, working_on=working_on)
        if not self.given_up:
            self._count("outside")
        return HostDied("its process was killed or stopped from outside", working_on=working_on)


INNOCENT = (-signal.SIGKILL, -signal.SIGTERM, 0, 70)
"""The ways in which a host ends for no reason of its work: killed, told to end, its socket closed, or it could not
begin."""
