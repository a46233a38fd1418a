"""The engine compared with ``model.generate`` and continuous batching of transformers, and the cost of its bookkeeping.

    python tests/benchmarks/bench_engine.py [FOLDER] [--rounds 9] [--write]

All three continue the same 16 prompts greedily, each by the same number of tokens, on one thread, in turns. A run of
`LONG` tokens, prompts included, gives tokens per CPU second; the difference between a run of `LONG` and one of `SHORT`
tokens excludes the cost of prompts and of starting, which ``generate_batch`` has in every call. CPU time is measured
for the whole process. The second table has decode steps by part; bookkeeping is all but forward pass and pipeline.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from engine_steps import FORWARD, PIPELINE, RUNTIME, SCHEDULER, TOTAL, Parts, decode_steps, milliseconds
from guideway import Engine, EngineConfig, SamplingParams
from guideway_demo_model import DemoModel
from guideway_engine.runners.transformers.model_loader import load_model
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.utils import logging

RESULTS = Path(__file__).parent / "results" / "engine.md"
PROMPT_LENGTH, SHORT, LONG = 64, 64, 256
BATCH_SIZE = 16
AT_LEAST = {"generate": 1.1, "generate_batch": 2.0}
BOOKKEEPING = {16: 0.15, 64: 0.10}
"""Maximum share of a step, by batch size."""
PARTS = (FORWARD, PIPELINE, RUNTIME, SCHEDULER)

Run = Callable[[int], None]


def prompts_of(vocabulary_size: int, batch_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    prompts: list[list[int]] = torch.randint(vocabulary_size, (batch_size, PROMPT_LENGTH), generator=generator).tolist()
    return prompts


def make_engine(folder: Path, batch_size: int) -> Engine:
    return Engine(
        EngineConfig(
            model=str(folder), max_num_seqs=batch_size, max_model_len=PROMPT_LENGTH + LONG, enable_prefix_caching=False
        )
    )


def ours(engine: Engine, prompts: list[list[int]]) -> Run:
    def run(num_tokens: int) -> None:
        results = engine.generate(prompts, SamplingParams(max_tokens=num_tokens, ignore_eos=True))
        assert all(len(result.token_ids) == num_tokens for result in results)

    return run


def generate(folder: Path, prompts: list[list[int]]) -> Run:
    model: Any = load_model(folder, "float32", "cpu")
    inputs = torch.tensor(prompts)

    def run(num_tokens: int) -> None:
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert output.shape[1] == PROMPT_LENGTH + num_tokens

    return run


def generate_batch(folder: Path, prompts: list[list[int]]) -> Run:
    model: Any = load_model(folder, "float32", "cpu")

    def run(num_tokens: int) -> None:
        config = GenerationConfig(do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1, pad_token_id=0)
        # only as much cache as needed: the default takes half a minute to allocate
        cache = ContinuousBatchingConfig(num_blocks=4 * BATCH_SIZE, max_batch_tokens=2048)
        results = model.generate_batch(prompts, generation_config=config, continuous_batching_config=cache)
        assert all(len(result.generated_tokens) == num_tokens for result in results.values())

    return run


def compare(runs: dict[str, Run], num_rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the CPU seconds of a short and a long run in each round."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(1 + num_rounds):
        for name in list(runs)[number % len(runs) :] + list(runs)[: number % len(runs)]:
            taken = []
            for num_tokens in (SHORT, LONG):
                start = time.process_time()
                runs[name](num_tokens)
                taken.append(time.process_time() - start)
            if number:  # the first warms up
                seconds[name].append((taken[0], taken[1]))
        sys.stderr.write(".")
    sys.stderr.write("\n")
    return seconds


def speed_table(seconds: dict[str, list[tuple[float, float]]]) -> list[str]:
    whole = {name: [BATCH_SIZE * LONG / long for _, long in pairs] for name, pairs in seconds.items()}
    slope = {
        name: [BATCH_SIZE * (LONG - SHORT) / (long - short) for short, long in pairs] for name, pairs in seconds.items()
    }
    set_up = {
        name: [short - SHORT * (long - short) / (LONG - SHORT) for short, long in pairs]
        for name, pairs in seconds.items()
    }
    lines = [
        f"| tokens per CPU second, batch {BATCH_SIZE} | prompts included | engine : this | further tokens alone | "
        "engine : this | ms of set-up and prompts | asked |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in seconds:
        ratios = [
            statistics.median(a / b for a, b in zip(of["engine"], of[name], strict=True)) for of in (whole, slope)
        ]
        lines.append(
            f"| {name} | {statistics.median(whole[name]):.0f} | {ratios[0]:.2f} | {statistics.median(slope[name]):.0f} "
            f"| {ratios[1]:.2f} | {1e3 * statistics.median(set_up[name]):.0f} | {AT_LEAST.get(name, '')} |"
        )
    return lines


def step_table(folder: Path, num_rounds: int) -> list[str]:
    lines = [
        f"| batch | step, ms | {' | '.join(PARTS)} | bookkeeping | at most |",
        "|" + "---|" * (4 + len(PARTS)),
    ]
    engines = {size: make_engine(folder, size) for size in BOOKKEEPING}
    parts = {size: Parts(engine) for size, engine in engines.items()}
    rounds: dict[int, list[dict[str, float]]] = {size: [] for size in engines}
    for number in range(1 + num_rounds):
        for size, engine in engines.items():
            prompts = itertools.cycle(prompts_of(len(engine.vocabulary), size))
            params = SamplingParams(max_tokens=LONG, ignore_eos=True)
            requests = ((prompt, params) for prompt in prompts)
            steps, _ = decode_steps(engine, parts[size], requests, batch_size=size, num_steps=SHORT)
            if number:
                rounds[size].append(milliseconds(steps))
    for size, of_size in rounds.items():
        medians = [statistics.median(r.get(part, 0.0) for r in of_size) for part in (TOTAL, *PARTS)]
        share = statistics.median((r[RUNTIME] + r[SCHEDULER]) / r[TOTAL] for r in of_size)
        cells = " | ".join(f"{value:.3f}" for value in medians)
        lines.append(f"| {size} | {cells} | {share:.1%} | {BOOKKEEPING[size]:.0%} |")
    for engine in engines.values():
        engine.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=DemoModel().path(), help="default: the demo model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    getLogger("ContinuousBatchingLogger").setLevel("CRITICAL")
    with make_engine(options.folder, BATCH_SIZE) as engine:
        prompts = prompts_of(len(engine.vocabulary), BATCH_SIZE)
        runs = {
            "engine": ours(engine, prompts),
            "generate": generate(options.folder, prompts),
            "generate_batch": generate_batch(options.folder, prompts),
        }
        speed = speed_table(compare(runs, options.rounds))
    steps = step_table(options.folder, options.rounds)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numpy"))
    text = f"""\
# The engine on {options.folder.name}

`python tests/benchmarks/bench_engine.py --rounds {options.rounds} --write`, {time.strftime("%Y-%m-%d")}

Prompts of {PROMPT_LENGTH} tokens, continued by {SHORT} and {LONG}; float32, one thread, CPU time of the process;
medians of {options.rounds} rounds in turns, ratios within a round.

{chr(10).join(speed)}

Decode steps at positions {PROMPT_LENGTH} to {PROMPT_LENGTH + SHORT}, milliseconds of CPU time; bookkeeping is runtime
and scheduler together.

{chr(10).join(steps)}

Python {platform.python_version()}, {packages}; {platform.machine()}, {os.cpu_count()} cores, load average
{os.getloadavg()[0]:.1f}.
"""
    sys.stdout.write(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
