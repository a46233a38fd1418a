"""Where the processor time of a step goes, in the serving process and in the host, with strategies inline and in hosts.

    python tests/benchmarks/bench_host_step.py [--batches 16 64] [--libraries xgrammar llguidance] [--write]

The runtime alone: the demo model's vocabulary, every sequence under the schema of `vllm_throughput.py`, tokens drawn at
random from the masks, and a forward pass that multiplies matrices for as long as the demo model's takes. Calls come in
vLLM's order: V1 announces the step before the forward pass, V2 asks for masks as soon as tokens were accepted. Both
sides take turns. Microseconds of processor time per step, the tenth percentile and the median over all steps; a part
that is indented is included in the one above it, and calls of parts cost about half a microsecond more than otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

RESULT = Path(__file__).parent / "results" / "host_step.md"
FILE = "PYTHON_HOST_STEP"
"""The variable with the file for the host's figures. Hosts get variables with such names."""
NUM_TOKENS = 64
FORWARD_SECONDS = {16: 0.0025, 64: 0.006}
SIDES = {"inline": "inline", "hosts": "process"}
HERE = (
    ("foresee", "guideway.runtime.runtime:Runtime.foresee"),
    ("- send: jobs, JSON, system call", "guideway_hosts.matchers:MatcherRoom.begin"),
    ("-- JSON and system calls", "guideway_hosts.host:Host.send"),
    ("prepare", "guideway.runtime.runtime:Runtime.prepare"),
    ("- masks: native or from the host", "guideway.runtime.constraints.mask_rows:fill_jobs"),
    ("-- poll, receive, JSON, memory of the host", "guideway_hosts.host:Host.answer"),
    ("--- memory of the host", "guideway_hosts.host:Host._weigh"),
    ("-- rows to the bitmask and the matchers", "guideway_hosts.matchers:Step.give"),
    ("accept", "guideway.runtime.runtime:Runtime.accept"),
    ("- matchers, with the next command to hosts", "guideway.runtime.constraints.steady:advance_matchers"),
)
THERE = (
    ("- receive, JSON, with a part of the wait", "guideway_hosts.line:Line.receive"),
    ("- step", "guideway_hosts.serving:Server._again"),
    ("-- accept", "guideway_hosts.serving_matchers:advance_matchers"),
    ("-- masks", "guideway_hosts.serving_matchers:fill_jobs"),
    ("-- closing", "guideway_hosts.serving_matchers:Filler._close"),
    ("- JSON and system call of the answer", "guideway_hosts.line:Line.send"),
    ("- memory given back", "guideway_hosts.upkeep:Heap.tidy"),
)
"""The parts of both processes, by label, as module and attribute. One that does not exist is left out."""


class Spent:
    """Microseconds of processor time of this thread, by part and step."""

    def __init__(self, parts: tuple[tuple[str, str], ...]) -> None:
        self.now: dict[str, float] = defaultdict(float)
        self.steps: list[dict[str, float]] = []
        for label, place in parts:
            module, path = place.split(":")
            owner: Any = importlib.import_module(module)
            *owners, name = path.split(".")
            for each in owners:
                owner = getattr(owner, each, None)
            if hasattr(owner, name):
                setattr(owner, name, self._timed(getattr(owner, name), label))

    def _timed(self, call: Callable[..., Any], label: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self.now[label] += (time.thread_time_ns() - began) / 1e3

        return timed

    def end_step(self) -> None:
        self.steps.append(dict(self.now))
        self.now.clear()


def watch_host() -> None:
    """Measure the parts of a host, in the process that hosts are forked from."""
    from guideway_hosts.upkeep import Heap

    spent = Spent(THERE)
    tidy = Heap.tidy

    def end_step(heap: Any) -> None:
        tidy(heap)
        if "- step" in spent.now:  # of a steady batch
            spent.end_step()
            if len(spent.steps) % NUM_TOKENS == 0:
                Path(os.environ[FILE]).write_text(json.dumps(spent.steps), encoding="utf-8")
        spent.now.clear()

    Heap.tidy = end_step  # type: ignore[method-assign]


def run(asked: dict[str, Any]) -> None:
    """Run in a child: a round for each line of input, of which the first warms up."""
    import numpy as np
    from guideway.api import JsonSchema, ModifierContext, Request, SamplingParams, StepBatch
    from guideway.plugins import Plugins
    from guideway.runtime import RuntimePlan, build_vocabulary
    from guideway_demo_model import DemoModel
    from transformers import AutoTokenizer

    from tests.benchmarks.vllm_throughput import ITEM

    batch, folder = asked["batch"], DemoModel().path()
    width = json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"]
    vocabulary = build_vocabulary(AutoTokenizer.from_pretrained(str(folder)), logits_width=width)
    runtime = RuntimePlan(
        context=ModifierContext(vocabulary=vocabulary, max_num_sequences=batch, max_model_len=256),
        strategies=[Plugins().load("grammar", asked["library"])],
        grammar_host=SIDES[asked["side"]],  # type: ignore[arg-type]
        sits_out=True,
        short_budget="cut",
    ).build()
    schemas = [JsonSchema({"type": "array", "items": ITEM, "minItems": 20 + i % 4}) for i in range(batch)]
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((NUM_TOKENS + 1, batch, width), dtype=np.float32)
    inputs, weights = scores[0, :, :256], rng.standard_normal((256, 2048), dtype=np.float32)
    slots, spent = list(range(batch)), Spent(HERE)
    processor: list[float] = []

    def processor_seconds() -> float:
        room = runtime._hosts.matchers.common if asked["side"] == "hosts" else None  # type: ignore[union-attr]
        return 0.0 if room is None or room.host is None else time.clock_gettime((~room.host.pid << 3) | 2)

    def pass_forward(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            inputs @ weights

    def make_matchers() -> None:
        first = StepBatch.build(slots, [3] * batch)
        while runtime.prepare(first) and any(map(runtime.is_late, slots)):
            time.sleep(0.01)

    def step(number: int) -> None:
        step_batch = StepBatch.build(slots, [3 + number] * batch)
        if asked["order"] == "V1":
            runtime.foresee(dict.fromkeys(slots, ()))
            pass_forward(FORWARD_SECONDS[batch])
        payload = runtime.bitmask(runtime.prepare(step_batch))
        processor.append(processor_seconds())  # the host has answered, and is sent nothing before `accept`
        assert payload is not None
        bits = np.unpackbits(payload.arrays["bitmask"].view(np.uint8), axis=1, bitorder="little")
        ids = np.where(bits[:, :width], scores[number], -np.inf).argmax(axis=1)
        outcomes = runtime.accept(step_batch, [[int(token_id)] for token_id in ids])
        assert all(outcome.action == "continue" for outcome in outcomes), outcomes
        if asked["order"] == "V2":
            pass_forward(FORWARD_SECONDS[batch])

    for number, _ in enumerate(sys.stdin):
        for i, schema in enumerate(schemas):
            params = SamplingParams(max_tokens=NUM_TOKENS, constraint=schema)
            admission = runtime.admit(Request(request_id=f"{number}.{i}", prompt_token_ids=(1, 2, 3), params=params))
            admission.wait()
            runtime.start(admission, i)
        make_matchers()
        for i in range(NUM_TOKENS):
            step(i)
            if i >= 2 and number:  # the first begin the steady batch
                spent.now["host"] = (processor[-1] - processor[-2]) * 1e6
                spent.end_step()
            spent.now.clear()
        for slot in slots:
            runtime.release(slot)
        sys.stdout.write(f"@ {json.dumps(spent.steps)}\n")
        sys.stdout.flush()
    runtime.close()


class Child:
    """The process of one side."""

    def __init__(self, asked: dict[str, Any]) -> None:
        import subprocess

        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.of_host = folder / "host.json"
        started = f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        started += "if 'guideway_hosts' in sys.orig_argv:\n"
        started += "    from tests.benchmarks.bench_host_step import watch_host\n    watch_host()\n"
        (folder / "sitecustomize.py").write_text(started, encoding="utf-8")
        env = os.environ | {"PYTHONPATH": str(folder), FILE: str(self.of_host), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--child", json.dumps(asked)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env | {"HF_HUB_OFFLINE": "1"}, text=True
        )

    def ask(self) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(next(line for line in self.process.stdout if line.startswith("@ "))[2:])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self._folder.cleanup()


def compare(library: str, batch: int, order: str, rounds: int) -> list[str]:
    asked = {"library": library, "batch": batch, "order": order}
    children = {side: Child({**asked, "side": side}) for side in SIDES}
    found: dict[str, Any] = {}
    for _ in range(rounds + 1):
        for side, child in children.items():
            found[side] = child.ask()
    there = json.loads(children["hosts"].of_host.read_text("utf-8"))
    del there[:NUM_TOKENS]  # of the round that warms up
    for child in children.values():
        child.close()
    lines = [
        f"\n## {library}, {batch} sequences, {order}'s order\n",
        f"Load {os.getloadavg()[0]:.1f} after it.\n",
        "| part | inline | hosts |",
        "|---|---|---|",
    ]
    for label, _ in HERE:
        cells = [cell([step.get(label, 0.0) for step in found[side]]) for side in SIDES]
        lines.append(f"| {label} | {' | '.join(cells)} |" if any(cells) else "")
    lines.append(f"| the host's process |  | {cell([step['host'] for step in found['hosts']])} |")
    for label in dict.fromkeys(label for label, _ in THERE):
        mine = cell([step.get(label, 0.0) for step in there])
        lines.append(f"| {label} |  | {mine} |" if mine else "")
    own = ("foresee", "prepare", "accept", "host")
    sums = [cell([sum(step.get(part, 0.0) for part in own) for step in found[side]]) for side in SIDES]
    return [*filter(None, lines), f"| **in all** | {' | '.join(sums)} |"]


def cell(values: list[float]) -> str:
    if not any(values):
        return ""
    return f"{sorted(values)[len(values) // 10]:.0f}; {statistics.median(values):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64], choices=FORWARD_SECONDS)
    parser.add_argument("--libraries", nargs="+", default=["xgrammar", "llguidance"])
    parser.add_argument("--orders", nargs="+", default=["V1", "V2"], choices=("V1", "V2"))
    parser.add_argument("--rounds", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run(json.loads(options.child))
        return
    names = ("numpy", "xgrammar", "llguidance", "guideway", "guideway-hosts")
    lines = [
        "# The processor time of a step, inline and with hosts",
        "",
        f"Made by `python tests/benchmarks/{Path(__file__).name} {' '.join(sys.argv[1:])}` with Python "
        f"{platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}; "
        f"{os.cpu_count()} CPUs.",
        "Microseconds per step: tenth percentile; median. A part that begins with `-` is included in the one above it.",
    ]
    for library in options.libraries:
        for batch in options.batches:
            for order in options.orders:
                found = compare(library, batch, order, options.rounds)
                sys.stdout.write("\n".join(found) + "\n")
                lines += found
    if options.write:
        RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
