"""Validation of sampling parameters, and immutability of admitted ones."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from typing import Any, get_type_hints

import numpy as np
import pytest
from guideway.api import InvalidRequest, LimitExceeded, ModifierContext, Need, Regex, Request, SamplingParams
from guideway.api.options import fits
from guideway.runtime.runtime import Runtime
from guideway_conformance.reference.strategy import Strategy

from tests.support.probes import GreenList
from tests.support.vocabularies import tiny

VOCABULARY = tiny()
SIZE = len(VOCABULARY)
NAN, INF = math.nan, math.inf
HUGE = 10**5000
WARM = {"temperature": 1.0}


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)
    return Runtime(
        context,
        strategies={"reference": Strategy(VOCABULARY, {})},
        modifiers=[GreenList({}, context)],
        offers=frozenset(Need),
    )


def admit(runtime: Runtime, params: Any, **others: Any) -> Request:
    request = Request(**{"request_id": "r", "prompt_token_ids": (1, 2), "params": params, **others})
    admission = runtime.admit(request)
    for _ in range(admission.request.params.num_sequences):
        runtime.abandon(admission)
    return admission.request


NO_NUMBERS: list[Any] = [None, "1", True, NAN, INF, -INF, [], 1j, HUGE, -HUGE]
NO_COUNTS: list[Any] = ["1", True, NAN, 0.5, 2.0, [], -1, -HUGE]

WRONG: dict[str, list[Any]] = {
    "max_tokens": [*NO_COUNTS, 0],
    "min_tokens": [*NO_COUNTS, None],
    "temperature": [*NO_NUMBERS, -1, 1e-9, 1e9],
    "top_k": ["1", True, NAN, 0.5, 2.0, -1.0, [], -2, -HUGE, None],
    "top_p": [*NO_NUMBERS, 0, -0.1, 1.0001],
    "min_p": [*NO_NUMBERS, -0.1, 1.0001],
    "repetition_penalty": [*NO_NUMBERS, 0, -1.0, 1e-9, 1e9],
    "logit_bias": [
        3, [(1, 2.0)], "ab", {"1": 2.0}, {1.0: 2.0}, {True: 1.0}, {SIZE: 1.0}, {-1: 1.0}, {HUGE: 1.0},
        {1: NAN}, {1: INF}, {1: "2"}, {1: None}, {1: True}, {1: HUGE}, {1: 1e31}, {2: 1.0, 1: -1e39},
    ],
    "seed": ["1", True, 0.5, -1, 2**63],
    "stop": ["", 3, {"a"}, ("",), ("ok", 3), (b"x",), ("\ud800",), (None,)],
    "stop_token_ids": ["ab", (SIZE,), (True,), (-1,), (np.float64(1),), 3],
    "logprobs": [*NO_COUNTS, SIZE + 1, HUGE],
    "prompt_logprobs": [*NO_COUNTS, SIZE + 1, HUGE],
    "on_unenforced": ["ignore", "", True, 1, ["refuse"]],
    "max_retries": [*NO_COUNTS, -1, 101, None],
    "priority": [None, "1", True, 0.5, NAN, 2**31, -(2**31) - 1, HUGE],
    "constraint": ["a", 3],
    "modifiers": [3, ["green_list"]],
}  # fmt: skip


ODD = [*NO_NUMBERS, *NO_COUNTS, 0, 1, 1e-9, 1e9, -1e9, 1.5, "yes"]
HINTS = get_type_hints(SamplingParams, include_extras=True)
WRONG |= {name: [value for value in ODD if not fits(value, hint)] for name, hint in HINTS.items() if name not in WRONG}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_value_is_refused_by_the_name_of_its_field(runtime: Runtime, name: str) -> None:
    assert WRONG[name], "its type takes anything"
    for value in WRONG[name]:
        with pytest.raises(InvalidRequest) as caught:
            admit(runtime, SamplingParams(**{**WARM, name: value}))
        assert caught.value.field == name
        assert name in str(caught.value)
        assert len(str(caught.value)) < 300


RIGHT: list[dict[str, Any]] = [
    {"max_tokens": 1, "min_tokens": 1},
    {"min_tokens": 10**6},
    {"temperature": 1, "top_k": HUGE, "top_p": 1e-300, "min_p": 1, "typical_p": 1e-300},
    {"temperature": 1e-3, "typical_p": 0.5},
    {"top_k": 5, "top_p": 0.5, "min_p": 0.5},  # no effect when greedy
    {"repetition_penalty": 1000, "frequency_penalty": -1000, "presence_penalty": 1000},
    {"logit_bias": {0: -INF, SIZE - 1: 1e30, 5: 0, 6: -100}},
    {"seed": 2**63 - 1},
    {"stop": ["a", "\n\n", "é\U0001f600"], "stop_token_ids": {1, 2}},
    {"stop": "end"},
    {"ignore_eos": True, "echo": True},
    {"temperature": 1.0, "n": 3},
    {"temperature": 1.0, "n": 2, "best_of": 2},
    {"n": 1, "best_of": 1},
    {"logprobs": 0, "prompt_logprobs": SIZE},
    {"priority": -(2**31)},
]


@pytest.mark.parametrize("given", RIGHT, ids="+".join)
def test_right_values_pass(runtime: Runtime, given: dict[str, Any]) -> None:
    request = admit(runtime, SamplingParams(**given))
    assert pickle.loads(pickle.dumps(request)) == request


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", "at most max_tokens"),
        ({"n": 2}, "n", "greedy"),
        ({"best_of": 2}, "best_of", "greedy"),
        ({"n": 3, "best_of": 2, **WARM}, "best_of", "at least n"),
        ({"n": HUGE, **WARM}, "n", "at most 1024"),
        ({"best_of": 1025, **WARM}, "best_of", "at most 1024"),
        ({"typical_p": 0.5}, "typical_p", "greedy"),
        ({"ignore_eos": True, "constraint": Regex("a")}, "ignore_eos", "remove one"),
    ],
)
def test_what_contradicts_itself_is_refused(runtime: Runtime, given: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        admit(runtime, SamplingParams(**given))
    assert caught.value.field == field
    assert isinstance(caught.value, LimitExceeded) == ("1024" in says)


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        ([str(i) for i in range(65)], "stop has 65 strings, but one request has at most 64"),
        (["x", "x" * 1001], "a stop string has 1001 characters, but it may have at most 1000"),
    ],
)
def test_stop_strings_are_limited(runtime: Runtime, stop: list[str], says: str) -> None:
    with pytest.raises(LimitExceeded, match=says) as caught:
        admit(runtime, SamplingParams(stop=stop))  # type: ignore[arg-type]
    assert caught.value.field == "stop"
    most = tuple(str(i) * (1000 // len(str(i))) for i in range(64))
    assert admit(runtime, SamplingParams(stop=most)).params.stop == most
    assert admit(runtime, SamplingParams(stop="end")).params.stop == ("end",)


@pytest.mark.parametrize("tenant", [None, 3, b"x", "x" * 257, "\ud800"])
def test_a_wrong_tenant_is_refused(runtime: Runtime, tenant: Any) -> None:
    with pytest.raises(InvalidRequest, match="tenant") as caught:
        admit(runtime, SamplingParams(), tenant=tenant)
    assert caught.value.field == "tenant"
    assert admit(runtime, SamplingParams(), tenant="x" * 256).tenant == "x" * 256


def test_what_was_let_in_stays_as_it_was(runtime: Runtime) -> None:
    bias, stop, ids, options = {1: 2, 3: 0}, ["a"], [2], {"key": 5, "delta": 1.0, "more": {"list": [1, {"x": 2}]}}
    modifiers = {"green_list": options}
    params: Any = SamplingParams(logit_bias=bias, stop=stop, stop_token_ids=ids, modifiers=modifiers)  # type: ignore[arg-type]
    request = admit(runtime, params)
    bias[1], stop[0], ids[0], options["key"] = 9, "b", 4, 6
    options["more"]["list"][1]["x"] = 3  # type: ignore[index]
    modifiers.clear()
    assert request.params.logit_bias == {1: 2.0}
    assert request.params.stop == ("a",)
    assert request.params.stop_token_ids == (2,)
    assert request.params.modifiers == {"green_list": {"key": 5, "delta": 1.0, "more": {"list": [1, {"x": 2}]}}}


NUMPY: dict[str, Any] = {
    "max_tokens": np.int64(9),
    "min_tokens": np.uint8(2),
    "temperature": np.float32(0.5),
    "top_k": np.int64(3),
    "top_p": np.float16(0.5),
    "min_p": np.float64(0.25),
    "typical_p": np.float32(0.75),
    "repetition_penalty": np.float32(1.5),
    "frequency_penalty": np.int32(1),
    "presence_penalty": np.float32(-0.5),
    "seed": np.int64(2**62),
    "n": np.int64(1),
    "best_of": np.int64(2),
    "logprobs": np.int16(0),
    "prompt_logprobs": np.int64(1),
    "priority": np.int64(-4),
}


def test_numbers_of_numpy_become_pythons_own(runtime: Runtime) -> None:
    bias: Any = {np.int64(5): np.float32(1.5), 6: np.float64(-INF)}
    given: Any = {**NUMPY, "logit_bias": bias, "stop_token_ids": [np.int64(3), np.uint16(4)]}
    params = admit(runtime, SamplingParams(**given)).params
    for name, value in NUMPY.items():
        assert getattr(params, name) == value
        assert type(getattr(params, name)) in (int, float), name
    assert params.logit_bias == {5: 1.5, 6: -INF}
    assert {type(item) for pair in params.logit_bias.items() for item in pair} == {int, float}
    assert params.stop_token_ids == (3, 4)
    assert {type(token_id) for token_id in params.stop_token_ids} == {int}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"top_k": np.float32(3)}, "top_k must be a whole number of at least 0, or 0 or -1 for all tokens"),
        ({"top_k": np.bool_(True)}, "top_k must be a whole number"),
        ({"temperature": np.bool_(True)}, "temperature must be"),
        ({"temperature": np.float32(NAN)}, "temperature must be"),
        ({"logit_bias": {np.int64(SIZE): 1.0}}, f"logit_bias has the token id {SIZE}, which is not in the"),
        ({"logit_bias": {1: np.float32(INF)}}, "logit_bias of token 1 must be"),
        ({"priority": Fraction(10**400)}, "priority must be"),
    ],
)
def test_a_number_of_numpy_is_judged_as_pythons(runtime: Runtime, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        admit(runtime, SamplingParams(**given))


def test_what_vllm_writes_means_what_it_means_there(runtime: Runtime) -> None:
    given: Any = {"stop": None, "stop_token_ids": None, "logit_bias": None, "modifiers": None, "top_k": -1}
    assert admit(runtime, SamplingParams(**given)).params == SamplingParams(on_unenforced="report")
