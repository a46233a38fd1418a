"""Whole models on one GPU: the cost of a constraint per decode step, and prompts of many lengths through encoders.

    python tests/benchmarks/gpu/bench_gpu_models.py [--parts decoding encoding] [--rounds 9] [--out FILE]
    python tests/benchmarks/gpu/bench_gpu_models.py --device cpu

Decoding uses the pinned model (`tests/benchmarks/pinned_model.py`) in bfloat16, greedily and at temperature 1, freely
and under a schema of long lists. Encoding uses encoders with random weights, of the sizes of MiniLM and BERT. Wall
time, all ways in turns; medians, with the smallest and the largest. With ``--device cpu`` everything is small, to test
the script.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

PARTS = ("decoding", "encoding")
ATTENTION = ("sdpa", "packed", "flex")
LISTS = {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 70}
"""No list ends within the timed steps."""
MAX_TOKENS = 480
SIZES = {"MiniLM, 6 layers of 384": (384, 6, 12, 1536), "BERT, 12 layers of 768": (768, 12, 12, 3072)}
"""Width, layers, heads and inner width."""

Ways = dict[str, Callable[[], float]]
"""Functions that return the amount of their work, by which their seconds are divided."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="of torch (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--attention", nargs="+", choices=ATTENTION, default=ATTENTION, help="of encoders")
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "guideway-benchmarks", metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there too")
    options = parser.parse_args()
    text = ""
    for part in (header, *({"decoding": decoding, "encoding": encoding}[part] for part in options.parts)):
        for line in chain(part(options), [""]):
            text += f"{line}\n"
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()  # keep the measurements if the rest fails
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


def header(options: argparse.Namespace) -> list[str]:
    on_gpu = options.device.startswith("cuda")
    where = torch.cuda.get_device_name() if on_gpu else "a CPU, where times mean nothing"
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "guideway"))
    return [
        "# Models on one GPU",
        "",
        f"`python tests/benchmarks/gpu/bench_gpu_models.py --rounds {options.rounds}`; {where}; {packages}.",
    ]


def in_turns(ways: Ways, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per unit of work of each way, by round. Each way runs once before."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        began = time.perf_counter()
        for name, call in ways.items():
            start = time.perf_counter()
            done = call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                found[name].append((time.perf_counter() - start) / done)
        sys.stderr.write(f"round {number} of {rounds}: {time.perf_counter() - began:.1f} s\n")
    return found


def spread(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


# Decoding


def decoding(options: argparse.Namespace) -> Iterator[str]:
    """Measure the milliseconds of a step, and the part of the constraint."""
    from guideway import Engine, JsonSchema, SamplingParams
    from pinned_model import pinned_model
    from transformers import AutoModelForCausalLM

    on_gpu = options.device.startswith("cuda")
    batch, num_tokens = (64, 64) if on_gpu else (2, 4)
    dtype = "bfloat16" if on_gpu else "float32"
    folder = pinned_model(options.models)
    prompts = np.random.default_rng(0).integers(1000, 100_000, (batch, 32)).tolist()
    ways: Ways = {}
    with ExitStack() as stack:
        for backend in ("torch", "triton") if on_gpu else ("torch",):
            engine = stack.enter_context(
                Engine(
                    str(folder),
                    device_backend=backend,
                    device=options.device,
                    grammar=("llguidance",),
                    dtype=dtype,
                    max_num_seqs=batch,
                    max_model_len=32 + MAX_TOKENS,
                    enable_prefix_caching=False,
                )
            )
            for temperature in (0.0, 1.0):
                for constraint in (None, JsonSchema(LISTS)):
                    params = [
                        SamplingParams(
                            max_tokens=MAX_TOKENS,
                            ignore_eos=constraint is None,
                            temperature=temperature,
                            seed=seed,
                            constraint=constraint,
                        )
                        for seed in range(batch)
                    ]

                    def generate(engine: Engine = engine, params: list[SamplingParams] = params) -> float:
                        running = [engine.submit(*each, wait=False) for each in zip(prompts, params, strict=True)]
                        for _ in range(num_tokens):
                            engine.step()
                        for generation in running:
                            generation.abort()
                        results = [generation.wait() for generation in running]
                        if failed := [result.error for result in results if result.error is not None]:
                            raise AssertionError(f"{len(failed)} requests failed, the first with: {failed[0]}")
                        return sum(len(result.token_ids) for result in results) / batch

                    ways[f"{backend}, {temperature:g}, {'free' if constraint is None else 'constrained'}"] = generate
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(options.device).eval()
        ids = torch.tensor(prompts, device=options.device)
        model.generation_config.eos_token_id = None

        def theirs(*, sample: bool) -> float:
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=sample,
                top_k=0 if sample else None,
                pad_token_id=0,
            )
            return num_tokens

        ways["transformers, 0, free"] = lambda: theirs(sample=False)
        ways["transformers, 1, free"] = lambda: theirs(sample=True)
        seconds = in_turns(ways, options.rounds)
    yield f"## Decoding: milliseconds of a step, {batch} sequences, a vocabulary of 131,072 tokens"
    yield ""
    yield (
        f"Seconds of {num_tokens} steps, from prompts of 32 tokens on, over the tokens that a sequence has then, so "
        "all there is to begin with is in it. Constrained over free is the median of the rounds' ratios."
    )
    yield ""
    yield "| | temperature | free | constrained | constrained over free |"
    yield "|---|---|---|---|---|"
    for name, free in seconds.items():
        who, temperature, kind = name.split(", ")
        if kind != "free":
            continue
        constrained = seconds.get(f"{who}, {temperature}, constrained")
        shown = "-" if constrained is None else spread([1e3 * s for s in constrained])
        ratio = "-" if constrained is None else spread([c / f for c, f in zip(constrained, free, strict=True)])
        who = "`transformers.generate`" if who == "transformers" else f"guideway, device `{who}`"
        yield f"| {who} | {temperature} | {spread([1e3 * s for s in free])} | {shown} | {ratio} |"


# Encoding


def encoding(options: argparse.Namespace) -> Iterator[str]:
    """Measure the milliseconds for texts of many lengths."""
    from guideway_engine.prefill.forward import Forward, Ragged
    from transformers import BertConfig, BertModel

    on_gpu = options.device.startswith("cuda")
    count = 512 if on_gpu else 8
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(37) - 0.32, 0.8, count), 2, 256).astype(np.int32)
    ids = [rng.integers(1000, 30_000, length) for length in lengths]
    batch = Ragged(np.concatenate(ids), lengths)
    sizes = SIZES if on_gpu else {"small": (64, 2, 2, 128)}
    yield f"## Encoding: milliseconds for {count} texts, from token ids to vectors"
    yield ""
    yield (
        f"Texts of {lengths.min()} to {lengths.max()} tokens, {lengths.mean():.0f} on average. Padded is the model of "
        "transformers with SDPA, sorted by length, 32 to a batch, each padded to its longest. The difference is the "
        "largest of any number from what the model gives in float32 on the CPU, whose largest is about 4."
    )
    yield ""
    yield f"| encoder | type | padded | {' | '.join(f'`{name}`' for name in options.attention)} | largest difference |"
    yield "|---" * (4 + len(options.attention)) + "|"
    for name, (width, layers, heads, inner) in sizes.items():
        torch.manual_seed(0)
        config = BertConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner
        )
        original = BertModel(deepcopy(config), add_pooling_layer=False).eval()
        reference = padded(original, ids, "cpu")
        for dtype in (torch.float32, torch.bfloat16) if on_gpu else (torch.float32,):
            ways: Ways = {}
            worst = 0.0
            for backend in ("padded", *options.attention):
                model = BertModel(deepcopy(config), add_pooling_layer=False).eval()  # takes its configuration over
                model.load_state_dict(original.state_dict())
                model = model.to(device=options.device, dtype=dtype)
                if backend == "padded":
                    ways[backend] = lambda model=model: len(padded(model, ids, options.device)) > 0
                    continue
                forward = Forward(model, backend)
                ways[backend] = lambda forward=forward: len(forward(batch).hidden) > 0
                worst = max(worst, float((forward(batch).hidden.cpu() - reference).abs().max()))
            seconds = in_turns(ways, options.rounds)
            shown = " | ".join(spread([1e3 * s for s in seconds[way]], 1) for way in ways)
            yield f"| {name} | {str(dtype)[6:]} | {shown} | {worst:.1e} |"


@torch.inference_mode()
def padded(model: Any, ids: list[Any], device: str) -> torch.Tensor:
    """Return ``[total, width]``, in the order of `ids`."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    found: list[torch.Tensor | None] = [None] * len(ids)
    for first in range(0, len(order), 32):
        members = order[first : first + 32]
        longest = len(ids[members[-1]])
        tokens = np.zeros((len(members), longest), dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, member in enumerate(members):
            tokens[row, : len(ids[member])] = ids[member]
            mask[row, : len(ids[member])] = 1
        inputs = {"input_ids": torch.from_numpy(tokens).to(device), "attention_mask": torch.from_numpy(mask).to(device)}
        hidden = model(**inputs).last_hidden_state
        for row, member in enumerate(members):
            found[member] = hidden[row, : len(ids[member])]
    return torch.cat([x for x in found if x is not None]).float()


if __name__ == "__main__":
    main()
