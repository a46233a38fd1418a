"""The cost of closing in steps where no sequence is near the end of its budget, compared with the whole step.

The pinned model (see `pinned_model.py`) decodes under schemas with long outputs, and strategies are inline, so all CPU
time is spent in one thread.

    python tests/benchmarks/bench_closing.py [--steps 48] [--rounds 5] [--models FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
from pathlib import Path

from engine_steps import TOTAL, Parts, decode_steps, milliseconds
from guideway import Engine, SamplingParams, __version__
from guideway.api import JsonSchema
from guideway.runtime.constraints.closing import Closer
from pinned_model import add_argument, pinned_model

RESULTS = Path(__file__).parent / "results" / "closing_far.md"
CLOSING = "closing"
MAX_TOKENS = 3000
"""Large enough that the end is far in every measured step."""
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 20}
AT_MOST = 0.01
"""Maximum share of closing in the CPU time of a step."""


def measure(engine: Engine, parts: Parts, batch_size: int, num_steps: int) -> tuple[float, float]:
    """Return the milliseconds of closing and of the whole step."""
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, constraint=JsonSchema(SCHEMA))
    requests = (([1, 5 + number % 1000], params) for number in itertools.count())
    steps, results = decode_steps(engine, parts, requests, batch_size=batch_size, num_steps=num_steps)
    for result in results:
        if result.error is not None:
            raise RuntimeError("a request failed") from result.error
    found = milliseconds(steps)
    return found[CLOSING], found[TOTAL]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=48, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.name}")
    add_argument(parser)
    options = parser.parse_args()
    model = pinned_model(options.models)
    lines = [
        "# Closing, where the end is far",
        "",
        f"guideway {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPU cores, shared; "
        f"`python tests/benchmarks/bench_closing.py --steps {options.steps} --rounds {options.rounds} --write`",
        "",
        f"Processor time of a decode step, medians of the rounds. At most {AT_MOST:.0%} is asked.",
        "",
        "| strategy | sequences | closing, ms | step, ms | share |",
        "|---|---|---|---|---|",
    ]
    for strategy, batch_size in itertools.product(("llguidance", "xgrammar"), (1, 16, 64)):
        with Engine(str(model), grammar=(strategy,), grammar_host="inline", max_num_seqs=batch_size) as engine:
            parts = Parts(engine)
            original = {name: getattr(Closer, name) for name in ("restrict", "accept", "rollback")}
            for name in original:
                parts.watch(Closer, name, CLOSING)
            try:
                measure(engine, parts, batch_size, 4)
                rounds = [measure(engine, parts, batch_size, options.steps) for _ in range(options.rounds)]
            finally:
                for name, method in original.items():
                    setattr(Closer, name, method)
        share = statistics.median(closing / step for closing, step in rounds)
        closing, step = (statistics.median(of[i] for of in rounds) for i in range(2))
        lines.append(f"| {strategy} | {batch_size} | {closing:.3f} | {step:.1f} | {share:.2%} |")
        print(lines[-1], flush=True)
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
