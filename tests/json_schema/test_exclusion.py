"""Branches of ``oneOf`` that exclude each other."""

from __future__ import annotations

from typing import Any

import pytest
from guideway.json_schema import Emptiness, keywords
from guideway.json_schema.prober import cases
from guideway.json_schema.validity import validator

OPEN: list[Any] = [{"properties": {"kind": {"const": kind}}} for kind in ("cat", "dog")]
A: dict[str, Any] = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}


def named(kind: object) -> dict[str, Any]:
    return {"properties": {"kind": {"const": kind}}, "required": ["kind"]}


KIND = [named("cat"), named("dog")]


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "string"}, {"type": ["null", "integer"]}, {"enum": [True]}]},
        {"oneOf": [{"type": "string"}, {"anyOf": [{"type": "null"}, {"type": "array"}]}]},
        {"type": "object", "oneOf": [{"anyOf": [named(1), named(2)]}, {"oneOf": [named(3), named(4)]}]},
        {"oneOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "string", "const": "c"}]},
        {"oneOf": [{"const": 1}, {"const": True}, {"const": 0}]},
        {"type": "object", "oneOf": KIND},
        {"type": "object", "oneOf": OPEN, "required": ["kind"]},
        {"oneOf": [{"allOf": [{"type": "object"}, KIND[0]]}, {"allOf": [{"type": "object"}, KIND[1]]}]},
        {"oneOf": [{**A, "required": ["a"]}, {"type": "object", "required": ["b"]}]},
        {"oneOf": [{**A, "required": ["a"]}, {**A, "properties": {}}]},
        {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "properties": {"a": False}}]},
        {
            "oneOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/n"}],
            "$defs": {"s": {"const": "s"}, "n": {"type": "null"}},
        },
        {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}]},
        {"oneOf": [{"type": "number", "maximum": 2}, {"type": "integer", "minimum": 2.5}, False]},
        {"oneOf": [{"type": "array", "items": {"type": kind}, "minItems": 1} for kind in ("null", "string")]},
        {"oneOf": [{"$ref": "#/$defs/s"}, {"type": "null"}], "$defs": {"s": {"$ref": "#/$defs/s"}}},
        {
            "oneOf": [{"$ref": "#/$defs/s"}, {"type": "null"}],
            "$defs": {"s": {"type": "string"}, "x": {"$id": "y", "$defs": {"s": {"type": "null"}}}},
        },
    ],
)
def test_branches_that_exclude_each_other(schema: Any) -> None:
    assert Emptiness(schema).is_exclusive(schema)
    assert "oneOf:disjoint" in keywords(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        {"oneOf": [{"const": 1}, {"const": 1.0}]},
        {"oneOf": [{"enum": [[1]]}, {"enum": [[1.0]]}]},
        {"oneOf": KIND},  # both allow everything but objects
        {"type": "object", "oneOf": OPEN},  # both allow objects without a kind
        {"type": "object", "oneOf": KIND, "required": ["kind"], "properties": {"kind": True}, "$schema": "x/draft-04"},
        {"oneOf": [{**A, "required": ["a"]}, {**A, "patternProperties": {"a": {}}, "properties": {}}]},
        {"oneOf": [{"$ref": "x.json"}, {"type": "null"}]},
        {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}]},
        {"oneOf": [{"maxLength": 2}, {"minLength": 3}]},  # both allow everything but strings
        {"oneOf": [{}, {"type": "null"}]},
    ],
)
def test_others_are_not_taken_for_such(schema: Any) -> None:
    assert not Emptiness(schema).is_exclusive(schema)
    assert "oneOf:disjoint" not in keywords(schema)


@pytest.mark.slow
def test_no_case_of_the_probe_has_an_instance_of_two_branches() -> None:
    seen = 0
    for _, schema, right, wrong in cases():
        if isinstance(schema, dict) and "oneOf" in schema and Emptiness(schema).is_exclusive(schema):
            allowed = {key: value for key, value in schema.items() if key in ("type", "required")}
            defs = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
            branches = [validator({"allOf": [branch], **defs}) for branch in schema["oneOf"]]
            for instance in filter(validator(allowed).is_valid, (*right, *wrong)):
                assert sum(branch.is_valid(instance) for branch in branches) <= 1
                seen += 1
    assert seen > 1000


def test_the_work_is_bounded() -> None:
    schema: Any = {"type": "object", "properties": {"a": {"const": 0}}, "required": ["a"]}
    for _ in range(12):
        schema = {"anyOf": [schema] * 8, "allOf": [schema] * 8}
    assert not Emptiness(whole := {"oneOf": [schema, schema]}).is_exclusive(whole)
