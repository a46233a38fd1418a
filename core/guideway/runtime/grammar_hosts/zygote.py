"""The process that grammar hosts are forked from, as the serving process sees it: started, and anew when it is lost."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
import weakref
from contextlib import nullcontext, suppress
from functools import partial

from guideway.errors import GuidewayError, InvalidConfiguration, PluginLoadError, text_of
from guideway.plugins.limits import Limits
from guideway.runtime.grammar_hosts.children import Child, answer_of, is_stopped
from guideway.runtime.grammar_hosts.environment import host_environment
from guideway.runtime.grammar_hosts.host import Host, HostDied
from guideway.runtime.grammar_hosts.joining import Meeting
from guideway.runtime.grammar_hosts.memory import usable_bytes
from guideway.runtime.grammar_hosts.messages import Frames, SharedMasks
from guideway.runtime.grammar_hosts.nursery import ANSWER_SECONDS, IMPORT_SECONDS, Nursery
from guideway.runtime.grammar_hosts.serving import Spec
from guideway.runtime.grammar_hosts.spare import Spare
from guideway.runtime.metrics import HOSTS_STARTED

__all__ = ["Zygote"]

log = logging.getLogger(__name__)

START_SECONDS = 300.0
"""For building all strategies."""

RESTS = 5.0
"""Seconds between two attempts to start a zygote that cannot build the strategies."""

LOST = (OSError, EOFError, ValueError)
"""The errors that talking to a zygote or its nursery raises, where it is gone or what it says is no answer."""


class Zygote:
    """Builds the plugins and forks hosts, and a spare of itself. If it is lost, and with it the hosts that were forked
    from it, the spare takes its place; without one it is started anew. Where several processes share what they build
    (`share_nursery`), it is forked from that of another one."""

    def __init__(self, spec: Spec, limits: Limits) -> None:
        self.spec = spec
        self._limits = limits
        self._total_bytes = limits.total_memory_bytes or usable_bytes() // 4
        self._lock = threading.Lock()
        self._nursery = Nursery.of(spec.path, spec.variables)
        self._release = weakref.finalize(self, self._nursery.release)
        self._process: Child | None = None
        self._control: Frames | None = None
        self._spare: Spare | None = None
        self._is_orphan = False
        """True if it was the spare, or forked from another process's zygote."""
        self._owner = os.getpid()
        self._closed = False
        self._rests_until = 0.0
        self._failure, self._failed_until = "", 0.0

    def start(self) -> None:
        """Build the plugins. Raises what is wrong with their options, and `PluginLoadError`."""
        with self._lock:
            try:
                self._start()
            except GuidewayError:
                raise
            except LOST as lost:
                raise PluginLoadError(
                    f"the process that {self.spec.what} hosts are forked from ended or did not answer while it built "
                    f"the plugins: {text_of(lost)}",
                    plugin="runtime",
                ) from lost

    def start_soon(self) -> None:
        """Build the plugins beside what else is done. What is wrong with them is logged, as it is by `fork`."""
        with suppress(RuntimeError):  # no thread is left: the first host starts it
            threading.Thread(target=self._started, name="guideway-starts-zygote", daemon=True).start()

    def _started(self) -> None:
        try:
            with self._lock:
                if self._is_gone() and not self._closed:
                    self._start_again()
        except HostDied as error:
            self._note(error)

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

    def _note(self, error: HostDied) -> None:
        if time.monotonic() >= self._failed_until:
            log.error("%s", error)
            self._failure = str(error)
        self._failed_until = max(self._rests_until, time.monotonic() + RESTS)

    def _forked(self, role: str) -> Host:
        if os.getpid() != self._owner:
            raise HostDied("a forked process cannot use the hosts of its parent")
        with self._lock:
            for last in (False, True):
                try:
                    if self._is_gone() and not self._took_over():
                        self._start_again()
                    host = self._fork(role)
                    self._keep_spare()
                    return host
                except LOST as error:
                    self._end()
                    if last:
                        raise HostDied(f"no {self.spec.what} host can be started: {text_of(error)}") from error
                except HostDied:
                    raise
                except BaseException:  # interrupted: an answer may still be under way
                    self._end()
                    raise
        raise AssertionError

    def reap(self, child: Child, control: Frames) -> int | None:
        """Return how a host that is ending ended, which was forked over `control`: its exit status, or the negative
        number of a signal; None: nobody knows."""
        child.close()
        with self._lock:
            if self._control is not control or self._process is None or os.getpid() != self._owner:
                return None
            try:
                control.send(("reap", child.pid))
                status: int | None = answer_of(control, self._process.pid, ANSWER_SECONDS)["status"]
                return status
            except LOST:
                self._end()
                return None
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the zygote and, with it, its hosts."""
        with self._lock:
            self._end()
            self._closed = True
            self._release()
            if self._spare is not None and os.getpid() == self._owner:
                self._spare.close()

    def _keep_spare(self) -> None:
        """Have one forked if there is none; nobody waits for that."""
        assert self._control is not None
        if self._spare is not None and self._spare.is_lost():
            self._spare.close()
            self._spare = None
        if self._spare is None:
            with suppress(*LOST):  # the next fork finds out that the zygote is lost
                self._spare = Spare(self._control)

    def _took_over(self) -> bool:
        """Return whether the spare is the zygote now."""
        self._end()
        spare, self._spare = self._spare, None
        if spare is None:
            return False
        try:
            self._process, self._control = spare.take_over(ANSWER_SECONDS)
        except LOST:
            return False
        self._is_orphan = True
        return True

    def _start_again(self) -> None:
        if self._closed:
            raise HostDied(f"{self.spec.what} hosts are closed")
        if time.monotonic() < self._rests_until:
            raise HostDied(self._failure or f"no {self.spec.what} host can be started; the last attempt failed")
        try:
            self._start()
        except GuidewayError as error:
            self._rests_until = time.monotonic() + RESTS
            raise HostDied(f"no {self.spec.what} host can be started: {error}") from error
        except LOST as lost:
            raise HostDied(f"no {self.spec.what} host can be started: {text_of(lost)}") from lost

    def _start(self) -> None:
        """Raises what is wrong with the plugins, and `LOST` where the zygote was lost again and again."""
        for last in (False, False, True):  # some of it may be anybody's doing
            self._end()
            try:
                self._build()
                return
            except BaseException as error:
                self._end()
                if last or not isinstance(error, LOST) or isinstance(error, GuidewayError):
                    raise

    def _build(self) -> None:
        meeting = None if self.spec.shared is None else Meeting.of(self.spec.path, self.spec.what, self.spec.shared)
        joined = None
        if meeting is not None:
            environ = host_environment(self.spec.variables)
            joined = meeting.join(environ, listens_within=IMPORT_SECONDS, answers_within=START_SECONDS)
        if joined is not None:
            self._process, self._control = joined
            self._control.socket.settimeout(ANSWER_SECONDS)
            self._is_orphan = True
            answer_of(self._control, self._process.pid, ANSWER_SECONDS)
            return
        with meeting or nullcontext():
            self._build_anew(meeting)

    def _build_anew(self, meeting: Meeting | None) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_SECONDS)  # one that was stopped takes no long command
        self._control = Frames(ours)
        with theirs:
            listener = None if meeting is None else meeting.listener
            self._process = self._nursery.fork(self.spec.records, theirs, listener)
        key = b"" if meeting is None else meeting.key
        self._control.send((host_environment(self.spec.variables), self.spec, key))
        error = answer_of(self._control, self._process.pid, START_SECONDS)["error"]
        if error is not None:
            if error["field"]:
                raise InvalidConfiguration(error["said"], field=error["field"])
            plugin = error["plugin"] or "runtime"
            raise PluginLoadError(error["said"] if error["plugin"] else error["text"], plugin=plugin)

    def _fork(self, role: str) -> Host:
        assert self._control is not None and self._process is not None
        commands, their_commands = socket.socketpair()
        beside, their_beside = socket.socketpair()
        masks = SharedMasks(self.spec.words)
        try:
            most = min(self._limits.memory_bytes, self._total_bytes)
            self._control.send(("fork", (role, most, self._limits.late_seconds)))
            descriptors = [their_commands.fileno(), their_beside.fileno(), masks.descriptor]
            socket.send_fds(self._control.socket, [b"\0"], descriptors)
            answer = answer_of(self._control, self._process.pid, ANSWER_SECONDS)
            if "error" in answer:
                raise HostDied(f"no {self.spec.what} host can be started: {answer['error']}")
            HOSTS_STARTED.inc()
            child = Child(answer["pid"])
            reap = partial(self.reap, child, self._control)
            return Host(child, reap, Frames(commands), Frames(beside), masks, self._limits, self._total_bytes)
        except BaseException:
            commands.close()
            beside.close()
            raise
        finally:
            their_commands.close()
            their_beside.close()
            os.close(masks.descriptor)

    def _is_gone(self) -> bool:
        """Return whether there is none, or it has ended."""
        return self._control is None or self._control.has_news()  # it says nothing unasked

    def _end(self) -> None:
        control, process, self._control, self._process = self._control, self._process, None, None
        is_orphan, self._is_orphan = self._is_orphan, False
        if control is None:
            return
        if process is not None and os.getpid() == self._owner:
            with suppress(OSError):
                control.socket.shutdown(socket.SHUT_WR)  # it closes its strategies; its hosts end with it
                poll = select.poll()
                poll.register(control.socket, select.POLLIN)
                poll.poll(0 if is_stopped(process.pid) else 1000)
            if is_orphan:
                process.end_orphan(0.0)
            else:
                process.kill()
                self._nursery.reap(process)
        control.close()
