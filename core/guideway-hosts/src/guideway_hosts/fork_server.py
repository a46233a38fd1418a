"""The fork server, as the serving process uses it: the process from which all hosts are forked, restarted if it is
lost."""

from __future__ import annotations

import itertools
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from guideway.errors import GuidewayError, InvalidConfiguration, PluginLoadError, text_of
from guideway.plugins.limits import Limits
from guideway.runtime.work.metrics import HOSTS_STARTED

from guideway_hosts.children import Child, is_stopped, receive_answer
from guideway_hosts.codec import encode
from guideway_hosts.environment import host_environment
from guideway_hosts.host import Host, HostDied
from guideway_hosts.joining import Meeting
from guideway_hosts.memory import usable_bytes
from guideway_hosts.messages import Frames, SharedMasks
from guideway_hosts.plugins import Spec
from guideway_hosts.upkeep import pad_pid

__all__ = ["ForkServer", "HostSource", "module_path"]

log = logging.getLogger(__name__)

START_SECONDS = 300.0
"""Seconds for importing and building all plugins of one specification."""

LISTENS_WITHIN = 10.0
"""Seconds until the fork server of another process, which has been started, accepts connections."""

ANSWER_SECONDS = 10.0

REAPS_WITHIN = 1.0
"""Seconds that the end of a host waits for the fork server's other work before its exit status is given up."""

RESTS = 5.0
"""Seconds between two attempts to build plugins that could not be built."""

LOST = (OSError, EOFError, ValueError)
"""The errors of a fork server that has ended or sent a malformed answer."""

_NUMBERS = itertools.count()
"""The numbers of fork servers and of specifications, unique in this process."""


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
        self.number = -1
        """The number of the running fork server. It changes with each start: plugins must then be built again."""
        self.process: Child | None = None
        self._control: Frames | None = None
        self._ended: deque[int] = deque()
        """The PIDs of ended hosts that must be reaped."""
        self._dropped: deque[int] = deque()
        """The numbers of specifications that are no longer used."""

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
            self._dropped.append(number)
            if self._num_users or self._key[0] != os.getpid():
                return
            del self._all[self._key]
        if self.lock.acquire(blocking=False):  # otherwise it ends with its last host
            try:
                self.end()
            finally:
                self.lock.release()

    def is_gone(self) -> bool:
        """Return whether the fork server has not been started, or has ended."""
        return self._control is None or self._control.has_news()  # it sends nothing without a command

    def ask(self, *command: Any, seconds: float = ANSWER_SECONDS, ends: tuple[int, ...] = ()) -> Any:
        """Return the answer to a command, with which these descriptors are sent. Raises `LOST`."""
        self.tidy()
        return self._ask(command, seconds, ends)

    def tidy(self) -> None:
        """Reap ended hosts, and drop specifications that are no longer used."""
        if os.getpid() != self._key[0]:
            return
        while self._ended and self._control is not None:
            self._ask(("reap", self._ended.popleft()), ANSWER_SECONDS)
        while self._dropped and self._control is not None:
            self._ask(("drop", self._dropped.popleft()), ANSWER_SECONDS)

    def reap(self, child: Child, number: int) -> int | None:
        """Return how a host ended that the fork server with this number forked: its exit status, or the negative number
        of a signal; None if that is unknown."""
        child.close()
        if os.getpid() != self._key[0]:
            return None
        if not self.lock.acquire(timeout=REAPS_WITHIN):  # it is building plugins for another user
            self._ended.append(child.pid)
            return None
        try:
            if self._control is None or self.number != number:
                return None
            status: int | None = self.ask("reap", child.pid)["status"]
            return status
        except LOST:
            return None
        finally:
            self.lock.release()

    def start(self) -> None:
        """Start the fork server again. Raises `LOST`, and `PluginLoadError` if this process cannot start one."""
        self.end()
        _, path, variables = self._key
        if (meeting := Meeting.of(path, *variables)) is None:
            self._start_own(None)
        elif (joined := meeting.join(listens_within=LISTENS_WITHIN, answers_within=START_SECONDS)) is not None:
            self.process, self._control = joined
            joined[1].socket.settimeout(ANSWER_SECONDS)
        else:
            try:
                self._start_own(meeting)
            finally:
                meeting.close()
        self.number = next(_NUMBERS)

    def end(self) -> None:
        """End the fork server, and with it all its hosts."""
        control, process, self._control, self.process = self._control, self.process, None, None
        if control is None:
            return
        self._ended.clear()
        self._dropped.clear()
        if process is not None and os.getpid() == self._key[0]:
            with suppress(OSError):
                control.socket.shutdown(socket.SHUT_WR)  # the fork server closes its plugins, and its hosts end with it
                poll = select.poll()
                poll.register(control.socket, select.POLLIN)
                poll.poll(0 if is_stopped(process.pid) else 1000)
            process.end_orphan(0.0)
        control.close()

    def _ask(self, command: tuple[Any, ...], seconds: float, ends: tuple[int, ...] = ()) -> Any:
        if self._control is None or self.process is None:
            raise EOFError("the fork server is not running")
        try:
            self._control.send([encode(part) for part in command])
            if ends:
                socket.send_fds(self._control.socket, [b"\0"], ends)
            return receive_answer(self._control, self.process.pid, seconds)
        except BaseException:  # the next command would take a late answer for its own
            self.end()
            raise

    def _start_own(self, meeting: Meeting | None) -> None:
        if not sys.executable:
            raise PluginLoadError(
                "hosts are started with sys.executable, which is empty here; set grammar_host and modifier_host to "
                "'inline'",
                plugin="runtime",
            )
        ours, theirs = socket.socketpair()
        listener = None if meeting is None else meeting.listener
        # modules are found where the serving process finds them, not in the current folder
        descriptors = [theirs.fileno()] if listener is None else [theirs.fileno(), listener.fileno()]
        numbers = ",".join(map(str, descriptors))
        command = [sys.executable, "-P", "-m", "guideway_hosts", numbers, pad_pid(os.getpid())]
        _, places, variables = self._key
        path = os.pathsep.join(entry for entry in places if entry)
        control = Frames(ours)
        ours.settimeout(ANSWER_SECONDS)  # sending a long command to a stopped process would block forever
        try:
            # its own process group, so that a terminal's signals do not reach it, but this process's session, because
            # Linux first divides processors among sessions. Its standard output goes to standard error
            starter = subprocess.Popen(
                command,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=2,
                process_group=0,
                env={**host_environment(variables), "PYTHONPATH": path},
            )
        except BaseException:
            control.close()
            raise
        finally:
            theirs.close()
            if listener is not None:
                listener.close()
        try:
            if meeting is not None and listener is not None:
                control.send_bytes(meeting.key)
            self.process = Child(receive_answer(control, starter.pid, START_SECONDS)["pid"])
            self._control = control
        except BaseException:
            control.close()
            starter.kill()
            raise
        finally:
            starter.wait()


class HostSource:
    """Builds the plugins of one specification in the fork server, and forks hosts from it."""

    def __init__(self, spec: Spec, limits: Limits) -> None:
        self.spec = spec
        self.limits = limits
        self._total_bytes = limits.total_memory_bytes or usable_bytes() // 4
        self._number = next(_NUMBERS)
        self.server = ForkServer.of(spec.path, spec.variables)
        self._release = weakref.finalize(self, self.server.release, self._number)
        self._built_in = -1
        """The number of the fork server that has built the plugins; -1: none has."""
        self._owner = os.getpid()
        self._closed = False
        self._rests_until = 0.0
        self._failure, self._failed_until = "", 0.0

    def start(self) -> None:
        """Build the plugins. Raises the errors of their options, and `PluginLoadError`."""
        with self.server.lock:
            self._start()

    @property
    def is_built(self) -> bool:
        """True if the running fork server has built the plugins."""
        return self._built_in == self.server.number and not self.server.is_gone()

    @property
    def failure(self) -> str | None:
        """Why the last attempt to start a host failed; None if it succeeded, or was not recent."""
        return self._failure if time.monotonic() < self._failed_until else None

    def fork(self, role: str) -> Host:
        """Return a new host, which lists of processes show as `role`. Raises `HostDied` if none can be started."""
        try:
            host = self._try_twice(role)
        except HostDied as error:
            if time.monotonic() >= self._failed_until:
                log.error("%s", error)
                self._failure = str(error)
            self._failed_until = max(self._rests_until, time.monotonic() + RESTS)
            raise
        self._failed_until = 0.0
        return host

    def close(self) -> None:
        """End the hosts, and the fork server if this was its last user."""
        with self.server.lock:
            self._closed, self._built_in = True, -1
        self._release()
        with self.server.lock, suppress(*LOST):
            self.server.tidy()

    def _try_twice(self, role: str) -> Host:
        if os.getpid() != self._owner:
            raise HostDied("a forked process cannot use the hosts of its parent")
        with self.server.lock:
            for last in (False, True):
                try:
                    if not self.is_built:
                        self._start_again()
                    return self._fork(role)
                except LOST as error:
                    if last:
                        raise HostDied(f"no host can be started: {text_of(error)}") from error
        raise AssertionError

    def _start_again(self) -> None:
        if self._closed:
            raise HostDied("hosts are closed")
        if time.monotonic() < self._rests_until:
            raise HostDied(self._failure or "no host can be started; the last attempt failed")
        try:
            self._start()
        except GuidewayError as error:
            self._rests_until = time.monotonic() + RESTS
            raise HostDied(f"no host can be started: {error}") from error

    def _start(self) -> None:
        """Build the plugins, in a new fork server if necessary. Raises the plugins' errors, and `PluginLoadError` if
        the fork server was lost three times."""
        for last in (False, False, True):  # a loss may have a cause outside this process
            try:
                if self.server.is_gone():
                    self.server.start()
                self._build()
                return
            except GuidewayError:
                raise
            except LOST as lost:
                if last:
                    raise PluginLoadError(
                        "the process that hosts are forked from ended or did not answer while it built the plugins: "
                        f"{text_of(lost)}",
                        plugin="runtime",
                    ) from lost

    def _build(self) -> None:
        environ = host_environment(self.spec.variables)
        try:
            error = self.server.ask("build", self._number, environ, self.spec, seconds=START_SECONDS)["error"]
        except TimeoutError as late:
            names = ", ".join(record.id for record in self.spec.records)
            raise PluginLoadError(
                f"{names}: importing and building took more than {START_SECONDS:g} s in the process that hosts are "
                "forked from; find out what it waits for there, or set grammar_host and modifier_host to 'inline'",
                plugin=self.spec.records[0].id if len(self.spec.records) == 1 else "runtime",
            ) from late
        if error is None:
            self._built_in = self.server.number
            return
        if error["field"]:
            raise InvalidConfiguration(error["message"], field=error["field"])
        plugin = error["plugin"] or "runtime"
        raise PluginLoadError(error["message"] if error["plugin"] else error["text"], plugin=plugin)

    def _fork(self, role: str) -> Host:
        commands, their_commands = socket.socketpair()
        beside, their_beside = socket.socketpair()
        masks = SharedMasks(self.spec.words)
        try:
            most = min(self.limits.memory_bytes, self._total_bytes)
            ends = their_commands.fileno(), their_beside.fileno(), masks.descriptor
            answer = self.server.ask("fork", self._number, role, most, self.limits.late_seconds, ends=ends)
            if "error" in answer:
                raise HostDied(f"no host can be started: {answer['error']}")
            HOSTS_STARTED.inc()
            child = Child(answer["pid"])
            reap = partial(self.server.reap, child, self.server.number)
            return Host(child, reap, Frames(commands), Frames(beside), masks, self.limits, self._total_bytes)
        except BaseException:
            commands.close()
            beside.close()
            raise
        finally:
            their_commands.close()
            their_beside.close()
            os.close(masks.descriptor)
