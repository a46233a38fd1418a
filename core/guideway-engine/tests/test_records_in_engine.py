"""Records of outputs: log-probabilities of an independent pass, whatever happens to the sequence meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from guideway import Engine, EngineConfig, GenerationResult, JsonSchema, Records, SamplingParams
from guideway_demo_model import DemoModel
from transformers import AutoModelForCausalLM

from tests.support.stages import one_in

TEXT = "Extract name, age, married. Meet Zoë Garcia. Age: 21. Married."
PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
FREE = SamplingParams(max_tokens=24, temperature=1.0, seed=5, records=True)
BOUND = SamplingParams(
    max_tokens=40,
    temperature=2.0,
    seed=7,
    n=2,
    records=True,
    logprobs=0,
    constraint=PERSON,
    modifiers={"hello": {"letter": "g"}},
)
SILENT = SamplingParams(max_tokens=30, temperature=1.0, seed=5)
ASKED = [FREE, BOUND, SILENT]


def answer(**arguments: Any) -> list[GenerationResult]:
    with Engine(EngineConfig(model="demo", modifiers=("hello",), **arguments)) as engine:
        results = engine.generate([TEXT] * len(ASKED), ASKED)
    assert [result.error for result in results] == [None] * len(ASKED)
    return results


@pytest.fixture(scope="module")
def undisturbed() -> list[GenerationResult]:
    return answer(forced_tokens="off", num_speculative_tokens=0)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    yield AutoModelForCausalLM.from_pretrained(DemoModel().path(), dtype=torch.float32)


def independent(model: Any, result: GenerationResult, token_ids: tuple[int, ...]) -> torch.Tensor:
    """Return ``[len(token_ids), width]``: log-probabilities by `transformers`, in one pass over prompt and output."""
    ids = [*result.prompt_token_ids, *token_ids]
    with torch.inference_mode():
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
    return rows[len(result.prompt_token_ids) - 1 : -1]


def test_log_probabilities_are_those_of_an_independent_pass(undisturbed: list[GenerationResult], model: Any) -> None:
    for result in undisturbed[:2]:
        for output in result.outputs:
            records = output.records
            assert records is not None
            rows = independent(model, result, output.token_ids).numpy()
            chosen = rows[np.arange(len(output.token_ids)), output.token_ids]
            np.testing.assert_allclose(records.model, chosen, atol=1e-4)
    free = undisturbed[0].records
    assert free is not None
    # nothing acts, so the ratio between the model and the draw is 1 at every token, exactly
    assert free.model.tolist() == free.drawn.tolist()
    assert np.exp(free.drawn - free.model).tolist() == [1.0] * len(free)
    assert free.modifiers == ()
    assert undisturbed[2].records is None


def test_the_constraint_is_seen_in_the_records(undisturbed: list[GenerationResult]) -> None:
    for output in undisturbed[1].outputs:
        records = output.records
        assert records is not None and output.logprobs is not None
        assert [entry.logprob for entry in output.logprobs] == records.model.tolist()
        assert set(records.modifiers) == {"hello", "grammar"}
        assert records.allowed[0] <= 4  # an object begins with its bracket
        assert records.pressure[0] < 1
        assert all("grammar" in records.changed_by(i) for i in range(len(records)))
        alone = records.allowed == 1
        assert alone.any()
        assert records.drawn[alone].tolist() == [0] * int(alone.sum())


@pytest.mark.parametrize(
    "arguments",
    one_in(
        2,
        [
            {"num_speculative_tokens": 3},
            {"max_num_batched_tokens": 16, "max_num_seqs": 2},
            {"kv_cache_tokens": 144, "max_model_len": 128, "enable_prefix_caching": False},
            {"executor": "process"},
        ],
    ),
    ids=["drafts and forced tokens", "few tokens a step", "preempted", "another process"],
)
def test_records_do_not_depend_on_how_the_engine_steps(
    arguments: dict[str, Any], undisturbed: list[GenerationResult]
) -> None:
    for result, expected in zip(answer(**arguments), undisturbed, strict=True):
        for output, other in zip(result.outputs, expected.outputs, strict=True):
            assert output.token_ids == other.token_ids
            assert (output.records is None) == (other.records is None)
            if output.records is not None and other.records is not None:
                agree(output.records, other.records)


def agree(records: Records, others: Records) -> None:
    assert len(records) == len(others)
    for name in ("model", "drawn", "pressure"):
        np.testing.assert_allclose(getattr(records, name), getattr(others, name), atol=1e-4)
    assert records.allowed.tolist() == others.allowed.tolist()
    assert [set(records.changed_by(i)) for i in range(len(records))] == [
        set(others.changed_by(i)) for i in range(len(others))
    ]
