"""What forced tokens bring: the demo model under a schema of compact JSON, beside the same run without them, and beside
decoding as many tokens freely.

    python tests/benchmarks/bench_forced_tokens.py [--batch 1 16] [--pairs 15] [--strategy llguidance] [--write]
    python tests/benchmarks/bench_forced_tokens.py --corpora FOLDER [--write]

CPU time of the process tree, each request admitted, compiled (its grammar is cached) and decoded; runs take turns, and
each ratio is the median over the pairs. The forced share is that of the tokens that had no forward pass of their own.
With ``--corpora`` the share in ``jsonschemabench_sample.jsonl`` of FOLDER instead, by data set, under the tekken
tokenizer: of each valid instance's own compact text, how many of its tokens are forced, with the grammar compact, too.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from guideway import Engine, JsonSchema, SamplingParams

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.processes import seconds_of_tree  # noqa: E402

RESULTS = Path(__file__).parent / "results"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "city": {"type": "string", "maxLength": 40},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "married"],
    "additionalProperties": False,
}
CONSTRAINT = JsonSchema(SCHEMA, whitespace="compact")
PEOPLE = (("Zoe Garcia", "Bonn"), ("Liam Morris", "Oslo"), ("Emma Weber", "Lyon"), ("Noah Rossi", "Porto"))
NUM_REQUESTS = 48
"""In one run."""
ASKED = {1: (0.9, 1.2), 16: (1.10, 1.0)}
"""By batch: for batch 1 the part of 1 / (1 - share), else the speed over the run without; constrained over free."""


def prompts() -> list[list[dict[str, str]]]:
    found = []
    for i in range(NUM_REQUESTS):
        name, city = PEOPLE[i % len(PEOPLE)]
        text = f"Extract name, age, city, married. Meet {name} of {city}, married. Age: {20 + i}."
        found.append([{"role": "user", "content": text}])
    return found


@dataclass
class Run:
    """Of all requests once."""

    cpu: float
    num_tokens: int
    num_passes: int
    """In how many forward passes each sequence had a part, summed."""
    lengths: list[int]


class Subject:
    """An engine with a mode, of which the same requests are asked again and again."""

    def __init__(self, strategy: str, mode: Any, batch: int) -> None:
        self.engine = Engine(
            "demo", grammar=(strategy,), forced_tokens=mode, max_num_seqs=batch, enable_prefix_caching=False
        )
        self.num_passes = 0
        internals: Any = self.engine
        stepper = internals._scheduler._stepper
        run = stepper.run

        def counted(works: Any) -> Any:
            self.num_passes += len(works)
            return run(works)

        stepper.run = counted

    def run(self, lengths: list[int] | None = None) -> Run:
        """Under the schema; with `lengths` freely, so many tokens each."""
        params = [SamplingParams(max_tokens=200, constraint=CONSTRAINT)] * NUM_REQUESTS
        if lengths is not None:
            params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
        self.num_passes = 0
        began = seconds_of_tree()
        results = self.engine.chat(prompts(), params)
        cpu = seconds_of_tree() - began
        failed = next((result for result in results if result.error is not None), None)
        if failed is not None:
            raise RuntimeError("a request failed") from failed.error
        found = [len(result.token_ids) for result in results]
        return Run(cpu, sum(found), self.num_passes, found)


def measure(strategy: str, batch: int, mode: str, num_pairs: int) -> str:
    """A row of the table."""
    forcing, plain = Subject(strategy, mode, batch), Subject(strategy, "off", batch)
    with forcing.engine, plain.engine:
        lengths = forcing.run().lengths
        plain.run()
        plain.run(lengths)
        over_plain, over_free = [], []
        for i in range(num_pairs):
            order = [("forced", forcing, None), ("plain", plain, None), ("free", plain, lengths)]
            found = {name: subject.run(of) for name, subject, of in (order if i % 2 else reversed(order))}
            per_token = {name: run.cpu / run.num_tokens for name, run in found.items()}
            over_plain.append(per_token["plain"] / per_token["forced"])
            over_free.append(per_token["free"] / per_token["forced"])
            sys.stderr.write(f"{strategy} {batch} {mode}: {over_plain[-1]:.2f} {over_free[-1]:.2f}\n")
    run = found["forced"]
    share = 1 - run.num_passes / run.num_tokens
    speed, least = statistics.median(over_plain), f"{1 / (1 - share):.2f}"
    part = speed * (1 - share)
    asked, asked_free = ASKED.get(batch, ("", ""))
    said = f"{part:.2f} ({asked})" if batch == 1 else f"{part:.2f}"
    said_speed = f"{speed:.2f}" if batch == 1 else f"{speed:.2f} ({asked})"
    return (
        f"| {strategy} | {mode} | {batch} | {run.num_tokens} | {run.num_passes} | {100 * share:.1f} % | {said_speed} "
        f"| {least} | {said} | {statistics.median(over_free):.2f} ({asked_free}) |"
    )


def speeds(options: argparse.Namespace) -> Iterable[str]:
    yield "| strategy | mode | batch | tokens | passes | forced share | over without (asked) | 1 / (1 - share) | part of it (asked) | constrained over free (asked) |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for strategy in options.strategy:
        for mode in ("exact", "canonical"):
            for batch in options.batch:
                yield measure(strategy, batch, mode, options.pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--strategy", nargs="+", default=["llguidance"])
    parser.add_argument("--write", action="store_true", help="write the results file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = list(speeds(options))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
