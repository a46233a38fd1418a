"""The objects in a host, matchers and states of modifiers, and the calls about them.

An object is made from its source, a compiled grammar or value, and from its history. If its host is lost, its next call
makes it again in another one.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

from guideway.errors import GuidewayError, passable, text_of

from guideway_hosts.codec import encode
from guideway_hosts.deaths import Subject, retry
from guideway_hosts.fork_server import ForkServer
from guideway_hosts.host import Allowed, Host, HostDied
from guideway_hosts.messages import Birth, Job, read_error
from guideway_hosts.pool import give_up

__all__ = ["LIVING", "SECONDS_PER_TOKEN", "Call", "Remote", "Room", "Source"]

log = logging.getLogger(__name__)

SECONDS_PER_TOKEN = 1e-3
"""Seconds allowed in addition for each token of an object that is made again, to accept the tokens."""

_NUMBERS = itertools.count()
"""The numbers of the hosts, unique in this process."""


class Source(Subject):
    """A compiled grammar or value in hosts, with what it is made from: the arguments of `Plugins.make`. `unload` is
    called with its number when it is dropped."""

    def __init__(self, unload: Callable[[int], None], *made_from: Any) -> None:
        super().__init__()
        self.made_from = made_from
        self._unload = unload

    def __del__(self) -> None:
        self._unload(self.number)


class Remote(Subject):
    """An object in a host."""

    def __init__(self, source: Source | None) -> None:
        super().__init__()
        self.source = source
        self.room: Room | None = None
        self.born_in = -1
        """The number of the host that has the object, of those of `room`; -1: no host has it."""
        LIVING[self.number] = self

    def history(self) -> tuple[list[Any], int]:
        """Return what the object is made from besides its source, encoded, and the number of tokens in it."""
        raise NotImplementedError

    def take_changes(self) -> Sequence[int]:
        """Return the accepted tokens that the host does not know, which a command is about to send."""
        return ()

    def fail(self, is_new: bool) -> None:
        """Record that a call about the object failed, which made it if it `is_new`."""
        if is_new:
            self.move()

    def move(self) -> None:
        """Remove the object from its host, so that the next call makes it again."""
        if self.room is not None:
            self.room.tell("end", self.number, self.born_in)
        self.born_in = -1

    def __del__(self) -> None:
        if self.room is not None:
            self.room.give_up(without=self.number)
            self.move()


LIVING: WeakValueDictionary[int, Remote] = WeakValueDictionary()
"""All objects in hosts, by number."""


class Call:
    """A call of a method for several objects, and its results."""

    def __init__(self, method: str, objects: Sequence[Remote], given: Any, seconds: float, share: float = 0.0) -> None:
        """`given` are the encoded arguments. `seconds` is `Allowed.alone`, and `share` by how much longer the work on
        all objects may take; 0: in proportion to their number."""
        self.method, self.given, self.seconds = method, given, seconds
        self.share = share or 1 + len(objects)
        self.objects = objects
        """Empty once it is sent: the call does not keep objects that are dropped meanwhile."""
        self.numbers = [each.number for each in objects]
        self.sources = {each.number: each.source for each in objects}
        """The sources are kept: one that ended a host is refused also if its objects were dropped."""
        self.jobs: list[Job] = []
        """Set when it is sent."""
        self.births: dict[int, Birth] = {}
        """By number the objects that the host did not have."""
        self.allowed = Allowed(seconds)
        self.results: list[Any] = []
        """For each object its result or its error, a `GuidewayError`."""
        self.errors: dict[int, GuidewayError] = {}
        self.failures: list[str] = []
        """What went wrong when earlier objects ended."""

    def enter(self, room: Room) -> None:
        """Set the jobs for a host, which has the objects from then on, unless it is lost or they fail."""
        self.jobs = [room.job(each) for each in self.objects]

    def send(self, host: Host, name: str, news: Sequence[tuple[str, int]]) -> None:
        """Send the jobs and what else the host must know. `name` is `Room.name`."""
        host.send("call", name, self.method, self.jobs, news, self.given)

    def read(self, answer: Any, data: bytes | None) -> None:
        """Set the results from the host's answer. Raises ValueError, KeyError or TypeError if the answer does not fit
        the call: the host is not trusted."""
        self.errors = {int(i): read_error(words) for i, words in answer["errors"].items()}
        self.results = list(answer["found"])
        if len(self.results) != len(self.numbers):
            raise ValueError(f"{len(self.results)} results of {len(self.numbers)} calls")
        for i, error in self.errors.items():
            self.results[range(len(self.numbers))[i]] = error
        self.failures = list(map(str, answer["failures"]))


class Room:
    """A host of objects, started when it is needed and again when it was lost. Callers hold `lock`, except for `load`.

    `refuse` is called with a source and the reason if an object of it ended the host.
    """

    def __init__(
        self,
        role: str,
        server: ForkServer,
        lock: RLock,
        name: str = "",
        refuse: Callable[[Any, str], object] = lambda *_: None,
    ) -> None:
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
        self.name = name
        """The name of the modifier; empty for matchers."""
        self.pending: Call | None = None
        """The call that is not answered yet."""
        self._refuse = refuse
        self._loaded: set[int] = set()
        """The numbers of the sources that the host has."""
        self._events: deque[tuple[int, str, int]] = deque()
        """Events that the host does not know yet: its number, what happened, and to which object."""

    @property
    def is_starting(self) -> bool:
        return self.starting is not None and not self.starting.done()

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

    def lose(self) -> None:
        """End the host."""
        host, self.host, self.pending = self.host, None, None
        self._loaded.clear()
        if host is not None:
            host.close()

    def close(self) -> None:
        """End the host, and a host that is being started. None is started again."""
        self.closed = True
        if self.host is not None:
            self.host.kill()
        self.lose()
        if self.starting is not None:
            self.starting.add_done_callback(give_up)

    def call(self, call: Call) -> Call:
        """Return a call with its answer. Raises `HostDied`, and an error of the whole call."""
        self.begin(call)
        answered = self.end()
        assert answered is not None
        return answered

    def begin(self, call: Call) -> None:
        """Send a call. Raises `HostDied`."""
        self.is_up(None)
        host = self.host
        assert host is not None
        with self._watch(call):
            call.enter(self)
            call.objects = ()
            call.births = {job.number: job.birth for job in call.jobs if job.birth is not None}
            more = {number: self._seconds_of(birth) for number, birth in call.births.items()}
            call.allowed = Allowed(call.seconds, call.seconds * call.share + sum(more.values()), more)
            self.pending = call
            call.send(host, self.name, self._news())

    def end(self, patience: Allowed | None = None) -> Call | None:
        """Return the unanswered call with its answer, or None if `patience` ends before it arrives. Raises `HostDied`,
        and an error of the whole call."""
        call, host = self.pending, self.host
        assert call is not None and host is not None
        with self._watch(call):
            answered = host.answer(call.allowed, patience=patience)
            if answered is None:
                return None
            call.read(*answered)
        self.pending = None
        for i in call.errors:
            is_new = call.births.pop(call.numbers[i], None) is not None
            if (failed := LIVING.get(call.numbers[i])) is not None:
                failed.fail(is_new)
        self._loaded.update(birth.source for birth in call.births.values())
        for text in call.failures:
            log.warning("%s", passable(text))
        return call

    def has(self, one: Remote) -> bool:
        """Return whether the unanswered call is about an object."""
        return self.pending is not None and one.number in self.pending.sources

    def job(self, one: Remote, draft_token_ids: Sequence[int] = (), num_forced: int = 0) -> Job:
        """Return an object's part of a command."""
        accept = one.take_changes()
        if one.born_in == self.number:
            return Job(one.number, None, accept, draft_token_ids, num_forced)
        one.move()
        one.room, one.born_in = self, self.number
        source, given = one.source, None
        if source is not None and source.number not in self._loaded:
            given = encode(source.made_from)
        history, num_tokens = one.history()
        birth = Birth(-1 if source is None else source.number, given, history, num_tokens)
        return Job(one.number, birth, (), draft_token_ids, num_forced)

    def load(self, source: Source) -> None:
        """Make a source in the host's second thread, while commands continue. Raises its plugin's errors, and
        `HostDied`."""

        def attempt(_: Source) -> None:
            with self.lock:
                starting = [] if self.is_up(0.0) else [self.start_soon()]
            wait(starting)  # others may use the lock meanwhile
            with self.lock:
                self.is_up(None)
                host, born_in = self.host, self.number
            assert host is not None
            try:
                seconds = self._limits.compile_seconds
                host.call("load", source.number, *source.made_from, seconds=seconds, beside=True)
            except HostDied as died:
                host.close()
                died.working_on = source.number
                raise
            with self.lock:
                if born_in == self.number:
                    self._loaded.add(source.number)

        retry(source, attempt)

    # The garbage collector may call these: they take no lock and never wait

    def tell(self, what: str, number: int, born_in: int) -> None:
        """Send an event to a host with its next command."""
        if born_in >= 0:
            self._events.append((born_in, what, number))

    def unload(self, number: int) -> None:
        """Let the host drop a source."""
        self.tell("unload", number, self.number)

    def give_up(self, without: int = -1) -> None:
        """Kill the host if its only work is slow, and for no object that still exists, except for `without`."""
        call, host = self.pending, self.host
        if call is None or host is None or not host.is_slow:
            return
        is_useless = not any(other in LIVING for other in call.sources if other != without)
        if is_useless and self.pending is call and not host.has_news():
            host.kill()

    # Parts

    @contextmanager
    def _watch(self, call: Call) -> Iterator[None]:
        """End the host if it dies in the body, or if part of an answer may still arrive.

        Raises `HostDied`, whose `working_on` is the number of an object of the call or None, also for an answer that
        cannot be read. Refuses the source of the object that ended the host.
        """
        try:
            yield
        except HostDied as died:
            self.lose()
            if died.working_on not in call.sources:
                died.working_on = None
            elif died.by_itself:
                self._refuse(call.sources[died.working_on], str(died))
            raise
        except GuidewayError:  # the plugin's
            self.pending = None
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

    def _news(self) -> list[tuple[str, int]]:
        """Return the events for the current host, and clear the list."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        news = [(what, number) for born_in, what, number in events if born_in == self.number]
        self._loaded.difference_update(number for what, number in news if what == "unload")
        return news

    def _seconds_of(self, birth: Birth) -> float:
        """Return the seconds for making an object: for its start, its tokens, and for compiling its source, which may
        need a grammar."""
        compiling = 0.0 if birth.given is None else 2 * self._limits.compile_seconds
        starting = self._limits.start_seconds if self.name else 0.0
        return starting + SECONDS_PER_TOKEN * birth.num_tokens + compiling
