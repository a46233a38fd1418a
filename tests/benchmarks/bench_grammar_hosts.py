"""The cost of grammar hosts: the engine with `grammar_host` "process" against "inline", the same requests in turn.

The pinned model (131,072 tokens), a batch of 64, every sequence under a JSON schema; each round generates the same
number of tokens on both sides. Wall time, and CPU time of the whole process tree. The ratio is inline over process, so
less than 1 is the cost of safety: the median and, in brackets, its 96.5 % confidence interval for 15 pairs or more
(order statistics).

Then the cost of starting: CPU seconds of the process tree, with the demo model, until an engine is ready, and until its
first constrained answer; the figure is how much more "process" takes.

    python tests/benchmarks/bench_grammar_hosts.py [--pairs 15] [--batch 64] [--tokens 12] [--starts 15] [--write]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from guideway import Engine, SamplingParams, __version__
from guideway.api import JsonSchema

from tests.benchmarks.gaps import interval
from tests.benchmarks.pinned_model import add_argument, pinned_model
from tests.support.processes import seconds_of_tree

RESULTS = Path(__file__).parent / "results" / "grammar_hosts.md"


def schema(number: int) -> JsonSchema:
    return JsonSchema(
        {
            "type": "object",
            "properties": {
                f"name{number}": {"type": "string", "maxLength": 40},
                "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 8},
                "price": {"type": "number"},
                "note": {"type": ["string", "null"]},
            },
            "required": [f"name{number}", "tags", "price", "note"],
            "additionalProperties": False,
        }
    )


def once(engine: Engine, batch: int, num_tokens: int, seed: int) -> tuple[float, float]:
    """Return the wall and CPU seconds of one batch."""
    params = [
        SamplingParams(
            max_tokens=num_tokens, temperature=1.0, seed=seed * 1000 + i, constraint=schema(i % 8), close=False
        )
        for i in range(batch)
    ]
    start, start_cpu = time.monotonic(), seconds_of_tree()
    results = engine.generate(["Describe it as JSON: "] * batch, params)
    taken = time.monotonic() - start, seconds_of_tree() - start_cpu
    assert all(output.error is None for result in results for output in result.outputs), results
    return taken


def measure(model: Path, strategy: str, options: argparse.Namespace) -> Iterable[str]:
    settings = {"grammar": (strategy,), "max_num_seqs": options.batch, "max_model_len": 256, "dtype": "bfloat16"}
    with (
        Engine(str(model), grammar_host="inline", **settings) as inline,
        Engine(str(model), grammar_host="process", **settings) as process,
    ):
        engines = {"inline": inline, "process": process}
        for engine in engines.values():
            once(engine, options.batch, options.tokens, 0)
        walls, cpus = [], []
        for pair in range(1, options.pairs + 1):
            order = ("inline", "process") if pair % 2 else ("process", "inline")
            taken = {name: once(engines[name], options.batch, options.tokens, pair) for name in order}
            walls.append(taken["inline"][0] / taken["process"][0])
            cpus.append(taken["inline"][1] / taken["process"][1])
    for what, ratios in (("wall time", walls), ("CPU time of the tree", cpus)):
        median, low, high = interval(ratios)
        yield f"| {strategy} | {what} | {median:.3f} ({low:.3f} to {high:.3f}) |"


STARTS = """
import sys
from tests.benchmarks.bench_grammar_hosts import schema
from tests.support.processes import seconds_of_tree
from guideway import Engine, SamplingParams
with Engine("demo", grammar=(sys.argv[1],), grammar_host=sys.argv[2]) as engine:
    ready = seconds_of_tree()
    (result,) = engine.generate("Anna:", SamplingParams(max_tokens=4, constraint=schema(0), close=False))
    assert result.error is None
    print(ready, seconds_of_tree())
"""


def measure_start(strategy: str, grammar_host: str) -> list[float]:
    """Return the CPU seconds until an engine is ready, and until its first constrained answer."""
    command = [sys.executable, "-c", STARTS, strategy, grammar_host]
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, Path(__file__).parent)))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def starts(strategy: str, num_pairs: int) -> Iterable[str]:
    more: list[list[float]] = [[], []]
    for pair in range(num_pairs):
        order = ("inline", "process") if pair % 2 else ("process", "inline")
        taken = {name: measure_start(strategy, name) for name in order}
        for i, differences in enumerate(more):
            differences.append(taken["process"][i] - taken["inline"][i])
    for what, differences in zip(("ready", "first constrained answer"), more, strict=True):
        median, low, high = interval(differences)
        yield f"| {strategy} | {what} | {median:+.2f} s ({low:+.2f} to {high:+.2f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_argument(parser)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--strategies", nargs="+", default=["llguidance", "xgrammar"])
    parser.add_argument("--starts", type=int, default=15, help="pairs of starts (default: %(default)s)")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    model = pinned_model(options.models)
    lines = [
        "# Grammar hosts against strategies in the serving process",
        "",
        f"guideway {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPU cores;",
        f"`python tests/benchmarks/{Path(__file__).name} {' '.join(sys.argv[1:])}`",
        "",
        f"Batch of {options.batch}, {options.tokens} tokens each, {options.pairs} pairs; inline over process: below",
        "1 is what safety costs. Median (96.5 % confidence interval).",
        "",
        "| strategy | | inline / process |",
        "|---|---|---|",
    ]
    for strategy in options.strategies if options.pairs else ():
        for row in measure(model, strategy, options):
            print(row, flush=True)
            lines.append(row)
    lines += [
        "",
        "CPU time of the tree at a start, process less inline:",
        "",
        "| strategy | until | |",
        "|---|---|---|",
    ]
    for strategy in options.strategies:
        for row in starts(strategy, options.starts):
            print(row, flush=True)
            lines.append(row)
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
