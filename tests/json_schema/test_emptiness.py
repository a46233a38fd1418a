"""Unsatisfiable schemas, and schemas with unsatisfiable parts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from guideway.api import InvalidGrammar, JsonSchema
from guideway.json_schema import Schema, check_satisfiable, check_schema, pruned
from guideway.json_schema.prober import cases
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
        pruned(schema)
    assert str(refusal.value).startswith(f"{place}: ")
    with pytest.raises(InvalidGrammar, match=r"^#/tags/0/schema"):
        check_satisfiable(schema, (((None, "tags"), 0), "schema"))


CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({**CLOSED, "properties": {"k": NARROW, "a": {}}}, {**CLOSED, "properties": {"a": {}}}),
        ({**CLOSED, "properties": {"k": False}}, {**CLOSED, "properties": {}}),
        ({"properties": {"k": {"enum": []}, "a": {}}}, {"properties": {"k": False, "a": {}}}),
        ({"type": ["object", "null"], **obj(k=NARROW) | {"type": ["object", "null"]}}, {"type": "null"}),
        (obj(k=False) | {"type": ["string", "object"], "maxLength": 3}, {"type": "string", "maxLength": 3}),
        ({"anyOf": [{"enum": []}, {"type": "string"}]}, {"anyOf": [{"type": "string"}]}),
        ({"oneOf": [{"type": "null"}, NARROW, False]}, {"oneOf": [{"type": "null"}]}),
        ({"type": "array", "items": NARROW}, {"type": "array", "maxItems": 0}),
        ({"type": "array", "items": NARROW, "maxItems": 4}, {"type": "array", "maxItems": 0}),
        ({"type": "array", "prefixItems": [{}, NARROW, {}]}, {"type": "array", "prefixItems": [{}], "items": False}),
        ({"items": [{}, NARROW], "$schema": DRAFT_7}, {"items": [{}], "$schema": DRAFT_7, "additionalItems": False}),
        ({"type": "array", "contains": NARROW, "minContains": 0}, {"type": "array"}),
        ({"type": "string", "not": NARROW}, {"type": "string"}),
        ({"type": "string", "if": NARROW, "then": False}, {"type": "string", "if": False, "then": False}),
        (
            {"anyOf": [{"$ref": "#/$defs/never"}, {"$ref": "#/$defs/s"}], "$defs": {"never": NARROW, "s": {}}},
            {"anyOf": [{"$ref": "#/$defs/s"}], "$defs": {"s": {}}},
        ),
        (
            {**CLOSED, "properties": {"x": {"$ref": "#/$defs/list"}}, "$defs": {"list": LIST}},
            {**CLOSED, "properties": {}, "$defs": {}},
        ),
    ],
    ids=str,
)
def test_parts_that_nothing_satisfies_are_left_out(schema: Schema, left: Schema) -> None:
    before = json.dumps(schema)
    assert json.dumps(pruned(schema), sort_keys=True) == json.dumps(left, sort_keys=True)
    assert json.dumps(schema) == before


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
        # targets of references by place or name are not moved
        {"anyOf": [NARROW, {"type": "string"}], "properties": {"x": {"$ref": "#/anyOf/1"}}},
        {"anyOf": [{"$id": "n", "enum": []}, {"type": "string"}], "properties": {"x": {"$ref": "n"}}},
    ],
    ids=str,
)
def test_all_else_stays_as_it_is(schema: Schema) -> None:
    assert pruned(schema) is schema


@pytest.mark.slow
def test_schemas_that_have_instances_keep_them() -> None:
    for name, schema, right, wrong in cases():
        try:
            left = pruned(schema)
        except InvalidGrammar:
            assert right == [], (name, schema)
            continue
        for value in (*right, *wrong) if left is not schema else ():
            text = json.dumps(value)
            assert is_valid(left, text, True) == is_valid(schema, text, True), (name, schema, text)


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
    try:
        left: Schema = pruned(JsonSchema(schema).parsed)
    except InvalidGrammar:
        left = False
    if left != schema:
        for value in (*values, *node.get("enum", ())):
            text = json.dumps(value)
            assert is_valid(left, text, True) == is_valid(schema, text, True), text


@pytest.mark.parametrize(
    ("sign", "draft"),
    [({"type": "array", "items": [False]}, "07"), ({"enum": [], "minimum": 0, "exclusiveMinimum": True}, "04")],
)
def test_what_is_left_has_the_draft_of_the_whole(sign: Any, draft: str) -> None:
    """Also if the only keyword that shows the draft is removed. Up to draft 7 nothing counts beside ``$ref``."""
    beside = {"$ref": "#/definitions/s", "maxLength": 1}
    schema = {
        "properties": {"a": sign, "b": beside},
        "additionalProperties": False,
        "definitions": {"s": {"type": "string"}},
    }
    left = pruned(schema)
    assert isinstance(left, dict)
    assert left["$schema"] == f"http://json-schema.org/draft-{draft}/schema#"
    assert pruned(left) == left
    assert is_valid(left, '{"b": "xx"}', enforces_formats=False)
    assert is_valid(schema, '{"b": "xx"}', enforces_formats=False)
