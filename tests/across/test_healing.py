"""Healed texts are those of an independent greedy search with `transformers`, and prompt and text fit together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from guideway import Engine, EngineConfig, Regex, SamplingParams
from guideway.api import UnsupportedCapability
from guideway_demo_model import DemoModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.support.stages import one_in

PROMPTS = ("Meet Li", "Is Zoë Garcia marr", "one two one tw", "Zo", '{"name":"Zoë Garcia","marr', "x")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(model="demo", modifiers=("healing",), grammar=("llguidance",))) as built:
        yield built


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(DemoModel().path(), dtype=torch.float32)
    return found


def healed(
    model: PreTrainedModel, tokens: tuple[bytes, ...], prompt: list[int], taken: bytes, num_tokens: int
) -> list[int]:
    """Return the most likely token at each place among those that fit to what is left of `taken`."""
    ids: list[int] = []
    for _ in range(num_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, -1, : len(tokens)].clone()
        rest = taken[sum(len(tokens[i]) for i in ids) :]
        if rest:  # every byte is a token of the demo model, so nothing is a dead end
            logits[
                [not token or not (token.startswith(rest) or rest.startswith(token)) for token in tokens]
            ] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids


@pytest.mark.parametrize("prompt", one_in(3, PROMPTS))
@pytest.mark.parametrize("count", [1, 2, 16])
def test_the_text_is_that_of_an_independent_search(
    engine: Engine, model: PreTrainedModel, prompt: str, count: int
) -> None:
    tokens = tuple(engine.vocabulary.tokens)
    given = engine.generate([prompt], SamplingParams(max_tokens=1))[0].prompt_token_ids
    asked = SamplingParams(max_tokens=12, ignore_eos=True, modifiers={"healing": {"tokens": count}})
    (result,) = engine.generate([prompt], asked)
    kept = max(1, len(given) - count)
    assert result.error is None
    assert result.prompt_token_ids == given[:kept]
    taken = b"".join(tokens[i] for i in given[kept:])
    assert list(result.token_ids) == healed(model, tokens, list(given[:kept]), taken, 12)
    whole = b"".join(tokens[i] for i in result.token_ids)
    assert result.text == whole[len(taken) :].decode(errors="replace")


def test_a_word_that_was_cut_is_completed_by_one_token(engine: Engine) -> None:
    (result,) = engine.generate(["Meet Li"], SamplingParams(max_tokens=1, modifiers={"healing": {}}))
    assert engine.vocabulary.tokens[result.token_ids[0]] == b"Li" + result.text.encode()
    assert len(result.text) > 1


def test_special_tokens_and_the_first_token_stay(engine: Engine) -> None:
    special = min(engine.vocabulary.special_tokens)
    for prompt, kept in (([65], 1), ([65, special], 2), ([special, 65, 66], 1), ([65, special, 66], 2)):
        (result,) = engine.generate([prompt], SamplingParams(max_tokens=2, modifiers={"healing": {"tokens": 9}}))
        assert result.error is None
        assert result.prompt_token_ids == tuple(prompt[:kept])


def test_what_it_cannot_do_is_refused(engine: Engine) -> None:
    wishes = {"healing": {}}, {"healing": {"tokens": 0}}, {"healing": {"tokens": 1, "x": 1}}
    constrained, *wrong = engine.generate(
        ["Meet Li"] * 3,
        [SamplingParams(constraint=Regex("a"), modifiers=wishes[0])]
        + [SamplingParams(modifiers=w) for w in wishes[1:]],
    )
    assert isinstance(constrained.error, UnsupportedCapability)
    assert all(result.error is not None and "modifiers.healing" in str(result.error) for result in wrong)
