"""Schemas that are unsatisfiable, in part or as a whole, with the installed grammar strategies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from guideway.api import (
    CompiledGrammar,
    GrammarStrategy,
    InvalidGrammar,
    JsonSchema,
    StructuralTag,
)
from guideway.json_schema.prober import STOP, byte_vocabulary
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies
from guideway.runtime.constraints.candidates import choose

NARROW = {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
B = {"type": "integer"}


@pytest.fixture(scope="module")
def strategies() -> Mapping[str, GrammarStrategy]:
    plugins = Plugins()
    names = ("llguidance", "xgrammar", "outlines", "lmfe")
    return build_strategies([plugins.load("grammar", name) for name in names], byte_vocabulary(), {})


def takes(grammar: CompiledGrammar, value: Any) -> bool:
    text = json.dumps(value, separators=(",", ":")).encode()
    return grammar.matcher(frozenset({STOP})).accept([*text, STOP]) == len(text) + 1


def test_nobody_is_asked_for_what_cannot_be(strategies: Mapping[str, GrammarStrategy]) -> None:
    schema = {"properties": {"k": NARROW}, "required": ["k"], "type": "object"}
    with pytest.raises(InvalidGrammar, match=r"^#/properties/k: no integer is above 0 and below 1"):
        choose(JsonSchema(schema), strategies)
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    with pytest.raises(InvalidGrammar, match=r"^#/format/json_schema/properties/k: no integer"):
        choose(StructuralTag(tag), strategies)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"k": False}}, [{}], [{"k": 1}, {"k": None}]),
        ({"type": "object", "properties": {"k": {"enum": []}, "b": B}}, [{}, {"b": 1}], [{"k": 1}]),
        ({"type": "object", "properties": {"k": NARROW, "b": B}}, [{}, {"b": 1}], [{"k": 0}, {"k": 7}]),
        (
            {"type": "object", "properties": {"k": NARROW, "b": B}, "additionalProperties": False},
            [{}, {"b": 1}],
            [{"k": 0}, {"k": 7}],
        ),
        ({"anyOf": [NARROW, {"type": "string", "maxLength": 3}]}, ["abc"], [0, 7]),
        ({"type": "array", "items": NARROW}, [[]], [[0], [7]]),
        ({"type": ["object", "null"], "properties": {"k": NARROW}, "required": ["k"]}, [None], [{}, {"k": 7}]),
    ],
    ids=str,
)
def test_the_rest_is_served_exactly(
    strategies: Mapping[str, GrammarStrategy], schema: dict[str, Any], right: list[Any], wrong: list[Any]
) -> None:
    constraint = JsonSchema(json.dumps(schema))
    first = choose(constraint, strategies).candidates[0]
    assert first.unenforced == ()
    grammar = first.strategy.compile(first.served(constraint))
    assert [takes(grammar, value) for value in right] == [True] * len(right)
    assert [takes(grammar, value) for value in wrong] == [False] * len(wrong)
