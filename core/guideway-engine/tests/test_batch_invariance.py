"""With `runner="batch_invariant"`, log-probabilities have the same bits whatever the engine does to a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guideway import Engine, EngineConfig, GenerationResult, JsonSchema, Records, SamplingParams

TEXTS = ["Extract name, age, married. Meet Zoë Garcia. Age: 21. Married.", "Is Zoë Garcia married?", "Meet Liam. " * 4]
PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
ASKED = [
    SamplingParams(max_tokens=16, temperature=1.0, seed=5, records=True),
    SamplingParams(max_tokens=30, temperature=2.0, seed=7, n=2, records=True, constraint=PERSON),
    SamplingParams(max_tokens=16, temperature=0.7, seed=9, records=True, modifiers={"hello": {"letter": "g"}}),
]


def answer(requests: list[tuple[str | list[int], SamplingParams]], **arguments: Any) -> list[GenerationResult]:
    config = EngineConfig(model="demo", runner="batch_invariant", modifiers=("hello",), **arguments)
    with Engine(config) as engine:
        results = engine.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    assert [result.error for result in results] == [None] * len(results)
    return results


def bits(records: Records | None) -> list[bytes]:
    assert records is not None
    return [array.tobytes() for array in (records.model, records.drawn, records.allowed)]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_records_have_the_same_bits_and_the_ratio_is_one(dtype: str) -> None:
    requests: list[tuple[str | list[int], SamplingParams]] = list(zip(TEXTS, ASKED, strict=True))
    alone = [answer([each], dtype=dtype, forced_tokens="off")[0] for each in requests]
    for arguments in (
        {},
        {"num_speculative_tokens": 3, "max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"kv_cache_tokens": 144, "max_model_len": 128, "enable_prefix_caching": False},
    ):
        for result, expected in zip(answer(requests, dtype=dtype, **arguments), alone, strict=True):
            for output, other in zip(result.outputs, expected.outputs, strict=True):
                assert output.token_ids == other.token_ids
                assert bits(output.records) == bits(other.records)
    # a trainer that scores the texts with the same runner, all at once
    texts = [
        (result, output, [*result.prompt_token_ids, *output.token_ids]) for result in alone for output in result.outputs
    ]
    score = SamplingParams(max_tokens=1, prompt_logprobs=0)
    for (result, output, _), scored in zip(
        texts, answer([(ids, score) for *_, ids in texts], dtype=dtype), strict=True
    ):
        found = [each.logprob for each in (scored.prompt_logprobs or [])[len(result.prompt_token_ids) :] if each]
        assert output.records is not None
        assert np.array(found, dtype=np.float32).tobytes() == output.records.model.tobytes()
    free = alone[0].records
    assert free is not None
    assert np.exp(free.model - free.drawn).tolist() == [1.0] * len(free)
