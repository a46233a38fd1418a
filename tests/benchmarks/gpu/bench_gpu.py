"""guideway on one GPU, in ten minutes: masks, fused draws, the engine, and that nothing waits for the device.

    python tests/benchmarks/gpu/bench_gpu.py [--parts masks draws engine] [--out FILE]
    python tests/benchmarks/gpu/bench_gpu.py --interpret

Needs torch, triton and transformers; README.md explains how to get the rest as wheels. With ``--interpret`` everything
runs small, without a GPU, in Triton's interpreter, to test the script; its times mean nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parent)]

PARTS = ("masks", "draws", "engine")
PUBLISHED = {1: 9.7, 64_000: 38.8, 127_000: 26.3}
"""Microseconds that xgrammar publishes for its CUDA kernel on an H100, 64 rows of 128,000 float32 logits, by the number
of refused tokens in each row."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
MODIFIERS = ("hello", "green_list", "gumbel", "aligned")
"""The tutorial's, and test probes: one that reads the history, one that owns the draw, one that emits feedback."""


@dataclass(frozen=True)
class Size:
    """The amount of work."""

    device: str
    rows: int
    width: int
    refused: Sequence[int]
    """Numbers of refused tokens in each row, of `width` tokens."""
    batch: int
    num_tokens: int


ON_GPU = Size("cuda", 64, 128_000, tuple(PUBLISHED), 64, 64)
INTERPRETED = Size("cpu", 2, 3000, (1, 1500, 2990), 3, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--interpret", action="store_true", help="without a GPU, small, in Triton's interpreter")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there too")
    options = parser.parse_args()
    size = INTERPRETED if options.interpret else ON_GPU
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the device imports its kernels
    began, text = time.monotonic(), ""
    for part in (header, *({"masks": masks, "draws": draws, "engine": engine}[part] for part in options.parts)):
        for line in chain(part(size), [""]):
            text += f"{line}\n"
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()  # keep the measurements if the next part fails
    text += f"{time.monotonic() - began:.0f} s in all.\n"
    sys.stdout.write(text.splitlines()[-1] + "\n")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


def header(size: Size) -> list[str]:
    import torch

    where = torch.cuda.get_device_name() if size.device == "cuda" else "Triton's interpreter: times mean nothing"
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "transformers", "guideway"))
    return ["# guideway on one GPU", "", f"`python tests/benchmarks/gpu/bench_gpu.py`; {where}; {packages}."]


# Masks and draws against the bytes that they have to move


def masks(size: Size) -> Iterator[str]:
    """Yield xgrammar's own table, with ours added."""
    from bench_gpu_masks import by_nvcc
    from guideway.devices.numpy.device import NumpyDevice
    from guideway_triton.backend import TritonDevice

    device, numpy = TritonDevice(size.device), NumpyDevice()
    cuda, absent = by_nvcc() if size.device == "cuda" else (None, "xgrammar's CUDA kernel needs a GPU.")
    rate = write_rate(size)
    yield f"## Masks: microseconds for {size.rows} rows of {size.width} float32 logits"
    yield ""
    yield (
        f"The limit is the time to read the bitmask and write -inf to all that is refused, at the {rate / 1e12:.3f} "
        "TB/s that `fill_` of a large array writes here."
    )
    yield ""
    yield "| refused | ours | limit | ours / limit | xgrammar (CUDA) here | xgrammar on an H100, as published |"
    yield "|---|---|---|---|---|---|"
    for refused in size.refused:
        logits, bitmask, rows = inputs(size, refused)
        expected = numpy.apply_bitmask(logits.cpu().numpy().copy(), bitmask, rows)
        there, where = on(device, bitmask), on(device, rows)
        got = device.apply_bitmask(logits.clone(), there, where).cpu().numpy()
        if not np.array_equal(got, expected):
            raise AssertionError(f"the mask that refuses {refused} is not what NumPy makes of it")
        ours = microseconds(size, lambda x=logits, b=there, r=where: device.apply_bitmask(x, b, r))
        limit = 1e6 * (bitmask.nbytes + 4 * refused * size.rows) / rate
        theirs = "-" if cuda is None else f"{microseconds(size, lambda x=logits, b=there: cuda(x, b)):.1f}"
        published = PUBLISHED.get(refused, "-")
        yield f"| {refused} | {ours:.1f} | {limit:.1f} | {ours / limit:.2f} | {theirs} | {published} |"
    if absent:
        yield ""
        yield absent


def draws(size: Size) -> Iterator[str]:
    """Measure a mask and a draw in one pass, and as separate steps."""
    import torch
    from guideway.api import Draw
    from guideway_triton.backend import TritonDevice

    device = TritonDevice(size.device)
    rate = read_rate(size)
    yield f"## Mask, temperature and draw: microseconds for {size.rows} rows of {size.width} float32 logits"
    yield ""
    yield (
        "The limit is the time to read the bitmask and the logits that are allowed, at the "
        f"{rate / 1e12:.3f} TB/s at which `sum` reads a large array here. Apart: mask, softmax, multinomial."
    )
    yield ""
    yield "| refused | fused | limit | fused / limit | apart |"
    yield "|---|---|---|---|---|"
    for refused in size.refused:
        logits, bitmask, rows = inputs(size, refused)
        there, where = on(device, bitmask), on(device, rows)
        numbers = [torch.arange(size.rows, device=device.device) for _ in range(3)]
        draw = Draw(torch.ones(size.rows, device=device.device), *numbers, purpose=3)

        def fused(x: Any = logits, b: Any = there, r: Any = where, d: Draw = draw) -> Any:
            return device.masked_sample(x, b, r, size.width, d)

        def apart(x: Any = logits, b: Any = there, r: Any = where) -> Any:
            return torch.multinomial(torch.softmax(device.apply_bitmask(x, b, r), dim=1), 1)

        chosen = fused()[0].cpu().numpy()
        words, bits = np.divmod(chosen, 32)
        if not (bitmask[np.arange(size.rows), words].view(np.uint32) >> bits.astype(np.uint32) & 1).all():
            raise AssertionError(f"a token was drawn that the mask of {refused} refuses")
        ours, theirs = microseconds(size, fused), microseconds(size, apart)
        limit = 1e6 * (bitmask.nbytes + 4 * (size.width - refused) * size.rows) / rate
        yield f"| {refused} | {ours:.1f} | {limit:.1f} | {ours / limit:.2f} | {theirs:.1f} |"


def inputs(size: Size, refused: int) -> tuple[Any, Any, Any]:
    """Return logits on the device; masks that refuse `refused` tokens of each row, different ones in each; and their
    rows."""
    import torch
    from guideway.api import bitmask as bits

    rng = np.random.default_rng(0)
    allowed = np.ones((size.rows, size.width), dtype=np.bool_)
    for row in allowed:
        row[rng.choice(size.width, refused, replace=False)] = False
    logits = torch.from_numpy(rng.normal(size=allowed.shape).astype(np.float32)).to(size.device)
    return logits, bits.pack(allowed), np.arange(size.rows, dtype=np.int32)


def on(device: Any, array: Any) -> Any:
    import torch

    return torch.from_numpy(array).to(device.device)


def write_rate(size: Size) -> float:
    """Return bytes per second."""
    import torch

    large = torch.empty((1 << 28) if size.device == "cuda" else (1 << 20), device=size.device)
    return 4e6 * large.numel() / microseconds(size, lambda: large.fill_(1.0))


def read_rate(size: Size) -> float:
    import torch

    large = torch.zeros((1 << 28) if size.device == "cuda" else (1 << 20), device=size.device)
    return 4e6 * large.numel() / microseconds(size, large.sum)


def microseconds(size: Size, call: Callable[[], object]) -> float:
    """Measure by events on the device, clearing the L2 cache before each call; in the interpreter one call by the
    clock."""
    if size.device == "cuda":
        from triton.testing import do_bench

        return float(1e3 * statistics.median(do_bench(call, warmup=10, rep=40, quantiles=[0.5]) for _ in range(3)))
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


# The engine


def engine(size: Size) -> Iterator[str]:
    """Compare the same requests here and on the CPU; steps that wait for the device raise."""
    reference, _ = generated(size, "torch", "cpu")
    with waiting_refused(size) as watched:
        found, seconds = generated(size, "triton", size.device)
    tokens = sum(len(ids) for ids, _ in found)
    if failed := [error for _, error in found if error]:
        raise AssertionError(f"{len(failed)} of {len(found)} requests failed, the first with: {failed[0]}")
    given = [params for _, params in requests(len(found) // len(requests(1, 1)), size.num_tokens)]
    pairs = [
        ids == expected
        for params, (ids, _), (expected, _) in zip(given, found, reference, strict=True)
        if params["temperature"] == 0 or "gumbel" in params.get("modifiers", ())
    ]
    yield f"## The engine on `{size.device}`: the demo model, two strategies, modifiers {', '.join(MODIFIERS)}"
    yield ""
    yield (
        f"{len(found)} requests of {len(requests(1, 1))} kinds at once: {tokens} tokens in {seconds:.2f} s by the "
        f"clock. {sum(pairs)} of the {len(pairs)} that are greedy, or whose draw is a modifier's, have the tokens that "
        "the torch device gives them on the CPU. Other draws it makes in one pass, by other random numbers."
    )
    yield ""
    yield (
        f"{watched.num_steps} steps from logits to the download, no operation of which "
        + ("waited for the device." if size.device == "cuda" else "would have waited for a GPU.")
    )


def requests(number: int, num_tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Return `number` requests of each kind: a prompt, and sampling parameters."""
    from guideway import JsonSchema, Regex

    kinds: list[dict[str, Any]] = [
        {"constraint": JsonSchema(SCHEMA, strategy="llguidance")},
        {"constraint": JsonSchema(SCHEMA, strategy="xgrammar")},
        {"constraint": JsonSchema(SCHEMA), "temperature": 1.0},
        {"constraint": Regex("[a-z ]{8,40}"), "modifiers": {"hello": {"letter": "e"}}},
        {"modifiers": {"green_list": {"key": 3, "delta": 4.0}}, "repetition_penalty": 1.2},
        {"modifiers": {"gumbel": {}}, "temperature": 1.5, "top_k": 40},
        {"constraint": Regex("[0-9]{4,40}"), "modifiers": {"aligned": {}}, "temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "logprobs": 2},
    ]
    plain: dict[str, Any] = {"max_tokens": num_tokens, "temperature": 0.0}
    prompts = [f"Customer {i}: Anna Berg, aged {20 + i}." for i in range(number)]
    return [(prompt, plain | {"seed": i} | kind) for i, prompt in enumerate(prompts) for kind in kinds]


def generated(size: Size, backend: str, device: str) -> tuple[list[tuple[list[int], str | None]], float]:
    """Return the token ids and the error of each request, and the seconds of the second run."""
    from guideway import Engine, SamplingParams

    from tests.support.distributions import install

    number = max(1, size.batch // len(requests(1, 1)))
    asked = requests(number, size.num_tokens)
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), "probes", {f"modifier.{name}": "tests.support.probes" for name in MODIFIERS[1:]})
        sys.path.insert(0, folder)
        try:
            with Engine(
                "demo",
                grammar=("llguidance", "xgrammar"),
                modifiers=MODIFIERS,
                device_backend=backend,
                device=device,
                dtype="float32",
                max_num_seqs=len(asked),
                max_model_len=256,
            ) as running:
                params = [SamplingParams(**given) for _, given in asked]
                prompts = [prompt for prompt, _ in asked]
                running.generate(prompts, params)  # compiles kernels
                start = time.monotonic()
                results = running.generate(prompts, params)
                return [(list(result.token_ids), result.error) for result in results], time.monotonic() - start
        finally:
            sys.path.remove(folder)


@dataclass
class Watched:
    """The number of steps that were watched."""

    num_steps: int = 0


@contextmanager
def waiting_refused(size: Size) -> Iterator[Watched]:
    """Raise from operations that wait for the device between the logits and the download of a step, which fails its
    requests. Without a GPU these are operations that need values on the host: a number, the places that are not
    zero."""
    import torch
    from guideway.pipeline import Pipeline
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoValues(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if waits(func, args):
                raise RuntimeError(f"{func} would wait for a GPU")
            return func(*args, **(kwargs or {}))

    @contextmanager
    def on_gpu() -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    run, watched = Pipeline.run, Watched()

    def guarded(self: Pipeline, *args: Any, **kwargs: Any) -> Any:
        watched.num_steps += 1
        with on_gpu() if size.device == "cuda" else NoValues():
            return run(self, *args, **kwargs)

    Pipeline.run = guarded  # type: ignore[method-assign]
    try:
        yield watched
    finally:
        Pipeline.run = run  # type: ignore[method-assign]


def waits(operator: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a call of an operator of torch would need values on the host if its tensors were on a GPU."""
    import torch

    name = operator._schema.name
    if name == "aten::index":
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return name in WAITING or (name == "aten::where" and len(args) == 1)


WAITING = frozenset(
    f"aten::{name}"
    # composite operators are not decomposed in inference mode
    for name in ("_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "nonzero_numpy")
)


if __name__ == "__main__":
    main()
