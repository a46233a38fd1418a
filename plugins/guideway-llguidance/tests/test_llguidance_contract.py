"""The sentences of the contract, and agreement with the reference strategy."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    Choice,
    Constraint,
    DeadEnd,
    FillJob,
    Grammar,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonObject,
    JsonSchema,
    Matcher,
    Regex,
    StructuralTag,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import allocate
from guideway.builtin.reference.strategy import Strategy as Reference

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


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: str(c)[:60])
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


def test_accept_stops_at_the_first_refused_token(strategy: GrammarStrategy, ids: Ids) -> None:
    matcher = strategy.compile(Regex("abc[0-9]")).matcher(STOP)
    assert matcher.accept([*ids("abx"), *ids("c1")]) == 2
    assert matcher.accept(ids("c1")) == 2  # still there: what was refused left no trace
    assert matcher.accept([]) == 0
    one, two = strategy.compile(Regex("abc[0-9]")).matcher(STOP), strategy.compile(Regex("abc[0-9]")).matcher(STOP)
    assert one.accept(ids("abc1")) == two.accept(ids("ab")) + two.accept(ids("c1"))


def test_validate_leaves_the_state(strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, ids: Ids) -> None:
    matcher = strategy.compile(Regex("abc")).matcher(STOP)
    before = legal(matcher, vocabulary)
    assert matcher.validate([*ids("abc"), 0, 0]) == 4
    assert matcher.validate([*ids("ab"), 2, *ids("c")]) == 2
    assert legal(matcher, vocabulary) == before


def test_nothing_after_termination(strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, ids: Ids) -> None:
    matcher = strategy.compile(Regex("a+")).matcher(STOP)
    assert matcher.accept([*ids("a"), 1, *ids("a"), 0]) == 2
    assert matcher.is_terminated() and not matcher.is_accepting()
    assert matcher.accept(ids("a")) == matcher.accept([0]) == matcher.validate([0]) == 0
    matcher.rollback(1)
    assert not matcher.is_terminated() and matcher.is_accepting()
    assert legal(matcher, vocabulary) == {0, 1, *(i for i, t in enumerate(vocabulary.tokens) if t == b"a")}


def test_rollback_restores_every_mask(strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal) -> None:
    matcher = strategy.compile(CONSTRAINTS[11]).matcher(STOP)
    rng, masks, walked = random.Random(1), [], []
    while not matcher.is_terminated():
        masks.append(legal(matcher, vocabulary))
        walked.append(rng.choice(sorted(masks[-1])))
        assert matcher.accept(walked[-1:]) == 1
    for start in range(len(walked)):
        matcher.rollback(0)
        matcher.rollback(len(walked) - start)
        assert legal(matcher, vocabulary) == masks[start]
        assert matcher.accept(walked[start:]) == len(walked) - start


@pytest.mark.parametrize("count", [-1, -(2**31), 3, 2**31, 2**63 - 1, 2**64])
def test_rollback_refuses_what_it_cannot_undo(
    strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, ids: Ids, count: int
) -> None:
    matcher = strategy.compile(Regex("abc")).matcher(STOP)
    matcher.accept(ids("ab"))
    with pytest.raises(ValueError, match="2 were accepted"):
        matcher.rollback(count)
    assert legal(matcher, vocabulary) == set(ids("c"))


def test_matchers_and_forks_are_independent(
    strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, ids: Ids
) -> None:
    compiled = strategy.compile(Regex("a(b|x)c"))
    first, second = compiled.matcher(STOP), compiled.matcher(STOP)
    first.accept(ids("a"))
    fork = first.fork()
    assert fork.accept(ids("bc")) == 2
    assert legal(first, vocabulary) == {*ids("b"), *ids("x")}
    assert second.accept(ids("ax")) == 2
    fork.rollback(3)
    assert fork.accept(ids("axc")) == 3 and first.accept(ids("bc")) == 2


@pytest.mark.parametrize("stop", [{0}, {1}, {2}, {0, 2}, {3}])
def test_stop_tokens_are_those_of_the_matcher(
    strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, ids: Ids, stop: set[int]
) -> None:
    matcher = strategy.compile(Regex("a|ab")).matcher(frozenset(stop))
    assert not legal(matcher, vocabulary) & {0, 1, 2, 3}
    assert matcher.accept([*ids("a")]) == 1
    assert legal(matcher, vocabulary) & {0, 1, 2, 3} == stop
    assert [t for t in range(4) if matcher.validate([t])] == sorted(stop)
    matcher.accept(ids("b"))
    assert legal(matcher, vocabulary) == stop
    assert matcher.accept([min(stop)]) == 1 and matcher.is_terminated()


@pytest.mark.parametrize("size", [31, 32, 33, 1000])
@pytest.mark.parametrize("padding", [0, 1, 40])
def test_ragged_sizes(make: Callable[..., GrammarStrategy], legal: Legal, size: int, padding: int) -> None:
    tokens = [b"", b"a", b"b", *(b"%d" % i for i in range(size - 4)), b"ab"]
    vocabulary = Vocabulary(tokens, frozenset({0}), {0: "</s>"}, size + padding)
    matcher = make(vocabulary).compile(Regex("(a|b)+")).matcher(frozenset({0}))
    assert legal(matcher, vocabulary) == {1, 2, size - 1}
    assert matcher.accept([size - 1]) == 1
    assert legal(matcher, vocabulary) == {0, 1, 2, size - 1}
    anything = make(vocabulary).compile(Regex(r"[\s\S]*")).matcher(frozenset({0}))
    assert legal(anything, vocabulary) == set(range(size))


def test_a_dead_end_leaves_the_row_and_can_be_undone(make: Callable[..., GrammarStrategy], legal: Legal) -> None:
    vocabulary = Vocabulary([b"", b"a", b"c"], frozenset({0}), {0: "</s>"})
    matcher = make(vocabulary).compile(Regex("ab|c")).matcher(frozenset({0}))
    bitmask = allocate(1, 3)
    bitmask[:] = 12345
    assert matcher.accept([1]) == 1
    for _ in range(2):
        with pytest.raises(DeadEnd):
            matcher.fill_bitmask(bitmask, 0)
        assert (bitmask == 12345).all()
        assert matcher.accept([1]) == matcher.accept([0]) == matcher.validate([2]) == 0
    assert not matcher.is_accepting() and not matcher.is_terminated()
    matcher.rollback(1)
    assert legal(matcher, vocabulary) == {1, 2}
    assert matcher.accept([2, 0]) == 2


def test_fill_serves_drafts_and_isolates_a_failure(
    make: Callable[..., GrammarStrategy], strategy: GrammarStrategy, vocabulary: Vocabulary, ids: Ids
) -> None:
    matcher = strategy.compile(Regex("abc")).matcher(STOP)
    compiled = make(Vocabulary([b"", *vocabulary.tokens[1:4], b"a"], frozenset({0}), {}, 128)).compile(Regex("ab"))
    dead = compiled.matcher(frozenset({0}))
    dead.accept([4])
    bitmask = allocate(6, 128)
    result = strategy.fill([FillJob(matcher, ids("abx"), 0), FillJob(dead, (), 4)], bitmask)
    assert result.tolist() == [2, -1]
    assert (bitmask[3:] == -1).all()
    again = allocate(1, 128)
    for row, token_ids in enumerate([[], ids("a"), ids("b")]):
        matcher.accept(token_ids)
        matcher.fill_bitmask(again, 0)
        assert np.array_equal(again[0], bitmask[row])


def test_two_threads_compile(strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal) -> None:
    def start(constraint: Constraint) -> set[int]:
        return legal(strategy.compile(constraint).matcher(STOP), vocabulary)

    alone = [start(constraint) for constraint in CONSTRAINTS]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(start, CONSTRAINTS * 4)) == alone * 4


def test_two_threads_share_a_compiled_grammar(
    strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, ids: Ids
) -> None:
    compiled = strategy.compile(JsonObject())

    def walk(_: int) -> set[int]:
        matcher = compiled.matcher(STOP)
        assert matcher.accept(ids('{"a":true')) == 9
        return legal(matcher, vocabulary)

    with ThreadPoolExecutor(2) as pool:
        assert len({frozenset(found) for found in pool.map(walk, range(64))}) == 1


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema("{"),
        JsonSchema({"type": "strin"}),
        JsonSchema({"type": "object", "properties": []}),
        JsonSchema({"$ref": "#/$defs/nothing"}),
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


def test_options_are_checked(make: Callable[..., GrammarStrategy], vocabulary: Vocabulary) -> None:
    for options in ({"whitespace": "none"}, {"whitespaces": "any"}, {"whitespace": 1}):
        with pytest.raises(InvalidConfiguration, match="whitespace"):
            make(vocabulary, **options)
    with pytest.raises(InvalidConfiguration, match="special token"):
        make(Vocabulary([b"a"], frozenset()))


@pytest.mark.parametrize(
    ("whitespace", "accepted", "refused"),
    [
        ("any", ['{"a":[1,2]}', '{ "a" : [ 1 ,2]}', '{"a": [1, 2]}'], []),
        ("compact", ['{"a":[1,2]}'], ['{"a": [1,2]}', '{"a":[1, 2]}', '{ "a":[1,2]}']),
        ("spaced", ['{"a": [1, 2]}'], ['{"a":[1, 2]}', '{"a": [1,2]}', '{ "a": [1, 2]}']),
    ],
)
def test_whitespace(
    make: Callable[..., GrammarStrategy],
    vocabulary: Vocabulary,
    ids: Ids,
    whitespace: str,
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
