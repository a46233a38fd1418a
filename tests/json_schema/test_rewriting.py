"""Rewritings of schemas: never stronger than the original, and weaker only where a loss is named."""

from __future__ import annotations

import json
import re
from itertools import combinations
from random import Random
from typing import Any

import pytest
from guideway.api import JsonSchema, Loss, Losses
from guideway.json_schema import keywords
from guideway.json_schema.ecma import in_python
from guideway.json_schema.rewriting import COARSE, Budget, Rewriting, rewrite
from guideway.json_schema.rewriting.automata import Unknown, literal, searched
from guideway.json_schema.rewriting.inlining import inline
from guideway.json_schema.rewriting.joining import parts_of
from guideway.json_schema.rewriting.regular import partition
from guideway.json_schema.validity import validator
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.rewriting import EXACT, Comparison, compare, draw_schema, draw_values, judge
from tests.support.stages import one_in

STEPS = Budget().steps
EMPTY: Any = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}}


def test_arrays_of_few_values_are_one_list_and_not_alternatives_to_combine() -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 1}
    rows = [["a"], ["b"], ["a", "b"], ["b", "a"]]
    assert rewrite(schema, EXACT).schema == {"type": "array", "minItems": 1, "enum": rows}


@pytest.mark.parametrize("seed", range(2))
def test_a_rewriting_of_a_random_schema_has_the_same_instances_or_names_a_loss(seed: int) -> None:
    random, found = Random(seed), Comparison()
    for _ in range(50):
        schema = draw_schema(random)
        compare(found, schema, draw_values(random, schema, 6))
    assert found.is_sound, found
    assert found.exact > 40 and found.values > 800


def test_a_comparison_finds_what_is_stronger_and_what_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for schema, kind in ((False, "stronger"), (True, "unnamed")):
        monkeypatch.setattr("tests.fuzz.rewriting.rewrite", lambda *_, schema=schema: Rewriting(schema, ()))
        found = Comparison()
        compare(found, {"type": "integer"}, [1, "a"])
        assert len(getattr(found, kind)) == 2 and not found.is_sound


@pytest.mark.parametrize(
    "schema",
    one_in(
        4,
        [
            {"not": {"required": ["a", "b"]}},
            {"not": {"properties": {"a": {"type": "string", "pattern": "^x"}}}},
            {"not": {"enum": ["ab", "ac", 3, True, None]}},
            {"not": {"not": {"type": "string", "maxLength": 2}}},
            {"type": "integer", "not": {"enum": [1, 2, 4]}},
            {"not": {"const": 1, "enum": [2, 3]}},
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
            {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"properties": {"b": {"const": 2}}}},
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"b": {"maxProperties": 2}}},
            {"dependencies": {"a": ["b"], "b": {"properties": {"c": {"type": "null"}}}}},
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"maxProperties": 1}]},
            {"oneOf": [{"type": "string"}, {"maxLength": 2}]},
            {**EMPTY, "minProperties": 2},
            {**EMPTY, "maxProperties": 1},
            {**EMPTY, "minProperties": 1, "maxProperties": 2, "additionalProperties": False},
            {"propertyNames": {"pattern": "^[a-c]+$", "type": "string"}},
            {"propertyNames": {"enum": ["a", "bc"]}},
            {"propertyNames": {"not": {"pattern": "^a"}}},
            {"patternProperties": {"^a": {"type": "string"}, "b$": {"maxLength": 1}}, "additionalProperties": False},
            {
                "patternProperties": {".*": {"type": "string"}, "^a": {"maxLength": 1}},
                "properties": {"b": {"minLength": 2}},
            },
            {"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
            {"items": {"enum": ["a", 1], "type": "string"}, "uniqueItems": True},
            {"items": {"enum": ["a", "ab", "b"], "minLength": 2}, "uniqueItems": True, "minItems": 1},
            {"contains": {"const": 1}, "maxItems": 3},
            {"not": {"contains": {"type": "string"}}},
            {"not": {"items": {"type": "string"}, "maxItems": 2}},
            {"type": "string", "pattern": "^(?=.*a)(?!b).*$"},
            {"$ref": "#/$defs/n", "$defs": {"n": {"not": {"properties": {"a": {"$ref": "#/$defs/n"}}}}}},
            {"$schema": "http://json-schema.org/draft-04/schema#", "not": {"minimum": 2, "exclusiveMinimum": True}},
            {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1, "if": False, "then": False},
            {"items": [{"type": "string"}], "additionalItems": False},
        ],
    ),
    ids=str,
)
def test_an_exact_rewriting_has_no_loss_and_the_same_instances(schema: Any) -> None:
    rewriting, found, random = rewrite(schema, EXACT), Comparison(), Random(1)
    assert not rewriting.losses
    values = [*draw_values(random, schema, 30), *({n: v for n in "abc" if random.random() < 0.6} for v in (1, 2, "x"))]
    compare(
        found, schema, [*values, *("", "a", "ab", "b", "bca", "xa"), *(0, 1, 2, 3, 4), [], [1], ["a", "a"], ["a", "b"]]
    )
    assert found.is_sound, found
    names = {name.partition(":")[0] for name in keywords(rewriting.schema)}
    assert names.isdisjoint({"not", "if", "oneOf", "dependencies", "uniqueItems", "contains", "propertyNames"})


@pytest.mark.parametrize(
    "schema",
    [
        {"prefixItems": [True, False], "unevaluatedItems": {"type": "integer"}},
        {"patternProperties": {".*": {"type": "integer"}}, "unevaluatedProperties": False},
        {"patternProperties": {"(?<=a)b": True}, "unevaluatedProperties": False},
        {"type": "array", "uniqueItems": True, "items": {"enum": []}},
        {"propertyNames": {"minLength": 5, "maxLength": 3}},
    ],
)
def test_odd_combinations_are_written_exactly(schema: Any) -> None:
    found = Comparison()
    compare(found, schema, [[], [1], [1, 2], [1, 2, 3], {}, {"a": 1}, {"ab": 1}, {"a": "x"}])
    assert found.is_sound, found


@pytest.mark.parametrize(
    ("schema", "loss"),
    [
        ({"properties": {"t/": {"uniqueItems": True}}}, "`uniqueItems` at #/properties/t~1"),
        ({"not": {"multipleOf": 3}}, "`multipleOf` at #/not"),
        ({"type": "string", "pattern": r"(a)\1"}, "`pattern` at #"),
        ({"type": "string", "pattern": "^a(?=b)b$"}, "`pattern:lookaround` at #"),
        ({"type": "string", "maxLength": 262_144}, "`maxLength` at #"),
        ({"$ref": "https://example.com/other"}, "`$ref` at #"),
        ({"items": {"$ref": "#/$defs/nothing"}}, "`$ref:missing` at #/items"),
        ({"dependencies": {"a": {"not": {"type": "integer"}}}}, "`type` at #/dependencies/a/not"),
    ],
)
def test_a_loss_has_the_place_in_the_original(schema: Any, loss: str) -> None:
    assert [str(each) for each in rewrite(schema, EXACT).losses] == [loss]


_TYPES = st.sampled_from(["object", "array", "string", "null"]).map(lambda name: {"type": name})
_REFERENCES = st.sampled_from(["#/$defs/tree", "#/$defs/list"]).map(lambda address: {"$ref": address})
_WRITTEN = st.recursive(
    _TYPES | _REFERENCES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"allOf": parts})
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
        | st.tuples(_REFERENCES, inner).map(lambda two: {**two[1], **two[0]})
        | inner.map(lambda part: {"properties": {"a": part}, "required": ["a"]})
    ),
    max_leaves=5,
)
_TREE = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/list"}]}}}
_LIST = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
_VALUES = [{}, [], "", None, {"a": {}}, {"a": []}, {"a": ""}, [{}], [[]], {"a": [{}]}, {"a": {"a": None}}, [{"a": 1}]]


@given(schema=_WRITTEN)
def test_inlining_changes_no_verdict(schema: dict[str, Any]) -> None:
    definitions = {"tree": _TREE, "list": _LIST}
    before, after = validator({**schema, "$defs": definitions}), validator(inline(schema, definitions, 50))
    assert [before.is_valid(value) for value in _VALUES] == [after.is_valid(value) for value in _VALUES]


@pytest.mark.parametrize("seed", one_in(5, range(5)))
def test_a_reference_to_nothing_is_lost_whatever_it_should_refer_to(seed: int) -> None:
    random, lost = Random(seed), 0
    while lost < 60:
        schema = draw_schema(random)
        if not isinstance(schema, dict) or '"$ref"' not in json.dumps(schema):
            continue
        container = "$defs" if "$defs" in schema else "definitions"
        parts = {name: part for name, part in schema.get(container, {}).items() if name != "d0"}
        rewriting = rewrite(JsonSchema({**schema, container: parts}).parsed, EXACT)
        names = {loss.keyword for loss in rewriting.losses}
        lost += "$ref:missing" in names
        after = validator(rewriting.schema)
        for value in draw_values(random, schema, 4):
            for target in (True, False, {"type": "string"}):
                before = judge({**schema, container: {**parts, "d0": target}}, value)
                assert before is not True or after.is_valid(value), (schema, value)
                assert names or before is None or before == after.is_valid(value), (schema, value)


def test_patterns_that_an_engine_cannot_separate_become_one() -> None:
    schema = {"patternProperties": {"a": {"type": "string"}, "b": {"type": "null"}}, "additionalProperties": False}
    weaker = rewrite(schema, EXACT, COARSE)
    values = {"type": ["string", "null"]}
    assert weaker.schema == {"patternProperties": {"(?:a)|(?:b)": values}, "additionalProperties": False}
    assert [str(each) for each in weaker.losses] == ["`patternProperties` at #"]


def test_listed_values_of_other_types_are_left_out() -> None:
    """Not every engine takes them."""
    assert rewrite({"type": "integer", "enum": [4, 2.5, "a", 3]}, EXACT).schema == {"type": "integer", "enum": [4, 3]}


@pytest.mark.parametrize("levels", [1, 13, 40])
@pytest.mark.parametrize("is_recursive", [False, True])
def test_patterns_are_separated_however_far_the_references_between_them_lead(levels: int, is_recursive: bool) -> None:
    definitions: Any = {
        f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "properties": {f"p{i}": {"type": "integer"}}} for i in range(levels)
    }
    definitions[f"d{levels}"] = {"patternProperties": {"^a": {"type": "integer"}}}
    if is_recursive:
        definitions[f"d{levels}"]["anyOf"] = [{"type": "object"}, {"$ref": "#/$defs/d0"}]
    root = {"type": "object", "patternProperties": {"b$": {"minimum": 1}}, "$ref": "#/$defs/d0", "$defs": definitions}
    found = rewrite(root, EXACT)
    assert found.losses == ()
    written = [found.schema, *parts_of(found.schema)]
    patterns = {name for part in written if isinstance(part, dict) for name in part.get("patternProperties", ())}
    assert len(patterns) > 2
    for first, second in combinations(sorted(patterns), 2):
        assert partition([first, second], STEPS, most=0) is not None, (first, second)


def test_very_many_losses_are_counted() -> None:
    unique = {"type": "array", "uniqueItems": True}
    schema = {"properties": {**{f"p{i}": unique for i in range(600)}, "z": {"contains": {"type": "null"}}}}
    losses = rewrite(schema, EXACT).losses
    assert len(losses) == 502
    assert losses[499].pointer == "#/properties/p499"
    assert losses[500:] == (("...", "uniqueItems", "at 100 more places"), ("...", "contains", "at 1 more places"))


def test_a_negation_that_is_too_large_is_named_by_the_keyword_that_needs_it() -> None:
    large = {"properties": {name: {"const": 1} for name in "abcd"}}
    schema = {
        "properties": {"if": {"not": large}, "b": {"if": large, "then": {"required": ["b"]}}},
        "allOf": [{"oneOf": [{**large, "required": ["a", "c"]}, {"required": ["b"]}]}],
    }
    losses = rewrite(schema, EXACT, Budget(negation=2)).losses
    named = {(loss.pointer, loss.keyword) for loss in losses}
    assert named == {("#/properties/if", "not"), ("#/properties/b", "if"), ("#/allOf/0", "oneOf")}


def test_the_number_of_automata_is_bounded() -> None:
    schema = {"properties": {f"p{i}": {"not": {"pattern": f"^a{{{i % 20}}}"}} for i in range(40)}}
    assert rewrite(schema, EXACT, Budget(automata=20)).losses == ()  # equal patterns count once
    losses = rewrite(schema, EXACT, Budget(automata=15)).losses
    assert {loss.pointer for loss in losses} == {f"#/properties/p{i}/not" for i in range(40) if i % 20 >= 15}


def test_many_losses_are_summarized() -> None:
    losses = Losses(Loss(f"#/{i}", "uniqueItems", "") for i in range(24))
    assert str(Losses(losses[:1])) == "`uniqueItems` at #/0"
    assert str(losses).endswith("`uniqueItems` at #/7, and 16 more")


def test_what_an_engine_takes_is_kept() -> None:
    schema = {"uniqueItems": True, "contains": {"type": "string"}, "propertyNames": {"type": "string", "minLength": 1}}
    found = rewrite(schema, EXACT | {"uniqueItems", "contains", "propertyNames"})
    assert found == Rewriting(schema, ())


def test_properties_keep_their_order_and_annotations_go() -> None:
    schema = {"title": "x", "properties": {"z": {"description": "y"}, "a": {}}, "required": ["a"], "$defs": {"u": {}}}
    found = rewrite(schema, EXACT).schema
    assert json.dumps(found) == '{"required": ["a"], "properties": {"z": true, "a": true}}'


@pytest.mark.parametrize(
    "budget", [Budget(nodes=5), Budget(depth=3), Budget(cases=1), Budget(steps=10), Budget(negation=1)]
)
def test_a_smaller_budget_is_weaker_and_named(budget: Budget) -> None:
    names = [f"n{i}" for i in range(9)]
    inner: Any = {"properties": {name: {"pattern": "a.{3}b"} for name in names}, "minProperties": 4}
    schema = {"not": {"not": {"items": {"items": {"items": {**inner, "type": "object"}}}}}}
    rewriting = rewrite(schema, EXACT, budget)
    assert rewriting.losses and rewriting == rewrite(schema, EXACT, budget)


def test_a_chain_of_references_and_a_deep_schema_are_written_without_deep_recursion() -> None:
    deep: Any = {"type": "string"}
    for _ in range(400):
        deep = {"items": deep}
    chained = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(400)}
    assert rewrite(deep, EXACT).losses
    found = rewrite({"$ref": "#/$defs/d0", "$defs": {**chained, "d400": {"type": "null"}}}, EXACT)
    assert not found.losses and isinstance(found.schema, dict) and len(found.schema["$defs"]) == 401


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\s", "^", "$", "(?:a|b)", "(a|)", "é", r"\x62"])
MARKS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"])
PARTS = st.tuples(ATOMS, MARKS).map(lambda pair: pair[0] + pair[1] * (pair[0] not in "^$"))
PATTERNS = st.lists(st.lists(PARTS, max_size=4).map("".join), min_size=1, max_size=3).map("|".join)
TEXTS = st.text("abcé1 \n", max_size=5)


@settings(max_examples=60, deadline=None)
@given(PATTERNS, PATTERNS, st.lists(TEXTS, min_size=5, max_size=12))
def test_automata_accept_what_python_finds(first: str, second: str, texts: list[str]) -> None:
    try:
        one, two = searched(first, STEPS), searched(second, STEPS)
        both, other = one.meet(two), one.complement()
        written = [(each, re.compile(in_python(each.pattern()))) for each in (one, both, other)]
    except Unknown:
        return
    for text in texts:
        is_in, is_in_other = (re.search(in_python(each), text) is not None for each in (first, second))
        assert ((text in one), (text in both), (text in other)) == (is_in, is_in and is_in_other, not is_in)
        for automaton, pattern in written:
            assert (pattern.search(text) is not None) == (text in automaton), pattern


@settings(max_examples=60, deadline=None)
@given(PATTERNS, PATTERNS, PATTERNS, st.booleans(), st.lists(TEXTS, min_size=5, max_size=12))
def test_lookaround_becomes_one_pattern(first: str, second: str, rest: str, ahead: bool, texts: list[str]) -> None:
    pattern = f"^(?={first})(?!{second})(?:{rest})" if ahead else f"(?:{first})(?={second})(?:{rest})"
    found, schema = Comparison(), {"type": "string", "pattern": pattern}
    compare(found, schema, texts)
    assert found.is_sound, found
    assert "allOf" not in json.dumps(rewrite(schema, EXACT).schema)


@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_listed_texts_and_all_others(words: list[str], text: str) -> None:
    assert (text in literal(tuple(words), STEPS)) == (text in words)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8))
def test_the_complement_of_an_enum_is_written(words: list[str]) -> None:
    rewriting = rewrite({"type": "string", "not": {"enum": words}}, EXACT)
    if not rewriting.losses:
        judge = validator(rewriting.schema)
        assert not any(map(judge.is_valid, words)) and judge.is_valid("".join(words) + "x")
