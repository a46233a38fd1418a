"""Formats, checked by `has_format` and as patterns."""

from __future__ import annotations

import datetime
import ipaddress
import random
import re
from typing import Any

import pytest
from guideway.json_schema import FORMATS, check_schema, has_format, keywords, with_patterns
from guideway.json_schema.prober import labeled_cases

LABELED = {
    name.removeprefix("format:"): (right, wrong)
    for name, _, right, wrong in labeled_cases()
    if name.removeprefix("format:") in FORMATS
}

UNDECIDED = {
    *("a@[b.cd]", "a@[1.2.3.300]", "http://[a/", "http://a/[b]", "http://[::1"),
    *("xn--bcher-kva.example", "xn--X"),
}
"""Texts with brackets, which enclose addresses, and names in other alphabets."""


@pytest.mark.parametrize("name", LABELED)
def test_texts_are_judged_as_they_are_labeled(name: str) -> None:
    for texts, expected in zip(LABELED[name], (True, False), strict=True):
        for text in texts:
            assert has_format(name, text) is (None if text in UNDECIDED else expected), text


@pytest.mark.parametrize("name", LABELED)
def test_a_pattern_takes_what_is_right_and_nothing_wrong(name: str) -> None:
    right, wrong = LABELED[name]
    assert [text for text in wrong if re.fullmatch(FORMATS[name], text)] == []
    left_out = [text for text in right if not re.fullmatch(FORMATS[name], text)]
    assert [text for text in left_out if ":60" not in text and text not in UNDECIDED] == []


def test_a_format_without_a_definition_here_is_not_known() -> None:
    assert has_format("json-pointer", "/a") is None
    assert has_format("of-its-own", "a") is None


def test_dates_are_the_days_there_are() -> None:
    for year in (*range(1, 500), *range(1890, 2110), 9999):
        for month in range(14):
            for day in range(33):
                try:
                    datetime.date(year, month, day)
                    expected = True
                except ValueError:
                    expected = False
                assert has_format("date", f"{year:04}-{month:02}-{day:02}") is expected


def test_addresses_are_those_another_library_reads() -> None:
    rng = random.Random(17)
    pieces = ("", "1", "ab", "0", "12345", "1.2.3.4", "ffff")
    found = {True: 0, False: 0}
    for _ in range(50_000):
        text = ":".join(rng.choices(pieces, weights=(1, 9, 9, 9, 1, 1, 9), k=rng.randint(1, 9)))
        text = f"{rng.choice(('', '::'))}{text}{rng.choice(('', '', '::'))}"
        try:
            ipaddress.IPv6Address(text)
            expected = True
        except ValueError:
            expected = False
        assert has_format("ipv6", text) is expected, text
        found[expected] += 1
    assert min(found.values()) > 1_000


def replaced(schema: Any) -> Any:
    check_schema(schema)
    return with_patterns(schema, keywords(schema))


def test_formats_of_strings_become_patterns_wherever_a_schema_stands() -> None:
    date = {"pattern": f"^(?:{FORMATS['date']})$"}
    schema = {
        "properties": {
            "format": {"type": "string", "format": "date"},
            "b": {"type": ["null", "string"], "format": "date"},
        },
        "anyOf": [{"format": "date"}, {"$ref": "#/elsewhere/0"}],
        "elsewhere": [{"format": "date", "title": "format"}],
    }
    assert replaced(schema) == {
        "properties": {"format": {"type": "string", **date}, "b": {"type": ["null", "string"], **date}},
        "anyOf": [date, {"$ref": "#/elsewhere/0"}],
        "elsewhere": [{**date, "title": "format"}],
    }
    assert list(replaced(schema)) == list(schema)


def test_beside_another_pattern_both_hold() -> None:
    schema = {"type": "string", "format": "uuid", "pattern": "^a", "allOf": [{"maxLength": 40}]}
    pattern = {"pattern": f"^(?:{FORMATS['uuid']})$"}
    assert replaced(schema) == {"type": "string", "pattern": "^a", "allOf": [{"maxLength": 40}, pattern]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "format": "date"},
        {"const": {"format": "date"}, "default": {"format": "date"}, "enum": [{"format": "date"}]},
        {"properties": {"format": {"type": "string"}}},
        {"format": "of-its-own"},
        True,
    ],
)
def test_what_is_no_format_of_a_string_stays(schema: Any) -> None:
    assert replaced(schema) == schema
    both = {"anyOf": [schema, {"format": "date"}]}
    assert replaced(both)["anyOf"][0] == schema


@pytest.mark.slow
def test_depth_costs_no_stack() -> None:
    schema: Any = {"type": "string", "format": "date"}
    for _ in range(20_000):
        schema = {"items": schema}
    found = replaced(schema)
    while "items" in found:
        found = found["items"]
    assert "pattern" in found
