"""Processors for vLLM's V2 model runner, which vLLM runs itself, together with guideway's own modifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from tests.across.legacy_processors import BatchLevel
from tests.vllm.probes_in_vllm import check_nothing_left, params, prompt
from tests.vllm.test_processors_in_vllm import COUNT, GUIDEWAY, generate, legacy, right


class OfV2(LogitsProcessor):  # type: ignore[misc]
    """A processor for the V2 model runner that forces the tokens of `BatchLevel` for requests with ``step``."""

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
                if logits[row, wanted] > -torch.inf:  # tokens forbidden by a constraint stay forbidden
                    logits[row].fill_(-torch.inf)[wanted] = 0.0
        return logits


@pytest.fixture(scope="module")
def llm(start: Callable[..., Any]) -> Any:
    return start(GUIDEWAY, logits_processors=[OfV2])


def test_processors_of_v2_run_beside_modifiers(llm: Any) -> None:
    """One batch has: only vLLM's, vLLM's with a constraint, only guideway's, both on one request, and neither."""
    theirs = params(max_tokens=COUNT, ignore_eos=True)
    theirs.extra_args = {"step": 3}
    constrained = params(max_tokens=COUNT, regex="[a-z]{6}")
    constrained.extra_args = {"step": 3}
    both = legacy(5)
    both.extra_args = {**both.extra_args, "step": 9}
    hello, free = params({"hello": {"letter": "e"}}, max_tokens=COUNT), params(max_tokens=COUNT)
    wanted = [theirs, constrained, legacy(5), both, hello, free]
    outputs = generate(llm, [(prompt(0), each) for each in wanted])
    assert right(3, prompt(0), outputs[0].token_ids)
    assert len(outputs[1].text) == 6 and outputs[1].text.isalpha() and outputs[1].text.islower()
    assert right(5, prompt(0), outputs[2].token_ids)
    # guideway's processor leaves a single token, which vLLM's then finds forbidden or forces too
    assert right(5, prompt(0), outputs[3].token_ids)
    assert "e" not in outputs[4].text
    assert "e" in outputs[5].text
    check_nothing_left(llm)
