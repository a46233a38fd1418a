"""Schemas of types, and partial objects of incomplete answers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, Any

import jsonschema
import pytest
from guideway import Choice, InvalidAnswer, JsonObject, JsonSchema, Regex
from guideway.objects import constraint_of, parse, parse_partial
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field
from pydantic_core import from_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\U0001f600 {}[],:'), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
WRITINGS = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])})


def so_far(text: str, *, whole: bool = False, growing_strings: bool = False) -> Any:
    return parse_partial({}, text, whole=whole, growing_strings=growing_strings)


def is_part(part: Any, of: Any, growing_strings: bool) -> bool:
    """Return whether `part` may grow into `of`."""
    match part, of:
        case dict(), dict():
            return all(key in of and is_part(part[key], of[key], growing_strings) for key in part)
        case list(), list():
            within = len(part) <= len(of)
            return within and all(is_part(*pair, growing_strings) for pair in zip(part, of, strict=False))
        case str(), str() if growing_strings:
            return of.startswith(part)
    return type(part) is type(of) and part == of


@given(VALUES, WRITINGS, st.booleans())
@example({"a": "\U0001f600\\", "b": [-1.5e3, {}]}, {"ensure_ascii": True, "indent": None}, True)
def test_it_grows_into_the_answer(value: Any, writing: Any, growing: bool) -> None:
    text, before = json.dumps(value, **writing), None
    for end in range(len(text) + 1):
        part = so_far(text[:end], growing_strings=growing)
        assert before is None or is_part(before, part, growing), text[:end]
        assert part is None or is_part(part, value, growing), text[:end]
        before = part
    assert so_far(text, whole=True, growing_strings=growing) == value
    if not isinstance(value, int | float | None):
        assert before == value, "its end can be seen"


@given(st.lists(VALUES, max_size=4), WRITINGS)
def test_nothing_that_is_finished_is_missing(value: Any, writing: Any) -> None:
    """Compare with another library. It treats incomplete numbers as finished, so only other ends are compared."""
    text = json.dumps(value, **writing)
    for end in range(1, len(text)):
        begun = text[:end]
        if begun[-1] in '"}],: \n':
            assert so_far(begun) == from_json(begun, allow_partial=True), begun
            assert so_far(begun, growing_strings=True) == from_json(begun, allow_partial="trailing-strings"), begun


@pytest.mark.parametrize(
    ("text", "finished", "growing"),
    [
        ("", None, None),
        ("  ", None, None),
        ("12", None, None),
        ("12 ", 12, 12),
        ("-", None, None),
        ("nul", None, None),
        ('"ab', None, "ab"),
        ('"ab"', "ab", "ab"),
        ("[1", [], []),
        ("[1,", [1], [1]),
        ("[true]", [True], [True]),
        ('["a", "b', ["a"], ["a", "b"]),
        ('{"a', {}, {}),
        ('{"a"', {}, {}),
        ('{"a": ', {}, {}),
        ('{"a": 1', {}, {}),
        ('{"a": 1}', {"a": 1}, {"a": 1}),
        ('{"a": 1, "b": "c', {"a": 1}, {"a": 1, "b": "c"}),
        ('{"a": [{"b": "c', {"a": [{}]}, {"a": [{"b": "c"}]}),
        ('["\\', [], [""]),
        ('["\\u00e', [], [""]),
        ('["\\u00e9', [], ["é"]),
        ('["\\ud83d', [], [""]),
        ('["\\ud83d\\ude0', [], [""]),
        ('["\\ud83d\\ude00', [], ["\U0001f600"]),
        ('["\\\\ud83d', [], ["\\ud83d"]),
    ],
)
def test_what_is_finished(text: str, finished: Any, growing: Any) -> None:
    assert so_far(text) == finished
    assert so_far(text, growing_strings=True) == growing


@pytest.mark.parametrize("text", ["}", "[}", '{"a" "b"', '["a\nb"', "[1 2,", "wrong ", '{"a": 1]'])
def test_what_begins_no_json_is_an_error(text: str) -> None:
    with pytest.raises(InvalidAnswer, match="the answer so far is not JSON: "):
        so_far(text)


@pytest.mark.parametrize("text", ['{"a"', '["\\u00e', "1 2"])
def test_what_ends_too_early_is_an_error(text: str) -> None:
    with pytest.raises(InvalidAnswer):
        so_far(text, whole=True)


@pytest.mark.parametrize("constraint", [JsonSchema({}), JsonObject(), list[int], {"type": "array"}])
def test_it_is_plain_data_of_whatever_is_about_json(constraint: Any) -> None:
    assert parse_partial(constraint, "[1, 2", whole=False, growing_strings=False) == [1]


@pytest.mark.parametrize("constraint", [Regex("a+"), Choice(["a"]), ["a"]])
def test_a_text_is_a_string(constraint: Any) -> None:
    assert parse_partial(constraint, "a", whole=False, growing_strings=False) is None
    assert parse_partial(constraint, "a", whole=False, growing_strings=True) == "a"
    assert parse_partial(constraint, "a", whole=True, growing_strings=False) == "a"


@pytest.mark.parametrize("text", ["1", "0.25", "1e2", "-3", '":"', '"1"', "null", "10"])
def test_every_text_of_a_decimals_schema_is_a_decimal(text: str) -> None:
    """pydantic's own schema of ``Decimal`` also allows any string."""
    price = Annotated[Decimal, Field(lt=10)]
    constraint = constraint_of(price)
    assert isinstance(constraint, JsonSchema)
    if jsonschema.Draft202012Validator(constraint.parsed).is_valid(json.loads(text)):
        assert parse(price, text) == Decimal(text)
    else:
        assert text.startswith(('"', "n")) or Decimal(text) >= 10
