"""Formats, checked by `has_format` and as patterns."""

from __future__ import annotations

import datetime
import ipaddress
import random
import re
from typing import Any

import pytest
from guideway.json_schema import FORMATS, check_schema, has_format, keywords, with_patterns
from guideway.json_schema.prober import cases

LABELLED = sorted(
    {
        (name.partition(":")[2], text, expected)
        for name, _, right, wrong in cases()
        if name.startswith("format:")
        for texts, expected in ((right, True), (wrong, False))
        for text in texts
        if name.partition(":")[2] in FORMATS and isinstance(text, str)
    }
)

UNDECIDED = {
    *("a@[b.cd]", "a@[1.2.3.300]", "http://[a/", "http://a/[b]", "http://[::1"),
    *("xn--bcher-kva.example", "xn--X"),
}
"""Texts with brackets, which enclose addresses, and names in other alphabets."""


@pytest.mark.parametrize(("name", "text", "expected"), LABELLED)
def test_texts_are_judged_as_they_are_labelled(name: str, text: str, expected: bool) -> None:
    assert has_format(name, text) is (None if text in UNDECIDED else expected)


@pytest.mark.parametrize(("name", "text", "expected"), LABELLED)
def test_nothing_wrong_matches_a_pattern(name: str, text: str, expected: bool) -> None:
    matches = re.fullmatch(FORMATS[name], text) is not None
    assert expected or not matches
    left_out = ":60" in text or text in UNDECIDED
    assert matches or not expected or left_out


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


def test_depth_costs_no_stack() -> None:
    schema: Any = {"type": "string", "format": "date"}
    for _ in range(20_000):
        schema = {"items": schema}
    found = replaced(schema)
    while "items" in found:
        found = found["items"]
    assert "pattern" in found
