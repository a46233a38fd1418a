"""Applying a bitmask to logits on the CPU: the torch device, xgrammar's kernel, unpacking and a bare fill.

    python tests/benchmarks/bench_apply_mask.py [--corpora FOLDER] [--rounds 21] [--write]

All four process the same rows in turns, in changing order; figures are medians of microseconds of CPU time for the
whole batch. Masks are synthetic, with 20 tokens allowed or 100 refused; given the folder of
``jsonschemabench_sample.jsonl``, also real ones, which llguidance fills along valid instances (for the larger
vocabulary their words are repeated).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import mistral_common
import numpy as np
import torch
from guideway.api import GuidewayError, JsonSchema
from guideway.api import bitmask as bits
from guideway.devices.torch.device import TorchDevice
from guideway.vocabulary import build_vocabulary
from guideway_llguidance.strategy import Strategy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from torch import Tensor
from xgrammar.kernels.apply_token_bitmask_inplace_cpu import apply_token_bitmask_inplace_cpu

CORPUS = "jsonschemabench_sample.jsonl"
RESULTS = Path(__file__).parent / "results" / "apply_mask.md"
WIDTHS, BATCHES, DTYPES = (131072, 151936), (1, 8, 32, 128), (torch.float32, torch.bfloat16)
MASKS_PER_INSTANCE, MAX_TOKENS = 8, 300

DEVICE = TorchDevice()


def unpacking(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    forbidden = torch.zeros(logits.shape, dtype=torch.bool)
    forbidden.index_copy_(0, rows.long(), ~DEVICE.ops.unpack_bitmask(bitmask, logits.shape[1]))
    logits.masked_fill_(forbidden, -torch.inf)


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "built-in": DEVICE.apply_bitmask,
    "xgrammar": lambda logits, bitmask, _: apply_token_bitmask_inplace_cpu(logits, bitmask),
    "unpacking": unpacking,
    "fill_": lambda logits, _, __: logits.fill_(-torch.inf),
}


def made_up(width: int, batch: int, num: int, *, allowed: bool) -> bits.Bitmask:
    rng = np.random.default_rng(0)
    tokens = np.full((batch, width), not allowed)
    for row in tokens:
        row[rng.choice(width, num, replace=False)] = allowed
    return bits.pack(tokens)


def real_masks(folder: Path) -> bits.Bitmask:
    """Return masks at random places of valid instances, in random order."""
    path = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    vocabulary = build_vocabulary(Tekkenizer.from_file(path))
    strategy, rng = Strategy(vocabulary, {}), np.random.default_rng(0)
    found = []
    for line in (folder / CORPUS).read_text("utf-8").splitlines():
        row = json.loads(line)
        try:
            matcher = strategy.compile(JsonSchema(row["schema"])).matcher(vocabulary.stop_token_ids)
        except GuidewayError:
            continue
        masks = []
        for token_id in (vocabulary.encode(json.dumps(row["valid"][0]).encode()) or [])[:MAX_TOKENS]:
            masks.append(bits.allocate(1, len(vocabulary)))
            matcher.fill_bitmask(masks[-1], 0)
            if not matcher.accept((token_id,)):
                break
        found += [masks[i] for i in rng.permutation(len(masks))[:MASKS_PER_INSTANCE]]
    shuffled: bits.Bitmask = np.concatenate(found)[rng.permutation(len(found))]
    return shuffled


def measure(bitmask: bits.Bitmask, width: int, dtype: torch.dtype, rounds: int) -> list[float]:
    """Return the median microseconds of each way."""
    words, rows = torch.from_numpy(bitmask), torch.arange(len(bitmask), dtype=torch.int32)
    logits = torch.zeros(len(bitmask), width, dtype=dtype)
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(1 + rounds):
        for way in list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]:
            logits.zero_()
            start = time.thread_time()
            WAYS[way](logits, words, rows)
            if number:
                samples[way].append(1e6 * (time.thread_time() - start))
    return [statistics.median(times) for times in samples.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpora", type=Path, metavar="FOLDER", help=f"the folder of {CORPUS}")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    real = None if options.corpora is None else real_masks(options.corpora)
    lines = [f"| logits | width | batch | masks | {' | '.join(WAYS)} |", "|" + "---|" * (4 + len(WAYS))]
    for dtype in DTYPES:
        for width in WIDTHS:
            for batch in BATCHES:
                masks = {
                    "20 allowed": made_up(width, batch, 20, allowed=True),
                    "100 refused": made_up(width, batch, 100, allowed=False),
                }
                if real is not None:
                    masks["real"] = np.tile(real[:batch], 2)[:, : bits.num_words(width)].copy()
                for name, bitmask in masks.items():
                    cells = " | ".join(f"{value:.0f}" for value in measure(bitmask, width, dtype, options.rounds))
                    lines.append(f"| {str(dtype)[6:]} | {width} | {batch} | {name} | {cells} |")
                    sys.stderr.write(lines[-1] + "\n")
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "xgrammar", "llguidance"))
    text = "\n".join([
        "# Applying a bitmask to logits on the CPU",
        "",
        f"`python tests/benchmarks/bench_apply_mask.py --corpora FOLDER --rounds {options.rounds} --write`, "
        f"{time.strftime('%Y-%m-%d')}",
        "",
        f"Microseconds of CPU time for the whole batch, one thread, medians of {options.rounds} rounds in turns. "
        "`fill_` writes every logit once and is what memory allows where most of a row is refused.",
        "",
        *lines,
        "",
        f"Python {platform.python_version()}, {packages}; {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f}.",
    ])  # fmt: skip
    sys.stdout.write(text + "\n")
    if options.write:
        RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
