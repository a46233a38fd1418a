"""Guidance against `transformers`' own, with the demo model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from guideway import Engine, EngineConfig, SamplingParams
from guideway.api import InvalidConfiguration, InvalidRequest
from guideway_demo_model import DemoModel
from transformers import AutoModelForCausalLM, AutoTokenizer, UnbatchedClassifierFreeGuidanceLogitsProcessor

PROMPT = "Meet Liam Morris."
OTHER = "Name a color."


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine(EngineConfig(model="demo", modifiers=("cfg",), dtype="float32")) as engine:
        yield engine


@pytest.mark.slow
def test_guidance_is_that_of_transformers(engine: Any) -> None:
    path = DemoModel().path()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": PROMPT}], add_generation_prompt=True)
    prompt, other = list(chat["input_ids"]), tokenizer(OTHER, add_special_tokens=False).input_ids
    texts = []
    for scale in (0.0, 1.0, 3.0):
        processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(
            scale, model, unconditional_ids=torch.tensor([other]), use_cache=False
        )
        tokens = torch.tensor([prompt])
        with torch.no_grad():
            for _ in range(12):
                scores = processor(tokens, model(tokens).logits[:, -1])
                tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], dim=1)
        texts.append(tokens[0, len(prompt) :].tolist())
        for negative_prompt in (OTHER, other):
            wish = {"scale": scale, "negative_prompt": negative_prompt}
            params = SamplingParams(max_tokens=12, ignore_eos=True, modifiers={"cfg": wish})
            (result,) = engine.generate([prompt], params)
            assert list(result.token_ids) == texts[-1]
    assert texts[0] != texts[1] != texts[2]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"negative_prompt": []}, "negative_prompt must be a text or token ids of the model"),
        ({"negative_prompt": [10**6]}, "negative_prompt must be a text or token ids of the model"),
        ({"negative_prompt": ""}, "negative_prompt must be a text or token ids of the model"),
        ({}, "modifiers.cfg needs the option 'negative_prompt'"),
        ({"negative_prompt": "x", "scale": 1000}, "'scale' of modifiers.cfg must be a number from -100 to 100"),
    ],
)
def test_wrong_wishes_are_refused(engine: Any, wish: dict[str, Any], message: str) -> None:
    (result,) = engine.generate([PROMPT], SamplingParams(max_tokens=2, modifiers={"cfg": wish}))
    assert isinstance(result.error, InvalidRequest | InvalidConfiguration)
    assert message in str(result.error)
