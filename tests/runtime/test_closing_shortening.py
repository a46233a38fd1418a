"""Shortening of a completion that exceeds the budget."""

from __future__ import annotations

import json
from typing import Any

import pytest
from guideway.api import GrammarStrategy, JsonSchema, Vocabulary
from guideway.json_schema.cursor import START
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing import Lexicon
from guideway.runtime.constraints.closing.search import find_completion
from guideway.runtime.constraints.closing.shortening import shortened
from guideway.runtime.sequences.replay import new_matcher
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

LONGER = [b'":"', b'","', b'{"', b'"}', b'":', b"re", b"quired", b"required", b"nam", b"ename", b"of"]
STOP = 256 + len(LONGER)
VOCABULARY = Vocabulary([*(bytes([i]) for i in range(256)), *LONGER, b""], frozenset({STOP}), {STOP: "</s>"})
LEXICON = Lexicon(VOCABULARY)
NAMES = ("first required", "second required")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in (NAMES[0], "may be", NAMES[1])},
    "required": list(NAMES),
    "additionalProperties": False,
}
STRATEGIES = [LLGuidanceStrategy, XGrammarStrategy]


def free(token_ids: Any) -> bool:
    return True


def spelt(text: str) -> list[int]:
    return [*text.encode(), STOP]


def matcher_of(cls: type[GrammarStrategy], schema: Any = SCHEMA) -> Any:
    strategy = cls(VOCABULARY, {})
    return new_matcher(strategy, strategy.compile(JsonSchema(schema)), VOCABULARY.stop_token_ids)


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_members_that_may_be_left_out_are_and_fewest_tokens_spell_the_rest(cls: type[GrammarStrategy]) -> None:
    whole = spelt('{"first required":"","may be":"x","second required":""}')
    found = shortened(matcher_of(cls), LEXICON, whole, limit=20, cursor=START, is_free=free)
    assert VOCABULARY.decode(found).decode() == '{"first required":"","second required":""}'
    assert len(found) == len('{"') - 1 + len("first ") + 1 + 2 + len("second ") + 1 + 3


@pytest.mark.parametrize(
    ("before", "rest", "expected"),
    [
        ("", '{"a":{"b":[1],"c":2}}', "{}"),
        ('{"a":{"b":[', '1],"c":2},"d":3}', "1]}}"),
        ('{"a":1,', '"d":3}', '"d":3}'),  # only a name may follow the comma
        ('{"a', '":1}', '":1}'),
    ],
)
def test_what_began_before_stays(before: str, rest: str, expected: str) -> None:
    matcher = matcher_of(LLGuidanceStrategy, {"type": "object"})
    assert matcher.accept(tuple(before.encode())) == len(before)
    found = shortened(matcher, LEXICON, spelt(rest), limit=1, cursor=START.after(before.encode()), is_free=free)
    assert VOCABULARY.decode(found).decode() == expected
    assert matcher.validate(tuple(found)) == len(found)


def test_what_is_banned_is_not_brought_back() -> None:
    whole = spelt('{"first required":"","second required":""}')
    quotes = 256 + LONGER.index(b'":"')
    found = shortened(
        matcher_of(LLGuidanceStrategy),
        LEXICON,
        whole,
        limit=1,
        cursor=START,
        is_free=lambda token_ids: quotes not in token_ids,
    )
    assert found == whole


def test_a_budget_that_only_the_shorter_one_fits_is_enough() -> None:
    matcher, limit = matcher_of(LLGuidanceStrategy), 21
    options: Any = {"past": (), "cursor": START, "bans": Bans()}
    stops = VOCABULARY.stop_token_ids
    found = find_completion(matcher, LEXICON, stops, limit=limit, **options)
    assert found is not None and len(found) <= limit
    assert json.loads(VOCABULARY.decode(found)) == dict.fromkeys(NAMES, "")
    assert find_completion(matcher, LEXICON, stops, limit=16, **options) is None
