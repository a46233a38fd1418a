"""The gaps in a running stream while requests that are slow to admit arrive: `AsyncEngine`, one neighbor.

The requests of a loud run (`gaps.py`) are all refused at the end of their admission, so that they take part in no step:

* texts: 128 kB each, which can never fit, and texts with slightly too many tokens, which are tokenized;
* validators: one that waits 0.5 s before it refuses;
* supports: one that waits 0.5 s before it refuses;
* compile: a modifier's, which waits 0.5 s before it refuses.

    python tests/benchmarks/bench_admission.py [--pairs 15] [--traced 3] [--requests 200] [--only KIND]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gaps import HEAD_OF_GAPS, HEAD_OF_SPANS, add_arguments, in_turn, row_of_gaps, rows_of_spans
from guideway import AsyncEngine, PluginSettings, SamplingParams, __version__
from guideway.api import Regex
from slow_plugins import ENTRIES
from watchdog import Span, traced, watch

from tests.support.distributions import install

RESULTS = Path(__file__).parent / "results" / "admission.md"
NUM_TOKENS = 900


def loads(max_bytes: int) -> dict[str, Callable[[int], dict[str, Any]]]:
    """Return, by kind, a function that returns the i-th request."""
    return {
        "texts": lambda i: {"prompt": "word " * (128_000 // 5) if i % 2 else " a b" * (max_bytes // 4)},
        "validators": lambda _: {"prompt": "x", "tenant": "slow"},
        "supports": lambda i: {"prompt": "x", "params": SamplingParams(constraint=Regex(f"a{i}"))},
        "compile": lambda i: {"prompt": "x", "params": SamplingParams(modifiers={"compiles": {"n": i}})},
    }


async def gaps(
    engine: AsyncEngine,
    load: Callable[[], dict[str, Any]] | None,
    num_requests: int,
    watching: AbstractContextManager[Any],
) -> list[float]:
    """Return the milliseconds between tokens of the neighbor; the requests arrive evenly among its first tokens."""
    arriving: list[asyncio.Future[Any]] = []
    found: list[float] = []
    every = NUM_TOKENS * 2 // 3 // num_requests or 1
    last = None
    with watching:
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0)
        generation = await engine.submit("hello", params)
        async for chunk in generation.chunks():
            now = time.perf_counter()
            if last is not None:
                found.append(1000 * (now - last))
            last = now
            if load is not None and len(arriving) < num_requests and len(found) % every == 0 and chunk.token_ids:
                arriving.append(asyncio.ensure_future(engine.generate(**load())))
    results = await asyncio.gather(*arriving)
    assert all(result.error is not None and "INTERNAL" not in result.finish_reason.name for result in results)
    assert load is None or len(results) == num_requests, len(results)
    return found


async def measure(options: argparse.Namespace, folder: Path) -> list[str]:
    rows, rows_of_traces = [], []
    config: dict[str, Any] = {
        "grammar": ("slow",),
        "modifiers": ("compiles",),
        "plugins": PluginSettings(enable=("slow",)),
        "max_num_seqs": 4,
    }
    async with AsyncEngine("demo", **config) as engine:
        max_bytes = engine._engine._prompts._max_bytes or 0
        numbers = itertools.count()  # new numbers, because a strategy's answers about constraints are cached
        await gaps(engine, None, 1, nullcontext())
        for kind, load in loads(max_bytes).items():
            if options.only not in kind:
                continue

            async def run(loud: bool, watching: AbstractContextManager[Any], load: Any = load) -> list[float]:
                asked = (lambda: load(next(numbers))) if loud else None
                return await gaps(engine, asked, options.requests, watching)

            runs: dict[bool, list[list[float]]] = {False: [], True: []}
            for loud in in_turn(options.pairs):
                runs[loud].append(await run(loud, nullcontext()))
            rows.append(row_of_gaps(kind, runs))
            spans: dict[bool, list[Span]] = {False: [], True: []}
            for loud in in_turn(options.traced):
                await run(loud, traced(folder, spans[loud]))
            rows_of_traces += rows_of_spans(kind, spans)
            print(rows[-1], *rows_of_traces[-3:], sep="\n", flush=True)
    return [*HEAD_OF_GAPS, *rows, *HEAD_OF_SPANS, *rows_of_traces]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), "slow", ENTRIES)
        sys.path.insert(0, folder)
        watch(Path(folder))
        rows = asyncio.run(measure(options, Path(folder)))
    asked = f"--pairs {options.pairs} --traced {options.traced} --requests {options.requests}"
    head = [
        "# Gaps in a running stream while requests are admitted",
        "",
        f"guideway {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} processors; demo model, one stream "
        f"of {NUM_TOKENS} tokens, {options.requests} requests in each loud run, {options.pairs} pairs of runs.",
        f"`python tests/benchmarks/bench_admission.py {asked}`",
        "",
    ]
    if not options.only:
        RESULTS.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
