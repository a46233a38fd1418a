"""A host with objects that are made again if it is lost, and how to find the object that ended it."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from guideway.errors import GuidewayError, contain, text_of

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Host, HostDied

__all__ = ["MAX_DEATHS", "SECONDS_PER_TOKEN", "Seat", "isolate", "retry"]

MAX_DEATHS = 3
"""Times in a row that a host may be killed from outside while it works for one sequence, before the sequence fails."""

SECONDS_PER_TOKEN = 1e-3
"""Seconds allowed in addition for each token of an object that is made again, to accept the tokens."""

_NUMBERS = itertools.count()
"""The numbers of the hosts, unique in this process."""

T = TypeVar("T")


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
        except HostDied as died:
            known = [item for item in left if number(item) == died.working_on]
            if died.working_on is not None and not known:  # the host was working on something else
                continue
            apart = apart or not known
            for item in known or list(left):
                deaths[number(item)] = deaths.get(number(item), 0) + 1
                if (known and died.by_itself) or deaths[number(item)] >= MAX_DEATHS:
                    fail(item, died)
                    left.remove(item)
        else:
            left = [item for item in left if item not in done]


def retry(number: int, call: Callable[[], T]) -> T:
    """Return the result of a call about one object, repeated as `isolate` does. Raises `HostDied`."""
    found: list[T] = []

    def attempt(left: list[int], _: bool) -> list[int]:
        found.append(call())
        return left

    def fail(_: int, died: HostDied) -> None:
        raise died

    isolate([number], attempt, int, fail)
    return found[-1]


class Seat:
    """A host, started when it is needed and again when it was lost.

    Callers hold `lock`, except for `load`, `tell` and `unload`.
    """

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
        self.loaded: set[int] = set()
        """The numbers of the grammars and compiled values that the host has."""
        self._events: deque[tuple[int, str, int]] = deque()
        """Events that the host does not know yet: its number, what happened, and to which object."""
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

    def load(self, number: int, command: str, *arguments: Any) -> None:
        """Make an object in the host's second thread, while commands continue. Raises its plugin's errors, and
        `HostDied`."""

        def attempt() -> None:
            host, born_in = self.start()
            try:
                host.call(command, number, *arguments, seconds=self._limits.compile_seconds, beside=True)
            except HostDied as died:
                host.close()
                died.working_on = number
                raise
            with self.lock:
                if born_in == self.number:
                    self.loaded.add(number)

        retry(number, attempt)

    def lose(self) -> None:
        """End the host."""
        host, self.host = self.host, None
        self.loaded.clear()
        if host is not None:
            host.close()

    def close(self) -> None:
        """End the host, and a host that is being started. None is started again."""
        self.closed = True
        self.lose()
        if self.starting is not None:
            self.starting.add_done_callback(_close)

    @contextmanager
    def losing(self, numbers: Collection[int]) -> Iterator[None]:
        """End the host if it dies in the body, or if part of an answer may still arrive.

        Raises `HostDied`, whose `working_on` is one of these numbers or None, also for an answer that cannot be read.
        """
        try:
            yield
        except HostDied as died:
            self.lose()
            died.working_on = died.working_on if died.working_on in numbers else None
            raise
        except GuidewayError:  # the plugin's
            raise
        except Exception as error:
            self.lose()
            raise HostDied(
                f"the answer of its host cannot be read ({text_of(error)}): is guideway installed in several versions, "
                "or was it changed while the server ran? Restart the server."
            ) from error
        except BaseException:  # interrupted: the rest of the answer may still arrive
            self.lose()
            raise

    def tell(self, what: str, number: int, born_in: int) -> None:
        """Send an event to a host with its next command. Takes no lock, because the garbage collector may call it."""
        if born_in >= 0:
            self._events.append((born_in, what, number))

    def unload(self, number: int) -> None:
        """Let the host drop an object that `load` made. Takes no lock, because the garbage collector may call it."""
        if number in self.loaded:
            self.tell("unload", number, self.number)

    def news(self) -> list[tuple[str, int]]:
        """Return the events for the current host, and clear the list."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        news = [(what, number) for born_in, what, number in events if born_in == self.number]
        self.loaded.difference_update(number for what, number in news if what == "unload")
        return news


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
