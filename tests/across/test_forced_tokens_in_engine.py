"""Forced tokens change the number of forward passes, and in the mode ``exact`` nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guideway import Choice, Engine, EngineConfig, GenerationResult, JsonSchema, Regex, SamplingParams
from guideway.api import (
    Array,
    FinishReason,
    LogitModifier,
    LogitTransform,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
)
from guideway.api.bitmask import allocate, allow_only

from tests.support.distributions import install
from tests.support.json_strategies import STRATEGIES

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "married": {"type": "boolean"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 20}, "city": {"enum": ["Bonn", "Berlin"]}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "married", "address"],
    "additionalProperties": False,
}
COMPACT = JsonSchema(PERSON, whitespace="compact")
PROMPT = "Extract name, age, married, address. Zoe Garcia, 31, is married and lives in Bonn, 5 Park Lane."
LONG = Regex("(forced beginning of the text )[a-z]{2}( and a forced end)")
PARAMS = [
    SamplingParams(max_tokens=120, constraint=COMPACT, logprobs=2),
    SamplingParams(max_tokens=120, temperature=1.0, seed=3, n=2, constraint=COMPACT),
    SamplingParams(max_tokens=120, temperature=1.3, seed=4, top_p=0.9, constraint=JsonSchema(PERSON), logprobs=0),
    SamplingParams(max_tokens=46, temperature=1.0, seed=5, constraint=COMPACT),  # closed early, or refused
    SamplingParams(max_tokens=30, temperature=1.0, seed=5, constraint=COMPACT, close=False),  # cut
    SamplingParams(max_tokens=120, temperature=1.0, seed=6, constraint=COMPACT, stop=('"married', 'r"')),
    SamplingParams(max_tokens=60, temperature=1.0, seed=7, constraint=LONG, min_tokens=40, logprobs=1),
    SamplingParams(max_tokens=60, temperature=1.0, seed=7, constraint=LONG, min_tokens=40),
    SamplingParams(max_tokens=60, temperature=1.0, seed=8, constraint=Choice(["one of two", "one of three", "none"])),
    SamplingParams(max_tokens=60, temperature=1.0, seed=9, constraint=LONG, prompt_logprobs=0, stop_token_ids=(2,)),
    SamplingParams(max_tokens=20, temperature=1.0, seed=10),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "inline": {"grammar_host": "inline"},
    "drafts": {"num_speculative_tokens": 3},
    "chunks": {"max_num_seqs": 3, "max_num_batched_tokens": 7},
    "preempted": {"kv_cache_tokens": 512},
    "workers": {"executor": "process"},
}


def config(strategy: str, **settings: Any) -> EngineConfig:
    # float64: else a row computed beside others could be drawn from differently
    shared: dict[str, Any] = {"model": "demo", "grammar": (strategy,), "dtype": "float64", "max_model_len": 256}
    return EngineConfig(**shared | {"max_num_seqs": 8} | settings)


def passes(engine: Engine) -> list[int]:
    """Grows by one with each forward pass, by how many sequences had a part in it."""
    found: list[int] = []
    stepper: Any = engine._scheduler._stepper  # type: ignore[attr-defined]
    run = stepper.run

    def counted(works: Any) -> Any:
        found.append(len(works))
        return run(works)

    stepper.run = counted
    return found


def generate(engine: Engine, params: Sequence[SamplingParams] = PARAMS) -> list[GenerationResult]:
    return engine.generate([f"{PROMPT} {i}" for i in range(len(params))], params)


def expect_equal(results: Sequence[GenerationResult], expected: Sequence[GenerationResult]) -> None:
    for result, wanted in zip(results, expected, strict=True):
        for output, reference in zip(result.outputs, wanted.outputs, strict=True):
            for name in ("text", "token_ids", "finish_reason", "stop", "unenforced", "closed_early", "reports"):
                assert getattr(output, name) == getattr(reference, name), name
            assert str(output.error) == str(reference.error)
            assert (output.logprobs is None) is (reference.logprobs is None)
            for entry, other in zip(output.logprobs or (), reference.logprobs or (), strict=True):
                assert entry.token_id == other.token_id
                assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert [i for i, _ in entry.top] == [i for i, _ in other.top]
        assert len(result.prompt_logprobs or ()) == len(wanted.prompt_logprobs or ())


@pytest.fixture(scope="module")
def without() -> Iterator[dict[str, list[GenerationResult]]]:
    """By strategy what a run without forced tokens gives."""
    found = {}
    for strategy in STRATEGIES:
        with Engine(config(strategy, forced_tokens="off")) as engine:
            found[strategy] = generate(engine)
    yield found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("settings", [SETTINGS["exact"], SETTINGS["inline"]], ids=["process", "inline"])
def test_no_strategys_output_changes(
    strategy: str, settings: dict[str, Any], without: dict[str, list[GenerationResult]]
) -> None:
    with Engine(config(strategy, **settings)) as engine:
        expect_equal(generate(engine), without[strategy])
    assert any(result.finish_reason is FinishReason.STOP for result in without[strategy])


@pytest.mark.parametrize("name", SETTINGS)
def test_no_output_changes_however_the_engine_runs(name: str, without: dict[str, list[GenerationResult]]) -> None:
    with Engine(config("llguidance", **SETTINGS[name])) as engine:
        expect_equal(generate(engine), without["llguidance"])
