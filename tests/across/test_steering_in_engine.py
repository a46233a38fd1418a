"""Steering against the same computed by `transformers`, with the demo model."""

from __future__ import annotations

import numpy as np
import torch
from guideway import Engine, EngineConfig, SamplingParams
from guideway_demo_model import DemoModel
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "Meet Liam Morris."


def test_a_probe_lowers_its_tokens_by_its_response() -> None:
    path = DemoModel().path()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    messages = [{"role": "user", "content": PROMPT}]
    prompt = AutoTokenizer.from_pretrained(path).apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(2, model.config.hidden_size)).astype(np.float32)
    chosen = [sorted(rng.choice(500, size=200, replace=False).tolist()) for _ in weights]
    probes = {
        name: {"weight": weight.tolist(), "token_ids": ids, "bias": 0.25}
        for name, weight, ids in zip("ab", weights, chosen, strict=True)
    }
    config = EngineConfig(
        model="demo", modifiers=("steering",), options={"modifier.steering": {"probes": probes}}, dtype="float32"
    )
    with Engine(config) as engine:
        params = [
            SamplingParams(max_tokens=16, ignore_eos=True, modifiers={"steering": {"probe": name, "strength": 20.0}})
            for name in "ab"
        ]
        results = engine.generate([prompt] * 2, params)
        (plain,) = engine.generate([prompt], SamplingParams(max_tokens=16, ignore_eos=True))
        (refused,) = engine.generate([prompt], SamplingParams(modifiers={"steering": {"probe": "c"}}))
    assert "probe must be one of ['a', 'b']" in str(refused.error)
    for result, weight, ids in zip(results, weights, chosen, strict=True):
        tokens = list(prompt)
        for _ in range(16):
            with torch.no_grad():
                output = model(torch.tensor([tokens]), output_hidden_states=True)
            response = torch.sigmoid(output.hidden_states[-1][0, -1] @ torch.from_numpy(weight) + 0.25)
            logits = output.logits[0, -1]
            logits[ids] -= 20.0 * response
            tokens.append(int(logits.argmax()))
        assert list(result.token_ids) == tokens[len(prompt) :] != list(plain.token_ids)


def test_a_probe_of_another_model_is_named() -> None:
    options = {"modifier.steering": {"probes": {"a": {"weight": [1.0, 2.0], "token_ids": [3]}}}}
    with Engine(EngineConfig(model="demo", modifiers=("steering",), options=options)) as engine:
        (result,) = engine.generate([PROMPT], SamplingParams(modifiers={"steering": {"probe": "a"}}))
    assert "the probes have 2 weights, but the model" in str(result.error)
