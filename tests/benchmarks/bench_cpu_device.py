"""Masks on the CPU device, compared with xgrammar's kernel, the torch device and a bare fill.

    python tests/benchmarks/bench_cpu_device.py [--rounds 21] [--threads 1 2] [--write]

All process the same rows in turns, in changing order, over logits that were just written, with other masks in each
round, so that no branch is predicted from memory: 20 tokens allowed, 100 refused, and half of each kind like real masks
(of llguidance for JSON schemas, half allow a few hundred tokens in runs, and half refuse some 3,000 scattered ones).
Medians of the CPU time of the process, for all its threads, and of wall time.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from guideway.api import bitmask as bits
from guideway.devices.torch.device import TorchDevice
from guideway_cpu.device import CpuDevice
from numpy.typing import NDArray
from torch import Tensor
from xgrammar import apply_token_bitmask_inplace

RESULTS = Path(__file__).parent / "results" / "cpu_device.md"
WIDTHS, BATCHES, DTYPES = (131072, 151936), (1, 8, 32, 128), (torch.float32, torch.bfloat16)
SETS = 5
"""Sets of masks of each kind and size."""

DEVICE, TORCH = CpuDevice(), TorchDevice()
Way = Callable[[Tensor, Tensor, Tensor], object]
MASKING: dict[str, Way] = {
    "cpu": DEVICE.apply_bitmask,
    "xgrammar": lambda logits, bitmask, _: apply_token_bitmask_inplace(logits, bitmask, backend="cpu"),
    "torch": TORCH.apply_bitmask,
    "fill_": lambda logits, _, __: logits.fill_(-torch.inf),
}
CHOOSING: dict[str, Way] = {
    "masked_argmax": lambda logits, bitmask, rows: DEVICE.masked_argmax(logits, bitmask, rows, logits.shape[1]),
    "apply, argmax": lambda logits, bitmask, rows: DEVICE.ops.argmax(DEVICE.apply_bitmask(logits, bitmask, rows)),
    "argmax alone": lambda logits, _, __: DEVICE.ops.argmax(logits),
}


def some(width: int, num: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    tokens = np.zeros(width, dtype=np.bool_)
    tokens[rng.choice(width, num, replace=False)] = True
    return tokens


def in_runs(width: int, num: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    tokens = np.zeros(width, dtype=np.bool_)
    while tokens.sum() < num:
        first = rng.integers(width)
        tokens[first : first + rng.integers(1, 40)] = True
    return tokens


MASKS: dict[str, Callable[[int, int, np.random.Generator], NDArray[np.bool_]]] = {
    "20 allowed": lambda _, width, rng: some(width, 20, rng),
    "100 refused": lambda _, width, rng: ~some(width, 100, rng),
    "as real": lambda row, width, rng: ~some(width, 3200, rng) if row % 2 else in_runs(width, 350, rng),
}


@dataclass(frozen=True)
class Times:
    """Medians in microseconds."""

    cpu: float
    wall: float


def measure(ways: dict[str, Way], masks: list[Tensor], width: int, dtype: torch.dtype, rounds: int) -> dict[str, Times]:
    rows = torch.arange(len(masks[0]), dtype=torch.int32)
    logits = torch.zeros(len(rows), width, dtype=dtype)
    samples: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(1 + rounds):
        names = list(ways)
        for way in names[number % len(ways) :] + names[: number % len(ways)]:
            logits.zero_()
            wall, cpu = time.perf_counter(), time.process_time()
            ways[way](logits, masks[number % len(masks)], rows)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if number:
                samples[way].append((1e6 * cpu, 1e6 * wall))
    return {way: Times(*map(statistics.median, zip(*pairs, strict=True))) for way, pairs in samples.items()}


def masks_of(kind: str, width: int, batch: int) -> list[Tensor]:
    rng = np.random.default_rng(batch)
    return [
        torch.from_numpy(bits.pack(np.stack([MASKS[kind](row, width, rng) for row in range(batch)])))
        for _ in range(SETS)
    ]


Cells = dict[tuple[torch.dtype, int, int, str], dict[str, Times]]


@dataclass(frozen=True)
class Figure:
    """A required ratio of two ways and its limits, for one thread and batches of 8 or more."""

    masks: str
    dtypes: tuple[torch.dtype, ...]
    ways: tuple[str, str]
    least: float = 0.0
    most: float = math.inf

    def verdict(self, cells: Cells) -> str:
        over, under = self.ways
        ratios = {
            (dtype, width, batch): times[over].cpu / times[under].cpu
            for (dtype, width, batch, kind), times in cells.items()
            if batch >= 8 and kind == self.masks and dtype in self.dtypes
        }
        (dtype, width, batch), worst = (min if self.least else max)(ratios.items(), key=lambda item: item[1])
        met = sum(self.least <= ratio <= self.most for ratio in ratios.values())
        asked = f"at least {self.least:g}" if self.least else f"at most {self.most:g}"
        dtypes = ", ".join(str(dtype)[6:] for dtype in self.dtypes)
        where = f"{str(dtype)[6:]}, {width} wide, batch {batch}"
        return (
            f"| {self.masks}, {dtypes} | {over} / {under} | {asked} | {worst:.2f} ({where}) | {met} of {len(ratios)} |"
        )


FIGURES = [
    Figure("20 allowed", DTYPES[:1], ("xgrammar", "cpu"), least=7),
    Figure("20 allowed", DTYPES[1:], ("xgrammar", "cpu"), least=12),
    Figure("20 allowed", DTYPES, ("cpu", "fill_"), most=1.15),
    Figure("100 refused", DTYPES, ("xgrammar", "cpu"), least=1),
    Figure("100 refused", DTYPES, ("cpu", "fill_"), most=0.3),
]


def line(cells: list[object]) -> str:
    return f"| {' | '.join(f'{cell:.1f}' if isinstance(cell, float) else str(cell) for cell in cells)} |"


def table(header: list[object]) -> list[str]:
    """Return the first two lines of a table."""
    return [line(header), "|" + "---|" * len(header)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    walls = [f"{way}, wall" for way in ("cpu", "fill_")]
    masking = table(["threads", "logits", "width", "batch", "masks", *MASKING, *walls, "xgrammar / cpu", "cpu / fill_"])
    choosing = table(["logits", "width", "batch", "masks", *CHOOSING])
    single: Cells = {}
    for width in WIDTHS:
        for batch in BATCHES:
            for kind in MASKS:
                masks = masks_of(kind, width, batch)
                for dtype in DTYPES:
                    place = (str(dtype)[6:], width, batch, kind)
                    for threads in options.threads:
                        torch.set_num_threads(threads)
                        times = measure(MASKING, masks, width, dtype, options.rounds)
                        cpu = {way: times[way].cpu for way in MASKING}
                        ratios = f"{cpu['xgrammar'] / cpu['cpu']:.2f}", f"{cpu['cpu'] / cpu['fill_']:.2f}"
                        wall = times["cpu"].wall, times["fill_"].wall
                        masking.append(line([threads, *place, *cpu.values(), *wall, *ratios]))
                        sys.stderr.write(masking[-1] + "\n")
                        if threads == 1:
                            single[dtype, width, batch, kind] = times
                    torch.set_num_threads(1)
                    times = measure(CHOOSING, masks, width, dtype, options.rounds)
                    choosing.append(line([*place, *(times[way].cpu for way in CHOOSING)]))
    text = "\n".join([
        "# Masks on the CPU device",
        "",
        f"`python tests/benchmarks/bench_cpu_device.py --rounds {options.rounds} --threads "
        f"{' '.join(map(str, options.threads))} --write`, {time.strftime('%Y-%m-%d')}",
        "",
        f"Microseconds of CPU time of all threads for the whole batch, and of wall time, medians of {options.rounds} "
        "rounds in turns, each with other masks. `fill_` writes every logit once.",
        "",
        *table(["asked with one thread and a batch of 8 or more", "ratio", "asked", "worst", "met"]),
        *(figure.verdict(single) for figure in FIGURES if single),
        "",
        *masking,
        "",
        "One thread, the token of each row as greedy decoding takes it: fused, or the mask and then the largest.",
        "",
        *choosing,
        "",
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("torch", "numba", "numpy", "xgrammar"))
        + f"; {platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} before.",
    ])  # fmt: skip
    sys.stdout.write(text + "\n")
    if options.write:
        RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
