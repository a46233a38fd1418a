"""The reference strategy against other judges of the same languages: Python's `re`, `json` and a schema validator."""

from __future__ import annotations

import itertools
import json
import random
import re
from contextlib import suppress
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    Grammar,
    InvalidConfiguration,
    InvalidGrammar,
    JsonObject,
    JsonSchema,
    Regex,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import allocate, unpack
from guideway.json_schema.prober import STOP, byte_vocabulary, cases
from guideway_conformance.reference import guideway_grammar_strategy
from guideway_conformance.reference.expressions import Language
from guideway_conformance.reference.regex import characters
from guideway_conformance.reference.strategy import ReferenceMatcher, Strategy

from tests.support.stages import one_in

BYTES = byte_vocabulary()


@pytest.fixture(scope="module")
def strategy() -> Strategy:
    assert guideway_grammar_strategy() is Strategy
    return Strategy(BYTES, {})


def takes(compiled: CompiledGrammar, text: str) -> bool:
    tokens = [*text.encode("utf-8", "surrogatepass"), STOP]
    return compiled.matcher(frozenset({STOP})).accept(tokens) == len(tokens)


def accepts(strategy: Strategy, constraint: Constraint, text: str) -> bool:
    return takes(strategy.compile(constraint), text)


def legal(matcher: ReferenceMatcher, vocabulary: Vocabulary) -> set[int]:
    bitmask = allocate(3, vocabulary.logits_width)
    matcher.fill_bitmask(bitmask, 1)
    assert (bitmask[[0, 2]] == -1).all()
    return {int(i) for i in unpack(bitmask, bitmask.shape[1] * 32)[1].nonzero()[0]}


@pytest.mark.parametrize(
    "pattern",
    ["a*", "a+b?", "(ab|c)+x?", "(?:a|)b", "a{2}", "a{1,}b{0,2}", "[ab]{2,3}", "[^a-c]x", r"[^\d\s]{2}", r"\w\W", ".x",
     "é[à-ü]|\u4e2d.", r"\.\*[\]\-x-z]", r"[a\-z]\\", "^ab$", r"\x61\u00e9", r"[-a]|[a-]", "",
     "(a*)*b", r"a\$", r"\t|\n"],
)  # fmt: skip
def test_regexes_agree_with_re(strategy: Strategy, pattern: str) -> None:
    rng, compiled = random.Random(0), strategy.compile(Regex(pattern))
    texts = ["".join(t) for n in range(4) for t in itertools.product("abcx", repeat=n)]
    alphabet = "abcxyz0_- .]*\\$\t\néàüßÿ\u4e2d\U0001f600"
    texts += ["".join(rng.choices(alphabet, k=rng.randint(0, 4))) for _ in range(600)]
    texts += ["éà", "é\u4e2d", "\u4e2d\U0001f600", ".*]", ".*y", "-\\", "a$", "aé"]
    agreed = 0
    for text in texts:
        matched = takes(compiled, text)
        assert matched == bool(re.fullmatch(pattern, text)), text
        agreed += matched
    assert agreed


@pytest.mark.parametrize(
    "ranges",
    [
        ((0x00, 0x10FFFF),),
        ((0x7E, 0x81), (0x7FD, 0x802)),
        ((0xD000, 0xE005),),
        ((0xFFF0, 0x1000F),),
        ((0x10FFFE, 0x10FFFF),),
    ],
)
def test_characters_are_their_utf8_bytes(ranges: tuple[tuple[int, int], ...]) -> None:
    language = Language()
    start = characters(language, ranges)
    edges = {0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF}
    edges |= {edge + d for pair in ranges for edge in pair for d in (-1, 0, 1)} | {*range(0x7F0, 0x810)}
    for code in sorted(edges & set(range(0x110000))):
        state = start
        for byte in chr(code).encode("utf-8", "surrogatepass"):
            state = language.derive(state, byte)
        within = any(low <= code <= high for low, high in ranges) and not 0xD800 <= code <= 0xDFFF
        assert (state is language.EMPTY) == within, hex(code)


@pytest.mark.parametrize("pattern", ["(", "a)", "[b-a]", "a{2,1}", "*a", "[a", "a{x}", "\\", r"\xzz", "a|*", "[a-\\d]"])
def test_what_is_no_regex_is_invalid(strategy: Strategy, pattern: str) -> None:
    with pytest.raises(InvalidGrammar):
        strategy.compile(Regex(pattern))
    assert strategy.supports(Regex(pattern)).refused


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", r"\b", "a*?", "a++", "^a|b$", "a^b", "a$b", r"(a)\1", "[[:alpha:]]", "[a&&b]", "[]a]",
     r"\p{L}", "(?i)a", "(" * 60 + ")" * 60],
    ids=lambda p: p[:20],
)  # fmt: skip
def test_what_the_subset_lacks_is_unsupported(strategy: Strategy, pattern: str) -> None:
    with pytest.raises(UnsupportedGrammar):
        strategy.compile(Regex(pattern))
    assert strategy.supports(Regex(pattern)).refused


@pytest.mark.slow
def test_schemas_accept_what_is_valid_and_nothing_else(strategy: Strategy) -> None:
    """Every case of the probe is refused with a reason, or judged according to its labels."""
    judged = 0
    for name, schema, right, wrong in cases():
        constraint = JsonSchema(schema)
        reason = strategy.supports(constraint).reason
        if reason is not None:  # some patterns are valid in some dialects only
            with pytest.raises((UnsupportedGrammar, InvalidGrammar)):
                strategy.compile(constraint)
            continue
        judged += 1
        if not right:
            with suppress(InvalidGrammar):
                compiled = strategy.compile(constraint)
                assert not any(takes(compiled, compact(instance)) for instance in wrong), (name, schema)
            continue
        compiled = strategy.compile(constraint)
        for instance in wrong:
            assert not takes(compiled, compact(instance)), (name, schema, instance)
        for instance in right:
            in_order = instance != {"a": "x", "b": 1}  # b is declared in that case, a is not: it would come first
            assert takes(compiled, compact(instance)) or not in_order, (name, schema, instance)
    assert judged > 90


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


SCHEMAS: list[Any] = [
    True,
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"]},
    {"type": "object", "properties": {"ab": {"type": "null"}, "a": {}, "é": {"const": {"x": [1.5]}}}},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False, "required": ["a"]},
    {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": {"type": "integer"}},
    {"type": "array", "prefixItems": [{}, {}, {}], "maxItems": 2, "minItems": 1},
    {"type": "array", "items": {"type": "array", "maxItems": 1}, "maxItems": 2},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"type": "string", "pattern": "^a.[\"\\\\\n]$"},
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"enum": ["a", 1, None, {"a": [True]}], "type": ["string", "object"]},
    {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 1}]},
    {"$ref": "#/$defs/t",
     "$defs": {"t": {"type": "object", "properties": {"t": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
                     "additionalProperties": False}}},
    {"type": "array", "items": {"$ref": "#"}},
]  # fmt: skip


@pytest.mark.parametrize("schema", one_in(4, SCHEMAS), ids=str)
def test_every_walk_ends_in_a_valid_instance(strategy: Strategy, schema: Any) -> None:
    """Take random legal bytes; every text that may end there must be compact, valid JSON."""
    compiled, validator, finished = strategy.compile(JsonSchema(schema)), jsonschema.Draft202012Validator(schema), 0
    for seed in range(60):
        rng, matcher, text = random.Random(seed), compiled.matcher(frozenset({STOP})), bytearray()
        for _ in range(80):
            allowed = legal(matcher, BYTES)
            closing = [b for b in b'"]},:' if b in allowed and rng.random() < 0.4]
            token_id = STOP if STOP in allowed else rng.choice(closing or sorted(allowed))
            assert matcher.accept([token_id]) == 1
            if token_id == STOP:
                instance = json.loads(bytes(text))
                assert validator.is_valid(instance), text
                finished += 1
                break
            text.append(token_id)
    assert finished >= 5


def test_json_objects(strategy: Strategy) -> None:
    for text in ("{}", '{"a":1}', '{"":[{"b":null}],"c":-1.5e+3}', '{"\\u00e9\\n":"é"}'):
        assert accepts(strategy, JsonObject(), text) or "\\" in text, text
    for text in (
        "[]",
        "1",
        '{"a"}',
        '{"a":1,}',
        "{a:1}",
        '{"a": 1}',
        '{"a":01}',
        '{"a":"\x01"}',
        '{"a":1}}',
        '{"\ud800":1}',
    ):
        assert not accepts(strategy, JsonObject(), text), text


@pytest.mark.parametrize(
    "schema",
    [False, {"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
     {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "additionalProperties": False},
     {"type": "string", "minLength": 3, "maxLength": 2}, {"type": "integer", "minimum": 3, "maximum": 2},
     {"type": "array", "items": False, "minItems": 1}, {"enum": [1], "type": "string"},
     {"type": "object", "additionalProperties": False, "required": ["a"]}],
    ids=str,
)  # fmt: skip
def test_what_describes_nothing_is_invalid(strategy: Strategy, schema: Any) -> None:
    with pytest.raises(InvalidGrammar, match="no text matches"):
        strategy.compile(JsonSchema(schema))


def test_dead_branches_are_not_entered(strategy: Strategy) -> None:
    """A property that can have no value may be left out, and then must not be begun."""
    endless = {"type": "object", "properties": {"e": {"$ref": "#/$defs/e"}}, "required": ["e"]}
    schema = {
        "type": "object",
        "properties": {"ax": {"$ref": "#/$defs/e"}, "ay": {}},
        "additionalProperties": False,
        "$defs": {"e": endless},
    }
    matcher = strategy.compile(JsonSchema(schema)).matcher(frozenset({STOP}))
    matcher.accept(b'{"a')
    assert legal(matcher, BYTES) == {ord("y")}


def test_tokens_of_many_bytes() -> None:
    tokens = [b"", b"", b"", b'{"', b'a":', b'"', b"a", b"a", b"tr", b"ue}", b"ue", b"}", b"\xc3", b"\xa9", b"}}"]
    vocabulary = Vocabulary(tokens, frozenset({0}), {0: "</s>", 1: "<s>"}, 20)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "additionalProperties": False,
        "required": ["a"],
    }
    matcher = Strategy(vocabulary, {}).compile(JsonSchema(schema)).matcher(frozenset({1}))
    walk = [({3}, 3), ({4, 6, 7}, 7), ({5}, None)]
    for allowed, token_id in walk:
        assert legal(matcher, vocabulary) == allowed
        assert {t for t in range(len(tokens)) if matcher.validate([t])} == allowed
        assert token_id is None or matcher.accept([token_id]) == 1
    with pytest.raises(DeadEnd):  # no token is a colon alone
        matcher.accept([5])
        legal(matcher, vocabulary)
    matcher.rollback(2)
    assert matcher.accept([4, 8, 9, 0, 1, 1]) == 3  # 0 is not this matcher's stop token
    assert legal(matcher, vocabulary) == {1}
    fork = matcher.fork()
    assert matcher.accept([1, 1]) == 1 and matcher.is_terminated() and not fork.is_terminated()
    assert matcher.accept([6]) == 0
    matcher.rollback(1)
    assert matcher.is_accepting() and legal(matcher, vocabulary) == {1}
    for count in (-1, 99):
        with pytest.raises(ValueError, match="cannot roll back"):
            matcher.rollback(count)


def test_other_kinds_and_options_are_refused(strategy: Strategy) -> None:
    with pytest.raises(UnsupportedGrammar):
        strategy.compile(Grammar("x", "lark"))
    with pytest.raises(InvalidConfiguration, match=r"grammar\.reference"):
        Strategy(BYTES, {"fast": True})
    deep: Any = {"type": "integer"}
    for _ in range(400):
        deep = {"type": "array", "prefixItems": [{"anyOf": [deep, True]}]}
    try:
        strategy.compile(JsonSchema(deep))
    except (UnsupportedGrammar, InvalidGrammar) as error:
        assert "deep" in str(error)


def test_choices(strategy: Strategy) -> None:
    constraint = Choice(["yes", "", "é", "yesno"])
    assert [t for t in ("yes", "", "é", "yesno", "ye", "yesn", "no") if accepts(strategy, constraint, t)] == [
        "yes",
        "",
        "é",
        "yesno",
    ]
    assert strategy.supports(constraint).enforced == {"choice"}
    assert strategy.compile(constraint).nbytes > 0
