"""Import plugins in separate processes, where they may crash, hang or exit without harm.

Plugins of one distribution share a process, since most of the time goes into what they all import. If one of them ends
it or hangs there, that one is imported again in a process of its own, and the others in another.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from os import _exit
from typing import Any

from guideway import api
from guideway.errors import PluginLoadError
from guideway.plugins import loading
from guideway.plugins.index import PluginRecord, Problem
from guideway.plugins.kinds import KINDS

__all__ = ["probe"]

SLOW = 0.5
"""Seconds of an import above which `probe` returns a warning: heavy imports belong inside the hook's body."""

LOOKS_EVERY = 0.01
"""Seconds between two looks at the processes."""


def probe(records: Iterable[PluginRecord], timeout: float, on_begin: Callable[[PluginRecord], object]) -> list[Problem]:
    """Import and check `records`, as many distributions at once as there are processors. A process is killed after
    `timeout` seconds with one plugin. Return the problems, in the order of the records."""
    records = list(records)
    by_distribution = groupby(sorted(records, key=_distribution), _distribution)
    waiting = sorted((list(group) for _, group in by_distribution), key=len)  # the last, which takes longest, first
    _import_contract()
    found: dict[str, Problem | None] = {}
    begun: set[str] = set()
    running: list[_Process] = []
    try:
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                running.append(_Process(waiting.pop(), timeout))
            for process in tuple(running):
                for record in process.records[:1]:
                    if record.id not in begun:
                        on_begin(record)
                    begun.add(record.id)
                found |= process.look()
                if not process.has_ended:
                    continue
                running.remove(process)
                process.close()
                if process.failure is not None:
                    first, *others = process.records
                    if process.is_shared:
                        waiting.append([first])
                    else:
                        found[first.id] = process.failure
                    waiting += [others] if others else []
            time.sleep(LOOKS_EVERY)
    finally:
        for process in running:
            process.kill()
            process.close()
    return [problem for record in records if (problem := found[record.id])]


def _distribution(record: PluginRecord) -> str:
    return record.distribution


def _import_contract() -> None:
    """Import what every plugin imports."""
    loading.hook_manager()
    for kind in KINDS.values():
        getattr(api, kind.base or "hookimpl")


class _Process:
    """A fork of this process that imports `records` one after the other."""

    def __init__(self, records: Sequence[PluginRecord], timeout: float) -> None:
        self.records = list(records)
        """Those that it has not imported yet."""
        self.is_shared = False
        """True if it has imported a plugin before the first of these."""
        self.has_ended = False
        self.failure: Problem | None = None
        """If it has ended too early: the problem of the first of these."""
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        # pipes could fill, or be kept open by processes that a plugin starts
        self._answers, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._num_read = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing threads in the fork, which only imports
            self._pid = os.fork()
        if self._pid == 0:
            _import_each(records, self._answers.fileno(), self._errors.fileno())

    def look(self) -> dict[str, Problem | None]:
        """Return the problem, or None, of each plugin imported since the last call, by id. Kill the process if it is
        late."""
        pid, waited = os.waitpid(self._pid, os.WNOHANG)  # first: one that has ended writes no more
        self.has_ended = pid != 0
        found = self._read()
        if not self.records:
            return found
        first = self.records[0]
        if self.has_ended:
            self.failure = self._crash(first, os.waitstatus_to_exitcode(waited))
        elif time.monotonic() > self._deadline:
            self.kill()
            self.failure = Problem(
                "import-timeout",
                first.id,
                f"{first} did not finish importing within {self._timeout:g} s",
                "report it to its author; --timeout SECONDS waits longer",
            )
        return found

    def kill(self) -> None:
        """Kill the process and those that it started."""
        for kill in (os.killpg, os.kill):  # it may have no group of its own yet
            with suppress(ProcessLookupError):
                kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.has_ended = True

    def close(self) -> None:
        """Close its files, once it has ended."""
        self._answers.close()
        self._errors.close()

    def _read(self) -> dict[str, Problem | None]:
        found: dict[str, Problem | None] = {}
        size = os.fstat(self._answers.fileno()).st_size
        *lines, _ = os.pread(self._answers.fileno(), size - self._num_read, self._num_read).split(b"\n")
        for line in lines:
            record = self.records.pop(0)
            found[record.id] = _problem(record, json.loads(line))
            self._num_read += len(line) + 1
            self._deadline = time.monotonic() + self._timeout
            self.is_shared = True
        return found

    def _crash(self, record: PluginRecord, status: int) -> Problem:
        self._errors.seek(0)
        noise = self._errors.read().decode(errors="replace").strip()
        how = f"ends the process that imports it, with status {status}"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else -status
            how = f"kills the process that imports it, by {name}"
        last_words = f"; it last said: {noise.splitlines()[-1]}" if noise else ""
        return Problem("import-crashed", record.id, f"{record} {how}", f"report it to its author{last_words}")


def _problem(record: PluginRecord, result: dict[str, Any]) -> Problem | None:
    """Return the problem that the result of an import shows."""
    if result["missing"]:
        module, install = result["missing"]
        return Problem(
            "extra-not-installed",
            record.id,
            f"{record} needs {module!r}, which is not installed here",
            f"to use it: pip install '{install}'",
            "note",
        )
    if result["error"]:
        message, *hints, _ = result["error"].splitlines()  # the last hint is to run this command
        return Problem("import-failed", record.id, message, "\n".join(hints).strip() or "report it to its author")
    if result["seconds"] > SLOW:
        return Problem(
            "import-slow",
            record.id,
            f"{record} takes {result['seconds']:.1f} s to import",
            "its author can move heavy imports into the hook's body",
            "warning",
        )
    return None


def _import_each(records: Sequence[PluginRecord], answers: int, errors: int) -> None:
    """Import the plugins and write a line of JSON for each. Runs in the fork, and ends it."""
    status = 1
    try:
        os.setsid()  # a group of its own, to be killed with all that plugins start
        null = os.open(os.devnull, os.O_RDONLY)
        for target, number in ((null, 0), (errors, 1), (errors, 2)):
            os.dup2(target, number)
        sys.stdout = sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
        loading.forks_first = False
        for record in records:
            result: dict[str, object] = {"error": None, "missing": None, "seconds": 0.0}
            try:
                result["seconds"] = loading.load(record).import_seconds
            except PluginLoadError as error:
                result["error"] = str(error)
                install = loading.missing_extra(record, error.__cause__)
                if install:
                    result["missing"] = (getattr(error.__cause__, "name", None), install)
            os.write(answers, json.dumps(result).encode() + b"\n")
        status = 0
    finally:
        _exit(status)  # skips threads and exit handlers of plugins, which may hang
