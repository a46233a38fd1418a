"""The fork server, as the serving process uses it: the process that builds plugins and from which hosts are forked,
restarted if it is lost."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from json import JSONDecodeError
from typing import Any, TypeVar

from guideway.errors import GuidewayError, InvalidConfiguration, PluginLoadError, text_of
from guideway.plugins.limits import Limits
from guideway.runtime.work.metrics import HOSTS_STARTED
from guideway.runtime.work.threads import Threads

from guideway_hosts.codec import encode
from guideway_hosts.environment import host_environment
from guideway_hosts.host import ENDS_WITHIN, Host, HostDied
from guideway_hosts.joining import Meeting
from guideway_hosts.line import Line
from guideway_hosts.memory import usable_bytes
from guideway_hosts.messages import SharedMasks
from guideway_hosts.plugins import Spec
from guideway_hosts.process import Process, how_ended, is_stopped, watch
from guideway_hosts.upkeep import pad_pid

__all__ = ["ForkServer", "module_path"]

log = logging.getLogger(__name__)

T = TypeVar("T")

START_SECONDS = 300.0
"""Seconds for importing and building all plugins of one specification, and for repeating it if it is killed."""

ANSWER_SECONDS = 10.0

RESTS = 5.0
"""Seconds after a failed start of a host in which none is started."""

LOST = (EOFError, TimeoutError, ConnectionError, ProcessLookupError)
"""The errors of a fork server that has ended, was stopped, or does not answer."""

KILLED = (-signal.SIGKILL, -signal.SIGTERM, None)
"""Ends of a fork server that its plugins did not cause: killed, terminated, unknown."""

_NUMBERS = itertools.count()


def module_path() -> tuple[str, ...]:
    """Return the folders in which this process finds modules."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


class _Running:
    """The process of a fork server.

    It is not a child of the serving process. It ends when the serving process closes its socket or is killed. Programs
    that kill the descendants of a server one by one, as vLLM does, can therefore rely on every descendant being
    there at its turn.
    """

    def __init__(self, line: Line) -> None:
        assert line.process is not None
        self._line = line
        self.process = line.process
        self.ended: list[int] = []
        """The PIDs of hosts that have ended. The next host's command lets it reap them."""

    def is_gone(self) -> bool:
        """Return whether it has ended."""
        return self._line.socket.fileno() < 0 or self._line.has_news()  # it sends nothing without a command

    def ask(self, *command: Any, seconds: float = ANSWER_SECONDS, ends: tuple[int, ...] = ()) -> Any:
        """Return the answer to a command, with which these descriptors are sent. Raises `LOST`."""
        self._line.look = watch(self.process.pid, seconds)
        try:
            self._line.send([encode(part) for part in command])
            if ends:
                socket.send_fds(self._line.socket, [b"\0"], ends)
            return self._line.receive()
        except BaseException:  # the next command would take a late answer for its own
            self.end()
            raise

    def end(self) -> None:
        """End it, and with it all its hosts."""
        if not self.process.is_ours or self._line.socket.fileno() < 0:
            return
        with closing(self._line), suppress(OSError, EOFError):
            self._line.socket.shutdown(socket.SHUT_WR)  # it closes its plugins, and its hosts end with it
            self._line.is_ready(0.0 if is_stopped(self.process.pid) else 1.0)
        self.process.end()


class ForkServer:
    """Builds the plugins of one specification in a process, and forks hosts from it.

    The process is started with the first host, and again if it is lost, which ends all its hosts. It is forked from the
    one of an older fork server with the same module folders and environment variables, which has imported the plugins
    then, and may have built equal ones: of this process, or of others that share their imports (`share_fork_server`).
    """

    def __init__(self, spec: Spec, limits: Limits) -> None:
        self.spec = spec
        self.limits = limits
        self._total_bytes = limits.total_memory_bytes or usable_bytes() // 4
        self._place = os.getpid(), spec.path, spec.variables
        """Fork servers at the same place may be forked from each other."""
        self._lock = threading.Lock()
        """Held by users of `_running`. A younger fork server may hold its own lock meanwhile."""
        self._threads = Threads("guideway-starts-host", 1)
        weakref.finalize(self, self._threads.close)
        self._running: _Running | None = None
        """The process, which has built the plugins."""
        self._end: Callable[[], object] = lambda: None
        self._closed = False
        self._failure, self._rests_until = "", 0.0
        """Why no host could be started, and until when none is."""
        _ALL[next(_NUMBERS)] = self

    def start(self) -> None:
        """Build the plugins. Raises the errors of their options, and `PluginLoadError`."""
        self._do(lambda _: None)

    @property
    def process(self) -> Process | None:
        """The running process."""
        return None if self._running is None or self._running.is_gone() else self._running.process

    @property
    def failure(self) -> str | None:
        """Why the last attempt to start a host failed; None if it succeeded, or was not recent."""
        return self._failure if time.monotonic() < self._rests_until else None

    def fork(self, role: str) -> Future[Host]:
        """Start a host, which lists of processes show as `role`. It or the future raises `HostDied` if none can be
        started."""
        if self._place[0] != os.getpid():
            raise HostDied("a forked process cannot use the hosts of its parent")
        try:
            return self._threads.submit(partial(self._start_host, role))
        except GuidewayError as error:
            raise HostDied(f"no host can be started: {error}") from error

    def close(self) -> None:
        """End the hosts."""
        self._closed = True
        self._threads.close()
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        self._end()
        self._running = None

    def _start_host(self, role: str) -> Host:
        if (failure := self.failure) is not None:
            raise HostDied(failure)
        try:
            return self._do(partial(self._fork, role))
        except GuidewayError as error:
            self._failure, self._rests_until = f"no host can be started: {error}", time.monotonic() + RESTS
            log.error("%s", self._failure)
            raise HostDied(self._failure) from error

    def _do(self, work: Callable[[_Running], T]) -> T:
        """Return the result of work with a process that has built the plugins. A process that is lost is started again,
        for `START_SECONDS`. Raises the plugins' errors, and `PluginLoadError`."""
        with self._lock:
            until = time.monotonic() + START_SECONDS
            while True:
                try:
                    if self._running is None or self._running.is_gone():
                        self._build()
                    assert self._running is not None
                    return work(self._running)
                except (*LOST, OSError, JSONDecodeError, UnicodeDecodeError) as error:
                    said = f"the process that hosts are forked from ended or did not answer: {text_of(error)}"
                    if not isinstance(error, LOST) or time.monotonic() > until:
                        raise PluginLoadError(said, plugin="runtime") from error
                    log.warning("%s; it is started again", said)

    def _build(self) -> None:
        """Start the process, and build the plugins in it. Raises `LOST` if it is killed or stopped meanwhile."""
        self._stop()
        if self._closed:
            raise GuidewayError("they are closed")
        environ = host_environment(self.spec.variables)
        meeting = Meeting.of(self.spec.path, *self.spec.variables)
        with suppress(*LOST):  # how this one ended is unknown; if the next one ends, its starter knows
            if (running := self._forked(environ, meeting)) is not None:
                self._build_in(running, environ)
                return
        with self._started(environ, meeting) as running:
            self._build_in(running, environ)

    def _build_in(self, running: _Running, environ: dict[str, str]) -> None:
        """Build the plugins in a process. Raises `LOST`."""
        try:
            error = running.ask("build", environ, self.spec, seconds=START_SECONDS)["error"]
        except TimeoutError as late:
            raise self._failed(
                f"importing and building took more than {START_SECONDS:g} s in the process that hosts are forked "
                "from; find out what it waits for there, or set grammar_host and modifier_host to 'inline'"
            ) from late
        if error is None:
            self._running, self._end = running, weakref.finalize(self, running.end)
            return
        running.end()
        if error["field"]:
            raise InvalidConfiguration(error["message"], field=error["field"])
        plugin = error["plugin"] or "runtime"
        raise PluginLoadError(error["message"] if error["plugin"] else error["text"], plugin=plugin)

    def _failed(self, said: str) -> PluginLoadError:
        """Return the error of plugins that cannot be built."""
        names = ", ".join(record.id for record in self.spec.records)
        return PluginLoadError(f"{names}: {said}", plugin=names if len(self.spec.records) == 1 else "runtime")

    def _forked(self, environ: dict[str, str], meeting: Meeting | None) -> _Running | None:
        """Return a process forked from the oldest running fork server at the same place, or from one of another process
        that shares its imports, or None."""
        for each in _ALL.valuerefs():  # the younger wait for the older, never the reverse
            if (older := each()) is self:
                break
            if older is None or older._place != self._place:
                continue
            with older._lock:
                if (running := older._running) is None or running.is_gone():
                    continue
                ours, theirs = socket.socketpair()
                try:
                    with theirs:
                        given = os.getpid(), environ, self.spec
                        running.ask("join", *given, seconds=START_SECONDS, ends=(theirs.fileno(),))
                    return _met(Line(ours), running.process.pid)
                except LOST:
                    ours.close()
                    break
        joined = None if meeting is None else meeting.join(START_SECONDS)
        return None if joined is None else _Running(joined)

    @contextmanager
    def _started(self, environ: dict[str, str], meeting: Meeting | None) -> Iterator[_Running]:
        """Start a process that builds the plugins in the body. Raises `LOST` if it is killed or stopped meanwhile, and
        `PluginLoadError` if the plugins end it."""
        ours, theirs = socket.socketpair()
        shared = [] if meeting is None or meeting.listener is None else [meeting.listener]
        # modules are found where the serving process finds them, not in the current folder
        path = os.pathsep.join(entry for entry in self.spec.path if entry)
        with ExitStack() as given:  # closed here, so that the end of the fork server is seen
            descriptors = [given.enter_context(each).fileno() for each in (theirs, *shared)]
            numbers = ",".join(map(str, descriptors))
            # its own process group, so that a terminal's signals do not reach it, but this process's session, because
            # Linux first divides processors among sessions. Its standard output goes to standard error
            starter = subprocess.Popen(
                [sys.executable, "-P", "-m", "guideway_hosts", numbers, pad_pid(os.getpid())],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=2,
                process_group=0,
                env={**environ, "PYTHONPATH": path},
            )
        try:
            yield _met(Line(ours), starter.pid, meeting.key if meeting is not None and shared else None)
        except LOST as lost:
            with suppress(subprocess.TimeoutExpired):
                starter.wait(ENDS_WITHIN)
            if starter.returncode in KILLED:
                raise
            how = how_ended(starter.returncode)
            raise self._failed(f"importing and building ended the process that hosts are forked from ({how})") from lost
        finally:
            starter.kill()
            starter.wait()

    def _fork(self, role: str, running: _Running) -> Host:
        ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
        masks = SharedMasks(self.spec.words)
        try:
            ended = [running.ended.pop() for _ in range(len(running.ended))]
            most = min(self.limits.memory_bytes, self._total_bytes)
            descriptors = *(end.fileno() for end in theirs), masks.descriptor
            answer = running.ask("fork", ended, role, most, self.limits.late_seconds, ends=descriptors)
            if "error" in answer:
                raise OSError(answer["error"])
            HOSTS_STARTED.inc()
            process = Process(answer["pid"])
            reap = partial(running.ended.append, process.pid)
            return Host(process, ours, masks, self.limits, self._total_bytes, reap)
        except BaseException:
            for end in ours:
                end.close()
            raise
        finally:
            for end in theirs:
                end.close()
            os.close(masks.descriptor)


_ALL: weakref.WeakValueDictionary[int, ForkServer] = weakref.WeakValueDictionary()
"""All fork servers of this process, the oldest first."""


def _met(line: Line, starter: int, key: bytes | None = None) -> _Running:
    """Return the process at the other end of a socket, which process `starter` starts: it sends its PID. It is sent the
    key of its `Meeting`, if it has one."""
    line.look = watch(starter, START_SECONDS)
    try:
        if key is not None:
            line.send_bytes(key)
        line.process = Process(line.receive()["pid"])
        return _Running(line)
    except BaseException:
        line.close()
        raise
