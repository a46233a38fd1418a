"""The contributed modifiers inside vLLM: the tokens that guideway's own engine gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from guideway import Engine, EngineConfig, SamplingParams

from tests.vllm.probes_in_vllm import params, prompt

PROBE = {"weight": [(-1.0) ** i for i in range(192)], "token_ids": list(range(0, 1200, 3))}
GUIDEWAY: dict[str, Any] = {
    "modifiers": [
        *("dry", "kgw", "steering", "cfg", "no_repeat_ngram", "top_n_sigma"),
        *("xtc", "p_less", "dynamic_temperature", "mirostat", "gumbel_max"),
    ],
    "options": {"modifier.steering": {"probes": {"p": PROBE}}},
}
WISHES: dict[str, dict[str, Any]] = {
    "dry": {"multiplier": 5.0, "allowed_length": 1},
    "kgw": {"key": 5, "delta": 6.0},
    "steering": {"probe": "p", "strength": 20.0},
    "no_repeat_ngram": {"ngram_size": 1},
    "top_n_sigma": {"n": 1.0},
    "xtc": {"threshold": 0.01},
    "p_less": {"normalized": True},
    "dynamic_temperature": {"least": 1.0, "most": 3.0},
    "mirostat": {"target": 1.0},
    "gumbel_max": {"key": 5},
}
DRAWN = ("xtc", "p_less", "dynamic_temperature", "mirostat", "gumbel_max")
"""The modifiers at stages after the temperature, for which guideway draws."""


@pytest.mark.slow
def test_tokens_are_those_of_guideways_engine(start: Callable[..., Any]) -> None:
    fields = [
        {"max_tokens": 16, "ignore_eos": True, **({"temperature": 2.0, "seed": 7} if name in DRAWN else {})}
        for name in WISHES
    ]
    wishes = [{name: wish} for name, wish in WISHES.items()]
    wishes.append({name: wish for name, wish in WISHES.items() if name != "mirostat"})
    fields.append({"max_tokens": 16, "ignore_eos": True, "temperature": 2.0, "seed": 7})
    with Engine(EngineConfig(model="demo", dtype="float32", **GUIDEWAY)) as engine:
        asked = [SamplingParams(modifiers=wish, **field) for wish, field in zip(wishes, fields, strict=True)]
        expected = [result.token_ids for result in engine.generate([prompt(0)] * len(asked), asked)]
    llm = start(GUIDEWAY)
    given = [params(wish, **field) for wish, field in zip(wishes, fields, strict=True)]
    outputs = llm.generate([{"prompt_token_ids": prompt(0)}] * len(given), given, use_tqdm=False)
    for wish, output, token_ids in zip(wishes, outputs, expected, strict=True):
        assert tuple(output.outputs[0].token_ids) == token_ids, wish


@pytest.mark.slow
def test_guidance_is_refused_by_name(start: Callable[..., Any]) -> None:
    from vllm.exceptions import VLLMValidationError

    asked = params({"cfg": {"negative_prompt": [5]}})
    with pytest.raises(VLLMValidationError, match=re.escape("'cfg' needs companions, which this host")):
        start(GUIDEWAY).generate([{"prompt_token_ids": prompt(0)}], [asked], use_tqdm=False)
