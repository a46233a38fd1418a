"""Hosts that hold nothing between two calls, and take those of all comers."""

from __future__ import annotations

import threading
from typing import Any

from guideway.errors import GuidewayError

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Host, HostDied

__all__ = ["Pool"]


QUICK = frozenset({"supports", "takes", "rewritings", "companions", "edit_prompt", "compile_key"})
"""Commands, and methods of modifiers to look with, that wait for none that takes long."""

AT_ONCE = 2
"""Calls of each such kind, and of those that check texts."""


class Pool:
    """Hosts that hold nothing between two calls, of which `num_slow` at once may take long."""

    def __init__(self, role: str, source: HostSource, num_slow: int) -> None:
        self._role = role
        self._source = source
        self._slow = threading.Semaphore(num_slow)
        self._quick, self._checks = threading.Semaphore(AT_ONCE), threading.Semaphore(AT_ONCE)
        self._idle: list[Host] = []
        self._busy: dict[Host, tuple[Any, ...]] = {}
        """The work that each is at."""
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Have one for the first call. Raises `HostDied`."""
        self._put_back(self._take((), fresh=False))

    def call(self, name: str, *arguments: Any, seconds: float) -> tuple[Any, bytes | None]:
        """`Host.call` of one that is free. One that is killed from outside is replaced, once."""
        what = arguments[0] if name == "look" else name
        with self._quick if what in QUICK else self._checks if name == "judge" else self._slow:
            for last in (False, True):
                host = self._take((name, *arguments), fresh=last)
                try:
                    return host.call(name, *arguments, seconds=seconds)
                except HostDied as error:
                    if error.by_itself or host.given_up or last:
                        raise
                finally:
                    self._put_back(host)
        raise AssertionError

    def give_up(self, *work: Any) -> None:
        """Kill the hosts that are at work on a command that begins so; nothing is held against it."""
        with self._lock:
            hosts = [host for host, of in self._busy.items() if of[: len(work)] == work]
        for host in hosts:
            host.given_up = True
            host.close()

    def close(self) -> None:
        """End all, also those at work."""
        with self._lock:
            self._closed = True
            hosts = [*self._idle, *self._busy]
            self._idle.clear()
        for host in hosts:
            host.given_up = True
            host.close()

    def _take(self, work: tuple[Any, ...], *, fresh: bool) -> Host:
        with self._lock:
            if self._closed:
                raise GuidewayError("the compiler is closed")
            host = self._idle.pop() if self._idle else None
        if host is not None and (fresh or host.is_gone()):
            host.close()
            host = None
        if host is None:
            host = self._source.fork(self._role)
        with self._lock:
            self._busy[host] = work
        return host

    def _put_back(self, host: Host) -> None:
        with self._lock:
            self._busy.pop(host, None)
            if host.alive and not self._closed:
                self._idle.append(host)
                return
        host.close()
