"""Batch-level processors of vLLM V1 through guideway-legacy, in both model runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from guideway.api import Vocabulary
from guideway_legacy.batches import BatchOfOne, config_of_one
from guideway_legacy.calls import Past
from guideway_legacy.params import LACKING, Lacking, VllmParams
from guideway_vllm.requests import request_of
from vllm import SamplingParams as VllmSamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import MinTokensLogitsProcessor

from tests.across.legacy_processors import BatchLevel
from tests.vllm.probes_in_vllm import check_nothing_left, params, prompt

LEGACY = {"kind": "vllm", "target": f"{BatchLevel.__module__}:Demanding"}
GUIDEWAY: dict[str, Any] = {
    "grammar": ["llguidance"],
    "grammar_host": "inline",
    "modifiers": ["hello", "legacy"],
    "options": {"modifier.legacy": {"processors": [LEGACY]}},
}
COUNT = 12
STOP = 15
VOCABULARY = Vocabulary([b"x"] * 15 + [b""], frozenset({STOP}))


@pytest.fixture(scope="module")
def llm(start: Callable[..., Any]) -> Any:
    return start(GUIDEWAY)


def legacy(step: int) -> Any:
    return params({"legacy": {"extra_args": {"step": step}}}, max_tokens=COUNT, ignore_eos=True)


def generate(llm: Any, jobs: Sequence[tuple[list[int], Any]]) -> list[Any]:
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids, _ in jobs], [wanted for _, wanted in jobs], use_tqdm=False
    )
    return [output.outputs[0] for output in outputs]


def right(step: int, ids: list[int], token_ids: Sequence[int]) -> bool:
    expected = [BatchLevel.next(step, ids, token_ids[:i]) for i in range(len(token_ids))]
    return len(token_ids) == COUNT and list(token_ids) == expected


def test_a_batch_level_processor_writes_what_it_would_alone(llm: Any) -> None:
    steps = (1, 3, 7, 11)
    free = params(max_tokens=COUNT)
    jobs = [(prompt(i), legacy(step)) for i, step in enumerate(steps)] + [(prompt(0), free)]
    *outputs, beside = generate(llm, jobs)
    for i, (step, output) in enumerate(zip(steps, outputs, strict=True)):
        assert right(step, prompt(i), output.token_ids)
    assert beside.token_ids == generate(llm, [(prompt(0), free)])[0].token_ids
    check_nothing_left(llm)


def test_its_failure_is_one_requests(llm: Any) -> None:
    with pytest.raises(VLLMValidationError, match="step 0 leads nowhere"):
        generate(llm, [(prompt(0), legacy(0))])
    failed, other = generate(llm, [(prompt(0), legacy(-1)), (prompt(1), legacy(5))])
    assert failed.finish_reason == "error"
    assert len(failed.token_ids) <= 4, "three, and the one that vLLM drew while it failed"
    assert right(5, prompt(1), other.token_ids)


GIVEN: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0, "top_k": 7, "top_p": 0.5},
    {"temperature": 0.7, "seed": 3, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "logprobs": 2, "prompt_logprobs": 1},
    {"stop": ["x", "y"], "stop_token_ids": [9, 3], "min_tokens": 2, "max_tokens": 8, "logit_bias": {4: -5.0}},
    {"ignore_eos": True, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5},
]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_each_attribute_of_the_parameters_is_as_in_vllm_or_lacking(given: dict[str, Any]) -> None:
    theirs = VllmSamplingParams(**given)
    theirs.update_from_generation_config({}, eos_token_id=STOP)
    ours = VllmParams.of(request_of("r", (1,), theirs).params, VOCABULARY, {}, "here")
    names = [name for name in dir(VllmSamplingParams) if not name.startswith("_")]
    attributes = {name for name in names if not callable(getattr(VllmSamplingParams, name))}
    for name in sorted(attributes - LACKING - {"extra_args"}):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in LACKING - {"structured_outputs"}:
        with pytest.raises(Lacking):
            getattr(ours, name)


def test_vllms_own_processor_for_min_tokens_finds_all_stop_tokens() -> None:
    theirs = VllmSamplingParams(min_tokens=2, stop_token_ids=[3])
    ours = VllmParams.of(request_of("r", (1,), theirs).params, VOCABULARY, {}, "here")
    processor = BatchOfOne(MinTokensLogitsProcessor(config_of_one(), torch.device("cpu"), False), ours)
    rows = [processor(Past([1, *output], 1), torch.zeros(len(VOCABULARY))) for output in ([], [2], [2, 4])]
    banned = [torch.isneginf(row).nonzero().flatten().tolist() for row in rows]
    assert banned == [[3, STOP], [3, STOP], []]
