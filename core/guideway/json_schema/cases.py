"""Schemas, each about one keyword or two side by side, with instances they allow and instances they do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, TypeAlias

from guideway.json_schema import Schema, combine, keywords, resolve
from guideway.json_schema.assertions import LARGE
from guideway.json_schema.dialects import pattern_cases
from guideway.json_schema.patterns import MANY, MIXED, REPEAT

__all__ = ["Case", "cases", "is_valid"]

Case: TypeAlias = tuple[str, Schema, list[Any], list[Any]]
"""Name (as `guideway.json_schema.keywords` gives it), schema, right instances, wrong instances."""

_INT, _STR = {"type": "integer"}, {"type": "string"}
_LARGE = 2**53 + 1
"""An integer that doubles do not hold."""
_A: dict[str, Any] = {"properties": {"a": _INT}}
_AB: dict[str, Any] = {"properties": {"a": _INT, "b": _INT}}
_REQUIRED_A = {"type": "object", **_A, "required": ["a"]}
_REQUIRED_B = {"type": "object", "properties": {"b": _INT}, "required": ["b"]}


def _string(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


# For each type of instance: keyword -> schemas that use it; a combination takes every one of the first with every one
# of the second.
_FRAGMENTS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "string": {
        "$ref": [{"$ref": "#/$defs/s", "$defs": {"s": _string(pattern="^a?[bc]*$")}}],
        "allOf": [{"allOf": [_string(pattern="^a?[bc]*$")]}],
        "allOf:several": [{"allOf": [_string(minLength=1), _string(maxLength=2)]}],
        "anyOf": [
            {"anyOf": [_string(pattern="^a$"), _string(pattern="^[bc]*$")]},
            {"anyOf": [_INT, _string(maxLength=1)]},
        ],
        "oneOf": [
            {"oneOf": [_string(pattern="^a.*"), _string(pattern="^b.*")]},
            {"oneOf": [_string(maxLength=2), _string(minLength=2)]},
        ],
        "oneOf:disjoint": [{"oneOf": [_INT, _string(maxLength=1)]}],
        "not": [{"not": _string(pattern="^b.*")}, {"not": {"const": "a"}}],
        "if": [
            {"if": _string(pattern="^a.*"), "then": _string(pattern=".*b$")},
            {"if": _string(minLength=2), "else": {"const": "b"}},
        ],
        "enum": [{"enum": ["a", "abc", "b"]}],
        "const": [{"const": "ab"}, {"const": "abc"}],
        "pattern": [{"pattern": pattern} for pattern in ("^[ab]*$", "b", "^ab", "c$", "^a@[a-z.]*$")],
        "minLength": [{"minLength": 2}, {"minLength": 8}],
        "maxLength": [{"maxLength": 2}, {"maxLength": 8}],
        "format:email": [{"format": "email"}],
    },
    "number": {
        "$ref": [{"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "maximum": 4}}}],
        "allOf": [{"allOf": [{"type": "integer", "maximum": 4}]}],
        "allOf:several": [{"allOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 4}]}],
        "anyOf": [{"anyOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 1}]}],
        "oneOf": [{"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 3}]}],
        "oneOf:disjoint": [
            {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]},
            {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 1}]},
        ],
        "not": [{"not": {"const": 2}}],
        "if": [{"if": {"minimum": 2}, "then": {"maximum": 3}}],
        "enum": [{"enum": [1, 2, 4]}],
        "const": [{"const": 3}, {"const": 4}, {"const": 100}, {"const": -3}],
        "multipleOf": [{"multipleOf": 2}],
        "minimum": [{"minimum": 2}],
        "exclusiveMinimum": [{"exclusiveMinimum": 1}],
        "maximum": [{"maximum": 4}],
        "exclusiveMaximum": [{"exclusiveMaximum": 5}],
    },
    "object": {
        "$ref": [{"$ref": "#/$defs/o", "$defs": {"o": _REQUIRED_A}}],
        "allOf": [{"allOf": [_REQUIRED_A]}],
        "allOf:several": [{"allOf": [_REQUIRED_A, _REQUIRED_B]}],
        "anyOf": [{"anyOf": [_REQUIRED_A, _REQUIRED_B]}],
        "oneOf": [{"oneOf": [_REQUIRED_A, _REQUIRED_B]}],
        "oneOf:disjoint": [
            {"oneOf": [_REQUIRED_A, {"type": "null"}]},
            {"oneOf": [{"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in "xy"]},
        ],
        "not": [{"not": _REQUIRED_A}],
        "if": [{"if": _REQUIRED_A, "then": _REQUIRED_B}],
        "enum": [{"enum": [{}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}]}],
        "const": [{"const": {"a": 1}}, {"const": {"a": 1, "b": 2}}, {"const": {"b": 1}}],
        "properties": [_AB, {"properties": {"a": _STR, "b": _INT}}, {"properties": {"a": {}}}],
        "patternProperties": [{"patternProperties": {"^a": _INT}}],
        "patternProperties:several": [
            {"patternProperties": {"^a": _INT, "^b": _STR}},
            {"patternProperties": {"^a": {}, "": _INT}},
            {"patternProperties": {"": {}, "^a": _INT}},
        ],
        "additionalProperties": [
            {"additionalProperties": _INT},
            {**_A, "additionalProperties": False},
            {**_AB, "additionalProperties": False},
            {"additionalProperties": False},
        ],
        "unevaluatedProperties": [
            {"unevaluatedProperties": False},
            {"unevaluatedProperties": _INT},
            {**_A, "unevaluatedProperties": False},
        ],
        "propertyNames": [
            {"propertyNames": {"type": "string", "pattern": "^[ab]$"}},
            {"propertyNames": {"type": "string", "maxLength": 1}},
            {"propertyNames": {"type": "string", "pattern": "^b$"}},
        ],
        "propertyNames:untyped": [
            {"propertyNames": {"maxLength": 1}},
            {"propertyNames": {"pattern": "^b$"}},
            {"propertyNames": {"enum": ["a", "b"]}},
            {"propertyNames": {"type": "integer"}},
        ],
        "required": [{**_AB, "required": ["a"]}, {**_AB, "required": ["a", "b"]}],
        "required:undeclared": [{"required": ["a"]}, {"required": ["b"], **_A}],
        "dependentRequired": [{**_AB, "dependentRequired": {"a": ["b"]}}],
        "dependentSchemas": [{**_AB, "dependentSchemas": {"a": {"required": ["b"]}}}],
        "dependencies": [{**_AB, "dependencies": {"a": ["b"]}}, {**_AB, "dependencies": {"a": {"required": ["b"]}}}],
        "minProperties": [
            {"additionalProperties": _INT, "minProperties": 2},
            {**_A, "required": ["a"], "additionalProperties": _INT, "minProperties": 2},
            {"minProperties": 1},
        ],
        "minProperties:optional": [{**_AB, "minProperties": 1}, {**_AB, "minProperties": 2}],
        "maxProperties": [
            {"additionalProperties": _INT, "maxProperties": 1},
            {**_A, "required": ["a"], "additionalProperties": _INT, "maxProperties": 1},
            {"maxProperties": 1},
        ],
        "maxProperties:optional": [{**_AB, "maxProperties": 1}],
    },
    "array": {
        "$ref": [{"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {}, "minItems": 1}}}],
        "allOf": [{"allOf": [{"type": "array", "items": {}, "minItems": 1}]}],
        "allOf:several": [{"allOf": [{"type": "array", "items": _INT}, {"type": "array", "items": {}, "maxItems": 2}]}],
        "anyOf": [{"anyOf": [{"type": "array", "items": _INT, "minItems": 3}, {"type": "array", "items": _STR}]}],
        "oneOf": [
            {
                "oneOf": [
                    {"type": "array", "items": _INT, "minItems": 3},
                    {"type": "array", "items": _STR, "minItems": 1},
                ]
            }
        ],
        "oneOf:disjoint": [{"oneOf": [{"type": "array", "items": _INT}, {"type": "null"}]}],
        "not": [{"not": {"type": "array", "minItems": 2}}],
        "if": [{"if": {"type": "array", "minItems": 2}, "then": {"type": "array", "items": _INT}}],
        "enum": [{"enum": [[], [1], [1, 1], ["a"], [1, "a"]]}],
        "const": [{"const": [1, 2]}, {"const": [1, "a"]}, {"const": [1]}, {"const": []}],
        "prefixItems": [{"prefixItems": [_INT, _STR]}],
        "items": [{"items": _INT}, {"items": {"type": "array", "items": _INT}}],
        "items:false": [{"items": False}, {"prefixItems": [_INT], "items": False}],
        "unevaluatedItems": [
            {"unevaluatedItems": False},
            {"unevaluatedItems": _INT},
            {"prefixItems": [_INT], "unevaluatedItems": False},
        ],
        "items:list": [{"items": [_INT, _STR]}, {"items": [_INT]}],
        "additionalItems": [{"items": [_INT], "additionalItems": False}, {"items": [_INT], "additionalItems": _STR}],
        "contains": [{"items": {}, "contains": _STR}, {"contains": _INT}],
        "minContains": [{"items": {}, "contains": _INT, "minContains": 2}],
        "maxContains": [{"items": {}, "contains": _INT, "maxContains": 1}],
        "minItems": [{"items": {}, "minItems": 2}, {"minItems": 2}],
        "maxItems": [{"items": {}, "maxItems": 2}, {"maxItems": 2}],
        "uniqueItems": [{"items": {}, "uniqueItems": True}],
    },
}

# Beside any type: what leaves everything open, and values that are of another type.
for _fragments in _FRAGMENTS.values():
    _fragments["$ref"].append({"$ref": "#/$defs/any", "$defs": {"any": {}}})
    for _keyword in ("allOf", "anyOf", "oneOf"):
        _fragments[_keyword].append({_keyword: [{}]})
    _fragments["allOf:several"].append({"allOf": [{}, {}]})
    _fragments["enum"] += ({"enum": [None, True]}, {"enum": [None]})
    _fragments["const"].append({"const": None})

_OLD = frozenset({"items:list", "additionalItems", "dependencies"})
"""Keywords that draft 2020-12 does not have."""
_NEW = frozenset(
    {"$ref", "prefixItems", "unevaluatedItems", "unevaluatedProperties", "minContains", "maxContains"}
    | {"dependentRequired", "dependentSchemas", "items:false"}
)
"""Keywords that earlier drafts do not have, or do not have beside others."""

_POOL: dict[str, list[Any]] = {
    "string": [
        *("", "a", "b", "c", "ab", "ba", "abc", "bbc", "aaaa", "abab"),
        *("a@b.cd", "abc@example.com", "é", "éé", "ééé", "cé"),
    ],
    "number": [-3, 0, 1, 1.5, 2, 2.5, 3, 4, 4.5, 5, 6, 12, 100],
    "object": [
        *({}, {"a": 1}, {"a": "x"}, {"b": 1}, {"b": "x"}, {"a": 1, "b": 2}, {"a": 1, "b": "x"}, {"a": "x", "b": 1}),
        *({"c": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 2, "c": "x"}, {"ab": 1}, {"ab": "x"}),
        *({"k": value} for value in "xyz"),
    ],
    "array": [
        *([], [1], ["a"], [1, 2], [1, 1], [1, "a"], ["a", 1], ["a", "a"]),
        *([1, "a", 2], [1, 2, 3], [1, 2, "a"], [[1]], [["a"]]),
    ],
    "other": [None, True, False],
}

# Right and wrong texts of formats, by the definitions that `guideway.json_schema.formats` names; the wrong ones are
# what a pattern written in haste takes.
_FORMATS: dict[str, tuple[list[Any], list[Any]]] = {
    "date": (
        ["2024-02-29", "1999-12-31", "2000-02-29", "2023-04-30"],
        [
            *("", "2024-2-9", "2024-13-01", "2024-01-32", "x2024-01-01", "2024-00-10", "2024-01-00", "24-01-01"),
            *("2024-02-30", "2024-02-31", "2024-04-31", "2024-06-31", "2024-09-31", "2024-11-31", "2023-02-29"),
            *("2022-02-29", "1900-02-29", "2100-02-29", "20240101", "2024-W01-1", "2024-001", "+2024-01-01"),
            *("2024-01-01T00:00:00Z", "-2024-01-01", "12024-01-01", "\u0662024-01-01"),
        ],
    ),
    "time": (
        ["12:30:00Z", "23:59:59.5+01:00", "00:00:00z", "12:30:00-23:59", "23:59:60Z", "00:59:60+01:00"],
        [
            *("", "12:30", "12:30:00", "25:00:00Z", "24:00:00Z", "12:60:00Z", "12:61:00Z", "12:30:61Z", "1:30:00Z"),
            *("12:30:60Z", "22:59:60Z", "23:58:60Z", "23:59:60+01:00", "23:59:60.5-00:30"),
            *("12:30:00+24:00", "12:30:00+01:60", "12:30:00+01", "12:30:00+0100", "12:30:00.Z", "12:30:00,5Z"),
            *("12:30:005Z", "12:30:00 Z", "12:30:00ZZ", "12:30Z", "12:30:00+1:00", "1\u0662:30:00Z"),
        ],
    ),
    "date-time": (
        [
            *("2024-02-29T12:30:00Z", "2024-02-29T12:30:00.25+01:00", "2024-02-29t12:30:00z"),
            *("1998-12-31T23:59:60Z", "1998-12-31T15:59:60.123-08:00"),
        ],
        [
            *("", "2024-02-29", "2024-02-29 12", "2024-02-29 12:30:00Z", "2024-02-29T12:30:00", "2024-02-29T12:30Z"),
            *("2024-02-30T12:30:00Z", "2023-02-29T12:30:00Z", "2024-06-31T12:30:00Z", "1900-02-29T12:30:00Z"),
            *("2024-02-29T24:00:00Z", "2024-02-29T12:60:00Z", "2024-02-29T12:30:61Z", "2024-02-29T12:30:60Z"),
            *("1998-12-31T22:59:60Z", "1998-12-31T23:58:60Z", "1998-12-31T23:59:60-08:00"),
            *("2024-02-29T12:30:00+24:00", "2024-02-29T12:30:00+01", "2024-02-29T12:30:00.Z", "2024-13-01T12:30:00Z"),
        ],
    ),
    "duration": (
        ["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P4W", "PT36H", "P0D"],
        [
            *("", "P", "1D", "P1S", "PT", "P1DT", "P1Y2", "PT1M5", "PT1H5", "P1D2H", "PT1D", "P1Y1W", "P1W1D", "P1Y1D"),
            *("PT1H1S", "P0.5D", "PT0.5S", "-P1D", "P-1D", "p1d", "P2D1Y", "P\u0661D"),
        ],
    ),
    "email": (
        ["a@b.cd", "x.y@example.com", "a+b_c@x-y.z1", "~@a", "a@1.2"],
        [
            *("", "a", "a@", "@b.cd", "a b@c.de", ".a@b.cd", "a.@b.cd", "a..b@c.de", "a@b..cd", "a@.b", "a@b."),
            *(
                "a@-b.cd",
                "a@b-.cd",
                "a@b.c-",
                "a@b_c.de",
                "a@b@c.de",
                "a@b.cd, x@y.zz",
                "a@b c",
                "<a@b.cd>",
                "a@[b.cd]",
            ),
            *("a@[1.2.3.300]", "a,b@c.de", "a(b)@c.de", "a@b.cd\n", "a@é.de", "é@a.de"),
        ],
    ),
    "hostname": (
        ["a", "example.com", "a-b.c1", "1a.b", "xn--bcher-kva.example"],
        [
            *("", "-a", "a-", "a-.b", "a.-b", "a..b", ".a", "a.", "a b", "a_b", "a/b", "é.de", "a.b\n", "ab--c.de"),
            *("a" * 64, f"{'a' * 64}.com", ".".join(["a" * 63] * 4), ".".join("a" * 128), "xn--X", "a:80"),
        ],
    ),
    "ipv4": (
        ["127.0.0.1", "8.8.8.8", "255.249.199.0", "0.0.0.0"],
        [
            *("", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1.1.1.256", "1.1.260.1", "1.300.1.1", "01.2.3.4", "1.2.3.04"),
            *(
                "1.2.3.00",
                "1.2.3.4/8",
                "1.2.3.",
                ".1.2.3",
                "1..2.3",
                "1.2.3.4 ",
                "0x1.2.3.4",
                "1.2.3.-1",
                "\u0661.2.3.4",
            ),
        ],
    ),
    "ipv6": (
        [
            *("::1", "2001:db8::1", "::", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "ABCD::ef"),
            *("::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1::5:1.2.3.4"),
        ],
        [
            *("", "1", ":", ":::", "::1::", "1::2::3", "12345::", "g::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", ":1::2"),
            *("1:2:3:4:5:6:7:8::", "::1:2:3:4:5:6:7:8", "1:2:3:4::5:6:7:8", "1::2:", "1:2:3:4:5:6:7:", "::1%eth0"),
            *("::1/64", "[::1]", "::1.2.3", "::1.2.3.256", "::01.2.3.4", "::ffff:192.168.0.01", "1.2.3.4", "1.2.3.4::"),
            *("1:2:3:4:5:6:7:1.2.3.4", "1:2:3:4:5:1.2.3.4", "1::1.2.3.4:5"),
        ],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000"],
        [
            *("", "123e4567", "123e4567-e89b-12d3-a456-42661417400g", "123e4567-e89b-12d3-a456-4266141740000"),
            *("123e4567e89b12d3a456426614174000", "{123e4567-e89b-12d3-a456-426614174000}"),
            *("123e456-7e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456426614174000-"),
            *("urn:uuid:123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-42661417400"),
        ],
    ),
    "uri": (
        ["http://a.b/c", "urn:x:y", "http://u:p@a.b:80/c?d=e#f", "mailto:a@b.cd", "a:", "file:///a", "http://a/%20"],
        [
            *(
                "",
                "a b",
                "//",
                "//a.b/c",
                "/a",
                "a",
                "a/b:c",
                "1a:b",
                ":a",
                "http://a b",
                "http://a.b/c d",
                "http://a:b/",
            ),
            *(
                "http://a/%",
                "http://a/%4",
                "http://a/%4g",
                "http://a/<b>",
                'http://a/"',
                "http://a/\\b",
                "http://a/{b}",
            ),
            *("http://a/^", "http://a/`", "http://a/|", "http://a/é", "http://é/", "http://a#b#c", "http://a@b@c/"),
            *("http://[a/", "http://a]/", "http://a/[b]", "http://a/\n", "http://[::1", "a~b:c"),
        ],
    ),
    "uri-reference": (
        ["a/b", "http://a.b/c", "", "#a", "?a", "//a.b/c", "/a", "./a:b", "a/b:c"],
        [
            *(
                "a b",
                "%",
                "%4g",
                "1:b",
                "a/{b}",
                "\\a\\b",
                "#a#b",
                "#\\",
                "//a:b/c",
                "//a@b@c/",
                "<a>",
                "é",
                "http://a/%",
            ),
            *("a/`", "a|b", "a^b", 'a"b', ":a"),
        ],
    ),
    "json-pointer": (
        ["", "/a/0", "/", "/~0~1", '/a"b', "/é", "/a\\b"],
        ["a", "/~2", "/~", "/a~", "#/a", "a/b", "/a/~x"],
    ),
    "relative-json-pointer": (["0", "1/a", "10#"], ["", "/a", "01/a", "-1", "1a", "0##", "+1", "1/~2"]),
    "uri-template": (["", "a/{b}", "{?a,b*}", "{+a:3}"], ["{", "}", "a{b", "{a b}", "{a}}"]),
    "iri": (["http://ä.b/c", "urn:x:y"], ["", "/abc", "a b", "\\a", "http://a/{b}", "http://a/%"]),
    "iri-reference": (["ä/b", "#ä"], ["a b", "#ä\\b", "\\a", "%"]),
    "idn-email": (["ä@ö.de", "a@b.cd"], ["", "a", "a@", "@a", "ä ö@a.de"]),
    "idn-hostname": (["ä.de", "a"], ["", "-ä", "a..b", "ä b", "ä-", ".", "a\u3002\u3002b"]),
    "regex": (["a+", "[ab]"], ["(", "a**", "[a", "a)"]),
}

_DRAFT_2019, _DRAFT_7 = "https://json-schema.org/draft/2019-09/schema", "http://json-schema.org/draft-07/schema#"
_CLOSED = {"additionalProperties": False}
_NAMED_INT, _NAMED_STR = {"$anchor": "t", **_INT}, {"$anchor": "t", **_STR}

# A reference that is relative to an inner `$id`; for who takes it for one of the whole schema, or the other way round,
# it refers to another type, or to nothing.
_NESTED_IDS: list[tuple[Schema, list[Any], list[Any]]] = [
    *(
        (
            {"type": "object", "properties": {"a": {"$id": "b", "$ref": reference, "$defs": {"t": inner}}}, **whole},
            [{}, {"a": 1}],
            [{"a": "x"}, {"a": None}],
        )
        for reference, inner, outer in (("#/$defs/t", _INT, _STR), ("#t", _NAMED_INT, _NAMED_STR))
        for whole in ({}, {"$defs": {"t": outer}}, {"$defs": {"t": outer}, "$id": "c"})
    ),
    (
        {"$defs": {"s": _NAMED_STR}, "type": "object", "properties": {"a": {"$ref": "#t"}}, **_CLOSED}
        | {"patternProperties": {"^x$": {"$id": "b", "$defs": {"t": _NAMED_INT}}}},
        [{}, {"a": "x"}],
        [{"a": 1}, {"b": 1}],
    ),
    (
        {"type": "object", "properties": {"a": {"$id": "b", "type": "array", "items": {"$ref": "#"}}}, **_CLOSED},
        [{}, {"a": [[]]}],
        [{"a": [{}]}, {"a": [{"a": []}]}, {"b": 1}],
    ),
    (
        {
            "$id": "https://example.com/root",
            "$ref": "list",
            "$defs": {
                "t": {"$dynamicAnchor": "t", "type": "string"},
                "list": {
                    "$id": "list",
                    "type": "array",
                    "items": {"$dynamicRef": "#t"},
                    "$defs": {"t": {"$dynamicAnchor": "t"}},
                },
            },
        },
        [[], ["a"]],
        [[1], ["a", 1], {}],
    ),
]

# What stands beside `$ref` in a draft that ignores it.
_SIBLINGS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"$ref": "#/definitions/s", "maxLength": 1, "definitions": {"s": _STR}}, ["a", "abc"], [1, None]),
    (
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/s", "type": "integer"}}}
        | {"definitions": {"s": _STR}},
        [{"a": "x"}],
        [{"a": 1}],
    ),
    (
        {"oneOf": [{"$ref": "#/definitions/n", "maximum": 5}, {"type": "number", "minimum": 3}]}
        | {"definitions": {"n": {"type": "number"}}},
        [1, 2],
        [4, 7, "a"],
    ),
    (
        {"type": "number", "not": {"$ref": "#/definitions/i", "minimum": 3}, "definitions": {"i": _INT}},
        [1.5],
        [1, 2, 4],
    ),
    (
        {"if": {"$ref": "#/definitions/i", "minimum": 9}, "then": {"maximum": 5}, "definitions": {"i": _INT}},
        [1, 5, "a"],
        [7],
    ),
    (
        {"type": "object", "properties": {"a": {"$id": "b", "$ref": "#/definitions/t", "definitions": {"t": _STR}}}}
        | {"definitions": {"t": _INT}},
        [{"a": 1}],
        [{"a": "x"}],
    ),
]

# Names whose instances must be labelled by hand: (name, schema, right, wrong).
_LABELLED: list[Case] = [
    *((f"format:{name}", _string(format=name), right, wrong) for name, (right, wrong) in _FORMATS.items()),
    ("format:*", {"type": "string", "format": "no-such-format"}, ["right"], ["wrong"]),
    ("type", _STR, ["", "é", 'a\n"\\'], [1, None, [], {}]),
    ("type", _INT, [0, -5, 12], [1.5, "1", True]),
    ("type", {"type": "number"}, [0, -5.25, 1e30], ["1", True]),
    ("type", {"type": "boolean"}, [True, False], [None, 0, "true"]),
    ("type", {"type": "null"}, [None], [False, 0, ""]),
    ("type", {"type": "array"}, [[], [1, "a", [None]]], [{}, "a"]),
    ("type", {"type": "object"}, [{}], [[], None]),
    ("type", {"type": ["string", "null"]}, ["a", None], [1, True]),
    ("false", {"type": "object", "properties": {"a": False, "b": _INT}}, [{}, {"b": 1}], [{"a": 1}]),
    (
        "$ref",
        {
            "$ref": "#/$defs/t",
            "$defs": {
                "t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}, "additionalProperties": False}
            },
        },
        [{}, {"t": {"t": {}}}],
        [{"x": 1}, {"t": 1}, {"t": {"t": {"x": 1}}}],
    ),
    (
        "unevaluatedProperties",
        {"type": "object", **_A, "unevaluatedProperties": False},
        [{}, {"a": 1}],
        [{"c": 1}, {"a": 1, "c": 1}],
    ),
    (
        "unevaluatedProperties",
        {"type": "object", "allOf": [_A], "unevaluatedProperties": False},
        [{}, {"a": 1}],
        [{"c": 1}, {"a": 1, "c": 1}],
    ),
    (
        "unevaluatedItems",
        {"type": "array", "prefixItems": [_INT], "unevaluatedItems": False},
        [[], [1]],
        [["a"], [1, 2]],
    ),
    *(
        (f"unevaluatedProperties+{how}", {**typed, **schema}, [{}, *right], [{"c": 1}, {"c": "x"}, *wrong])
        for how, typed in (("untyped", {}), ("types", {"type": ["object", "null"]}))
        for schema, right, wrong in (
            ({"unevaluatedProperties": False}, [], [{"a": 1}]),
            ({**_A, "unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "c": 1}]),
            ({**_A, "allOf": [True], "unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "c": 1}]),
            ({"allOf": [_A], "unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "c": 1}]),
            ({"unevaluatedProperties": {"type": "null"}}, [{"c": None}], [{"a": 1}]),
        )
    ),
    *(
        (f"unevaluatedItems+{how}", {**typed, **schema}, [[], *right], [["a"], ["a", 1], *wrong])
        for how, typed in (("untyped", {}), ("types", {"type": ["array", "null"]}))
        for schema, right, wrong in (
            ({"unevaluatedItems": False}, [], [[1]]),
            ({"prefixItems": [_INT], "unevaluatedItems": False}, [[1]], [[1, 2]]),
            ({"allOf": [True], "unevaluatedItems": False}, [], [[1]]),
            (
                {"anyOf": [{"prefixItems": [_INT]}, True], "unevaluatedItems": {"type": "null"}},
                [[1], [1, None]],
                [[1, 2]],
            ),
        )
    ),
    ("$ref:anchor", {"$ref": "#t", "$defs": {"t": {"$anchor": "t", "type": "integer"}}}, [1], ["a", None]),
    *(("$ref:nested-id", schema, right, wrong) for schema, right, wrong in _NESTED_IDS),
    *(("$ref:siblings", {"$schema": _DRAFT_7, **schema}, right, wrong) for schema, right, wrong in _SIBLINGS),
    (
        "$recursiveRef",
        {"$schema": _DRAFT_2019, "type": "object", "properties": {"a": {"$recursiveRef": "#"}}, **_CLOSED},
        [{}, {"a": {"a": {}}}],
        [{"b": 1}, {"a": 1}, {"a": {"b": 1}}],
    ),
    ("$ref:remote", {"$ref": "https://example.com/integer.json"}, [1], ["a", None]),
    # too many for a proof that one at most holds; some engines see that it is so
    ("oneOf", {"oneOf": [{"type": "string", "enum": [str(i)]} for i in range(65)]}, ["0", "64"], ["65", 1]),
    (
        "$dynamicRef",
        {"$dynamicRef": "#t", "$defs": {"t": {"$dynamicAnchor": "t", "type": "integer"}}},
        [1],
        ["a", None],
    ),
    # bounds of integers between two of them
    *(
        (bound, {"type": "integer", bound: value}, right, wrong)
        for bound, value, right, wrong in (
            ("minimum", 2.5, [3, 12], [2, 1, -3]),
            ("minimum", -2.5, [-2, 0], [-3, -12]),
            ("exclusiveMinimum", 2.5, [3, 12], [2, 1]),
            ("exclusiveMinimum", -2.5, [-2, 0], [-3, -12]),
            ("maximum", 4.5, [4, -3], [5, 12]),
            ("maximum", -2.5, [-3, -12], [-2, 0]),
            ("exclusiveMaximum", 4.5, [4, -3], [5, 12]),
            ("exclusiveMaximum", -2.5, [-3, -12], [-2, 0]),
        )
    ),
    # lists of integers, for those that take no list without the type of its items
    *(
        (name, {"type": "array", "items": _INT, **schema}, right, wrong)
        for name, schema, right, wrong in (
            ("uniqueItems", {"uniqueItems": True}, [[], [1, 2]], [[1, 1], [1, 2, 1]]),
            ("minItems", {"minItems": 2}, [[1, 2], [1, 2, 3]], [[], [1]]),
            ("maxItems", {"maxItems": 2}, [[], [1, 2]], [[1, 2, 3]]),
            ("maxItems", {"maxItems": 0}, [[]], [[1], [1, 2]]),
            ("maxItems", {"minItems": 0, "maxItems": 0}, [[]], [[1], [1, 2]]),
        )
    ),
    # true is not 1, though Python says that they are equal
    ("enum", {"enum": [1, 2]}, [1, 2], [True, 3]),
    ("enum", {"enum": [0, True]}, [0, True], [1, False]),
    ("const", {"const": 1}, [1], [True, 11]),
    ("const", {"const": False}, [False], [0, True]),
    ("multipleOf", {"type": "integer", "multipleOf": 3}, [-12, 0, 3, 333], [-2, -1, 1, 4, 100]),
    ("multipleOf:number", {"type": "number", "multipleOf": 0.5}, [0, 1.5, 2, -2.5], [0.25, 1.2]),
    ("exclusiveMinimum:draft4", {"type": "integer", "minimum": 2, "exclusiveMinimum": True}, [3, 12], [1, 2]),
    ("exclusiveMaximum:draft4", {"type": "integer", "maximum": 4, "exclusiveMaximum": True}, [-12, 3], [4, 5]),
    *(
        (f"{holder}+{excluded}:draft4", {excluded: True, **schema, bound: value}, [3], wrong)
        for excluded, bound, value, wrong in (
            ("exclusiveMaximum", "maximum", 4, [4, 5]),
            ("exclusiveMinimum", "minimum", 2, [2, 1]),
        )
        for holder, schema in (
            ("allOf", {"allOf": [{}]}),
            ("allOf:several", {"allOf": [{}, _INT]}),
            ("anyOf", {"anyOf": [{}]}),
            ("anyOf", {"anyOf": [_INT, _STR]}),
            ("oneOf", {"oneOf": [{}]}),
            ("oneOf:disjoint", {"oneOf": [_INT, _STR]}),
        )
    ),
    *(
        ("number:large", {"type": t, **schema}, right, wrong)
        for t in ("number", "integer")
        for schema, right, wrong in (
            ({"const": _LARGE}, [_LARGE], [_LARGE - 1, _LARGE + 1]),
            ({"enum": [_LARGE, 1]}, [_LARGE, 1], [_LARGE - 1, _LARGE + 1]),
            ({"minimum": _LARGE}, [_LARGE, _LARGE + 2], [_LARGE - 1, -_LARGE]),
            ({"maximum": -_LARGE}, [-_LARGE, -_LARGE - 2], [1 - _LARGE, _LARGE]),
            ({"exclusiveMinimum": _LARGE}, [_LARGE + 1], [_LARGE, 1]),
            ({"exclusiveMaximum": -_LARGE}, [-_LARGE - 1], [-_LARGE, 1]),
            ({"multipleOf": _LARGE}, [_LARGE, 2 * _LARGE], [_LARGE - 1, _LARGE + 1]),
        )
    ),
    ("items:list", {"type": "array", "items": [_INT, _STR]}, [[1, "a"]], [["a"], [1, 1]]),
    ("additionalItems", {"type": "array", "items": [_INT], "additionalItems": False}, [[1]], [[1, 2], ["a"]]),
    ("enum:mistyped", {"type": "string", "enum": ["a", 1, None]}, ["a"], [1, None, "b"]),
    ("enum:mistyped", {"type": ["integer", "null"], "enum": ["a", 1, 2.5, True]}, [1], ["a", 2.5, True, None]),
    ("enum:mistyped", {"type": "integer", "enum": [0, 1, True]}, [0, 1], [True, False]),
    ("enum:mistyped", {"type": "boolean", "enum": [True, 1, 0]}, [True], [1, 0, False]),
    (
        "const:mistyped",
        {"type": "object", "properties": {"a": {"type": "integer", "const": "x"}, "b": _INT}},
        [{}, {"b": 1}],
        [{"a": "x"}, {"a": 1}],
    ),
    ("prefixItems+minItems", {"type": "array", "prefixItems": [_INT], "minItems": 2}, [[1, 2]], [[1], []]),
    ("prefixItems+maxItems", {"type": "array", "prefixItems": [_INT, _INT], "maxItems": 1}, [[1]], [[1, 2], ["a"]]),
    ("pattern:lookaround", {"type": "string", "pattern": "^(?!a)[abc]$"}, ["b", "c"], ["a", "bb", ""]),
    ("pattern:backreference", {"type": "string", "pattern": r"^([ab])\1$"}, ["aa", "bb"], ["ab", "a"]),
    ("pattern:boundary", {"type": "string", "pattern": r"^a\b.*$"}, ["a", "a b"], ["ab", "b"]),
    *(
        ("pattern:anchor", _string(pattern=pattern), right, wrong)
        for pattern, right, wrong in (
            ("^(b|a$b|^c)$", ["b", "c"], ["ab", "bc"]),
            ("^(b|(a$)?)b$", ["bb", "b"], ["ab"]),
            ("^(b|x*^a)$", ["b", "a"], ["xa", "xxa"]),
            ("^(^a|b)*$", ["", "b", "ab"], ["aa", "ba"]),
        )
    ),
    *(
        ("pattern:repetition", _string(pattern=pattern), right, wrong)
        for pattern, right, wrong in (
            ("^(a*b)?$", ["", "b", "aab"], ["a", "aa", "ba"]),
            ("^c(ab*)?$", ["c", "cab"], ["cb", "cbb"]),
            ("^(a{2,})?$", ["", "aa", "aaa"], ["a"]),
            ("^(?:(?:ab*|c){1,2}|c)$", ["ab", "abc", "c"], ["aca", "b"]),
            ("^(ab*|c){1,}$", ["abc", "cab"], ["b", "acb"]),
            ("^(?:(?:a*b|c){0,2}|c)$", ["", "aabc"], ["bbb", "a"]),
        )
    ),
    *(
        ("number:narrow", {"type": "number", **schema}, right, wrong)
        for schema, right, wrong in (
            ({"exclusiveMinimum": 1, "maximum": 1.5}, [1.25, 1.5], [1, 2]),
            ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, [0.25], [0, 0.5]),
            ({"minimum": -1.5, "exclusiveMaximum": -1}, [-1.25, -1.5], [-1, -2]),
            ({"minimum": 1, "exclusiveMinimum": True, "maximum": 1.5}, [1.25, 1.5], [1, 2]),
        )
    ),
    *(
        ("number:fraction", {"type": "number", **schema}, right, wrong)
        for schema, right, wrong in (
            ({"const": 0.1}, [0.1], [0.2, 0.01, 0]),
            ({"enum": [3.14, 1e-7]}, [3.14, 1e-7], [3.15, 0.1, 3]),
        )
    ),
    *(
        ("pattern:unescaped", {"type": "string", "pattern": pattern}, ["a", "b"], wrong)
        for pattern, wrong in (
            ('^[^"]$', ['"', "aa"]),
            ('^[^c"]*$', ['"', 'a"', "c"]),
            (r"^[^\\]*$", ["\\", "a\\b"]),
            (r"^[^\n]*$", ["\nb", "a\nb"]),
            (r"^[^\x22\x5c]*$", ['"', "a\\b"]),
        )
    ),
    *(
        ("pattern:escaped", {"type": "string", "pattern": pattern}, right, ["a", "", "x"])
        for pattern, right in (
            ('^"$', ['"']),
            ('^["]$', ['"']),
            (r"^\\$", ["\\"]),
            (r"^\n$", ["\n"]),
            ("\n", ["\n", "a\n"]),
            (r"^[\n\r]$", ["\n"]),
            (r"^\x22$", ['"']),
            (r"^\u0022$", ['"']),
        )
    ),
    ("pattern:property", {"type": "string", "pattern": r"^\p{L}$"}, ["a", "é"], ["1", "", "ab"]),
]


def _sized() -> Iterator[Case]:
    """Numbers as large as users write them: engines have limits of their own, and some loops end at 128."""
    for n in (127, 129, 300, 2000):
        yield from (
            (keyword if n <= LARGE else f"{keyword}>{LARGE}", {"type": kind, **more, keyword: n}, right, wrong)
            for kind, more, keyword, right, wrong in (
                ("string", {}, "minLength", _strings(n), _strings(n - 1)),
                ("string", {}, "maxLength", _strings(n), _strings(n + 1)),
                ("array", {"items": _INT}, "minItems", [[1] * n], [[1] * (n - 1)]),
                ("array", {"items": _INT}, "maxItems", [[1] * n, [1]], [[1] * (n + 1)]),
                ("array", {"items": _INT, "contains": _INT}, "minContains", [[1] * n], [[1] * (n - 1)]),
                ("array", {"items": _INT, "contains": _INT}, "maxContains", [[1] * n], [[1] * (n + 1)]),
                ("object", {"additionalProperties": _INT}, "minProperties", [_names(n)], [_names(n - 1)]),
                ("object", {"additionalProperties": _INT}, "maxProperties", [_names(n)], [_names(n + 1)]),
                ("integer", {}, "multipleOf", [0, n, 3 * n], [1, n - 1, n + 1]),
            )
        )
        for times, other in ((f"{{1,{n}}}", n + 1), (f"{{{n}}}", n - 1), (f"{{{n},}}", n - 1)):
            yield from _repeated("pattern", f"[a-zé]{times}", ["a" * n, "é" * n], ["a" * other, "é" * other])
        for piece in (".", r"\S", r"\W", "[^<>]", r"[^\n\r]", "[ -~]", r"[\s\S]", "(?:x|.)"):
            text = "-" if piece == r"\W" else "a"
            name = "pattern" if n <= MANY else f"pattern:{REPEAT}"
            yield from _repeated(name, f"{piece}{{1,{n}}}", [text * n], [text * (n + 1)])

    for piece, wrong in (("[^é]", ["é"]), ("[ -é]", ["ü"]), ("[^é😀]", ["é", "😀"]), ("[!-~é]", ["ü", " "])):
        for times in ("", "*", "{1,20}"):
            yield from _repeated(f"pattern:{MIXED}", f"{piece}{times}", ["a"], wrong)


def _repeated(name: str, pattern: str, right: list[str], wrong: list[str]) -> Iterator[Case]:
    yield name, _string(pattern=f"^{pattern}$"), right, wrong
    names = {"type": "object", "patternProperties": {f"^{pattern}$": _INT}, **_CLOSED}
    name = name if ":" in name else "patternProperties"
    yield name, names, [{text: 1} for text in right], [{text: 1} for text in wrong]


def _strings(length: int) -> list[Any]:
    return ["a" * length, "é" * length, '"' * length]


def _names(count: int) -> dict[str, int]:
    return {f"{i:x}": 1 for i in range(count)}


# A value, and keywords that say no to it: what an engine that looks at ``enum`` or ``const`` alone takes all the same.
_CONTRADICTED: list[tuple[Any, list[dict[str, Any]]]] = [
    (
        "ab",
        [{"minLength": 3}, {"maxLength": 1}, {"pattern": "^z$"}, {"format": "date"}, {"not": _STR}],
    ),
    (
        5,
        [
            *({"minimum": 6}, {"maximum": 4}, {"exclusiveMinimum": 5}, {"exclusiveMaximum": 5}, {"multipleOf": 2}),
            *({"exclusiveMinimum": True, "minimum": 5}, {"exclusiveMaximum": True, "maximum": 5}),
        ],
    ),
    (
        [1, 1],
        [
            *({"minItems": 3}, {"maxItems": 1}, {"uniqueItems": True}, {"contains": _STR}, {"items": _STR}),
            *({"items": False}, {"prefixItems": [_STR]}, {"items": [_STR]}, {"unevaluatedItems": False}),
            *({"contains": _INT, "minContains": 3}, {"contains": _INT, "maxContains": 1}),
            {"items": [_INT], "additionalItems": False},
        ],
    ),
    (
        {"a": 1},
        [
            *({"minProperties": 2}, {"maxProperties": 0}, {"required": ["b"]}, {"properties": {"a": _STR}}),
            *({"additionalProperties": False}, {"additionalProperties": _STR}, {"patternProperties": {"^a": _STR}}),
            *({"propertyNames": _string(maxLength=0)}, {"dependentRequired": {"a": ["b"]}}),
            *({"dependentSchemas": {"a": {"required": ["b"]}}}, {"dependencies": {"a": ["b"]}}),
            *({"unevaluatedProperties": False}, {**_AB, "required": ["b"]}, {**_AB, "minProperties": 2}),
        ],
    ),
]


def _contradicted() -> Iterator[Case]:
    for value, several in _CONTRADICTED:
        for schema, said in product(several, ({"const": value}, {"enum": [value]})):
            (keyword,) = said
            # a bound of draft 4 says no only with the keyword that excludes it, on whichever side of the value that is
            flags = {name: each for name, each in schema.items() if each is True}
            apart = {**{name: each for name, each in schema.items() if each is not True}, **said, **flags}
            for whole in ({**schema, **said}, apart) if flags else ({**schema, **said},):
                for name in sorted(keywords(whole)):
                    is_about = not flags or "draft4" in name or "unique" in name
                    if is_about and "+" in name and keyword in name.split("+"):
                        yield name, whole, [], [value]


def cases() -> Iterator[Case]:
    """Every case of the probe."""
    yield from _LABELLED
    yield from _sized()
    for name, pattern, right_texts, wrong_texts in pattern_cases():
        yield f"pattern:{name}", _string(pattern=pattern), right_texts, wrong_texts
    yield from _contradicted()
    everything = [instance for pool in _POOL.values() for instance in pool]
    for kind, fragments in _FRAGMENTS.items():
        types = ["number", "integer"] if kind == "number" else [kind]
        for name, schemas in fragments.items():
            plain = name.partition(":")[0] if name.startswith("format") else name
            needs_type = {f"{plain}+untyped", f"{plain}:number+untyped"} & keywords(schemas[0])
            for schema in schemas:
                for typed in [{"type": t, **schema} for t in types] if needs_type else [schema]:
                    yield from _case(name, typed, everything)
            beside: list[Any] = [None, [kind, "null"]] if needs_type else [*types, [kind, "null"]]
            for types_beside in beside:
                for schema in schemas:
                    typed = schema if types_beside is None else {"type": types_beside, **schema}
                    how = "untyped" if types_beside is None else "types" if needs_type else "type"
                    yield from _case(f"{plain}+{how}", typed, everything)
        for first, second in combinations(fragments, 2):
            if {first, second} & _OLD and {first, second} & _NEW:
                continue  # no draft has both
            for one, other, t in product(fragments[first], fragments[second], types):
                yield from _case(combine(first, second), {"type": t, **one, **other}, everything)
        yield from _beside_another_type(kind, everything)


def _beside_another_type(kind: str, instances: list[Any]) -> Iterator[Case]:
    """Keywords of one type beside what allows another type alone: an engine may read the type off the keywords."""
    other = {"type": "array" if kind == "object" else "object"}
    holders = ({"$ref": "#/$defs/other", "$defs": {"other": other}}, {"allOf": [other]}, {"anyOf": [other]})
    for holder, (name, (schema, *_)) in product(holders, _FRAGMENTS[kind].items()):
        if name not in ("$ref", "allOf", "anyOf"):
            yield from _case(combine(next(iter(holder)), name), {**holder, **schema}, instances)


def _case(name: str, schema: Schema, instances: list[Any]) -> Iterator[Case]:
    """The case, unless the schema is about something else or nothing could tell whether it is obeyed. Of two keywords
    that leave nothing, an engine may lose one."""
    if name not in keywords(schema):
        return
    right, wrong = _split(schema, instances)
    if wrong and (right or "+" in name):
        yield name, schema, right, wrong


def _split(schema: Schema, instances: list[Any]) -> tuple[list[Any], list[Any]]:
    judged = [(instance, is_valid(schema, instance, schema)) for instance in instances]
    return [i for i, valid in judged if valid], [i for i, valid in judged if not valid]


def is_valid(schema: Schema, instance: Any, root: Schema) -> bool:
    """Return whether `instance` obeys `schema`, for the keywords of the cases without a label. Recursive: not for
    others' schemas."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not is_valid(resolve(root, schema["$ref"]), instance, root):
        return False
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_has_type(instance, name) for name in types):
            return False

    def ok(subschema: Schema, value: Any = instance) -> bool:
        return is_valid(subschema, value, root)

    s = schema
    if not all(map(ok, s.get("allOf", ()))) or ("anyOf" in s and not any(map(ok, s["anyOf"]))):
        return False
    if ("oneOf" in s and sum(map(ok, s["oneOf"])) != 1) or ("not" in s and ok(s["not"])):
        return False
    if "if" in s and not ok(s.get("then" if ok(s["if"]) else "else", True)):
        return False
    if "enum" in s and not any(_equal(instance, value) for value in s["enum"]):
        return False
    if "const" in s and not _equal(instance, s["const"]):
        return False
    if isinstance(instance, str):
        return (
            s.get("minLength", 0) <= len(instance) <= s.get("maxLength", 1e9)
            and re.search(s.get("pattern", ""), instance) is not None
            and ("format" not in s or re.search("^[a-z]+@[a-z]+[.][a-z]+$", instance) is not None)  # email
        )
    if isinstance(instance, dict):
        return _is_valid_object(s, instance, root)
    if isinstance(instance, list):
        listed = isinstance(s.get("items"), list)
        prefix = s["items"] if listed else s.get("prefixItems", [])
        rest = s.get("additionalItems", True) if listed else s.get("items", True)
        num_contained = sum(ok(s.get("contains", True), item) for item in instance)
        return (
            s.get("minItems", 0) <= len(instance) <= s.get("maxItems", 1e9)
            and all(ok(subschema, item) for subschema, item in zip(prefix, instance, strict=False))
            and all(ok(rest, item) for item in instance[len(prefix) :])
            and ("contains" not in s or s.get("minContains", 1) <= num_contained <= s.get("maxContains", 1e9))
            and not (s.get("uniqueItems") and any(_equal(a, b) for a, b in combinations(instance, 2)))
            and all(
                ok(s.get("unevaluatedItems", True), item)
                for i, item in enumerate(instance)
                if "unevaluatedItems" in s and i not in _evaluated(s, instance, root)
            )
        )
    if _has_type(instance, "number"):
        return (
            bool(s.get("minimum", instance) <= instance <= s.get("maximum", instance))
            and bool(s.get("exclusiveMinimum", instance - 1) < instance < s.get("exclusiveMaximum", instance + 1))
            and instance % s.get("multipleOf", instance or 1) == 0
        )
    return True


def _is_valid_object(s: Any, instance: dict[str, Any], root: Schema) -> bool:
    if not s.get("minProperties", 0) <= len(instance) <= s.get("maxProperties", 1e9):
        return False
    if any(name not in instance for name in s.get("required", ())):
        return False
    for name, value in instance.items():
        applying = [s["properties"][name]] if name in s.get("properties", {}) else []
        applying += [sub for pattern, sub in s.get("patternProperties", {}).items() if re.search(pattern, name)]
        for subschema in applying or [s.get("additionalProperties", True)]:
            if not is_valid(subschema, value, root):
                return False
        if not is_valid(s.get("propertyNames", True), name, root):
            return False
        unevaluated = s.get("unevaluatedProperties", True)
        if not is_valid(unevaluated, value, root) and name not in _evaluated(s, instance, root):
            return False
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            dependent = s.get(keyword, {}).get(name, True)
            dependent = {"required": dependent} if isinstance(dependent, list) else dependent
            if not is_valid(dependent, instance, root):
                return False
    return True


def _evaluated(s: Any, instance: Any, root: Schema) -> set[Any]:
    """The names or places that `s` says something of, but for what it says of the others (``unevaluated``)."""
    if isinstance(s, bool):
        return set()
    found: set[Any] = set()
    if isinstance(instance, dict):
        patterns = s.get("patternProperties", {})
        found |= {name for name in instance if name in s.get("properties", {})}
        found |= {name for name in instance if any(re.search(pattern, name) for pattern in patterns)}
        if "additionalProperties" in s:
            found |= instance.keys()
    else:
        found |= set(range(len(instance) if "items" in s else len(s.get("prefixItems", ()))))
        found |= {i for i, item in enumerate(instance) if "contains" in s and is_valid(s["contains"], item, root)}
    applied = [*s.get("allOf", ()), *s.get("anyOf", ()), *s.get("oneOf", ())]
    applied += [resolve(root, s["$ref"])] if "$ref" in s else []
    if "if" in s:
        holds = is_valid(s["if"], instance, root)
        applied += [s["if"], s.get("then", True)] if holds else [s.get("else", True)]
    applied += [sub for name, sub in s.get("dependentSchemas", {}).items() if name in instance]
    for subschema in applied:
        if is_valid(subschema, instance, root):
            found |= _evaluated(subschema, instance, root)
            if isinstance(subschema, dict) and subschema.keys() & {"unevaluatedProperties", "unevaluatedItems"}:
                found |= set(instance if isinstance(instance, dict) else range(len(instance)))
    return found


def _has_type(instance: Any, name: str) -> bool:
    match name:
        case "integer":
            return isinstance(instance, int) and not isinstance(instance, bool)
        case "number":
            return isinstance(instance, int | float) and not isinstance(instance, bool)
    return isinstance(
        instance, {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}[name]
    )


def _equal(a: Any, b: Any) -> bool:
    return a == b and type(a) is type(b)
