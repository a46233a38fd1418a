"""vLLM's V2 model runner: its own features, and the same tokens as in V1 and in guideway's own engine.

The other modules here test the rest: `make test-vllm` runs some of them again in V2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.another import tokens
from tests.vllm.probes_in_vllm import GUIDEWAY, check_nothing_left, installed, params, prompt
from tests.vllm.test_exact_state import KINDS, MAX_TOKENS, SCHEMA, Job

JOBS = [Job(kind, number) for number, kind in enumerate(KINDS)]
LATE = {"modifiers": {"gumbel": {}}, "temperature": 1.0, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder where the probes are installed."""
    with installed(folder := tmp_path_factory.mktemp("installed")):
        yield folder


@pytest.fixture(scope="module")
def llm(start: Callable[..., Any], folder: Path) -> Any:
    """vLLM as a server on a GPU runs it: V2 with asynchronous scheduling, and a worker mixin."""
    mixin = {"worker_mixins": ["layer_timing"]}
    return start({**GUIDEWAY, **mixin}, worker_extension_cls="guideway_vllm.worker.WorkerExtension")


def generate(llm: Any, jobs: list[Job]) -> list[list[int]]:
    """Return the tokens of each job."""
    prompts = [{"prompt_token_ids": job.prompt} for job in jobs]
    outputs = llm.generate(prompts, [job.params for job in jobs], use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_a_schema_is_kept_with_asynchronous_scheduling(llm: Any) -> None:
    core = llm.llm_engine.engine_core.engine_core
    assert core.batch_queue_size == 2
    (output,) = llm.generate([{"prompt_token_ids": prompt(0)}], params(json=SCHEMA), use_tqdm=False)
    assert json.loads(output.outputs[0].text).keys() == {"name", "age"}
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.slow
def test_tokens_are_those_of_v1(llm: Any, folder: Path) -> None:
    assert generate(llm, JOBS) == tokens(folder, v2=False)
    check_nothing_left(llm)


def test_tokens_are_those_of_guideways_own_engine(llm: Any) -> None:
    from guideway import Engine, JsonSchema, Regex, SamplingParams

    ours = []
    for job in JOBS:
        given = dict(KINDS[job.kind])
        strategy = given.pop("strategy", "llguidance")
        constraint = None
        if "json" in given:
            constraint = JsonSchema(given.pop("json"), strategy=strategy)
        elif "regex" in given:
            constraint = Regex(given.pop("regex"), strategy=strategy)
        temperature = {"temperature": 0.0, **given}
        ours.append(SamplingParams(max_tokens=MAX_TOKENS, constraint=constraint, **temperature))
    with Engine(
        "demo",
        grammar=GUIDEWAY["grammar"],
        modifiers=GUIDEWAY["modifiers"],
        options=GUIDEWAY["options"],
        short_budget="cut",
    ) as engine:
        results = engine.generate([job.prompt for job in JOBS], ours)
    assert [result.error for result in results] == [None] * len(JOBS)
    assert generate(llm, JOBS) == [list(result.token_ids) for result in results]


def test_a_worker_mixin_hears_of_each_step(llm: Any) -> None:
    llm.collective_rpc("guideway", args=("layer_timing.reset",))
    given = {"max_tokens": 5, "ignore_eos": True}
    llm.generate([{"prompt_token_ids": prompt(i)} for i in range(3)], params({"chain": {}}, **given), use_tqdm=False)
    (report,) = llm.collective_rpc("guideway", args=("layer_timing.report",))
    assert report.startswith(f"5 steps, {sum(len(prompt(i)) for i in range(3)) + 3 * 4} tokens")


def test_each_of_several_ranks_draws_all_rows(llm: Any) -> None:
    """Otherwise each rank would draw some rows, but only the output of one is used."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    expected = generate(llm, JOBS[:2])
    runner.batch_sharder = sharder = object()
    try:
        assert generate(llm, JOBS[:2]) == expected
        assert runner.batch_sharder is sharder
    finally:
        runner.batch_sharder = None


def test_requests_end_if_vllm_no_longer_asks_for_masks(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of vLLM might do so, and would draw tokens without masks."""
    worker = llm.llm_engine.model_executor.driver_worker.worker
    seams = worker.guideway_guest._seams
    sample = seams._sample
    with monkeypatch.context() as patch:
        patch.setattr(seams, "_sample", lambda hidden_states, input_batch, _: sample(hidden_states, input_batch, None))
        prompts = [{"prompt_token_ids": prompt(i)} for i in range(2)]
        outputs = llm.generate(prompts, [params(json=SCHEMA), params()], use_tqdm=False)
    failed, healthy = outputs
    assert failed.outputs[0].finish_reason == "error"
    assert "without asking for its masks" in failed.kv_transfer_params["guideway"]["error"]
    assert healthy.outputs[0].finish_reason in ("error", "length", "stop")
    assert llm.generate([{"prompt_token_ids": prompt(0)}], params(json=SCHEMA), use_tqdm=False)[0].finished
    check_nothing_left(llm)
