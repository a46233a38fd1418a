"""Prompts as mappings, with the keys of an input line of ``guideway generate``."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from guideway import AsyncEngine, Engine, FinishReason, InvalidRequest, SamplingParams
from guideway_engine.command_line.jobs import add_flags, read_jobs
from guideway_engine.entries import LINE_KEYS, read_entry

PARAMS = SamplingParams(max_tokens=6)

OWN: dict[str, Any] = {"prompt": [5, 80], "max_tokens": 3, "temperature": 1.0, "seed": 3}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", grammar=("llguidance",)) as built:
        yield built


def test_a_mapping_sets_its_own_parameters(engine: Engine) -> None:
    (expected,) = engine.generate([[5, 80]], SamplingParams(max_tokens=3, temperature=1.0, seed=3))
    (chosen,) = engine.generate(["x"], SamplingParams(max_tokens=6, constraint=["yes", "no"]))
    first, second, third = engine.generate([OWN | {"id": 7}, {"prompt": "x", "choice": ["yes", "no"]}, "x"], PARAMS)
    assert first.token_ids == expected.token_ids
    assert (first.request_id, second.answer) == ("7", chosen.answer)
    assert third.token_ids == engine.generate(["x"], PARAMS)[0].token_ids
    assert engine.generate(OWN)[0].token_ids == expected.token_ids, "one mapping is one prompt, as one text is"
    assert engine.submit(OWN | {"id": "mine"}).wait().request_id == "mine"


def test_it_is_the_same_in_an_async_engine(engine: Engine) -> None:
    async def run() -> Any:
        async with AsyncEngine("demo", grammar=()) as serving:
            wrong = await serving.generate({"prompt": "x", "max_token": 3})
            with pytest.raises(InvalidRequest, match="did you mean 'max_tokens'"):
                await serving.submit({"prompt": "x", "max_token": 3})
            return await serving.generate(OWN), wrong

    right, wrong = asyncio.run(run())
    assert right.token_ids == engine.generate(OWN)[0].token_ids
    assert (wrong.finish_reason, wrong.error.field) == (FinishReason.REFUSED, "input")


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"prompt": "x", "max_token": 3}, "a prompt has the unknown key 'max_token'; did you mean 'max_tokens'?"),
        ({"prompt": "x", 5: 3}, "a prompt has the unknown key 5; known are prompt, id"),
        ({"prompt": "x", "regex": "a", "choice": ["a"]}, "has both"),
        ({"prompt": "x", "schema": "{}"}, "a prompt must hold the schema itself"),
        ({"prompt": "x", "temperature": -1}, "temperature must be 0"),
        ({"prompt": "x", "tenant": 5}, "tenant must be a string"),
        ({"prompt": {"prompt": "x"}}, "a prompt of chat messages must be a list"),
        ({"prompt": "x", "id": "same"}, "two prompts have the id 'same'"),
    ],
)
def test_a_wrong_mapping_refuses_its_prompt_alone(engine: Engine, prompt: Any, said: str) -> None:
    fine, wrong = engine.generate([{"prompt": [5], "id": "same"}, prompt], PARAMS)
    assert fine.error is None
    assert wrong.finish_reason is FinishReason.REFUSED
    assert said in str(wrong.error)


VALUES: dict[str, Any] = {
    "prompt": "text",
    "id": 5,
    "tenant": "a",
    "modifiers": {"kgw": {"gamma": 0.5}},
    "on_unenforced": "check",
    "schema": {"type": "object"},
    "regex": "a+",
    "choice": ["a"],
    "grammar": {"dialect": "lark", "text": 'start: "a"'},
    "stop": ["a", "b"],
    "stop_token_ids": [1, 2],
    "logit_bias": {"5": 1.0},
}


@pytest.mark.parametrize("key", LINE_KEYS)
def test_every_key_means_what_it_means_in_a_line(key: str, tmp_path: Any) -> None:
    entry = {"prompt": [1], key: VALUES.get(key, 1)}
    (tmp_path / "lines").write_text(json.dumps(entry), encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_flags(parser)
    args = parser.parse_args(["--input", str(tmp_path / "lines"), "--raw"])
    args.modifier = []
    (job,) = read_jobs(args)
    read = read_entry(entry, SamplingParams(max_tokens=256), "", "0")
    assert job.error is None
    assert (job.prompt, job.params, job.tenant, job.id) == (read.prompt, read.params, read.tenant, read.request_id)
