"""The cost of modifier hosts: the runtime's `prepare` and `accept` with `modifier_host` "process" and "inline" in turn.

Two modifiers over a vocabulary of 131,072 tokens: `hello`, whose payload has a table of that width and which accepts
nothing, and `chain`, whose state contains its tokens and which gets feedback from the worker. Per step: the median wall
time, and the CPU time of the decoding thread and of the whole process tree.

    python tests/benchmarks/bench_modifier_hosts.py [--steps 300] [--pairs 5] [--write]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from guideway import __version__
from guideway.api import ModifierContext, Need, Payload, Request, SamplingParams, StepBatch, Vocabulary
from guideway.api.steps import StepOutput
from guideway.plugins import Plugins
from guideway.runtime import RuntimePlan
from guideway.runtime.runtime import Runtime

from tests.support.distributions import install
from tests.support.processes import seconds_of_tree

RESULTS = Path(__file__).parent / "results" / "modifier_hosts.md"
WIDTH = 131_072
OPTIONS: dict[str, dict[str, Any]] = {"hello": {"letter": "e"}, "chain": {}}


def built(modifier: str, where: Any, num_sequences: int) -> Runtime:
    """Return a runtime with `num_sequences` running sequences."""
    vocabulary = Vocabulary(tokens=[b"%d" % i for i in range(WIDTH - 1)] + [b""], stop_token_ids=frozenset({WIDTH - 1}))
    runtime = RuntimePlan(
        context=ModifierContext(vocabulary=vocabulary, max_num_sequences=num_sequences, max_model_len=4096),
        strategies=(),
        modifiers=[Plugins().load("modifier", modifier)],
        offers=frozenset(Need),
        modifier_host=where,
    ).build()
    for slot in range(num_sequences):
        params = SamplingParams(modifiers={modifier: OPTIONS[modifier]}, seed=slot)
        request = Request(request_id=str(slot), prompt_token_ids=(1, 2, 3), params=params)
        runtime.start(runtime.admit(request), slot)
    return runtime


def steps(runtime: Runtime, num_sequences: int, num_steps: int) -> tuple[float, float, float]:
    """Return the microseconds of a step: wall time, CPU time of this thread, and of the process tree."""
    walls, tree, thread = [], seconds_of_tree(), 0.0
    for _ in range(num_steps):
        length = 3 + len(runtime.journal(0).token_ids)
        batch = StepBatch.build(list(range(num_sequences)), [length] * num_sequences)
        began, processor = time.perf_counter(), time.thread_time()
        step = runtime.prepare(batch)
        # the feedback for `chain`: the keys that it sent
        arrays = {name: {"key": p.arrays["key"]} for name, p in step.payloads.items() if "key" in p.arrays}
        rows = np.arange(num_sequences, dtype=np.int32)
        heard = {name: Payload(rows, given) for name, given in arrays.items()}
        outcomes = runtime.accept(batch, [[5]] * num_sequences, StepOutput(rows, feedback=heard))
        walls.append(time.perf_counter() - began)
        thread += time.thread_time() - processor
        assert {outcome.action for outcome in outcomes} == {"continue"}, outcomes
    tree = seconds_of_tree() - tree
    return statistics.median(walls) * 1e6, thread / num_steps * 1e6, tree / num_steps * 1e6


def measure(modifier: str, num_sequences: int, options: argparse.Namespace) -> str:
    found: dict[str, list[tuple[float, float, float]]] = {"inline": [], "process": []}
    for pair in range(options.pairs):
        for where in list(found)[:: 1 if pair % 2 else -1]:
            runtime = built(modifier, where, num_sequences)
            try:
                steps(runtime, num_sequences, 20)
                found[where].append(steps(runtime, num_sequences, options.steps))
            finally:
                runtime.close()
    cells = [
        f"{statistics.median(of[what] for of in found['inline']):.0f} / "
        f"{statistics.median(of[what] for of in found['process']):.0f}"
        for what in range(3)
    ]
    return f"| {modifier} | {num_sequences} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="(default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.name}")
    options = parser.parse_args()
    command = f"bench_modifier_hosts.py --pairs {options.pairs} --steps {options.steps} --write"
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), "probes", {"modifier.chain": "tests.vllm.probes_in_vllm"})
        sys.path.insert(0, folder)
        lines = [
            "# Modifier hosts against modifiers in the serving process",
            "",
            f"guideway {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPU cores, shared "
            f"(load average {os.getloadavg()[0]:.0f}: the column of the clock shows that too);",
            f"`python tests/benchmarks/{command}`",
            "",
            "Microseconds of a step's `prepare` and `accept` together, inline / process; medians of the pairs.",
            "",
            "| modifier | sequences | by the clock | processor, thread that decodes | processor, process tree |",
            "|---|---|---|---|---|",
        ]
        lines += [measure(modifier, number, options) for modifier in OPTIONS for number in (1, 64)]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
