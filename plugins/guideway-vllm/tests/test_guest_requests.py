"""Tests of the conversion from vLLM's parameters to a guideway request."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from guideway.api import (
    Choice,
    Constraint,
    Grammar,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    OnUnenforced,
    Regex,
    Request,
    StructuralTag,
)
from guideway.runtime.constraints.bans import Bans
from guideway_vllm.bans import bans_of, without_bans
from guideway_vllm.requests import CARRIER, carries_only, constraint_to_check, is_ours, is_strict, request_of

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


def outputs(backend: str | None = None, **given: Any) -> Any:
    """Return a stub of ``StructuredOutputsParams``."""
    return SimpleNamespace(**{**dict.fromkeys(KINDS), **given}, _backend=backend)


def params(structured_outputs: Any = None, extra: dict[Any, Any] | None = None, **given: Any) -> Any:
    """Return a stub of ``SamplingParams`` with vLLM's defaults."""
    defaults: dict[str, Any] = {
        "max_tokens": 16,
        "min_tokens": 0,
        "seed": None,
        "stop": [],
        "stop_token_ids": [],
        "ignore_eos": False,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "bad_words": None,
        "bad_words_token_ids": None,
        "allowed_token_ids": None,
        "n": 1,
        "logprobs": None,
        "prompt_logprobs": None,
    }
    return SimpleNamespace(**defaults | given, structured_outputs=structured_outputs, extra_args=extra)


def made(given: Any, **options: Any) -> Request:
    return request_of("r", [5, 6], given, **options)


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"json": {"type": "null"}}, JsonSchema({"type": "null"})),
        ({"json": '{"type":"null"}'}, JsonSchema('{"type":"null"}')),
        ({"json": {}}, JsonSchema({})),
        ({"json_object": True}, JsonObject()),
        ({"regex": "a+"}, Regex("a+")),
        ({"regex": ""}, Regex("")),
        ({"choice": ["a", "b"]}, Choice(["a", "b"])),
        ({"structural_tag": "{}"}, StructuralTag("{}")),
    ],
)
def test_each_of_its_constraints_is_one_of_ours(given: dict[str, Any], constraint: Constraint) -> None:
    assert made(params(outputs(**given))).params.constraint == constraint


def test_the_order_of_properties() -> None:
    extra = {"guideway.properties_order": "any"}
    found = made(params(outputs(json={}), extra)).params.constraint
    assert found == JsonSchema({}, properties_order="any")
    with pytest.raises(InvalidRequest, match="no JSON schema"):
        made(params(outputs(json_object=True), extra))


def test_a_grammar_has_the_dialect_that_is_said() -> None:
    request = made(params(outputs(grammar="start: A"), {"guideway.dialect": "lark"}))
    assert request.params.constraint == Grammar("start: A", "lark")


def test_the_strategy_is_that_of_the_request() -> None:
    extra = {"guideway.strategy": "vllm_outlines"}
    for given in ({"json": {}}, {"json_object": True}, {"regex": "a"}, {"choice": ["a"]}, {"structural_tag": "{}"}):
        constraint = made(params(outputs(**given), extra)).params.constraint
        assert constraint is not None
        assert constraint.strategy == "vllm_outlines"


def test_the_carrier_is_no_constraint() -> None:
    carrier = params(outputs(CARRIER, json_object=True))
    assert carries_only(carrier)
    assert made(carrier).params.constraint is None
    assert not carries_only(params(outputs(json_object=True)))


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (params(), False),
        (params(extra={}), False),
        (params(extra={"other": 1, 3: 4}), False),
        (params(extra={"guideway.tenant": "a"}), True),
        (params(extra={"guideway.typo": "a"}), True),  # so that it is refused
        (params(outputs(regex="a")), True),
    ],
)
def test_what_asks_for_nothing_is_left_alone(given: Any, ours: bool) -> None:
    assert is_ours(given) is ours


def test_modifiers_come_as_they_are_or_as_json() -> None:
    wanted = {"hello": {"letter": "a"}}
    for value in (wanted, '{"hello": {"letter": "a"}}'):
        assert made(params(extra={"guideway.modifiers": value})).params.modifiers == wanted
    assert made(params()).params.modifiers == {}


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        (params(extra={"guideway.modifier": "{}"}), "guideway.modifier", "did you mean 'guideway.modifiers'"),
        (params(extra={"guideway.modifiers": "{"}), "guideway.modifiers", "is not JSON"),
        (params(extra={"guideway.modifiers": '{"a":{"b":1},"a":{}}'}), "guideway.modifiers", "'a' appears twice"),
        (params(extra={"guideway.modifiers": '{"a":{"b":NaN}}'}), "guideway.modifiers", "NaN is not JSON"),
        (params(outputs(regex="a"), {"guideway.dialect": "lark"}), "guideway.dialect", "no grammar"),
        (params(outputs(json_object=False)), "structured_outputs.json_object", "must be true"),
        (
            params(outputs(json={}, whitespace_pattern=" ")),
            "structured_outputs.whitespace_pattern",
            "whitespace_pattern is not enforced",
        ),
        (
            params(outputs(json={}, disable_any_whitespace=True), {"guideway.whitespace": "spaced"}),
            "structured_outputs.disable_any_whitespace",
            "leave out one of them",
        ),
        (params(outputs(regex="a"), {"guideway.whitespace": "any"}), "guideway.whitespace", "no constraint with JSON"),
        (params(extra={"guideway.whitespace": "any"}), "guideway.whitespace", "no constraint"),
        (params(extra={"guideway.on_unenforced": "check"}), "guideway.on_unenforced", "no constraint"),
        (params(outputs(json={}), {"guideway.max_retries": 1}), "guideway.max_retries", "draws no output again"),
        (
            params(outputs(json={}, disable_additional_properties=True)),
            "structured_outputs.disable_additional_properties",
            "disable_additional_properties is not enforced",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(given: Any, field: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        made(given)
    assert caught.value.field == field
    assert said in str(caught.value)


def test_white_space_comes_as_a_word_or_as_vllms_flag() -> None:
    for kind in ({"json": {}}, {"json_object": True}, {"structural_tag": "{}"}):
        for flag, extra, wanted in (
            (False, {}, None),
            (True, {}, "compact"),
            (True, {"guideway.whitespace": "compact"}, "compact"),
            (False, {"guideway.whitespace": "spaced"}, "spaced"),
        ):
            constraint = made(params(outputs(**kind, disable_any_whitespace=flag), extra)).params.constraint
            assert isinstance(constraint, JsonSchema | JsonObject | StructuralTag)
            assert constraint.whitespace == wanted


def test_the_policy_comes_as_a_word() -> None:
    for word in (None, "report", "refuse", "check", "nonsense"):  # which admission judges
        extra = {} if word is None else {"guideway.on_unenforced": word}
        assert made(params(outputs(json={}), extra)).params.on_unenforced == word


@pytest.mark.parametrize(
    ("given", "default", "constraint"),
    [
        (params(outputs(json='{"a":1}'), {"guideway.on_unenforced": "check"}), "report", JsonSchema('{"a":1}')),
        (params(outputs(json_object=True)), "check", JsonObject()),
        (params(outputs(json={}), {"guideway.on_unenforced": "report"}), "check", None),
        (params(outputs(json={})), "refuse", None),
        (params(outputs(regex="a")), "check", None),
        (params(outputs(f"{CARRIER}x", json_object=True)), "check", None),
        (params(outputs(json={"a": object()})), "check", None),
        (params(), "check", None),
    ],
)
def test_json_that_is_to_be_checked(given: Any, default: OnUnenforced, constraint: Constraint | None) -> None:
    assert constraint_to_check(given, default) == constraint


@pytest.mark.parametrize("said", [True, False, None])
def test_strict_stands_where_openai_has_it(said: bool | None) -> None:
    schema = SimpleNamespace(strict=said)
    for request in (
        SimpleNamespace(response_format=SimpleNamespace(json_schema=schema)),
        SimpleNamespace(text=SimpleNamespace(format=schema)),
    ):
        assert is_strict(request) is (said is True)
    assert not is_strict(SimpleNamespace(response_format=SimpleNamespace(json_schema=None)))
    assert not is_strict(SimpleNamespace(response_format=None, text=None))


def test_how_tokens_are_drawn_arrives_where_guideway_draws() -> None:
    given = params(
        temperature=0.7,
        min_tokens=2,
        top_k=-1,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        logit_bias={3: 1.5},
        stop=["x"],
        stop_token_ids=[7],
        n=3,
        logprobs=-1,
        prompt_logprobs=2,
        seed=11,
        extra={"guideway.tenant": "t"},
    )
    request = made(given, priority=4)
    assert (request.request_id, request.prompt_token_ids, request.tenant) == ("r", (5, 6), "t")
    drawn = request.params
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p, drawn.min_tokens) == (0.7, 0, 0.9, 0.1, 2)
    assert (drawn.repetition_penalty, drawn.frequency_penalty, drawn.presence_penalty) == (1.1, 0.2, 0.3)
    assert (drawn.logit_bias, drawn.stop, drawn.stop_token_ids, drawn.seed) == ({3: 1.5}, ("x",), (7,), 11)
    assert (drawn.n, drawn.logprobs, drawn.prompt_logprobs, drawn.priority) == (3, 0, 2, 4)


def test_how_tokens_are_drawn_is_left_out_where_vllm_draws() -> None:
    given = params(temperature=0.7, top_k=5, n=3, logprobs=2, min_tokens=4, stop_token_ids=[7], seed=2**63 + 1)
    drawn = made(given, samples=False).params
    assert (drawn.temperature, drawn.top_k, drawn.n, drawn.logprobs, drawn.min_tokens) == (0.0, 0, 1, None, 0)
    assert (drawn.max_tokens, drawn.stop_token_ids, drawn.seed) == (16, (7,), 1)


def test_a_temperature_vllm_takes_for_none_is_none() -> None:
    assert made(params(temperature=9e-6, n=2)).params.temperature == 0
    assert made(params(temperature=9e-6, n=2)).params.n == 1
    assert made(params(temperature=2e-5)).params.temperature == 2e-5


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("guideway.stratgy", "guideway.strategy"),
        ("guidway.strategy", "guideway.strategy"),
        ("Guideway.modifiers", "guideway.modifiers"),
        ("guideway_tenant", "guideway.tenant"),
        ("guideway", ""),
    ],
)
def test_a_slip_in_a_key_is_refused(key: str, meant: str) -> None:
    given = params(extra={key: "x"})
    assert is_ours(given)
    with pytest.raises(InvalidRequest, match=f"did you mean {meant!r}" if meant else "unknown key") as caught:
        made(given)
    assert caught.value.field == key


@pytest.mark.parametrize("key", ["guidance.x", "gateway", "guide", "max_guide_ways", "kv_transfer_params", 5, ""])
def test_keys_of_others_are_theirs(key: Any) -> None:
    given = params(extra={key: "x"})
    assert not is_ours(given)
    assert made(given).params.constraint is None


@pytest.mark.parametrize("backend", [None, CARRIER])
@pytest.mark.parametrize("name", ["strategy", "dialect"])
def test_what_has_no_effect_without_a_constraint_is_refused(name: str, backend: str | None) -> None:
    carrier = None if backend is None else outputs(backend, json_object=True)
    with pytest.raises(InvalidRequest, match=f"guideway.{name} is given, but no constraint") as caught:
        made(params(carrier, {f"guideway.{name}": "lark"}))
    assert caught.value.field == f"guideway.{name}"


@pytest.mark.parametrize(
    ("extra", "close"),
    [
        ({}, True),
        ({"guideway.close": False}, False),
        ({"guideway.close": "false"}, False),
        ({"guideway.close": 0}, False),
        ({"guideway.close": 1}, True),
    ],
)
def test_an_output_is_closed_unless_it_is_said(extra: dict[str, Any], close: bool) -> None:
    assert made(params(outputs(regex="a+"), extra), samples=False).params.close is close


def test_who_draws_by_itself_tells_stop_strings_beside_a_constraint_alone() -> None:
    assert made(params(outputs(regex="a+"), stop=["x"]), samples=False).params.stop == ("x",)
    assert made(params(stop=["x"]), samples=False).params.stop == ()
    assert made(params(stop=["x"])).params.stop == ("x",)


BANNING = {
    "logit_bias": {5: -100.0, 6: -99.0, 7: 100.0, 8: -math.inf},
    "allowed_token_ids": [4, 5, 6],
    "bad_words": ["ab"],
    "_bad_words_token_ids": [[1, 2], [3]],
    "bad_words_token_ids": [[1, 2], [3]],
    "min_tokens": 2,
}


def test_what_a_request_bans_is_read_and_left_out_of_what_vllm_draws_by() -> None:
    given = params(outputs(regex="a+"), **BANNING)
    assert bans_of(given) == Bans(
        logit_bias=frozenset({5, 8}),
        allowed_token_ids=frozenset({4, 5, 6}),
        bad_words=((1, 2), (3,)),
        min_tokens=2,
    )
    bare = without_bans(given)
    assert (bare.logit_bias, bare.allowed_token_ids, bare.min_tokens) == ({6: -99.0, 7: 100.0}, None, 0)
    assert (bare.bad_words, bare._bad_words_token_ids) == ([], None)
    assert given.min_tokens == 2, "it was copied"
    assert without_bans(params(logit_bias={5: -100.0})).logit_bias is None


def test_the_minimum_stays_where_vllm_looks_for_repetition_from_it_on() -> None:
    given = params(outputs(regex="a+"), repetition_detection=object(), **BANNING)
    assert without_bans(given).min_tokens == 2


@pytest.mark.parametrize("bias", [math.nan, math.inf])
def test_a_bias_that_leaves_nothing_to_draw_from_is_refused(bias: float) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias of token 5 is") as refused:
        bans_of(params(outputs(regex="a+"), logit_bias={5: bias}))
    assert refused.value.field == "logit_bias"


@pytest.mark.parametrize("name", ["close", "records"])
@pytest.mark.parametrize("value", ["maybe", 2, "[]"])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"guideway\.{name} (must be true or false|is not JSON)") as refused:
        made(params(outputs(regex="a+"), {f"guideway.{name}": value}))
    assert refused.value.field == f"guideway.{name}"


@pytest.mark.parametrize("records", [True, "true", 1])
def test_what_is_recorded_is_drawn_with_its_sampling_parameters(records: Any) -> None:
    asked = made(params(None, {"guideway.records": records}, top_k=7), samples=False).params
    assert (asked.records, asked.top_k, asked.temperature) == (True, 7, 1.0)
    assert made(params(None, {"guideway.records": False}, top_k=7), samples=False).params.top_k == 0
