"""Masks take the properties of objects in any order, and objects with all that they require."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from itertools import permutations, product
from typing import Any, Literal

import numpy as np
import pytest
from guideway import Engine, EngineConfig, JsonSchema, SamplingParams
from guideway.api import Matcher, Vocabulary
from guideway.api.bitmask import allocate, unpack
from guideway.errors import DeadEnd, InvalidGrammar, LimitExceeded, UnsupportedGrammar
from guideway.json_schema.kinds import OBJECT
from guideway.json_schema.prober import byte_vocabulary
from guideway.json_schema.tracking import NotTracked
from guideway.json_schema.tracking.alternatives import Alternatives
from guideway.runtime.constraints.candidates import Candidate, choose, enforcing_all
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.rewriting import IN_HOSTS, ORDER
from guideway.runtime.constraints.tracking import compile_grammar
from guideway.runtime.sequences.replay import new_matcher
from guideway_conformance.reference.strategy import Strategy as Other
from guideway_llguidance.strategy import Strategy as Llguidance
from jsonschema import Draft202012Validator

from tests.support.stages import everyday

PIECES = [bytes((byte,)) for byte in b'{}[]":,1xyabcpqr'] + [
    *(
        b"{}",
        b"}}",
        b'{"',
        b'":',
        b'":1',
        b'"}',
        b',"',
        b'","',
        b'{"a":1}',
        b'1,"b',
        b'"a":',
        b'"x","',
        b'"p":1}',
        b"1}",
    ),
    *(b"1}}", b'":"x"}', b'{"a', b'x"', b'"x"}', b'":{}', b'":{"p', b',"q":1},"'),
]
VOCABULARY = Vocabulary([*PIECES, b""], frozenset({len(PIECES)}), {len(PIECES): "</s>"})
BYTES = byte_vocabulary()

INNER = ["1", '"x"', '"y"', "{}", '{"p":1}', '{"q":1}', '{"p":1,"q":1}', '{"q":1,"p":1}']
TEXTS = [
    "{" + ",".join(f'"{name}":{value}' for name, value in zip(names, values, strict=True)) + "}"
    for number in range(4)
    for names in permutations("abc", number)
    for values in product(INNER, repeat=number)
]
ALL = [(text, json.loads(text)) for text in TEXTS]
"""Texts, and their values."""


@pytest.mark.parametrize("num_schemas", everyday([15, 60], 15))
def test_finite_languages_exactly(num_schemas: int) -> None:
    """A token is allowed exactly if a valid text, with its properties in some order, goes on with it."""
    rng, strategy, number = random.Random(3), Llguidance(VOCABULARY, {}), 0
    for _ in range(num_schemas):
        schema = finite_schema(rng)
        validator = Draft202012Validator(schema)
        texts = {text.encode() for text, value in ALL if validator.is_valid(value)}
        if not texts:
            continue
        matcher, candidate = served(strategy, schema, whitespace="compact")
        if ORDER in candidate.unenforced:
            continue
        number += 1
        for _ in range(3):
            walk_and_compare(matcher.fork(), texts, rng, schema)
    assert number >= num_schemas / 2


def walk_and_compare(matcher: Matcher, texts: set[bytes], rng: random.Random, schema: Any) -> None:
    text, begun = b"", {text[:end] for text in texts for end in range(len(text) + 1)}
    while not matcher.is_terminated():
        bitmask = allocate(1, len(VOCABULARY))
        matcher.fill_bitmask(bitmask, 0)
        allowed = np.flatnonzero(unpack(bitmask, len(VOCABULARY))[0]).tolist()
        for token_id, token in enumerate(VOCABULARY.tokens):
            goes_on = text + token in begun if token else text in texts
            assert (token_id in allowed) == goes_on, (schema, text, token)
            assert matcher.validate((token_id,)) == goes_on
        token_id = rng.choice(allowed)
        assert matcher.accept((token_id,)) == 1
        text += VOCABULARY.tokens[token_id]


@pytest.mark.parametrize("number", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_random_schemas(number: int) -> None:
    """What is valid is taken in every order, what is not is refused or named, and no walk through the masks ends before
    a valid text."""
    rng, strategy, in_order = random.Random(number), Llguidance(BYTES, {}), 0
    for _ in range(number):
        schema = random_schema(rng, 3)
        try:
            matcher, candidate = served(strategy, schema)
        except (InvalidGrammar, UnsupportedGrammar, LimitExceeded):
            continue
        in_order += ORDER in candidate.unenforced
        validator, is_named = Draft202012Validator(schema), bool(set(candidate.unenforced) - {ORDER})
        for _ in range(30):
            value = random_value(rng, 3)
            if validator.is_valid(value):
                assert takes(matcher.fork(), value) or ORDER in candidate.unenforced, (schema, value)
            else:
                assert is_named or not takes(matcher.fork(), value), (schema, value)
        for _ in range(2):
            try:
                text = random_text(matcher.fork(), rng)
            except DeadEnd:
                raise AssertionError(schema) from None
            assert text is None or is_named or validator.is_valid(json.loads(text)), (schema, text)
    assert in_order < number / 10


@pytest.mark.parametrize("number", everyday([100, 1000], 100))
def test_masks_and_tokens_agree(number: int) -> None:
    """Also where a token begins an object with a name, or ends several."""
    rng, strategy = random.Random(number), Llguidance(VOCABULARY, {})
    for _ in range(number):
        schema = random_schema(rng, 3)
        try:
            matcher, _ = served(strategy, schema)
        except (InvalidGrammar, UnsupportedGrammar, LimitExceeded):
            continue
        text = b""
        for _ in range(25):
            bitmask = allocate(1, len(VOCABULARY))
            try:
                matcher.fill_bitmask(bitmask, 0)
            except DeadEnd:  # no token of so few may continue a text
                break
            allowed = unpack(bitmask, len(VOCABULARY))[0].tolist()
            assert [matcher.validate((i,)) for i in range(len(VOCABULARY))] == allowed, (schema, text)
            token_id = rng.choice([i for i in range(len(VOCABULARY)) if allowed[i]])
            matcher.accept((token_id,))
            text += VOCABULARY.tokens[token_id]
            if matcher.is_terminated():
                break


@pytest.mark.parametrize(
    ("schema", "is_named"),
    [
        ({"properties": {"a": {}, "b": {}}, "required": ["b"]}, False),
        ({"enum": [{"a": 1, "b": 2}, "c"]}, False),
        ({"patternProperties": {"^a": {}}, "properties": {"ab": {"type": "string"}, "b": {}}}, False),
        ({"patternProperties": {r"^[/][/.\w-]{0,254}$": {"type": "string"}}, "required": ["a", "b"]}, True),
        ({"properties": {name: {"maxLength": i + 1} for i, name in enumerate(map(str, range(101)))}}, True),
    ],
)
def test_an_order_that_is_kept_is_named(schema: Any, *, is_named: bool) -> None:
    _, candidate = served(Llguidance(BYTES, {}), schema)
    assert (ORDER in candidate.unenforced) is is_named


def test_a_strategy_whose_schemas_are_not_rewritten_keeps_its_order() -> None:
    schema = JsonSchema({"type": "object", "properties": {"a": {}, "b": {}}}, properties_order="any")

    class Unchanged(Other):
        takes = frozenset()

    [candidate] = choose(schema, {"reference": Unchanged(BYTES, {})}).candidates
    assert candidate.unenforced == (ORDER,)
    with pytest.raises(UnsupportedGrammar, match="properties_order"):
        enforcing_all(choose(schema, {"reference": Other(BYTES, {})}), schema)


def test_equal_schemas_in_another_order_are_other_grammars() -> None:
    schema = {"properties": {"a": {}, "b": {}}}
    strategy = {"llguidance": Llguidance(BYTES, {})}
    one, other = (choose(JsonSchema(schema, properties_order=order), strategy) for order in ("declared", "any"))
    assert one.candidates[0].key != other.candidates[0].key
    with pytest.raises(InvalidGrammar, match=r"properties_order must be one of declared, any, not 'some'"):
        choose(JsonSchema(schema, properties_order="some"), strategy)  # type: ignore[arg-type]


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "pet": {"anyOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
    },
    "required": ["name", "pet", "tags"],
    "additionalProperties": False,
    "$defs": {
        "cat": {
            "type": "object",
            "properties": {"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}},
            "required": ["kind", "lives"],
        },
        "dog": {
            "type": "object",
            "properties": {"kind": {"const": "dog"}, "good": {"const": True}},
            "required": ["kind", "good"],
        },
    },
}


@pytest.mark.parametrize("grammar_host", ["process", "inline"])
def test_an_engine_writes_what_is_required_within_the_limit(grammar_host: Literal["inline", "process"]) -> None:
    schema = JsonSchema(json.dumps(PERSON), properties_order="any", whitespace="compact")
    config = EngineConfig(model="demo", grammar=("llguidance",), grammar_host=grammar_host, max_model_len=160)
    orders = set()
    with Engine(config) as engine:
        wanted = SamplingParams(max_tokens=70, temperature=8.0, seed=1, n=4, constraint=schema, on_unenforced="refuse")
        for output in engine.generate(["x"], wanted)[0].outputs:
            value = json.loads(output.text)
            assert Draft202012Validator(PERSON).is_valid(value), output
            orders.add(tuple(value))
    assert len(orders) > 1


# Schemas, values and texts


def served(strategy: Llguidance, schema: Any, **fields: Any) -> tuple[Matcher, Candidate]:
    """Return a matcher for a schema in any order, and what serves it."""
    constraint = JsonSchema(schema, properties_order="any", **fields)
    error: UnsupportedGrammar | None = None
    for candidate in choose(
        constraint, {"llguidance": strategy}, {"llguidance": Home(strategy, bounds=IN_HOSTS)}
    ).candidates:
        try:
            grammar = compile_grammar(strategy, candidate.served(constraint))
        except UnsupportedGrammar as refused:
            error = refused
        else:
            return new_matcher(strategy, grammar, strategy.vocabulary.stop_token_ids), candidate
    assert error is not None
    raise error


def takes(matcher: Matcher, value: Any) -> bool:
    text = tuple(json.dumps(value, separators=(",", ":")).encode())
    return matcher.accept(text) == len(text) and matcher.is_accepting()


def random_text(matcher: Matcher, rng: random.Random) -> bytes | None:
    """Return a text that the masks allow; None if it gets long."""
    text = b""
    for _ in range(250):
        bitmask = allocate(1, len(BYTES))
        matcher.fill_bitmask(bitmask, 0)
        allowed = np.flatnonzero(unpack(bitmask, len(BYTES))[0]).tolist()
        if matcher.is_accepting() and (min(allowed) >= 256 or text[-1:] in b'}]"' or rng.random() < 0.5):
            return text
        plain = [i for i in allowed if 32 < i < 127]
        ends = [i for i in plain if i in b'}]",:']
        token_id = rng.choice(ends if ends and rng.random() < 0.5 else plain or [i for i in allowed if i < 256])
        assert matcher.accept((token_id,)) == 1
        text += bytes((token_id,))
    return None


def finite_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a schema of some objects of `ALL`."""
    values = [{"const": 1}, {"const": "x"}, {"enum": ["x", 1]}, {"enum": ["x", "y"]}]

    def inner() -> dict[str, Any]:
        parts = {name: {"const": 1} for name in "pq" if rng.random() < 0.8}
        needed = [name for name in "pq" if rng.random() < 0.4]
        return {"type": "object", "properties": parts, "required": needed, "additionalProperties": False}

    def value() -> dict[str, Any]:
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(values)
        if kind < 0.5:
            return {"enum": [json.loads(text) for text in rng.sample(INNER, rng.randint(1, 4))]}
        return inner() if kind < 0.8 else {rng.choice(["anyOf", "oneOf"]): [inner(), inner(), rng.choice(values)]}

    names = rng.sample("abc", rng.randint(1, 3))
    needed = rng.sample("abc", rng.randint(0, 2))
    found = {"type": "object", "properties": {name: value() for name in names}, "required": needed}
    found["additionalProperties"] = False
    if rng.random() < 0.2:
        found["dependentRequired"] = {rng.choice("abc"): [rng.choice("abc")]}
    if rng.random() < 0.15:
        found["maxProperties"] = rng.randint(1, 2)
    if rng.random() < 0.15:
        found["minProperties"] = rng.randint(1, 2)
    if depth and rng.random() < 0.6:
        parts = [finite_schema(rng, 0) for _ in range(rng.randint(2, 3))]
        if rng.random() < 0.6:
            if rng.random() < 0.3:
                parts.append({"enum": [value for _, value in rng.sample(ALL, 3)]})
            return {rng.choice(["anyOf", "oneOf"]): parts}
        return {**found, rng.choice(["anyOf", "oneOf", "allOf"]): parts}
    return found


def random_leaf(rng: random.Random) -> Any:
    return rng.choice(
        [
            *({"type": "integer"}, {"type": "boolean"}, {"const": "x"}, {"const": "y"}, {"enum": ["x", "yy", 1]}, True),
            *({"type": "string"}, {"type": "string", "pattern": "^x"}, {"type": "integer", "minimum": 3}),
            *({"type": "null"}, {"type": "string", "maxLength": 1}),
        ]
    )


def random_object(rng: random.Random, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"} if rng.random() < 0.8 else {}
    names = rng.sample("abcd", rng.randint(0, 4))
    parts = {name: random_schema(rng, depth - 1) if rng.random() < 0.4 else random_leaf(rng) for name in names}
    found |= {"properties": parts} if names else {}
    found |= {"required": rng.sample("abcd", rng.randint(0, 2))} if rng.random() < 0.7 else {}
    closing = rng.random()
    found |= {"additionalProperties": False if closing < 0.5 else random_leaf(rng)} if closing < 0.6 else {}
    for keyword, make in RARE.items():
        found |= {keyword: make(rng)} if rng.random() < 0.1 else {}
    if depth > 0 and rng.random() < 0.25:
        found[rng.choice(["anyOf", "oneOf"])] = [random_object(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return found


RARE: Mapping[str, Any] = {
    "patternProperties": lambda rng: {"^[ab]": random_leaf(rng)},
    "maxProperties": lambda rng: rng.choice([0, 0, 1, 2, 3]),
    "minProperties": lambda rng: rng.randint(1, 3),
    "dependentRequired": lambda rng: {rng.choice("abcd"): [rng.choice("abcd")]},
}


def random_schema(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth <= 0 or kind < 0.1:
        return random_leaf(rng)
    if kind < 0.55:
        return random_object(rng, depth)
    if kind < 0.75:
        return {rng.choice(["anyOf", "oneOf"]): [random_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
    if kind < 0.79:
        return {"enum": [random_value(rng, depth) for _ in range(rng.randint(1, 4))]}
    if kind < 0.84:
        return {"allOf": [random_object(rng, depth - 1), random_object(rng, depth - 1)]}
    if kind < 0.9:
        bounds = {"maxItems": 2} | ({"uniqueItems": True} if rng.random() < 0.3 else {})
        return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": rng.randint(0, 1), **bounds}
    if kind < 0.94:
        parts = (random_object(rng, depth - 1), random_object(rng, depth - 1), random_schema(rng, depth - 1))
        return dict(zip(("if", "then", "else"), parts, strict=True))
    return {"enum": [{"a": 1, "b": "x"}, {"b": 1, "a": {"c": 1, "d": 2}}, 3]}


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth <= 0 or kind < 0.35:
        return rng.choice([1, 2, 5, "x", "y", "yy", "", True, None, "xa"])
    if kind < 0.9:
        return {name: random_value(rng, depth - 1) for name in rng.sample("abcd", rng.randint(0, 4))}
    return [random_value(rng, depth - 1) for _ in range(rng.randint(0, 2))]


def test_a_number_above_the_largest_double_may_be_a_multiple() -> None:
    first = {"k": {"type": "number", "multipleOf": 0.5}, "a": {"type": "integer"}}
    second = {"k": {"type": "number"}, "b": {"type": "integer"}}
    matcher, _ = served(
        Llguidance(BYTES, {}),
        {
            "anyOf": [
                {"type": "object", "properties": each, "required": list(each), "additionalProperties": False}
                for each in (first, second)
            ]
        },
        whitespace="compact",
    )
    begun = b'{"k":1e999'
    assert matcher.accept(tuple(begun)) == len(begun)
    bitmask = allocate(1, len(BYTES))
    matcher.fill_bitmask(bitmask, 0)
    assert matcher.accept(tuple(b",")) == 1


@pytest.mark.parametrize("branches", [({"minLength": 3}, {"maxLength": 2}), ({"minLength": 3}, {"minLength": 4})])
def test_choices_are_counted_even_if_no_value_has_them_all(branches: tuple[Any, Any]) -> None:
    nothing: Any = {"type": "string", "minLength": 9, "maxLength": 8}
    choices = {"allOf": [{"anyOf": [{**each, "pattern": f"{i}"} for each in branches]} for i in range(16)]}
    schema = {"type": "object", "properties": {"a": {"allOf": [nothing, choices]}, "b": {}}}
    with pytest.raises(NotTracked, match="too many alternatives"):
        Alternatives(schema)


def test_only_choices_that_the_kinds_of_values_allow_are_followed() -> None:
    choices = [{"anyOf": [{"type": "string", "minLength": i}, {"type": "array", "minItems": i}]} for i in range(30)]
    schema = {"type": "object", "properties": {"a": {"allOf": choices}, "b": {}}, "required": ["b"]}
    place = Alternatives(schema).root
    assert len(Alternatives(schema).of_kind(place, OBJECT)) == 1
