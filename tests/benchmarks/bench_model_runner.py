"""CPU time of one decode step: guideway's runner compared with ``model.generate`` of the same model, one thread.

    python tests/benchmarks/bench_model_runner.py [FOLDER] [--output results.md]

Both continue the same prompts greedily over the same positions (`SHORT` to `LONG` generated tokens), which excludes the
cost of prompts and of starting. They take turns; the figures are the median and the best of the rounds. CPU time is
counted, not wall time, so other work on the machine disturbs it less.

The step of the runner includes the bookkeeping of its cells: `KVCache` and its moves.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers
from guideway.api.forward import Append, ForwardStep
from guideway_demo_model import DemoModel
from guideway_engine.runners.transformers.model_loader import load_model
from guideway_engine.runners.transformers.model_runner import PackedModel
from guideway_engine.scheduling.kv_cache import KVCache
from transformers import PreTrainedModel

SHORT, LONG = 32, 160
MAX_LENGTH = 288
BATCHES = {
    "1": [64],
    "16": [64] * 16,
    "16, of 20 to 110 tokens": [20 + 6 * number for number in range(16)],
}
"""The lengths of the prompts, by name."""
NUM_CELLS = 8192
ROUNDS = 9


def prompts_of(model: PreTrainedModel, lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(model.config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def generate_step(model: PreTrainedModel, prompts: list[list[int]]) -> float:
    """Return the milliseconds of CPU time per further step of ``generate``: the slope between two lengths."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    seconds = {}
    for num_tokens in (SHORT, LONG):
        start = time.process_time()
        output = model.generate(  # type: ignore[operator]
            padded,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        seconds[num_tokens] = time.process_time() - start
        assert output.shape[1] == longest + num_tokens
    return 1e3 * (seconds[LONG] - seconds[SHORT]) / (LONG - SHORT)


class Sequences:
    """A runner and the cache of its sequences."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.runner = PackedModel(model, num_cells=NUM_CELLS, max_length=MAX_LENGTH)
        self.cache = KVCache(num_slots=64, num_cells=NUM_CELLS, max_length=MAX_LENGTH, enable_prefix_caching=False)

    def appends(self, batch: list[tuple[int, list[int]]]) -> list[Append]:
        """Return the appends of a step, after reserving room for them."""
        cache = self.cache
        for slot, token_ids in batch:
            cache.reserve(slot, len(token_ids))
        return [Append(cache.region(slot), cache.length(slot), token_ids, 1) for slot, token_ids in batch]

    def forward(self, batch: list[tuple[int, list[int]]]) -> list[int]:
        """Return the greedily drawn token of each sequence."""
        appends = self.appends(batch)
        first_move, moves = self.cache.moves()
        output = self.runner.forward(ForwardStep(appends, moves, first_move))
        self.cache.executed(first_move + len(moves))
        for slot, token_ids in batch:
            self.cache.advance(slot, token_ids)
        tokens: list[int] = output.logits.argmax(dim=-1).tolist()
        return tokens


def runner_step(sequences: Sequences, prompts: list[list[int]]) -> tuple[float, float, int]:
    """Return the milliseconds of CPU time per decode step with its greedy draw, the part of them for packing the step,
    and the largest number of different region sizes at once."""
    slots = [sequences.cache.allocate() for _ in prompts]
    tokens = sequences.forward(list(zip(slots, prompts, strict=True)))
    start = time.process_time()
    sizes = 0
    for step in range(LONG):
        if step == SHORT:
            start = time.process_time()
        tokens = sequences.forward([(slot, [token]) for slot, token in zip(slots, tokens, strict=True)])
        sizes = max(sizes, len({sequences.cache.region(slot).size for slot in slots}))
    total = (time.process_time() - start) / (LONG - SHORT)

    appends = sequences.appends([(slot, [0]) for slot in slots])
    start = time.process_time()
    for _ in range(LONG - SHORT):
        sequences.runner.pack(appends)
    packing = (time.process_time() - start) / (LONG - SHORT)
    for slot in slots:
        sequences.cache.release(slot)
    return 1e3 * total, 1e3 * packing, sizes


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
    sequences = Sequences(taken)
    lines = [
        "| batch | sizes of region | runner, median (best) | of it packing | generate, median (best) |",
        "|---|---|---|---|---|",
    ]
    for batch, lengths in BATCHES.items():
        prompts = prompts_of(reference, lengths)
        ours, packing, theirs = [], [], []
        for round_ in range(1 + ROUNDS):
            step, pack, sizes = runner_step(sequences, prompts)
            generate = generate_step(reference, prompts)
            if round_:  # the first warms up
                ours.append(step)
                packing.append(pack)
                theirs.append(generate)
        lines.append(
            f"| {batch} | {sizes} | {statistics.median(ours):.2f} ({min(ours):.2f}) | {statistics.median(packing):.3f} "
            f"| {statistics.median(theirs):.2f} ({min(theirs):.2f}) |"
        )
    name = "the demo model" if arguments.folder == DemoModel().path() else arguments.folder.name
    parameters = sum(p.numel() for p in reference.parameters())
    report = "\n".join(
        [
            f"# Decode step of {name}: {parameters / 1e6:.2f} M parameters, float32, one thread",
            "",
            f"Milliseconds of CPU time per step, tokens {SHORT} to {LONG} after the prompts "
            f"(of 64 tokens, or as said), {ROUNDS} rounds in turns.",
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
