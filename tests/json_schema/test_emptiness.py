"""Unsatisfiable schemas, and schemas with unsatisfiable parts, which a rewriting leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from guideway.api import InvalidGrammar, JsonSchema
from guideway.json_schema import Schema, check_satisfiable, check_schema
from guideway.json_schema.prober import cases
from guideway.json_schema.rewriting import rewrite
from guideway.json_schema.validity import is_valid
from hypothesis import given, settings
from hypothesis import strategies as st

LIST = {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}, "required": ["next"]}
NARROW = {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


EMPTY: list[tuple[Schema, str]] = [
    (False, "#"),
    ({"not": {}}, "#/not"),
    ({"not": {"title": "all"}}, "#/not"),
    ({"enum": []}, "#/enum"),
    ({"type": "string", "enum": [1, None]}, "#/enum"),
    ({"const": "abc", "maxLength": 2}, "#/const"),
    ({"const": 3, "enum": [1, 2]}, "#/const"),
    ({"const": {"a": "x"}, "properties": {"a": {"type": "integer"}}}, "#/const"),
    ({"const": [1, 2, 3], "items": {"maximum": 2}}, "#/const"),
    ({"enum": [1, 5, 2.5], "type": "integer", "anyOf": [{"maximum": 0}, {"multipleOf": 4}]}, "#/anyOf"),
    (NARROW, "#"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "#"),
    ({"type": "integer", "minimum": 0.1, "maximum": 0.9}, "#"),
    ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "#"),
    ({"type": "number", "minimum": 1, "maximum": 1, "exclusiveMinimum": True, "$schema": DRAFT_4}, "#"),
    ({"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7}, "#"),
    ({"type": "integer", "minimum": 1, "maximum": 5, "allOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, "#"),
    ({"type": "number", "minimum": 0.11, "maximum": 0.19, "multipleOf": 0.1}, "#"),
    ({"type": "integer", "minimum": 1, "maximum": 1.75, "multipleOf": 1.5}, "#"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "#"),
    ({"type": "string", "minLength": 3, "allOf": [{"maxLength": 2}]}, "#"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "#"),
    ({"type": "array", "minItems": 1, "items": False}, "#/items"),
    ({"type": "array", "minItems": 1, "items": NARROW}, "#/items"),
    ({"type": "array", "minItems": 2, "prefixItems": [{}, {"enum": []}]}, "#/prefixItems/1/enum"),
    ({"type": "array", "minItems": 2, "items": [{}, False], "$schema": DRAFT_7}, "#/items/1"),
    ({"type": "array", "minItems": 2, "prefixItems": [{}], "items": False}, "#/items"),
    ({"type": "array", "contains": NARROW}, "#/contains"),
    ({"type": "array", "contains": {}, "minContains": 3, "maxItems": 2}, "#"),
    ({"type": "array", "contains": {}, "minContains": 3, "maxContains": 2}, "#"),
    ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3}, "#"),
    ({"type": "object", "minProperties": 3, "maxProperties": 2}, "#"),
    ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, "#"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "#"),
    ({"type": "object", "required": ["a"], "additionalProperties": NARROW}, "#/additionalProperties"),
    ({"type": "object", "required": ["abc"], "propertyNames": {"maxLength": 2}}, "#/propertyNames"),
    (
        {"type": "object", "minProperties": 2, "properties": {"a": {}, "b": False}, "additionalProperties": False},
        "#",
    ),
    (obj(k=NARROW), "#/properties/k"),
    (obj(k=False), "#/properties/k"),
    (obj(k=obj(z=NARROW)), "#/properties/k/properties/z"),
    (
        {"type": "object", "allOf": [{"properties": {"a": {"type": "string"}}}, obj(a={"type": "null"})]},
        "#/allOf/0/properties/a",
    ),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "#"),
    ({"type": "string", "$ref": "#/$defs/i", "$defs": {"i": {"type": "integer"}}}, "#"),
    ({"type": "string", "anyOf": [{"type": "integer"}, {"type": "null"}]}, "#/anyOf"),
    ({"type": "string", "not": {"type": "string"}}, "#"),
    ({"allOf": [{}, NARROW]}, "#/allOf/1"),
    ({"anyOf": [NARROW]}, "#/anyOf/0"),
    ({"oneOf": [{"enum": []}, {"const": 1, "type": "string"}]}, "#/oneOf/0/enum"),
    ({"maximum": 3, "anyOf": [{"type": "number", "minimum": 5}, {"enum": [4, 5]}]}, "#/anyOf"),
    ({"$ref": "#/$defs/never", "$defs": {"never": {"enum": []}}}, "#/$defs/never/enum"),
    ({"$ref": "#"}, "#"),
    ({"$ref": "#/$defs/list", "$defs": {"list": LIST}}, "#/$defs/list"),
    ({"anyOf": [{"$ref": "#/$defs/list"}, {"$ref": "#"}], "$defs": {"list": LIST}}, "#/$defs/list"),
]


@pytest.mark.parametrize(("schema", "place"), EMPTY, ids=str)
def test_a_schema_that_nothing_satisfies_is_invalid_at_the_cause(schema: Schema, place: str) -> None:
    check_schema(schema)
    with pytest.raises(InvalidGrammar) as refusal:
        check_satisfiable(schema)
    assert str(refusal.value).startswith(f"{place}: ")
    with pytest.raises(InvalidGrammar, match=r"^#/tags/0/schema"):
        check_satisfiable(schema, (((None, "tags"), 0), "schema"))


CLOSED = {"type": "object", "additionalProperties": False}


TEXT = {"type": "string"}
NO_ITEMS = {"type": "array", "maxItems": 0}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({**CLOSED, "properties": {"k": NARROW, "a": {}}}, {**CLOSED, "properties": {"a": True}}),
        ({**CLOSED, "properties": {"k": False}}, CLOSED),
        ({"properties": {"k": {"enum": []}, "a": {}}}, {"properties": {"k": False, "a": True}}),
        (obj(k=NARROW) | {"type": ["object", "null"]}, {"type": "null"}),
        (obj(k=False) | {"type": ["string", "object"], "maxLength": 3}, {**TEXT, "maxLength": 3}),
        ({"anyOf": [{"enum": []}, TEXT]}, TEXT),
        ({"oneOf": [{"type": "null"}, NARROW, False]}, {"type": "null"}),
        ({"type": "array", "items": NARROW}, NO_ITEMS),
        ({"type": "array", "items": NARROW, "maxItems": 4}, NO_ITEMS),
        ({"type": "array", "prefixItems": [{}, NARROW, {}]}, {"type": "array", "prefixItems": [True], "items": False}),
        ({"items": [{}, NARROW], "$schema": DRAFT_7}, {"prefixItems": [True], "items": False}),
        ({"type": "array", "contains": NARROW, "minContains": 0}, {"type": "array"}),
        ({"type": "array", "contains": NARROW, "minContains": 0, "maxContains": 1}, {"type": "array"}),
        ({**TEXT, "not": NARROW}, TEXT),
        ({**TEXT, "if": NARROW, "then": False}, TEXT),
        ({"anyOf": [{"$ref": "#/$defs/never"}, TEXT], "$defs": {"never": NARROW}}, TEXT),
        ({**CLOSED, "properties": {"x": {"$ref": "#/$defs/list"}}, "$defs": {"list": LIST}}, CLOSED),
    ],
    ids=str,
)
def test_a_rewriting_leaves_out_what_nothing_satisfies(schema: Schema, left: Schema) -> None:
    found = rewrite(schema, frozenset())
    assert found.schema == left
    assert not found.losses


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"properties": {"k": False}},
        {**CLOSED, "properties": {"k": False}, "patternProperties": {"^k": {}}},
        {"$schema": DRAFT_4, "type": "string", "const": 1},
        {"$schema": DRAFT_7, "type": "array", "prefixItems": [False], "minItems": 1},
        {"$schema": DRAFT_7, "$ref": "#/definitions/s", "type": "null", "definitions": {"s": {"type": "string"}}},
        {"required": ["k"], "properties": {"k": {"enum": [1, "1"]}}, "type": "object"},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "minimum": 7, "maximum": 7, "multipleOf": 3.5},
        {"const": 1.0, "type": "integer"},
        {"minLength": 3, "maxLength": 2, "type": "integer"},
        {"type": "object", "required": ["a"], "patternProperties": {"^a": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["a"]},
    ],
    ids=str,
)
def test_nothing_is_said_of_others(schema: Schema) -> None:
    check_satisfiable(schema)


@pytest.mark.slow
def test_schemas_that_have_instances_keep_them() -> None:
    for name, schema, right, _ in cases():
        try:
            check_satisfiable(schema)
        except InvalidGrammar:
            assert right == [], (name, schema)


NAMES = st.sampled_from(["a", "b", "cc"])
NUMBERS = st.sampled_from([-1, 0, 1, 1.0, 1.5, 2, 3])
COUNTS = st.integers(0, 3)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "cc", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)
REFERENCES = st.sampled_from(["#", "#/$defs/x", "#/$defs/y"]).map(lambda reference: {"$ref": reference})
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    inside = inner | REFERENCES  # references only at smaller values, since validators would not terminate otherwise
    lists = st.lists(inner, min_size=1, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, max_size=3),
        "const": VALUES,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        "multipleOf": st.sampled_from([0.5, 1, 1.5, 2]),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), COUNTS),
        **dict.fromkeys(("minContains", "maxContains"), COUNTS),
        "uniqueItems": st.booleans(),
        "required": st.lists(NAMES, max_size=2, unique=True),
        **dict.fromkeys(("properties", "patternProperties"), st.dictionaries(NAMES, inside, max_size=2)),
        **dict.fromkeys(("items", "contains", "additionalProperties", "propertyNames"), inside),
        **dict.fromkeys(("not", "if", "then"), inner),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), lists),
        "prefixItems": st.lists(inside, min_size=1, max_size=3),
    }
    return st.fixed_dictionaries({}, optional=keywords) | st.lists(
        st.sampled_from([*keywords]), min_size=1, max_size=4, unique=True
    ).flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


PARTS = st.recursive(st.booleans() | TYPES.map(lambda name: {"type": name}), nodes, max_leaves=6)


@pytest.mark.slow
@given(nodes(PARTS), PARTS, PARTS, st.none() | REFERENCES, st.lists(VALUES, min_size=6, max_size=6))
@settings(max_examples=50, deadline=None)
def test_nothing_that_has_an_instance_is_left_out(
    node: dict[str, Any], x: Any, y: Any, beside: dict[str, str] | None, values: list[Any]
) -> None:
    schema = {**node, **(beside if beside and beside["$ref"] != "#" else {}), "$defs": {"x": x, "y": y}}
    left = rewrite(schema, frozenset())
    try:
        check_satisfiable(JsonSchema(schema).parsed)
    except InvalidGrammar:
        assert left.schema is False
    for value in (*values, *node.get("enum", ())):
        text = json.dumps(value)
        held = is_valid(schema, text, True)
        assert is_valid(left.schema, text, True) >= held if left.losses else is_valid(left.schema, text, True) == held
