"""The fork server, as the serving process uses it: the process from which all hosts are forked, restarted if it is
lost."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from functools import partial
from json import JSONDecodeError
from typing import Any, ClassVar, TypeVar

from guideway.errors import GuidewayError, InvalidConfiguration, PluginLoadError, text_of
from guideway.plugins.limits import Limits
from guideway.runtime.work.metrics import HOSTS_STARTED
from guideway.runtime.work.threads import Threads

from guideway_hosts.codec import encode
from guideway_hosts.environment import host_environment
from guideway_hosts.host import Host, HostDied
from guideway_hosts.joining import Meeting
from guideway_hosts.line import Line
from guideway_hosts.memory import usable_bytes
from guideway_hosts.messages import SharedMasks
from guideway_hosts.plugins import Spec
from guideway_hosts.process import Process, is_stopped, watch
from guideway_hosts.upkeep import pad_pid

__all__ = ["ForkServer", "HostSource", "module_path"]

log = logging.getLogger(__name__)

T = TypeVar("T")

START_SECONDS = 300.0
"""Seconds for importing and building all plugins of one specification."""

ANSWER_SECONDS = 10.0

RESTS = 5.0
"""Seconds after a failed start of a host in which none is started."""

MOST_LOST = 5
"""Times in a row that the fork server may be lost while a host is started. The cause may be outside this process."""

LOST = (OSError, EOFError, JSONDecodeError, UnicodeDecodeError)
"""The errors of a fork server that has ended or sent a malformed answer."""

_NUMBERS = itertools.count()
"""The numbers of specifications, unique in this process."""


def module_path() -> tuple[str, ...]:
    """Return the folders in which this process finds modules."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


class ForkServer:
    """A process that imports and builds plugins, and forks hosts.

    Users with the same module folders and the same environment variables share a fork server, which ends with the last
    of them. It is started with the first host, and again if it is lost, which ends all its hosts. If several processes
    share their imports (`share_fork_server`), it is forked from another process's fork server.

    It is not a child of the serving process. It ends when the serving process closes its socket or is killed. Programs
    that kill the descendants of a server one by one, as vLLM does, can therefore rely on every descendant being
    there at its turn.
    """

    _all: ClassVar[dict[tuple[int, tuple[str, ...], tuple[str, ...]], ForkServer]] = {}
    _of_all = threading.RLock()  # reentrant: the garbage collector may call `release` at any moment

    def __init__(self, path: tuple[str, ...], variables: tuple[str, ...]) -> None:
        self._key = os.getpid(), path, variables
        self._num_users = 0
        self.lock = threading.Lock()
        """Held by callers of `is_gone`, `start`, `ask`, `tidy` and `end`."""
        self.threads = Threads("guideway-starts-host", 1)
        """The thread in which hosts are started."""
        self.line: Line | None = None
        """The socket to the running fork server; another one after each start, when plugins must be built again."""
        self._later: deque[tuple[str, int]] = deque()
        """Commands that are sent before the next one: nobody waits for their answers."""

    @classmethod
    def of(cls, path: tuple[str, ...], variables: tuple[str, ...] = ()) -> ForkServer:
        """Return the fork server for these module folders, and these variables in addition to the usual ones
        (`host_environment`). Call `release` when it is no longer used."""
        with cls._of_all:
            key = os.getpid(), path, variables
            server = cls._all.setdefault(key, cls(path, variables))
            server._num_users += 1
            return server

    def release(self, number: int) -> None:
        """End the use of the specification with this number, and of the fork server by its owner. Does not wait for
        running work."""
        with self._of_all:
            self._num_users -= 1
            self._later.append(("drop", number))
            if self._num_users or self._key[0] != os.getpid():
                return
            del self._all[self._key]
        self.threads.close()
        if self.lock.acquire(blocking=False):  # otherwise it ends with its last host
            try:
                self.end()
            finally:
                self.lock.release()

    @property
    def process(self) -> Process | None:
        """The running fork server."""
        return None if self.line is None else self.line.process

    def is_gone(self) -> bool:
        """Return whether the fork server has not been started, or has ended."""
        return self.line is None or self.line.has_news()  # it sends nothing without a command

    def ask(self, *command: Any, seconds: float = ANSWER_SECONDS, ends: tuple[int, ...] = ()) -> Any:
        """Return the answer to a command, with which these descriptors are sent. Raises `LOST`."""
        self.tidy()
        return self._ask(command, seconds, ends)

    def tidy(self) -> None:
        """Send the commands that are left. Raises `LOST`."""
        while self._later and self.line is not None:
            self._ask(self._later.popleft())

    def reap(self, pid: int, line: Line) -> None:
        """Let the fork server at this line, if it still runs, reap a host that has ended."""
        if self.line is line:
            self._later.append(("reap", pid))

    def start(self) -> None:
        """Start the fork server again. Raises `LOST`."""
        self.end()
        _, path, variables = self._key
        meeting = Meeting.of(path, *variables)
        joined = None if meeting is None else meeting.join(START_SECONDS)
        self.line = joined or self._start_own(meeting)

    def end(self) -> None:
        """End the fork server, and with it all its hosts."""
        line, self.line = self.line, None
        if line is None or line.process is None or not line.process.is_ours:
            return
        self._later.clear()
        with closing(line), suppress(OSError, EOFError):
            line.socket.shutdown(socket.SHUT_WR)  # the fork server closes its plugins, and its hosts end with it
            line.is_ready(0.0 if is_stopped(line.process.pid) else 1.0)
        line.process.end()

    def _ask(self, command: tuple[Any, ...], seconds: float = ANSWER_SECONDS, ends: tuple[int, ...] = ()) -> Any:
        line = self.line
        if line is None or line.process is None:
            raise EOFError("the fork server is not running")
        line.look = watch(line.process.pid, seconds)
        try:
            line.send([encode(part) for part in command])
            if ends:
                socket.send_fds(line.socket, [b"\0"], ends)
            return line.receive()
        except BaseException:  # the next command would take a late answer for its own
            self.end()
            raise

    def _start_own(self, meeting: Meeting | None) -> Line:
        ours, theirs = socket.socketpair()
        shared = [] if meeting is None or meeting.listener is None else [meeting.listener]
        _, places, variables = self._key
        # modules are found where the serving process finds them, not in the current folder
        path = os.pathsep.join(entry for entry in places if entry)
        line = Line(ours)
        try:
            with ExitStack() as given:  # closed here, so that the end of the fork server is seen
                descriptors = [given.enter_context(each).fileno() for each in (theirs, *shared)]
                numbers = ",".join(map(str, descriptors))
                # its own process group, so that a terminal's signals do not reach it, but this process's session,
                # because Linux first divides processors among sessions. Its standard output goes to standard error
                starter = subprocess.Popen(
                    [sys.executable, "-P", "-m", "guideway_hosts", numbers, pad_pid(os.getpid())],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    process_group=0,
                    env={**host_environment(variables), "PYTHONPATH": path},
                )
            line.look = watch(starter.pid, START_SECONDS)
            try:
                if meeting is not None and shared:
                    line.send_bytes(meeting.key)
                line.process = Process(line.receive()["pid"])
            except BaseException:
                starter.kill()
                raise
            finally:
                starter.wait()
        except BaseException:
            line.close()
            raise
        return line


class HostSource:
    """Builds the plugins of one specification in the fork server, and forks hosts from it."""

    def __init__(self, spec: Spec, limits: Limits) -> None:
        self.spec = spec
        self.limits = limits
        self._total_bytes = limits.total_memory_bytes or usable_bytes() // 4
        self._number = next(_NUMBERS)
        self._owner = os.getpid()
        self.server = ForkServer.of(spec.path, spec.variables)
        self._release = weakref.finalize(self, self.server.release, self._number)
        self._built: Line | None = None
        """The fork server that has built the plugins."""
        self._closed = False
        self._failure, self._rests_until = "", 0.0
        """Why no host could be started, and until when none is."""

    def start(self) -> None:
        """Build the plugins. Raises the errors of their options, and `PluginLoadError`."""
        self._do(lambda: None)

    @property
    def is_built(self) -> bool:
        """True if the running fork server has built the plugins."""
        return self._built is not None and self._built is self.server.line and not self.server.is_gone()

    @property
    def failure(self) -> str | None:
        """Why the last attempt to start a host failed; None if it succeeded, or was not recent."""
        return self._failure if time.monotonic() < self._rests_until else None

    def fork(self, role: str) -> Future[Host]:
        """Start a host, which lists of processes show as `role`. It or the future raises `HostDied` if none can be
        started."""
        if self._owner != os.getpid():
            raise HostDied("a forked process cannot use the hosts of its parent")
        try:
            return self.server.threads.submit(partial(self._start_host, role))
        except GuidewayError as error:
            raise HostDied(f"no host can be started: {error}") from error

    def close(self) -> None:
        """End the hosts, and the fork server if this was its last user."""
        with self.server.lock:
            self._closed, self._built = True, None
        self._release()
        with self.server.lock, suppress(*LOST):
            self.server.tidy()

    def _start_host(self, role: str) -> Host:
        if (failure := self.failure) is not None:
            raise HostDied(failure)
        try:
            return self._do(partial(self._fork, role))
        except GuidewayError as error:
            self._failure, self._rests_until = f"no host can be started: {error}", time.monotonic() + RESTS
            log.error("%s", self._failure)
            raise HostDied(self._failure) from error

    def _do(self, work: Callable[[], T]) -> T:
        """Return the result of work with a fork server that has built the plugins. Raises the plugins' errors, and
        `PluginLoadError` if the fork server was lost `MOST_LOST` times."""
        with self.server.lock:
            for left in reversed(range(MOST_LOST)):
                try:
                    if not self.is_built:
                        self._build()
                    return work()
                except LOST as lost:
                    if not left:
                        said = f"the process that hosts are forked from ended or did not answer: {text_of(lost)}"
                        raise PluginLoadError(said, plugin="runtime") from lost
        raise AssertionError

    def _build(self) -> None:
        if self._closed:
            raise GuidewayError("they are closed")
        if self.server.is_gone():
            self.server.start()
        environ = host_environment(self.spec.variables)
        names = ", ".join(record.id for record in self.spec.records)
        try:
            error = self.server.ask("build", self._number, environ, self.spec, seconds=START_SECONDS)["error"]
        except TimeoutError as late:
            raise PluginLoadError(
                f"{names}: importing and building took more than {START_SECONDS:g} s in the process that hosts are "
                "forked from; find out what it waits for there, or set grammar_host and modifier_host to 'inline'",
                plugin=names if len(self.spec.records) == 1 else "runtime",
            ) from late
        if error is None:
            self._built = self.server.line
            return
        if error["field"]:
            raise InvalidConfiguration(error["message"], field=error["field"])
        plugin = error["plugin"] or "runtime"
        raise PluginLoadError(error["message"] if error["plugin"] else error["text"], plugin=plugin)

    def _fork(self, role: str) -> Host:
        (commands, theirs), (beside, theirs_beside) = socket.socketpair(), socket.socketpair()
        masks = SharedMasks(self.spec.words)
        try:
            most = min(self.limits.memory_bytes, self._total_bytes)
            given = theirs.fileno(), theirs_beside.fileno(), masks.descriptor
            answer = self.server.ask("fork", self._number, role, most, self.limits.late_seconds, ends=given)
            if "error" in answer:
                raise OSError(answer["error"])
            HOSTS_STARTED.inc()
            process = Process(answer["pid"])
            assert self._built is not None
            reap = partial(self.server.reap, process.pid, self._built)
            return Host(process, (commands, beside), masks, self.limits, self._total_bytes, reap)
        except BaseException:
            commands.close()
            beside.close()
            raise
        finally:
            theirs.close()
            theirs_beside.close()
            os.close(masks.descriptor)
