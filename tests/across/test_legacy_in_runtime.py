"""Legacy processors under what hosts do: drafts, forks, rebuilt states, split payloads, lost workers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from guideway.api import (
    InvalidConfiguration,
    ModifierContext,
    Request,
    SamplingParams,
    StepBatch,
    StepInput,
    StepOutput,
    UnsupportedCapability,
    WorkerContext,
)
from guideway.devices.torch.device import TorchDevice
from guideway.pipeline import Pipeline
from guideway.runtime.runtime import Runtime
from guideway_legacy import LegacyModifier, Processor

from tests.across import legacy_processors as processors
from tests.across.legacy_processors import Countdown, favor, favored_token, forbid, reviving
from tests.support.fake_host import FakeHost
from tests.support.vocabularies import tiny

VOCABULARY = tiny(width=128)
WIDTH = 128


class Shared(LegacyModifier):
    name = "shared"
    processors = (Processor("callable", favor), Processor("callable", forbid(3)))


class Counting(LegacyModifier):
    name = "counting"
    processors = (Processor("callable", Countdown, per_sequence=True), Processor("callable", forbid(100)))


class Ban(LegacyModifier):
    name = "aaa"
    processors = (Processor("callable", forbid(7)),)


class Reviving(LegacyModifier):
    name = "reviving"
    processors = (Processor("callable", reviving),)


class Host:
    """Runtime and pipeline, driven one step at a time."""

    def __init__(self, *modifiers: type[LegacyModifier], options: Any = None) -> None:
        context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=8, max_model_len=256)
        instances = [cls(options or {}, context) for cls in modifiers]
        self.runtime = Runtime(context, strategies={}, modifiers=instances)
        self.pipeline = self.worker()

    def worker(self) -> Pipeline:
        context = WorkerContext(device=TorchDevice("cpu"), vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
        return Pipeline(pickle.loads(pickle.dumps(self.runtime.modifier_classes())), context)

    def start(self, slot: int, name: str, prompt: Sequence[int] = (20, 21), request_id: str = "") -> None:
        params = SamplingParams(modifiers={name: {}})
        request = Request(request_id=request_id or f"r{slot}", prompt_token_ids=tuple(prompt), params=params)
        self.runtime.start(self.runtime.admit(request), slot)

    def prepare(self, *slots: int, drafts: Any = None) -> StepInput:
        journals = [self.runtime.journal(slot) for slot in slots]
        positions = [len(j.sequence.prompt_token_ids) + len(j.token_ids) for j in journals]
        return self.runtime.prepare(StepBatch.build(list(slots), positions, drafts))

    def run(self, step: StepInput, dtype: torch.dtype = torch.float32) -> StepOutput:
        step = pickle.loads(pickle.dumps(step))
        return self.pipeline.run(torch.zeros(step.batch.num_rows, WIDTH, dtype=dtype), step)

    def step(self, *slots: int) -> list[int]:
        """Draw one token for each slot, with the worker's input pickled."""
        step = self.prepare(*slots)
        output = self.run(step)
        token_ids = output.token_ids.tolist()
        for outcome in self.runtime.accept(step.batch, [[i] for i in token_ids], output):
            assert outcome.action == "continue", outcome.message
        return token_ids

    def sequences(self, pipeline: Pipeline | None = None) -> int:
        """Return the number of sequences for which the worker keeps processors."""
        (entry,) = [e for stage in (pipeline or self.pipeline)._context._by_stage for e in stage if e.name != "grammar"]
        return len(entry.transform._sequences)  # type: ignore[attr-defined]


def test_each_draft_gets_a_row_and_sees_the_drafts_before_it() -> None:
    host = Host(Shared)
    host.start(0, "shared", (20, 21))
    host.start(1, "shared", (1,))
    host.step(0, 1)
    first, second = (host.runtime.journal(slot).token_ids for slot in (0, 1))
    output = host.run(host.prepare(0, 1, drafts=[[30, 31], [32]]))
    pasts = [[20, 21, *first], [20, 21, *first, 30], [20, 21, *first, 30, 31], [1, *second], [1, *second, 32]]
    assert output.token_ids.tolist() == [favored_token(past) for past in pasts]


@pytest.mark.parametrize("modifier", [Shared, Counting], ids=lambda cls: cls.name)
def test_drafts_a_modifier_would_not_let_pass_cost_its_request_only(modifier: Any) -> None:
    """The fake host never calls `validate`."""
    wanted = [SamplingParams(max_tokens=5, modifiers={modifier.name: {}}), SamplingParams(max_tokens=5)]
    host = FakeHost(VOCABULARY, TorchDevice("cpu"), modifiers=[modifier], num_drafts=2)
    with_modifier, without = host.generate([[20, 21]] * 2, wanted)
    assert without.error is None
    assert host.runtime.modifier_classes()
    if modifier is Shared:
        (plain,) = FakeHost(VOCABULARY, TorchDevice("cpu"), modifiers=[modifier]).generate([[20, 21]], wanted[:1])
        assert with_modifier.error is None
        assert with_modifier.token_ids == plain.token_ids
    else:
        assert "modifier.counting failed in prepare" in str(with_modifier.error)
        assert "it takes no drafts" in str(with_modifier.error)


def test_shared_processors_let_drafts_pass_and_others_none() -> None:
    host = Host(Shared, Counting)
    host.start(0, "shared")
    host.start(1, "counting")
    assert host.runtime.validate(0, [5, 6, 7]) == 3
    assert host.runtime.validate(1, [5, 6, 7]) == 0


def test_shared_processors_fork_and_others_refuse() -> None:
    host = Host(Shared, Counting)
    host.start(0, "shared")
    host.start(1, "counting")
    host.step(0)
    host.runtime.fork(0, 2, index=1)
    assert host.step(0) == host.step(2)
    host.step(2)
    past = [20, 21, *host.runtime.journal(0).token_ids]
    assert host.step(0) == [favored_token(past)], "the two go on by themselves"
    with pytest.raises(UnsupportedCapability, match="'counting' runs processors that keep state per sequence"):
        host.runtime.fork(1, 3, index=1)
    assert host.step(1) == [10], "a refused fork changes nothing"


def test_a_rebuilt_state_finds_its_processors_again() -> None:
    host = Host(Counting)
    host.start(0, "counting")
    host.start(1, "counting")
    assert [host.step(0, 1), host.step(0)] == [[10, 10], [11]]
    host.runtime.rebuild(0)
    assert host.runtime.fault(0) is None
    assert [host.step(0, 1), host.step(1)] == [[12, 11], [12]]


def test_a_step_done_twice_is_one_call_of_each_processor() -> None:
    host = Host(Counting)
    host.start(0, "counting")
    host.step(0)
    Countdown.calls = 0
    step = host.prepare(0)
    assert host.run(step).token_ids.tolist() == host.run(step).token_ids.tolist() == [11]
    host.runtime.rebuild(0)
    assert host.run(host.prepare(0)).token_ids.tolist() == [11]
    assert Countdown.calls == 1


def test_a_payload_may_be_applied_in_parts() -> None:
    host = Host(Counting)
    for slot in range(4):
        host.start(slot, "counting", (20 + slot,))
    host.step(0, 1)
    whole = host.prepare(0, 1, 2, 3)
    payload = whole.payloads["counting"]
    parts = [payload.take(np.array(rows, dtype=np.int32)) for rows in ([3, 0], [1], [2])]
    drawn = {}
    for part in parts:
        output = host.run(replace(whole, payloads={"counting": part}))
        drawn |= {row: output.token_ids[row] for row in part.rows.tolist()}
    assert [drawn[row] for row in range(4)] == [11, 11, 10, 10]


def test_the_worker_forgets_processors_of_sequences_that_ended() -> None:
    host = Host(Counting)
    for slot in range(3):
        host.start(slot, "counting")
    host.step(0, 1, 2)
    assert host.sequences() == 3
    host.runtime.release(1)
    host.runtime.release(2)
    host.step(0)
    assert host.sequences() == 1
    host.start(2, "counting", request_id="r2")
    assert host.step(0, 2) == [12, 10], "the same request id again is another sequence"


def test_a_lost_worker_ends_what_it_had_and_nothing_else() -> None:
    host = Host(Shared, Counting)
    host.start(0, "counting")
    host.start(1, "shared")
    host.step(0, 1)
    host.pipeline = host.worker()
    host.start(2, "counting")
    step = host.prepare(0, 1, 2)
    output = host.run(step)
    assert list(output.faults) == [0]
    assert "were lost with the worker they were in" in output.faults[0].message
    assert output.token_ids[2] == 10


def test_a_processor_out_of_step_is_not_called() -> None:
    host = Host(Counting)
    host.start(0, "counting")
    host.step(0)
    early = host.prepare(0)
    host.step(0)
    host.step(0)
    assert "must hear of 5 tokens next, not of 3" in host.run(early).faults[0].message


def test_what_was_forbidden_before_stays_so() -> None:
    host = Host(Ban, Reviving)
    both = SamplingParams(modifiers={"aaa": {}, "reviving": {}})
    host.runtime.start(host.runtime.admit(Request(request_id="x", prompt_token_ids=(20,), params=both)), 0)
    host.start(1, "reviving")
    output = host.run(host.prepare(0, 1))
    assert list(output.faults) == [0]
    assert "a processor allowed a token that was forbidden before it" in output.faults[0].message
    assert output.faults[0].plugin == "modifier.reviving"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_processors_get_float32_and_the_model_its_own_type_back(dtype: torch.dtype) -> None:
    host = Host(Shared)
    host.start(0, "shared")
    assert host.run(host.prepare(0), dtype).token_ids.tolist() == [favored_token([20, 21])]


def test_nothing_is_made_for_a_sequence_that_does_not_ask() -> None:
    host = Host(Counting)
    Countdown.made = 0
    request = Request(request_id="x", prompt_token_ids=(20,), params=SamplingParams())
    host.runtime.start(host.runtime.admit(request), 0)
    assert host.prepare(0).payloads == {}
    host.start(1, "counting")
    host.run(host.prepare(0, 1))
    assert Countdown.made == 1


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([], "lists no processor"),
        ([{"kind": "callable"}], "needs the option 'target'"),
        ([{"kind": "callable", "traget": "x"}], "did you mean 'target'"),
        ([{"kind": "huggingface", "target": "a:b"}], "'kind'"),
        ([{"kind": "callable", "target": "no_such_module:f"}], "ModuleNotFoundError"),
        ([{"kind": "callable", "target": "json:no_such"}], "AttributeError"),
        ([{"kind": "callable", "target": "json"}], "'module:attribute'"),
        ([{"kind": "callable", "target": "json:__name__"}], "is no callable"),
        ([{"kind": "transformers", "target": "transformers:NoRepeatNGramLogitsProcessor"}], "could not be made"),
        ([{"kind": "transformers", "target": "json:dumps", "prompt": False}], "prompt = false"),
        ([{"kind": "vllm", "target": f"{processors.__name__}:BATCH_LEVEL"}], "name its class"),
        ([{"kind": "vllm", "target": f"{processors.__name__}:Demanding"}], "no 'model_config' of vllm_config"),
        ([{"kind": "vllm", "target": f"{processors.__name__}:OfV2"}], "--logits-processors"),
        ([{"kind": "vllm", "target": f"{processors.__name__}:Invariant"}], "is_argmax_invariant"),
        ([{"kind": "vllm", "target": f"{processors.__name__}:PerRequest", "kwargs": {}}], "without kwargs"),
        ([{"kind": "vllm", "target": "json:dumps"}], "new_req_logits_processor"),
    ],
)
def test_what_cannot_be_configured_is_refused_by_name(written: Any, message: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        Host(LegacyModifier, options={"processors": written})
    assert message in str(caught.value)
    assert caught.value.field.startswith("modifier.legacy.processors")


def test_a_subclass_takes_no_options() -> None:
    with pytest.raises(InvalidConfiguration, match=r"unknown option 'processors' of modifier\.shared"):
        Host(Shared, options={"processors": []})
