"""Validation of texts: as text, by the schema's draft, without fetching anything."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from guideway.json_schema.prober import cases
from guideway.json_schema.validity import Fault, faults, is_valid

from tests.json_schema.test_json_schema import NOT_JUDGED


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"minProperties": 2}, '{"a":1,"b":2}', True),
        ({"minProperties": 2}, '{"a":1,"a":2}', False),
        ({}, '{"a":1,"\\u0061":2}', False),  # the same key in another spelling
        ({}, '[{"a":{"b":1,"b":1}}]', False),
        ({"properties": {"id": {"type": "integer"}}}, '{"\\u0069d":"x"}', False),
        ({"type": "integer"}, "1.0", True),
        ({"const": 1}, "1e0", True),
        ({"maximum": 2**64}, "18446744073709551617", False),
        ({"type": "string", "maxLength": 1}, '"\\ud83d\\ude00"', True),
        ({"type": "number"}, "NaN", False),
        ({"type": "number"}, "-Infinity", False),
        ({}, "", False),
        ({}, "{}}", False),
        ({}, ' {"a": 1}\n', True),
        (True, "1", True),
        (False, "1", False),
        ({"uniqueItems": True}, "[1, 1.0]", False),
        ({"type": "string", "format": "date"}, '"2024-02-30"', False),
        ({"format": "date-time"}, '"2024-02-30T12:00:00Z"', False),
        ({"format": "date-time"}, '"2024-02-29 12:00:00"', False),
        ({"format": "time"}, '"24:00:00Z"', False),
        ({"format": "duration"}, '"P1Y1D"', False),
        ({"format": "email"}, '"a b@c"', False),
        ({"format": "hostname"}, '"-a"', False),
        ({"format": "uri"}, '"a b"', False),
        ({"format": "date-time"}, "1", True),
        ({"type": "integer", "format": "int32"}, "1", True),
        # patterns as in the specification, not as in Python
        ({"pattern": "^a$"}, r'"a\n"', False),
        ({"patternProperties": {"^a$": False}}, r'{"a\n": 1}', True),
        ({"patternProperties": {"^a$": {}}, "additionalProperties": False}, r'{"a\n": 1}', False),
        ({"pattern": r"^\d$"}, '"\N{ARABIC-INDIC DIGIT THREE}"', False),
        ({"pattern": r"^[\w]$"}, '"é"', False),
        ({"pattern": r"^\p{L}$"}, '"é"', True),
        # drafts
        ({"items": [{"type": "null"}], "additionalItems": False}, "[null,null]", False),
        ({"dependencies": {"a": ["b"]}}, '{"a":1}', False),
        ({"minimum": 1, "exclusiveMinimum": True}, "1", False),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]}, "[1]", False),
        # unknown
        ({"$schema": "https://example.com/a-dialect-of-its-own", "type": "null"}, "1", None),
        ({"$schema": "https://example.com/a-dialect-of-its-own"}, "{", False),
        ({"pattern": r"\p{Script=Greek}"}, '"a"', None),
        ({"pattern": "("}, '"a"', None),
    ],
)
def test_a_text_is_judged_as_a_text(schema: Any, text: str, expected: bool | None) -> None:
    assert is_valid(schema, text, enforces_formats=True) is expected


@pytest.mark.parametrize("reference", ["https://example.com/a.json", "a.json", "file:///a.json", "#gone"])
def test_nothing_is_fetched(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[object] = []

    def fetch(*arguments: object, **_: object) -> None:
        fetched.append(arguments)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", fetch)
    monkeypatch.setattr("urllib.request.urlopen", fetch)
    schema = {"properties": {"a": {"$ref": reference}}}
    assert is_valid(schema, '{"a":1}', enforces_formats=True) is None
    assert is_valid(schema, '{"b":1}', enforces_formats=True) is True  # not needed
    assert not fetched


def test_a_format_that_nobody_asserts_leaves_the_verdict_open() -> None:
    schema = {"type": "string", "format": "of-its-own"}
    assert is_valid(schema, '"a"', enforces_formats=False) is None
    assert is_valid(schema, '"a"', enforces_formats=True) is True
    assert is_valid(schema, "1", enforces_formats=False) is False
    assert is_valid({"type": "string", "format": "ipv4"}, '"1.2.3.4"', enforces_formats=False) is True
    assert is_valid({"format": "regex"}, '"("', enforces_formats=False) is None


def test_a_format_that_is_not_known_is_open_only_where_the_verdict_hangs_on_it() -> None:
    unknown = {"format": "of-its-own"}
    properties = {"properties": {"a": unknown, "b": {"type": "integer"}}}
    assert is_valid(properties, '{"b":1}', enforces_formats=False) is True
    assert is_valid(properties, '{"a":"x","b":"x"}', enforces_formats=False) is False
    assert is_valid(properties, '{"a":"x","b":1}', enforces_formats=False) is None
    assert is_valid({"not": unknown}, '"x"', enforces_formats=False) is None
    assert is_valid({"anyOf": [unknown, {"const": "x"}]}, '"x"', enforces_formats=False) is True


@pytest.mark.slow
def test_verdicts_agree_with_the_labels_of_the_probe() -> None:
    judged = 0
    for name, schema, right, wrong in cases():
        if name in NOT_JUDGED or name.startswith("format:"):
            continue
        for instances, expected in ((right, True), (wrong, False)):
            for instance in instances:
                assert is_valid(schema, json.dumps(instance), enforces_formats=True) is expected, (name, schema)
                judged += 1
    assert judged > 10_000


def test_faults_say_where_and_by_what() -> None:
    schema = {"properties": {"a/b": {"items": {"maximum": 3}}}, "required": ["c"]}
    found = faults(schema, '{"a/b": [1, 4]}')
    assert found == [
        Fault("4 is greater than the maximum of 3", "#/a~1b/1", "#/properties/a~1b/items/maximum"),
        Fault("'c' is a required property", "#", "#/required"),
    ]
    assert faults(schema, '{"a/b": [1, 4]}', limit=1) == found[:1]
    assert faults(schema, '{"a/b": [1], "c": 1}') == []


@pytest.mark.parametrize(
    ("schema", "text", "begins"),
    [
        ({}, '{"a":1,"a":2}', "not JSON: the key 'a' appears twice"),
        ({}, "{", "not JSON: Expecting"),
        (False, "1", "False schema does not allow 1"),
        ({"pattern": r"^\d$"}, '"a"', r"'a' does not match '^\\d$'"),
        ({"type": "string", "format": "date"}, '"2024-02-30"', "not of the format date"),
    ],
)
def test_there_is_a_fault_wherever_a_text_is_not_valid(schema: Any, text: str, begins: str) -> None:
    (fault,) = faults(schema, text)
    assert is_valid(schema, text, enforces_formats=True) is False
    assert fault.message.startswith(begins)


def test_what_cannot_be_judged_has_no_faults() -> None:
    schema = {"$ref": "https://example.org/other.json"}
    assert is_valid(schema, "1", enforces_formats=True) is None
    assert faults(schema, "1") == []
