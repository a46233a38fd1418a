"""Peculiarities of llguidance: support tables, options in schemas, forced tokens, lasting errors."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    DeadEnd,
    FillJob,
    Grammar,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    LimitExceeded,
    Matcher,
    Regex,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import allocate, num_words, unpack
from guideway.json_schema.prober import byte_vocabulary
from guideway_llguidance.matcher import LlguidanceAhead, LlguidanceCompiled
from guideway_llguidance.strategy import SUPPORT, Strategy
from hypothesis import given, settings
from hypothesis import strategies as st

Legal = Callable[[Matcher, Vocabulary], set[int]]
Ids = Callable[[str], list[int]]
STOP = frozenset({0, 1})


def test_both_series_have_a_table() -> None:
    assert {version.rpartition(".")[0] for version in SUPPORT.committed()} >= {"1.7", "1.9"}


def test_supports_refuses_what_does_not_compile(strategy: GrammarStrategy) -> None:
    for schema, named in (
        ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "integer"}}, "not"),
        ({"type": "strin"}, "#/type"),
    ):
        reason = strategy.supports(JsonSchema(schema)).reason
        assert reason is not None and named in reason
        with pytest.raises((InvalidGrammar, UnsupportedGrammar)):
            strategy.compile(JsonSchema(schema))


def test_a_format_that_nobody_knows_is_named_and_left_out() -> None:
    schema = {"type": "object", "properties": {"format": {"type": "string", "format": "no-such", "maxLength": 1}}}
    strategy, constraint = Strategy(byte_vocabulary(), {}), JsonSchema(schema)
    support = strategy.supports(constraint)
    assert not support.refused and support.unenforced == {"format:no-such"}
    assert _takes(strategy, constraint, b'{"format":"x"}')
    assert not _takes(strategy, constraint, b'{"format":"xy"}')


@pytest.mark.parametrize("missing", ['"', "\\", "\n"])
@pytest.mark.parametrize("form", [r"[^\x{:02x}]", r"[^a\x{:02x}]", "[\\x00-\\x{1:02x}\\x{2:02x}-\U0010ffff]"])
def test_a_class_takes_no_escape_of_what_it_lacks(form: str, missing: str) -> None:
    code = ord(missing)
    text = f"^{form.format(code, code - 1, code + 1)}$"
    strategy, constraint = Strategy(byte_vocabulary(), {}), JsonSchema({"type": "string", "pattern": text})
    for character in '"\\\n\tbé':
        taken = _takes(strategy, constraint, json.dumps(character, ensure_ascii=False).encode())
        assert taken is (character != missing), (text, character)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"oneOf": [{"type": "object"}, {"type": "null"}]}, b"{}", b"1"),
        (
            {
                "type": "object",
                "required": ["kind"],
                "oneOf": [{"properties": {"kind": {"enum": [k]}, k: {"type": "null"}}} for k in ("a", "b")],
                "anyOf": [{"properties": {"x": {"const": 1}}}],
            },
            b'{"kind":"a","a":null}',
            b'{"kind":"a","a":1}',
        ),
        (  # a reference leads into the branches, so they are not changed
            {"properties": {"a": {"$ref": "#/oneOf/0"}}, "oneOf": [{"type": "object"}, {"type": "null"}]},
            b'{"a":{}}',
            b'{"a":null}',
        ),
    ],
)
def test_branches_that_exclude_each_other_are_taken(schema: dict[str, Any], right: bytes, wrong: bytes) -> None:
    strategy, constraint = Strategy(byte_vocabulary(), {}), JsonSchema(schema)
    assert not strategy.supports(constraint).refused and not strategy.supports(constraint).unenforced
    assert _takes(strategy, constraint, right)
    assert not _takes(strategy, constraint, wrong)


def _takes(strategy: Strategy, constraint: JsonSchema, text: bytes) -> bool:
    """Return whether a strategy for a vocabulary of bytes accepts a whole text."""
    matcher = strategy.compile(constraint).matcher(strategy.vocabulary.stop_token_ids)
    return matcher.accept([*text]) == len(text) and matcher.is_accepting()


DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(("bound", "left"), [("Maximum", b"2"), ("Minimum", b"4")])
def test_exclusive_bounds_of_draft_4_hold_for_enum_and_const(bound: str, left: bytes) -> None:
    strategy = Strategy(byte_vocabulary(), {})
    apart = {"$schema": DRAFT_4, bound.lower(): 3, "enum": [2, 3, 4], f"exclusive{bound}": True}
    assert not strategy.supports(JsonSchema(apart)).unenforced
    assert [text for text in (b"2", b"3", b"4") if _takes(strategy, JsonSchema(apart), text)] == [left]
    with pytest.raises(UnsupportedGrammar, match="Unsatisfiable"):
        strategy.compile(JsonSchema({bound.lower(): 3, "const": 3, f"exclusive{bound}": True}))


def test_supports_what_it_enforces(strategy: GrammarStrategy) -> None:
    found = strategy.supports(JsonSchema({"type": "string", "pattern": "^a+$", "maxLength": 3}))
    assert found.enforced == {"type", "pattern", "maxLength"} and not found.unenforced and not found.refused


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {}, "uniqueItems": True, "x-guidance": {"lenient": True}},
        {"type": "object", "properties": {"a": {"x-guidance": {"whitespace_flexible": True}}}},
    ],
)
def test_a_schema_may_not_set_options(strategy: GrammarStrategy, schema: dict[str, object]) -> None:
    assert "x-guidance" in str(strategy.supports(JsonSchema(schema)).reason)
    with pytest.raises(UnsupportedGrammar, match="x-guidance"):
        strategy.compile(JsonSchema(schema))


def test_branches_that_may_overlap_are_refused_with_advice_that_can_be_followed(strategy: GrammarStrategy) -> None:
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}
    with pytest.raises(UnsupportedGrammar, match=r"branches of a oneOf overlap.* say anyOf") as refused:
        strategy.compile(JsonSchema(schema))
    assert "coerce" not in str(refused.value)


@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_values_are_read_beside_both_keywords_of_a_list(strategy: GrammarStrategy, keyword: str) -> None:
    """llguidance would lose a keyword of a list that follows the values."""
    value = [1, "a"] if keyword == "const" else [[1, "a"]]
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}], keyword: value}
    with pytest.raises((InvalidGrammar, UnsupportedGrammar)):
        strategy.compile(JsonSchema(schema | {"additionalItems": False}))
    strategy.compile(JsonSchema(schema | {"additionalItems": True}))


def test_bounds_that_are_near_in_different_branches_are_named(strategy: GrammarStrategy) -> None:
    near = {"exclusiveMinimum": 0, "allOf": [{"$ref": "#/$defs/most"}], "$defs": {"most": {"maximum": 0.5}}}
    far = near | {"$defs": {"most": {"maximum": 5}}}
    branches = [*[{"minimum": 1}] * 300, *({"maximum": 0.5, "title": f"{i}"} for i in range(300))]
    among_many = {"exclusiveMinimum": 0, "anyOf": branches}
    assert "number:narrow" in strategy.supports(JsonSchema(among_many)).unenforced
    assert "number:narrow" in strategy.supports(JsonSchema(near)).unenforced
    assert not strategy.supports(JsonSchema(far)).unenforced


def test_a_property_may_be_called_anything(strategy: GrammarStrategy) -> None:
    schema = JsonSchema({"type": "object", "properties": {"x-guidance": {"type": "integer"}}})
    assert not strategy.supports(schema).refused
    strategy.compile(schema)


def test_options_are_checked(make: Callable[..., GrammarStrategy], vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidConfiguration, match="whitespace"):
        type(make(vocabulary))(vocabulary, {"whitespace": "any"})


def test_a_grammar_may_name_special_tokens(strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal) -> None:
    matcher = strategy.compile(Grammar('start: <s> "a"', "lark")).matcher(STOP)
    assert legal(matcher, vocabulary) == {2}
    assert matcher.accept([2]) == 1 and 2 not in legal(matcher, vocabulary)


def test_a_stop_token_the_grammar_names_still_ends_the_output(strategy: GrammarStrategy, ids: Ids) -> None:
    matcher = strategy.compile(Grammar('start: "a" <eot> "b"', "lark")).matcher(STOP)
    assert matcher.accept([*ids("a"), 1]) == 1
    with pytest.raises(DeadEnd):
        matcher.fill_bitmask(allocate(1, 128), 0)


@dataclass(frozen=True)
class Longest:
    """Encodes greedily, the longest token first."""

    tokens: tuple[bytes, ...]
    identity: bytes = b"longest"

    def encode(self, text: bytes) -> list[int] | None:
        token_ids = []
        while text:
            token = max((t for t in self.tokens if t and text.startswith(t)), key=len, default=None)
            if token is None:
                return None
            token_ids.append(self.tokens.index(token))
            text = text[len(token) :]
        return token_ids


def test_forced_tokens(
    make: Callable[..., GrammarStrategy], strategy: GrammarStrategy, vocabulary: Vocabulary, ids: Ids
) -> None:
    tokens = tuple(vocabulary.tokens)
    strategy_with = make(replace(vocabulary, encoder=Longest(tokens)), whitespace="compact")
    schema = JsonSchema({"type": "object", "properties": {"a": {"enum": ["no", "yes"]}}, "required": ["a"]})
    matcher = strategy_with.compile(schema).matcher(STOP)
    assert list(matcher.forced_tokens()) == [tokens.index(b'{"a":')]
    assert list(matcher.forced_tokens()) == [tokens.index(b'{"a":')]  # nothing moved
    assert matcher.accept([*matcher.forced_tokens(), *ids('"y')]) == 3
    assert list(matcher.forced_tokens()) == ids("es")  # the quote after it could begin a longer token
    assert matcher.accept(matcher.forced_tokens()) == 2
    # "ab" may still become the token "ab" or two: it is not forced until this is certain
    assert list(strategy_with.compile(Regex("xa[bc]")).matcher(STOP).forced_tokens()) == ids("x")
    assert list(strategy_with.compile(Regex("[ab]")).matcher(STOP).forced_tokens()) == []
    # a vocabulary without an encoder cannot know how the model would write it
    assert list(strategy.compile(schema).matcher(STOP).forced_tokens()) == []


def test_a_long_token_over_the_end_of_forced_text(make: Callable[..., GrammarStrategy]) -> None:
    # llguidance looks back over only a few tokens, and takes the first letters for separate tokens
    tokens = (*(bytes([byte]) for byte in range(256)), b'{"', b'name":"A', b"")
    vocabulary = Vocabulary(tokens, frozenset({258}), {258: "</s>"}, encoder=Longest(tokens))
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    matcher = make(vocabulary, whitespace="compact").compile(JsonSchema(schema)).matcher(frozenset({258}))
    assert matcher.accept([256]) == 1
    assert list(matcher.forced_tokens()) == []


def test_text_the_encoder_has_no_ids_for_does_no_harm(
    make: Callable[..., GrammarStrategy], vocabulary: Vocabulary, legal: Legal
) -> None:
    refusing = make(replace(vocabulary, encoder=Longest((b"",))))
    matcher = refusing.compile(Regex("abx")).matcher(STOP)
    forced = list(matcher.forced_tokens())
    assert matcher.accept(forced) == len(forced)
    assert legal(refusing.compile(Regex("abx")).matcher(STOP), vocabulary)


def test_an_error_inside_is_never_an_end(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., GrammarStrategy],
    vocabulary: Vocabulary,
    ids: Ids,
    legal: Legal,
) -> None:
    """After an error, llguidance continues as if the output were complete; this one runs out of lexer states."""
    monkeypatch.setattr("guideway_llguidance.strategy.MAX_STATES", 24)
    matcher = make(vocabulary).compile(Regex("[ab]*a[ab]{20}")).matcher(STOP)
    accepted = 0
    with pytest.raises(LimitExceeded, match="too many states"):
        for i in range(60):
            legal(matcher, vocabulary)
            accepted += matcher.accept(ids("ab"[i % 3 % 2]))
    with pytest.raises(LimitExceeded):
        legal(matcher, vocabulary)
    with pytest.raises(LimitExceeded):
        matcher.accept(ids("a"))
    matcher.rollback(accepted)
    assert legal(matcher, vocabulary) & set(ids("ab")) == set(ids("ab"))


VALIDATED = (
    JsonSchema({"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3}),
    JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"const": None}}}, whitespace="spaced"),
    JsonSchema({"enum": ["red", "green", {"tea": 1}]}, whitespace="any"),
    Regex("[a-f]{2,5}( x)*"),
    Regex("(red|green){0,3}"),
)


@pytest.mark.parametrize("constraint", VALIDATED, ids=str)
def test_validate_is_what_accept_takes(strategy: GrammarStrategy, vocabulary: Vocabulary, constraint: Any) -> None:
    grammar, rng, bitmask = strategy.compile(constraint), random.Random(0), allocate(1, len(vocabulary))
    stops = sorted(vocabulary.stop_token_ids)
    for _ in range(60):
        matcher, asked = grammar.matcher(vocabulary.stop_token_ids), list[int]()
        for moved in range(rng.choice((0, 0, 1, 4))):  # from any state, having read every mask or none
            walk(matcher, vocabulary, rng, 1, bitmask)
            if moved == 2:
                matcher.rollback(1)
        ahead = matcher.fork()
        asked += walk(ahead, vocabulary, rng, rng.randrange(7), bitmask)
        match rng.randrange(4):
            case 0:
                asked.append(rng.choice(stops))
            case 1:
                asked.append(rng.randrange(len(vocabulary)))
            case 2 if asked:
                asked[rng.randrange(len(asked))] = rng.randrange(len(vocabulary))
        expected = Matcher.validate(matcher.fork(), asked)
        assert matcher.validate(asked) == expected
        assert matcher.accept(asked) == expected


@pytest.mark.parametrize("pattern", ["([a-z]{1,12} ?){1,300}", "(([a-z]+)( [a-z]+)? ?){1,100}"])
def test_what_is_too_much_between_two_masks_is_validated_all_the_same(pattern: str) -> None:
    """llguidance then calls valid tokens invalid, and so does every matcher with that lexer."""
    vocabulary = byte_vocabulary()
    text = tuple(b"the quick brown fox jumps over the lazy dog and runs away " * 10)
    grammar = Strategy(vocabulary, {}).compile(Regex(pattern))
    for _ in range(2):
        assert grammar.matcher(vocabulary.stop_token_ids).validate(text) == len(text)
    assert grammar.matcher(vocabulary.stop_token_ids).accept(text) == len(text)


def test_validate_computes_no_masks(
    strategy: GrammarStrategy, vocabulary: Vocabulary, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = strategy.compile(VALIDATED[0]).matcher(vocabulary.stop_token_ids)
    monkeypatch.setattr(type(matcher), "_compute_mask", lambda _: pytest.fail("it computed a mask"))
    asked = (*ids('["ab","cd"]'), *sorted(vocabulary.stop_token_ids)[:1])
    assert matcher.validate(asked) == len(asked)


def walk(matcher: Matcher, vocabulary: Vocabulary, rng: random.Random, most: int, bitmask: Any) -> list[int]:
    """Accept up to `most` tokens that the masks allow, and return them."""
    done: list[int] = []
    while len(done) < most and not matcher.is_terminated():
        matcher.fill_bitmask(bitmask, 0)
        done.append(rng.choice(np.flatnonzero(unpack(bitmask, len(vocabulary))[0]).tolist()))
        assert matcher.accept(done[-1:]) == 1
    return done


def test_a_full_lexer_fails_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., GrammarStrategy],
    vocabulary: Vocabulary,
    ids: Ids,
    legal: Legal,
) -> None:
    """All matchers of a grammar share a lexer; one must not use up the room of another."""
    monkeypatch.setattr("guideway_llguidance.strategy.MAX_STATES", 60)
    compiled = make(vocabulary).compile(Regex("[ab]*a[ab]{20}"))
    rng = random.Random(0)
    for _ in range(100):
        matcher, oracle = compiled.matcher(STOP), re.compile("[ab]*a[ab]{20}")
        text = "".join(rng.choice("ab") for _ in range(8))
        assert matcher.accept(ids(text)) == 8
        assert bool(legal(matcher, vocabulary) & STOP) == bool(oracle.fullmatch(text))


def test_an_output_need_not_be_filled(
    strategy: GrammarStrategy, ids: Ids, vocabulary: Vocabulary, legal: Legal
) -> None:
    """llguidance may refuse legal tokens of very large patterns if it consumes them without a mask in between."""
    filled, unfilled = (strategy.compile(Regex("([a-e]{1,900} ){1,900}x")).matcher(STOP) for _ in range(2))
    text = ("abcde" * 60 + " ") * 3 + "x"
    for token_id in ids(text):
        legal(filled, vocabulary)
        assert filled.accept([token_id]) == 1
    assert unfilled.accept(ids(text)) == len(text)
    assert legal(filled, vocabulary) == legal(unfilled, vocabulary) == STOP


@pytest.mark.parametrize("constraint", [Regex("(ab"), Grammar("start: foo", "lark")])
def test_messages_show_nothing_the_user_did_not_write(strategy: GrammarStrategy, constraint: Regex | Grammar) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        strategy.compile(constraint)
    message = str(caught.value)
    assert "unclosed group" in message or 'unknown name: "foo"' in message
    assert "%llguidance" not in message
    assert ("start: foo" in message) == isinstance(constraint, Grammar)


@pytest.mark.parametrize(
    ("constraint", "shown"),
    [
        (Regex("foo[a-"), "regex parse error:\n    foo[a-\n       ^\nerror: unclosed character class"),
        (Grammar('start: "a" b\nfoo: "x"', "lark"), 'unknown name: "b"\n    start: "a" b\n           ^'),
        (Grammar('start: "a"\nfoo: ]', "lark"), "\n    foo: ]\n         ^"),
        (
            Regex("b" * 300 + r"\q" + "c" * 300),
            "unrecognized escape sequence\n    ..." + "b" * 40 + r"\q" + "c" * 18 + "...\n    " + " " * 43 + "^",
        ),
        (JsonSchema({"type": "string", "pattern": r"b\q"}), "unrecognized escape sequence\n    b\\q\n     ^"),
    ],
)
def test_an_error_in_a_text_of_the_users_points_at_the_place(
    strategy: GrammarStrategy, constraint: Regex | Grammar | JsonSchema, shown: str
) -> None:
    with pytest.raises((InvalidGrammar, UnsupportedGrammar)) as refused:
        strategy.compile(constraint.frozen())
    assert str(refused.value).endswith(shown)


LARK = """start: word (", " word)* | %json {"type": "integer"}
# a comment with "quotes
word: /[a-z]+(\\/[a-z]+)?/ | TEXT
TEXT: "x\\"y" /é{1,2}/
"""


def test_mistakes_in_lark_are_in_the_users_text(strategy: GrammarStrategy) -> None:
    """Each beginning of a grammar, and the grammar with one character replaced, has its mistake in one of its lines."""
    refused = 0
    for i in range(len(LARK)):
        for text in (LARK[:i], LARK[:i] + "/" + LARK[i + 1 :], LARK[:i] + '"' + LARK[i + 1 :]):
            try:
                strategy.compile(Grammar(text, "lark"))
            except (InvalidGrammar, UnsupportedGrammar) as error:
                said = str(error)
                assert "%llguidance" not in said and "no_forcing" not in said, (text, said)
                if place := re.search(r": line (\d+): ", said):
                    refused += 1
                    line = text.split("\n")[int(place[1]) - 1]
                    assert len(line) > 60 or "\n    " + line.rstrip() in said, (text, said)
                else:
                    assert "no start rule" in said or "no text of this vocabulary" in said, (text, said)
    assert refused > 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'start: / "test"',
            'line 1: the string or regular expression that begins here .*\n    start: / "test"\n           \\^',
        ),
        ("start: a\na: `", "line 2: lexer error\n    a: `\n       \\^"),
        ("start: X\nX: /a[b/", "line 2: invalid regular expression: unclosed .*\n    X: /a\\[b/\n         \\^"),
        ('start: %json {"a": }', 'line 1: the JSON after %json is malformed\n    start: %json {"a": }\n {23}\\^'),
    ],
)
def test_a_mistake_in_lark_has_its_place(strategy: GrammarStrategy, text: str, said: str) -> None:
    with pytest.raises(InvalidGrammar, match=said):
        strategy.compile(Grammar(text, "lark"))


@pytest.mark.parametrize(
    ("schema", "takes", "leaves_out"),
    [
        ({"type": "integer"}, ("2", "-2", "0"), ("2.0", "2e0")),
        ({"const": 2.0}, ("2",), ("2.0",)),
        ({"enum": [1, 2.5]}, ("1", "2.5"), ("1.0", "2.50")),
        ({"type": "number"}, ("1e-06", "2.0", "1E5"), ()),
        ({"type": "number", "minimum": 0}, ("0.000001", "2.0", "2"), ("1e-06",)),
        ({"type": "number", "multipleOf": 0.25}, ("0.50", "0.25"), ("0.5",)),
    ],
)
def test_which_spellings_of_numbers_the_page_names(
    schema: Any, takes: tuple[str, ...], leaves_out: tuple[str, ...]
) -> None:
    strategy = Strategy(byte_vocabulary(), {})
    found = {text: _takes(strategy, JsonSchema(schema), text.encode()) for text in (*takes, *leaves_out)}
    assert found == {text: text in takes for text in found}


def test_negative_multiples_are_written_since_the_version_that_the_page_names() -> None:
    strategy, is_new = Strategy(byte_vocabulary(), {}), _version() >= (1, 9, 1)
    for schema, text in (({"type": "integer", "multipleOf": 16}, b"-64"), ({"multipleOf": 0.01}, b"-500.25")):
        assert _takes(strategy, JsonSchema({"type": "number", **schema}), text) is is_new
        assert _takes(strategy, JsonSchema({"type": "number", **schema}), text[1:])


def test_a_matcher_that_is_given_twice_has_its_mask_in_both_rows() -> None:
    strategy = Strategy(byte_vocabulary(), {})
    matcher = strategy.compile(Regex("ab?c")).matcher(strategy.vocabulary.stop_token_ids)
    for token in b"ab":
        rows = allocate(4, strategy.vocabulary.logits_width)
        assert strategy.fill([FillJob(matcher, (), row) for row in (1, 2)], rows).tolist() == [0, 0]
        assert (rows[1] == rows[2]).all()
        assert matcher.accept((token,)) == 1


def _version() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", SUPPORT.library)[:3]))


CONSTRAINTS = (
    JsonSchema({"type": "array", "items": {"type": "integer"}, "maxItems": 6}),
    JsonSchema({"type": "object", "patternProperties": {"^[ab]$": {"enum": [1, 2]}}, "additionalProperties": False}),
    JsonSchema({"type": "object", "properties": {"é": {"type": "string"}}}, whitespace="bounded"),
    Regex("[ab]{2,9}c?"),
    Regex("aa|ab"),
)


@pytest.mark.parametrize("seed", range(6))
def test_matchers_that_are_filled_together_have_the_masks_of_each_alone(seed: int) -> None:
    """Batches that stay the same or change, matchers that roll back, fork and end, and several sets of stop tokens."""
    rng, strategy = random.Random(seed), Strategy(byte_vocabulary(), {})
    grammars = [strategy.compile(constraint) for constraint in CONSTRAINTS]
    width, stops = strategy.vocabulary.logits_width, strategy.vocabulary.stop_token_ids
    some = ([stops], [frozenset({ord("~")})], [stops, stops | {ord("~")}])[seed % 3]
    living: list[tuple[Any, frozenset[int], Matcher, list[int]]] = []
    for _ in range(60):
        if rng.random() < 0.3 or len(living) < 2:
            grammar, own = rng.choice(grammars), rng.choice(some)
            living.append((grammar, own, grammar.matcher(own), []))
        elif rng.random() < 0.2:
            grammar, own, matcher, tokens = rng.choice(living)
            living.append((grammar, own, matcher.fork(), list(tokens)))
        if rng.random() < 0.2:
            rng.shuffle(living)
        for _, _, matcher, tokens in living if rng.random() < 0.2 else ():
            count = rng.randint(0, min(3, len(tokens)))
            matcher.rollback(count)
            del tokens[len(tokens) - count :]
        matchers = [matcher for _, _, matcher, _ in living]
        jobs = [FillJob(matcher, (), row) for row, matcher in enumerate(matchers, 1)]
        rows = allocate(len(jobs) + 2, width)
        counts = strategy.fill(jobs, rows)
        drawn = []
        for (grammar, own, _, tokens), row, count, job in zip(living, rows[1:], counts, jobs, strict=False):
            alone, expected = grammar.matcher(own), allocate(1, width)
            assert alone.accept(tuple(tokens)) == len(tokens)
            alone.fill_bitmask(expected, 0)
            assert count == 0 and job.error is None and (row == expected[0]).all(), (tokens, count, job.error)
            drawn.append(rng.choice(np.flatnonzero(unpack(expected, width)[0]).tolist()))
        assert strategy.advance(matchers, np.array(drawn, dtype=np.int32)).tolist() == [1] * len(living)
        for (_, _, _, tokens), token_id in zip(living, drawn, strict=True):
            tokens.append(token_id)
        living = [each for each in living if not each[2].is_terminated()]


@given(st.lists(st.lists(st.sampled_from([*b'{"ab:1,}']), min_size=1, max_size=8), min_size=2, max_size=12))
@settings(derandomize=True, deadline=None)
def test_masks_of_a_search_do_not_depend_on_the_texts_before(texts: list[list[int]]) -> None:
    schema = {"type": "object", "patternProperties": {"^[ab]{1,3}$": {"const": 1}}, "additionalProperties": False}
    compiled = Strategy(byte_vocabulary(), {}).compile(JsonSchema(schema))
    assert isinstance(compiled, LlguidanceCompiled)
    native, size = compiled.native(), num_words(len(byte_vocabulary()))
    masks = LlguidanceAhead(native, size, [*b'{"a'])
    for text in texts:
        found, fresh = masks(text), LlguidanceAhead(native, size)([*b'{"a', *text])
        assert (found is None) == (fresh is None), bytes(text)
        assert found is None or np.array_equal(found, fresh), bytes(text)
