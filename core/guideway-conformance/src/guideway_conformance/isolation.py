"""The plugin under test in its own process; see `guideway_conformance.host` for that process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from guideway_conformance.outcomes import Result
from guideway_conformance.registry import Obligation, checks
from guideway_conformance.target import Target
from guideway_conformance.usage import PATIENCE

__all__ = ["HOST_VARIABLE", "CannotLoad", "Host"]

HOST_VARIABLE = "GUIDEWAY_CONFORMANCE_HOST"
"""Set in the process that hosts a plugin, so that a test file imported there does not test it once more."""

LOAD_SECONDS = 120.0
CLOSE_SECONDS = 10.0
MEMORY = 4 * 2**30
"""Bytes that a check may use by default."""


class CannotLoad(Exception):
    """The plugin under test cannot be imported, or kills the process that imports it."""


class Host:
    """A running process that hosts `target`. Close it, or use it as a context manager.

    Raises `CannotLoad` with the plugin's own error. `memory` is in bytes per check.
    """

    def __init__(self, target: Target, *, memory: int = MEMORY) -> None:
        if not hasattr(os, "fork"):
            raise CannotLoad("conformance checks run in forked processes, which this system does not have")
        path = [entry or str(Path.cwd()) for entry in sys.path]
        self._known = {check.id: check for check in checks(target.kind)}
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "guideway_conformance.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            env={
                "OMP_NUM_THREADS": "1",  # there is one check per processor
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
                "PYTHONHASHSEED": "0",  # the same run every time
                HOST_VARIABLE: "1",
            },
        )
        self._pending = b""
        try:
            self._send({"target": target.to_json(), "path": path, "memory": memory})
            answer = self._receive(time.monotonic() + LOAD_SECONDS)
            if answer is None or "failed" in answer:
                raise CannotLoad(answer["failed"] if answer else self._last_words())
        except BaseException:
            self.close()
            raise
        self.declared = frozenset[str](answer["about"]["declared"])
        """The capabilities that the plugin declares."""
        self.traits = frozenset[str](answer["about"]["traits"])

    def run(
        self,
        obligations: Iterable[Obligation],
        *,
        jobs: int = 1,
        seconds: float | None = None,
        timeout_factor: float = 1.0,
    ) -> Iterator[Result]:
        """Perform `obligations`, at most `jobs` at once, and yield their results in order of completion.

        `seconds` replaces each check's own limit, which `timeout_factor` multiplies. An obligation without a result is
        an error.
        """
        waiting = list(enumerate(obligations))[::-1]
        running: dict[int, Obligation] = {}
        while waiting or running:
            try:
                while waiting and len(running) < jobs:
                    number, obligation = waiting.pop()
                    running[number] = obligation
                    limit = seconds or self._limit(obligation) * timeout_factor
                    self._send({"number": number, "check": obligation.check, "mode": obligation.mode, "seconds": limit})
                longest = max(seconds or self._limit(obligation) * timeout_factor for obligation in running.values())
                answer = self._receive(time.monotonic() + PATIENCE * longest + 30)
            except BrokenPipeError:
                answer = None
            if answer is None:
                words = self._last_words()
                self.close()
                lost = [*running.values(), *(obligation for _, obligation in reversed(waiting))]
                for obligation in lost:
                    yield Result(obligation, "error", f"the process that runs the checks is gone: {words}")
                return
            obligation = running.pop(answer["number"])
            yield Result(obligation, answer["outcome"], answer["detail"], answer.get("seconds", 0.0))

    def close(self) -> None:
        """End the process, and the checks that it still runs. Has no effect if it is closed already."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before it had read everything
            self._process.stdin.close()  # this ends it
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._noise.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _limit(self, obligation: Obligation) -> float:
        known = self._known.get(obligation.check)
        return known.seconds if known else 30.0

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise BrokenPipeError
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message; None if there will be none."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                data = os.read(fd, 65536)
                if not data:
                    return None
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_words(self) -> str:
        try:
            status = self._process.wait(1)  # it may have closed its pipe a moment before it ends
        except subprocess.TimeoutExpired:
            status = None
        if self._noise.closed:
            return "it was ended before"
        self._noise.seek(0)
        words = self._noise.read().decode(errors="replace").strip().splitlines()
        ended = "it did not answer in time" if status is None else f"it ended with status {status}"
        return f"{ended}; its last words: {words[-1]}" if words else ended
