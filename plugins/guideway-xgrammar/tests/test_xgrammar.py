"""Peculiarities of xgrammar: support table, silent errors, structural tags."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from guideway.api import (
    WHITESPACE,
    Grammar,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    Regex,
    StructuralTag,
    UnsupportedGrammar,
    Vocabulary,
    Whitespace,
)
from guideway.json_schema.ecma import in_python
from guideway.json_schema.prober import STOP as END
from guideway.json_schema.prober import byte_vocabulary
from guideway_xgrammar import guideway_grammar_strategy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

Legal = Callable[[Matcher, Vocabulary], set[int]]
Ids = Callable[[str], list[int]]
STOP = frozenset({0, 1})


def test_supports_names_what_it_would_lose(strategy: GrammarStrategy) -> None:
    found = strategy.supports(JsonSchema({"type": "string", "pattern": "^a+$", "maxLength": 3}))
    assert found.unenforced == {"pattern+maxLength"} and not found.refused
    assert found.enforced == {"type", "pattern", "maxLength"}
    # check that it really is unenforced
    compiled = strategy.compile(JsonSchema({"type": "string", "pattern": "^a+$", "maxLength": 3}))
    assert compiled.matcher(STOP).accept([strategy.vocabulary.tokens.index(b'"')]) == 1


@pytest.mark.parametrize(
    ("schema", "unenforced"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, {"uniqueItems"}),
        ({"type": "object", "properties": {"x": {"type": "string", "format": "no-such"}}}, {"format:no-such"}),
        ({"type": "string", "format": "email", "maxLength": 9}, {"format+maxLength"}),
        ({"$ref": "https://example.com/x.json"}, {"$ref:remote"}),
        ({"type": "string", "pattern": "(?!a)b"}, {"pattern:lookaround"}),
        ({"type": "string", "pattern": "^[a-z]+(-[a-z]+)?$"}, {"pattern:repetition"}),
        ({"type": "string", "format": "date"}, set()),
        ({"type": "string", "enum": ["a", 1]}, {"enum:mistyped"}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, set()),
        (True, set()),
    ],
)
def test_supports_of_schemas(strategy: GrammarStrategy, schema: Any, unenforced: set[str]) -> None:
    found = strategy.supports(JsonSchema(schema))
    assert found.unenforced == unenforced and not found.refused


@pytest.fixture(scope="module")
def of_bytes() -> GrammarStrategy:
    return guideway_grammar_strategy()(byte_vocabulary(), {})


_PIECES = st.sampled_from(["a", "é", "😀", ".", "[^a]", "[^é]", r"\\", r"\é", "|", r"\S", "é*", ".?"])


@given(pieces=st.lists(_PIECES, min_size=1, max_size=4), text=st.text('aé😀"\\\n', max_size=3))
@settings(max_examples=150)
def test_patterns_of_any_characters_are_of_json(of_bytes: GrammarStrategy, pieces: list[str], text: str) -> None:
    """A character that is not ASCII lets xgrammar take unescaped quotes in a string."""
    pattern = "^(?:" + "".join(pieces) + ")$"
    constraint = JsonSchema({"type": "string", "pattern": pattern})
    assume(not of_bytes.supports(constraint).refused)
    compiled = of_bytes.compile(constraint)
    for raw in (f'"{text}"', json.dumps(text), json.dumps(text, ensure_ascii=False)):
        accepted = compiled.matcher(frozenset({END})).accept([*raw.encode(), END]) == len(raw.encode()) + 1
        assert not accepted or re.search(in_python(pattern), json.loads(raw))


@given(
    pieces=st.lists(_PIECES | st.sampled_from(['"', r"\n", "\n", '["a]', '[^"]', r"\x5c"]), min_size=1, max_size=3),
    name=st.text('aé"\\\n', max_size=3),
)
@settings(max_examples=150)
def test_patterns_of_names_are_of_json_or_named(of_bytes: GrammarStrategy, pieces: list[str], name: str) -> None:
    pattern = "^(?:" + "".join(pieces) + ")$"
    schema = {"type": "object", "patternProperties": {pattern: True}, "additionalProperties": False}
    support = of_bytes.supports(JsonSchema(schema))
    if support.refused or support.unenforced:
        return
    compiled = of_bytes.compile(JsonSchema(schema))
    for raw in (f'{{"{name}":1}}', json.dumps({name: 1}, ensure_ascii=False, separators=(",", ":"))):
        accepted = compiled.matcher(frozenset({END})).accept([*raw.encode(), END]) == len(raw.encode()) + 1
        assert not accepted or re.search(in_python(pattern), next(iter(json.loads(raw))))


@pytest.mark.parametrize("name", ["größe", "a\nb", 'a"b', "a\\b", "名前"])
def test_names_that_are_taken_for_others_are_named(strategy: GrammarStrategy, name: str) -> None:
    """xgrammar would let ``{"größe": "x"}`` pass."""
    schema = {"type": "object", "properties": {name: {"type": "number"}, "plain": {}}}
    for opening in ({"additionalProperties": True}, {"additionalProperties": {}}, {"patternProperties": {"^x": {}}}):
        assert "properties" in strategy.supports(JsonSchema(schema | opening)).unenforced
        inside = {"type": "array", "items": schema | opening}
        assert "properties" in strategy.supports(JsonSchema(inside)).unenforced
    for closing in ({}, {"additionalProperties": False}):
        assert "properties" not in strategy.supports(JsonSchema(schema | closing)).unenforced
    plain = {"type": "object", "properties": {"size": {"pattern": "\\d"}}, "additionalProperties": True}
    assert "properties" not in strategy.supports(JsonSchema(plain)).unenforced


def test_supports_refuses_what_does_not_compile(strategy: GrammarStrategy) -> None:
    for schema in ({"type": "string", "pattern": r"(a)\1"}, {"type": "array", "items": [{}]}, {"type": "strin"}):
        assert strategy.supports(JsonSchema(schema)).refused
        with pytest.raises((InvalidGrammar, UnsupportedGrammar)):
            strategy.compile(JsonSchema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "minProperties": 2},
        {"type": "object", "properties": {"a": {}}, "minProperties": 2},
        {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 2},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "maxItems": 1},
    ],
)
def test_what_xgrammar_misreads_is_not_called_empty(strategy: GrammarStrategy, schema: Any) -> None:
    with pytest.raises(UnsupportedGrammar, match="The schema may have instances"):
        strategy.compile(JsonSchema(schema))
    with pytest.raises(UnsupportedGrammar, match=r"minimum greater than maximum$"):
        strategy.compile(JsonSchema({"type": "integer", "minimum": 2, "maximum": 1}))


@pytest.mark.parametrize("names", [{"const": 5}, {"enum": [2.5, [1]]}, {"const": None}])
def test_names_that_no_property_has_are_refused(strategy: GrammarStrategy, names: Any) -> None:
    schema = {"type": "object", "properties": {"c": {"type": "object", "propertyNames": names}}}
    with pytest.raises(UnsupportedGrammar, match=r"/properties/c/propertyNames/.* no name of a property"):
        strategy.compile(JsonSchema(schema))


@pytest.mark.parametrize("names", [{"enum": ["a", 5]}, {"enum": ["a", False, None, []]}])
def test_of_the_names_that_are_given_only_strings_are_taken(make: Callable[..., GrammarStrategy], names: Any) -> None:
    strategy = make(byte_vocabulary())
    constraint = JsonSchema({"type": "object", "propertyNames": names}, whitespace="compact")
    assert not strategy.supports(constraint).unenforced
    compiled = strategy.compile(constraint)
    for text, expected in ((b'{"a":1}', True), (b"{5:1}", False), (b"{false:1}", False), (b"{}", True)):
        assert (compiled.matcher(frozenset({256})).accept([*text]) == len(text)) is expected, text


@pytest.mark.parametrize("whitespace", ["bounded", "compact", "spaced", "any"])
def test_formats_hold_in_structural_tags(make: Callable[..., GrammarStrategy], whitespace: Whitespace) -> None:
    strategy = make(byte_vocabulary())
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]}
    closed = {**schema, "additionalProperties": False}
    region = {"type": "json_schema", "json_schema": closed}
    tag = {"format": {"type": "tag", "begin": "<", "content": region, "end": ">"}}
    constraint = StructuralTag(tag, whitespace=whitespace)
    assert not strategy.supports(constraint).unenforced
    compiled = strategy.compile(constraint)
    colon = ": " if whitespace == "spaced" else ":"
    for day, expected in (("29", True), ("30", False)):
        text = f'<{{"a"{colon}"2024-02-{day}"}}>'.encode()
        assert (compiled.matcher(frozenset({256})).accept([*text]) == len(text)) is expected


def test_names_are_named_where_a_tag_leaves_them_open(strategy: GrammarStrategy) -> None:
    def named(schema: Any) -> frozenset[str]:
        structure = {"begin": "<a>", "schema": schema, "end": "</a>"}
        return strategy.supports(StructuralTag({"structures": [structure], "triggers": ["<a"]})).unenforced

    closed = {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}
    assert named(closed) == frozenset()
    assert named({"type": "object"}) == named({"type": "array"}) == {"names"}
    assert strategy.supports(JsonSchema({"type": "object"})).unenforced == frozenset()


def test_supports_looks_into_structural_tags_and_grammars(
    make: Callable[..., GrammarStrategy], strategy: GrammarStrategy
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    tag = {"structures": [{"begin": "<a>", "schema": schema, "end": "</a>"}], "triggers": ["<a"]}
    assert strategy.supports(StructuralTag(tag)).unenforced == {"uniqueItems"}
    free = {"type": "structural_tag", "format": {"type": "any_text"}}
    assert not strategy.supports(StructuralTag(free)).unenforced
    assert strategy.supports(Grammar('start: %json {"uniqueItems": true}', "lark")).unenforced == {"%json"}
    token = {"type": "structural_tag", "format": {"type": "token", "token": 2}}
    assert strategy.supports(StructuralTag(token)).refused
    with pytest.raises(UnsupportedGrammar):
        strategy.compile(StructuralTag(token))


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("whitespace", "accepted", "refused"),
    [
        ("any", ["[1,[]]", f"[1{' ' * 99},[]]"], []),
        ("bounded", ["[1,[]]", f"[1\r\n{' ' * 40},\n[]]", "[1 , []]"], ["[1,  []]", "[1,\t[]]", f"[1,\n{' ' * 41}[]]"]),
        ("compact", ["[1,[]]", "[[1,2],3]"], ["[1, []]", "[ ]", "[[1, 2],3]"]),
        ("spaced", ["[1, []]", "[[1, 2], 3]"], ["[1,[]]", "[ ]"]),
    ],
)
def test_whitespace_in_structural_tags(
    make: Callable[..., GrammarStrategy], modern: bool, whitespace: Whitespace, accepted: list[str], refused: list[str]
) -> None:
    schema = {"type": "array", "items": True}
    tag: dict[str, Any] = {"structures": [{"begin": "{{", "schema": schema, "end": "}}"}], "triggers": ["{{"]}
    if modern:
        content = {"type": "json_schema", "json_schema": schema}
        tag = {"format": {"type": "tag", "begin": "{{", "content": content, "end": "}}"}}
    strategy, constraint = make(byte_vocabulary()), StructuralTag(tag, whitespace=whitespace)
    assert "whitespace" not in strategy.supports(constraint).unenforced
    compiled, stop = strategy.compile(constraint), min(strategy.vocabulary.stop_token_ids)
    for text in (*accepted, *refused):
        ids = [*f"{{{{{text}}}}}".encode(), stop]
        assert (compiled.matcher(frozenset({stop})).accept(ids) == len(ids)) == (text in accepted), text


@pytest.mark.parametrize("most", [None, 0, 1, 2, 3, 41, 42, 99])
def test_a_region_may_bound_its_white_space_further(make: Callable[..., GrammarStrategy], most: int | None) -> None:
    """vLLM writes None for each tool."""
    content = {"type": "json_schema", "json_schema": {"type": "array"}, "max_whitespace_cnt": most}
    strategy = make(byte_vocabulary())
    compiled, stop = strategy.compile(StructuralTag({"format": content})), min(strategy.vocabulary.stop_token_ids)
    for blanks in ("", " ", "\n", "\r\n", "\n ", "\r\n\t", "\n" + 40 * " ", "\r\n" + 40 * " "):
        text = f"[1,{blanks}2]".encode()
        accepted = compiled.matcher(frozenset({stop})).accept([*text, stop]) == len(text) + 1
        assert accepted == (most is None or len(blanks) <= most), (blanks, most)


def test_whitespace_is_named_where_xgrammar_writes_it_otherwise(strategy: GrammarStrategy) -> None:
    for schema, named in (({"enum": [{"a": 1}]}, True), ({"const": [1, 2]}, True), ({"enum": [[1], {}, "a"]}, False)):
        for whitespace in WHITESPACE:
            found = strategy.supports(JsonSchema(schema, whitespace=whitespace)).unenforced
            assert ("whitespace" in found) == (named and whitespace == "spaced")
    content = {"type": "json_schema", "json_schema": {}, "excludes": ["x"]}
    for whitespace in WHITESPACE:
        found = strategy.supports(StructuralTag({"format": content}, whitespace=whitespace)).unenforced
        assert ("whitespace" in found) == (whitespace != "any")


@pytest.mark.parametrize("modern", [False, True])
def test_structural_tags(strategy: GrammarStrategy, vocabulary: Vocabulary, modern: bool) -> None:
    schema = {"type": "boolean"}
    tag: dict[str, Any] = {"structures": [{"begin": "{{", "schema": schema, "end": "}}"}], "triggers": ["{{"]}
    if modern:
        content = {"type": "json_schema", "json_schema": schema}
        tags = [{"begin": "{{", "content": content, "end": "}}"}]
        tag = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["{{"], "tags": tags}}

    def accepts(text: str) -> bool:
        tokens = [*(vocabulary.tokens.index(bytes([b])) for b in text.encode()), 0]
        return strategy.compile(StructuralTag(tag)).matcher(STOP).accept(tokens) == len(tokens)

    assert accepts("free {{true}} and {{false}} text")
    assert not accepts("free {{truth}}") and not accepts("free {{true")


def test_ebnf(strategy: GrammarStrategy, ids: Ids) -> None:
    matcher = strategy.compile(Grammar('root ::= "a" root "b" | "x"', "ebnf")).matcher(STOP)
    assert matcher.accept([*ids("aaxbb"), 0]) == 6
    matcher.rollback(2)
    assert matcher.accept([0]) == 0


def test_json_holds_no_raw_control_characters(make: Callable[..., GrammarStrategy], legal: Legal) -> None:
    vocabulary = byte_vocabulary()
    strings: list[dict[str, Any]] = [{}, {"maxLength": 3}, {"minLength": 1}, {"pattern": "^.*$"}]
    for schema in strings:
        matcher = make(vocabulary).compile(JsonSchema({"type": "string", **schema})).matcher(frozenset({256}))
        matcher.accept(b'"a')
        assert not legal(matcher, vocabulary) & set(range(32))
        assert [byte for byte in range(32) if matcher.accept([byte])] == []


FIRST_BYTES = {0xC2: 0x80, 0xDF: 0xBF, 0xE0: 0xA0, 0xED: 0x9F, 0xEE: 0x80, 0xF0: 0x90, 0xF3: 0xBF, 0xF4: 0x8F}
"""First bytes of characters, each with a byte that may follow it."""
ANYTHING = [
    Regex("[^a]{1,40}"),
    Regex("(.|b)+"),
    Grammar("root ::= [^a]+", "ebnf"),
    StructuralTag({"type": "structural_tag", "format": {"type": "any_text"}}),
]


@pytest.mark.parametrize("constraint", ANYTHING, ids=lambda constraint: constraint.kind)
def test_texts_are_utf_8(make: Callable[..., GrammarStrategy], legal: Legal, constraint: Any) -> None:
    pairs = [bytes((first, second)) for first in FIRST_BYTES for second in range(0x80, 0xC0)]
    bytes_ = byte_vocabulary()
    vocabulary = Vocabulary([*bytes_.tokens, *pairs], bytes_.stop_token_ids, {256: "</s>"})
    compiled = make(vocabulary).compile(constraint)
    for pair in pairs:
        text = next((t for t in (pair, pair + b"\x80", pair + b"\x80\x80") if _is_text(t)), b"")
        matcher = compiled.matcher(frozenset({256}))
        assert (matcher.accept(text) == len(text)) is (text != b"") or text == b""
        for done, token_id in ((b"", vocabulary.tokens.index(pair)), (pair[:1], pair[1])):
            other = compiled.matcher(frozenset({256}))
            assert other.accept(done) == len(done)
            assert (token_id in legal(other, vocabulary)) is (text != b""), (pair, done)
            assert other.accept([token_id]) == int(text != b""), (pair, done)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_refusals_are_quiet(strategy: GrammarStrategy, capfd: pytest.CaptureFixture[str]) -> None:
    matcher = strategy.compile(Regex("a")).matcher(STOP)
    assert matcher.accept([2]) == matcher.accept([3]) == matcher.accept([0]) == 0
    matcher.accept([strategy.vocabulary.tokens.index(b"a"), 0])
    assert matcher.accept([0]) == 0
    assert capfd.readouterr() == ("", "")


def test_options_are_checked(make: Callable[..., GrammarStrategy], vocabulary: Vocabulary) -> None:
    for options, said in (
        ({"max_threads": 0}, "max_threads.*at least 1"),
        ({"max_thread": 1}, "max_threads"),
        ({"max_threads": "one"}, "max_threads"),
    ):
        with pytest.raises(InvalidConfiguration, match=said):
            make(vocabulary, **options)


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (Regex("ä😀a**"), "are not allowed.\n    ä😀a**\n        ^"),
        (Regex(r"x\1"), "Backreference is not supported yet.\n    x\\1\n     ^"),
        (Regex("a{3,1}"), "EBNF parser error: Lower bound is larger than upper bound: 3 > 1"),
        (Grammar('start: "ä" foo', "lark"), "unknown name 'foo'\n    start: \"ä\" foo\n               ^"),
        (Grammar('root ::= "ä" %', "ebnf"), 'Unexpected character: %\n    root ::= "ä" %\n                 ^'),
        (Grammar("start: A\nA: /b(/", "lark"), "The parenthesis is not closed.\n    A: /b(/\n       ^"),
    ],
)
def test_an_error_points_at_the_place_in_what_the_user_wrote(
    strategy: GrammarStrategy, constraint: Regex | Grammar, said: str
) -> None:
    with pytest.raises((InvalidGrammar, UnsupportedGrammar)) as refused:
        strategy.compile(constraint)
    assert str(refused.value).endswith(said)
    assert "/project/" not in str(refused.value)


def test_anchors_mean_what_they_do_in_python_or_are_refused() -> None:
    random = Random("anchors")
    strategy = guideway_grammar_strategy()(byte_vocabulary(), {})
    texts = ["".join(letters) for n in range(4) for letters in itertools.product("ab", repeat=n)]

    def draw(depth: int) -> str:
        if depth == 0:
            return random.choice(["a", "b", "^", "$", "a?", "(^|b)", "(a|$)"])
        parts = [draw(depth - 1) for _ in range(random.randint(1, 3))]
        return f"({'|'.join(parts)})" if random.random() < 0.3 else "".join(parts)

    num_compiled = 0
    for pattern in {draw(2) for _ in range(300)}:
        try:
            compiled = strategy.compile(Regex(pattern))
        except (UnsupportedGrammar, InvalidGrammar):
            continue
        num_compiled += 1
        for text in texts:
            tokens = [*text.encode(), END]
            is_accepted = compiled.matcher(frozenset({END})).accept(tokens) == len(tokens)
            assert is_accepted == bool(re.fullmatch(pattern, text)), (pattern, text)
    assert num_compiled > 30


def test_anchors_in_a_structural_tag_are_refused_too(strategy: GrammarStrategy) -> None:
    for pattern, is_refused in (("^ab$", False), ("a^b", True)):
        tag = StructuralTag({"type": "structural_tag", "format": {"type": "regex", "pattern": pattern}})
        if is_refused:
            with pytest.raises(UnsupportedGrammar, match="leaves out a") as refused:
                strategy.compile(tag)
            assert refused.value.feature == "regex:anchor"
        else:
            strategy.compile(tag)


def test_what_a_grammar_says_does_not_make_it_unsupported(strategy: GrammarStrategy) -> None:
    with pytest.raises(InvalidGrammar):
        strategy.compile(Regex("no limit, no support **"))


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_names_beside_applied_schemas_are_refused(strategy: GrammarStrategy, keyword: str) -> None:
    """xgrammar would write any value for a name."""
    schema = {"type": "object", "propertyNames": {"type": "string", keyword: [{}]}}
    with pytest.raises(UnsupportedGrammar, match="#/propertyNames"):
        strategy.compile(JsonSchema(schema))


@pytest.mark.parametrize("text", [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 40}])
@pytest.mark.parametrize("place", ["{}", '{"anyOf": [{"type": "null"}, {}]}', '{"$ref": "#/$defs/text"}'])
def test_the_text_of_an_element_ends_at_its_end(text: dict[str, Any], place: str) -> None:
    strategy = guideway_grammar_strategy()(byte_vocabulary(), {})
    value = json.loads(place.replace("{}", json.dumps(text)))
    nested = {"type": "array", "items": {"type": "string", "minLength": 3, "pattern": "^b"}}
    schema = {"type": "object", "properties": {"a": value, "b": nested}, "required": ["a"], "$defs": {"text": text}}
    content = {"type": "json_schema", "json_schema": schema, "style": "qwen_xml"}
    constraint = StructuralTag({"type": "structural_tag", "format": content})
    assert strategy.supports(constraint).unenforced >= text.keys() - {"type"}
    begin = b"<parameter=a>x</parameter>"
    for rest, expected in ((b"", True), (b"</parameter>", False), (b"y</parameter>", False)):
        matcher = strategy.compile(constraint).matcher(frozenset({END}))
        assert (matcher.accept(tuple(begin + rest)) == len(begin + rest)) is expected, rest


def test_lengths_that_excludes_would_drop_are_named() -> None:
    strategy = guideway_grammar_strategy()(byte_vocabulary(), {})
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}, "required": ["a"]}
    content = {"type": "json_schema", "json_schema": schema, "excludes": ["<end>"]}
    constraint = StructuralTag({"type": "structural_tag", "format": content})
    assert "minLength" in strategy.supports(constraint).unenforced
    assert strategy.compile(constraint).matcher(frozenset({END})).accept(tuple(b'{"a":""}')) == 8
