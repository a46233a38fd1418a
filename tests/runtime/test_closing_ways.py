"""Which completion closing finds: one in another branch than the plain way's, and one without what is banned."""

from __future__ import annotations

import json

import jsonschema
import pytest
from guideway.api import GrammarStrategy, JsonSchema, Regex
from guideway.runtime.bans import Bans
from guideway.runtime.closing import Budget, Reserve
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

from tests.support.closing import LEXICON, VOCABULARY, beginning_with, drawn, record

STRATEGIES = [LLGuidanceStrategy, XGrammarStrategy]


LONG = record(kind={"const": "create_user"}, **{f"field_{i}": {"type": "string"} for i in range(24)})
NOTE = record(kind={"const": "note"}, text={"type": "string"})


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("num_tokens", [40, 56, 72])
def test_the_branch_that_is_drawn_may_be_shorter_than_the_plain_one(
    cls: type[GrammarStrategy], num_tokens: int
) -> None:
    """Nothing fits by the plain way, whose branch is long; the model then draws the other."""
    schema = {"anyOf": [LONG, NOTE]}
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(schema)
    grammar, budget = strategy.compile(constraint), Budget(num_tokens, Reserve.of(constraint, VOCABULARY))
    for seed in range(4):
        output = drawn(strategy, grammar, budget, seed, beginning_with(b'{"kind":"note","text":"'))
        assert output is not None
        jsonschema.validate(json.loads(output), schema)


WORDS = [f"{a}{b}!x" for a in "abcd" for b in "abcdefghijklmnopqrstuvw"]


def banned_in(constraint: JsonSchema | Regex, bans: Bans, num_tokens: int, num_seeds: int) -> int:
    """How many of some outputs have what is banned."""
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
    assert banned_in(constraint, Bans(stop=(b"!x",)), 20, 6) == 0


def test_a_way_back_has_nothing_banned_though_the_output_does() -> None:
    """One \"bad\" that the model began makes the completion have it; those of the items after it need not."""
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
    """It says how soon the output can end, not how soon without that."""
    assert banned_in(Regex(pattern), bans, num_tokens, 20) == 0
