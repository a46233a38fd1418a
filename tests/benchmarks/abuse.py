"""Effects of hostile constraints on other requests: the whole abuse corpus, to each strategy, in guideway's engine.

Each hostile request has four neighbors: one without a constraint, one with a regex and one with a schema, all with
seeds, and one with a new schema. The report has the outcomes of the hostile requests; neighbors that failed or had
other tokens than alone; the seconds of requests with new schemas, compared with a quiet run; the memory of the process
tree, and its hosts; and resources that remain at the end.

Without ``--tenants`` all requests are anonymous; with it the hostile ones have a tenant of their own.

    python tests/benchmarks/abuse.py --corpora FOLDER [--at-once 4] [--tenants] [--only STRATEGY] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from guard_limits import STRATEGIES, corpus
from guideway import AsyncEngine, SamplingParams, __version__
from guideway.api import Constraint, FinishReason, GenerationResult, JsonSchema, Regex
from prometheus_client import REGISTRY

from tests.support.processes import hosts_of, resident_bytes, tree

RESULTS = Path(__file__).parent / "results" / "abuse.md"
NEIGHBORS = [
    SamplingParams(max_tokens=24, temperature=1.0, seed=1, ignore_eos=True),
    SamplingParams(max_tokens=24, temperature=1.0, seed=2, constraint=Regex("[a-z]{4,12}[0-9]")),
    SamplingParams(
        max_tokens=48,
        temperature=1.0,
        seed=3,
        constraint=JsonSchema({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}),
    ),
]
PROMPT = "Anna Berg is 34 years old."
NUM_QUIET = 150
"""Rounds with neighbors only."""
_numbers = itertools.count()


def new_schema() -> SamplingParams:
    """Return a harmless constraint that was never sent before."""
    number = next(_numbers)
    schema = {"enum": [f"red {number}", f"green {number}"]}
    return SamplingParams(max_tokens=24, constraint=JsonSchema(schema))


@dataclass
class Found:
    """The observations of a run."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    """Outcomes of hostile constraints, by strategy."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of hostile requests."""
    moved: list[str] = field(default_factory=list)
    """Hostile constraints whose neighbors failed or had other tokens."""
    fresh: list[float] = field(default_factory=list)
    """Seconds of requests with new schemas."""
    most_bytes: int = 0
    most_hosts: int = 0


def watch(found: Found, done: threading.Event) -> None:
    while not done.wait(0.5):
        found.most_bytes = max(found.most_bytes, resident_bytes(tree(os.getpid())))
        found.most_hosts = max(found.most_hosts, len(hosts_of(os.getpid())))


async def neighbors(engine: AsyncEngine, found: Found, expected: list[Any], name: str) -> None:
    async def new() -> GenerationResult:
        start = time.monotonic()
        result = await engine.generate(PROMPT, new_schema())
        found.fresh.append(time.monotonic() - start)
        return result

    *known, fresh = await asyncio.gather(*(engine.generate(PROMPT, params) for params in NEIGHBORS), new())
    if expected and [tokens(result) for result in known] != expected:
        found.moved.append(f"{name}: {[str(result.error) for result in known if result.error]}")
    if fresh.error is not None or fresh.outputs[0].finish_reason is not FinishReason.STOP:
        found.moved.append(f"{name}, the new schema: {fresh.error or fresh.outputs[0].text!r}")


def tokens(result: GenerationResult) -> Any:
    return None if result.error else result.outputs[0].token_ids


async def hostile(engine: AsyncEngine, found: Found, strategy: str, constraint: Constraint, tenant: str) -> None:
    start = time.monotonic()
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=7, constraint=replace(constraint, strategy=strategy))
    result = await engine.generate(PROMPT, params, tenant=tenant)
    taken = time.monotonic() - start
    found.seconds.append(taken)
    outcome = type(result.error).__name__ if result.error else str(result.outputs[0].finish_reason)
    found.outcomes.setdefault(strategy, Counter())[outcome] += 1


def constraints(folder: Path, only: str | None) -> Iterator[tuple[str, str, Constraint]]:
    for strategy in STRATEGIES:
        if only in (None, strategy):
            for name, constraint in corpus(folder):
                yield name, strategy, constraint


async def measure(arguments: argparse.Namespace) -> tuple[Found, Found, dict[str, float]]:
    quiet, loud, done = Found(), Found(), threading.Event()
    async with AsyncEngine("demo", grammar=STRATEGIES, max_num_seqs=64) as engine:
        watcher = threading.Thread(target=watch, args=(loud, done))
        watcher.start()
        await neighbors(engine, Found(), [], "the first")  # starts hosts
        expected = [tokens(await engine.generate(PROMPT, params)) for params in NEIGHBORS]
        for _ in range(NUM_QUIET // arguments.at_once):
            await asyncio.gather(*(neighbors(engine, quiet, expected, "quiet") for _ in range(arguments.at_once)))
        room = asyncio.Semaphore(arguments.at_once)
        tenant = "hostile" if arguments.tenants else ""

        async def one(name: str, strategy: str, constraint: Constraint) -> None:
            async with room:
                await asyncio.gather(
                    hostile(engine, loud, strategy, constraint, tenant),
                    neighbors(engine, loud, expected, f"{strategy}, {name}"),
                )

        await asyncio.gather(*(one(*wanted) for wanted in constraints(arguments.corpora, arguments.only)))
        engine.check_health()
        await neighbors(engine, Found(), expected, "the last")
        done.set()
        watcher.join()
    ended = {
        sample.labels["how"]: sample.value
        for metric in REGISTRY.collect()
        if metric.name == "guideway_grammar_hosts_ended"
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    return quiet, loud, ended


def p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


def report(quiet: Found, loud: Found, ended: dict[str, float], left: set[int]) -> Iterator[str]:
    kinds = sorted({kind for of in loud.outcomes.values() for kind in of})
    yield f"| strategy | {' | '.join(kinds)} |"
    yield f"|---|{'---|' * len(kinds)}"
    for strategy, of in loud.outcomes.items():
        yield f"| {strategy} | {' | '.join(str(of[kind]) for kind in kinds)} |"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| hostile requests, all answered | {len(loud.seconds)} |"
    yield f"| slowest answer to one | {max(loud.seconds):.1f} s |"
    yield f"| rounds of neighbors, of which other than alone | {len(loud.fresh)}, {len(loud.moved)} |"
    yield f"| new schemas quiet: median, p95 | {statistics.median(quiet.fresh):.3f} s, {p95(quiet.fresh):.3f} s |"
    yield f"| new schemas loud: median, p95 | {statistics.median(loud.fresh):.3f} s, {p95(loud.fresh):.3f} s |"
    yield f"| ratio of p95 | {p95(loud.fresh) / p95(quiet.fresh):.2f} |"
    yield f"| most memory of the tree, hosts at once | {loud.most_bytes / 2**20:.0f} MiB, {loud.most_hosts} |"
    yield f"| hosts ended | {', '.join(f'{how}: {number:.0f}' for how, number in ended.items())} |"
    yield f"| processes left | {len(left)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--tenants", action="store_true")
    parser.add_argument("--only", choices=STRATEGIES)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    start = time.monotonic()
    quiet, loud, ended = asyncio.run(measure(arguments))
    time.sleep(2)
    lines = [
        f"guideway {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} processors, "
        f"{time.monotonic() - start:.0f} s; "
        f"`python tests/benchmarks/abuse.py --corpora FOLDER --at-once {arguments.at_once}"
        f"{' --tenants' if arguments.tenants else ''}`",
        "",
        *report(quiet, loud, ended, hosts_of(os.getpid())),
        "",
        *loud.moved[:50],
    ]
    print("\n".join(lines))
    print(json.dumps({"fresh": sorted(loud.fresh)[-20:], "seconds": sorted(loud.seconds)[-20:]}), file=sys.stderr)
    if arguments.write:
        RESULTS.write_text("# Hostile constraints in guideway's engine\n\n" + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
