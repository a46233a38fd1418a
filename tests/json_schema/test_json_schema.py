"""JSON Schemas: invalid ones, their assertions, and linear time for malicious ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from guideway.api import InvalidGrammar, JsonSchema, StructuralTag
from guideway.json_schema import (
    KEYWORDS,
    assertions,
    check_schema,
    keywords,
    locate,
    misspelt_keywords,
    places,
    resolve,
    subschemas,
)
from guideway.json_schema.dialects import ONLY_PYTHON
from guideway.json_schema.ecma import with_python_patterns
from guideway.json_schema.patterns import pattern_details, place_of_detail
from guideway.json_schema.prober import cases

NOT_JUDGED = {
    "$ref:remote",
    "$ref:missing",
    "pattern:property",
    *(f"pattern:{name}" for name in ("double", "escape", *ONLY_PYTHON)),
}
"""Cases of the probe to skip: missing parts, regular expressions that Python or ECMA-262 lacks, and formats, which are
not asserted by default."""


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (3, "#: a JSON Schema must be an object or a boolean, not 3"),
        ([], "#: a JSON Schema must be"),
        ({"type": "strin"}, "#/type: `type` must be one of string, integer"),
        ({"type": []}, "#/type"),
        ({"type": ["string", 1]}, "#/type"),
        ({"type": {}}, "#/type"),
        ({"properties": []}, "#/properties: `properties` must be an object of schemas, not []"),
        ({"properties": {"a/b~c": 1}}, "#/properties/a~1b~0c: a subschema must be an object or a boolean, not 1"),
        ({"items": {"minLength": -1}}, "#/items/minLength: `minLength` must be a non-negative integer, not -1"),
        ({"maxItems": 1.5}, "#/maxItems"),
        ({"maxItems": True}, "#/maxItems"),
        ({"minimum": "1"}, "#/minimum: `minimum` must be a number"),
        ({"multipleOf": 0}, "#/multipleOf: `multipleOf` must be a number above 0"),
        ({"enum": {}}, "#/enum: `enum` must be a list of values"),
        ({"anyOf": []}, "#/anyOf: `anyOf` must be a list of at least one schema"),
        ({"allOf": [{}, None]}, "#/allOf/1"),
        ({"pattern": None}, "#/pattern: `pattern` must be a string"),
        ({"required": "a"}, "#/required: `required` must be a list of strings"),
        ({"required": True}, "#/required"),
        ({"uniqueItems": 1}, "#/uniqueItems"),
        ({"additionalProperties": 1}, "#/additionalProperties: a subschema"),
        ({"not": []}, "#/not"),
        ({"items": [{"type": "x"}]}, "#/items/0/type"),
        ({"dependencies": {"a": [1]}}, "#/dependencies"),
        ({"dependentRequired": {"a": {}}}, "#/dependentRequired"),
        ({"$defs": {"a": {"$defs": {"b": {"const": 1, "format": 2}}}}}, "#/$defs/a/$defs/b/format"),
        ({"$ref": 1}, "#/$ref: `$ref` must be a string"),
        ({"$defs": {"a": 1}, "$ref": "#/$defs/a"}, "#/$defs/a"),
        ({"$ref": "#/x/0", "x": [{"type": "x"}]}, "#/x/0/type"),
    ],
    ids=str,
)
def test_what_is_no_schema(schema: object, message: str) -> None:
    with pytest.raises(InvalidGrammar) as refusal:
        check_schema(schema)
    assert str(refusal.value).startswith(message)
    assert refusal.value.field == "constraint.schema"


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"type": ["string", "null"], "minLength": 2.0, "x-unknown": object, "title": 3},
        {"properties": {"type": {"type": "string"}, "$ref": {}, "enum": True}},
        {"minimum": 1, "exclusiveMinimum": True, "items": [{}, True], "dependencies": {"a": ["b"], "c": {}}},
        {"$ref": "#/definitions/a%25~1b", "definitions": {"a%/b": {"$ref": "#"}}},
        {"$defs": {"y": {"$id": "other", "$ref": "#/$defs/x", "$defs": {"x": {}}}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"x": {}},
            "items": {"$id": "#y", "items": {"$ref": "#/definitions/x"}},
        },
        {"$ref": "https://example.com/schema.json"},
    ],
    ids=str,
)
def test_what_is_a_schema(schema: object) -> None:
    check_schema(schema)


@pytest.mark.slow
def test_every_schema_of_the_probe_is_one() -> None:
    for _, schema, _, _ in cases():
        check_schema(schema)


def test_subschemas() -> None:
    schema = {
        "properties": {"a": {"items": {"type": "string"}}, "b": {"$ref": "#/elsewhere/c"}, "d": False},
        "additionalProperties": False,
        "anyOf": [True, {"not": {}}],
        "elsewhere": {"c": {"const": {"type": "integer"}}},
        "$defs": {"e": {"if": {}, "then": {}, "else": {}}},
    }
    found = {str(pointer): subschema for pointer, subschema in subschemas(schema)}
    assert set(found) == {
        "#",
        "#/properties/a",
        "#/properties/a/items",
        "#/properties/b",
        "#/properties/d",
        "#/elsewhere/c",
        "#/anyOf/0",
        "#/anyOf/1",
        "#/anyOf/1/not",
        "#/$defs/e",
        "#/$defs/e/if",
        "#/$defs/e/then",
        "#/$defs/e/else",
    }
    for pointer, subschema in found.items():
        assert resolve(schema, pointer) is subschema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, set()),
        (False, {"false"}),
        ({"title": "x", "default": 1}, set()),
        ({"type": "string", "maxLength": 3, "pattern": "a"}, {"type", "maxLength", "pattern", "pattern+maxLength"}),
        ({"maxLength": 3}, {"maxLength", "maxLength+untyped"}),
        ({"type": ["string", "null"], "maxLength": 3}, {"type", "maxLength", "maxLength+types"}),
        ({"type": "string", "enum": ["a"]}, {"type", "enum"}),
        ({"type": "string", "enum": ["a", 1]}, {"type", "enum:mistyped"}),
        ({"type": ["integer", "null"], "const": 1.0}, {"type", "const"}),
        ({"enum": ["a"]}, {"enum"}),
        ({"type": "string", "format": "date"}, {"type", "format:date"}),
        ({"type": "string", "format": "date", "minLength": 1},
         {"type", "format:date", "minLength", "format+minLength"}),
        ({"type": "integer", "format": "int32"}, {"type"}),
        ({"type": ["null", "string"], "format": "date"}, {"type", "format:date", "format+types"}),
        ({"additionalItems": False, "minContains": 1, "if": {}}, set()),
        ({"$ref": "#"}, {"$ref"}),
        ({"$ref": "#a", "$anchor": "a"}, {"$ref:anchor"}),
        ({"$ref": "x.json"}, {"$ref:remote"}),
        ({"$ref": "#/$defs/a"}, {"$ref:missing"}),
        ({"$ref": "#a", "$defs": {"b": {"$anchor": "b"}}}, {"$ref:missing"}),
        ({"$ref": "#/x", "x": 7}, {"$ref:missing"}),
        ({"properties": {"maxLength": {}}, "type": "object", "additionalProperties": False},
         {"type", "properties", "additionalProperties", "properties+additionalProperties"}),
        ({"type": "object", "properties": {"a": False}}, {"type", "properties", "false"}),
        ({"type": "object", "required": ["a"]}, {"type", "required:undeclared"}),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1},
         {"type", "properties", "minProperties:optional", "properties+minProperties:optional"}),
        ({"type": "number", "multipleOf": 2}, {"type", "multipleOf:number"}),
        ({"type": "integer", "multipleOf": 1.5}, {"type", "multipleOf:number"}),
        ({"type": "object", "patternProperties": {'"': {}}}, {"type", "patternProperties", "pattern:escaped"}),
        ({"type": "object", "patternProperties": {'[^"]': {}}}, {"type", "patternProperties", "pattern:unescaped"}),
        ({"type": "array", "items": [{}]}, {"type", "items:list"}),
        ({"type": "number", "exclusiveMinimum": True}, {"type", "exclusiveMinimum:draft4"}),
        ({"allOf": [{}, {}]}, {"allOf:several"}),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"oneOf:disjoint", "type"}),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, {"oneOf", "type"}),
        ({"type": "string", "pattern": r"(?!a)\bx\1\p{L}"},
         {"type", "pattern", *(f"pattern:{d}" for d in ("lookaround", "boundary", "backreference", "property"))}),
        ({"type": "string", "pattern": "^(?:a|(b$)|\\$[$]|^(^c|d))|(^(ab)*)|$"}, {"type", "pattern"}),
        ({"type": "string", "pattern": "^(a$|(b$)?)c?$"}, {"type", "pattern", "pattern:anchor"}),
        ({"type": "string", "pattern": "^((^a)|b)*$"}, {"type", "pattern", "pattern:anchor"}),
        ({"type": "object", "patternProperties": {"a^b": {}}}, {"type", "patternProperties", "pattern:anchor"}),
        ({"type": "string", "pattern": "^[a-z]+(-[a-z]+)?$"}, {"type", "pattern", "pattern:repetition"}),
        ({"type": "string", "pattern": "é|^.$"}, {"type", "pattern", "pattern:.", "pattern:class>127"}),
        ({"type": "string", "pattern": "é|[a-z]"}, {"type", "pattern"}),
        ({"type": "string", "pattern": "^([a-z]{2,}x){3}$"}, {"type", "pattern", "pattern:repetition"}),
        ({"type": "string", "pattern": "^(a*|[)?(*]|b?)*x(c{1,2})?\\(d*\\)?$"}, {"type", "pattern"}),
        ({"type": "object", "patternProperties": {"^(?!a)": {}, "(a*b)?": {}}},
         {"type", "patternProperties:several", "pattern:lookaround", "pattern:repetition"}),
        ({"type": ["integer", "null"], "enum": [1, None, 2.0]}, {"type", "enum"}),
        ({"type": "integer", "enum": [1, 2.5]}, {"type", "enum:mistyped"}),
        ({"type": "object", "const": []}, {"type", "const:mistyped"}),
        ({"items": {"$id": "a", "items": {"$ref": "#"}}, "type": "array"},
         {"type", "items", "items+untyped", "$ref", "$ref:nested-id"}),
        ({"items": {"$id": "a"}, "contains": {"$ref": "#"}, "type": "array"},
         {"type", "items", "contains", "items+contains", "$ref"}),
        ({"items": {"$id": "a"}, "contains": {"$ref": "#b"}, "type": "array", "$anchor": "b"},
         {"type", "items", "contains", "items+contains", "$ref:anchor", "$ref:nested-id"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#", "maxLength": 1},
         {"$ref", "$ref:siblings"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#", "title": "a"}, {"$ref"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$id": "#a", "not": {"$ref": "#"}}},
         {"items", "items+untyped", "not", "$ref"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$id": "a", "$ref": "#"}},
         {"items", "items+untyped", "$ref", "$ref:siblings"}),
        ({"items": [{"$ref": "#", "maxLength": 1}]}, {"items:list", "items:list+untyped", "$ref", "$ref:siblings"}),
        ({"dependencies": {"a": {"$ref": "#", "maxLength": 1}}},
         {"dependencies", "dependencies+untyped", "$ref", "$ref:siblings"}),
        ({"$recursiveRef": "#"}, {"$recursiveRef"}),
        ({"$defs": {"unused": {"uniqueItems": True, "type": "array"}}}, {"type", "uniqueItems"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)  # fmt: skip
def test_keywords(schema: Any, expected: set[str]) -> None:
    assert keywords(schema) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}, False),
        ({"type": "array", "items": {"type": "string"}}, False),
        ({"anyOf": [{"type": "null"}, {"const": {"a": 1}}, {"enum": [{}]}]}, False),
        ({"type": "array", "prefixItems": [{"type": "null"}], "items": False}, False),
        (False, False),
        (True, True),
        ({}, True),
        ({"type": "object"}, True),
        ({"type": ["null", "object"], "additionalProperties": {"type": "null"}}, True),
        ({"type": "object", "patternProperties": {"a": False}, "additionalProperties": False}, True),
        ({"type": "array"}, True),
        ({"type": "array", "items": True}, True),
        ({"type": "array", "items": {}}, True),
        ({"minimum": 1}, True),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": False}, True),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/x"}], "x": {"type": "object"}}, True),
    ],
    ids=str,
)
def test_which_schemas_leave_names_open(schema: Any, expected: bool) -> None:
    assert assertions(schema).leaves_names_open is expected


def test_references_are_relative_to_the_nearest_id() -> None:
    assert "$ref:missing" not in keywords({"$defs": {"y": {"$id": "other", "$ref": "#/$defs/x", "$defs": {"x": {}}}}})
    for schema in (
        {"$ref": "#/$defs/x", "$defs": {"y": {"$id": "other"}}},
        {"$defs": {"y": {"$id": "other", "$ref": "#/$defs/x"}, "x": {}}},
    ):
        check_schema(schema)
        assert "$ref:missing" in keywords(schema)


def test_every_keyword_is_probed() -> None:
    probed = {part.partition(":")[0] for name, _, _, _ in cases() for part in name.split("+")}
    assert set(KEYWORDS) <= probed


@pytest.mark.slow
def test_the_labels_of_the_probe_agree_with_another_validator() -> None:
    judged = 0
    for name, schema, right, wrong in cases():
        if name in NOT_JUDGED or name.startswith("format:"):
            continue
        validator: Any = jsonschema.Draft202012Validator
        if "draft4" in name:
            validator = jsonschema.Draft4Validator
        elif any(old in name for old in ("items:list", "additionalItems", "dependencies")):
            validator = jsonschema.Draft7Validator
        elif isinstance(schema, dict) and "$schema" in schema:
            validator = jsonschema.validators.validator_for(schema)
        checker = validator(with_python_patterns(schema)[0], format_checker=validator.FORMAT_CHECKER)
        for instance in right:
            assert checker.is_valid(instance), (name, schema, instance)
        for instance in wrong:
            assert not checker.is_valid(instance), (name, schema, instance)
        judged += len(right) + len(wrong)
    assert judged > 10_000


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "nothing"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.slow
def test_depth_costs_no_stack() -> None:
    with pytest.raises(InvalidGrammar, match="#/items/items"):
        check_schema(_nested(20_000))
    deep: Any = _nested(20_000)
    assert keywords(deep) >= {"items", "type"}


def test_references_that_lead_in_circles_end() -> None:
    chain: dict[str, Any] = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(5_000)}
    chain["r5000"] = {"$ref": "#/$defs/r0"}
    schema = {"$ref": "#/$defs/r0", "$defs": chain}
    check_schema(schema)
    assert sum(1 for _ in subschemas(schema)) == 5_002
    assert keywords(schema) == {"$ref"}


def _wide_below_long_names(size: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"anyOf": [{"const": i} for i in range(size)]}
    for _ in range(size):
        schema = {"properties": {"k" * size: schema}}
    return schema


def _chain_of_references(size: int) -> dict[str, Any]:
    chain: dict[str, Any] = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(size)}
    return {"$ref": "#/$defs/r0", "$defs": {**chain, f"r{size}": {"$ref": "#/$defs/r0"}}}


def _one_target_of_many(size: int) -> dict[str, Any]:
    return {"$defs": {"a": {"items": True}}, "anyOf": [{"$ref": "#/$defs/a"} for _ in range(size)]}


def _references_into_lists(size: int) -> dict[str, Any]:
    return {"allOf": [*({"$ref": f"#/allOf/{i + 1}"} for i in range(size)), True]}


def _unknown_keys(size: int) -> dict[str, Any]:
    return {"$defs": {str(i): {f"patern{i}": 1, f"maxLenght{i}": 2} for i in range(size)}}


def _long_lists(size: int) -> dict[str, Any]:
    names = [f"p{i}" for i in range(size)]
    return {"properties": dict.fromkeys(names, True), "required": names, "minProperties": 1, "type": ["object"] * size}


def _calls(run: Callable[[], object]) -> int:
    """Return how many functions, including those written in C, `run` calls."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("read", [check_schema, keywords, lambda schema: list(subschemas(schema))])
@pytest.mark.parametrize(
    "make",
    [_wide_below_long_names, _chain_of_references, _one_target_of_many, _references_into_lists, _unknown_keys,
     _long_lists],
)  # fmt: skip
def test_twice_the_schema_is_at_most_twice_the_work(
    make: Callable[[int], dict[str, Any]], read: Callable[[Any], object]
) -> None:
    once, twice = make(200), make(400)
    read(once)  # warm caches
    assert _calls(lambda: read(twice)) <= 2.2 * _calls(lambda: read(once)) + 100


def test_an_index_of_any_length_is_one_that_is_not_there() -> None:
    for index in ("9" * 5_000, "0" * 5_000 + "1", "2", "-1", "²"):
        schema = {"allOf": [{"$ref": f"#/allOf/{index}"}, {}]}
        assert "$ref:missing" in keywords(schema)


def test_misspelt_keywords_are_found_and_annotations_are_not() -> None:
    schema = {
        "type": "object",
        "titel": "an annotation, whatever it is called",
        "x-order": 1,
        "tsType": "string",
        "properties": {"patern": {"patern": "^a$"}, "b": {"maxLenght": 3, "description": "d"}},
        "requird": ["b"],
        "$defs": {"c": {"minimun": 3, "propertys": {}}},
        "form": "of no keyword",
        "propertiesOrder": ["b"],
        "const": {"maxLenght": 1},
    }
    assert misspelt_keywords(check_schema(schema)) == {"patern", "maxLenght", "requird", "minimun", "propertys"}
    assert misspelt_keywords(check_schema({"tpye": "object", "Type": "array", "items": {"MaxItems": 3}})) == {
        *("tpye", "Type", "MaxItems")
    }
    assert misspelt_keywords(check_schema(True)) == frozenset()
    assert len(misspelt_keywords(check_schema({f"patern{i}": 1 for i in range(100_000)}))) <= 100
    assert len(misspelt_keywords({f"maxLength{i}" for i in range(1_000)})) == 100


@pytest.mark.slow
def test_every_keyword_has_the_places_where_it_is_alone() -> None:
    """The names of a schema are those at its places, and a keyword of one place is found there."""
    for name, schema, _, _ in cases():
        whole = {"type": "object", "properties": {"x": {"type": "object", "properties": {"a/b": schema}}}}
        if "$" in name or "definitions" in json.dumps(schema):
            continue
        for constraint, place in (
            (JsonSchema(schema), "#"),
            (JsonSchema(whole), "#/properties/x/properties/a~1b"),
            (
                StructuralTag({"format": {"type": "json_schema", "json_schema": whole}}),
                "#/format/json_schema/properties",
            ),
        ):
            found = places(constraint, keywords(schema), 99)
            assert all(found.values()), (name, found)
            assert all(any(pointer.startswith(place) for pointer in pointers) for pointers in found.values()), found


def test_a_message_shows_the_first_places() -> None:
    nots = {f"p{i}": {"not": {"type": "null"}, "patern": "x"} for i in range(6)}
    constraint = JsonSchema({"properties": {**nots, "b": {"type": "string", "pattern": "a", "maxLength": 1}}})
    first = ", ".join(f"#/properties/p{i}/not" for i in range(3))
    assert locate(constraint, ["not"]) == f"`not` at {first} and 3 more places"
    assert locate(constraint, ["pattern+maxLength", "other"]) == "`pattern+maxLength` at #/properties/b, `other`"
    assert places(constraint, ["patern"], 2) == {"patern": ("#/properties/p0/patern", "#/properties/p1/patern")}


@pytest.mark.parametrize(
    ("pattern", "name", "at"),
    [("ab(?=c)", "lookaround", 2), (r"a\d\bb", "boundary", 3), (r"(a)\1", "backreference", 3), ("ab$c", "anchor", 3)],
)
def test_a_feature_of_a_regular_expression_has_a_place(pattern: str, name: str, at: int) -> None:
    assert name in pattern_details(pattern)
    assert place_of_detail(pattern, name) == at


def test_only_bounds_that_hold_together_make_a_narrow_range() -> None:
    low, high = {"exclusiveMinimum": 3}, {"exclusiveMaximum": 3.5}
    apart = {"anyOf": [low, high]}
    either = {"anyOf": [{"allOf": [low]}, {"$ref": "#/$defs/high"}], "$defs": {"high": high}}
    for schema in (apart, either, {"oneOf": [{"not": {}}, apart]}):
        assert "number:narrow" not in keywords(schema)
    for schema in (
        {**low, **high},
        {**low, "anyOf": [high, {}]},
        {"allOf": [apart, high]},
        {"allOf": [apart, {"anyOf": [low, high]}]},
        {"anyOf": [{"allOf": [low, {"$ref": "#/anyOf/1"}]}, high]},
    ):
        assert "number:narrow" in keywords(schema), schema
