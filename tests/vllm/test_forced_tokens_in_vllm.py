"""Forced tokens as drafts, without another drafter: fewer steps, the same tokens at temperature 0, and a refusal by
name where vLLM could not verify them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from guideway.api import InvalidConfiguration

from tests.support.stages import everyday
from tests.vllm.probes_in_vllm import check_nothing_left

GUIDEWAY = {"grammar": ["llguidance", "xgrammar"], "whitespace": "compact"}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "maximum": 120},
        "married": {"type": "boolean"},
        "of": {"enum": ["Bonn", "Berlin"]},
    },
    "required": ["name", "age", "married", "of"],
    "additionalProperties": False,
}
PROMPT = "Extract name, age, married, of. Anna Berg of Bonn is 34 years old and married."
WANTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"json": PERSON}, {}),
    ({"json": PERSON}, {"logprobs": 1}),
    ({"json": PERSON}, {"max_tokens": 20}),
    ({"json": PERSON}, {"extra_args": {"guideway.strategy": "xgrammar"}}),
    ({"regex": "(it is forced, )[ab](and this too)[ab]{2}"}, {"min_tokens": 8}),
    ({"choice": ["one of two", "one of three"]}, {"stop": ["of t"]}),
    ({}, {"max_tokens": 25}),
]

PREEMPTED = {"max_model_len": 160, "block_size": 32, "num_gpu_blocks_override": 8}
"""Too little room for all requests."""


def generate(llm: Any) -> list[tuple[Any, ...]]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = [
        SamplingParams(
            **{"temperature": 0, "max_tokens": 60} | more,
            structured_outputs=StructuredOutputsParams(**constraint) if constraint else None,
        )
        for constraint, more in WANTED
    ]
    results = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    outputs = [result.outputs[0] for result in results]
    return [(tuple(one.token_ids), one.text, one.finish_reason, one.stop_reason) for one in outputs]


def count(llm: Any, name: str) -> int:
    return sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:spec_decode_num_{name}")


@pytest.mark.parametrize("host", everyday(["process", "inline"], "process"))
@pytest.mark.parametrize("mode", everyday(["exact", "auto"], "auto"))
@pytest.mark.parametrize("settings", everyday([{}, PREEMPTED], {}), ids=str)
def test_the_tokens_are_those_without(
    start: Callable[..., Any], host: str, mode: str, settings: dict[str, Any]
) -> None:
    given = GUIDEWAY | {"grammar_host": host}
    expected = generate(start(given, disable_log_stats=False, **settings))
    llm = start(given | {"forced_tokens": mode}, disable_log_stats=False, **settings)
    for _ in range(2):  # the second time, what is forced is known
        before, drafted = count(llm, "accepted_tokens"), count(llm, "draft_tokens")
        assert generate(llm) == expected
        taken = count(llm, "accepted_tokens") - before
        assert taken > 20
        assert taken > (count(llm, "draft_tokens") - drafted) / 2
    check_nothing_left(llm)


def configure(demo_model: str, **options: Any) -> Any:
    """Return the settings that guideway reads of a server."""
    from guideway_vllm.config import GuestConfig
    from vllm.engine.arg_utils import EngineArgs

    additional = {"guideway": GUIDEWAY | {"forced_tokens": "auto"}}
    args = EngineArgs(model=demo_model, additional_config=additional, max_model_len=128, **options)
    for _ in range(2):  # as each process of a server does
        config = args.create_engine_config()
        assert GuestConfig.of(config) is not None
    return config


@pytest.mark.parametrize(
    "speculative",
    [
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
        {"spec_method": "ngram", "spec_tokens": 2},
    ],
    ids=["config", "flags"],
)
def test_other_drafts_beside_it_are_refused_by_name(demo_model: str, speculative: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidConfiguration, match=r'forced_tokens is not "off", but speculative_config is set'
    ) as told:
        configure(demo_model, **speculative)
    assert told.value.field == "forced_tokens"


def test_asynchronous_scheduling_is_off_and_refused_by_name(demo_model: str) -> None:
    assert configure(demo_model).scheduler_config.async_scheduling is False
    with pytest.raises(InvalidConfiguration, match="leave out --async-scheduling, or forced_tokens"):
        configure(demo_model, async_scheduling=True)


def test_the_v2_runner_is_refused_by_name(demo_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configure(demo_model).use_v2_model_runner is False
    # an engine that was started here has made vLLM read its environment once
    monkeypatch.setattr("vllm.envs.VLLM_USE_V2_MODEL_RUNNER", True, raising=False)
    with pytest.raises(InvalidConfiguration, match="vLLM's V2 model runner takes no drafts"):
        configure(demo_model)


def test_the_line_at_the_start_says_so(start: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.guideway"):
        start(GUIDEWAY | {"forced_tokens": "exact"}, max_model_len=128)
    assert "forced_tokens=exact, so without asynchronous scheduling" in caplog.text
