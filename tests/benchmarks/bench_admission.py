"""How long a running stream waits while requests that are slow to admit arrive: `AsyncEngine`, one neighbour.

In each round the neighbour streams twice: alone, and while requests of one kind arrive, all of which are refused at the
end of their admission, so that they take no part in any step:

* texts: 128 kB each, which can never fit, and texts of just too many tokens, which are tokenised;
* validators: one that waits 0.5 s before it refuses;
* supports: one that waits 0.5 s before it refuses;
* compile: a modifier's, which waits 0.5 s before it refuses.

What is told: the 99th percentile and the largest of the gaps between two tokens of the neighbour, and the ratio to the
quiet run of the same round: median and, in brackets, its 96.5 % confidence interval (order statistics).

    python tests/benchmarks/bench_admission.py [--pairs 15] [--requests 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from guideway import AsyncEngine, InvalidRequest, PluginSettings, SamplingParams, __version__
from guideway.api import (
    CompiledGrammar,
    Constraint,
    LogitModifier,
    LogitTransform,
    Payload,
    Regex,
    Request,
    SequenceInfo,
    Stage,
    StepBatch,
    Submission,
    Support,
    hookimpl,
)
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.distributions import install

RESULTS = Path(__file__).parent / "results" / "admission.md"
WAITS = 0.5
NUM_TOKENS = 900


class Slow(ReferenceStrategy):
    contract = "1.0"
    name = "slow"

    def supports(self, constraint: Constraint) -> Support:
        time.sleep(WAITS)
        return Support(reason="it was slow to say so")


class Nothing(LogitTransform):
    def apply(self, logits: Any, payload: Payload, step: Any) -> Any:
        return logits


class Compiles(LogitModifier[None]):
    contract = "1.0"
    name, stage, transform = "compiles", Stage.PRE_WARP, Nothing

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> None:
        if self.name in request.params.modifiers:
            time.sleep(WAITS)
            raise InvalidRequest("it was slow to say so", field="modifiers")

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> None:
        return None

    def prepare(self, batch: StepBatch, states: Sequence[None]) -> Payload | None:
        return None


@hookimpl
def guideway_grammar_strategy() -> type:
    return Slow


@hookimpl
def guideway_logit_modifier() -> type:
    return Compiles


@hookimpl
def guideway_validate_submission(submission: Submission) -> None:
    if submission.tenant == "slow":
        time.sleep(WAITS)
        raise InvalidRequest("it was slow to say so", field="tenant")


def loads(max_bytes: int) -> dict[str, Callable[[int], dict[str, Any]]]:
    """By kind what the i-th request is."""
    return {
        "texts": lambda i: {"prompt": "word " * (128_000 // 5) if i % 2 else " a b" * (max_bytes // 4)},
        "validators": lambda _: {"prompt": "x", "tenant": "slow"},
        "supports": lambda i: {"prompt": "x", "params": SamplingParams(constraint=Regex(f"a{{{i + 1}}}"))},
        "compile": lambda i: {"prompt": "x", "params": SamplingParams(modifiers={"compiles": {"n": i}})},
    }


async def gaps(engine: AsyncEngine, load: Callable[[int], dict[str, Any]] | None, num_requests: int) -> list[float]:
    """Milliseconds between two tokens of the neighbour, sorted; the requests arrive evenly among its first tokens."""
    generation = await engine.submit("hello", SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0))
    arriving: list[asyncio.Future[Any]] = []
    found: list[float] = []
    every = NUM_TOKENS * 2 // 3 // num_requests or 1
    last = None
    async for chunk in generation.chunks():
        now = time.perf_counter()
        if last is not None:
            found.append(1000 * (now - last))
        last = now
        if load is not None and len(arriving) < num_requests and len(found) % every == 0 and chunk.token_ids:
            arriving.append(asyncio.ensure_future(engine.generate(**load(len(arriving)))))
    results = await asyncio.gather(*arriving)
    assert all(result.error is not None and "INTERNAL" not in result.finish_reason.name for result in results)
    assert load is None or len(results) == num_requests, len(results)
    return sorted(found)


def percentile(sorted_values: list[float]) -> float:
    return sorted_values[int(0.99 * (len(sorted_values) - 1))]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median, and the ends of its interval for 15 values or more."""
    ordered, n = sorted(values), len(values)
    rank = max(0, n // 2 - 4 * (n + 14) // 29) if n >= 15 else 0
    return statistics.median(ordered), ordered[rank], ordered[n - 1 - rank]


async def measure(num_pairs: int, num_requests: int) -> list[str]:
    rows = []
    config: dict[str, Any] = {
        "grammar": ("slow",),
        "modifiers": ("compiles",),
        "plugins": PluginSettings(enable=("slow",)),
        "max_num_seqs": 4,
    }
    async with AsyncEngine("demo", **config) as engine:
        max_bytes = engine._engine._prompts._max_bytes or 0
        await gaps(engine, None, 1)
        for name, load in loads(max_bytes).items():
            ratios, quiet_p99, loud_p99, quiet_max, loud_max = [], [], [], [], []
            for i in range(num_pairs):
                runs = {}
                for loud in (False, True) if i % 2 else (True, False):
                    runs[loud] = await gaps(engine, load if loud else None, num_requests)
                ratios.append(percentile(runs[True]) / percentile(runs[False]))
                quiet_p99.append(percentile(runs[False]))
                loud_p99.append(percentile(runs[True]))
                quiet_max.append(runs[False][-1])
                loud_max.append(runs[True][-1])
            median, low, high = interval(ratios)
            cells = (statistics.median(each) for each in (quiet_p99, loud_p99, quiet_max, loud_max))
            rows.append(
                f"| {name} | "
                + " | ".join(f"{cell:.2f}" for cell in cells)
                + f" | {median:.2f} ({low:.2f} to {high:.2f}) |"
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(__file__).stem
        install(
            Path(folder),
            "slow",
            {
                f"{kind}.{name}": here
                for kind, name in (("grammar", "slow"), ("modifier", "compiles"), ("hooks", "slow"))
            },
        )
        sys.path[:0] = [folder, str(Path(__file__).parent)]
        rows = asyncio.run(measure(options.pairs, options.requests))
    head = [
        "# Gaps in a running stream while requests are admitted",
        "",
        f"guideway {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} processors; demo model, one stream "
        f"of {NUM_TOKENS} tokens, {options.requests} requests in each loud run, {options.pairs} pairs of runs.",
        f"`python tests/benchmarks/bench_admission.py --pairs {options.pairs} --requests {options.requests}`",
        "",
        "| requests | p99 quiet, ms | p99 loud, ms | largest quiet, ms | largest loud, ms | ratio of p99 (interval) |",
        "|---|---|---|---|---|---|",
    ]
    RESULTS.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
