"""Every field of the Python API goes through its call with a right and with a wrong value."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from engine_support.encoders import encoder, stored
from guideway import (
    AsyncEngine,
    Choice,
    Engine,
    EngineConfig,
    FinishReason,
    Grammar,
    InvalidConfiguration,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    PluginSettings,
    ReasoningConfig,
    Regex,
    SamplingParams,
    StructuralTag,
    extract,
)
from guideway.api.types import CONSTRAINTS
from guideway.errors import GuidewayError, LimitExceeded, PluginError
from guideway.plugins.limits import Limits
from guideway_engine.generation import Generation

Case = tuple[Any, Any]
"""A right and a wrong value."""

SETTINGS: dict[str, Case] = {
    "model": ("demo", "dmo"),
    "workflow": ("decode", "embd"),
    "grammar": (("llguidance",), "llgudance"),
    "modifiers": (("hello",), ("helo",)),
    "worker_mixins": ("layer_timing", ("layer_timer",)),
    "device_backend": ("torch", "torhc"),
    "device": ("cpu", "nowhere"),
    "dtype": ("float64", "float9"),
    "load_format": ("auto", "bin"),
    "runner": ("transformers", "transformer"),
    "executor": ("process", "proces"),
    "max_num_seqs": (4, 0),
    "max_model_len": (128, 5000),
    "kv_cache_tokens": (4096, 5),
    "max_num_batched_tokens": (64, 0),
    "enable_prefix_caching": (False, "no"),
    "isolate_tenants": (True, 1),
    "max_waiting": (4, 0),
    "num_speculative_tokens": (2, -1),
    "forced_tokens": ("canonical", "none"),
    "split_special_tokens": (False, None),
    "grammar_host": ("inline", "thread"),
    "modifier_host": ("process", "thread"),
    "host_environment": (("LMFE_*",), "LMFE_*"),
    "compile_threads": (1, 0),
    "grammar_cache_bytes": (0, -1),
    "whitespace": ("compact", "none"),
    "short_budget": ("cut", "drop"),
    "reasoning": (ReasoningConfig(end_str="</think>"), {"end_str": "</think>"}),
    "on_unenforced": ("check", "ignore"),
    "limits": (Limits(compile_seconds=5.0), {"compile_seconds": 5.0}),
    "options": ({"device.torch": {}}, {"device.torhc": {}}),
    "plugins": (PluginSettings(deny=("*/grammar.reference",)), None),
}

TABLES: dict[type, dict[str, Case]] = {
    Limits: {
        "admission_seconds": (5.0, 0),
        "compile_seconds": (5.0, -1.0),
        "start_seconds": (1, "1"),
        "step_seconds": (0.25, math.nan),
        "fill_seconds": (0.25, None),
        "late_seconds": (0.1, -0.1),
        "late_fills": (3, 0),
        "request_seconds": (60.0, 0),
        "wall_factor": (2.0, 0.5),
        "memory_bytes": (1 << 30, 5),
        "total_memory_bytes": (None, 5),
        "remembered_seconds": (60.0, "long"),
    },
    ReasoningConfig: {
        "start_str": ("<think>", 5),
        "start_token_ids": ((70, 71), ("a",)),
        "end_str": ("</think>", 5),
        "end_token_ids": ((72, 73), 72),
        "excluded_token_ids": ((74,), "74"),
    },
    PluginSettings: {
        "enable": ((), "tenant_policy"),
        "allow": (("*/*",), ("torch",)),
        "deny": (("*/worker.*",), ("torch",)),
        "require": ("installed", "proven"),
        "lock": (None, ""),
    },
}

PARAMS: dict[str, Case] = {
    "max_tokens": (3, 0),
    "min_tokens": (2, -1),
    "temperature": (0.7, -1),
    "top_k": (3, -2),
    "top_p": (0.5, 0),
    "min_p": (0.1, 2),
    "typical_p": (0.5, 0),
    "repetition_penalty": (1.2, 0),
    "frequency_penalty": (0.5, "a"),
    "presence_penalty": (0.5, 1e4),
    "logit_bias": ({5: 1.0}, {-1: 1.0}),
    "seed": (5, -1),
    "stop": ("end", 5),
    "stop_token_ids": ((2,), (-1,)),
    "ignore_eos": (True, 1),
    "n": (2, 0),
    "best_of": (2, 0),
    "logprobs": (1, -1),
    "logprobs_mode": ("processed", "cooked"),
    "records": (True, 1),
    "prompt_logprobs": (0, -1),
    "echo": (True, "yes"),
    "priority": (1, "high"),
    "constraint": (Regex("[ab]"), 5),
    "on_unenforced": ("check", "ignore"),
    "max_retries": (1, -1),
    "close": (False, None),
    "reasoning": (False, "no"),
    "thinking_token_budget": (5, 0),
    "modifiers": ({"hello": {"letter": "e"}}, {"helo": {}}),
}
BESIDE: dict[str, dict[str, Any]] = {
    "logprobs_mode": {"logprobs": 0},
    "max_retries": {"constraint": bool},
    "thinking_token_budget": {"reasoning": True},
}
"""Parameters that one needs beside it."""

BOOLEAN: dict[str, Any] = {"schema": {"type": "boolean"}}
OF_CONSTRAINTS: dict[type, tuple[Callable[..., Any], dict[str, Case]]] = {
    JsonSchema: (
        lambda **given: JsonSchema(**{"schema": {"type": "boolean"}} | given),
        {"schema": (True, {"type": 5}), "properties_order": ("any", "alphabetical")},
    ),
    JsonObject: (JsonObject, {}),
    Regex: (lambda **given: Regex(**{"pattern": "[ab]"} | given), {"pattern": ("a|b", "(")}),
    Choice: (lambda **given: Choice(**{"choices": ["a"]} | given), {"choices": (["a", "b"], [])}),
    Grammar: (
        lambda **given: Grammar(**{"text": 'start: "a"', "dialect": "lark"} | given),
        {"text": ('start: "b"', "start: ("), "dialect": ("lark", "klingon")},
    ),
    StructuralTag: (
        lambda **given: StructuralTag(**{"tag": {"type": "structural_tag", "format": {"type": "any_text"}}} | given),
        {"tag": ({"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}, {"type": "tag"})},
    ),
}
SHARED: dict[str, Case] = {"strategy": ("llguidance", "llgudance"), "whitespace": ("compact", "none")}
"""Fields of several constraints."""

MESSAGES = [{"role": "user", "content": "Hi"}]
FEW = SamplingParams(max_tokens=2)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}


CALLS: dict[str, tuple[dict[str, Any], dict[str, Case]]] = {
    "generate": (
        {"prompts": [[5]], "params": FEW},
        {
            "prompts": ("text", 5),
            "params": ([FEW], 5),
            "tools": ((), 5),
            "tenants": (["a"], 5),
            "on_result": (lambda *_: None, 5),
        },
    ),
    "chat": (
        {"messages": MESSAGES, "params": FEW},
        {
            "messages": ([MESSAGES], "text"),
            "params": (FEW, 5),
            "tools": ((), [5]),
            "tenants": ("a", ["a", "b"]),
            "on_result": (lambda *_: None, "print"),
        },
    ),
    "submit": (
        {"prompt": [5], "params": FEW},
        {
            "prompt": ("text", 5),
            "params": (FEW, 5),
            "tools": ((), 5),
            "tenant": ("a", 5),
            "request_id": ("mine", 5),
            "wait": (False, "no"),
        },
    ),
    "score": (
        {"prompt": [5], "labels": ["a"]},
        {"prompt": ("text", 5), "labels": (["a", "b"], "a"), "tenant": ("a", 5)},
    ),
    "step": ({}, {"timeout": (0, "long")}),
}
NOT_ASKED = {
    *("check_health", "has_work", "is_waiting"),  # no arguments
    *("abort", "fork", "call_workers", "close"),  # other tests cover their arguments
    *("has_room", "answer_start"),  # for hosts: parameters that are not checked yet count as the defaults
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings: dict[str, Any] = {"grammar": ("llguidance",), "modifiers": ("hello",)}
    with Engine("demo", reasoning=ReasoningConfig(end_str="</think>"), **settings) as built:
        yield built


def names(cls: type) -> set[str]:
    return {field.name for field in fields(cls)}


def arguments(call: Any) -> set[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for name, each in inspect.signature(call).parameters.items() if each.kind not in kinds} - {"self"}


def test_every_field_has_a_case() -> None:
    assert SETTINGS.keys() == names(EngineConfig)
    for table, cases in TABLES.items():
        assert cases.keys() == names(table)
    assert PARAMS.keys() == names(SamplingParams)
    assert OF_CONSTRAINTS.keys() == set(CONSTRAINTS)
    for kind, (_, cases) in OF_CONSTRAINTS.items():
        assert cases.keys() | SHARED.keys() >= names(kind) >= cases.keys()
    public = {name for name, each in vars(Engine).items() if inspect.isfunction(each) and name[0] != "_"}
    assert CALLS.keys() | NOT_ASKED == public
    for name, (_, cases) in CALLS.items():
        assert cases.keys() == arguments(getattr(Engine, name))
    for name in ("submit", "generate", "score"):
        own = arguments(getattr(AsyncEngine, name))
        assert own <= CALLS["submit"][1].keys() | CALLS["score"][1].keys()
    assert ASYNC.keys() == {"prompt", "params", "tools", "tenant"}
    assert OF_EXTRACT.keys() == arguments(extract)
    assert {name for of_task in TASKS.values() for name in of_task} == {
        (name, argument)
        for name in ("embed", "rerank", "classify", "run")
        for argument in arguments(getattr(Engine, name))
    }


COMMON: dict[str, Any] = {"model": "demo", "grammar": (), "max_num_seqs": 8}


def serves(**settings: Any) -> None:
    with Engine(**(COMMON | settings)) as engine:
        assert engine.generate([[5, 80]], FEW)[0].error is None


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_right_setting(name: str) -> None:
    serves(**{name: SETTINGS[name][0]})


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_setting(name: str) -> None:
    wrong = SETTINGS[name][1]
    with pytest.raises((InvalidConfiguration, PluginError)) as caught, Engine(**(COMMON | {name: wrong})):
        pass
    assert name in getattr(caught.value, "field", "") or repr(wrong).strip("(),") in str(caught.value)


PLACES: dict[type, str] = {Limits: "limits", ReasoningConfig: "reasoning", PluginSettings: "plugins"}


@pytest.mark.parametrize("table", TABLES)
def test_settings_of_a_table(table: type) -> None:
    cases = TABLES[table]
    rights = {name: right for name, (right, _) in cases.items() if not name.endswith("token_ids")}
    serves(**{PLACES[table]: table(**rights)})
    for name, (right, wrong) in cases.items():
        if name.endswith("token_ids"):
            serves(reasoning=ReasoningConfig(**({"end_token_ids": (72, 73)} | {name: right})))
        with pytest.raises(InvalidConfiguration) as caught:
            Engine(**COMMON, **{PLACES[table]: table(**(rights | {name: wrong}))})
        assert name in caught.value.field


@pytest.mark.parametrize("name", PARAMS)
def test_a_sampling_parameter(engine: Engine, name: str) -> None:
    right, wrong = PARAMS[name]
    common: dict[str, Any] = {"max_tokens": 4, "temperature": 1.0, "reasoning": False} | BESIDE.get(name, {})
    given = [SamplingParams(**(common | {name: value})) for value in (right, wrong)]
    fine, refused = engine.generate([MESSAGES] * 2, given)
    assert fine.error is None
    assert refused.finish_reason is FinishReason.REFUSED
    assert isinstance(refused.error, InvalidRequest)
    assert name in refused.error.field and name in str(refused.error) + refused.error.field


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in OF_CONSTRAINTS for name in sorted(names(kind))], ids=str
)
def test_a_field_of_a_constraint(engine: Engine, kind: type, name: str) -> None:
    make, own = OF_CONSTRAINTS[kind]
    right, wrong = (own | SHARED)[name]
    common = SamplingParams(max_tokens=30, temperature=1.0, seed=1, reasoning=False)
    (fine,) = engine.generate({"prompt": "x"}, SamplingParams(**vars_of(common, make(**{name: right}))))
    assert fine.error is None and fine.strategy == "llguidance"
    try:
        (refused,) = engine.generate({"prompt": "x"}, SamplingParams(**vars_of(common, make(**{name: wrong}))))
    except InvalidRequest as error:
        assert str(error)
    else:
        assert isinstance(refused.error, InvalidRequest)
        assert str(refused.error)


def vars_of(params: SamplingParams, constraint: Any) -> dict[str, Any]:
    return {field.name: getattr(params, field.name) for field in fields(params)} | {"constraint": constraint}


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, (_, cases) in CALLS.items() for name in cases])
def test_an_argument_of_a_call(engine: Engine, call: str, name: str) -> None:
    common, cases = CALLS[call]
    right, wrong = cases[name]
    found = getattr(engine, call)(**(common | {name: right}))
    for result in found if isinstance(found, list) else [found.wait()] if isinstance(found, Generation) else []:
        assert result.error is None
    with pytest.raises(InvalidRequest) as caught:
        results = getattr(engine, call)(**(common | {name: wrong}))
        raise results[0].error  # one prompt's own error is in its result
    assert caught.value.field in (name, name.removesuffix("s"))
    while engine.has_work():
        engine.step()


ASYNC: dict[str, Case] = {"prompt": ("text", 5), "params": (FEW, 5), "tools": ((), 5), "tenant": ("a", 5)}


def test_an_argument_of_an_async_call() -> None:
    async def run() -> None:
        async with AsyncEngine("demo", grammar=()) as engine:
            for name, (right, wrong) in ASYNC.items():
                common = {"prompt": [5], "params": FEW}
                assert (await engine.generate(**(common | {name: right}))).error is None
                refused = await engine.generate(**(common | {name: wrong}))
                assert isinstance(refused.error, InvalidRequest) and refused.error.field == name
                assert (await (await engine.submit(**(common | {name: right}))).wait()).error is None
                with pytest.raises(InvalidRequest):
                    await engine.submit(**(common | {name: wrong}))
            for name, (right, wrong) in CALLS["score"][1].items():
                own = CALLS["score"][0]
                assert (await engine.score(**(own | {name: right}))).logprobs
                with pytest.raises(InvalidRequest):
                    await engine.score(**(own | {name: wrong}))

    asyncio.run(run())


OF_EXTRACT: dict[str, Case] = {
    "target": (bool, "bool"),
    "text": ("text", 5),
    "engine": ("demo", 5),
    "instruction": ("Is it?", 5),
    "params": (SamplingParams(max_tokens=30, reasoning=False), {"max_tokens": 20}),
}


@pytest.mark.parametrize("name", OF_EXTRACT)
def test_an_argument_of_extract(engine: Engine, name: str) -> None:
    right, wrong = OF_EXTRACT[name]
    common = {"target": bool, "text": "text", "engine": engine, "params": OF_EXTRACT["params"][0]}
    assert extract(**(common | {name: right})) in (True, False)
    with pytest.raises((InvalidRequest, InvalidConfiguration)) as caught:
        extract(**(common | {name: wrong}))
    assert caught.value.field == {"engine": "model"}.get(name, name)


TASKS: dict[str, dict[tuple[str, str], Case]] = {
    "embed": {
        ("embed", "inputs"): (["w1"], 5),
        ("embed", "dimensions"): (4, 0),
        ("embed", "truncate"): ("right", "middle"),
        ("embed", "priority"): (1, "high"),
        ("embed", "tenant"): ("a", 5),
        ("run", "task"): ("embed", "dance"),
        ("run", "inputs"): (["w1"], 5),
        ("run", "params"): ({"dimensions": 4}, {"dimension": 4}),
        ("run", "priority"): (1, "high"),
        ("run", "tenant"): ("a", 5),
    },
    "rerank": {
        ("rerank", "query"): ("w1", 5),
        ("rerank", "documents"): (["w2"], "w2"),
        ("rerank", "truncate"): ("refuse", "middle"),
        ("rerank", "priority"): (1, "high"),
        ("rerank", "tenant"): ("a", 5),
    },
    "classify": {
        ("classify", "inputs"): (["w1", ("w1", "w2")], 5),
        ("classify", "truncate"): ("left", "middle"),
        ("classify", "priority"): (1, "high"),
        ("classify", "tenant"): ("a", 5),
    },
}
USUAL: dict[str, dict[str, Any]] = {
    "embed": {"inputs": ["w1"]},
    "classify": {"inputs": ["w1"]},
    "rerank": {"query": "w1", "documents": ["w2"]},
    "run": {"task": "embed", "inputs": ["w1"]},
}


@pytest.mark.parametrize("workflow", TASKS)
def test_an_argument_of_a_task(workflow: str, tmp_path: Path) -> None:
    heads: dict[str, Any] = {"embed": {}, "rerank": {"num_labels": 1}, "classify": {"num_labels": 3}}
    kind = [] if workflow == "embed" else ["ForSequenceClassification"]
    with Engine(stored(encoder("Bert", *kind, **heads[workflow]), tmp_path), workflow=workflow) as engine:
        for (call, name), (right, wrong) in TASKS[workflow].items():
            found = getattr(engine, call)(**(USUAL[call] | {name: right}))
            assert [result.error for result in found] == [None] * len(found), (call, name)
            with pytest.raises(GuidewayError) as caught:
                results = getattr(engine, call)(**(USUAL[call] | {name: wrong}))
                raise results[0].error
            assert isinstance(caught.value, InvalidRequest | LimitExceeded), (call, name, caught.value)
