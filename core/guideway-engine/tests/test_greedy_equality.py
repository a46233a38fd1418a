"""Greedy decoding with joins and leaves gives the same tokens as ``model.generate`` for each prompt alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from engine_support.driver import Driver
from engine_support.models import FACTORIES, VOCABULARY_SIZE
from torch import Tensor
from transformers import PreTrainedModel

from tests.support.stages import everyday

PROMPT_LENGTHS = (1, 2, 5, 11, 17, 24, 38, 50)
PROMPTS_PER_LENGTH = 8  # of equal length, so that generate can batch them without padding
NUM_SLOTS = 12
CLOSE_CALL = 1e-3
"""Distance of the top two logits below which the order of summation may swap them; the texts then differ."""


@dataclass
class Sequence:
    """A prompt and its continuation."""

    prompt: list[int]
    num_tokens: int
    generated: list[int] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return len(self.generated) == self.num_tokens


def sequences_of_random_prompts(rng: random.Random) -> list[Sequence]:
    lengths = [length for length in PROMPT_LENGTHS for _ in range(PROMPTS_PER_LENGTH)]
    rng.shuffle(lengths)
    return [Sequence([rng.randrange(VOCABULARY_SIZE) for _ in range(n)], rng.randint(5, 40)) for n in lengths]


def decode_with_joins_and_leaves(driver: Driver, sequences: list[Sequence], rng: random.Random) -> int:
    """Continue every sequence to its length in a batch that changes all the time. Return the maximum number running at
    once."""
    waiting = list(sequences)
    running: dict[int, Sequence] = {}
    most = 0
    while waiting or running:
        while waiting and driver.cache.capacity() and rng.random() < 0.6:
            running[driver.cache.allocate()] = waiting.pop(0)
        batch = [
            (slot, sequence.generated[-1:] or sequence.prompt)
            for slot, sequence in running.items()
            if rng.random() < 0.9  # sometimes a sequence skips a step
        ]
        if not batch:
            continue
        most = max(most, len(batch))
        for (slot, _), token_id in zip(batch, driver.forward(batch).logits.argmax(dim=-1).tolist(), strict=True):
            sequence = running[slot]
            sequence.generated.append(token_id)
            if sequence.finished:
                driver.cache.release(slot)
                del running[slot]
    return most


def tokens_and_leads(model: PreTrainedModel, prompts: list[list[int]], num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the tokens that ``generate`` appends to prompts of one length, and the lead of each token's logit over the
    next best: both ``[prompts, num_tokens]``."""
    token_ids = torch.tensor(prompts)
    output = model.generate(  # type: ignore[operator]
        token_ids,
        attention_mask=torch.ones_like(token_ids),
        do_sample=False,
        max_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    top = torch.stack(output.logits, dim=1).topk(2).values
    return output.sequences[:, token_ids.shape[1] :], top[..., 0] - top[..., 1]


@pytest.mark.parametrize("name", everyday(["llama", "gpt2"], "llama"))
def test_greedy_tokens_equal_those_of_generate(name: str) -> None:
    rng = random.Random(2)
    sequences = sequences_of_random_prompts(rng)
    assert len(sequences) == 64
    driver = Driver(FACTORIES[name](0), num_slots=NUM_SLOTS, max_length=100)
    most = decode_with_joins_and_leaves(driver, sequences, rng)
    assert most >= NUM_SLOTS - 2
    assert driver.cache.capacity() == NUM_SLOTS

    reference = FACTORIES[name](0)
    compared = total = 0
    for length in PROMPT_LENGTHS:
        group = [sequence for sequence in sequences if len(sequence.prompt) == length]
        num_tokens = max(sequence.num_tokens for sequence in group)
        token_ids, leads = tokens_and_leads(reference, [sequence.prompt for sequence in group], num_tokens)
        for sequence, expected, lead in zip(group, token_ids.tolist(), leads.tolist(), strict=True):
            clear = next((i for i in range(sequence.num_tokens) if lead[i] <= CLOSE_CALL), sequence.num_tokens)
            assert sequence.generated[:clear] == expected[:clear]
            compared += clear
            total += sequence.num_tokens
    assert compared > 0.9 * total
    assert len({token_id for sequence in sequences for token_id in sequence.generated}) > 50, "all the same text"
