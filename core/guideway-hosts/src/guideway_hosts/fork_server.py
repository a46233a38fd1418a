"""The process that all hosts of this one are forked from, as the serving process sees it: started, and anew when it is
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
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, ClassVar

from guideway.errors import GuidewayError, InvalidConfiguration, PluginLoadError, text_of
from guideway.plugins.limits import Limits
from guideway.runtime.work.metrics import HOSTS_STARTED

from guideway_hosts.children import Child, answer_of, is_stopped
from guideway_hosts.codec import encode
from guideway_hosts.environment import host_environment
from guideway_hosts.host import Host, HostDied
from guideway_hosts.joining import Meeting
from guideway_hosts.memory import usable_bytes
from guideway_hosts.messages import Frames, SharedMasks
from guideway_hosts.plugins import Spec
from guideway_hosts.upkeep import shown

__all__ = ["ForkServer", "HostSource", "module_path"]

log = logging.getLogger(__name__)

START_SECONDS = 300.0
"""For importing and building all plugins of one specification."""

LISTENS_WITHIN = 10.0
"""Seconds until one that was started listens for other processes."""

ANSWER_SECONDS = 10.0

REAPS_WITHIN = 1.0
"""Seconds that the end of a host waits for what else the fork server does, before nobody asks how it ended."""

RESTS = 5.0
"""Seconds between two attempts to build plugins that cannot be built."""

LOST = (OSError, EOFError, ValueError)
"""The errors that talking to a fork server raises, where it is gone or what it says is no answer."""

_NUMBERS = itertools.count()
"""The numbers of fork servers, and of specifications, of this process."""


def module_path() -> tuple[str, ...]:
    """Return where modules are found here."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


class ForkServer:
    """Imports and builds plugins, and forks hosts. There is one for all whose modules are found in the same places and
    that are given the same environment variables, as long as one of them is open; started with the first host, and anew
    if it is lost, and all its hosts with it. Where several processes share what they build (`share_fork_server`), it is
    forked from that of another one.

    It is no child of this process, and ends when this one closes its socket, also by being killed: what kills the
    descendants of a server one by one, as vLLM does, may rely on each of them being there until its turn.
    """

    _all: ClassVar[dict[tuple[int, tuple[str, ...], tuple[str, ...]], ForkServer]] = {}
    _of_all = threading.RLock()  # the collector of garbage may call `release` at any moment

    def __init__(self, path: tuple[str, ...], variables: tuple[str, ...]) -> None:
        self._key = os.getpid(), path, variables
        self._num_users = 0
        self.lock = threading.Lock()
        """For whoever calls `is_gone`, `start`, `ask`, `tidy` or `end`."""
        self.number = -1
        """Changes whenever it is started: nothing that was built in the one before is left."""
        self.process: Child | None = None
        self._control: Frames | None = None
        self._ended: deque[int] = deque()
        """The hosts that are to be reaped."""
        self._dropped: deque[int] = deque()
        """The specifications that nobody needs any more."""

    @classmethod
    def of(cls, path: tuple[str, ...], variables: tuple[str, ...] = ()) -> ForkServer:
        """The one for modules that are found in these places, given these variables beside the usual ones
        (`host_environment`). Give it back with `release`."""
        with cls._of_all:
            key = os.getpid(), path, variables
            server = cls._all.setdefault(key, cls(path, variables))
            server._num_users += 1
            return server

    def release(self, number: int) -> None:
        """One of its users needs it no more, nor what was built of the specification with this number. Waits for
        nothing that is done with it at the moment."""
        with self._of_all:
            self._num_users -= 1
            self._dropped.append(number)
            if self._num_users or self._key[0] != os.getpid():
                return
            del self._all[self._key]
        if self.lock.acquire(blocking=False):  # else it ends with its last host
            try:
                self.end()
            finally:
                self.lock.release()

    def is_gone(self) -> bool:
        """Return whether there is none, or it has ended."""
        return self._control is None or self._control.has_news()  # it says nothing unasked

    def ask(self, *command: Any, seconds: float = ANSWER_SECONDS, ends: tuple[int, ...] = ()) -> Any:
        """Return what it answers to a command, with which it is given these descriptors. Raises `LOST`."""
        self.tidy()
        return self._ask(command, seconds, ends)

    def tidy(self) -> None:
        """Let go what is to be reaped, and what nobody needs any more."""
        if os.getpid() != self._key[0]:
            return
        while self._ended and self._control is not None:
            self._ask(("reap", self._ended.popleft()), ANSWER_SECONDS)
        while self._dropped and self._control is not None:
            self._ask(("drop", self._dropped.popleft()), ANSWER_SECONDS)

    def reap(self, child: Child, number: int) -> int | None:
        """Return how a host that is ending ended, which the fork server with this number had forked: its exit status,
        or the negative number of a signal; None: nobody knows."""
        child.close()
        if os.getpid() != self._key[0]:
            return None
        if not self.lock.acquire(timeout=REAPS_WITHIN):  # it builds for somebody else
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
        """Start it anew. Raises `LOST`, and `PluginLoadError` where there can be none."""
        self.end()
        _, path, variables = self._key
        meeting = Meeting.of(path, *variables)
        joined = None
        if meeting is not None:
            joined = meeting.join(listens_within=LISTENS_WITHIN, answers_within=START_SECONDS)
        if joined is not None:
            self.process, self._control = joined
            joined[1].socket.settimeout(ANSWER_SECONDS)
        else:
            with meeting or nullcontext():
                self._start_anew(meeting)
        self.number = next(_NUMBERS)

    def end(self) -> None:
        """End it, and with it all hosts."""
        control, process, self._control, self.process = self._control, self.process, None, None
        if control is None:
            return
        self._ended.clear()
        self._dropped.clear()
        if process is not None and os.getpid() == self._key[0]:
            with suppress(OSError):
                control.socket.shutdown(socket.SHUT_WR)  # it closes its plugins; its hosts end with it
                poll = select.poll()
                poll.register(control.socket, select.POLLIN)
                poll.poll(0 if is_stopped(process.pid) else 1000)
            process.end_orphan(0.0)
        control.close()

    def _ask(self, command: tuple[Any, ...], seconds: float, ends: tuple[int, ...] = ()) -> Any:
        if self._control is None or self.process is None:
            raise EOFError("there is none")
        try:
            self._control.send([encode(part) for part in command])
            if ends:
                socket.send_fds(self._control.socket, [b"\0"], ends)
            return answer_of(self._control, self.process.pid, seconds)
        except BaseException:  # a late answer would be taken for the next
            self.end()
            raise

    def _start_anew(self, meeting: Meeting | None) -> None:
        if not sys.executable:
            raise PluginLoadError(
                "hosts are started with sys.executable, which is empty here; set grammar_host and modifier_host to "
                "'inline'",
                plugin="runtime",
            )
        ours, theirs = socket.socketpair()
        listener = None if meeting is None else meeting.listener
        # modules are found where the serving process finds them, and not in the folder it was started in
        descriptors = [theirs.fileno()] if listener is None else [theirs.fileno(), listener.fileno()]
        numbers = ",".join(map(str, descriptors))
        command = [sys.executable, "-P", "-m", "guideway_hosts", numbers, shown(os.getpid())]
        _, places, variables = self._key
        path = os.pathsep.join(entry for entry in places if entry)
        control = Frames(ours)
        ours.settimeout(ANSWER_SECONDS)  # one that was stopped takes no long command
        try:
            # a group of its own, so that a terminal's signals are not for it, and the session of this one: Linux shares
            # processors among sessions first. Its output never mixes with ours
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
            self.process = Child(answer_of(control, starter.pid, START_SECONDS)["pid"])
            self._control = control
        except BaseException:
            control.close()
            starter.kill()
            raise
        finally:
            starter.wait()


class HostSource:
    """Has the plugins of one specification built in the fork server, and hosts forked that have them."""

    def __init__(self, spec: Spec, limits: Limits) -> None:
        self.spec = spec
        self._limits = limits
        self._total_bytes = limits.total_memory_bytes or usable_bytes() // 4
        self._number = next(_NUMBERS)
        self.server = ForkServer.of(spec.path, spec.variables)
        self._release = weakref.finalize(self, self.server.release, self._number)
        self._built_in = -1
        """The number of the fork server that has built them."""
        self._owner = os.getpid()
        self._closed = False
        self._rests_until = 0.0
        self._failure, self._failed_until = "", 0.0

    def start(self) -> None:
        """Build the plugins. Raises what is wrong with their options, and `PluginLoadError`."""
        with self.server.lock:
            self._start()

    @property
    def is_built(self) -> bool:
        """True if there is a fork server that has built the plugins."""
        return self._built_in == self.server.number and not self.server.is_gone()

    @property
    def failure(self) -> str | None:
        """Why there could be no host a moment ago; None: there could, or it was not tried lately."""
        return self._failure if time.monotonic() < self._failed_until else None

    def fork(self, role: str) -> Host:
        """A new host, which lists of processes show as `role`. Raises `HostDied` if there can be none."""
        try:
            host = self._forked(role)
        except HostDied as error:
            self._note(error)
            raise
        self._failed_until = 0.0
        return host

    def close(self) -> None:
        """End its hosts, and the fork server with those of its last user."""
        with self.server.lock:
            self._closed, self._built_in = True, -1
        self._release()
        with self.server.lock, suppress(*LOST):
            self.server.tidy()

    def _note(self, error: HostDied) -> None:
        if time.monotonic() >= self._failed_until:
            log.error("%s", error)
            self._failure = str(error)
        self._failed_until = max(self._rests_until, time.monotonic() + RESTS)

    def _forked(self, role: str) -> Host:
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
        """Raises what is wrong with the plugins, and `PluginLoadError` where the fork server was lost again and
        again."""
        for last in (False, False, True):  # some of it may be anybody's doing
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
            raise InvalidConfiguration(error["said"], field=error["field"])
        plugin = error["plugin"] or "runtime"
        raise PluginLoadError(error["said"] if error["plugin"] else error["text"], plugin=plugin)

    def _fork(self, role: str) -> Host:
        commands, their_commands = socket.socketpair()
        beside, their_beside = socket.socketpair()
        masks = SharedMasks(self.spec.words)
        try:
            most = min(self._limits.memory_bytes, self._total_bytes)
            ends = their_commands.fileno(), their_beside.fileno(), masks.descriptor
            answer = self.server.ask("fork", self._number, role, most, self._limits.late_seconds, ends=ends)
            if "error" in answer:
                raise HostDied(f"no host can be started: {answer['error']}")
            HOSTS_STARTED.inc()
            child = Child(answer["pid"])
            reap = partial(self.server.reap, child, self.server.number)
            return Host(child, reap, Frames(commands), Frames(beside), masks, self._limits, self._total_bytes)
        except BaseException:
            commands.close()
            beside.close()
            raise
        finally:
            their_commands.close()
            their_beside.close()
            os.close(masks.descriptor)
