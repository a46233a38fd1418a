"""The process that hosts the plugin under test: it imports the plugin once and forks a child for each check.

If a check crashes, hangs or takes all memory, only that check fails, and the next one is not affected.

``python -m guideway_conformance.host`` is this process. Standard input has JSON lines: the target, then one command per
obligation. Standard output has JSON lines: a description of the plugin, or why it could not be loaded; then one answer
per command, in order of completion. `guideway_conformance.isolation` is the client.
"""

from __future__ import annotations

import gc
import json
import os
import random
import selectors
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy.random  # noqa: F401 - NumPy imports it when it is first used, which would be in every child
from guideway.errors import InvalidConfiguration, PluginError

from guideway_conformance.registry import Check, Mode, checks
from guideway_conformance.subjects import CannotRunHere, NotPerformed, Subject, perform, subject_class
from guideway_conformance.target import Target
from guideway_conformance.usage import PATIENCE, POLL_SECONDS, processor_seconds, resident

__all__ = ["main"]

MAX_DETAIL = 2000


@dataclass(slots=True)
class _Child:
    """A check that is running."""

    number: int
    pid: int
    pipe: int
    began: float
    limit: float
    """CPU seconds. Because a check may also sleep for ever, the wall clock is limited to `PATIENCE` times as many; on a
    busy machine that limit alone would fail innocent checks."""
    noise: BinaryIO
    answer: bytes = b""
    killed: str = ""
    """Why it was killed, if it was."""


class _Host:
    def __init__(self, target: Target, channel: BinaryIO, memory: int) -> None:
        self.target, self.channel, self.memory = target, channel, memory
        self.component = target.load()
        self.subject: type[Subject] = subject_class(target.kind)
        self.checks: dict[str, Check] = {check.id: check for check in checks(target.kind)}
        self.prepared = False
        self.children: dict[int, _Child] = {}
        self.selector = selectors.DefaultSelector()

    def about(self) -> dict[str, Any]:
        return {
            "declared": sorted(self.subject.declared(self.component)),
            "traits": sorted(self.subject.traits(self.component)),
        }

    def serve(self, commands: int) -> None:
        """Serve commands until standard input ends, when no client waits for an answer any more."""
        self.selector.register(commands, selectors.EVENT_READ)
        pending = b""
        while True:
            for key, _ in self.selector.select(POLL_SECONDS if self.children else None):
                if key.fd != commands:
                    self._read(self.children[key.fd])
                    continue
                data = os.read(commands, 65536)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._start(**json.loads(line))
            self._police()

    def _start(self, number: int, check: str, mode: Mode, seconds: float | None) -> None:
        known = self.checks.get(check)
        if known is None:
            send(self.channel, {"number": number, "outcome": "error", "detail": f"there is no check {check}"})
            return
        self._prepare(known)
        noise = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _run_child(self, known, mode, writer, noise.fileno())
        os.close(writer)
        began = time.monotonic()
        limit = known.seconds if seconds is None else seconds
        self.children[reader] = _Child(number, pid, reader, began, limit, noise)
        self.selector.register(reader, selectors.EVENT_READ)

    def _prepare(self, check: Check) -> None:
        """Import the modules that children share, when the first check starts: a plan does not need them."""
        if not self.prepared:
            self.subject.prepare()
        self.subject.prepare_for(check)
        if not self.prepared:
            self.prepared = True
            gc.collect()
            gc.freeze()  # lets children share the existing objects

    def _read(self, child: _Child) -> None:
        data = os.read(child.pipe, 65536)
        if data:
            child.answer += data
            return
        self.selector.unregister(child.pipe)
        os.close(child.pipe)
        del self.children[child.pipe]
        _kill(child.pid)  # the processes that it started, and itself if it only closed the pipe
        _, status = os.waitpid(child.pid, 0)
        answer = self._answer(child, status)
        child.noise.close()
        send(self.channel, {"number": child.number, "seconds": time.monotonic() - child.began, **answer})

    def _answer(self, child: _Child, status: int) -> dict[str, Any]:
        if not child.killed:
            try:
                answer: dict[str, Any] = json.loads(child.answer)
                return answer
            except ValueError:
                pass
        if child.killed:
            what = child.killed
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            what = f"crashed: killed by {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            what = f"ended the process it ran in (status {os.waitstatus_to_exitcode(status)})"
        child.noise.seek(0)
        words = child.noise.read().decode(errors="replace").strip().splitlines()
        last = f"; its last words: {words[-1]}" if words else ""
        return {"outcome": "fail", "detail": f"{what}{last}"[:MAX_DETAIL]}

    def _police(self) -> None:
        now = time.monotonic()
        for child in self.children.values():
            if child.killed:
                continue
            if now > child.began + PATIENCE * child.limit or processor_seconds(child.pid) > child.limit:
                child.killed = f"did not finish within {child.limit:g} s"
            elif resident(child.pid) > self.memory:
                child.killed = f"used more than {self.memory / 2**30:.1f} GiB of memory"
            if child.killed:
                _kill(child.pid)


def _run_child(host: _Host, check: Check, mode: Mode, writer: int, noise: int) -> None:
    """Run the check in a child, send its answer, and exit."""
    code = 1
    try:
        os.setpgid(0, 0)  # so that processes that it starts end with it
        os.dup2(noise, 1)
        os.dup2(noise, 2)
        random.seed(0)
        answer: dict[str, Any] = {"outcome": "pass", "detail": ""}
        try:
            perform(check, mode, host.subject(host.component, host.target.settings))
        except CannotRunHere as absent:
            answer = {"outcome": "not_run", "detail": str(absent)}
        except NotPerformed as vacuous:
            answer = {"outcome": "error", "detail": str(vacuous)}
        except BaseException as error:
            answer = {"outcome": "fail", "detail": _detail_of(error)}
        with os.fdopen(writer, "wb") as pipe:
            send(pipe, answer)
        code = 0
    finally:
        os._exit(code)  # the plugin's threads and exit handlers must not make it hang


def _detail_of(error: BaseException) -> str:
    """Describe an error for the plugin's author: the message, and the place that raised an unexpected exception."""
    try:
        text = str(error)
    except Exception:
        text = "its message cannot be printed"
    if isinstance(error, AssertionError) and text:
        detail = text
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" (at {Path(f.filename).name}:{f.lineno} in {f.name})" for f in frame)
        detail = f"{type(error).__name__}: {text}{where}"
        if isinstance(error, InvalidConfiguration):
            detail += "; the options it is built with are those conformance.toml gives, or none"
    cause = f"; caused by {_detail_of(error.__cause__)}" if error.__cause__ else ""
    return f"{detail}{cause}"[:MAX_DETAIL]


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the group may not exist yet
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def send(channel: BinaryIO, message: dict[str, Any]) -> None:
    """Send one message, flushed."""
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


def main() -> None:
    """Run the process."""
    commands, channel = os.dup(0), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # output of the plugin must not mix with the answers
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(commands, 1)
        if not byte:
            return
        line += byte
    opening = json.loads(line)
    sys.path[:] = opening["path"]
    try:
        host = _Host(Target.from_json(opening["target"]), channel, opening["memory"])
        about = host.about()
    except BaseException as error:
        send(channel, {"failed": str(error) if isinstance(error, PluginError) else _detail_of(error)})
        os._exit(1)
    send(channel, {"about": about})
    try:
        host.serve(commands)
    finally:  # also when interrupted
        for child in host.children.values():
            _kill(child.pid)
            os.waitpid(child.pid, 0)
        os._exit(0)


if __name__ == "__main__":
    main()
