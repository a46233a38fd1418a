"""Requests with values of any type: each gets one typed error that names the field."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import pytest
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    FinishReason,
    InvalidRequest,
    JsonSchema,
    Regex,
    Request,
    SamplingParams,
)
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.hostility import PROMPT, VOCABULARY, WORD, assert_alone_ends, host
from tests.support.probes import GreenList
from tests.support.vocabularies import encode


class Vicious(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no item")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")

    def __len__(self) -> int:
        return 1


class Leaving:
    """A number that raises GeneratorExit when it is read."""

    def __index__(self) -> int:
        raise GeneratorExit

    __float__ = __int__ = __repr__ = __index__  # type: ignore[assignment]


Integral.register(Leaving)


class ViciousConstraint(Constraint):
    @property
    def kind(self) -> str:
        return "regex"

    def source(self) -> str:
        raise RuntimeError("no source")


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": 1e39}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": Leaving()}, "temperature"),
        ({"max_tokens": -(10**5000)}, "max_tokens"),
        ({"seed": 10**5000}, "seed"),
        ({"stop_token_ids": (10**5000,)}, "stop_token_ids"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": (i for i in (1, 2))}, "stop_token_ids"),
        ({"stop_token_ids": (1,), "constraint": WORD}, "stop_token_ids"),  # a stop token with text, and a constraint
        ({"modifiers": 3}, "modifiers"),
        ({"modifiers": ["green_list"]}, "modifiers"),
        ({"modifiers": {"green_list": 5}}, "modifiers.green_list"),
        ({"modifiers": {7: {}}}, "modifiers"),
        ({"constraint": JsonSchema(Vicious())}, "constraint"),
        ({"constraint": JsonSchema({1: 2})}, "constraint"),  # type: ignore[dict-item]
        ({"constraint": JsonSchema('{"type": "string", "type": "number"}')}, "constraint"),
        ({"constraint": JsonSchema(nested(100_000))}, "constraint"),
        ({"constraint": ViciousConstraint()}, "request"),
        ({"constraint": Regex("a", strategy=["x"])}, "constraint.strategy"),  # type: ignore[arg-type]
        ({"constraint": Regex(b"a")}, "constraint"),  # type: ignore[arg-type]
        ({"constraint": Choice(["a", 1])}, "constraint"),  # type: ignore[list-item]
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else None,
)
def test_a_hostile_request_names_its_field(change: dict[str, Any], field: str) -> None:
    bad = SamplingParams(**{"max_tokens": 6, **change})
    result = assert_alone_ends(host(GreenList), bad, SamplingParams(max_tokens=6))
    assert result.finish_reason is FinishReason.REFUSED
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == field
    assert len(str(result.error)) < 1000


@pytest.mark.parametrize("prompt", [(10**5000,), (True,), ("a",), "text", b"bytes", None, {1: 2}, (1.0,)])
def test_a_hostile_prompt_is_refused(prompt: Any) -> None:
    subject = host()
    with pytest.raises(InvalidRequest) as caught:
        subject.runtime.admit(Request(request_id="r", prompt_token_ids=prompt, params=SamplingParams()))
    assert caught.value.field == "prompt"
    with pytest.raises(InvalidRequest) as caught:
        subject.runtime.admit(Request(request_id="r", prompt_token_ids=(1,), params={}))  # type: ignore[arg-type]
    assert caught.value.field == "params"


def test_a_schema_is_what_it_was_at_admission() -> None:
    schema = {"enum": ["aaa"]}
    release = threading.Event()

    class Slow(ReferenceStrategy):
        def compile(self, constraint: Constraint) -> CompiledGrammar:
            assert release.wait(timeout=60)
            return super().compile(constraint)

    subject = host(strategies=[Slow])
    request = Request(
        request_id="r", prompt_token_ids=tuple(PROMPT), params=SamplingParams(constraint=JsonSchema(schema))
    )
    admission = subject.runtime.admit(request)
    schema["enum"] = ["zzz"]
    release.set()
    subject.runtime.start(admission, 0)
    assert subject.runtime.validate(0, encode(VOCABULARY, b'"aaa"')) > 1
    assert subject.runtime.validate(0, encode(VOCABULARY, b'"zzz"')) <= 1
