"""The pace of neighbors while hostile constraints are served: `AsyncEngine`, the demo model, grammar hosts at nice 19.

Streams of several requests each, some without a constraint, some under one of llguidance or xgrammar. With every ninth
of their requests another one is sent: in a quiet run a harmless one with a new schema, in a loud run a hostile one,
with slow masks, or a compilation that takes all it may. Runs are in interleaved pairs. In loud runs of the second kind
a host is killed each second, too.

The report has the milliseconds between tokens of a neighbor, median and 99th percentile, and the ratio of a loud run to
the quiet one of its pair: the median and, in brackets, its 96.5 % confidence interval. In separate pairs, threads that
others wait for are watched (`watchdog.py`).

    python tests/benchmarks/bench_neighbors.py [--pairs 15] [--traced 3] [--requests 90] [--only KIND] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gaps import HEAD_OF_SPANS, in_turn, interval, percentile, rows_of_spans
from guideway import AsyncEngine, SamplingParams, __version__
from guideway.api import Constraint, JsonSchema, Regex
from kill_soak import PROMPT, STRATEGIES, has_masks
from watchdog import Span, traced, watch

from tests.support.processes import hosts_of

RESULTS = Path(__file__).parent / "results" / "neighbors.md"
STREAMS = 9
NUM_TOKENS = 64
"""Tokens of each request of a neighbor."""
KILLS_EVERY = 1.0
KINDS = {"hostile": False, "hostile, a host killed each second": True}
"""By name, whether hosts are killed."""
NEIGHBORS: tuple[Constraint | None, ...] = (
    None,
    Regex("[a-z ]+", strategy="llguidance"),
    Regex("[a-z ]+", strategy="xgrammar"),
)
HOSTILE: tuple[Callable[[int], Constraint], ...] = (
    lambda i: Regex(rf"(\w{{1,200}} ){{1,90}}{i}", strategy="xgrammar"),
    lambda i: Regex(rf"((((((a*)*)*)*)*)*)*b{{9}}{i}", strategy="xgrammar"),
    lambda i: Regex(rf"(.*a.{{18}})+{i}", strategy="llguidance"),
    lambda i: Regex(rf"(.*a.{{14}}){{3}}{i}", strategy="lmfe"),
    lambda i: Regex(rf"[a-z0-9]{{2000}}{i}", strategy="outlines"),
)


def harmless(number: int) -> Constraint:
    return JsonSchema({"enum": [f"red {number}", f"green {number}"]}, strategy=STRATEGIES[number % len(STRATEGIES)])


def hostile(number: int) -> Constraint:
    return HOSTILE[number % len(HOSTILE)](number)


def be_nice() -> None:
    """Set all processes of hosts to nice 19, thread by thread because of Linux; their forks inherit it."""
    for pid in hosts_of(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


async def kill_some(rng: random.Random) -> None:
    while True:
        await asyncio.sleep(KILLS_EVERY)
        hosts = await asyncio.to_thread(lambda: sorted(filter(has_masks, hosts_of(os.getpid()))))
        with suppress(ProcessLookupError, IndexError):
            os.kill(rng.choice(hosts), 9)


async def run(
    engine: AsyncEngine,
    other: Callable[[int], Constraint],
    numbers: Iterator[int],
    num_requests: int,
    watching: AbstractContextManager[Any],
) -> list[float]:
    """Return the milliseconds between tokens of a neighbor."""
    found: list[float] = []
    others: list[asyncio.Task[Any]] = []
    left = iter(range(num_requests))

    async def neighbor(number: int) -> None:
        constraint = NEIGHBORS[number % len(NEIGHBORS)]
        for turn in left:
            if turn % STREAMS == 0:
                params = SamplingParams(max_tokens=24, temperature=1.0, constraint=other(next(numbers)))
                others.append(asyncio.create_task(serve(engine, params)))
            params = SamplingParams(
                max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS, temperature=1.0, seed=turn, constraint=constraint
            )
            last = None
            generation = await engine.submit(PROMPT, params)
            async for chunk in generation.chunks():
                if chunk.token_ids:
                    now = time.perf_counter()
                    if last is not None:
                        found.extend([1000 * (now - last) / len(chunk.token_ids)] * len(chunk.token_ids))
                    last = now
            assert generation.result is not None and generation.result.error is None, generation.result

    with watching:
        await asyncio.gather(*map(neighbor, range(STREAMS)))
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return found


async def serve(engine: AsyncEngine, params: SamplingParams) -> None:
    """Submit a request and wait for its end; abort it if this task is cancelled."""
    generation = await engine.submit(PROMPT, params)
    try:
        await generation.wait()
    finally:
        generation.abort()


def row(kind: str, runs: dict[bool, list[list[float]]]) -> str:
    cells = []
    for of in (statistics.median, percentile):
        values = {loud: [of(gaps) for gaps in runs[loud]] for loud in runs}
        ratios = [loud / quiet for quiet, loud in zip(values[False], values[True], strict=True)]
        median, low, high = interval(ratios)
        cells += [f"{statistics.median(values[loud]):.2f}" for loud in (False, True)]
        cells.append(f"{median:.3f} ({low:.3f} to {high:.3f})")
    return f"| {kind} | {' | '.join(cells)} |"


async def measure(options: argparse.Namespace, folder: Path) -> list[str]:
    rows, rows_of_traces = [], []
    numbers, rng = itertools.count(), random.Random(1)
    async with AsyncEngine("demo", grammar=STRATEGIES, max_num_seqs=STREAMS + 7) as engine:
        for kind, kills in KINDS.items():
            if options.only not in kind:
                continue

            async def one(loud: bool, watching: AbstractContextManager[Any], kills: bool = kills) -> list[float]:
                await asyncio.to_thread(be_nice)
                killer = asyncio.create_task(kill_some(rng)) if loud and kills else None
                try:
                    return await run(engine, hostile if loud else harmless, numbers, options.requests, watching)
                finally:
                    if killer is not None:
                        killer.cancel()

            await one(False, nullcontext())
            runs: dict[bool, list[list[float]]] = {False: [], True: []}
            for loud in in_turn(options.pairs):
                runs[loud].append(await one(loud, nullcontext()))
            rows.append(row(kind, runs))
            print(rows[-1], flush=True)
            spans: dict[bool, list[Span]] = {False: [], True: []}
            for loud in in_turn(options.traced):
                await one(loud, traced(folder, spans[loud]))
            rows_of_traces += rows_of_spans(kind, spans)
    return [
        "| beside | ms a token, quiet | loud | ratio (interval) | p99 quiet | p99 loud | ratio (interval) |",
        "|---|---|---|---|---|---|---|",
        *rows,
        *(HEAD_OF_SPANS if rows_of_traces else []),
        *rows_of_traces,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--traced", type=int, default=3, help="pairs with the watchdog (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=90, help="of neighbors, in each run (default: %(default)s)")
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        watch(Path(folder))
        rows = asyncio.run(measure(options, Path(folder)))
    lines = [
        "# The pace of neighbors beside hostile constraints",
        "",
        f"guideway {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} processors; demo model, "
        f"{STREAMS} streams of {options.requests} requests of {NUM_TOKENS} tokens in all, {options.pairs} pairs of "
        f"runs; `python tests/benchmarks/bench_neighbors.py {' '.join(sys.argv[1:])}`",
        "",
        *rows,
    ]
    print("\n".join(lines))
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
