"""The worker behind both executors: the same tokens everywhere, mixins called, failures confined."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_support.executor_workers import Worker as SmallWorker
from guideway import Engine, EngineConfig, FinishReason, JsonObject, SamplingParams
from guideway.api import (
    GuidewayError,
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Payload,
    PluginError,
    PluginLoadError,
    PluginNotFound,
    Request,
    SequenceInfo,
    Stage,
    StepBatch,
    UnsupportedCapability,
    WorkerLost,
)
from guideway.api.forward import Append, ForwardStep, Region, RunnerLimits, Score
from guideway_engine.assembly import _start as tell_workers
from guideway_engine.assembly import assemble
from guideway_engine.executors.process.executor import ProcessExecutor
from guideway_engine.worker import WorkerSettings

from tests.support.distributions import install
from tests.support.stages import one_in

PROMPTS = [[5 + i, 90, 700 - i, 33] for i in range(5)]
PARAMS = [
    SamplingParams(max_tokens=12),
    SamplingParams(max_tokens=12, temperature=0.9, top_p=0.9, seed=3),
    SamplingParams(max_tokens=12, constraint=JsonObject()),
    SamplingParams(max_tokens=9, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=9, temperature=1.0, seed=4, n=2),
]


@pytest.fixture(scope="module", autouse=True)
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the worker mixin `recorder`."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "recorders", {"worker.recorder": "engine_support.workers_under_test"})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def engine(executor: str, recorder: dict[str, Any] | None = None, **more: Any) -> Engine:
    config = EngineConfig(
        model="demo",
        grammar=("xgrammar",),
        max_num_seqs=4,
        executor=executor,
        worker_mixins=("recorder",),
        options={"worker.recorder": recorder or {}},
        **more,
    )
    return Engine(config)


@pytest.fixture(scope="module")
def in_process() -> Iterator[Engine]:
    with engine("process") as made:
        yield made


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """Return the results of an engine in this process."""
    with engine("local") as made:
        results = made.generate(PROMPTS, PARAMS)
    assert len(logprobs(results[3])) == 3 + 9
    return results


def assert_same(results: list[Any], expected: list[Any]) -> None:
    """Compare results. Log-probabilities may differ in their last bits, because of different batches and numbers of
    threads."""
    assert [result.error for result in results] == [None] * len(expected)
    for result, other in zip(results, expected, strict=True):
        assert [output.token_ids for output in result.outputs] == [output.token_ids for output in other.outputs]
        assert [output.text for output in result.outputs] == [output.text for output in other.outputs]
        assert logprobs(result) == pytest.approx(logprobs(other), abs=1e-4)


def logprobs(result: Any) -> list[float]:
    given = [token.logprob for token in result.prompt_logprobs or () if token]
    return given + [token.logprob for output in result.outputs for token in output.logprobs or ()]


@pytest.mark.slow
def test_a_process_of_its_own_says_the_same(in_process: Engine, expected: list[Any]) -> None:
    assert_same(in_process.generate(PROMPTS, PARAMS), expected)
    (pid,) = in_process.call_workers("recorder.process")
    assert pid != os.getpid()


def test_mixins_hear_of_every_step(in_process: Engine) -> None:
    before = len(in_process.call_workers("recorder.heard")[0])
    in_process.generate([[5, 6, 7]], SamplingParams(max_tokens=2, ignore_eos=True))
    (heard,) = in_process.call_workers("recorder.heard")
    assert heard[0] == ("loaded", "LlamaForCausalLM", "cpu", 0, 1)
    assert heard[before:] == [("before", 1, 3, 1), ("after", 3), ("before", 1, 1, 1), ("after", 1)]


def test_calls_that_fail_disturb_nothing(in_process: Engine) -> None:
    with pytest.raises(PluginError, match=r"worker\.recorder failed in fail: KeyError: 'why'") as raised:
        in_process.call_workers("recorder.fail", "why")
    assert raised.value.plugin == "worker.recorder"
    with pytest.raises(UnsupportedCapability, match="did you mean 'heard'"):
        in_process.call_workers("recorder.hear")
    with pytest.raises(InvalidRequest, match=r"arguments for recorder\.fail cannot be sent.*lambda") as refused:
        in_process.call_workers("recorder.fail", lambda: None)
    assert refused.value.field == "args"
    assert in_process.generate([[5, 6, 7]], SamplingParams(max_tokens=2))[0].error is None


def test_mixins_know_sequences_in_all_their_steps() -> None:
    with engine("local") as made:
        two = SamplingParams(max_tokens=3, ignore_eos=True, n=2, temperature=1.0)
        generations = [
            made.submit([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True), request_id="mine"),
            made.submit([8, 9], two, request_id="ours"),
        ]
        for generation in generations:
            generation.wait()
        (ids,) = made.call_workers("recorder.ids")
    assert {sequence for step in ids for sequence in step} == {"mine/0", "ours/0", "ours/1"}
    assert [sum("mine/0" in step for step in ids), max(map(len, ids))] == [3, 3]


PARTS = {
    # sequences to blame, and tokens per step: in the second case the prompt takes several steps
    "one of two outputs": (["r1/1"], 2048),
    "two requests": (["r0/0", "r2/0"], 2048),
    "in its prompt": (["r2/0"], 8),
}


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("part", one_in(3, PARTS))
def test_a_mixin_may_end_some_sequences_of_a_step(phase: str, part: str) -> None:
    blamed, budget = PARTS[part]
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    several = SamplingParams(max_tokens=5, ignore_eos=True, n=2, temperature=1.0, seed=3)

    def run(made: Engine) -> dict[str, Any]:
        prompts = [([5, 6, 7], params), ([8, 9], several), (list(range(20, 45)), params)]
        started = [
            made.submit(prompt, wanted, request_id=f"r{i}", wait=False) for i, (prompt, wanted) in enumerate(prompts)
        ]
        results = [generation.wait() for generation in started]
        return {f"r{i}/{o.index}": o for i, result in enumerate(results) for o in result.outputs}

    with engine("local", max_num_batched_tokens=budget, enable_prefix_caching=False) as made:
        wanted = run(made)
        made.call_workers("recorder.blame", phase, blamed, 0)
        (before,) = made.call_workers("recorder.ids")
        num_before = len(before)
        found = run(made)
        (ids,) = made.call_workers("recorder.ids")
        steps = ids[num_before:]
        again = run(made)
    for name, output in found.items():
        if name in blamed:
            assert sum(name in step for step in steps) == 1, "it ends at once"
            assert output.finish_reason is FinishReason.INTERNAL_ERROR
            assert isinstance(output.error, PluginError)
            assert output.error.plugin == "worker.recorder"
            assert str(output.error) == f"worker.recorder failed in {phase}_step: not today"
            assert output.token_ids == (), "those of that step are not final"
        else:
            assert (output.error, output.token_ids) == (None, wanted[name].token_ids)
    assert {name: output.token_ids for name, output in again.items()} == {
        name: output.token_ids for name, output in wanted.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_any_of_several_workers_may_blame(rank: int) -> None:
    more = {"options": {"executor.process": {"num_workers": 3}, "worker.recorder": {}}}
    config = EngineConfig(model="demo", max_num_seqs=4, executor="process", worker_mixins=("recorder",), **more)
    with Engine(config) as made:
        made.call_workers("recorder.blame", "after", ["request-0/0"], rank)
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        failed, fine = made.generate([[5, 6, 7], [8, 9]], params)
    assert "worker.recorder failed in after_step: not today" in str(failed.error)
    assert fine.error is None


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_mixin_that_fails_costs_the_requests_of_that_step(phase: str) -> None:
    with engine("local", {f"fail_{phase}": 3}) as made:
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        failed, again = (made.generate([[5, 6, 7]], params)[0] for _ in range(2))
    assert failed.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(failed.error, PluginError)
    assert str(failed.error) == f"worker.recorder failed in {phase}_step: ValueError: fail_{phase}"
    assert again.error is None
    assert len(again.token_ids) == 6


@pytest.mark.slow
def test_a_worker_killed_in_the_midst_costs_nobody_a_token(in_process: Engine, expected: list[Any]) -> None:
    (first,) = in_process.call_workers("recorder.process")
    generations = [
        in_process.submit(prompt, params, wait=False) for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    for _ in range(2):
        in_process.step()
    assert not any(generation.result for generation in generations)
    os.kill(first, signal.SIGKILL)
    assert_same([generation.wait() for generation in generations], expected)
    (second,) = in_process.call_workers("recorder.process")
    assert second != first


@pytest.mark.slow
def test_a_loss_that_a_call_finds_is_made_good_by_the_next_and_costs_nobody_a_token(
    in_process: Engine, expected: list[Any]
) -> None:
    (pid,) = in_process.call_workers("recorder.process")
    generations = [
        in_process.submit(prompt, params, wait=False) for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    for _ in range(2):
        in_process.step()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="SIGKILL"):
        while True:  # until the signal has arrived
            in_process.call_workers("recorder.process")
    assert in_process.call_workers("recorder.process") != [pid]
    assert_same([generation.wait() for generation in generations], expected)


@pytest.mark.slow  # three worker processes, one after the other, each of which imports torch and transformers
def test_a_step_that_always_kills_its_worker_ends_its_requests() -> None:
    with engine("process", {"die_always": True}) as made:
        result = made.generate([[5, 6, 7]], SamplingParams(max_tokens=3))[0]
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(result.error, WorkerLost)
    assert "exited with status 4" in str(result.error)


def test_closing_the_engine_closes_mixins(tmp_path: Path) -> None:
    made = engine("local", {"closed": str(tmp_path / "closed")})
    assert not (tmp_path / "closed").exists()
    made.close()
    made.close()
    assert (tmp_path / "closed").exists()


class Sent(LogitModifier[None]):
    name, stage, transform = "sent", Stage.PRE_WARP, LogitTransform

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> None:
        return None

    def prepare(self, batch: StepBatch, states: SequenceOf[None]) -> Payload | None:
        return None


def test_what_cannot_be_sent_to_workers_is_named() -> None:
    class Local(Sent):
        name = "local"

    with pytest.raises(
        InvalidConfiguration, match=r"the options of worker\.recorder cannot be sent .*lambda"
    ) as caught:
        engine("process", {"closed": lambda: 0})
    assert caught.value.field == "options.worker.recorder"
    executor = ProcessExecutor(SmallWorker, {})
    try:
        for modifier, options, error, message in (
            (Local, {}, PluginLoadError, r"modifier\.local cannot be sent .* its class does not pickle"),
            (Sent, {"f": lambda: 0}, InvalidConfiguration, r"the options of modifier\.sent cannot be sent .*lambda"),
        ):
            limits = RunnerLimits(num_cells=1, max_length=1, max_num_tokens=1, max_num_rows=1)
            settings = WorkerSettings(modifiers=[(Sent, {}), (modifier, options)], vocabulary_size=1, limits=limits)
            with pytest.raises(error, match=message):
                tell_workers(executor, settings)
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"worker_mixins": ("recroder",)}, PluginNotFound, "did you mean 'recorder'"),
        ({"executor": "proces"}, PluginNotFound, "did you mean 'process'"),
        ({"options": {"executor.local": {"num_workers": 2}}}, InvalidConfiguration, "unknown option 'num_workers'"),
        ({"options": {"device.torch": {"x": 2}}}, InvalidConfiguration, "device 'torch' takes no options"),
        ({"kv_cache_tokens": 1000}, InvalidConfiguration, "kv_cache_tokens must be at least 1024"),
        ({"max_model_len": 5000}, InvalidConfiguration, "max_model_len is 5000, .* of this model is 1024"),
        ({"device": "abacus"}, InvalidConfiguration, "cannot use the device .abacus."),
    ],
)
def test_configurations_that_cannot_be_had(fields: dict[str, Any], error: type[GuidewayError], message: str) -> None:
    with pytest.raises(error, match=message):
        Engine(EngineConfig(model="demo", **fields))


def test_slots_are_enough_for_sequences_that_wait() -> None:
    parts = assemble(EngineConfig(model="demo", max_num_seqs=3, max_model_len=100))
    assert (parts.cache.num_slots, parts.cache.num_cells) == (6, 384)
    assert parts.runtime.context.max_num_sequences == 6
    assert (parts.info.logits_width, parts.info.max_context) == (1536, 1024)
    with pytest.raises(GuidewayError, match="without a forward pass"):
        parts.executor.submit("sample", None).result()
    parts.executor.close()
    parts.runtime.close()


def test_given_tokens_are_scored_beside_or_without_sampling() -> None:
    """Compared with the model's own log-softmax."""
    parts = assemble(EngineConfig(model="demo", max_num_seqs=2, max_model_len=100))
    ids = [10, 500, 37, 800, 9]
    scored = np.array([500, 37, 800], dtype=np.int32)
    step = ForwardStep([Append(Region(0, 128), 0, ids[:3], 3)], score=Score(scored, 2))
    parts.executor.submit("forward", step)
    output = parts.executor.submit("sample", None).result()
    assert len(output.step.token_ids) == 0
    from guideway_demo_model import DemoModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(DemoModel().path(), dtype=torch.float32)
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([ids[:3]])).logits[0], dim=-1)
    picked = logprobs[torch.arange(3), torch.from_numpy(scored).long()].numpy()
    np.testing.assert_allclose(output.prompt.chosen, picked, atol=1e-4)
    assert (output.prompt.top_ids == logprobs.topk(2).indices.numpy()).all()
    parts.executor.close()
    parts.runtime.close()
