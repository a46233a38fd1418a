"""A pool of hosts without state between two calls, shared by all callers."""

from __future__ import annotations

import threading
from typing import Any

from guideway.errors import GuidewayError

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Host, HostDied

__all__ = ["Pool"]


QUICK = frozenset({"supports", "takes", "rewritings", "companions", "edit_prompt", "compile_key"})
"""Commands that are short. They never wait for long ones."""

AT_ONCE = 2
"""Most short calls at once. Also the most checks of texts at once."""


class Pool:
    """Hosts without state between two calls. At most `num_slow` long calls run at once."""

    def __init__(self, role: str, source: HostSource, num_slow: int) -> None:
        self._role = role
        self._source = source
        self.limits = source.limits
        self._slow = threading.Semaphore(num_slow)
        self._quick, self._checks = threading.Semaphore(AT_ONCE), threading.Semaphore(AT_ONCE)
        self._idle: list[Host] = []
        self._busy: dict[Host, tuple[Any, ...]] = {}
        """The call that each host is executing."""
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start a host for the first call. Raises `HostDied`."""
        self._put_back(self._take((), fresh=False))

    def call(self, name: str, *arguments: Any, seconds: float) -> tuple[Any, bytes | None]:
        """Return `Host.call` of an idle host. If the host is killed from outside, try once more with a new one."""
        with self._quick if name in QUICK else self._checks if name == "judge" else self._slow:
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
        """Kill the hosts that are executing a command with this beginning. It does not count as a failure."""
        with self._lock:
            hosts = [host for host, of in self._busy.items() if of[: len(work)] == work]
        for host in hosts:
            host.given_up = True
            host.close()

    def close(self) -> None:
        """End all hosts, also busy ones."""
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
