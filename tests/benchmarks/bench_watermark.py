"""The watermarks of guideway-watermark in the engine, on a model with random weights, with and without draft tokens.

`gumbel_max` must keep the distribution: the first tokens that 600 keys draw after each of three prompts are compared
with what `transformers` computes, by chi-square. Both watermarks must be detected: the median p-value of 200 texts of
100 tokens at temperature 1, each with its own key; with another key nothing may be found.

    python tests/benchmarks/bench_watermark.py [--texts 200] [--write]
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from guideway import Engine, EngineConfig, SamplingParams
from guideway_demo_model import DemoModel
from guideway_watermark.detection import detect_gumbel_max, detect_kgw
from transformers import AutoConfig, AutoModelForCausalLM

RESULTS = Path(__file__).parent / "results" / "watermark.md"
SCALE = 12.0
"""Factor of the initial weights of the last layer, for texts of about five bits a token."""
LENGTH, KEYS, ASKED = 100, 600, 1e-6
"""Tokens of a text, keys per prompt, and the largest median of the p-values of texts with the watermark."""
PROMPTS = ([5, 6, 7, 8], [300] * 9, [40, 600, 5, 61, 900])
DETECTORS = {"gumbel_max": detect_gumbel_max, "kgw": detect_kgw}


def make_model(folder: Path) -> None:
    """Write a model with random weights, and the demo model's tokenizer."""
    shutil.copytree(DemoModel().path(), folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, tie_word_embeddings=False))
    model.get_output_embeddings().weight.data *= SCALE
    model.save_pretrained(folder)


def chi_square(counts: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom; tokens that are expected fewer than 5 times are one class."""
    large = expected >= 5
    seen = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    return float(((seen - wanted) ** 2 / wanted).sum()), len(wanted) - 1


def tail(statistic: float, freedom: int) -> float:
    """Return the probability of a larger chi-square, by Wilson and Hilferty's approximation."""
    spread = 2 / (9 * freedom)
    return 1 - statistics.NormalDist().cdf(((statistic / freedom) ** (1 / 3) - 1 + spread) / spread**0.5)


def drawn(engine: Engine, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[Any]:
    results = engine.generate(list(prompts), list(params))
    assert all(result.error is None for result in results)
    return results


def distribution_lines(folder: Path, engine: Engine) -> list[str]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    lines = ["| prompt | chi-square | degrees of freedom | probability of a larger one |", "|---|---|---|---|"]
    for number, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            expected = KEYS * torch.softmax(model(torch.tensor([prompt])).logits[0, -1].double(), dim=-1).numpy()
        params = [
            SamplingParams(max_tokens=1, temperature=1.0, ignore_eos=True, modifiers={"gumbel_max": {"key": key}})
            for key in range(KEYS)
        ]
        counts = np.zeros(len(expected))
        for result in drawn(engine, [list(prompt)] * KEYS, params):
            counts[result.token_ids[0]] += 1
        statistic, freedom = chi_square(counts, expected)
        lines.append(f"| {number + 1} | {statistic:.1f} | {freedom} | {tail(statistic, freedom):.3f} |")
    return lines


def texts_of(engine: Engine, name: str, num_texts: int) -> tuple[list[tuple[int, ...]], float]:
    """Return the texts, the i-th with key i, and their mean bits per token."""
    texts: list[tuple[int, ...]] = []
    nats: list[float] = []
    for start in range(0, num_texts, 50):
        keys = range(start, min(start + 50, num_texts))
        params = [
            SamplingParams(
                max_tokens=LENGTH,
                temperature=1.0,
                seed=key,
                ignore_eos=True,
                records=True,
                modifiers={name: {"key": key}},
            )
            for key in keys
        ]
        for result in drawn(engine, [[5 + key % 900, 7, 8, 9] for key in keys], params):
            texts.append(result.token_ids)
            nats.append(-float(result.records.model.mean()))
    return texts, statistics.mean(nats) / np.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    detected = [
        "| modifier | drafts | bits per token | median p-value | largest | median with another key |",
        "|---|---|---|---|---|---|",
    ]
    texts: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        make_model(folder)
        for num_drafts in (0, 4):
            config = EngineConfig(
                model=str(folder),
                dtype="float64",
                modifiers=tuple(DETECTORS),
                max_num_seqs=50,
                num_speculative_tokens=num_drafts,
            )
            with Engine(config) as engine:
                if not num_drafts:
                    kept = distribution_lines(folder, engine)
                for name, detect in DETECTORS.items():
                    found, bits = texts_of(engine, name, options.texts)
                    texts[name, num_drafts] = found
                    own = [detect(text, key).p_value for key, text in enumerate(found)]
                    other = [detect(text, key + 10_000).p_value for key, text in enumerate(found)]
                    detected.append(
                        f"| {name} | {num_drafts} | {bits:.1f} | {statistics.median(own):.0e} | {max(own):.0e} "
                        f"| {statistics.median(other):.2f} |"
                    )
    differing = [name for name in DETECTORS if texts[name, 0] != texts[name, 4]]
    text = f"""\
# Watermarks

`python tests/benchmarks/bench_watermark.py --texts {options.texts} --write`; the demo model's size and tokenizer,
random weights, float64, temperature 1.

`gumbel_max` over {KEYS} keys, first tokens after three prompts, compared with softmax of the logits that `transformers`
computes:

{chr(10).join(kept)}

Detection in {options.texts} texts of {LENGTH} tokens, each with its own key. Asked: a median p-value below {ASKED:.0e}.
With up to 4 draft tokens per step, texts differ from those without: {", ".join(differing) or "none"}.

{chr(10).join(detected)}

Python {platform.python_version()}, torch {version("torch")}; {platform.machine()}.
"""
    sys.stdout.write(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
