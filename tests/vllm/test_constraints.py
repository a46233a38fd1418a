"""Constraints in vLLM's own fields, served by guideway with one strategy per request of a batch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

GUIDEWAY = {"grammar": ["llguidance", "xgrammar"]}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = "Anna Berg is 34 years old."


def params(max_tokens: int = 80, *, extra: dict[str, Any] | None = None, **constraint: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    outputs = StructuredOutputsParams(**constraint) if constraint else None
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=outputs, extra_args=extra)


def test_one_batch_has_a_strategy_for_each_request(start: Callable[..., Any]) -> None:
    llm = start(GUIDEWAY)
    wanted = [
        params(json=SCHEMA),
        params(json=SCHEMA, extra={"guideway.strategy": "xgrammar"}),
        params(regex="[a-z]{3}"),
        params(choice=["yes", "no"]),
        params(grammar='start: "ab" | "cd"'),
        params(grammar='root ::= "ab" | "cd"'),
        params(json_object=True, max_tokens=24),
        params(max_tokens=6),
    ]
    outputs = llm.generate([PROMPT] * len(wanted), wanted)
    texts = [output.outputs[0].text for output in outputs]
    told = [output.kv_transfer_params for output in outputs]
    for text in texts[:2]:
        value = json.loads(text)
        assert set(value) == {"name", "age"}
        assert len(value["name"]) <= 12
    assert re.fullmatch("[a-z]{3}", texts[2])
    assert texts[3] in ("yes", "no")
    assert texts[4] in ("ab", "cd")
    assert texts[5] in ("ab", "cd")
    assert texts[6].lstrip().startswith("{")
    served = [None if t is None else t["guideway"]["strategy"] for t in told]
    assert served == ["llguidance", "xgrammar", *["llguidance"] * 3, "xgrammar", "llguidance", None]


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ({"json": {"type": "strin"}}, "must be one of string, integer"),
        ({"regex": "("}, "unclosed group"),
        ({"grammar": "root ::= ("}, "EBNF parser error"),
        ({"choice": []}, "at least one string"),
        ({"json": SCHEMA, "whitespace_pattern": " "}, "whitespace_pattern is not enforced"),
        ({"json": SCHEMA, "extra": {"guideway.stratgy": "xgrammar"}}, "did you mean 'guideway.strategy'"),
        ({"json": SCHEMA, "extra": {"guideway.strategy": "xgrammr"}}, "did you mean 'xgrammar'"),
        ({"json": SCHEMA, "extra": {"guideway.dialect": "lark"}}, "no grammar"),
        ({"extra": {"guideway.modifiers": {"no_such": {}}}}, "no logit modifier 'no_such' is configured"),
    ],
)
def test_what_is_wrong_is_refused_before_it_costs_anything(
    start: Callable[..., Any], constraint: dict[str, Any], said: str
) -> None:
    from vllm.exceptions import VLLMValidationError

    llm = start(GUIDEWAY)
    with pytest.raises(VLLMValidationError, match=re.escape(said)):
        llm.generate([PROMPT], [params(**constraint)])
    assert llm.generate([PROMPT], [params(choice=["yes"])])[0].outputs[0].text == "yes"


def test_a_reasoning_parser_that_fails_ends_its_request_only(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no end in sight")

    llm = start(GUIDEWAY)
    core = llm.llm_engine.engine_core.engine_core.scheduler.guest
    free = len(core._free)
    with monkeypatch.context() as broken:
        broken.setattr("vllm.v1.structured_output.StructuredOutputManager._get_constraint_bounds", fails)
        failed, plain = llm.generate([PROMPT] * 2, [params(choice=["yes"]), params(max_tokens=4)])
    assert failed.outputs[0].finish_reason == "error"
    assert "vllm.reasoning_parser" in failed.kv_transfer_params["guideway"]["error"]
    assert plain.outputs[0].finish_reason == "length"
    assert len(core._free) == free
    assert llm.generate([PROMPT], [params(choice=["yes"])])[0].outputs[0].text == "yes"
