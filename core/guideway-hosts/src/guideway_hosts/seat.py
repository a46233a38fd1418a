"""A host that is started when it is needed, and again when it was lost."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from guideway.errors import GuidewayError, contain, text_of

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Host, HostDied

__all__ = ["Seat"]

_NUMBERS = itertools.count()
"""The numbers of the hosts, unique in this process."""


class Seat:
    """A host, started when it is needed and again when it was lost. Callers hold `lock`, except for `start`."""

    def __init__(self, role: str, source: HostSource, lock: threading.RLock) -> None:
        self._role = role
        self._source = source
        self._limits = source.limits
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

    def is_up(self, seconds: float | None) -> bool:
        """Return whether the host is running within `seconds` (None: no limit). If not, a thread is starting it. Raises
        `HostDied` if it cannot be started."""
        if self.closed:
            raise GuidewayError(f"the host {self._role!r} is closed")
        if self.host is not None and self.host.alive:
            return True
        if self.starting is None:
            self.starting = _start(partial(self._source.fork, self._role))
        try:
            host = self.starting.result(seconds)
        except TimeoutError:
            return False
        except HostDied:
            self.starting = None
            raise
        self.starting = None
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
        self.lose()
        if self.starting is not None:
            self.starting.add_done_callback(_close)


def _start(fork: Callable[[], Host]) -> Future[Host]:
    """Start a host in a thread. The future raises `HostDied`."""
    future: Future[Host] = Future()

    def run() -> None:
        try:
            host = fork()
        except BaseException as error:
            contain(error)
            future.set_exception(error if isinstance(error, HostDied) else HostDied(text_of(error)))
        else:
            future.set_result(host)

    try:
        threading.Thread(target=run, name="guideway-starts-host", daemon=True).start()
    except RuntimeError as error:
        raise HostDied(f"no host can be started: {text_of(error)}") from error
    return future


def _close(started: Future[Host]) -> None:
    if started.exception() is None:
        started.result().close()
