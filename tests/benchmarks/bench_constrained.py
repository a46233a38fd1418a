"""The cost of constraints: decoding under JSON schemas compared with free decoding; same model, same batch, one thread.

    python tests/benchmarks/bench_constrained.py --corpora FOLDER [--device cpu] [--models FOLDER] [--write]

The pinned model (see `pinned_model.py`) decodes a batch of 32, every sequence under its own schema, taken from
``jsonschemabench_sample.jsonl`` in FOLDER. A sequence that ends is replaced by the next, so the batch stays full. The
free sequences have the same prompts and as many tokens as the constrained ones had, so both compute the same positions
step by step. Outputs may be cut, since some schemas need more tokens than there are. Only steps in which every sequence
decodes one token count, without forced tokens, and compiling is reported separately. Both process the same requests in
turns. Times are CPU times of the engine's only thread, and of grammar hosts; the parts do not overlap.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_steps import FORWARD, HOSTS, PIPELINE, RUNTIME, SCHEDULER, TOTAL, Parts, decode_steps, milliseconds
from gaps import interval
from guideway import Engine, EngineConfig, SamplingParams
from guideway.api import Constraint, FinishReason, GenerationResult, InvalidRequest, JsonSchema
from pinned_model import add_argument, pinned_model

CORPUS = "jsonschemabench_sample.jsonl"
RESULTS = Path(__file__).parent / "results"
STRATEGY = "llguidance"
BATCH_SIZE, PROMPT_LENGTH, MAX_TOKENS = 32, 32, 256
LIMITS = {"torch": 0.85, "cpu": 0.99}
"""Required ratios, by device backend."""
FILL, ACCEPT, APPLY = "mask: fill", "mask: accept", "mask: apply"
PARTS = (FORWARD, FILL, APPLY, ACCEPT, PIPELINE, RUNTIME, SCHEDULER, HOSTS)
TEMPERATURES = {"float32": (0.0, 1.0), "bfloat16": (0.0,)}
"""Measured temperatures, by dtype of the weights."""


class Subject:
    """An engine with requests that are repeated, with and without constraints."""

    def __init__(self, model: Path, dtype: str, device: str, grammar_host: Any) -> None:
        self.limit = LIMITS[device]
        config = EngineConfig(
            model=str(model),
            device_backend=device,
            grammar=(STRATEGY,),
            grammar_host=grammar_host,
            forced_tokens="off",
            dtype=dtype,
            max_num_seqs=BATCH_SIZE,
            max_model_len=PROMPT_LENGTH + MAX_TOKENS,
            enable_prefix_caching=False,
        )
        self.engine = Engine(config)
        internals: Any = self.engine
        self.mask = internals._runtime._mask
        self.parts = Parts(self.engine, counts_hosts=True)
        self.parts.watch(self.mask, "prepare", FILL)
        self.parts.watch(self.mask, "accept", ACCEPT)
        self.parts.watch(internals._executor._worker._backend, "apply_bitmask", APPLY)
        self.constraints: list[Constraint] = []
        self.prompts: list[list[int]] = []

    def compile(self, schemas: list[Any]) -> float:
        """Keep the schemas that are served; return the CPU milliseconds of compiling each of them."""
        draw = np.random.default_rng(0)
        start = time.process_time()
        for schema in schemas:
            prompt = draw.integers(1000, len(self.engine.vocabulary), PROMPT_LENGTH).tolist()
            try:
                self.engine.submit(prompt, SamplingParams(constraint=JsonSchema(schema))).abort()
            except InvalidRequest:
                continue
            self.constraints.append(JsonSchema(schema))
            self.prompts.append(prompt)
        return 1e3 * (time.process_time() - start) / len(self.constraints)


@dataclass
class Comparison:
    """The costs of a subject's steps, by part, at one temperature."""

    subject: Subject
    temperature: float
    lengths: list[int] = field(default_factory=list)
    """Number of tokens of each request under its constraint."""
    allowed: list[int] = field(default_factory=list)
    """Number of tokens that each mask allowed."""
    rounds: list[tuple[dict[str, float], dict[str, float]]] = field(default_factory=list)
    """Milliseconds by part, free and constrained."""

    def run(self, num_rounds: int, num_steps: int) -> None:
        self._decode_constrained(num_steps)  # determines the lengths of the free ones
        self._decode_freely(num_steps)
        self.allowed.clear()
        for i in range(num_rounds):
            if i % 2:
                constrained = self._decode_constrained(num_steps)
                free = self._decode_freely(num_steps)
            else:
                free = self._decode_freely(num_steps)
                constrained = self._decode_constrained(num_steps)
            self.rounds.append((free, constrained))
            sys.stderr.write(f"{free[TOTAL]:.1f} ms free, {constrained[TOTAL]:.1f} ms constrained\n")

    def _decode_freely(self, num_steps: int) -> dict[str, float]:
        steps, _ = self._decode(num_steps, constrained=False)
        return milliseconds(steps)

    def _decode_constrained(self, num_steps: int) -> dict[str, float]:
        steps, results = self._decode(num_steps, constrained=True)
        failed = next((result for result in results if result.error is not None), None)
        if failed is not None:
            raise RuntimeError("a request failed") from failed.error
        aborted = [result.finish_reason is FinishReason.ABORT for result in results]
        self.lengths = [
            MAX_TOKENS if early else len(result.token_ids) for result, early in zip(results, aborted, strict=True)
        ]
        return milliseconds(steps)

    def _decode(self, num_steps: int, *, constrained: bool) -> tuple[list[dict[str, float]], list[GenerationResult]]:
        return decode_steps(
            self.subject.engine,
            self.subject.parts,
            self._requests(constrained=constrained),
            batch_size=BATCH_SIZE,
            num_steps=num_steps,
            after_step=self._count if constrained else lambda: None,
        )

    def _requests(self, *, constrained: bool) -> Iterator[tuple[list[int], SamplingParams]]:
        subject = self.subject
        for i in itertools.count():
            which = i % len(subject.prompts)
            params = SamplingParams(max_tokens=MAX_TOKENS, temperature=self.temperature, seed=i)
            if constrained:
                params = replace(params, constraint=subject.constraints[which], close=False)
            else:
                params = replace(params, max_tokens=self.lengths[i], ignore_eos=True)
            yield subject.prompts[which], params

    def _count(self) -> None:
        masks = self.subject.mask.mask_rows._buffers[0][1 : 1 + BATCH_SIZE]
        self.allowed += np.unpackbits(masks.view(np.uint8), axis=1).sum(axis=1, dtype=np.int64).tolist()

    def ratio(self) -> tuple[float, float, float]:
        """Return the ratio of constrained to free throughput: the median of the rounds, and the interval's ends."""
        return interval([free[TOTAL] / constrained[TOTAL] for free, constrained in self.rounds])

    def column(self, which: int) -> list[str]:
        """Return medians over the rounds: of the step, and of each of its parts."""
        return [f"{statistics.median(r[which].get(part, 0.0) for r in self.rounds):.2f}" for part in (TOTAL, *PARTS)]

    def masks(self) -> str:
        """Describe the masks."""
        few, many = (
            100 * sum(test) / len(test) for test in ([n < 1000 for n in self.allowed], [n > 1e5 for n in self.allowed])
        )
        return f"{few:.0f} % of the masks allowed fewer than 1,000 tokens, {many:.0f} % more than 100,000"


def measure(subject: Subject, dtype: str, schemas: list[Any], num_rounds: int, num_steps: int) -> Iterator[str]:
    """Yield the tables of one dtype of weights."""
    milliseconds_each = subject.compile(schemas)
    for temperature in TEMPERATURES[dtype]:
        comparison = Comparison(subject, temperature)
        comparison.run(num_rounds, num_steps)
        free, constrained = comparison.column(0), comparison.column(1)
        ratio, low, high = comparison.ratio()
        how = f"temperature {temperature:g}" if temperature else "greedy"
        yield f"## {dtype}, {how}: {ratio:.3f} ({low:.3f} to {high:.3f})"
        yield ""
        yield "| ms per step | free | constrained |"
        yield "|---|---|---|"
        for part, without, with_constraint in zip((TOTAL, *PARTS), free, constrained, strict=True):
            yield f"| {part} | {without} | {with_constraint} |"
        yield ""
        yield (
            f"{comparison.masks()}; {len(comparison.lengths)} requests a run; {len(subject.constraints)} of "
            f"{len(schemas)} schemas are served, each compiled in {milliseconds_each:.1f} ms."
        )
        yield ""
        if ratio < subject.limit:
            sys.stderr.write(f"below the limit of {subject.limit}\n")
    subject.engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpora", type=Path, metavar="FOLDER", help=f"the folder of {CORPUS}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=24, help="decode steps of each run")
    parser.add_argument("--device", choices=sorted(LIMITS), default="torch", help="the device backend")
    parser.add_argument("--grammar-host", choices=("auto", "inline"), default="auto", help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write the table to {RESULTS.name}/")
    add_argument(parser)
    options = parser.parse_args()
    if options.corpora is None:
        parser.error(f"say where {CORPUS} is: --corpora FOLDER")
    torch.set_num_threads(1)
    schemas = [json.loads(line)["schema"] for line in (options.corpora / CORPUS).read_text("utf-8").splitlines()]
    np.random.default_rng(0).shuffle(schemas)
    model = pinned_model(options.models)
    tables: list[str] = []
    for dtype in TEMPERATURES:
        tables += measure(
            Subject(model, dtype, options.device, options.grammar_host), dtype, schemas, options.rounds, options.steps
        )
    packages = ("torch", "transformers", "llguidance", "numpy")
    text = "\n".join([
        "# Decoding under JSON schemas beside decoding freely",
        "",
        f"`python tests/benchmarks/bench_constrained.py --corpora FOLDER --device {options.device} "
        f"--grammar-host {options.grammar_host} "
        f"--rounds {options.rounds} --steps {options.steps} --write`, {time.strftime('%Y-%m-%d')}",
        "",
        f"In the headings: constrained over free throughput, median of {options.rounds} rounds (interval); asked: "
        f"{LIMITS[options.device]}. Batch {BATCH_SIZE}, pinned model of 131,072 tokens, {STRATEGY}, device "
        f"`{options.device}`, one thread, CPU time.",
        "",
        *tables,
        f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in packages)}; "
        f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}.",
    ])  # fmt: skip
    sys.stdout.write(text + "\n")
    if options.write:
        name = "constrained.md" if options.device == "torch" else f"constrained_{options.device}.md"
        (RESULTS / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
