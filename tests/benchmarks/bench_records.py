"""The cost of records: decode steps of the demo model in which every sequence asks for them, and in which none does.

Every second step of a batch is prepared without them, so that both kinds run in turns on the same sequences. CPU time
of one thread; medians over steps. A step of the demo model is short: with a larger model the share is smaller.

    python tests/benchmarks/bench_records.py [--steps 300] [--write]
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from engine_steps import PIPELINE, RUNTIME, SCHEDULER, TOTAL, Parts, decode_steps
from guideway import Engine, EngineConfig, JsonSchema, SamplingParams

RESULTS = Path(__file__).parent / "results" / "records.md"
ROWS, ASKED = 64, 0.03
"""Sequences in a step, and the largest share of a step that is asked for."""
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
SCHEMA = JsonSchema({"type": "array", "items": PERSON, "minItems": 5})
CASES: dict[str, dict[str, Any]] = {
    "a schema, temperature 1": {"constraint": SCHEMA, "temperature": 1.0},
    "a schema, temperature 0.7": {"constraint": SCHEMA, "temperature": 0.7},
    "a schema, greedy": {"constraint": SCHEMA},
    "no constraint, temperature 1": {"temperature": 1.0, "ignore_eos": True},
}


def measured(case: dict[str, Any], num_steps: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return the steps without records and those with them."""
    config = EngineConfig(
        model="demo",
        grammar=("llguidance",),
        forced_tokens="off",  # only steps of one token per sequence count
        max_num_seqs=ROWS,
        max_model_len=256,
        enable_prefix_caching=False,
    )
    with Engine(config) as engine:
        runtime: Any = engine._runtime
        prepare, turns, kinds = runtime.prepare, itertools.cycle([False, True]), list[bool]()

        def prepared(batch: Any) -> Any:
            kinds.append(next(turns))
            step = prepare(batch)
            return step if kinds[-1] else replace(step, records=None)

        runtime.prepare = prepared
        parts, of_kind = Parts(engine), list[bool]()
        params = (SamplingParams(max_tokens=200, seed=i, records=True, **case) for i in itertools.count())
        requests = (([5 + i % 200] * 16, each) for i, each in enumerate(params))
        steps, _ = decode_steps(
            engine,
            parts,
            requests,
            batch_size=ROWS,
            num_steps=num_steps,
            after_step=lambda: of_kind.append(kinds[-1]),
        )
    pairs = list(zip(of_kind, steps, strict=True))[20:]
    return [step for kind, step in pairs if not kind], [step for kind, step in pairs if kind]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| sequences | step, ms | pipeline | runtime and scheduler | with records | share |", "|" + "---|" * 6]
    for name, case in CASES.items():
        without, with_records = measured(case, options.steps)

        def median(steps: list[dict[str, float]], *of: str) -> float:
            return 1e3 * statistics.median(sum(step.get(part, 0.0) for part in of) for step in steps)

        others = (RUNTIME, SCHEDULER)
        more = [median(with_records, *of) - median(without, *of) for of in ((PIPELINE,), others)]
        step = median(without, TOTAL)
        lines.append(
            f"| {name} | {step:.2f} | {median(without, PIPELINE):.2f} | {median(without, *others):.2f} "
            f"| +{more[0]:.3f} pipeline, {more[1]:+.3f} scheduler | {sum(more) / step:.1%} |"
        )
    packages = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy", "llguidance"))
    text = f"""\
# Records

`python tests/benchmarks/bench_records.py --write`; {ROWS} sequences, steps in turns with and without records,
{options.steps} steps. Asked: at most {ASKED:.0%} of a step.

{chr(10).join(lines)}

Python {platform.python_version()}, {packages}; {platform.machine()}, {os.cpu_count()} cores, load average
{os.getloadavg()[0]:.1f}.
"""
    sys.stdout.write(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
