"""The processes of grammar hosts as the serving process sees them: started, waited for within limits, killed."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from guideway.errors import GuidewayError, InvalidConfiguration, LimitExceeded, PluginLoadError, text_of
from guideway.runtime.grammar_hosts.limits import HostLimits
from guideway.runtime.grammar_hosts.messages import BROKEN, IDLE, Frames, SharedMasks, error_of
from guideway.runtime.grammar_hosts.serving import Spec
from guideway.runtime.metrics import HOSTS_ENDED, HOSTS_STARTED

__all__ = ["Host", "HostDied", "Zygote"]

log = logging.getLogger(__name__)

LOOKS_EVERY = 0.02
"""Seconds between two looks at how much time a host has taken."""

START_SECONDS = 300.0
"""For building all strategies."""

ANSWER_SECONDS = 10.0
"""For what a zygote does besides."""

RESTS = 5.0
"""Seconds between two attempts to start a zygote that failed."""


class HostDied(GuidewayError):
    """A host is gone. `broke`: a limit; `by_itself`: it broke one, or crashed; else somebody killed or stopped it."""

    def __init__(self, message: str, *, broke: bool = False, by_itself: bool = False, working_on: int = IDLE) -> None:
        super().__init__(message)
        self.broke = broke
        self.by_itself = by_itself or broke
        self.working_on = working_on

    def error(self) -> GuidewayError:
        """What the request it worked for fails with."""
        return LimitExceeded(str(self), field="constraint") if self.broke else self


class Zygote:
    """Forks hosts. Started anew if it is lost, and with it the hosts that were forked from it."""

    def __init__(self, spec: Spec, limits: HostLimits) -> None:
        self.spec = spec
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Frames | None = None
        self._owner = os.getpid()
        self._rests_until = 0.0

    def start(self) -> None:
        """Build the strategies. Raises what is wrong with their options, and `PluginLoadError`."""
        with self._lock:
            self._start()

    def fork(self) -> Host:
        """A new host. Raises `HostDied` if there can be none."""
        if os.getpid() != self._owner:
            raise HostDied("grammar hosts serve the process that started them, and this one was forked from it")
        with self._lock:
            for last in (False, True):
                try:
                    if self._process is None or self._process.poll() is not None:
                        self._start_again()
                    return self._fork()
                except (OSError, EOFError, ValueError) as error:
                    self._end()
                    if last:
                        raise HostDied(f"no grammar host can be started: {text_of(error)}") from error
                except HostDied:
                    raise
                except BaseException:  # interrupted: an answer may still be under way
                    self._end()
                    raise
        raise AssertionError

    def reap(self, pid: int, control: Frames) -> int | None:
        """How a host that is ending ended, which was forked over `control`: its exit status, or the negative number of
        a signal; None: nobody knows."""
        with self._lock:
            if self._control is not control or os.getpid() != self._owner:
                return None
            try:
                control.socket.sendall(json.dumps({"reap": pid}).encode())
                status: int | None = control.receive_answer()["status"]
                return status
            except (OSError, EOFError, ValueError):
                self._end()
                return None
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the zygote and, with it, its hosts."""
        with self._lock:
            self._end()

    def _start_again(self) -> None:
        if time.monotonic() < self._rests_until:
            raise HostDied("no grammar host can be started, as was found out a moment ago")
        try:
            self._start()
        except GuidewayError as error:
            self._rests_until = time.monotonic() + RESTS
            log.error("grammar hosts are gone, and cannot be started again: %s", error)
            raise HostDied(f"no grammar host can be started: {error}") from error

    def _start(self) -> None:
        self._end()
        if not sys.executable:
            raise PluginLoadError(
                "grammar hosts need a Python to run, and sys.executable is empty here; set grammar_host to 'inline'",
                plugin="runtime",
            )
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        # modules are found where the serving process finds them, and not in the folder it was started in
        command = [sys.executable, "-P", "-m", "guideway.runtime.host", str(descriptor)]
        path = os.pathsep.join(entry for entry in self.spec.path if entry)
        try:
            # a group of its own, so that a terminal's signals are not for it; its output never mixes with ours
            self._process = subprocess.Popen(
                command,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            theirs.close()
        self._control = Frames(ours)
        try:
            ours.settimeout(START_SECONDS)
            self._control.send(self.spec)
            error = self._control.receive_answer()["error"]
            ours.settimeout(ANSWER_SECONDS)
        except (EOFError, ValueError) as lost:
            status = self._process.poll()
            self._end()
            raise PluginLoadError(
                f"the process that grammar hosts come from ended, or did not answer, while strategies were built "
                f"(status {status})",
                plugin="runtime",
            ) from lost
        except BaseException:
            self._end()
            raise
        if error is not None:
            self._end()
            if error["field"]:
                raise InvalidConfiguration(error["said"], field=error["field"])
            plugin = error["plugin"] or "runtime"
            raise PluginLoadError(error["said"] if error["plugin"] else error["text"], plugin=plugin)

    def _fork(self) -> Host:
        assert self._control is not None
        commands, their_commands = socket.socketpair()
        beside, their_beside = socket.socketpair()
        masks = SharedMasks(self.spec.words)
        command = json.dumps({"memory_bytes": self._limits.memory_bytes}).encode()
        descriptors = [their_commands.fileno(), their_beside.fileno(), masks.descriptor]
        try:
            socket.send_fds(self._control.socket, [command], descriptors)
            answer = self._control.receive_answer()
            if "error" in answer:
                raise HostDied(f"no grammar host can be started: {answer['error']}")
            HOSTS_STARTED.inc()
            return Host(self, self._control, answer["pid"], Frames(commands), Frames(beside), masks, self._limits)
        except BaseException:
            commands.close()
            beside.close()
            raise
        finally:
            their_commands.close()
            their_beside.close()
            os.close(masks.descriptor)

    def _end(self) -> None:
        control, process, self._control, self._process = self._control, self._process, None, None
        if control is not None:
            control.close()
        if process is not None and os.getpid() == self._owner:
            try:
                process.wait(1 if control is not None else 0)  # it closes its strategies; its hosts end with it
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Host:
    """One host. A call that breaks a limit kills it."""

    def __init__(
        self,
        zygote: Zygote,
        control: Frames,
        pid: int,
        commands: Frames,
        beside: Frames,
        masks: SharedMasks,
        limits: HostLimits,
    ) -> None:
        self._zygote = zygote
        self._control = control
        self.pid = pid
        # a number that another process may have later is not enough to kill by
        self._handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        self._owner = os.getpid()
        self._frames = {False: commands, True: beside}
        self._talking = {False: threading.RLock(), True: threading.RLock()}
        """One call at a time over each of the two sockets."""
        self._busy = {False: False, True: False}
        self._amid_both = False
        """Whether calls over both were under way when it ended."""
        self._killed: tuple[bool, str] | None = None
        """The call it was killed for, and the limit that broke; empty for none."""
        self._limits = limits
        self.masks = masks
        self._lock = threading.Lock()
        self.alive = True
        self.given_up = False
        """Whether it was ended because nobody waits for what it does."""
        self._status: int | None = None
        self._is_counted = False
        for frames in (commands, beside):  # a stopped host takes no long command
            frames.socket.settimeout(limits.compile_seconds * limits.wall_factor)

    def call(
        self, name: str, *arguments: Any, seconds: float, together: float = 0.0, beside: bool = False
    ) -> tuple[Any, bytes | None]:
        """What the host answers, and the bytes with it. `seconds` is how much time of a processor it may take, from now
        or from when it last began with another matcher; `together` the same of what it does for several at once. Raises
        what the strategy raised, and `HostDied`."""
        if os.getpid() != self._owner:
            raise HostDied("grammar hosts serve the process that started them, and this one was forked from it")
        frames = self._frames[beside]
        with self._talking[beside]:
            self._busy[beside] = True
            try:
                frames.send((name, *arguments))
                self._wait(frames.socket, seconds, max(seconds, together), beside)
                answer = frames.receive_answer()
                data = frames.receive_bytes() if answer.get("bytes") else None
            except BROKEN as error:
                raise self._death(beside) from error
            except BaseException:  # interrupted: the answer would be taken for that of the next call
                self.close()
                raise
            finally:
                self._busy[beside] = False
        if "error" in answer:
            raise error_of(answer["error"])
        return answer["value"], data

    def is_gone(self) -> bool:
        """Whether it ended while nobody called."""
        poll = select.poll()
        poll.register(self._frames[False].socket, select.POLLIN)
        return not self.alive or bool(poll.poll(0))

    def close(self) -> None:
        """End it, also amid a call of another thread, which then raises `HostDied`."""
        with self._lock:
            if not self.alive or os.getpid() != self._owner:
                return
            self.alive = False
            self._amid_both = all(self._busy.values())
            with suppress(ProcessLookupError):
                if self._handle is None:
                    os.kill(self.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            if self._handle is not None:
                os.close(self._handle)
            self._status = self._zygote.reap(self.pid, self._control)
        for beside, frames in self._frames.items():
            with self._talking[beside]:  # a call finds out at once, now that the process is gone
                frames.close()

    def _wait(self, sock: socket.socket, seconds: float, together: float, beside: bool) -> None:
        """Wait for an answer. Kills the host if it takes too long."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if poll.poll(LOOKS_EVERY * 1000):
            return
        on, began, taken = self.masks.working_on, time.monotonic(), self._processor_seconds()
        while not poll.poll(LOOKS_EVERY * 1000):
            now = on if beside else self.masks.working_on
            if now != on:
                on, began, taken = now, time.monotonic(), self._processor_seconds()
            limit = together if on == IDLE else seconds
            # what is done beside takes time of the same process
            most = limit + (self._limits.compile_seconds if self._busy[True] and not beside else 0)
            used, waited = self._processor_seconds() - taken, time.monotonic() - began
            if used > most:
                self._killed = beside, f"it took more than {limit:g} s of a processor, the most that is allowed"
            elif waited > most * self._limits.wall_factor:
                self._killed = beside, f"it did not answer in {waited:.1f} s, too long"
            elif waited > max(1.0, most) and self._is_stopped():
                self._killed = beside, ""
            if self._killed is not None:
                raise EOFError(self._killed[1])

    def _processor_seconds(self) -> float:
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the process's clock, as Linux numbers it
        except OSError:
            return 0.0

    def _is_stopped(self) -> bool:
        """Whether somebody stopped it, by what Linux knows."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:  # noqa: PTH123 - a path for each look costs more
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except OSError:
            return False

    def _count(self, how: str) -> None:
        if not self._is_counted:
            self._is_counted = True
            HOSTS_ENDED.labels(how).inc()

    def _death(self, beside: bool) -> HostDied:
        """Why it is gone, as a call over one of the sockets sees it."""
        working_on = self.masks.working_on
        self.close()
        if self._killed is not None and self._killed[1] and self._killed[0] is beside:
            self._count("limit")
            return HostDied(self._killed[1], broke=True, working_on=working_on)
        status = self._status
        # of two calls nobody knows whose crash it was: each is tried again, and the culprit crashes alone
        if self._killed is None and not self._amid_both and status is not None and status not in INNOCENT:
            self._count("crash")
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            return HostDied(f"it ended the process it ran in ({how})", by_itself=True, working_on=working_on)
        if not self.given_up:
            self._count("outside")
        return HostDied("the process it ran in was killed or stopped from outside", working_on=working_on)


INNOCENT = (-signal.SIGKILL, -signal.SIGTERM, 0, 70)
"""How a host ends for no reason of its work: killed, told to end, its socket closed, or it could not begin."""
