"""Details that the contract of strategies leaves open: exactly which JSON, which error, which options.

Of one plugin: ``-k llguidance``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from guideway.api import (
    Choice,
    Constraint,
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
from guideway.api.bitmask import allocate
from guideway_conformance.reference.strategy import Strategy as Reference

from tests.support.stages import one_in

Legal = Callable[[Matcher, Vocabulary], set[int]]
Ids = Callable[[str], list[int]]
STOP = frozenset({0, 1})
POSITIVE: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 120}
OBJECT = {"type": "object", "properties": {"a": POSITIVE, "b": {"type": "boolean"}, "c": {"type": "null"}}}
LIST = {"l": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/l"}, {"type": "null"}]}}}
CONSTRAINTS: list[Constraint] = [
    Choice(["yes", "no", "", "yesno", "é\u4e2d"]),
    Choice(['a"b', "a/b", "[x]"]),
    Regex("[ab]{2,4}|é+\u4e2d?"),
    Regex("(a|b)*abb"),
    Regex("[^a]x"),
    Regex(r"[0-9]+\.[0-9]{2}"),
    JsonSchema({"type": "string", "pattern": "^[ab]{1,3}$"}),
    JsonSchema({"type": "number"}),
    JsonSchema(POSITIVE),
    JsonSchema({"enum": ["a", "é", 1, None, True, [1, 2], {"a": 1}]}),
    JsonSchema({"anyOf": [POSITIVE, {"type": "boolean"}]}),
    JsonSchema({**OBJECT, "required": ["b"], "additionalProperties": False}),
    JsonSchema({**OBJECT, "additionalProperties": False}),
    JsonSchema({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}),
    JsonSchema({"type": "array", "items": {"type": "array", "items": POSITIVE}}),
    JsonSchema({"type": "array", "prefixItems": [{"type": "boolean"}, POSITIVE], "items": {"type": "null"}}),
    JsonSchema({"$ref": "#/$defs/l", "$defs": LIST}),
]


@pytest.mark.parametrize("constraint", one_in(4, CONSTRAINTS), ids=lambda c: str(c)[:60])
def test_agrees_with_the_reference(
    strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, constraint: Constraint
) -> None:
    ours, reference = strategy.compile(constraint), Reference(vocabulary, {}).compile(constraint)
    for seed in range(12):
        rng = random.Random(seed)
        matcher, unfilled, oracle = ours.matcher(STOP), ours.matcher(STOP), reference.matcher(STOP)
        for _ in range(10):
            expected = legal(oracle, vocabulary)
            assert legal(matcher, vocabulary) == expected
            # bit set <=> accept([t]) == 1, for every token
            assert {t for t in range(len(vocabulary)) if matcher.validate([t]) == 1} == expected
            assert matcher.is_accepting() == oracle.is_accepting() == bool(expected & STOP)
            token_id = rng.choice(sorted(expected))
            assert matcher.accept([token_id]) == unfilled.accept([token_id]) == oracle.accept([token_id]) == 1
            if oracle.is_terminated():
                break
        assert matcher.is_terminated() == unfilled.is_terminated() == oracle.is_terminated()
        if not oracle.is_terminated():
            assert legal(unfilled, vocabulary) == legal(oracle, vocabulary)


@pytest.mark.parametrize("count", [-1, -(2**31), 3, 2**31, 2**63 - 1, 2**64])
def test_rollback_refuses_what_it_cannot_undo(
    strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, ids: Ids, count: int
) -> None:
    matcher = strategy.compile(Regex("abc")).matcher(STOP)
    matcher.accept(ids("ab"))
    with pytest.raises(ValueError, match="2 were accepted"):
        matcher.rollback(count)
    assert legal(matcher, vocabulary) == set(ids("c"))


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema("{"),
        JsonSchema({"type": "strin"}),
        JsonSchema({"type": "object", "properties": []}),
        JsonSchema({"$ref": "#"}),
        JsonSchema(False),
        Regex("("),
        Regex("[b-a]"),
        Regex(r"[^\s\S]"),
        Regex("b\udc80"),
        Regex("\u20ac"),  # no token of this vocabulary begins it
        Choice([]),
        Choice([1]),  # type: ignore[list-item]
    ],
    ids=lambda c: str(c)[:60],
)
def test_malformed_and_empty_constraints_are_invalid(strategy: GrammarStrategy, constraint: Constraint) -> None:
    with pytest.raises(InvalidGrammar):
        strategy.compile(constraint)


@pytest.mark.parametrize("constraint", [Grammar("x", "no-such-dialect"), Regex("(?=a)b")], ids=lambda c: str(c)[:60])
def test_what_the_library_lacks_is_unsupported(strategy: GrammarStrategy, constraint: Constraint) -> None:
    with pytest.raises(UnsupportedGrammar):
        strategy.compile(constraint)


@pytest.mark.parametrize(
    "constraint",
    [
        *(Regex(text) for text in ("\x00", "a{99999999999}", "\\", "*", "a|*", "(?P<x", "\\x{110000}", "(" * 5000)),
        Regex("(" * 5000 + "a" + ")" * 5000),
        *(Grammar(text, d) for text in ("", "root ::=", "start: x", "\x00", "%", "{}") for d in ("ebnf", "lark")),
        *(JsonSchema(s) for s in ({"pattern": "("}, {"minLength": 2, "maxLength": 1}, {"enum": ["\x00"]})),
        *(
            JsonSchema(s)
            for s in ({"minItems": 9**30}, {"multipleOf": 1e-300}, {"maximum": 1e400}, {"required": ["x"] * 99})
        ),
        *(StructuralTag(t) for t in ({}, {"format": 1}, {"format": {"type": "x"}}, {"structures": [1]}, "[]", "1")),
    ],
    ids=lambda c: str(c)[:60],
)
def test_nothing_but_the_two_errors_comes_out(strategy: GrammarStrategy, constraint: Constraint) -> None:
    try:
        compiled = strategy.compile(constraint)
    except (InvalidGrammar, UnsupportedGrammar) as error:
        assert str(error)
    else:
        compiled.matcher(STOP).fill_bitmask(allocate(1, 128), 0)


def test_grammars(strategy: GrammarStrategy, ids: Ids) -> None:
    matcher = strategy.compile(Grammar('start: "a" start "b" | "x"', "lark")).matcher(STOP)
    assert matcher.accept([*ids("aaxbb"), 0]) == 6
    matcher.rollback(2)
    assert matcher.accept([0]) == 0


def test_a_vocabulary_needs_a_stop_token(make: Callable[..., GrammarStrategy]) -> None:
    with pytest.raises(InvalidConfiguration, match="special token"):
        make(Vocabulary([b"a"], frozenset()))


PAD, LONG = " ", "  "
ONE = [[int(i == j) for j in range(5)] for i in range(5)]
"""Five lists of five numbers, in each of which one is 1 and the others are 0."""


@pytest.mark.parametrize(
    ("whitespace", "accepted", "refused"),
    [
        ("any", ['{"a":[1,2]}', '{ "a" : [ 1 ,2]}', '{"a":' + " " * 65 + "[1,2]}"], [' {"a":[1,2]}', '{"a":[1,2]} ']),
        (
            "bounded",
            ['{"a":[1,2]}', *(f'{{{PAD * a}"a"{PAD * b}:[{PAD * c}1{PAD * d},{PAD * e}2]}}' for a, b, c, d, e in ONE)],
            [*(f'{{{LONG * a}"a"{LONG * b}:[{LONG * c}1{LONG * d},{LONG * e}2]}}' for a, b, c, d, e in ONE)],
        ),
        ("compact", ['{"a":[1,2]}'], ['{"a": [1,2]}', '{"a":[1, 2]}', '{ "a":[1,2]}']),
        ("spaced", ['{"a": [1, 2]}'], ['{"a":[1, 2]}', '{"a": [1,2]}', '{ "a": [1, 2]}']),
    ],
)
def test_whitespace(
    make: Callable[..., GrammarStrategy],
    vocabulary: Vocabulary,
    ids: Ids,
    whitespace: Whitespace,
    accepted: list[str],
    refused: list[str],
) -> None:
    schema = JsonSchema(
        {"type": "object", "properties": {"a": {"type": "array", "items": POSITIVE}}, "required": ["a"]}
    )
    compiled = make(vocabulary, whitespace=whitespace).compile(schema)
    for text in (*accepted, *refused):
        tokens = [*ids(text), 0]
        assert (compiled.matcher(STOP).accept(tokens) == len(tokens)) == (text in accepted), text


def test_nbytes_grows_with_the_grammar(strategy: GrammarStrategy) -> None:
    small = strategy.compile(Choice(["a"])).nbytes
    assert 0 < small < strategy.compile(Choice([f"{i:05}" for i in range(2000)])).nbytes
