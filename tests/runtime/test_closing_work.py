"""Work of closing: none before it is needed, and little, once for all outputs of a constraint, if nothing fits into the
budget."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest
from guideway import Engine
from guideway.api import (
    Constraint,
    GrammarStrategy,
    JsonSchema,
    LimitExceeded,
    Matcher,
    Regex,
    SamplingParams,
)
from guideway.runtime.constraints.closing import Beginnings, Budget, Closer, Reserve, closer
from guideway.runtime.constraints.closing.closer import WORK
from guideway.runtime.constraints.closing.reserve import SCALAR
from guideway.runtime.sequences.replay import new_matcher
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

from tests.support.closing import LEXICON, STOPS, VOCABULARY, completion, drawn, record, watch_searches
from tests.support.stages import everyday, one_in

NAMES = [f"name{i}" for i in range(40)]
REQUIRED = record(**{name: {"type": "string", "pattern": "^[a-z]+$"} for name in NAMES})
ITEMS = {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1000}
LONG = {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 70}
WITH_A_WAY_OUT = {
    "anyOf": [
        record(customer={"type": "integer"}, **{f"customer_{i}": {"type": "integer"} for i in range(20)}),
        record(zq={"type": "integer"}),
    ]
}
PERSON = record(
    name={"type": "string", "maxLength": 24},
    age={"type": "integer", "minimum": 0},
    email={"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}[.]com$"},
)
PEOPLE = {"type": "array", "items": PERSON, "minItems": 4}
RECURSIVE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": record(next={"anyOf": [{"$ref": "#/$defs/node"}, {"const": "the very end of this long list"}]})},
}
STRATEGIES = [LLGuidanceStrategy, XGrammarStrategy]


def first_step(
    strategy: GrammarStrategy,
    schema: dict[str, Any],
    num_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
    beginnings: Beginnings | None = None,
) -> tuple[Closer, int]:
    """Return a closer at the start of an output, and the number of tokens that its matcher got."""
    constraint = JsonSchema(schema)
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    budget = Budget(num_tokens, Reserve.of(constraint, VOCABULARY))
    begun = Closer(LEXICON, STOPS, budget, None, beginnings)
    bitmask = np.zeros((1, LEXICON.words), dtype=np.int32)
    matcher.fill_bitmask(bitmask, 0)
    given = 0
    accept = type(matcher).accept

    def counted(self: Matcher, token_ids: Any) -> int:
        nonlocal given
        given += len(token_ids)
        return accept(self, token_ids)

    with monkeypatch.context() as patch:
        patch.setattr(type(matcher), "accept", counted)
        begun.restrict(matcher, (), bitmask)
    begun.record = begun.records[0]
    return begun, given


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize(("schema", "num_tokens"), one_in(3, [(ITEMS, 64), (ITEMS, 16), (REQUIRED, 100)]))
def test_what_does_not_fit_is_looked_for_thoroughly_before_the_first_token_only(
    cls: type[GrammarStrategy], schema: dict[str, Any], num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(schema)
    grammar, searches = strategy.compile(constraint), watch_searches(monkeypatch)
    assert drawn(strategy, grammar, Budget(num_tokens, Reserve.of(constraint, VOCABULARY)), 1) is None
    late = [each.work for each in searches if not each.is_first]
    assert all(work < WORK for work in late)
    assert sum(late) < 2 * WORK


@pytest.mark.parametrize("cls", one_in(2, STRATEGIES), ids=lambda cls: cls.name)
def test_what_needs_far_more_than_is_left_is_looked_for_now_and_then(
    cls: type[GrammarStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search is needed to know that nothing fits: thorough ones before the first token, for all outputs of a
    constraint, and then some with a part of the work, each when half of what was left is left."""
    strategy, constraint, beginnings = cls(VOCABULARY, {}), JsonSchema(PEOPLE), Beginnings()
    grammar, reserve = strategy.compile(constraint), Reserve.of(constraint, VOCABULARY)
    searches = watch_searches(monkeypatch)
    for seed in range(4):
        searches.clear()
        assert drawn(strategy, grammar, Budget(104, reserve), seed, beginnings=beginnings) is None
        late = [each.work for each in searches if not each.is_first]
        assert any(each.is_first for each in searches) == (seed == 0)
        assert all(work < WORK for work in late)
        assert len(late) <= math.ceil(math.log2(104))


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("schema", one_in(2, [WITH_A_WAY_OUT, RECURSIVE]), ids=["a short branch", "recursion"])
def test_what_goes_far_at_first_is_found_where_another_way_is_short(
    cls: type[GrammarStrategy], schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for num_tokens in (12, 48, 80) if schema is WITH_A_WAY_OUT else (48,):
        begun, _ = first_step(cls(VOCABULARY, {}), schema, num_tokens, monkeypatch)
        jsonschema.validate(json.loads(begun.record.texts[0]), schema)


@pytest.mark.slow
def test_outputs_that_begin_alike_share_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, beginnings = LLGuidanceStrategy(VOCABULARY, {}), Beginnings()
    first, given = first_step(strategy, ITEMS, 16, monkeypatch, beginnings)
    second, given_then = first_step(strategy, ITEMS, 16, monkeypatch, beginnings)
    assert second.record == first.record
    assert given > 0 == given_then
    _, given_to_another = first_step(strategy, ITEMS, 24, monkeypatch, beginnings)
    assert given_to_another > 0


def test_a_search_that_fails_leaves_the_matcher_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, constraint = LLGuidanceStrategy(VOCABULARY, {}), JsonSchema(LONG)
    reserve, bitmask = Reserve.of(constraint, VOCABULARY), np.zeros((1, LEXICON.words), dtype=np.int32)
    begun = Closer(LEXICON, STOPS, Budget(2 * reserve.level, reserve))
    matcher, token_ids = new_matcher(strategy, strategy.compile(constraint), STOPS), LEXICON.spell(b'["a"')
    assert token_ids is not None and matcher.accept(token_ids) == len(token_ids)
    begun.accept(token_ids)
    matcher.fill_bitmask(bitmask, 0)
    before = bitmask.copy()

    def failing(*_: Any, **__: Any) -> None:
        raise LimitExceeded("the library gave up")

    monkeypatch.setattr(closer.Search, "completion", failing)
    with pytest.raises(LimitExceeded, match="gave up"):
        begun.restrict(matcher, (), bitmask)
    matcher.fill_bitmask(bitmask, 0)
    assert np.array_equal(bitmask, before)
    assert begun._accepted == token_ids


@pytest.mark.slow
def test_requests_for_one_constraint_share_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = watch_searches(monkeypatch)
    params = SamplingParams(max_tokens=12, temperature=1.0, constraint=JsonSchema(ITEMS))
    with Engine("demo", grammar=("llguidance",), grammar_host="inline", short_budget="cut") as engine:
        results = engine.generate(["a", "b", "c", "d"], params)
    assert all(len(result.token_ids) == 12 and "closing" in result.unenforced for result in results)
    # one, and two for the shortest output
    assert sum(each.is_first for each in searches) <= 1 + 2


@pytest.mark.parametrize(
    "constraint", [JsonSchema({"const": "x" * 10_000}), Regex("(ab){1000}c")], ids=["const", "regex"]
)
def test_a_long_text_that_does_not_fit_costs_no_host_its_life(constraint: Constraint) -> None:
    """A search whose time grew with the square of the text would exceed the limit of the host's CPU time."""
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=7, constraint=constraint)
    with Engine("demo", grammar=("llguidance",), short_budget="cut") as engine:
        (result,) = engine.generate(["a"], [params])
    assert result.error is None
    assert "closing" in result.unenforced


@pytest.mark.parametrize(
    "pattern",
    one_in(3, ["[a-z]{3}", "[a-z]{2}x{4}|b{30}", "([0-9]{4}-){2}z", ".{4}e", r"\w{3}\.\d", "(ab|c{9}d)+", "a|b.{20}"]),
)
@pytest.mark.parametrize("more", everyday([0, 1, 3], 0))
def test_a_regular_expression_is_complete_within_its_longest_text(pattern: str, more: int) -> None:
    constraint, strategy = Regex(pattern), LLGuidanceStrategy(VOCABULARY, {})
    reserve, grammar = Reserve.of(constraint, VOCABULARY), strategy.compile(constraint)
    for seed in range(20):
        assert drawn(strategy, grammar, Budget(reserve.growth - SCALAR + 2 + more, reserve), seed) is not None


RECORD = record(
    name={"type": "string", "maxLength": 24},
    tags={"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    n={"type": "integer", "maximum": 1000},
)
RECORDS = {"type": "array", "items": RECORD, "minItems": 12}


@pytest.mark.parametrize("cls", one_in(2, STRATEGIES), ids=lambda cls: cls.name)
@pytest.mark.parametrize("more", everyday([20, 100], 20))
def test_an_output_that_leaves_its_completion_comes_back_to_it(
    cls: type[GrammarStrategy], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is near its end from its first token. Searching each time it leaves the completion would take a
    hundred times as long as the steps."""
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(RECORDS)
    reserve, grammar = Reserve.of(constraint, VOCABULARY), strategy.compile(constraint)
    shortest = completion(new_matcher(strategy, grammar, STOPS), 1000)
    assert shortest is not None
    least, searches = len(shortest), watch_searches(monkeypatch)
    for seed in range(4):
        searches.clear()
        output = drawn(strategy, grammar, Budget(least + more, reserve), seed)
        assert output is not None
        jsonschema.validate(json.loads(output), RECORDS)
        assert 16 * sum(not each.is_bridge for each in searches) < len(output)


def test_what_comes_after_a_draft_that_closing_refuses_is_not_looked_at() -> None:
    strategy, constraint = LLGuidanceStrategy(VOCABULARY, {}), JsonSchema({"type": "array", "items": RECORD})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    begun = Closer(LEXICON, STOPS, Budget(4, Reserve.of(constraint, VOCABULARY)))
    drafts = [LEXICON.ids[bytes([byte])] for byte in b'[{"n']
    bitmask = np.zeros((1 + len(drafts), LEXICON.words), dtype=np.int32)
    for row, draft in enumerate(drafts):
        matcher.fill_bitmask(bitmask, row)
        assert matcher.accept((draft,)) == 1
    matcher.fill_bitmask(bitmask, len(drafts))
    matcher.rollback(len(drafts))
    assert begun.restrict(matcher, drafts, bitmask) == 1
    assert len(begun.records) == 2, "rows are looked at that are not drawn from"
