"""A process reads the files of plugins once and resolves names once, for all parts of a host."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from guideway.command_line.program import main
from guideway.plugins import Plugins

from tests.support.stages import everyday

COUNTING = """\
import collections, json, pickle, sys
reads, resolved = collections.Counter(), collections.Counter()

def in_digest(frame):
    return frame.f_globals.get("__name__") == "guideway.plugins.digest" and frame.f_code.co_name != "<module>"

def heard(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "<module>" and not in_digest(frame):
            frame = frame.f_back
        if frame is not None and in_digest(frame):
            reads[arguments[0]] += 1

sys.addaudithook(heard)
from guideway.plugins import manager, selection

def resolve(index, settings, kind, address):
    resolved[f"{kind} {address}"] += 1
    return selection.resolve(index, settings, kind, address)

manager.resolve = resolve
"""
"""Counts files opened for a digest, and resolved components."""

ENGINE = """\
from guideway import Engine, EngineConfig
chosen = dict(grammar=("llguidance", "reference"), modifiers=("hello",), worker_mixins=("layer_timing",))
Engine(EngineConfig(model="demo", **chosen)).close()
"""
WORKER = """\
from guideway.plugins import bootstrap_worker
plan = pickle.loads(bytes.fromhex(sys.argv[1]))
for _ in range(2):
    bootstrap_worker(plan).load("device", "numpy")
"""
COMMAND = """\
from guideway.command_line.program import main
main(sys.argv[1:])
"""


def count_reads(program: str, *arguments: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return how often a new process read each file for a digest, and resolved each component."""
    ending = "print(json.dumps([reads, resolved]), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{COUNTING}{program}{ending}", *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    reads, resolved = json.loads(done.stderr.splitlines()[-1])
    return reads, resolved


def names(paths: Mapping[str, int]) -> set[str]:
    return {"/".join(Path(path).parts[-2:]) for path in paths}


@pytest.mark.slow
def test_when_an_engine_starts() -> None:
    reads, resolved = count_reads(ENGINE)
    assert {"torch/device.py", "guideway_hello/__init__.py", "guideway_layer_timing/__init__.py"} <= names(reads)
    assert set(reads.values()) == {1}
    assert {
        "device guideway/torch",
        "grammar llguidance",
        "modifier hello",
        "executor guideway-engine/local",
    } <= resolved.keys()
    assert set(resolved.values()) == {1}


def test_when_a_worker_process_starts() -> None:
    plan = Plugins().plan([("device", "numpy"), ("modifier", "hello")], {})
    reads, resolved = count_reads(WORKER, pickle.dumps(plan).hex())
    assert {"numpy/device.py", "guideway_hello/__init__.py"} <= names(reads)
    assert set(reads.values()) == {1}
    assert resolved == {"device numpy": 1}


@pytest.mark.parametrize("command", everyday([["list"], ["show", "sim"], ["doctor"]], ["doctor"]))
def test_when_plugins_are_compared_with_a_lock_file(command: list[str], tmp_path: Path) -> None:
    lock = str(tmp_path / "guideway.lock")
    assert main(["plugins", "lock", "--file", lock]) == 0
    content = json.loads(Path(lock).read_text("utf-8"))
    for line in content["plugins"].values():
        line["conformance"] = {"report": "", "digest": line["digest"], "contract": "1.0", "levels": ["core"]}
    Path(lock).write_text(json.dumps(content), encoding="utf-8")
    reads, _ = count_reads(COMMAND, "plugins", *command, "--lock", lock)
    assert "sim/device.py" in names(reads)
    assert set(reads.values()) == {1}
