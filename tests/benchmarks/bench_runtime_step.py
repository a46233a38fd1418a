"""The cost of the constraint runtime itself per step: arrays, guards, accept dispatch.

Strategies that do nothing replace grammar libraries, so that the figure includes neither fill nor matcher: `batch`
overrides `GrammarStrategy.fill` and `advance`, `loop` uses their default loops over its matchers (a part of the
runtime). The batch stays the same. One thread, CPU time, the variants interleaved; each figure is the median over
repeats of the mean over steps.

    python tests/benchmarks/bench_runtime_step.py
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import (
    CompiledGrammar,
    Constraint,
    FillJob,
    GrammarStrategy,
    Matcher,
    ModifierContext,
    Regex,
    Request,
    SamplingParams,
    StepBatch,
    StepOutput,
    Support,
    Vocabulary,
)
from guideway.pipeline import accepted_tokens
from guideway.runtime.runtime import Runtime
from numpy.typing import NDArray

NUM_TOKENS = 131_072
STEPS, REPEATS = 400, 15
RESULTS = Path(__file__).parent / "results" / "runtime_step.md"


class NullMatcher(Matcher):
    def accept(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        return None

    def is_terminated(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return False

    def rollback(self, num_tokens: int) -> None:
        return None

    def fork(self) -> Matcher:
        return self


class NullGrammar(CompiledGrammar):
    nbytes = 1

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return NullMatcher()


class Loop(GrammarStrategy):
    name, kinds, capabilities, max_rollback = "loop", frozenset({"regex"}), frozenset({"fork"}), None

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"regex"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return NullGrammar()


class Batch(Loop):
    name = "batch"

    def advance(self, matchers: Sequence[Matcher], token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.ones(len(matchers), dtype=np.int32)

    def fill(self, jobs: Sequence[FillJob], bitmask: Any) -> NDArray[np.int32]:
        return np.zeros(len(jobs), dtype=np.int32)


def step_of(
    strategy: type[GrammarStrategy], num_sequences: int, num_drafts: int, vocabulary: Vocabulary
) -> Callable[[], None]:
    """Return a function for `STEPS` steps of `num_sequences` constrained sequences, without the host's work and the
    library's."""
    context = ModifierContext(vocabulary=vocabulary, max_num_sequences=num_sequences, max_model_len=1 << 20)
    runtime = Runtime(context, strategies={strategy.name: strategy(vocabulary, {})})
    for slot in range(num_sequences):
        params = SamplingParams(constraint=Regex("a"))
        admission = runtime.admit(Request(request_id=str(slot), prompt_token_ids=(1, 2, 3), params=params))
        admission.wait()
        runtime.start(admission, slot)
    slots = list(range(num_sequences))
    positions = [3] * num_sequences
    drafts = [[5] * num_drafts for _ in slots] if num_drafts else None
    token_ids = np.full(num_sequences * (1 + num_drafts), 5, dtype=np.int32)
    output = StepOutput(token_ids)

    def step() -> None:
        batch = StepBatch.build(slots, positions, drafts)
        runtime.prepare(batch)
        runtime.accept(batch, accepted_tokens(batch, output.token_ids), output)

    def steps() -> None:
        for _ in range(STEPS):
            step()
        runtime.journal(0)  # what was put off until somebody reads it counts too

    return steps


def measure(steps: Callable[[], None]) -> float:
    """Return the CPU microseconds per step."""
    start = time.process_time()
    steps()
    return (time.process_time() - start) / STEPS * 1e6


def main() -> None:
    tokens = [b"%d" % i for i in range(NUM_TOKENS - 1)] + [b""]
    vocabulary = Vocabulary(tokens=tokens, stop_token_ids=frozenset({NUM_TOKENS - 1}))
    cases = {
        (strategy.name, sequences, drafts): step_of(strategy, sequences, drafts, vocabulary)
        for strategy in (Batch, Loop)
        for sequences, drafts in ((1, 0), (16, 0), (64, 0), (16, 3))
    }
    samples: dict[tuple[str, int, int], list[float]] = {case: [] for case in cases}
    for _ in range(REPEATS):
        for case, steps in cases.items():
            samples[case].append(measure(steps))
    lines = [
        "# The runtime's own cost per step",
        "",
        f"`python tests/benchmarks/bench_runtime_step.py`; {NUM_TOKENS} tokens, {STEPS} steps x {REPEATS} repeats, "
        "CPU time of one thread; grammar library and forward pass left out.",
        "",
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}.",
        "",
        "| fill | sequences | drafts each | rows | us per step (median) | least | most |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, sequences, drafts), values in samples.items():
        lines.append(
            f"| {name} | {sequences} | {drafts} | {sequences * (1 + drafts)} | {statistics.median(values):.1f} | "
            f"{min(values):.1f} | {max(values):.1f} |"
        )
    text = "\n".join(lines) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
