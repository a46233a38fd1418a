"""Constraints accept any value; `source` returns canonical text or raises."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from guideway.api.types import (
    Choice,
    Constraint,
    GenerationResult,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    SamplingParams,
    StructuralTag,
    unique_keys,
)
from guideway.errors import InvalidGrammar, InvalidRequest
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("constraint", "kind", "source"),
    [
        (JsonSchema({"type": "object"}), "json_schema", '{"type":"object"}'),
        (JsonSchema('{ "type" : "object" }'), "json_schema", '{"type":"object"}'),
        (JsonSchema(True), "json_schema", "true"),
        (JsonSchema({"b": 1, "a": "é\u2028"}), "json_schema", '{"b":1,"a":"é\u2028"}'),
        (JsonObject(), "json_object", "{}"),
        (Regex("a+\n"), "regex", "a+\n"),
        (Choice(["yes", "né"]), "choice", '["yes", "né"]'),
        (Choice(("yes",)), "choice", '["yes"]'),
        (Grammar("start: 'a'", dialect="lark"), "grammar:lark", "start: 'a'"),
        (StructuralTag({"structures": []}), "structural_tag", '{"structures":[]}'),
        (StructuralTag('{"structures": []}'), "structural_tag", '{"structures":[]}'),
    ],
)
def test_kind_and_source(constraint: Constraint, kind: str, source: str) -> None:
    assert (constraint.kind, constraint.source()) == (kind, source)


@given(value=st.dictionaries(st.text(), JSON, max_size=4))
def test_a_schema_and_its_text_have_one_source_with_the_keys_in_order(value: dict[str, Any]) -> None:
    source = JsonSchema(value).source()
    assert json.loads(source) == value
    assert JsonSchema(json.dumps(value, indent=2)).source() == source
    assert list(json.loads(source)) == list(value)


def _with_fractions(value: Any) -> Any:
    match value:
        case dict():
            return {key: _with_fractions(child) for key, child in value.items()}
        case list():
            return list(map(_with_fractions, value))
        case int() if not isinstance(value, bool) and abs(value) <= 2**53:
            return float(value)
    return value


@given(value=st.dictionaries(st.text(), JSON, max_size=4))
def test_whole_numbers_are_integers(value: dict[str, Any]) -> None:
    """However they are written: engines ignore a ``maxItems`` of 2.0, or refuse it."""
    source = JsonSchema(value).source()
    for other in (_with_fractions(value), json.dumps(_with_fractions(value))):
        for read in (JsonSchema(other), JsonSchema(other).frozen(), StructuralTag(other)):
            assert read.source() == source
            assert json.dumps(read.parsed, ensure_ascii=False, separators=(",", ":")) == source
    assert not re.search(r"[\[:,]-?\d\.0[,\]}]", re.sub(r'"(?:[^"\\]|\\.)*"', '""', source))


def test_two_orders_of_keys_are_two_sources() -> None:
    assert JsonSchema({"a": 1, "b": 2}).source() != JsonSchema({"b": 2, "a": 1}).source()


class Counting(str):
    """A key that counts its comparisons."""

    comparisons = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counting.comparisons += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("keys", [["last"] * 2, [], ["last"] * 2000])
def test_a_key_written_twice_is_found_without_comparing_all(keys: list[str]) -> None:
    pairs: list[tuple[str, None]] = [(Counting(key), None) for key in [*(f"k{i}" for i in range(2000)), *keys]]
    Counting.comparisons = 0
    if keys:
        with pytest.raises(ValueError, match="the key 'last' appears twice in one object"):
            unique_keys(pairs)
    else:
        assert list(unique_keys(pairs)) == [key for key, _ in pairs]
    assert Counting.comparisons <= 4 * len(pairs)


def circular() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["self"] = schema
    return schema


@pytest.mark.parametrize(
    ("constraint", "problem"),
    [
        (JsonSchema("{"), "JSON schema is not JSON"),
        (JsonSchema(""), "JSON schema is not JSON"),
        (JsonSchema("{'a': 1}"), "JSON schema is not JSON"),
        (JsonSchema('{"minimum": NaN}'), "JSON schema is not JSON"),
        (JsonSchema({"minimum": float("inf")}), "JSON schema is not JSON"),
        (JsonSchema({"const": b"bytes"}), "JSON schema is not JSON"),
        (JsonSchema({"const": {1, 2}}), "JSON schema is not JSON"),
        (JsonSchema(b"{}"), "JSON schema is not JSON"),  # type: ignore[arg-type]
        (JsonSchema({"const": "\ud800"}), "JSON schema is not JSON"),
        (JsonSchema('{"const": "\\ud800"}'), "JSON schema is not JSON"),
        (JsonSchema({("a", "b"): 1}), "JSON schema is not JSON"),  # type: ignore[dict-item]
        (JsonSchema(circular()), "JSON schema is not JSON"),
        (JsonSchema("1" * 5000), "JSON schema is not JSON"),
        (JsonSchema(DEEP), "JSON schema is nested too deeply"),
        (StructuralTag("{"), "structural tag is not JSON"),
        (StructuralTag(DEEP), "structural tag is nested too deeply"),
        (Regex(None), "regex pattern must be a string, not NoneType"),  # type: ignore[arg-type]
        (Regex(b"a"), "regex pattern must be a string, not bytes"),  # type: ignore[arg-type]
        (Regex("\udfff"), "regex pattern contains a lone surrogate"),
        (Choice([]), "at least one string"),
        (Choice("abc"), "must be a list"),
        (Choice(b"abc"), "must be a list"),  # type: ignore[arg-type]
        (Choice(None), "must be a list"),  # type: ignore[arg-type]
        (Choice({"a", "b"}), "must be a list"),  # type: ignore[arg-type]
        (Choice(["a", 1]), "each choice must be a string, not int"),  # type: ignore[list-item]
        (Choice(["a", "\ud800"]), "each choice contains a lone surrogate"),
        (Grammar(7, dialect="lark"), "grammar must be a string, not int"),  # type: ignore[arg-type]
        (Grammar("\ud800", dialect="lark"), "grammar contains a lone surrogate"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Constraint) else value.replace(" ", "-"),
)
def test_a_malformed_constraint_says_what_is_wrong(constraint: Constraint, problem: str) -> None:
    with pytest.raises(InvalidGrammar, match=problem) as caught:
        constraint.source()
    assert isinstance(caught.value, InvalidRequest)
    assert caught.value.field.startswith("constraint")
    assert len(str(caught.value)) < 500


def test_a_strategy_is_named_by_keyword_alone() -> None:
    assert JsonObject().strategy is None
    assert Regex("a", strategy="reference").strategy == "reference"
    with pytest.raises(TypeError):
        Regex("a", "reference")  # type: ignore[call-arg]


def test_defaults_are_not_shared() -> None:
    assert SamplingParams().modifiers is not SamplingParams().modifiers
    assert SamplingParams().temperature == 0
    assert GenerationResult(request_id="r").unenforced == ()


def test_any_mapping_is_a_schema() -> None:
    schema = MappingProxyType({"type": "object", "properties": MappingProxyType({"b": {}, "a": {}})})
    assert JsonSchema(schema).source() == '{"type":"object","properties":{"b":{},"a":{}}}'


MAKERS = {
    "schema": lambda given: JsonSchema(given),
    "tag": lambda given: StructuralTag(given),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_json_text_is_read_once_and_what_is_learned_from_it_stays(make: Callable[[Any], Any]) -> None:
    text = make('{"b": [1, {}], "a": {}}')
    calls: list[Any] = []

    def find(value: Any) -> int:
        calls.append(value)
        return len(calls)

    assert text.parsed == {"b": [1, {}], "a": {}}
    assert text.parsed is text.parsed
    assert [text.cached(find), text.cached(find), text.cached(find, text.parsed["a"])] == [1, 1, 2]
    assert [text.cached(find, text.parsed["a"]), text.cached(find, text.parsed["b"][1])] == [2, 3]
    assert calls == [text.parsed, {}, {}]


def test_a_mapping_is_read_anew_each_time_because_it_may_change() -> None:
    schema: dict[str, Any] = {"type": "string"}
    constraint = JsonSchema(schema)
    frozen = constraint.frozen()
    assert [constraint.cached(len), constraint.parsed] == [1, schema]
    assert constraint.parsed is not schema
    schema["maxLength"] = 3
    assert (constraint.cached(len), constraint.parsed, constraint.source()) == (
        2,
        schema,
        json.dumps(schema, separators=(",", ":")),
    )
    assert (frozen.cached(len), frozen.parsed, frozen.source()) == (1, {"type": "string"}, '{"type":"string"}')


def test_what_was_learned_is_no_part_of_the_value() -> None:
    read, unread = JsonSchema('{"type": "string"}'), JsonSchema('{"type": "string"}')
    assert read.cached(len) == 1
    assert (read, hash(read), repr(read), pickle.dumps(read)) == (
        unread,
        hash(unread),
        repr(unread),
        pickle.dumps(unread),
    )
    assert pickle.loads(pickle.dumps(read)).parsed == {"type": "string"}


@pytest.mark.parametrize("text", ["{", DEEP, '{"a": 1, "a": 2}', '{"minimum": NaN}'], ids=lambda text: text[:9])
def test_parsed_refuses_what_source_refuses(text: str) -> None:
    with pytest.raises(InvalidGrammar) as of_source:
        JsonSchema(text).source()
    with pytest.raises(InvalidGrammar) as of_parsed:
        _ = JsonSchema(text).parsed
    assert str(of_parsed.value) == str(of_source.value)


def test_frozen_choices_are_out_of_reach() -> None:
    words = ["yes", "no"]
    frozen = Choice(words).frozen()
    words.append("maybe")
    assert frozen == Choice(("yes", "no"))
    assert Regex("a").frozen() == Regex("a")


@pytest.mark.parametrize("dialect", ['start: "a"', "", None, "a" * 65])
def test_a_grammar_and_its_dialect_the_wrong_way_round_are_told_apart(dialect: Any) -> None:
    assert Grammar("start: A", "my-own.dialect_2").source() == "start: A"
    with pytest.raises(InvalidGrammar, match=r"one word, such as 'lark', after its text, not '") as refused:
        Grammar("lark", dialect).source()
    assert refused.value.field == "constraint.dialect"
