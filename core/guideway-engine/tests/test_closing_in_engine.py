"""Answers of the demo model are complete within their budgets: with unseen schemas, hosts, drafts, several outputs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from guideway import Choice, Engine, FinishReason, JsonSchema, Regex, SamplingParams
from guideway.api import Constraint, Grammar, InvalidRequest, StructuralTag
from guideway.runtime.constraints.grammar_mask import GrammarMask
from prometheus_client import REGISTRY

from tests.support.stages import everyday, one_in

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "authors": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "isbn": {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
            "price": {"type": "number"},
        },
        "required": ["title", "authors", "isbn", "price"],
    },
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}, "minItems": 2},
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"anyOf": [{"type": "string", "maxLength": 200}, {"type": "object", "properties": {"a": {}}}, {"type": "null"}]},
]

README: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}[.]com$"},
        "tags": {"type": "array", "items": {"enum": ["new", "regular", "vip"]}, "minItems": 3, "maxItems": 3},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 4}
"""The shortest output has 110 tokens of the demo model; other tokenizations of its text have only a few more."""

PROMPT = "Describe what you see."


@pytest.fixture(scope="module", params=everyday(["inline", "process"], "process"))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine("demo", grammar=("llguidance", "xgrammar"), grammar_host=request.param, max_num_seqs=8) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("strategy", everyday(["llguidance", "xgrammar"], "xgrammar"))
def test_what_hardly_fits_is_complete_however_its_text_is_cut_into_tokens(engine: Engine, strategy: str) -> None:
    constraint = JsonSchema(PEOPLE, strategy=strategy)
    params = [
        SamplingParams(max_tokens=budget, temperature=temperature, seed=seed, constraint=constraint)
        for seed, (budget, temperature) in enumerate([(110, 0.0), (112, 0.0), (112, 1.0), (116, 1.5), (126, 1.0)])
    ]
    for result in engine.generate([PROMPT] * len(params), params):
        assert result.finish_reason is FinishReason.STOP, (result.text, result.unenforced)
        jsonschema.validate(json.loads(result.text), PEOPLE)


@pytest.mark.parametrize("strategy", everyday(["llguidance", "xgrammar"], "xgrammar"))
def test_an_answer_that_fits_is_the_models_own_and_says_so(engine: Engine, strategy: str) -> None:
    constraint = JsonSchema(README, strategy=strategy)
    prompts = [f"Write a person, number {i}." for i in range(4)]
    free = engine.generate(prompts, SamplingParams(max_tokens=80, close=False, constraint=constraint))
    assert [result.finish_reason for result in free] == [FinishReason.STOP] * len(prompts)
    for more in (0, 1, 4, 8):
        wanted = [
            SamplingParams(max_tokens=len(result.token_ids) + more, logprobs=logprobs, constraint=constraint)
            for result, logprobs in zip(free, (None, 0, 3, None), strict=True)
        ]
        results = engine.generate(prompts, wanted)
        assert [result.text for result in results] == [result.text for result in free]
        assert not any(result.closed_early for result in results)
        assert [len(each.outputs[0].logprobs or ()) for each in results] == [
            0 if params.logprobs is None else len(each.token_ids) for params, each in zip(wanted, results, strict=True)
        ]
    short = [SamplingParams(max_tokens=len(result.token_ids) - 1, constraint=constraint) for result in free]
    before = counted()
    results = engine.generate(prompts, short)
    assert [result.finish_reason for result in results] == [FinishReason.STOP] * len(prompts)
    assert all(result.closed_early for result in results)
    assert counted() - before == len(prompts)


ENDING = {
    "type": "object",
    "properties": {**README["properties"], "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FIVE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "year": {"type": "integer", "minimum": 0, "maximum": 2999},
        "price": {"enum": [1.5, 20, 300]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "open": {"type": "boolean"},
    },
    "required": ["title", "year", "price", "tags", "open"],
    "additionalProperties": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("whitespace", ["bounded", "compact", "spaced"])
def test_all_answers_that_fit_are_the_models_own(engine: Engine, strategy: str, whitespace: Any) -> None:
    """16 answers for each of the six combinations, within their own length and up to 8 tokens more."""
    for schema, number in ((ENDING, 10), (FIVE, 6)):
        constraint = JsonSchema(schema, strategy=strategy, whitespace=whitespace)
        prompts = [f"Describe person number {i} in JSON." for i in range(number)]
        free = engine.generate(prompts, SamplingParams(max_tokens=200, close=False, constraint=constraint))
        assert [result.finish_reason for result in free] == [FinishReason.STOP] * number
        for more in (0, 1, 2, 4, 8):
            budgets = [len(result.token_ids) + more for result in free]
            wanted = [SamplingParams(max_tokens=budget, constraint=constraint) for budget in budgets]
            results = engine.generate(prompts, wanted)
            assert [result.token_ids for result in results] == [result.token_ids for result in free]
            assert not any(result.closed_early for result in results)


def test_an_error_while_the_draw_is_compared_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bool:
        raise RuntimeError("a plugin's validate")

    constraint = JsonSchema(README, strategy="llguidance")
    params = SamplingParams(max_tokens=11, constraint=constraint)
    with Engine("demo", grammar=("llguidance",), grammar_host="inline") as engine:
        expected = engine.generate([PROMPT, PROMPT], [params, SamplingParams(max_tokens=8)])
        monkeypatch.setattr(GrammarMask, "takes", fail)
        found = engine.generate([PROMPT, PROMPT], [params, SamplingParams(max_tokens=8)])
    assert [result.token_ids for result in found] == [result.token_ids for result in expected]
    assert found[0].closed_early


def counted() -> float:
    """Return how many outputs were closed early."""
    families = [family for family in REGISTRY.collect() if family.name == "guideway_closed_early"]
    return sum(each.value for family in families for each in family.samples if each.name.endswith("_total"))


@pytest.mark.parametrize("strategy", everyday(["llguidance", "xgrammar"], "llguidance"))
def test_unseen_schemas_are_answered_within_small_budgets(engine: Engine, strategy: str) -> None:
    jobs = [
        (schema, SamplingParams(max_tokens=budget, temperature=temperature, seed=7, constraint=constraint))
        for schema in SCHEMAS
        for constraint in [JsonSchema(schema, strategy=strategy)]
        for budget, temperature in ((48, 0.0), (64, 1.5))
    ]
    results = engine.generate([PROMPT] * len(jobs), [params for _, params in jobs])
    for (schema, _), result in zip(jobs, results, strict=True):
        assert result.error is None
        assert (result.finish_reason, result.unenforced) == (FinishReason.STOP, ()), (schema, result.text)
        jsonschema.validate(json.loads(result.text), schema)
    assert any(result.closed_early for result in results)


@pytest.mark.slow
def test_hosts_drafts_and_forks_change_no_token(engine: Engine) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.2, seed=5, n=3, constraint=JsonSchema(SCHEMAS[0]))
    (expected,) = engine.generate([PROMPT], params)
    with Engine("demo", grammar=("llguidance",), grammar_host="inline", num_speculative_tokens=3) as drafting:
        (drafted,) = drafting.generate([PROMPT], params)
    assert [output.token_ids for output in drafted.outputs] == [output.token_ids for output in expected.outputs]
    assert [output.closed_early for output in drafted.outputs] == [output.closed_early for output in expected.outputs]


CALL = {
    "begin": '<call>{"name": "look", "arguments": ',
    "content": {"type": "json_schema", "json_schema": README},
    "end": "}</call>",
}


def tags(strategy: str, *, required: bool) -> StructuralTag:
    tag = {"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL], "at_least_one": required}
    return StructuralTag({"type": "structural_tag", "format": tag}, strategy=strategy)


@pytest.mark.parametrize("strategy", everyday(["llguidance", "xgrammar"], "xgrammar"))
@pytest.mark.parametrize("kind", ["free text", "text after a call", "letters", "lark"])
def test_text_that_is_complete_where_it_is_cut_lacks_nothing_and_is_the_models_own(
    engine: Engine, strategy: str, kind: str
) -> None:
    constraint: Constraint = {
        "free text": tags(strategy, required=False),
        "text after a call": tags(strategy, required=True),
        "letters": Regex("[a-z ]*", strategy=strategy),
        "lark": Grammar("start: /(?s:.*)/", "lark"),
    }[kind]
    (free,) = engine.generate([PROMPT], SamplingParams(max_tokens=140, constraint=constraint, close=False))
    decode, first = engine._runtime.context.vocabulary.decode, 0
    while kind == "text after a call" and b"</call>" not in decode(free.token_ids[:first]):
        first += 1
    limits = range(first + 1, first + 41)
    wanted = [SamplingParams(max_tokens=limit, constraint=constraint) for limit in limits]
    for limit, result in zip(limits, engine.generate([PROMPT] * len(limits), wanted), strict=True):
        assert result.token_ids == free.token_ids[:limit]
        assert (result.unenforced, result.closed_early) == ((), False), (limit, result.text)
        assert limit >= len(free.token_ids) or result.finish_reason is FinishReason.LENGTH


def test_the_raw_behavior_can_be_asked_for(engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, constraint=JsonSchema(SCHEMAS[0]), close=False)
    (cut,) = engine.generate([PROMPT], params)
    assert (cut.finish_reason, cut.closed_early, cut.unenforced) == (FinishReason.LENGTH, False, ())


@pytest.mark.parametrize(
    "constraint",
    one_in(
        5,
        [
            JsonSchema(README),
            JsonSchema({"type": "object", "properties": {"isbn": {"type": "null"}}, "required": ["isbn"]}),
            Choice(["abracadabra", "an open sesame"]),
            Regex("[a-z]{3}-[0-9]{9}"),
            JsonSchema(SCHEMAS[0]),
        ],
    ),
    ids=["two members", "schema", "choice", "regex", "several members"],
)
def test_a_budget_that_no_answer_fits_into_is_refused(engine: Engine, constraint: Constraint) -> None:
    (refused,) = engine.generate([PROMPT], SamplingParams(max_tokens=2, constraint=constraint))
    (shortest,) = re.findall("the shortest one found has ([0-9]+)", str(refused.error))
    assert isinstance(refused.error, InvalidRequest) and refused.error.field == "max_tokens"
    (served,) = engine.generate([PROMPT], SamplingParams(max_tokens=int(shortest), constraint=constraint))
    assert (served.finish_reason, served.unenforced) == (FinishReason.STOP, ())
    (cut,) = engine.generate([PROMPT], SamplingParams(max_tokens=2, constraint=constraint, close=False))
    assert (cut.finish_reason, cut.unenforced) == (FinishReason.LENGTH, ())


ENDLESS = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}},
    "required": ["names"],
    "additionalProperties": False,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beside", "unenforced"),
    [
        ({"min_tokens": 5}, ()),
        ({"min_tokens": 28, "max_tokens": 28}, ("min_tokens",)),  # the output ends earlier, or has no room to continue
        ({"stop": ['"a"']}, ()),  # the shortest output contains it
        ({"stop": ["}"]}, ("constraint",)),
        ({"logit_bias": {"]}": -100.0}}, ()),
        ({"logit_bias": {"]": -math.inf, '"]': -math.inf, "]}": -math.inf, '"]}': -math.inf}}, ("logit_bias",)),
        ({"n": 3}, ()),
        ({"repetition_penalty": 1.3, "top_k": 3}, ()),
    ],
    ids=str,
)
def test_beside_other_parameters_an_answer_is_closed(
    engine: Engine, beside: dict[str, Any], unenforced: tuple[str, ...]
) -> None:
    """Bans are given as text."""
    if "logit_bias" in beside:
        tokens = engine._runtime.context.vocabulary.tokens
        texts = {text.encode(): bias for text, bias in beside["logit_bias"].items()}
        beside = {"logit_bias": {i: texts[token] for i, token in enumerate(tokens) if token in texts}}
    params = SamplingParams(
        **{"max_tokens": 24, "temperature": 2.0, "seed": 5, "constraint": JsonSchema(ENDLESS)} | beside
    )
    (result,) = engine.generate([PROMPT], params)
    assert result.error is None
    for output in result.outputs:
        assert (output.finish_reason, output.unenforced) == (FinishReason.STOP, unenforced), output.text
        if "constraint" not in unenforced:
            jsonschema.validate(json.loads(output.text), ENDLESS)


def test_ignore_eos_beside_a_constraint_is_refused(engine: Engine) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True, constraint=JsonSchema(ENDLESS))
    (result,) = engine.generate([PROMPT], params)
    assert isinstance(result.error, InvalidRequest) and "ignore_eos" in str(result.error)
