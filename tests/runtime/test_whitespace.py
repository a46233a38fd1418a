"""White space: the operator's default, and its part in a constraint's cache key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from guideway.api import (
    WHITESPACE,
    Constraint,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    Regex,
    Request,
    SamplingParams,
    StructuralTag,
)
from guideway.runtime.constraints.candidates import CandidateCache, choose
from guideway.runtime.constraints.digests import constraint_digest
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.hostility import host
from tests.support.vocabularies import tiny

SPACED: tuple[Any, ...] = (JsonSchema({"type": "null"}), JsonSchema('{"type": "null"}'), JsonObject())


def request(request_id: str, constraint: Constraint) -> Request:
    return Request(request_id=request_id, prompt_token_ids=(5,), params=SamplingParams(constraint=constraint))


@pytest.mark.parametrize("default", WHITESPACE)
def test_the_operators_word_is_that_of_requests_that_do_not_say(default: Any) -> None:
    runtime = host(whitespace=default).runtime
    for i, constraint in enumerate(SPACED):
        admitted = runtime.admit(request(f"a{i}", constraint)).request.params.constraint
        assert isinstance(admitted, JsonSchema | JsonObject)
        assert (admitted.whitespace, admitted.spacing) == (default, default)
        own = replace(constraint, whitespace="spaced")
        found = runtime.admit(request(f"b{i}", own)).request.params.constraint
        assert isinstance(found, JsonSchema | JsonObject)
        assert found.whitespace == "spaced"


@pytest.mark.parametrize("word", ["none", "", 1, ["any"], True])
def test_another_word_is_refused(word: Any) -> None:
    runtime = host().runtime
    for constraint in SPACED:
        with pytest.raises(InvalidRequest, match="must be one of bounded, compact, spaced, any") as caught:
            runtime.admit(request("a", replace(constraint, whitespace=word)))
        assert caught.value.field == "constraint.whitespace"


def test_each_word_has_a_grammar_of_its_own() -> None:
    strategies = {"reference": ReferenceStrategy(tiny(), {})}
    cache = CandidateCache(strategies)
    for constraint in (*SPACED, StructuralTag("{}")):
        words: list[Constraint] = [replace(constraint, whitespace=word) for word in WHITESPACE]
        assert len({constraint_digest(each) for each in words}) == len(WHITESPACE)
        assert constraint_digest(constraint) == constraint_digest(words[0])
        if constraint.kind != "structural_tag":
            assert len({choose(each, strategies).candidates[0].key for each in words}) == len(WHITESPACE)
            assert len({cache.chosen(each).candidates[0].key for each in words}) == len(WHITESPACE)
    assert Regex("a").spacing is None
