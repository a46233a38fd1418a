"""This checkout against another checkout of the repository: CPU time of the same work, in interleaved pairs.

    python tests/benchmarks/against_commit.py --other FOLDER WORKLOAD [WORKLOAD ...] [--pairs 15] [--write NAME]

FOLDER is a checkout with its own virtual environments (`make setup`, for the workload ``vllm`` also `make setup-vllm`).
Each side is a process that lives for the whole run, and imports the package and the benchmark helpers of its checkout.
The two take turns, alternating the first. A workload's figure is the CPU time of the process tree for one round. The
table has the median of the other's time over this one's, pair by pair (above 1: this one is faster), and its 96.5 %
confidence interval for 15 pairs, by order statistics (the 4th and 12th of 15; for other numbers of pairs, the ranks of
the binomial distribution at 95 %).

Workloads: ``admit`` (new schemas from text to a strategy's compiled grammar, and known ones), ``runtime`` (prepare and
accept for 64 rows, without a grammar library or a model), ``engine`` (64 constrained sequences of the demo model),
``vllm`` (64 constrained requests inside vLLM, in process).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
PROPERTIES = {
    "name": {"type": "string", "maxLength": 24},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "email": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}[.]com$"},
    "tags": {"type": "array", "items": {"enum": ["new", "regular", "vip"]}, "minItems": 3, "maxItems": 3},
}


def schema(number: int = 0) -> dict[str, Any]:
    """Return a different schema for each number."""
    properties = {**PROPERTIES, f"field_{number}": {"type": "integer"}} if number else PROPERTIES
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 4}


def admit() -> Callable[[], None]:
    from guideway import JsonSchema, SamplingParams
    from guideway.api import ModifierContext, Request, Vocabulary
    from guideway_llguidance.strategy import Strategy

    try:
        runtime_class = import_module("guideway.runtime.runtime").Runtime
    except ModuleNotFoundError:
        runtime_class = import_module("guideway.constraints.runtime").Runtime
    tokens = [bytes([i]) for i in range(256)] + [b""]
    vocabulary = Vocabulary(tokens=tokens, stop_token_ids=frozenset({256}))
    context = ModifierContext(vocabulary=vocabulary, max_num_sequences=64, max_model_len=1 << 20)
    runtime = runtime_class(context, strategies={"llguidance": Strategy(vocabulary, {})})
    served = 0

    def one(text: str) -> None:
        nonlocal served
        served += 1
        params = SamplingParams(constraint=JsonSchema(text))
        admission = runtime.admit(Request(request_id=str(served), prompt_token_ids=(1, 2, 3), params=params))
        admission.wait()
        runtime.start(admission, 0)
        runtime.release(0)

    def work() -> None:
        for _ in range(150):
            one(json.dumps(schema(served + 1)))
            for _ in range(4):
                one(json.dumps(schema(1)))

    return work


def runtime() -> Callable[[], None]:
    helpers = import_module("bench_runtime_step")
    tokens = [b"%d" % i for i in range(helpers.NUM_TOKENS - 1)] + [b""]
    from guideway.api import Vocabulary

    vocabulary = Vocabulary(tokens=tokens, stop_token_ids=frozenset({helpers.NUM_TOKENS - 1}))
    steps = [helpers.step_of(strategy, 64, 0, vocabulary) for strategy in (helpers.Batch, helpers.Loop)]

    def work() -> None:
        for step in steps:
            for _ in range(2000):
                step()

    return work


def engine() -> Callable[[], None]:
    from guideway import Engine, EngineConfig, JsonSchema, SamplingParams

    # all in this process, whose time is measured; older commits have no other way
    options = {"grammar_host": "inline"} if hasattr(EngineConfig, "grammar_host") else {}
    running = Engine(EngineConfig(model="demo", grammar=("llguidance",), max_num_seqs=64, **options))
    # cut at the limit, as in commits that do not close outputs
    as_before = {"close": False} if "close" in SamplingParams.__dataclass_fields__ else {}
    params = SamplingParams(max_tokens=64, constraint=JsonSchema(schema()), **as_before)
    prompts = [f"Person {i}: name, age, e-mail." for i in range(64)]

    def work() -> None:
        results = running.generate(prompts, params)
        if any(result.error for result in results) or sum(len(r.token_ids) for r in results) < 64 * 60:
            raise RuntimeError("the workload did not run as it should")

    return work


def vllm() -> Callable[[], None]:
    import guideway_demo_model
    from guideway_vllm.config import GuestConfig
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    options = {"grammar_host": "inline"} if hasattr(GuestConfig, "grammar_host") else {}  # as above
    llm = LLM(
        model=str(Path(guideway_demo_model.__file__).parent / "weights"),
        dtype="float32",
        max_model_len=320,
        max_num_seqs=64,
        enforce_eager=True,
        disable_log_stats=True,
        additional_config={"guideway": {"grammar": ["llguidance"], **options}},
    )
    outputs = StructuredOutputsParams(json=schema())
    params = SamplingParams(temperature=0, max_tokens=64, structured_outputs=outputs)
    prompts = [f"Person {i}: name, age, e-mail." for i in range(64)]

    def work() -> None:
        results = llm.generate(prompts, params, use_tqdm=False)
        if sum(len(r.outputs[0].token_ids) for r in results) < 64 * 60:
            raise RuntimeError("the workload did not run as it should")

    return work


WORKLOADS = {"admit": admit, "runtime": runtime, "engine": engine, "vllm": vllm}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD")
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--write", metavar="NAME", help="write results/NAME.md")
    parser.add_argument("--child", choices=WORKLOADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(options.child)
        return
    if options.other is None or not options.workloads:
        parser.error("say which workloads, and where the other checkout is: --other FOLDER")
    rows = [row(name, options.other.resolve(), options.pairs) for name in options.workloads]
    text = "\n".join([*header(options), *rows]) + "\n"
    sys.stdout.write(text)
    if options.write:
        (HERE / "results" / f"{options.write}.md").write_text(text, encoding="utf-8")


def header(options: argparse.Namespace) -> list[str]:
    command = f"python tests/benchmarks/against_commit.py --other FOLDER {' '.join(options.workloads)}"
    this, other = (commit(folder) for folder in (HERE, options.other))
    return [
        f"# Commit {this} against {other}",
        "",
        f"Made by `{command} --pairs {options.pairs} --write {options.write}` with Python {platform.python_version()}; "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before it. CPU seconds of the process tree",
        "a round; the ratio is the other's time over this one's (above 1: this one is faster), median and interval.",
        "",
        "| workload | this, s | other, s | ratio | interval |",
        "|---|---|---|---|---|",
    ]


def commit(folder: Path) -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    return done.stdout.strip() or "?"


def row(workload: str, other: Path, num_pairs: int) -> str:
    sides = {"this": Child(workload, HERE.parents[1]), "other": Child(workload, other)}
    for child in sides.values():
        child.ask()  # warms up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(num_pairs):
        for name in list(sides)[:: -1 if i % 2 else 1]:
            seconds[name].append(sides[name].ask())
        sys.stderr.write(f"{workload} {seconds['this'][-1]:.3f} {seconds['other'][-1]:.3f}\n")
    for child in sides.values():
        child.close()
    ratios = sorted(b / a for a, b in zip(seconds["this"], seconds["other"], strict=True))
    low = lower_rank(num_pairs)
    return (
        f"| {workload} | {statistics.median(seconds['this']):.3f} | {statistics.median(seconds['other']):.3f} | "
        f"{statistics.median(ratios):.3f} | {ratios[low]:.3f} to {ratios[-1 - low]:.3f} |"
    )


def lower_rank(n: int) -> int:
    """Return the index of the lower end of the median's interval in `n` sorted values: at most 2.5 % are below it."""
    below, k = 0.0, 0
    while below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    return max(0, k - 1)


class Child:
    """The process of one side."""

    def __init__(self, workload: str, checkout: Path) -> None:
        python = checkout / (".venv-vllm" if workload == "vllm" else ".venv") / "bin" / "python"
        environment = {**os.environ, **SETTINGS, "PYTHONPATH": str(checkout / "tests" / "benchmarks")}
        command = [str(python), str(HERE / Path(__file__).name), "--child", workload]
        self._process = subprocess.Popen(
            command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # the workload may print as well
            if line.startswith("@ "):
                return float(line[2:])
        raise RuntimeError("one side died; what it said is above")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(workload: str) -> None:
    """Run in a child: one round for each line of input."""
    sys.path.remove(str(HERE))  # use the helpers of the checkout, which is in PYTHONPATH
    work = WORKLOADS[workload]()
    for _ in sys.stdin:
        start = cpu()
        work()
        sys.stdout.write(f"@ {cpu() - start}\n")
        sys.stdout.flush()


def cpu() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
