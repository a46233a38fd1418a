"""Peculiarities of lm-format-enforcer: the support table, repairs of its JSON parser, characters in parts, sizes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from guideway.api import (
    Choice,
    Constraint,
    GrammarStrategy,
    InvalidGrammar,
    JsonObject,
    JsonSchema,
    Matcher,
    Regex,
    UnsupportedGrammar,
    Vocabulary,
    Whitespace,
)
from guideway.api.bitmask import allocate, unpack
from guideway.json_schema.prober import STOP, byte_vocabulary
from guideway_lmfe import guideway_grammar_strategy
from guideway_lmfe.places import decoded, span
from guideway_lmfe.schema import Rewriting

from tests.support.stages import one_in

Accepts = Callable[[Constraint, str], bool]
WORDS = ["é", "aé", "true", '",', '":', '"a', 'a"', "\\n", 'a\\"', "[[", "]]", "1.", "12", "abcdefgh", 'abc",', '", "']


def make(vocabulary: Vocabulary, **options: Any) -> GrammarStrategy:
    return guideway_grammar_strategy()(vocabulary, options)


def legal(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    bitmask = allocate(1, vocabulary.logits_width)
    matcher.fill_bitmask(bitmask, 0)
    return set(unpack(bitmask, vocabulary.logits_width)[0].nonzero()[0].tolist())


@pytest.fixture(scope="module")
def strategy() -> GrammarStrategy:
    return make(byte_vocabulary())


@pytest.fixture(scope="module")
def accepts(strategy: GrammarStrategy) -> Accepts:
    def accepts(wanted: Constraint, text: str) -> bool:
        tokens = [*text.encode(), STOP]
        return strategy.compile(wanted).matcher(frozenset({STOP})).accept(tokens) == len(tokens)

    return accepts


@pytest.mark.parametrize(
    ("schema", "unenforced"),
    [
        ({"type": "object", "properties": {"x": {"type": "integer", "minimum": 1}}}, {"minimum"}),
        ({"type": "string", "format": "date"}, {"format:date"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, set()),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, set()),
    ],
)
def test_supports_names_what_it_would_lose(strategy: GrammarStrategy, schema: Any, unenforced: set[str]) -> None:
    found = strategy.supports(JsonSchema(schema))
    assert found.unenforced == unenforced and not found.refused


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}, '{"a":null,}'),
        ({"anyOf": [{"anyOf": [{}, {"type": "string"}]}, {"type": "string"}]}, '"\\"b""'),
        ({"type": "number"}, "1.e5"),
        ({"type": "integer"}, "-0.5"),
        ({"type": "integer"}, "1e-5"),
        ({"type": "string"}, '"a\nb"'),
        ({"type": "string"}, '"a\x01b"'),
        ({"type": "string", "maxLength": 0}, '"a"'),
        ({"type": "boolean"}, "true "),
        ({"type": "string", "pattern": "a\nb"}, '"a\nb"'),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 3}, "[true,true]"),
        ({"type": "array", "items": {"type": "array"}, "minItems": 2}, "[[]]"),
        ({"enum": [1, None]}, "True"),
    ],
)
def test_what_lm_format_enforcer_would_let_pass(accepts: Accepts, schema: Any, text: str) -> None:
    assert not accepts(JsonSchema(schema), text)


@pytest.mark.parametrize(
    ("schema", "instances"),
    [
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}, [[True] * 2, [False] * 3]),
        ({"type": "array", "items": {"type": "array", "items": {"type": "null"}}, "maxItems": 2}, [[], [[], [None]]]),
        ({"type": "array", "items": {"type": "integer"}}, [list(range(50))]),
        ({"enum": ["é", 1.5, None, -3]}, ["é", 1.5, None, -3]),
        ({"const": "x"}, ["x"]),
        ({}, [{"a": [1, None, {"b": "\U0001f600\n"}]}, 0.5, "x"]),
        ({"type": ["string", "null"]}, ["a", None]),
        ({"type": "object", "properties": {"self": {"type": "null"}}, "self": 1}, [{"self": None}, {}]),
        ({"type": "object", "additionalProperties": False}, [{}]),
        ({"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "^[à-ÿ]+$"}]}, [3, "éà"]),
        ({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}, [[], [[], [[]]]]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["aé", '"\n\\']),
        ({"type": ["integer", "null", "integer"]}, [3, None]),
        # properties with the names of keywords, also where the keywords would be refused
        (
            {
                "type": "object",
                "properties": {
                    "$ref": {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/anyOf"}]},
                    "anyOf": {"type": "array", "items": {"type": "string", "pattern": "^a$"}},
                    "pattern": {"type": "integer"},
                    "type": {"type": "string"},
                },
                "additionalProperties": False,
                "definitions": {"anyOf": {"type": "integer"}, "$ref": {"type": "null"}},
            },
            [{"$ref": 1, "anyOf": ["a"]}, {"$ref": None, "pattern": 2, "type": "x"}],
        ),
    ],
)
def test_valid_instances_pass(accepts: Accepts, schema: Any, instances: list[Any]) -> None:
    for instance in instances:
        assert accepts(JsonSchema(schema), json.dumps(instance, ensure_ascii=False)), instance
        assert accepts(JsonSchema(schema), json.dumps(instance, ensure_ascii=False, indent=8)), instance


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
        {"anyOf": [{"type": "array", "minItems": 2}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "array"}}},
        {"enum": ['a"']},
        {"enum": [True]},
        {"const": [1]},
        {"type": "object", "properties": {"a\n": {}}},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"type": "array", "items": [{}]},
        {"type": "array", "maxItems": 0},
        {"properties": {"a": {}}},
        {"type": "string", "pattern": "a", "minLength": 3},
        {"type": "string", "pattern": "a$|b"},
        {"$ref": "#/properties/a", "properties": {"a": {"type": "null"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}},
        {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}},
            "$defs": {"a": {"type": "integer"}},
        },
        {"$ref": "#/$defs/a/b", "$defs": {"a": {"b": {}}, "a/b": {}}},
    ],
)
def test_what_it_would_trip_over_is_unsupported_and_its_place_named(strategy: GrammarStrategy, schema: Any) -> None:
    with pytest.raises(UnsupportedGrammar, match=r"^#(/[^: ]+)?: ") as refused:
        strategy.compile(JsonSchema(schema))
    if "$ref" in json.dumps(schema):
        return  # a reference has another target where the schema is a part of another one
    within = {"type": "object", "properties": {"": {"type": "null"}, "a~": {"type": ["null", "object"]}, "b": {}}}
    within["properties"]["a~"] |= {"additionalProperties": {"anyOf": [{"type": "null"}, schema]}}
    with pytest.raises(UnsupportedGrammar) as nested:
        strategy.compile(JsonSchema(within))
    place = "#/properties/a~0/additionalProperties/anyOf/1"
    assert str(nested.value) == str(refused.value).replace("#", place, 1)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("by_reference", [False, True])
def test_objects_in_choices_inside_choices_are_read_apart(accepts: Accepts, depth: int, by_reference: bool) -> None:
    schema: Any = {"type": "object"}
    definitions = {}
    for level in range(depth):
        inner = schema
        if by_reference:
            definitions[f"d{level}"] = schema
            inner = {"$ref": f"#/$defs/d{level}"}
        schema = {"anyOf": [{"type": "null"}, inner, {"type": "object", "additionalProperties": inner}]}
    constraint = JsonSchema({**schema, "$defs": definitions} if by_reference else schema)
    for valid in ('{"a": 1, "": [""]}', '{"a": {"b": {"": null}}}', "{}", "null"):
        assert accepts(constraint, valid), valid
    for invalid in ('{"""":1}', '{"a"":1}', '{"a":1""}', '{"a":{"""":1}}', '{"":1,"""":2}', '{""'):
        assert not accepts(constraint, invalid), invalid


def test_what_one_schema_defines_is_not_there_for_the_next(strategy: GrammarStrategy) -> None:
    strategy.compile(JsonSchema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}}))
    strategy.compile(JsonSchema({}))
    strategy.compile(JsonSchema({"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"type": "null"}}}))


def test_types_named_again_and_again_are_no_more_to_compile() -> None:
    schema: Any = {"type": "null"}
    for _ in range(6):
        schema = {"type": ["object"] * 3, "properties": {"a": schema}}
    assert json.dumps(Rewriting(schema).schema).count("object") == 6


@pytest.mark.parametrize(
    ("pattern", "feature"),
    [
        pytest.param("(a|b)*a(a|b){20}", "size", marks=pytest.mark.slow),
        ("[a-z]{1000000}", "size"),
        pytest.param("(((a{90}){90}){90}){90}", "size", marks=pytest.mark.slow),
        pytest.param("(((((a*)*b)*c)*d)*e){900}", "size", marks=pytest.mark.slow),
        ("(" * 5000 + ")" * 5000, "size"),
        ("(?=a)b", "lookaround"),
        (r"(a)\1", "backreference"),
        (r"\ba", "boundary"),
    ],
)
def test_what_would_not_end_or_is_lacking_is_unsupported(strategy: GrammarStrategy, pattern: str, feature: str) -> None:
    with pytest.raises(UnsupportedGrammar) as refused:
        strategy.compile(Regex(pattern))
    assert refused.value.feature == f"regex:{feature}"


@pytest.mark.parametrize("pattern", ["(", "a)", "[b-a]", "a**", "*", r"a[^\s\S]", "a{2,1}"])
def test_malformed_and_empty_patterns_are_invalid(strategy: GrammarStrategy, pattern: str) -> None:
    with pytest.raises(InvalidGrammar):
        strategy.compile(Regex(pattern))


def test_a_malformed_pattern_is_shown_with_the_place(strategy: GrammarStrategy) -> None:
    with pytest.raises(InvalidGrammar, match=r"unterminated character set\n    ab\[c\n      \^$"):
        strategy.compile(Regex("ab[c"))


def test_no_place_of_a_pattern_is_a_dead_end(strategy: GrammarStrategy) -> None:
    matcher = strategy.compile(Regex(r"^(ax[^\s\S]|ay)$")).matcher(frozenset({STOP}))
    assert matcher.accept(b"a") == 1
    assert legal(matcher, strategy.vocabulary) == {ord("y")}


def test_characters_may_come_in_parts(strategy: GrammarStrategy) -> None:
    def after(constraint: Constraint, text: bytes) -> set[int]:
        matcher = strategy.compile(constraint).matcher(frozenset({STOP}))
        assert matcher.accept(text) == len(text) and not matcher.is_accepting()
        return legal(matcher, strategy.vocabulary)

    assert after(Choice(["é", "è", "中"]), b"\xc3") == {0xA9, 0xA8}
    assert after(Regex("[^é]"), b"\xc3") == set(range(0x80, 0xC0)) - {0xA9}
    assert after(JsonObject(), b'{"\xed') == set(range(0x80, 0xA0))  # no surrogates
    assert after(JsonObject(), b'{"\xf4\x8f\xbf') == set(range(0x80, 0xC0))
    # the schema names é, so it is a character of its own; the others that begin alike share one
    schema = JsonSchema({"type": "object", "properties": {"é": {"type": "null"}}})
    assert after(schema, b'{"\xc3') == {0xA9}


def test_utf8_is_told_from_other_bytes() -> None:
    whole = {chr(code).encode() for code in range(0x80, 0x110000, 7) if not 0xD800 <= code < 0xE000}
    begun = {text[:length] for text in whole for length in range(1, len(text))}
    for text in itertools.chain(begun, whole):
        assert decoded(text) == ("" if text in begun else text.decode())
    for bad in (b"\x80", b"\xc0", b"\xc1", b"\xe0\x80", b"\xed\xa0", b"\xf0\x8f", b"\xf4\x90", b"\xf5", b"\xc3\xc3"):
        assert decoded(bad) is None
    assert span(b"\xed") == range(0xD000, 0xD800) and span(b"\xe0") == range(0x800, 0x1000)


@pytest.mark.parametrize(
    "schema",
    one_in(
        2,
        [
            {"type": "string"},
            {"type": "string", "minLength": 3, "maxLength": 9},
            {"type": "object"},
            {"anyOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]},
        ],
    ),
    ids=str,
)
def test_masks_in_strings_are_what_is_accepted(schema: Any) -> None:
    """In strings the mask is computed without trying every token."""
    texts = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS] + [b"a\xc3", b"\xa9x", b"x\xff"]
    vocabulary = Vocabulary([b"", *texts], frozenset({0}), {0: "</s>"})
    compiled = make(vocabulary).compile(JsonSchema(schema))
    for seed in range(6):
        rng, matcher = random.Random(seed), compiled.matcher(frozenset({0}))
        for _ in range(12):
            found = legal(matcher, vocabulary)
            assert found == {t for t in range(len(vocabulary)) if matcher.validate([t])}
            matcher.accept([rng.choice(sorted(found))])
            if matcher.is_terminated():
                break


@pytest.mark.parametrize(
    ("whitespace", "accepted"),
    [("any", {"compact", "spaced", "few", "many"}), ("bounded", {"compact", "spaced", "few"})]
    + [(word, {word}) for word in ("compact", "spaced")],
)
def test_whitespace(whitespace: Whitespace, accepted: set[str]) -> None:
    texts = {
        "compact": ['{"a":["b  c, d: e",1,{}]}'],
        "spaced": ['{"a": ["b  c,d:e", 1, {}]}'],
        "few": [f'{{ "a":["b{" " * 99}",1\r\n{" " * 40}]}}', '{"a":\n[\n\t\t]\n}'],
        "many": ['{  "a":[]}', '{"a":[]\t}', f'{{"a":[1\n{" " * 41},2]}}'],
        "outside": [' {"a":[]}', '{"a":[]} '],
    }
    compiled = make(byte_vocabulary()).compile(JsonObject(whitespace=whitespace))
    for kind, each in texts.items():
        for text in each:
            matcher = compiled.matcher(frozenset({STOP}))
            assert (matcher.accept([*text.encode(), STOP]) == len(text) + 1) == (kind in accepted), text


def test_patterns_of_one_schema_do_not_leak_into_another(accepts: Accepts) -> None:
    first = {"type": "object", "properties": {"é": {"type": "string", "pattern": "^[^a]$"}}}
    assert accepts(JsonSchema(first), '{"é":"é"}')
    assert accepts(JsonSchema({"type": "string", "pattern": "^[^a]$"}), '"中"')


@pytest.mark.parametrize(
    ("schema", "text", "valid"),
    [
        ({"type": "string", "maxLength": 2}, '"  "', True),
        ({"type": "string", "maxLength": 2}, '"   "', False),
        ({"type": "string", "minLength": 2}, '"  "', True),
        ({"type": ["string", "integer"], "maxLength": 2}, '"   "', False),
        ({"enum": [" a"]}, '" a"', True),
        ({"enum": [" a"]}, '"  a"', False),
        ({"type": "string", "pattern": "^ a$"}, '"  a"', False),
        ({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}, '{" id":1}', False),
        ({"type": "object"}, '{" id":"x"}', True),
    ],
)
def test_blanks_that_a_string_or_a_name_begins_with_count(
    accepts: Accepts, schema: dict[str, Any], text: str, valid: bool
) -> None:
    assert accepts(JsonSchema(schema, whitespace="compact"), text) is valid
