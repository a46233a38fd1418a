"""Objects whose names run out: an output ends where no other name can follow, never in a dead end."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from guideway.api import CompiledGrammar, JsonSchema, Vocabulary, Whitespace
from guideway.api.bitmask import allocate, unpack
from guideway.json_schema import MasksAhead, names_may_run_out

from tests.fuzz.examining import STOP, vocabulary
from tests.support.json_strategies import build
from tests.support.stages import everyday, one_in

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
FEW = {"type": "object", "patternProperties": {"^[ab]$": DIGIT}, "additionalProperties": False}
ONE = {"type": "object", "required": ["k"], "patternProperties": {"^k$": DIGIT}, "additionalProperties": False}
SCHEMAS: list[tuple[str, Any]] = [
    ("xgrammar", FEW),
    ("llguidance", FEW),
    # after k llguidance allows a comma that nothing can follow
    ("llguidance", ONE),
    ("xgrammar", {"type": "array", "items": FEW}),
    ("llguidance", {"type": "array", "items": FEW}),
    ("xgrammar", {"type": "object", "patternProperties": {"b": DIGIT}}),
    ("xgrammar", {"type": "object", "propertyNames": {"pattern": "^[ab]{1,2}$"}, "additionalProperties": DIGIT}),
    ("xgrammar", {"type": "object", "propertyNames": {"enum": ["a", "ab", "b"]}, "additionalProperties": DIGIT}),
    ("xgrammar", {"type": "object", "propertyNames": {"enum": ['"', '"a', "\\b"]}, "additionalProperties": DIGIT}),
    # after ``\u000`` llguidance allows only an ``a``, which nobody writes in names
    ("llguidance", {"type": "object", "patternProperties": {"^a?\n$": DIGIT}, "additionalProperties": False}),
]
MARKS = set(b'",:ab[]{\\u0')


def walks(compiled: CompiledGrammar, tokens: Vocabulary, num_walks: int) -> list[str]:
    """Return random texts that the masks allow, with as many properties as possible, cut after 120 tokens."""
    found = []
    for seed in range(num_walks):
        random, matcher, text = Random(seed), compiled.matcher(frozenset({STOP})), b""
        for _ in range(120):
            bitmask = allocate(1, tokens.logits_width)
            matcher.fill_bitmask(bitmask, 0)
            legal = np.flatnonzero(unpack(bitmask, tokens.logits_width)[0]).tolist()
            likely = [i for i in legal if i != STOP and set(tokens.tokens[i]) & MARKS]
            token_id = random.choice(likely or legal)
            for other in random.sample(range(len(tokens)), 20):
                if other not in legal:
                    assert matcher.accept([other]) == 0, "a token that the mask forbids"
            assert matcher.accept([token_id]) == 1
            if token_id == STOP:
                break
            text += tokens.tokens[token_id]
        found.append(text.decode())
    return found


@pytest.mark.parametrize("whitespace", everyday(["bounded", "compact", "spaced"], "bounded"))
@pytest.mark.parametrize(("strategy", "schema"), one_in(3, SCHEMAS))
def test_no_output_comes_to_a_dead_end(strategy: str, schema: Any, whitespace: Whitespace) -> None:
    tokens = vocabulary()
    texts = walks(build(strategy, tokens).compile(JsonSchema(schema, whitespace=whitespace)), tokens, 40)
    if schema is FEW:  # all end, and some have every name
        assert {"a", "b"} in [set(json.loads(text)) for text in texts]


@pytest.mark.parametrize("num_names", [59, 60])
def test_the_last_of_many_names_that_begin_alike_is_found(num_names: int) -> None:
    tokens = vocabulary()
    names = [f"n{i:02}" for i in range(60)]
    schema = {"type": "object", "propertyNames": {"enum": names}, "additionalProperties": DIGIT}
    matcher = build("xgrammar", tokens).compile(JsonSchema(schema)).matcher(frozenset({STOP}))
    text = "{" + ",".join(f'"{name}":1' for name in names[:num_names])
    assert matcher.accept([*text.encode()]) == len(text)
    bitmask = allocate(1, tokens.logits_width)
    matcher.fill_bitmask(bitmask, 0)
    legal = unpack(bitmask, tokens.logits_width)[0]
    assert bool(legal[ord(",")]) is (num_names < 60) and legal[ord("}")]
    for token_id in range(len(tokens)):  # `accept` looks ahead by itself, with the same result
        assert matcher.fork().accept([token_id]) == legal[token_id], tokens.tokens[token_id]


def test_a_new_name_that_differs_early_is_found_with_few_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = vocabulary()
    names = [f"n{a}{b}{40 * 'x'}" for a in "abc" for b in "abc"]
    schema = {"type": "object", "propertyNames": {"enum": names}, "additionalProperties": DIGIT}
    matcher = build("xgrammar", tokens).compile(JsonSchema(schema)).matcher(frozenset({STOP}))
    text = "{" + "".join(f'"{name}":1,' for name in names[:-1]) + '"'
    assert matcher.accept([*text.encode()]) == len(text)
    masks, mask_after = [], MasksAhead.__call__
    monkeypatch.setattr(MasksAhead, "__call__", lambda *asked: [masks.append(asked), mask_after(*asked)][1])
    assert matcher.accept([ord("n")]) == 1
    assert len(masks) == 4


@pytest.mark.parametrize("strategy", ["xgrammar", "llguidance"])
def test_logits_may_be_wider_than_the_vocabulary(strategy: str) -> None:
    tokens = replace(vocabulary(), logits_width=vocabulary().logits_width + 100)
    texts = walks(build(strategy, tokens).compile(JsonSchema(FEW)), tokens, 10)
    assert {"a", "b"} in [set(json.loads(text)) for text in texts]


@pytest.mark.parametrize(
    ("schema", "may"),
    [
        ({"type": "object"}, False),
        ({"properties": {"a": {}}, "additionalProperties": False}, False),
        ({"propertyNames": {"type": "string", "maxLength": 2}}, True),
        ({"propertyNames": {"maxLength": 2}}, True),
        ({"items": [{"patternProperties": {"^a$": {}}}]}, True),
        ({"patternProperties": {"^a$": {}, "b": {}}}, True),
        ({"$defs": {"a": {"propertyNames": {"enum": ["a"]}}}}, True),
        (True, False),
    ],
)
def test_which_schemas_are_looked_at(schema: Any, may: bool) -> None:
    assert names_may_run_out(JsonSchema(schema)) is may
