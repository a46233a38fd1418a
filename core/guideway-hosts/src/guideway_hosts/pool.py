"""A pool of hosts without state between two calls, shared by all callers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from guideway.errors import GuidewayError

from guideway_hosts.deaths import Subject, retry
from guideway_hosts.fork_server import ForkServer
from guideway_hosts.host import Host, HostDied

__all__ = ["Pool", "give_up"]


QUICK = frozenset({"supports", "takes", "rewritings", "companions", "edit_prompt", "compile_key"})
"""Commands that are short. They never wait for long ones."""

AT_ONCE = 2
"""Most short calls at once. Also the most checks of texts at once."""


class Pool:
    """Hosts without state between two calls. At most `num_slow` long calls run at once."""

    def __init__(self, server: ForkServer, num_slow: int) -> None:
        self._server = server
        self.limits = server.limits
        self._slow = threading.Semaphore(num_slow)
        self._turns = dict.fromkeys(QUICK, threading.Semaphore(AT_ONCE)) | {"judge": threading.Semaphore(AT_ONCE)}
        self._idle: list[Future[Host]] = []
        self._busy: set[Future[Host]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def start_soon(self) -> Future[Host]:
        """Start a host for the next call in a thread. Raises `GuidewayError` if there is none, or the pool is
        closed."""
        with self._lock:
            started = self._start()
            self._idle.append(started)
            return started

    def call(self, name: str, *arguments: Any, seconds: float) -> tuple[Any, bytes | None]:
        """Return `Host.call` of a host, repeated as `retry` does. Raises `HostDied`, and `GuidewayError` if the pool is
        closed or the result is no longer wanted."""

        def attempt(subject: Subject) -> tuple[Any, bytes | None]:
            with self._take() as host:
                try:
                    return host.call(name, *arguments, seconds=seconds)
                except HostDied as died:
                    died.working_on = subject.number
                    if host.given_up:
                        raise GuidewayError(str(died)) from died
                    raise

        with self._turns.get(name, self._slow):
            return retry(Subject(), attempt)

    def close(self) -> None:
        """End all hosts, also busy ones."""
        with self._lock:
            self._closed = True
            hosts = [*self._idle, *self._busy]
        for host in hosts:
            host.add_done_callback(give_up)

    def _start(self) -> Future[Host]:
        if self._closed:
            raise GuidewayError("the compiler is closed")
        return self._server.fork("compile")

    @contextmanager
    def _take(self) -> Iterator[Host]:
        """Have a host to execute a call. Raises `HostDied` if none can be started."""
        with self._lock:
            self._idle = [each for each in self._idle if _is_usable(each)]  # others were killed while they were idle
            started = self._idle.pop() if self._idle else self._start()
            self._busy.add(started)
        try:
            yield started.result()
        finally:
            with self._lock:
                self._busy.remove(started)
                if not self._closed and _is_usable(started):
                    self._idle.append(started)


def _is_usable(started: Future[Host]) -> bool:
    return not started.done() or (started.exception() is None and not started.result().is_gone())


def give_up(started: Future[Host]) -> None:
    """End a host that was started and is no longer needed."""
    if started.exception() is None:
        started.result().kill()
        started.result().close()
