"""A host that is started when it is needed, and again when it was lost."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, wait

from guideway.errors import GuidewayError

from guideway_hosts.fork_server import ForkServer
from guideway_hosts.host import Host

__all__ = ["Seat"]

_NUMBERS = itertools.count()
"""The numbers of the hosts, unique in this process."""


class Seat:
    """A host, started when it is needed and again when it was lost. Callers hold `lock`, except for `start`."""

    def __init__(self, role: str, server: ForkServer, lock: threading.RLock) -> None:
        self._role = role
        self._server = server
        self._limits = server.limits
        self.lock = lock
        self.host: Host | None = None
        self.number = -1
        """The number of the host. Objects remember it as `born_in`."""
        self.starting: Future[Host] | None = None
        """The host that is being started."""
        self.closed = False

    @property
    def is_starting(self) -> bool:
        return self.starting is not None and not self.starting.done()

    def alive(self) -> Host:
        """Return the host, started if necessary. Raises `HostDied` if it cannot be started."""
        self.is_up(None)
        assert self.host is not None
        return self.host

    def start_soon(self) -> Future[Host]:
        """Start the host in a thread. Raises `HostDied` if there is none."""
        if self.closed:
            raise GuidewayError(f"the host {self._role!r} is closed")
        self.starting = self.starting or self._server.fork(self._role)
        return self.starting

    def is_up(self, seconds: float | None) -> bool:
        """Return whether the host is running within `seconds` (None: no limit). If not, a thread is starting it. Raises
        `HostDied` if it cannot be started."""
        if self.host is not None and self.host.alive and not self.closed:
            return True
        starting = self.start_soon()
        if wait([starting], seconds).not_done:
            return False
        self.starting = None
        host = starting.result()
        self.lose()
        self.host, self.number = host, next(_NUMBERS)
        return True

    def start(self) -> tuple[Host, int]:
        """Wait for the host without holding the lock, and return it with its number. Raises `HostDied`."""
        while True:
            with self.lock:
                if self.is_up(0.0):
                    return self.alive(), self.number
                starting = self.starting
            if starting is not None:
                wait([starting])

    def lose(self) -> None:
        """End the host."""
        host, self.host = self.host, None
        if host is not None:
            host.close()

    def close(self) -> None:
        """End the host, and a host that is being started. None is started again."""
        self.closed = True
        if self.host is not None:
            self.host.given_up = True
        self.lose()
        if self.starting is not None:
            self.starting.add_done_callback(_close)


def _close(started: Future[Host]) -> None:
    if started.exception() is None:
        started.result().given_up = True
        started.result().close()
