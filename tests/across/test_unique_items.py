"""Masks keep the items of arrays unique, over grammars that do not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any, Literal
from zlib import crc32

import numpy as np
import pytest
from guideway import Engine, EngineConfig, JsonSchema, SamplingParams
from guideway.api import GrammarStrategy, Matcher, Vocabulary
from guideway.api.bitmask import allocate, unpack
from guideway.json_schema.prober import byte_vocabulary
from guideway.json_schema.tracking import TrackedSchema, UniqueArrays, tracked
from guideway.runtime.constraints.candidates import choose
from guideway.runtime.constraints.tracking import compile_grammar
from guideway.runtime.sequences.replay import new_matcher
from guideway_llguidance.strategy import Strategy as Llguidance
from guideway_xgrammar.strategy import Strategy as Xgrammar
from jsonschema import Draft202012Validator

from tests.support.stages import everyday

PIECES = (
    [bytes((byte,)) for byte in b'[]{}",:.-+0123456789abcdefulnsrtx\\E']
    + [
        b'","',
        b'",',
        b'"]',
        b'["',
        b'a"',
        b'","a"',
        b"1,",
        b"1,1",
        b"[1,1]",
        b"true",
        b',"',
        b'"a","a"]',
        b"},{",
        b"e,",
    ]
    + [
        b'{"a":1}',
        b'"a":',
        b'{"',
        b'":',
        b"]]",
        b"],[",
        b"0]",
        b"10",
        b"1.",
        b"\\u00",
        b"61",
        b"ab",
        b"ba",
        b'b"',
        b".0",
    ]
)
VOCABULARY = Vocabulary([*PIECES, b""], frozenset({len(PIECES)}), {len(PIECES): "</s>"})
STOPS = VOCABULARY.stop_token_ids

LEAVES: list[dict[str, Any]] = [
    {"enum": ["a", "ab", "b"]},
    {"enum": ["a", 1, True, None, [1], {"a": 1}]},
    {"type": "boolean"},
    {"type": "integer", "minimum": 0, "maximum": 11},
    {"type": "string", "maxLength": 1, "pattern": "^[ab]*$"},
    {"type": "string", "pattern": "^a?b?$"},
    {"const": "a"},
    {"enum": [[1], [1, 2], []]},
]


@pytest.mark.parametrize("num_schemas", everyday([20, 60], 20))
def test_finite_languages_exactly(num_schemas: int) -> None:
    """A token is allowed exactly if a valid text goes on with it."""
    rng = random.Random(4)
    for _ in range(num_schemas):
        schema = finite_schema(rng)
        texts = sorted(set(valid_texts(schema)))
        matcher = matcher_of(Llguidance(VOCABULARY, {}), schema)
        if matcher is None:
            continue
        for _ in range(3):
            walk_and_compare(matcher.fork(), texts, rng, schema)


ARRAY: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 4}, "uniqueItems": True}
OTHER: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(("grammar", "grammar_host"), [("llguidance", "process"), ("xgrammar", "inline")])
def test_an_engine_keeps_items_unique(grammar: str, grammar_host: Literal["inline", "process"]) -> None:
    """Also where outputs are closed within their limit, forked and preempted."""
    schema = JsonSchema({"type": "object", "properties": {"a": ARRAY, "b": OTHER}, "required": ["a"]})
    config = EngineConfig(
        model="demo",
        grammar=(grammar,),
        grammar_host=grammar_host,
        whitespace="compact",
        max_model_len=128,
        kv_cache_tokens=384,
    )
    with Engine(config) as engine:
        wanted = SamplingParams(max_tokens=17, temperature=2.0, seed=1, n=6, constraint=schema, on_unenforced="refuse")
        for output in engine.generate(["x"], wanted)[0].outputs:
            assert output.unenforced in ((), ("closing",)), output
            assert Draft202012Validator(json.loads(schema.source())).is_valid(json.loads(output.text)), output


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "is_named"),
    [
        (ARRAY, False),
        ({"anyOf": [{"type": "string"}, ARRAY]}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": ARRAY}}, False),
        ({"properties": {"a": {"allOf": [ARRAY, {"maxItems": 3}]}}}, False),
        ({"patternProperties": {".*": ARRAY}}, False),
        ({"additionalProperties": {"items": ARRAY}}, False),
        ({**ARRAY, "minItems": 3}, False),
        ({"type": "array", "items": {"type": "string", "pattern": "^a+$"}, "uniqueItems": True, "minItems": 3}, False),
        ({**ARRAY, "items": {"$ref": "#/$defs/i"}, "minItems": 3, "$defs": {"i": {"pattern": "^a+$", **TEXT}}}, False),
        # other branches may apply
        ({"anyOf": [OTHER, ARRAY]}, True),
        ({"properties": {"b": OTHER}, "if": ARRAY, "then": ARRAY}, True),
        ({"anyOf": [OTHER, {"type": ["array", "string"], "items": ARRAY}]}, True),
        ({"patternProperties": {"^a": ARRAY}}, True),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "not": {"$ref": "#/$defs/a"}, "$defs": {"a": ARRAY}}, True),
        # items may run out
        ({"type": "array", "items": {"type": "string", "pattern": "^[ab]$"}, "uniqueItems": True, "minItems": 3}, True),
        ({**ARRAY, "prefixItems": [{"const": 1}]}, True),
        ({**ARRAY, "contains": {"const": 1}}, True),
    ],
)
def test_what_is_not_enforced_is_named(schema: Any, *, is_named: bool) -> None:
    constraint = JsonSchema(schema)
    candidate = choose(constraint, {"xgrammar": Xgrammar(VOCABULARY, {})}).candidates[0]
    assert ("uniqueItems" in candidate.unenforced) is is_named


def test_a_schema_that_takes_long_to_follow_is_not_tracked() -> None:
    wide = {"properties": {f"p{i}": {"$ref": "#"} for i in range(3000)} | {"a": ARRAY}}
    assert UniqueArrays(wide).tracked == []
    assert len(UniqueArrays({"properties": {f"p{i}": ARRAY.copy() for i in range(100)}}).tracked) == 100


def finite_schema(rng: random.Random) -> dict[str, Any]:
    leaf = rng.choice(LEAVES)
    array: dict[str, Any] = {"type": "array", "items": leaf, "uniqueItems": True, "maxItems": rng.randint(1, 3)}
    if rng.random() < 0.5:
        array["minItems"] = rng.randint(0, min(2, array["maxItems"]))
    kind = rng.random()
    if kind < 0.2:
        return {"type": "object", "properties": {"a": array}, "required": ["a"], "additionalProperties": False}
    if kind < 0.35:
        return {"anyOf": [{"enum": ["x", 1]}, {"$ref": "#/$defs/a"}], "$defs": {"a": array}}
    if kind < 0.5:
        inner = {"type": "object", "properties": {"a": leaf, "b": {"enum": [1]}}, "additionalProperties": False}
        if rng.random() < 0.5:
            inner["properties"]["a"] = {"enum": [1, 2]}
            return {"type": "array", "items": inner, "uniqueItems": True, "minItems": 2, "maxItems": 3}
        return {"type": "array", "items": inner, "uniqueItems": True, "maxItems": 2}
    if kind < 0.6:
        return {"type": "array", "items": array | {"maxItems": 2}, "uniqueItems": True, "maxItems": 2}
    return array


def values_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return all values of a schema of `finite_schema`, perhaps more."""
    if "$ref" in schema:
        raise AssertionError
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    match schema["type"]:
        case "boolean":
            return [True, False]
        case "integer":
            return list(range(schema["minimum"], schema["maximum"] + 1))
        case "string":
            return ["", "a", "b", "ab"]
        case "array":
            items = values_of(schema["items"])
            return [list(each) for number in range(schema["maxItems"] + 1) for each in product(items, repeat=number)]
    found: list[Any] = [{}]
    for name, part in schema["properties"].items():
        found = [{**each, **more} for each in found for more in ({}, *({name: value} for value in values_of(part)))]
    return found


def valid_texts(schema: dict[str, Any]) -> Iterator[bytes]:
    validator = Draft202012Validator(schema)
    roots = [schema]
    if "anyOf" in schema:
        roots = [schema["anyOf"][0], schema["$defs"]["a"]]
    for root in roots:
        for value in values_of(root):
            if validator.is_valid(value):
                yield json.dumps(value, separators=(",", ":")).encode()


def matcher_of(strategy: GrammarStrategy, schema: Any) -> Matcher | None:
    constraint = tracked(JsonSchema(json.dumps(schema), whitespace="compact"))
    if not isinstance(constraint, TrackedSchema) or '"uniqueItems"' in constraint.source():
        return None
    return new_matcher(strategy, compile_grammar(strategy, constraint), STOPS)


def walk_and_compare(matcher: Matcher, texts: Sequence[bytes], rng: random.Random, schema: Any) -> None:
    text = b""
    while not matcher.is_terminated():
        bitmask = allocate(1, len(VOCABULARY))
        matcher.fill_bitmask(bitmask, 0)
        allowed = np.flatnonzero(unpack(bitmask, len(VOCABULARY))[0]).tolist()
        rest = [each[len(text) :] for each in texts if each.startswith(text)]
        for token_id, token in enumerate(VOCABULARY.tokens):
            goes_on = any(each.startswith(token) for each in rest) if token else b"" in rest
            assert (token_id in allowed) == goes_on, (schema, text, token)
            assert matcher.validate((token_id,)) == goes_on
        token_id = rng.choice(allowed)
        assert matcher.accept((token_id,)) == 1
        text += VOCABULARY.tokens[token_id]


@pytest.mark.parametrize("num_walks", everyday([4, 12], 4))
@pytest.mark.parametrize("strategy", [Llguidance, Xgrammar], ids=["llguidance", "xgrammar"])
def test_random_outputs_are_valid(strategy: type[GrammarStrategy], num_walks: int) -> None:
    """Every output is valid, none ends in a dead end, and a token is refused only if no valid text goes on with it."""
    rng, ours = random.Random(7), strategy(VOCABULARY, {})
    for schema in OPEN:
        validator = Draft202012Validator(schema)
        matcher = matcher_of(ours, schema)
        plain = JsonSchema(json.dumps(without_unique_items(schema)), whitespace="compact")
        alone = new_matcher(ours, ours.compile(plain), STOPS)
        assert matcher is not None
        for _ in range(num_walks):
            text = random_walk(matcher.fork(), alone.fork(), validator, rng)
            assert validator.is_valid(read(text)), (schema, text)


OPEN: list[dict[str, Any]] = [
    {"type": "array", "items": item, "uniqueItems": True, "minItems": 1, "maxItems": 6}
    for item in (
        {"type": "number"},
        {"type": "integer", "minimum": -2, "maximum": 12},
        {"type": "string", "maxLength": 2},
        {"type": "string"},
        {"type": ["boolean", "null", "integer"]},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
        {"anyOf": [{"type": "string", "pattern": "^a{1,3}$"}, {"type": "number", "minimum": 0, "maximum": 1}]},
    )
]


def without_unique_items(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: without_unique_items(part) for name, part in schema.items() if name != "uniqueItems"}
    return [without_unique_items(part) for part in schema] if isinstance(schema, list) else schema


def random_walk(matcher: Matcher, alone: Matcher, validator: Draft202012Validator, rng: random.Random) -> bytes:
    text = b""
    for _ in range(60):
        allowed, possible = mask_of(matcher), mask_of(alone)
        assert allowed <= possible
        for token_id in rng.sample(sorted(possible - allowed), min(3, len(possible - allowed))):
            assert not goes_on(text, token_id, alone, validator), (text, VOCABULARY.tokens[token_id])
        drafts = tuple(rng.choice(sorted(possible)) for _ in range(2))
        count = matcher.validate(drafts)
        assert count == matcher.fork().accept(drafts)
        assert count == 0 or drafts[0] in allowed
        more = [i for i in allowed - STOPS if b"]" not in VOCABULARY.tokens[i]]
        token_id = rng.choice(sorted(more if more and rng.random() < 0.9 else allowed))
        assert matcher.accept((token_id,)) == alone.accept((token_id,)) == 1
        text += VOCABULARY.tokens[token_id]
        if matcher.is_terminated():
            break
        if rng.random() < 0.2:
            matcher.rollback(1)
            assert mask_of(matcher) == allowed
            matcher.accept((token_id,))
    else:
        return closed(text, matcher, rng)
    return text


def closed(text: bytes, matcher: Matcher, rng: random.Random) -> bytes:
    """Return a text with a completion."""
    for _ in range(400):
        allowed = mask_of(matcher)
        if allowed >= STOPS:
            return text
        ends = [i for i in allowed if VOCABULARY.tokens[i][:1] in (b"]", b"}", b'"', b",")]
        token_id = rng.choice(sorted(ends or allowed))
        matcher.accept((token_id,))
        text += VOCABULARY.tokens[token_id]
    raise AssertionError(text)


def read(text: bytes) -> Any:
    """Return the value of a text. Two large numbers are not both infinite."""

    def exact(number: str) -> Decimal:
        try:
            return Decimal(number)
        except InvalidOperation:  # its exponent is too large for the oracle
            return Decimal(crc32(number.encode()))

    return json.loads(text, parse_float=exact)


def mask_of(matcher: Matcher) -> frozenset[int]:
    bitmask = allocate(1, len(VOCABULARY))
    matcher.fill_bitmask(bitmask, 0)
    return frozenset(np.flatnonzero(unpack(bitmask, len(VOCABULARY))[0]).tolist())


def goes_on(text: bytes, token_id: int, alone: Matcher, validator: Draft202012Validator) -> bool:
    """Return whether a valid text is found that begins with a text and a token."""
    if VOCABULARY.tokens[token_id] == b"":
        return validator.is_valid(read(text))
    matcher = alone.fork()
    assert matcher.accept((token_id,)) == 1
    pending = [(text + VOCABULARY.tokens[token_id], matcher)]
    for before, state in pending:
        allowed = mask_of(state)
        if allowed >= STOPS and validator.is_valid(read(before)):
            return True
        for more in allowed - STOPS if len(pending) < 150 else ():
            if len(VOCABULARY.tokens[more]) == 1:
                after = state.fork()
                after.accept((more,))
                pending.append((before + VOCABULARY.tokens[more], after))
    return False


DYNAMIC: list[tuple[Any, bytes]] = [
    (
        {
            "$defs": {"u": {"$dynamicAnchor": "u", "type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/u"}, "b": {"$dynamicRef": "#u"}},
            "additionalProperties": False,
        },
        b'{"b":[1,1]}',
    ),
    ({"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}, "uniqueItems": True}, b"[[[],[]]]"),
    (
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$recursiveAnchor": True,
            "type": "array",
            "items": {"anyOf": [{"type": "integer"}, {"$recursiveRef": "#"}]},
            "uniqueItems": True,
        },
        b"[[1,1]]",
    ),
]


@pytest.mark.parametrize("strategy", [Llguidance, Xgrammar], ids=["llguidance", "xgrammar"])
@pytest.mark.parametrize(("schema", "text"), DYNAMIC, ids=range(len(DYNAMIC)))
def test_what_a_dynamic_reference_reaches_is_unique_or_named(
    strategy: type[GrammarStrategy], schema: Any, text: bytes
) -> None:
    vocabulary = byte_vocabulary()
    ours, constraint = strategy(vocabulary, {}), JsonSchema(json.dumps(schema), whitespace="compact")
    for candidate in choose(constraint, {"ours": ours}).candidates:
        matcher = new_matcher(ours, compile_grammar(ours, candidate.served(constraint)), vocabulary.stop_token_ids)
        taken = matcher.accept(tuple(text)) == len(text) and matcher.is_accepting()
        assert not taken or candidate.unenforced


@pytest.mark.parametrize("strategy", [Llguidance, Xgrammar], ids=["llguidance", "xgrammar"])
@pytest.mark.parametrize(
    ("text", "token"),
    [
        (rb'["a\n","a' + b"\\", b'n"'),
        (rb'["a\"","a' + b"\\", b'""'),
        (rb'["a","\u00', b'61"'),
        (rb'["a",' + b'"\\', b'u0061"'),
        ("[\"é\",\"".encode() + b"\xc3", b'\xa9"'),
    ],
)  # fmt: skip
def test_a_token_that_ends_a_character_and_a_repeated_string_is_not_in_the_mask(
    strategy: type[GrammarStrategy], text: bytes, token: bytes
) -> None:
    tokens = [*(bytes((each,)) for each in range(256)), token, b""]
    vocabulary = Vocabulary(tokens, frozenset({257}), {257: "</s>"})
    ours, schema = strategy(vocabulary, {}), {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    matcher = matcher_of(ours, schema)
    assert matcher is not None
    assert matcher.accept(tuple(text)) == len(text)
    bitmask = allocate(1, len(vocabulary))
    matcher.fill_bitmask(bitmask, 0)
    assert unpack(bitmask, len(vocabulary))[0][256] == matcher.validate((256,)) == 0


@pytest.mark.parametrize("begun", [b"[1e+", b"[2E-", b"[1,0.5e+"])
def test_a_number_without_its_exponent_is_no_item(begun: bytes) -> None:
    matcher = matcher_of(
        Llguidance(byte_vocabulary(), {}), {"type": "array", "uniqueItems": True, "items": {"type": "number"}}
    )
    assert matcher is not None
    assert matcher.accept(tuple(begun)) == len(begun)
    assert [matcher.fork().accept(tuple(end)) for end in (b",", b"]", b"1")] == [0, 0, 1]
