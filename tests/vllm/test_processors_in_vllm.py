"""Processors written for vLLM itself, in vLLM with guideway: batch-level ones of V1 through guideway-legacy in both model
runners, and those of V2, which vLLM runs, beside guideway's own modifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from vllm.exceptions import VLLMValidationError

from tests.across.legacy_processors import BatchLevel
from tests.vllm.conftest import USES_V2
from tests.vllm.probes_in_vllm import check_nothing_left, params, prompt

LEGACY = {"kind": "vllm", "target": f"{BatchLevel.__module__}:Demanding"}
GUIDEWAY: dict[str, Any] = {
    "grammar": ["llguidance"],
    "grammar_host": "inline",
    "modifiers": ["hello", "legacy"],
    "options": {"modifier.legacy": {"processors": [LEGACY]}},
}
COUNT = 12


class OfV2:
    """A processor for the V2 model runner: what a request asks for by ``step`` is what `BatchLevel` writes."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._states = req_states
        self._steps: dict[int, int] = {}
        self.flushed = 0

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        BatchLevel.validate_params(sampling_params)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        self._steps[req_idx] = (sampling_params.extra_args or {}).get("step", 0)
        return bool(self._steps[req_idx])

    def apply_staged_writes(self) -> None:
        self.flushed += 1

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        assert self.flushed
        for row, slot in enumerate(ctx.expanded_idx_mapping.tolist()):
            if step := self._steps[slot]:
                num_prompt = int(self._states.prompt_len.np[slot])
                past = self._states.all_token_ids.gpu[slot, : int(ctx.pos[row]) + 1].tolist()
                wanted = BatchLevel.next(step, past[:num_prompt], past[num_prompt:])
                if logits[row, wanted] > -torch.inf:  # what a constraint has forbidden stays so
                    logits[row].fill_(-torch.inf)[wanted] = 0.0
        return logits


@pytest.fixture(scope="module")
def llm(start: Callable[..., Any]) -> Any:
    if not USES_V2:
        return start(GUIDEWAY)
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

    return start(GUIDEWAY, logits_processors=[type("OfV2", (OfV2, LogitsProcessor), {})])


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
    assert (failed.finish_reason, len(failed.token_ids)) == ("error", 3)
    assert right(5, prompt(1), other.token_ids)


@pytest.mark.skipif(not USES_V2, reason="V1 refuses the class itself: vLLM's V2 model runner calls this interface")
def test_processors_of_v2_run_beside_modifiers(llm: Any) -> None:
    """In one batch: vLLM's alone, vLLM's under a constraint, guideway's alone, both on one request, and neither."""
    theirs = params(max_tokens=COUNT, ignore_eos=True)
    theirs.extra_args = {"step": 3}
    constrained = params(max_tokens=COUNT, regex="[a-z]{6}")
    constrained.extra_args = {"step": 3}
    both = legacy(5)
    both.extra_args = {**both.extra_args, "step": 9}
    hello, free = params({"hello": {"letter": "e"}}, max_tokens=COUNT), params(max_tokens=COUNT)
    wanted = [theirs, constrained, legacy(5), both, hello, free]
    outputs = generated(llm, [(prompt(0), each) for each in wanted])
    assert right(3, prompt(0), outputs[0].token_ids)
    assert len(outputs[1].text) == 6 and outputs[1].text.isalpha() and outputs[1].text.islower()
    assert right(5, prompt(0), outputs[2].token_ids)
    # guideway's processor leaves one token alone, which vLLM's then finds forbidden, or is the same
    assert right(5, prompt(0), outputs[3].token_ids)
    assert "e" not in outputs[4].text
    assert "e" in outputs[5].text
    late = params({"legacy": {"extra_args": {"step": 5}}}, max_tokens=COUNT)
    assert right(5, prompt(0), generated(llm, [(prompt(0), legacy(5)), (prompt(1), late)])[0].token_ids)
    check_nothing_left(llm)
