"""Choice of completions: in another branch than the greedy one, and without banned texts."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from guideway.api import GrammarStrategy, JsonSchema, Regex
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing import Budget, Closer, Reserve
from guideway.runtime.constraints.closing.closer import WORK
from guideway.runtime.sequences.replay import new_matcher
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

from tests.support.closing import (
    LEXICON,
    STOPS,
    VOCABULARY,
    allowed_after,
    beginning_with,
    drawn,
    record,
    watch_searches,
)
from tests.support.stages import everyday, one_in

STRATEGIES = [LLGuidanceStrategy, XGrammarStrategy]


LONG = record(kind={"const": "create_user"}, **{f"field_{i}": {"type": "string"} for i in range(24)})
NOTE = record(kind={"const": "note"}, text={"type": "string"})


@pytest.mark.parametrize("cls", one_in(2, STRATEGIES), ids=lambda cls: cls.name)
@pytest.mark.parametrize("num_tokens", everyday([40, 56, 72], 56))
def test_the_branch_that_is_drawn_may_be_shorter_than_the_plain_one(
    cls: type[GrammarStrategy], num_tokens: int
) -> None:
    """The greedy branch is too long to fit; the model then draws the other one."""
    schema = {"anyOf": [LONG, NOTE]}
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(schema)
    grammar, budget = strategy.compile(constraint), Budget(num_tokens, Reserve.of(constraint, VOCABULARY))
    for seed in range(4):
        output = drawn(strategy, grammar, budget, seed, beginning_with(b'{"kind":"note","text":"'))
        assert output is not None
        jsonschema.validate(json.loads(output), schema)


WORDS = [f"{a}{b}!x" for a in "abcd" for b in "abcdefghijklmnopqrstuvw"]


def count_banned(constraint: JsonSchema | Regex, bans: Bans, num_tokens: int, num_seeds: int) -> int:
    """Return how many of `num_seeds` outputs contain a banned text."""
    strategy = LLGuidanceStrategy(VOCABULARY, {})
    grammar, budget = strategy.compile(constraint), Budget(num_tokens, Reserve.of(constraint, VOCABULARY), bans)
    texts = [*bans.stop, *(VOCABULARY.tokens[i] for i in bans.logit_bias)]
    found = 0
    for seed in range(num_seeds):
        output = drawn(strategy, grammar, budget, seed)
        assert output is not None
        found += any(text in output for text in texts)
    return found


def test_all_of_the_work_is_done_before_a_ban_is_lifted() -> None:
    constraint = JsonSchema({"type": "array", "items": {"enum": [*WORDS, "zz"]}, "minItems": 2})
    assert count_banned(constraint, Bans(stop=(b"!x",)), 20, 6) == 0


@pytest.mark.slow
def test_a_way_back_has_nothing_banned_though_the_output_does() -> None:
    """The completion contains the \"bad\" that the model began; its later items need not."""
    constraint = JsonSchema(
        {"type": "array", "items": record(n={"type": "integer"}, s={"enum": ["bad", "okay"]}), "minItems": 4}
    )
    strategy, bans = LLGuidanceStrategy(VOCABULARY, {}), Bans(stop=(b"bad",))
    grammar, budget = strategy.compile(constraint), Budget(108, Reserve.of(constraint, VOCABULARY), bans)
    outputs = [drawn(strategy, grammar, budget, seed) for seed in range(12)]
    assert all(outputs)
    assert sum(output.count(b"bad") for output in outputs if output) <= 12


@pytest.mark.parametrize(
    ("pattern", "bans"),
    [("(ab|cd{6})e{2}", Bans(logit_bias=frozenset({LEXICON.ids[b"b"]}))), (r"[a-z]*(\.|!{6})", Bans(stop=(b".",)))],
)
@pytest.mark.parametrize("num_tokens", [12, 14])
def test_a_bound_is_none_where_something_is_banned(pattern: str, bans: Bans, num_tokens: int) -> None:
    """The bound is for the shortest end, not for one without banned texts."""
    assert count_banned(Regex(pattern), bans, num_tokens, 20) == 0


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_a_stop_string_is_not_ended_by_the_completion_of_before(cls: type[GrammarStrategy]) -> None:
    """The completion `"}` is found before the model writes the character that turns it into a stop string."""
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(record(z={"type": "string"}))
    grammar = strategy.compile(constraint)
    for bans in (Bans(stop=(b'!"',)), Bans(bad_words=((ord("!"), ord('"')),))):
        budget = Budget(24, Reserve.of(constraint, VOCABULARY), bans)
        output = drawn(strategy, grammar, budget, 1, saying_marks)
        assert output is not None
        assert b'!"' not in output


def saying_marks(_: random.Random, allowed: list[int], output: list[int]) -> int:
    wanted = [*b'{"z":"', *b"aaa", *b"!" * 40]
    return next(i for i in (wanted[len(output)], ord("!"), *allowed) if i in allowed)


def test_a_stop_string_of_any_length_is_seen_coming() -> None:
    text = b"the end of it all"
    constraint = JsonSchema(record(z={"type": "string"}))
    strategy = LLGuidanceStrategy(VOCABULARY, {})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    matcher.accept([*b'{"z":"' + text])
    closer = Closer(LEXICON, STOPS, Budget(40, Reserve.of(constraint, VOCABULARY), Bans(stop=(text + b'"',))))
    closer.accept([*b'{"z":"' + text])
    allowed_after(matcher, closer)
    (found,) = closer.records
    assert found.texts and not found.lifts_bans
    assert not found.texts[0].startswith(b'"')


CREATE = record(kind={"const": "create"}, **{f"f{i}": {"type": "integer"} for i in range(16)})
DELETE = record(kind={"const": "delete"}, id={"type": "integer"})
FIRST = record(version={"const": 1}, **{f"f{i}": {"type": "integer"} for i in range(16)})
SECOND = record(version={"const": 2}, id={"type": "integer"})


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize(
    ("schema", "beginning"),
    one_in(
        4,
        [
            ({"anyOf": [CREATE, DELETE]}, b'{"kind":"create","f0":1'),
            ({"type": "array", "items": {"oneOf": [CREATE, DELETE]}}, b'[{"kind":"create","f0":1'),
            ({"anyOf": [FIRST, SECOND]}, b'{"version":1,"f0":1'),
            ({"anyOf": [{"$ref": "#/$defs/a"}, SECOND], "$defs": {"a": FIRST}}, b'{"version":1,"f0":1'),
        ],
    ),
)
@pytest.mark.parametrize("num_tokens", [40, 60, 80])
def test_no_branch_is_chosen_that_does_not_fit(
    cls: type[GrammarStrategy], schema: dict[str, Any], beginning: bytes, num_tokens: int
) -> None:
    """The discriminator of an object is a string or number, and selects a branch with many required properties."""
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(schema)
    grammar, budget = strategy.compile(constraint), Budget(num_tokens, Reserve.of(constraint, VOCABULARY))
    output = drawn(strategy, grammar, budget, 1, beginning_with(beginning))
    assert output is not None
    jsonschema.validate(json.loads(output), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"user": {"properties": CREATE["properties"], "required": CREATE["required"]}}},
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": CREATE},
        {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": CREATE},
        {"type": "object", "properties": {"a": {"type": "null"}}, "dependencies": {"a": CREATE}},
    ],
)
def test_what_a_token_may_open_is_known(schema: dict[str, Any]) -> None:
    assert Reserve.of(JsonSchema(schema), VOCABULARY).growth > 100


@pytest.mark.parametrize("stop", [b"}", b"a", b'"}'])
def test_a_ban_that_cannot_be_kept_is_not_tried_with_each_token(stop: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    nested = record(name={"type": "string"}, info=record(a={"type": "string"}, b={"type": "array", "items": {}}))
    strategy, constraint = LLGuidanceStrategy(VOCABULARY, {}), JsonSchema(nested)
    grammar, searches = strategy.compile(constraint), watch_searches(monkeypatch)
    budget = Budget(115, Reserve.of(constraint, VOCABULARY), Bans(stop=(stop,)))
    assert drawn(strategy, grammar, budget, 3) is not None
    assert sum(each.work >= WORK for each in searches) <= 2
    assert sum(each.work for each in searches) < 10 * WORK


@pytest.mark.parametrize("num_items", one_in(2, [100, 600]))
def test_a_long_list_is_completed(num_items: int) -> None:
    """The depth of the search grows with the completion, and its memory less than quadratically."""
    point = record(lat={"type": "number"}, lon={"type": "number"})
    for items, each in (({"type": "number"}, 2), (point, 18)):
        constraint = JsonSchema({"type": "array", "items": items, "minItems": num_items})
        strategy, budget = LLGuidanceStrategy(VOCABULARY, {}), num_items * each + 8
        matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
        begun = Closer(LEXICON, STOPS, Budget(budget, Reserve.of(constraint, VOCABULARY)))
        allowed_after(matcher, begun)
        text = begun.records[0].texts[0]
        assert 0 < len(text) < budget
        assert len(json.loads(text)) == num_items


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("more", [0, 3, 9, 21])
def test_equal_masks_do_not_hide_a_far_end(cls: type[GrammarStrategy], more: int) -> None:
    """After one to eight letters the masks are the same, and then one more letter costs 60 tokens."""
    constraint = JsonSchema({"type": "string", "pattern": "^(a{1,9}|a{10}b{60})$"})
    strategy, budget = cls(VOCABULARY, {}), Budget(8 + more, Reserve.of(constraint, VOCABULARY))
    assert drawn(strategy, strategy.compile(constraint), budget, 1, beginning_with(b'"' + b"a" * 60)) is not None
