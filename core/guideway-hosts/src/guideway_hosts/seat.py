"""A host with objects that are made again if it is lost, and how to find the object that ended it."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from guideway.errors import contain, text_of
from guideway.plugins.limits import Limits

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Host, HostDied

__all__ = ["MAX_DEATHS", "SECONDS_PER_TOKEN", "Died", "Seat", "isolate"]

MAX_DEATHS = 3
"""Times in a row that a host may be killed from outside while it works for one sequence, before the sequence fails."""

SECONDS_PER_TOKEN = 1e-3
"""Seconds allowed in addition for each token of an object that is made again, to accept the tokens."""

_NUMBERS = itertools.count()
"""The numbers of the hosts, unique in this process."""

T = TypeVar("T")


class Died(Exception):
    """A host died during a command. `number` is the object that it was working on; None if that is unknown."""

    def __init__(self, cause: HostDied, number: int | None = None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.number = number


def isolate(
    items: Sequence[T],
    call: Callable[[list[T], bool], Sequence[T]],
    number: Callable[[T], int],
    fail: Callable[[T, HostDied], object],
    deaths: dict[int, int] | None = None,
) -> None:
    """Do the work for all items at once. If the host dies and it is unknown over which item, continue one by one.

    ``call(left, apart)`` returns the items that are done. An item whose host exceeded a limit or crashed fails. If the
    host was killed from outside, the item is tried again, `MAX_DEATHS` times in all, counted in `deaths` by `number`.
    """
    left, apart = list(items), False
    deaths = {} if deaths is None else deaths
    while left:
        try:
            done = call(left, apart)
        except Died as died:
            known = [item for item in left if number(item) == died.number]
            if died.number is not None and not known:  # the host was working on something else
                continue
            apart = apart or not known
            for item in known or list(left):
                deaths[number(item)] = deaths.get(number(item), 0) + 1
                if (known and died.cause.by_itself) or deaths[number(item)] >= MAX_DEATHS:
                    fail(item, died.cause)
                    left.remove(item)
        else:
            left = [item for item in left if item not in done]


class Seat:
    """A host, started when it is needed and again when it was lost. Not thread-safe, except for `tell`."""

    def __init__(self, role: str, source: HostSource, limits: Limits) -> None:
        self._role = role
        self._source = source
        self._limits = limits
        self.host: Host | None = None
        self.number = -1
        """The number of the host. Objects remember it as `born_in`."""
        self.starting: Future[Host] | None = None
        """The host that is being started."""
        self._told: deque[tuple[int, str, int]] = deque()
        """Events that the host does not know yet: its number, what happened, and to which object."""

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
        self.host, self.number = host, next(_NUMBERS)
        self.reset()
        return True

    def reset(self) -> None:
        """Forget the objects of the previous host."""

    def lose(self) -> None:
        """End the host."""
        host, self.host = self.host, None
        if host is not None:
            host.close()

    def close(self) -> None:
        """End the host, and a host that is being started."""
        self.lose()
        if self.starting is not None:
            self.starting.add_done_callback(_close)

    def tell(self, what: str, number: int, born_in: int) -> None:
        """Send an event to a host with its next command. Takes no lock, because the garbage collector may call it."""
        if born_in >= 0:
            self._told.append((born_in, what, number))

    def news(self) -> list[tuple[str, int]]:
        """Return the events for the current host, and clear the list."""
        told = [self._told.popleft() for _ in range(len(self._told))]
        return [(what, number) for born_in, what, number in told if born_in == self.number]


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
