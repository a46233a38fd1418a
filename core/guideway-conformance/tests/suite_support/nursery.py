"""Many plugins under test, each in its own process, without importing the same libraries each time.

A process of `guideway_conformance.isolation.Host` imports the plugin and its libraries, which takes a second or two.
Here one process imports the modules of all plugins, and each plugin gets a fork of it, which runs the same
`guideway_conformance.host.main`. ``python -m suite_support.nursery MODULE...`` is this process.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from guideway_conformance.host import main
from guideway_conformance.isolation import HOST_VARIABLE, MEMORY
from guideway_conformance.outcomes import Result
from guideway_conformance.registry import Obligation, plan
from guideway_conformance.target import Target

__all__ = ["Nursery"]


class Nursery:
    """The process with `modules` imported. Use it as a context manager."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "suite_support.nursery", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0", HOST_VARIABLE: "1"},
        )

    def perform(self, target: Target, obligation: Obligation) -> Result:
        """Return the result of `obligation`, which `target` must owe."""
        opening = {"target": target.to_json(), "path": sys.path, "memory": MEMORY}
        command = {"number": 0, "check": obligation.check, "mode": obligation.mode, "seconds": None}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([opening, command]).encode() + b"\n")
        self._process.stdin.flush()
        first, answer = json.loads(self._process.stdout.readline())
        about = first["about"]
        assert obligation in plan(target.kind, about["declared"], about["traits"]), "the check does not concern it"
        return Result(obligation, answer["outcome"], answer["detail"], answer["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdout is not None
        self._process.communicate()  # closing its input ends it


def _in_a_fork(opening: dict[str, Any], command: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of a `guideway_conformance.host` process to its first two messages."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        os.dup2(there.fileno(), 0)
        os.dup2(there.fileno(), 1)
        there.close()
        main()  # does not return
    there.close()
    answers = []
    with here, here.makefile("rwb") as stream:
        for message in (opening, command):
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()
            answers.append(json.loads(stream.readline()))
    os.waitpid(pid, 0)
    return answers


if __name__ == "__main__":
    for module in sys.argv[1:]:
        import_module(module)
    gc.collect()
    gc.freeze()  # lets forks share the existing objects
    for line in sys.stdin.buffer:
        print(json.dumps(_in_a_fork(*json.loads(line))), flush=True)
