"""Samples as batches of token ids, in an order that only the seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from guideway_demo_model.training.data import Sample, Source, dumps, render
from guideway_demo_model.training.network import MAX_TRAINED_LENGTH
from guideway_demo_model.training.tokenizer import END, PAD_ID

__all__ = ["Batch", "Position", "batches", "texts"]

LENGTH_STEP = 16
"""Lengths are rounded up to a multiple of this, because kernels are compiled and cached for each shape."""
SPACED_SHARE = 0.2
NOISE = 0.35
SHORT_SHARE = 0.4
CROWDED_SHARE = 0.5
MORE = {"record": 0.3, "order": 0.08, "person": 0.04}
"""Shares of samples that are always of this kind, in addition to the weights. It is hard to learn which value belongs
to a key, how lists of items look, and which words may replace a name."""
YES_NO_WEIGHT = 4.0
"""Weight of true and false in the loss: these tokens are rare, and the hardest to learn."""


@dataclass(frozen=True)
class Position:
    """A place in the data to resume from: batch `index` of pool `pool`."""

    pool: int = 0
    index: int = 0


@dataclass(frozen=True)
class Batch:
    """`token_ids`: [batch, length]; `positions`: indices into the flattened ids of the tokens that predict `targets`,
    all tokens of answers."""

    token_ids: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor
    """Weights of the targets in the loss."""
    num_tokens: int
    """Without the padding."""
    after: Position
    """Position of the next batch."""


def texts(seed: int, pool: int, count: int) -> list[tuple[str, str]]:
    """Return the prompts and answers of a pool, each with its special tokens."""
    name = f"{seed}-{pool}"
    source = Source(name, values="train", templates="train", noise=NOISE, short=SHORT_SHARE, crowded=CROWDED_SHARE)
    style = random.Random(f"style-{name}")
    kinds: list[str | None] = [*MORE, None]
    shares = [*MORE.values(), 1 - sum(MORE.values())]

    def text(sample: Sample) -> tuple[str, str]:
        return render(sample.prompt), dumps(sample.answer, spaced=style.random() < SPACED_SHARE) + END

    return [text(source.sample(kind)) for kind in style.choices(kinds, shares, k=count)]


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, *, pool_samples: int, max_tokens: int, start: Position
) -> Iterator[Batch]:
    """Yield endless batches of at most `max_tokens` with padding, from `start`. `pool_samples` are shuffled at a
    time."""
    pool, index = start.pool, start.index
    yes_no = torch.tensor([tokenizer.convert_tokens_to_ids(word) for word in ("true", "false")])
    while True:
        pairs = texts(seed, pool, pool_samples)
        prompts = tokenizer([prompt for prompt, _ in pairs], add_special_tokens=False).input_ids
        answers = tokenizer([answer for _, answer in pairs], add_special_tokens=False).input_ids
        groups = _group(list(zip(prompts, answers, strict=True)), max_tokens)
        random.Random(f"order-{seed}-{pool}").shuffle(groups)
        for number, group in enumerate(groups[index:], index + 1):
            after = Position(pool, number) if number < len(groups) else Position(pool + 1, 0)
            yield _batch(group, after, yes_no)
        pool, index = pool + 1, 0


def _round_length(pair: tuple[list[int], list[int]]) -> int:
    return -(-(len(pair[0]) + len(pair[1])) // LENGTH_STEP) * LENGTH_STEP


def _group(pairs: list[tuple[list[int], list[int]]], max_tokens: int) -> list[list[tuple[list[int], list[int]]]]:
    """Return full batches of one rounded length each; the remainder of a length is dropped."""
    by_length: dict[int, list[tuple[list[int], list[int]]]] = {}
    for pair in pairs:
        by_length.setdefault(_round_length(pair), []).append(pair)
    groups = []
    for length, same in sorted(by_length.items()):
        size = max_tokens // length
        if length <= MAX_TRAINED_LENGTH and size:
            groups += [same[at : at + size] for at in range(0, len(same) - size + 1, size)]
    return groups


def _batch(group: list[tuple[list[int], list[int]]], after: Position, yes_no: Tensor) -> Batch:
    length = _round_length(group[0])
    token_ids = torch.full((len(group), length), PAD_ID)
    positions: list[int] = []
    targets: list[int] = []
    for row, (prompt, answer) in enumerate(group):
        total = len(prompt) + len(answer)
        token_ids[row, :total] = torch.tensor(prompt + answer)
        first = row * length + len(prompt) - 1  # the prompt's last token predicts the answer's first
        positions += range(first, first + len(answer))
        targets += answer
    num_tokens = sum(len(prompt) + len(answer) for prompt, answer in group)
    wanted = torch.tensor(targets)
    weights = torch.where(torch.isin(wanted, yes_no), YES_NO_WEIGHT, 1.0)
    return Batch(token_ids, torch.tensor(positions), wanted, weights, num_tokens, after)
