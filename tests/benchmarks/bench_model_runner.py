"""CPU time of one decode step: guideway's runner beside ``model.generate`` of the same model, one thread.

    python tests/benchmarks/bench_model_runner.py [FOLDER] [--output results.md]

Both continue the same prompts greedily over the same positions (`SHORT` to `LONG` generated tokens), so what a prompt
and a start cost is left out of both. The two take turns; the figures are the median and the best of the rounds.
CPU time is counted, not wall time, so other work on the machine disturbs it less.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers
from guideway.engine.worker.attention import pack_step
from guideway.engine.worker.model_loader import load_model
from guideway.engine.worker.model_runner import ModelRunner
from guideway_demo_model import DemoModel
from transformers import PreTrainedModel

PROMPT_LENGTH = 64
SHORT, LONG = 32, 160
BATCH_SIZES = (1, 16)
ROUNDS = 9


def prompts_of(model: PreTrainedModel, batch_size: int) -> torch.Tensor:
    vocabulary_size = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary_size, (batch_size, PROMPT_LENGTH), generator=generator)


def generate_step(model: PreTrainedModel, prompts: torch.Tensor) -> float:
    """Milliseconds of CPU time per further step of ``generate``: the slope between two lengths."""
    seconds = {}
    for num_tokens in (SHORT, LONG):
        start = time.process_time()
        output = model.generate(  # type: ignore[operator]
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        seconds[num_tokens] = time.process_time() - start
        assert output.shape[1] == PROMPT_LENGTH + num_tokens
    return 1e3 * (seconds[LONG] - seconds[SHORT]) / (LONG - SHORT)


def runner_step(runner: ModelRunner, prompts: torch.Tensor) -> tuple[float, float]:
    """Milliseconds of CPU time per decode step with its greedy draw, and of these the packing of the step."""
    slots = [runner.cache.allocate() for _ in prompts]
    tokens = runner.forward(list(zip(slots, prompts.tolist(), strict=True))).logits.argmax(dim=-1).tolist()
    start = time.process_time()
    for step in range(LONG):
        if step == SHORT:
            start = time.process_time()
        batch = [(slot, [token]) for slot, token in zip(slots, tokens, strict=True)]
        tokens = runner.forward(batch).logits.argmax(dim=-1).tolist()
    total = (time.process_time() - start) / (LONG - SHORT)

    start = time.process_time()
    for _ in range(LONG - SHORT):
        pack_step(batch, runner._cache, runner._masks, group=runner._group)
    packing = (time.process_time() - start) / (LONG - SHORT)
    for slot in slots:
        runner.cache.release(slot)
    return 1e3 * total, 1e3 * packing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=DemoModel().path(),
        help="a model in the format of transformers (default: the demo model)",
    )
    parser.add_argument("--output", type=Path, help="write the table to this file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    reference = load_model(arguments.folder, "float32", "cpu")
    taken = load_model(arguments.folder, "float32", "cpu")
    runner = ModelRunner(taken, num_slots=max(BATCH_SIZES), max_length=PROMPT_LENGTH + LONG)
    lines = [
        "| batch | runner, median (best) | of it packing | generate, median (best) |",
        "|---|---|---|---|",
    ]
    for batch_size in BATCH_SIZES:
        prompts = prompts_of(reference, batch_size)
        ours, packing, theirs = [], [], []
        for round_ in range(1 + ROUNDS):
            step, pack = runner_step(runner, prompts)
            generate = generate_step(reference, prompts)
            if round_:  # the first warms up
                ours.append(step)
                packing.append(pack)
                theirs.append(generate)
        lines.append(
            f"| {batch_size} | {statistics.median(ours):.2f} ({min(ours):.2f}) | {statistics.median(packing):.3f} "
            f"| {statistics.median(theirs):.2f} ({min(theirs):.2f}) |"
        )
    parameters = sum(p.numel() for p in reference.parameters())
    report = "\n".join(
        [
            f"# Decode step of {arguments.folder.name}: {parameters / 1e6:.2f} M parameters, float32, one thread",
            "",
            f"Milliseconds of CPU time per step, positions {PROMPT_LENGTH + SHORT} to {PROMPT_LENGTH + LONG}, "
            f"{ROUNDS} rounds in turns.",
            f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}.",
            "",
            *lines,
        ]
    )
    print(report)
    if arguments.output:
        arguments.output.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
