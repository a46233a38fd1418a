"""Test if the libraries' own batch fills are faster than the default loop of `GrammarStrategy.fill`.

Sequences are at different places of a JSON document, with a vocabulary of 131072 tokens (tekken). At every step all
masks are filled by the default loop over guideway's matchers and, for others in the same states, by the library's batch
call, in changing order; then every sequence advances one token, untimed. Each way has its own matchers, because
llguidance caches the mask of a state. The library's figure is for the call alone, without the other work of an override
(dead ends, stop tokens, errors by job), so it is an upper bound of the gain. CPU time includes all threads.

    python tests/benchmarks/bench_batch_fill.py [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mistral_common
import numpy as np
import xgrammar as xgr
from guideway.api import FillJob, GrammarStrategy, JsonSchema
from guideway.api.bitmask import Bitmask, allocate
from guideway.vocabulary import build_vocabulary
from guideway_llguidance.strategy import Strategy as Llguidance
from guideway_xgrammar.strategy import Strategy as Xgrammar
from llguidance import LLExecutor
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

BATCHES, THREADS = (1, 8, 32, 64, 128), (1, 2)
RESULTS = Path(__file__).parent / "results" / "batch_fill.md"


def _schema(tag: dict[str, Any]) -> JsonSchema:
    properties = {
        "name": {"type": "string"},
        "kind": {"enum": ["alpha", "beta", "gamma"]},
        "size": {"type": "integer"},
        "tags": {"type": "array", "items": tag},
        "open": {"type": "boolean"},
    }
    return JsonSchema(
        {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    )


SCHEMAS = {"plain": _schema({"type": "string"}), "maxLength": _schema({"type": "string", "maxLength": 20})}
"""Masks inside a string with a length are expensive for both libraries."""
DOCUMENT = {
    "name": "A guideway keeps a vehicle on its path",
    "kind": "beta",
    "size": 12345,
    "tags": ["maglev", "people mover", "rails"],
    "open": True,
}

Fill = Callable[[], None]


def llguidance_fill(matchers: list[Any], bitmask: Bitmask, threads: int) -> Fill:
    """Return llguidance's batch call over the states of guideway's matchers."""
    executor = LLExecutor(threads)

    def fill() -> None:
        jobs = [(matcher._native, row) for row, matcher in enumerate(matchers)]
        executor.unsafe_compute_mask_ptr(jobs, bitmask.ctypes.data, bitmask.shape[1] * 4, len(bitmask))

    return fill


def xgrammar_fill(matchers: list[Any], bitmask: Bitmask, threads: int) -> Fill:
    """Return xgrammar's batch call over the states of guideway's matchers."""
    batch = xgr.BatchGrammarMatcher(max_threads=threads)

    def fill() -> None:
        batch.batch_fill_next_token_bitmask([matcher.native for matcher in matchers], bitmask)

    return fill


def loop_fill(strategy: GrammarStrategy, matchers: list[Any], bitmask: Bitmask) -> Fill:
    """Return the default loop."""
    jobs = [FillJob(matcher, (), row) for row, matcher in enumerate(matchers)]

    def fill() -> None:
        if (GrammarStrategy.fill(strategy, jobs, bitmask) < 0).any():
            raise RuntimeError("a job failed")

    return fill


def measure(
    strategy: GrammarStrategy, make: Any, schema: JsonSchema, batch: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the CPU and wall microseconds of each fill at every step, by variant."""
    text = json.dumps(DOCUMENT, separators=(",", ":")).encode()
    token_ids = strategy.vocabulary.encode(text)
    assert token_ids is not None
    compiled = strategy.compile(schema)
    all_matchers, variants = [], {}
    for threads in (0, *THREADS):
        matchers = [compiled.matcher(strategy.vocabulary.stop_token_ids) for _ in range(batch)]
        bitmask = allocate(batch, len(strategy.vocabulary))
        if threads:
            variants[f"library, threads={threads}"] = make(matchers, bitmask, threads)
        else:
            variants["loop"] = loop_fill(strategy, matchers, bitmask)
        all_matchers.append(matchers)
    places = [i % len(token_ids) for i in range(batch)]
    for matchers in all_matchers:
        for matcher, place in zip(matchers, places, strict=True):
            if matcher.accept(token_ids[:place]) != place:
                raise RuntimeError("the document does not fit the schema")
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    names = list(variants)
    for step in range((1 + rounds) * len(token_ids)):
        for name in names[step % len(names) :] + names[: step % len(names)]:
            time.sleep(0.0005)  # lets threads of the last call, which still wait for work, stop using CPU time
            wall, cpu = time.perf_counter(), time.process_time()
            variants[name]()
            spent = ((time.process_time() - cpu) * 1e6, (time.perf_counter() - wall) * 1e6)
            if step >= len(token_ids):  # the first pass warms the library's caches
                samples[name].append(spent)
        for i, place in enumerate(places):
            places[i] = (place + 1) % len(token_ids)
            for matchers in all_matchers:
                if places[i]:
                    matchers[i].accept(token_ids[place : place + 1])
                else:
                    matchers[i].rollback(place)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="how often each sequence goes through its document")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    path = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    vocabulary = build_vocabulary(Tekkenizer.from_file(path))
    lines = [
        "# The libraries' batch fills against the default loop",
        "",
        f"`python tests/benchmarks/bench_batch_fill.py --rounds {options.rounds} --write`",
        "",
        "Microseconds per fill of a whole batch without drafts, median over steps; in parentheses how many times as "
        "fast as the loop. The libraries' calls alone, without what an override would have to do beside them.",
        "",
        "| library | schema | batch | loop, CPU | loop, wall | "
        + " | ".join(f"threads={n}, CPU | threads={n}, wall" for n in THREADS)
        + " |",
        "|---|---|---|---|---|" + "---|---|" * len(THREADS),
    ]
    strategies: list[tuple[GrammarStrategy, Any]] = [
        (Llguidance(vocabulary, {}), llguidance_fill),
        (Xgrammar(vocabulary, {}), xgrammar_fill),
    ]
    for strategy, make in strategies:
        for name, schema in SCHEMAS.items():
            for batch in BATCHES:
                samples = measure(strategy, make, schema, batch, options.rounds)
                medians = [[statistics.median(s[i] for s in samples[v]) for i in (0, 1)] for v in samples]
                loop = medians[0]
                cells = [f"{value:.0f} ({loop[i] / value:.2f})" for pair in medians[1:] for i, value in enumerate(pair)]
                lines.append(
                    f"| {strategy.name} | {name} | {batch} | {loop[0]:.0f} | {loop[1]:.0f} | {' | '.join(cells)} |"
                )
                sys.stderr.write(lines[-1] + "\n")
    lines += [
        "",
        f"{len(vocabulary)} tokens; llguidance {version('llguidance')}, xgrammar {version('xgrammar')}, "
        f"NumPy {np.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f}: where that is above 1, only CPU times mean anything.",
    ]
    text = "\n".join(lines) + "\n"
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
