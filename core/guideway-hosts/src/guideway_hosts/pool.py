"""A pool of hosts without state between two calls, shared by all callers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from guideway.errors import GuidewayError

from guideway_hosts.fork_server import ForkServer
from guideway_hosts.host import HostDied
from guideway_hosts.room import Subject, retry
from guideway_hosts.seat import Seat

__all__ = ["Pool"]


QUICK = frozenset({"supports", "takes", "rewritings", "companions", "edit_prompt", "compile_key"})
"""Commands that are short. They never wait for long ones."""

AT_ONCE = 2
"""Most short calls at once. Also the most checks of texts at once."""


class Pool:
    """Hosts without state between two calls, each in a seat. At most `num_slow` long calls run at once."""

    def __init__(self, role: str, server: ForkServer, num_slow: int) -> None:
        self._role = role
        self._server = server
        self.limits = server.limits
        self._slow = threading.Semaphore(num_slow)
        self._turns = dict.fromkeys(QUICK, threading.Semaphore(AT_ONCE)) | {"judge": threading.Semaphore(AT_ONCE)}
        self._idle: list[Seat] = []
        self._busy: set[Seat] = set()
        self._lock = threading.Lock()
        self._closed = False

    def add_seat(self) -> Seat:
        """Return a seat for the next call."""
        seat = Seat(self._role, self._server, threading.RLock())
        with self._lock:
            self._idle.append(seat)
        return seat

    def call(self, name: str, *arguments: Any, seconds: float) -> tuple[Any, bytes | None]:
        """Return `Host.call` in a seat, repeated as `retry` does. Raises `HostDied`, and `GuidewayError` if the
        pool is closed or the result is no longer wanted."""
        with self._turns.get(name, self._slow), self._take() as seat:

            def attempt(subject: Subject) -> tuple[Any, bytes | None]:
                host, _ = seat.start()
                try:
                    return host.call(name, *arguments, seconds=seconds)
                except HostDied as died:
                    died.working_on = subject.number
                    if host.given_up:
                        raise GuidewayError(str(died)) from died
                    raise

            return retry(Subject(), attempt)

    def close(self) -> None:
        """End all hosts, also busy ones."""
        with self._lock:
            self._closed = True
            seats = [*self._idle, *self._busy]
        for seat in seats:
            seat.close()

    @contextmanager
    def _take(self) -> Iterator[Seat]:
        """Have a seat to execute a call."""
        with self._lock:
            if self._closed:
                raise GuidewayError("the compiler is closed")
            self._idle = [seat for seat in self._idle if not seat.closed]
            seat = self._idle.pop() if self._idle else Seat(self._role, self._server, threading.RLock())
            self._busy.add(seat)
        try:
            if seat.host is not None and seat.host.is_gone():
                seat.lose()
            yield seat
        finally:
            with self._lock:
                self._busy.remove(seat)
                is_kept = seat.host is not None and seat.host.alive and not (seat.closed or self._closed)
                if is_kept:
                    self._idle.append(seat)
            if not is_kept:
                seat.close()
