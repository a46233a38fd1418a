"""The processes of grammar hosts as the serving process sees them: started, waited for within limits, killed."""

from __future__ import annotations

import json
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

from guideway.errors import GuidewayError, InvalidConfiguration, LimitExceeded, PluginLoadError
from guideway.runtime.grammar_hosts.limits import HostLimits
from guideway.runtime.grammar_hosts.messages import IDLE, Frames, SharedMasks, error_of
from guideway.runtime.grammar_hosts.serving import Spec

__all__ = ["Host", "HostDied", "Zygote"]

LOOKS_EVERY = 0.02
"""Seconds between two looks at how much time a host has taken."""


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
    """Forks hosts. Started with the first one, and anew if it is lost."""

    def __init__(self, spec: Spec, limits: HostLimits) -> None:
        self.spec = spec
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Frames | None = None

    def start(self) -> None:
        """Build the strategies. Raises what is wrong with their options, and `PluginLoadError`."""
        with self._lock:
            self._start()

    def fork(self) -> Host:
        """A new host."""
        with self._lock:
            for last in (False, True):
                if self._process is None or self._process.poll() is not None:
                    self._start()
                try:
                    return self._fork()
                except EOFError as error:
                    self._end()
                    if last:
                        raise HostDied(f"grammar hosts cannot be started: {error}") from error
        raise AssertionError

    def reap(self, pid: int) -> int | None:
        """How a host that is ending ended: its exit status, or the negative number of a signal; None: nobody knows."""
        with self._lock:
            if self._control is None:
                return None
            try:
                self._control.socket.sendall(json.dumps({"reap": pid}).encode())
                status: int = self._control.receive_answer()["status"]
                return status
            except (EOFError, OSError):
                self._end()
                return None

    def close(self) -> None:
        """End the zygote and, with it, its hosts."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._end()
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        command = [sys.executable, "-m", "guideway.runtime.host", str(descriptor)]
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
            self._control.send(self.spec)
            error = self._control.receive_answer()["error"]
        except EOFError as lost:
            status = self._process.wait()
            self._end()
            raise PluginLoadError(
                f"the process that grammar hosts come from ended while strategies were built (status {status})",
                plugin="runtime",
            ) from lost
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
            pid = self._control.receive_answer()["pid"]
        except OSError as error:
            raise EOFError(str(error)) from error
        finally:
            their_commands.close()
            their_beside.close()
            os.close(masks.descriptor)
        return Host(self, pid, Frames(commands), Frames(beside), masks, self._limits)

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()  # its hosts end with it
            self._process.wait()
        self._control = self._process = None


class Host:
    """One host. A call that breaks a limit kills it."""

    def __init__(
        self, zygote: Zygote, pid: int, commands: Frames, beside: Frames, masks: SharedMasks, limits: HostLimits
    ) -> None:
        self._zygote = zygote
        self.pid = pid
        self._commands = commands
        self._beside = beside
        self._limits = limits
        self.masks = masks
        self._killed: str | None = None
        """The limit it was killed for; empty for none that it broke itself."""
        self._lock = threading.Lock()
        self._talking = {False: threading.RLock(), True: threading.RLock()}
        """One call at a time over each of the two sockets."""
        self._busy_beside = False
        self.alive = True
        self.given_up = False
        """Whether it was ended because nobody waits for what it does."""
        self._status: int | None = None
        for frames in (commands, beside):  # a stopped host takes no long command
            frames.socket.settimeout(limits.compile_seconds * limits.wall_factor)

    def call(self, name: str, *arguments: Any, seconds: float, beside: bool = False) -> tuple[Any, bytes | None]:
        """What the host answers, and the bytes with it. `seconds` is how much time of a processor it may take, from now
        or from when it last began with another matcher. Raises what the strategy raised, and `HostDied`."""
        frames = self._beside if beside else self._commands
        with self._talking[beside]:
            self._busy_beside = beside or self._busy_beside
            try:
                frames.send((name, *arguments))
                self._wait(frames.socket, seconds, beside)
                answer = frames.receive_answer()
                data = frames.receive_bytes() if answer.get("bytes") else None
            except (EOFError, ValueError) as error:
                raise self._death() from error
            finally:
                self._busy_beside = self._busy_beside and not beside
        if "error" in answer:
            raise error_of(answer["error"])
        return answer["value"], data

    def close(self) -> None:
        """End it, also amid a call of another thread, which then raises `HostDied`."""
        with self._lock:
            if not self.alive:
                return
            self.alive = False
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._status = self._zygote.reap(self.pid)
        for beside, frames in ((False, self._commands), (True, self._beside)):
            with self._talking[beside]:  # a call finds out at once, now that the process is gone
                frames.close()

    def _wait(self, sock: socket.socket, seconds: float, beside: bool) -> None:
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
            # what is done beside takes time of the same process
            most = seconds + (self._limits.compile_seconds if self._busy_beside and not beside else 0)
            used, waited = self._processor_seconds() - taken, time.monotonic() - began
            if used > most:
                self._killed = f"it took more than {seconds:g} s of a processor, the most that is allowed"
            elif waited > most * self._limits.wall_factor:
                # what computed for some of its time was slow; what did not was stopped, or waits for something
                self._killed = f"it did not answer in {waited:.1f} s, too long" if used > seconds / 4 else ""
            if self._killed is not None:
                raise EOFError(self._killed)

    def _processor_seconds(self) -> float:
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the process's clock, as Linux numbers it
        except OSError:
            return 0.0

    def _death(self) -> HostDied:
        """Why it is gone."""
        working_on = self.masks.working_on
        self.close()
        why, status = self._killed, self._status
        if why:
            return HostDied(why, broke=True, working_on=working_on)
        if why is None and status is not None and status not in (-signal.SIGKILL, -signal.SIGTERM, 0):
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            return HostDied(f"it ended the process it ran in ({how})", by_itself=True, working_on=working_on)
        return HostDied("the process it ran in was killed or stopped from outside", working_on=working_on)
