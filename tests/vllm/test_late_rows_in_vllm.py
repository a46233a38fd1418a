"""Late rows in vLLM: a request whose masks are not ready skips steps, and all tokens stay the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.distributions import install
from tests.support.stages import everyday

LIMITS = {"fill_seconds": 5.0, "step_seconds": 5.0, "late_seconds": 0.03, "late_fills": 1000}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
CHUNKS = {"max_num_seqs": 8, "max_num_batched_tokens": 16}
"""The first prompt takes several steps with these options."""
PROMPTS = ["FTab FTab " * 6, "hello", "Which colour?", "hello there", "FTab FTab", "and so on"]
HELLO = {"guideway.modifiers": '{"hello": {"letter": "e", "strength": 5}}'}
WANTED: list[dict[str, Any]] = [
    {"constraint": {"regex": "FT[a-z ]{9,14}"}, "temperature": 1.0, "seed": 5, "logprobs": 2, "prompt_logprobs": 1},
    {"constraint": {"regex": "[a-z]{3,12}(x|y)"}, "temperature": 1.0, "seed": 7, "logprobs": 2},
    {"constraint": {"json": {"enum": ["red", "green"]}}, "temperature": 0},
    {"temperature": 1.0, "seed": 3, "ignore_eos": True},
    {"constraint": {"regex": "FT[a-z ]{3,8}"}, "temperature": 0, "extra_args": HELLO},
    {"constraint": {"regex": "[a-z]{200,220}"}, "temperature": 0, "max_tokens": 80},
]


@pytest.fixture(autouse=True)
def hostile(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "hostile", {"grammar.hostile": "tests.support.hostile_strategy"})
    monkeypatch.syspath_prepend(str(folder))


def outputs(llm: Any, num_wanted: int = len(WANTED), **more: Any) -> list[Any]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = []
    for wanted in WANTED[:num_wanted]:
        options = {"max_tokens": 24} | wanted | more
        constraint = options.pop("constraint", None)
        outputs = None if constraint is None else StructuredOutputsParams(**constraint)
        params.append(SamplingParams(structured_outputs=outputs, **options))
    return list(llm.generate(PROMPTS[:num_wanted], params, use_tqdm=False))


def summarize(of: list[Any]) -> list[Any]:
    return [
        (output.outputs[0].text, list(output.outputs[0].token_ids), output.outputs[0].finish_reason) for output in of
    ]


def num_late() -> float:
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value("guideway_late_rows_total", {"strategy": "hostile"}) or 0.0


@pytest.mark.parametrize(
    "options", everyday([{}, {"speculative_config": NGRAM}, {"max_num_seqs": 2}, CHUNKS], {}), ids=str
)
def test_tokens_and_their_probabilities_are_the_same(start: Callable[..., Any], options: dict[str, Any]) -> None:
    guideway = {"grammar": ["hostile"], "modifiers": ["hello"], "limits": LIMITS}
    # the random numbers that a request uses depend on its drafts, and a late request has none
    greedy = {"temperature": 0, "seed": None} if "speculative_config" in options else {}
    expected = outputs(start(guideway | {"grammar_host": "inline"}, **options), **greedy)
    before = num_late()
    llm = start(guideway | {"grammar_host": "process"}, **options)
    after = outputs(llm, **greedy)
    assert summarize(after) == summarize(expected)
    assert num_late() > before, "nothing was late"
    if options is CHUNKS:  # draws after a partial prompt use no random number
        assert summarize(after) == summarize(outputs(start(guideway | {"grammar_host": "inline"})))
        llm = start(guideway | {"grammar_host": "process"}, **options)
    for output, other in zip(after, expected, strict=True):
        assert logprobs(output.outputs[0].logprobs) == pytest.approx(logprobs(other.outputs[0].logprobs), abs=1e-3)
        assert logprobs(output.prompt_logprobs) == pytest.approx(logprobs(other.prompt_logprobs), abs=1e-3)
    assert len(after[0].prompt_logprobs) == len(after[0].prompt_token_ids)
    again = outputs(llm, **greedy)
    assert summarize(again) == summarize(expected)


def test_drafts_above_temperature_0_keep_to_their_masks(start: Callable[..., Any]) -> None:
    """vLLM's function for CPUs leaves the temperatures of drafts uninitialised."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = start({"grammar": ["xgrammar"]}, speculative_config=NGRAM)
    schema = {"type": "array", "items": {"type": "string", "minLength": 6, "maxLength": 30}, "minItems": 9}
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema))
        for i in range(8)
    ]
    results = llm.generate(["hello hello"] * 8, params, use_tqdm=False)
    assert [(each.outputs[0].finish_reason, each.kv_transfer_params["guideway"].get("error")) for each in results] == [
        ("stop", None)
    ] * 8


def test_top_k_alone_goes_with_drafts(start: Callable[..., Any]) -> None:
    """Some steps have no draft; vLLM's worker would end in these on a CPU."""
    from vllm import SamplingParams

    llm = start({"grammar": ["xgrammar"]}, speculative_config=NGRAM)
    params = SamplingParams(temperature=1.0, top_k=5, seed=1, max_tokens=8, ignore_eos=True)
    (result,) = llm.generate(["hello"], params, use_tqdm=False)
    assert len(result.outputs[0].token_ids) == 8


def logprobs(of: Any) -> list[float]:
    """Return all log-probabilities, in order."""
    return [logprob.logprob for position in of or () if position for _, logprob in sorted(position.items())]


def test_who_is_late_too_often_fails_alone(start: Callable[..., Any]) -> None:
    limits = LIMITS | {"late_fills": 2}
    llm = start({"grammar": ["hostile"], "modifiers": ["hello"], "limits": limits, "grammar_host": "process"})
    after = outputs(llm)
    assert [output.outputs[0].finish_reason for output in after[1:4]] != ["error"] * 3
    report = after[0].kv_transfer_params["guideway"]
    assert "it took more than 0.03 s processor time for one step, 2 times" in report["error"]


@pytest.mark.slow
def test_without_a_prefix_cache_others_wait(start: Callable[..., Any]) -> None:
    guideway = {"grammar": ["hostile"], "modifiers": ["hello"], "limits": LIMITS, "grammar_host": "process"}
    llm = start(guideway, enable_prefix_caching=False)
    before = num_late()
    after = outputs(llm)
    assert num_late() == before
    assert "0.03 s processor time for one step, 3 times" in after[0].kv_transfer_params["guideway"]["error"]
    assert [output.outputs[0].finish_reason for output in after[1:4]] == ["stop", "stop", "length"]


def test_vllm_rests_while_all_that_could_run_sits_out(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = start({"grammar": ["hostile"], "modifiers": ["hello"], "limits": LIMITS, "grammar_host": "process"})
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    running: list[int] = []

    def rest(seconds: float) -> None:
        running.append(len(scheduler.running))
        time.sleep(seconds)

    monkeypatch.setattr("guideway_vllm.scheduler.time", SimpleNamespace(sleep=rest, monotonic=time.monotonic))
    before = num_late()
    outputs(llm, num_wanted=2)  # the others may run for longer than the first one is late
    assert num_late() > before, "nothing was late"
    assert running and not any(running), "it rests, and never beside one that runs"
