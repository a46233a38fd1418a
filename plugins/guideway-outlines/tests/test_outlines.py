"""Peculiarities of outlines: support table, corrections of outlines-core, sizes, types and terms."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from guideway.api import (
    Choice,
    Constraint,
    Grammar,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    Regex,
    UnsupportedGrammar,
    Vocabulary,
    Whitespace,
)
from guideway.api.bitmask import allocate, unpack
from guideway.json_schema.prober import STOP, byte_vocabulary
from guideway_outlines import constraint, guideway_grammar_strategy
from guideway_outlines.schema import _in_string
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.support.stages import one_in


def make(vocabulary: Vocabulary, **options: Any) -> GrammarStrategy:
    return guideway_grammar_strategy()(vocabulary, options)


@pytest.fixture(scope="module")
def strategy() -> GrammarStrategy:
    return make(byte_vocabulary())


@pytest.fixture(scope="module")
def accepts(strategy: GrammarStrategy) -> Callable[[Constraint, str], bool]:
    def accepts(wanted: Constraint, text: str) -> bool:
        tokens = [*text.encode(), STOP]
        return strategy.compile(wanted).matcher(frozenset({STOP})).accept(tokens) == len(tokens)

    return accepts


Accepts = Callable[[Constraint, str], bool]


@pytest.mark.parametrize(
    ("schema", "unenforced"),
    [
        ({"type": "object", "properties": {"x": {"type": "integer", "minimum": 1}}}, {"minimum"}),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, {"pattern+maxLength"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, set()),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, set()),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"oneOf"}),
    ],
)
def test_supports_names_what_it_would_lose(strategy: GrammarStrategy, schema: Any, unenforced: set[str]) -> None:
    found = strategy.supports(JsonSchema(schema))
    assert found.unenforced == unenforced and not found.refused


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"title": "anything"},
        {"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "string", "format": "iri"},
        {"const": [1], "items": {"$ref": "#/$defs/b"}, "$defs": {"b": {"type": "boolean"}}},
        {"type": "string", "pattern": r"(a)\1"},
        {"type": "string", "pattern": "^a|b$"},
    ],
)
def test_what_outlines_core_lacks_is_unsupported(strategy: GrammarStrategy, schema: Any) -> None:
    with pytest.raises(UnsupportedGrammar):
        strategy.compile(JsonSchema(schema))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "/allOf"),
        ({"type": "string", "pattern": "a(?=b)"}, "/pattern"),
        ({"type": "string", "pattern": "("}, "/pattern"),
        ({"enum": [1], "items": {"$ref": "#/properties/"}}, ""),
        ({"enum": ["a"], "type": "integer"}, ""),
        ({"type": "array", "minItems": 3, "maxItems": 2}, ""),
        ({"type": "object", "properties": {"b": {"$ref": "#/properties/a~0/anyOf/1"}}}, ""),
        ({"type": "array", "items": {"enum": ["x" * 100_000]}}, "/items"),
    ],
)
def test_the_place_of_a_refusal_is_named(strategy: GrammarStrategy, schema: Any, place: str) -> None:
    within = {"type": "object", "properties": {"": {"type": "null"}, "a~": {"anyOf": [{"type": "null"}, schema]}}}
    with pytest.raises((UnsupportedGrammar, InvalidGrammar)) as refused:
        strategy.compile(JsonSchema(within))
    assert str(refused.value).startswith(f"#/properties/a~0/anyOf/1{place}: ")


def test_lengths_of_prefix_items_are_named(strategy: GrammarStrategy) -> None:
    for schema in ({"prefixItems": [{"type": "null"}], "minItems": 2}, {"prefixItems": [{}, {}], "maxItems": 1}):
        (keyword,) = schema.keys() - {"prefixItems"}
        assert strategy.supports(JsonSchema({"type": "array", **schema})).unenforced == {f"prefixItems+{keyword}"}


def test_a_length_no_array_has_is_told_by_its_keywords(strategy: GrammarStrategy) -> None:
    with pytest.raises(InvalidGrammar, match="no array has at least `minItems`"):
        strategy.compile(JsonSchema({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 2}))


def test_any_alternative_of_a_regex_may_match(accepts: Accepts) -> None:
    for text in ("a", "ab", "abc"):
        assert accepts(Regex("a|ab|abc"), text)
    assert accepts(Regex("(a?)*"), "") and accepts(Regex("(a|ab)*?"), "aba")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"^\d\w\s$", ["1a\n", "0_ ", "٣é\u2003"], ["a1 ", "1- ", "11"]),
        (r"[a&&b][[:a]", ["&[", "b:", "aa"], ["ab", "&&"]),
        (r".", ["a", "é", "\x00", "\r"], ["\n", "", "ab"]),
        (r"[^a-c\]]", ["d", "[", "\n"], ["a", "]", "dd"]),
        (r"[]a]+[a-]", ["]]-", "aa"], ["b-"]),
        (r"\x41\u00e9\x{1F600}\u{7a}\.\\", ["Aé\U0001f600z.\\"], ["Aé\U0001f600zx\\"]),
        (r"a{2}b{1,}c{0,2}{", ["aab{", "aabbcc{"], ["ab{", "aabccc{"]),
        (r"(?:x|(?P<n>y)|(?<m>z))+?", ["x", "xyz"], [""]),
        (r"a\$", ["a$"], ["a"]),
        (r"[\b]|a\t", ["\b", "a\t"], ["a"]),
    ],
)
def test_the_dialect(accepts: Accepts, pattern: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not accepts(Regex(pattern), text)] == []
    assert [text for text in no if accepts(Regex(pattern), text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a)",
        "[a",
        "[b-a]",
        r"[\d-z]",
        "*",
        "a**",
        "a{2}{3}",
        "a{2,1}",
        "{2}",
        "a\\",
        r"\y",
        r"\x{110000}",
        r"\ud800",
    ],
)
def test_malformed_patterns_are_invalid(strategy: GrammarStrategy, pattern: str) -> None:
    with pytest.raises(InvalidGrammar):
        strategy.compile(Regex(pattern))


def test_a_malformed_pattern_is_shown_with_the_place(strategy: GrammarStrategy) -> None:
    with pytest.raises(InvalidGrammar, match=r"at character 2 of the pattern\n    ab\[c\n      \^$"):
        strategy.compile(Regex("ab[c"))


@pytest.mark.parametrize(
    ("pattern", "feature"),
    [
        ("(?=a)b", "lookaround"),
        (r"(a)\1", "backreference"),
        (r"\bb", "boundary"),
        (r"\p{L}", "property"),
        ("(?i)a", "flags"),
        ("a*+", "possessive"),
        ("a^b", "anchor"),
        ("^a|b", "anchor"),
        (r"a\z", "anchor"),
        (r"\U0001f600", "escape"),
        (r"\07", "escape"),
        ("(" * 500 + ")" * 500, "depth"),
    ],
)
def test_what_the_dialect_lacks_is_unsupported(strategy: GrammarStrategy, pattern: str, feature: str) -> None:
    with pytest.raises(UnsupportedGrammar) as refused:
        strategy.compile(Regex(pattern))
    assert refused.value.feature == f"regex:{feature}"


@pytest.mark.parametrize(
    "pattern",
    one_in(
        3,
        [
            "[a-z]{1000000000}",
            "(a|b)*a(a|b){20}",
            "(((((a{9}){9}){9}){9}){9}){9}",
            "(a?){3000}",
            "((a*)*b?){4000}",
            "(a|aa){5000}",
            "(" * 91 + "a*" + ")*" * 90 + "){99999}",
            "".join(f"[{chr(i)}-{chr(i + 3000)}]" for i in range(256, 3000)),
        ],
    ),
)
def test_what_would_not_end_is_refused_at_once(strategy: GrammarStrategy, pattern: str) -> None:
    with pytest.raises(UnsupportedGrammar) as refused:
        strategy.compile(Regex(pattern))
    assert refused.value.feature == "regex:size"


def test_a_schema_whose_pattern_would_be_huge_is_refused_at_once(strategy: GrammarStrategy) -> None:
    lists: Any = {"type": "null"}
    for _ in range(30):
        lists = {"type": "array", "items": lists}
    doubled = {f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    doubled["d30"] = {"type": "null"}
    for schema in (lists, {"$ref": "#/$defs/d0", "$defs": doubled}, {"type": "array", "items": {}, "minItems": 10**9}):
        with pytest.raises(UnsupportedGrammar):
            strategy.compile(JsonSchema(schema))


def test_the_size_limit_counts_legal_tokens() -> None:
    vocabulary = Vocabulary([b"", *(b"a%d" % i for i in range(1000))], frozenset({0}), {0: "</s>"})
    for options, refused in (({}, False), ({"max_entries": 3000}, True)):
        strategy = make(vocabulary, **options)
        if refused:
            with pytest.raises(UnsupportedGrammar, match="3000 entries"):
                strategy.compile(Regex("(a[0-9]*){4}"))
        else:
            strategy.compile(Regex("(a[0-9]*){4}"))
    with pytest.raises(InvalidConfiguration, match="max_entries"):
        make(vocabulary, max_entries=0)


def test_what_takes_longer_than_a_compilation_may_is_refused_at_once() -> None:
    """With 131,072 tokens, a state in which most of them are legal takes 70 ms."""
    tokens = [b"", *(bytes([byte]) for byte in range(256)), *(b"%06d" % i for i in range(131_072 - 257))]
    strategy = make(Vocabulary(tokens, frozenset({0}), {0: "</s>"}))
    for most in (300, 129):
        with pytest.raises(UnsupportedGrammar, match=r"16777216 entries, the limit grammar\.outlines\.max_entries"):
            strategy.compile(Regex(rf"[^\n\r]{{1,{most}}}!"))


def test_strings_stay_json(accepts: Accepts) -> None:
    schema = JsonSchema({"type": "string", "pattern": '^.["\\\\]\n.*$'})
    assert accepts(schema, json.dumps('x"\ny')) and accepts(schema, json.dumps("\t\\\n"))
    assert not accepts(schema, '"x"\ny"')
    email = JsonSchema({"type": "string", "format": "email"})
    assert accepts(email, '"a@b.de"') and not accepts(email, '""q"@b.de"')
    names = JsonSchema({"type": "object", "properties": {'a"\n': {"type": "null"}}, "required": ['a"\n']})
    assert accepts(names, '{"a\\"\\n":null}') and not accepts(names, '{"a"\n":null}')


_NAMES = st.text(
    st.one_of(st.sampled_from('a.*+?^$|()[]{}\\"/-#&~ \n'), st.characters(exclude_categories=["Cs"])), max_size=3
)
_LISTED = st.recursive(
    _NAMES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=2), max_leaves=4
)


@given(value=_LISTED, other=_LISTED)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_listed_values_are_taken_literally(accepts: Accepts, value: Any, other: Any) -> None:
    for schema in ({"const": value}, {"enum": [value, 7]}):
        for each in (value, other, json.loads(json.dumps(value).replace(".", "a"))):
            text = json.dumps(each, ensure_ascii=False, separators=(",", ":"))
            is_same = text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            assert accepts(JsonSchema(schema), text) is is_same


def test_values_are_held_against_patterns_as_the_specification_has_them(accepts: Accepts) -> None:
    schema = JsonSchema({"enum": ["a", "a\n", "3", "\N{ARABIC-INDIC DIGIT THREE}"], "pattern": r"^(a|\d)$"})
    assert accepts(schema, '"a"') and accepts(schema, '"3"')
    assert not accepts(schema, r'"a\n"') and not accepts(schema, '"\N{ARABIC-INDIC DIGIT THREE}"')


@pytest.mark.slow
def test_a_schema_of_anything_has_a_group_around_it(accepts: Accepts) -> None:
    pair = JsonSchema({"type": "array", "prefixItems": [{}], "items": False})
    assert accepts(pair, "[null]") and accepts(pair, '["a"]')
    assert not any(accepts(pair, text) for text in ("null", "[true", "[1,2]"))
    required = JsonSchema({"type": "object", "properties": {"a": {}}, "required": ["a"]})
    assert accepts(required, '{"a":null}') and accepts(required, '{"a":[1]}')
    assert not any(accepts(required, text) for text in ("null", '{"a":true', "1"))


def test_a_pattern_is_searched_for(accepts: Accepts) -> None:
    for pattern, yes, no in (("b", "abc", "ac"), ("^b", "bc", "ab"), ("b$", "ab", "bc"), ("a|b", "xb", "xx")):
        schema = JsonSchema({"type": "string", "pattern": pattern})
        assert accepts(schema, f'"{yes}"') and not accepts(schema, f'"{no}"')


@pytest.mark.parametrize(
    ("whitespace", "accepted"),
    [("any", {"compact", "spaced", "few", "many"}), ("bounded", {"compact", "spaced", "few"})]
    + [(word, {word}) for word in ("compact", "spaced")],
)
def test_whitespace(whitespace: Whitespace, accepted: set[str]) -> None:
    array = {"type": "array", "items": {"enum": ["b  c, d: e", [1, {"x": None}]]}}
    schema = {"type": "object", "properties": {"a": array}, "required": ["a"]}
    texts = {
        "compact": ['{"a":["b  c, d: e",[1,{"x":null}]]}'],
        "spaced": ['{"a": ["b  c, d: e", [1, {"x": null}]]}'],
        "few": ['{ "a":[\n]}', f'{{\r\n{" " * 40}"a": [[1\n\t\t,{{"x":null}}]]\n}}'],
        "many": ['{  "a":[]}', '{"a":[]\t}', f'{{"a":[\n{" " * 41}[1,{{"x":null}}]]}}'],
        "outside": [' {"a":[]}', '{"a":[]} '],
    }
    strategy = make(byte_vocabulary())
    compiled = strategy.compile(JsonSchema(schema, whitespace=whitespace))
    for grammar in (compiled, strategy.from_bytes(compiled.to_bytes())):
        for kind, each in texts.items():
            for text in each:
                matcher = grammar.matcher(frozenset({STOP}))
                assert (matcher.accept([*text.encode(), STOP]) == len(text) + 1) == (kind in accepted), text


def test_bytes_that_are_no_tokens_are_not_offered() -> None:
    vocabulary = Vocabulary([b"", b"a", b"ab", b"c"], frozenset({0}), {0: "</s>"}, 300)
    matcher = make(vocabulary).compile(Regex("(ab|c)*")).matcher(frozenset({0}))
    bitmask = allocate(1, 300)
    matcher.fill_bitmask(bitmask, 0)
    assert unpack(bitmask, 300)[0].nonzero()[0].tolist() == [0, 1, 2, 3]
    assert [t for t in range(-2, 300) if matcher.validate([t])] == [0, 1, 2, 3]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    name: str
    age: int


@dataclass
class Point:
    x: int


def test_types_and_terms_are_constraints(accepts: Accepts) -> None:
    from outlines.types import dsl, email, integer

    number = dsl.String("No. ") + integer

    assert constraint(Literal["a", "b"]) == constraint(dsl.either("a", "b")) == Choice(["a", "b"])
    assert constraint(Color, strategy="outlines") == Choice(["red", "blue"], strategy="outlines")
    assert accepts(constraint(number), "No. 12") and not accepts(constraint(number), "No. x")
    assert accepts(constraint(email), "a@b.de")
    assert accepts(constraint(dsl.Choice(["a.b", 1])), "a.b") and not accepts(constraint(dsl.Choice(["a.b", 1])), "axb")
    assert accepts(constraint(list[int]), "[1, 2]")
    person = constraint(Person)
    assert isinstance(person, JsonSchema) and accepts(person, '{"name":"é","age":3}') and not accepts(person, "{}")
    assert accepts(constraint(Point), '{"x":1}')
    assert accepts(constraint(dsl.regex("[ab]").between(2, 3) + dsl.optional("c")), "abac")
    assert constraint(dsl.CFG("start: A")) == Grammar("start: A", "lark")


def test_other_things_are_no_constraints() -> None:
    from outlines.types import dsl

    with pytest.raises(InvalidGrammar, match="output type"):
        constraint(object())
    with pytest.raises(UnsupportedGrammar, match="whitespace"):
        constraint(dsl.JsonSchema({"type": "string"}, whitespace_pattern=" *"))


def test_patterns_that_never_come_again_are_not_kept_for_ever(strategy: GrammarStrategy) -> None:
    for number in range(300):
        strategy.compile(JsonSchema({"type": "string", "pattern": f"^[a-z]{number}$"}))
    assert _in_string.cache_info().currsize <= 256


def test_the_states_of_a_repeated_class_grow_with_its_count() -> None:
    """outlines-core also searches for later beginnings of a match. If one could be at any place, each repetition would
    double the time to compile: minutes for this test."""

    def num_states(count: int) -> int:
        compiled: Any = make(byte_vocabulary()).compile(Regex(rf"[^\n\r]{{1,{count}}}!"))
        assert compiled.matcher(frozenset({STOP})).accept([*b"a" * (count - 1), *b"!!", STOP]) == count + 2
        return len(compiled.index.get_transitions())

    assert num_states(24) < 5 * num_states(6)
