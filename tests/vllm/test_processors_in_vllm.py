"""Batch-level processors of vLLM V1 through guideway-legacy, in both model runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError

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


@pytest.fixture(scope="module")
def llm(start: Callable[..., Any]) -> Any:
    return start(GUIDEWAY)


def legacy(step: int) -> Any:
    return params({"legacy": {"extra_args": {"step": step}}}, max_tokens=COUNT, ignore_eos=True)


def generated(llm: Any, jobs: Sequence[tuple[list[int], Any]]) -> list[Any]:
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
    *outputs, beside = generated(llm, jobs)
    for i, (step, output) in enumerate(zip(steps, outputs, strict=True)):
        assert right(step, prompt(i), output.token_ids)
    assert beside.token_ids == generated(llm, [(prompt(0), free)])[0].token_ids
    check_nothing_left(llm)


def test_its_failure_is_one_requests(llm: Any) -> None:
    with pytest.raises(VLLMValidationError, match="step 0 leads nowhere"):
        generated(llm, [(prompt(0), legacy(0))])
    failed, other = generated(llm, [(prompt(0), legacy(-1)), (prompt(1), legacy(5))])
    assert failed.finish_reason == "error"
    assert len(failed.token_ids) <= 4, "three, and the one that vLLM drew while it failed"
    assert right(5, prompt(1), other.token_ids)
