"""Judge many cases in parallel, in processes that are ended for their time and memory; see
`guideway_conformance.coverage.child` for these processes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from guideway.api.types import PropertiesOrder
from guideway.errors import InvalidConfiguration

from guideway_conformance.coverage.corpora import Case
from guideway_conformance.coverage.judging import Verdict
from guideway_conformance.usage import PATIENCE, POLL_SECONDS, processor_seconds, resident

__all__ = ["Chain", "judge_all"]

Chain: TypeAlias = tuple[str, ...]
"""Names of strategies in a host's order of preference."""

MEMORY = 4 << 30
"""Bytes that a process may use."""
LOAD_SECONDS = 120.0


def judge_all(
    work: Iterable[tuple[Chain, Case]], chains: Sequence[Chain], *, jobs: int, seconds: float, order: PropertiesOrder
) -> Generator[Verdict]:
    """Yield the verdict on each case under each chain, in order of completion. `seconds` is the CPU time for one.
    Raises `InvalidConfiguration` if a strategy cannot be built."""
    waiting = iter(work)
    item = next(waiting, None)
    idle: list[_Process] = []
    busy: list[_Process] = []
    try:
        while item is not None or busy:
            while item is not None and len(busy) < jobs:
                busy.append(idle.pop() if idle else _Process(chains, order))
                busy[-1].give(*item)
                item = next(waiting, None)
            with selectors.DefaultSelector() as selector:
                for process in busy:
                    selector.register(process.output, selectors.EVENT_READ, process)
                ready = [key.data for key, _ in selector.select(POLL_SECONDS)]
            for process in tuple(busy):
                verdict = process.read() if process in ready else process.police(seconds)
                if verdict is not None:
                    busy.remove(process)
                    if process.ended:
                        process.close()
                    else:
                        idle.append(process)
                    yield verdict
    finally:
        for process in [*busy, *idle]:
            process.close()


class _Process:
    """A child process with its strategies built, and the case that it judges."""

    def __init__(self, chains: Sequence[Chain], order: PropertiesOrder) -> None:
        path = [entry or str(Path.cwd()) for entry in sys.path]
        self._chains = list(chains)
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "guideway_conformance.coverage.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            env={
                "OMP_NUM_THREADS": "1",  # there is one process per processor
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
                "PYTHONHASHSEED": "0",
            },
            process_group=0,  # a terminal's Ctrl-C is for the command
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.input, self.output = self._process.stdin, self._process.stdout
        self.ended = False
        self._item: tuple[Chain, Case] | None = None
        self._pending = b""
        self._is_built = False
        self._send({"chains": self._chains, "order": order, "path": path})

    def give(self, chain: Chain, case: Case) -> None:
        """Let it judge a case."""
        self._item = chain, case
        self._begun()
        self._send([self._chains.index(chain), asdict(case)])

    def _begun(self) -> None:
        self._since, self._spent = time.monotonic(), processor_seconds(self._process.pid)

    def read(self) -> Verdict | None:
        """Return the verdict if it is complete, after output has arrived."""
        data = os.read(self.output.fileno(), 1 << 16)
        self._pending += data
        if not data:
            return self._end("failed", f"the process ended{self._last_words()}")
        while b"\n" in self._pending:
            line, _, self._pending = self._pending.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            if self._is_built:
                return Verdict(**{**message, "unenforced": tuple(message["unenforced"])})
            if "failed" in message:
                raise InvalidConfiguration(message["failed"], field="strategy")
            self._is_built = True
            self._begun()
        return None

    def police(self, seconds: float) -> Verdict | None:
        """End it if it uses too much, and return the verdict."""
        wall, spent = time.monotonic() - self._since, processor_seconds(self._process.pid) - self._spent
        limit = seconds if self._is_built else LOAD_SECONDS
        if spent > limit or wall > PATIENCE * limit:
            return self._end("time out", f"it took more than {limit:g} s")
        if resident(self._process.pid) > MEMORY:
            return self._end("memory out", f"it used more than {MEMORY >> 30} GiB")
        return None

    def _end(self, kind: str, why: str) -> Verdict:
        assert self._item is not None
        chain, case = self._item
        self.ended = True
        return Verdict(",".join(chain), case.name, case.dataset, kind, why)

    def _send(self, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # reading its output tells
            self.input.write(json.dumps(message).encode() + b"\n")
            self.input.flush()

    def _last_words(self) -> str:
        self._noise.seek(0)
        words = self._noise.read().decode(errors="replace").strip().splitlines()
        return f"; its last words: {words[-1]}" if words else ""

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for file in (self.input, self.output, self._noise):
            with contextlib.suppress(BrokenPipeError):
                file.close()
