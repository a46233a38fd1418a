"""The Triton device: each operation checked against the NumPy reference, then timed against xgrammar's kernels.

    python tests/benchmarks/gpu/bench_gpu_masks.py [--quick] [--out FILE]
    python tests/benchmarks/gpu/bench_gpu_masks.py --check-cpu

Needs a GPU, guideway, guideway-triton and xgrammar; with ``--check-cpu`` only the checks run, with small shapes in
Triton's interpreter. Kernels are timed by events on the device, clearing the L2 cache before each call, steps by the
host's clock; medians, with the ways in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from guideway.api import Draw, Payload
from guideway.api import bitmask as bits
from guideway.devices.numpy.device import NumpyDevice
from guideway_triton.backend import TritonDevice
from numpy.typing import NDArray
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
BATCHES, WIDTHS = (1, 8, 32, 64, 128), (131_072, 151_936)
MASKS = ("20 allowed", "100 refused", "half of each")
PURPOSE = 3

Way = Callable[[], object]


def masks(kind: str, rows: int, width: int) -> bits.Bitmask:
    """Return synthetic masks, ``int32[rows, words]``: real masks are of these two kinds, half of each."""
    rng = np.random.default_rng(0)
    allowed = np.zeros((rows, width), dtype=np.bool_)
    for number, row in enumerate(allowed):
        few = kind == "20 allowed" or (kind == "half of each" and number % 2 == 0)
        row[:] = not few
        row[rng.choice(width, 20 if few else 100, replace=False)] = few
    return bits.pack(allowed)


# Correctness


def check(device: TritonDevice, shapes: list[tuple[int, int]], dtypes: tuple[torch.dtype, ...]) -> int:
    """Compare the device's results with NumPy's; return the number of comparisons. Raises AssertionError."""
    compared = 0
    for rows, width in shapes:
        for dtype in dtypes:
            for kind in MASKS:
                compared += _check(device, rows, width, dtype, masks(kind, rows, width))
            compared += _check(device, rows, width, dtype, np.random.default_rng(1).integers(
                -(2**31), 2**31, (rows, bits.num_words(width) - 2)).astype(np.int32))  # fmt: skip
    return compared


def _check(device: TritonDevice, rows: int, width: int, dtype: torch.dtype, bitmask: bits.Bitmask) -> int:
    rng, numpy, num_tokens = np.random.default_rng(2), NumpyDevice(), width - 70
    logits = torch.from_numpy(rng.normal(size=(rows, width)).astype(np.float32)).to(dtype)
    x = logits.float().numpy()
    compared = 0
    at = rng.permutation(rows).astype(np.int32)
    at[::3] = -1  # padding, and rows without a mask

    def there() -> Tensor:
        return logits.to(device.device, copy=True)

    def put(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device.device)

    def same(what: str, got: Any, wanted: Any) -> None:
        nonlocal compared
        compared += 1
        got, wanted = np.asarray(got), np.asarray(wanted)
        wrong = np.argwhere(~((got == wanted) | (np.isnan(got) & np.isnan(wanted))))
        if len(wrong):
            place = tuple(wrong[0])
            raise AssertionError(
                f"{what} of {dtype}[{rows}, {width}]: {len(wrong)} of {got.size} are wrong, first at {place}: "
                f"{got[place]} instead of {wanted[place]}"
            )

    mask = put(bitmask), put(at)
    wanted = numpy.apply_bitmask(x.copy(), bitmask, at)
    same("apply_bitmask", device.apply_bitmask(there(), *mask).float().cpu(), wanted)
    strided = there().repeat_interleave(2, dim=1)[:, ::2]
    same("apply_bitmask of every other column", device.apply_bitmask(strided, *mask).float().cpu(), wanted)

    lists, chosen = bits.token_lists(bitmask, width)
    expected = numpy.apply_token_lists(x.copy(), lists, at[chosen])
    same("apply_token_lists", device.apply_token_lists(there(), lists, at[chosen]).float().cpu(), expected)

    factors = rng.choice([0.5, 1.0, 1.25, 2.0], rows).astype(np.float32)
    added = (rng.integers(0, rows, 40), rng.permutation(width)[:40], rng.normal(size=40).astype(np.float32))
    expected = numpy.warp_masked(x.copy(), bitmask, at, added, factors)
    got = device.warp_masked(there(), *mask, tuple(put(array) for array in added), put(factors))
    same("warp_masked", got.cpu(), expected)

    expected_columns, expected_best = numpy.masked_argmax(x, bitmask, at, num_tokens)
    columns, best = device.masked_argmax(there(), *mask, num_tokens)
    same("masked_argmax", columns.cpu(), expected_columns)
    same("the logits of masked_argmax", best.cpu(), expected_best)

    where = rng.integers(-(2**62), 2**62, rows), *rng.integers(0, 2**31, (2, rows)).astype(np.int32)
    uniforms = numpy.ops.uniform(*where, PURPOSE, width)
    same("uniform", device.ops.uniform(*(put(array) for array in where), PURPOSE, width).cpu(), uniforms)

    temperatures = rng.choice([0.0, 0.5, 1.0, 2.0], rows).astype(np.float32)
    draw = Draw(*(put(array) for array in (temperatures, *where)), PURPOSE)
    columns, best = device.masked_sample(there(), *mask, num_tokens, draw)
    same("the logits of masked_sample", best.cpu(), expected_best)
    warm = np.where(temperatures == 0, 1, temperatures)[:, None].astype(np.float64)
    scores = wanted[:, :num_tokens] / warm
    scores -= np.where(temperatures[:, None] == 0, 0, np.log(-np.log(uniforms[:, :num_tokens].astype(np.float64))))
    lacking = scores.max(axis=1) - scores[np.arange(rows), columns.cpu().numpy()]
    # if two scores are this close, rounding in float32 decides, and devices round logarithms differently
    same("masked_sample", lacking < 1e-5, np.ones(rows, dtype=np.bool_))
    return compared


# Times


def by_nvcc() -> tuple[Callable[[Tensor, Tensor], object] | None, str]:
    """Return xgrammar's CUDA kernel, or None and why not: importing it builds it with nvcc."""
    try:
        from xgrammar.kernels.apply_token_bitmask_inplace_cuda import apply_token_bitmask_inplace_cuda
    except Exception as error:  # any error of the build
        return None, f"xgrammar's CUDA kernel could not be built here: {type(error).__name__}: {error}"
    return apply_token_bitmask_inplace_cuda, ""


def kernel_times(device: TritonDevice, cases: Iterable[tuple[torch.dtype, int, int]]) -> list[str]:
    cuda, absent = by_nvcc()
    lines = [
        "| logits | width | batch | mask | ours | xgrammar (Triton) | xgrammar (CUDA) | fill_ | ours / floor |",
        "|" + "---|" * 9,
    ]
    for (dtype, width, batch), kind in product(cases, MASKS):
        host = masks(kind, batch, width)
        us = _kernel_times(device, dtype, host, width, cuda)
        floor = us["fill"] * (1 - bits.unpack(host, width).mean())
        of_cuda = f"{us['cuda']:.1f}" if "cuda" in us else "-"
        lines.append(
            f"| {str(dtype)[6:]} | {width} | {batch} | {kind} | {us['ours']:.1f} | {us['triton']:.1f} | {of_cuda} | "
            f"{us['fill']:.1f} | {us['ours'] / floor:.2f} |"
        )
        sys.stderr.write(lines[-1] + "\n")
    return [*lines, *(["", absent] if absent else [])]


def _kernel_times(
    device: TritonDevice,
    dtype: torch.dtype,
    bitmask: bits.Bitmask,
    width: int,
    cuda: Callable[[Tensor, Tensor], object] | None,
) -> dict[str, float]:
    """Return the microseconds of each way."""
    from triton.testing import do_bench
    from xgrammar.kernels.apply_token_bitmask_inplace_triton import apply_token_bitmask_inplace_triton

    logits = torch.randn(len(bitmask), width, device=device.device).to(dtype)
    rows = torch.arange(len(bitmask), dtype=torch.int32, device=device.device)
    words = torch.from_numpy(bitmask).to(device.device)
    ways: dict[str, Way] = {
        "ours": lambda: device.apply_bitmask(logits, words, rows),
        "triton": lambda: apply_token_bitmask_inplace_triton(logits, words),
        "fill": lambda: logits.fill_(-torch.inf),
    }
    if cuda is not None:
        ways["cuda"] = lambda: cuda(logits, words)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(3):
        for way, call in ways.items():
            found[way].append(1e3 * do_bench(call, warmup=10, rep=40, quantiles=[0.5]))
    return {way: statistics.median(times) for way, times in found.items()}


def step_times(device: TritonDevice, cases: Iterable[tuple[torch.dtype, int, int]], rounds: int) -> list[str]:
    lines = [
        "| logits | width | batch | mask | upload, fused draw | copy, xgrammar, softmax, multinomial | times |",
        "|" + "---|" * 7,
    ]
    for (dtype, width, batch), kind in product(cases, MASKS):
        ours, theirs = _step_times(device, dtype, masks(kind, batch, width), width, rounds)
        lines.append(
            f"| {str(dtype)[6:]} | {width} | {batch} | {kind} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} |"
        )
        sys.stderr.write(lines[-1] + "\n")
    return lines


def _step_times(
    device: TritonDevice, dtype: torch.dtype, bitmask: bits.Bitmask, width: int, rounds: int
) -> tuple[float, float]:
    """Return the microseconds of both ways."""
    from xgrammar.kernels.apply_token_bitmask_inplace_triton import apply_token_bitmask_inplace_triton

    batch = len(bitmask)
    logits = torch.randn(batch, width, device=device.device).to(dtype)
    rows = np.arange(batch, dtype=np.int32)
    numbers = [torch.arange(batch, device=device.device) for _ in range(3)]
    draw = Draw(torch.ones(batch, device=device.device), *numbers, purpose=PURPOSE)
    pinned = torch.from_numpy(bitmask).pin_memory()
    there = torch.empty_like(pinned, device=device.device)

    def ours() -> object:
        payload = device.upload(Payload(rows, {"bitmask": bitmask}))
        ids, _ = device.masked_sample(logits, payload.arrays["bitmask"], payload.rows, width, draw)
        return device.download({"ids": ids}).result()["ids"]

    def theirs() -> object:
        there.copy_(pinned, non_blocking=True)
        apply_token_bitmask_inplace_triton(logits, there)
        probabilities = torch.softmax(logits, dim=1, dtype=torch.float32)
        return torch.multinomial(probabilities, 1).cpu().numpy()

    found: dict[Way, list[float]] = {ours: [], theirs: []}
    for number in range(5 + rounds):
        for way, times in found.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            way()
            if number >= 5:
                times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(found[ours]), statistics.median(found[theirs])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check-cpu", action="store_true", help="only the checks, in Triton's interpreter")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--rounds", type=int, default=101, help="of each step")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there too")
    options = parser.parse_args()
    if options.check_cpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the device imports its kernels
        compared = check(TritonDevice("cpu"), [(2, 1000), (4, 2100)], (torch.float32, torch.bfloat16))
        sys.stdout.write(f"{compared} comparisons with the NumPy reference, all right\n")
        return

    device = TritonDevice("cuda")
    compared = check(device, [(1, 1000), (5, 32_001), (3, 151_936)], (torch.float32, torch.float16, torch.bfloat16))
    batches, widths = ((1, 64), (151_936,)) if options.quick else (BATCHES, WIDTHS)
    cases = list(product(DTYPES, widths, batches))
    kernels = kernel_times(device, cases)
    steps = step_times(device, cases, options.rounds)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "xgrammar"))
    text = "\n".join([
        "# Masks and draws on a GPU",
        "",
        f"`python tests/benchmarks/gpu/bench_gpu_masks.py{' --quick' * options.quick}`, {time.strftime('%Y-%m-%d')}; "
        f"{torch.cuda.get_device_name()}, {packages}. {compared} comparisons with the NumPy reference, all right.",
        "",
        "## Applying a bitmask: microseconds on the device",
        "",
        "The floor is the time of `fill_` on the same logits times the share of them that is forbidden. Where 100 are "
        "refused it is nothing, and the last column means nothing.",
        "",
        *kernels,
        "",
        "## A step, from a bitmask on the host to token ids on the host: microseconds of the clock",
        "",
        "xgrammar's bitmask lies in pinned memory already; the upload has to copy it, as the host may change it.",
        "",
        *steps,
    ])  # fmt: skip
    sys.stdout.write(text + "\n")
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
