"""Closing: an output under a constraint is complete within its budget, for any logits."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jsonschema
import numpy as np
import pytest
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    FillJob,
    FinishReason,
    Grammar,
    GrammarStrategy,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    Matcher,
    ModifierContext,
    Regex,
    Request,
    SamplingParams,
    StepBatch,
    StructuralTag,
)
from guideway.api.bitmask import allow_only, is_allowed
from guideway.devices.numpy.device import NumpyDevice
from guideway.json_schema.cursor import START, JsonCursor, Place
from guideway.runtime import Runtime
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing import Budget, Closer, Reserve
from guideway.runtime.constraints.closing.patterns import Pattern
from guideway.runtime.sequences.replay import new_matcher
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

from tests.support.closing import LEXICON, STOPS, VOCABULARY, allowed_after, completion, drawn
from tests.support.fake_host import FakeHost
from tests.support.stages import everyday, one_in

STRATEGIES = [LLGuidanceStrategy, XGrammarStrategy]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "pets": {"type": "array", "items": {"$ref": "#/$defs/pet"}},
        "kind": {"enum": ["a", "something longer"]},
    },
    "required": ["name", "zip", "kind"],
    "additionalProperties": False,
    "$defs": {
        "pet": {
            "type": "object",
            "properties": {"age": {"type": "integer", "minimum": 100}, "young": {"$ref": "#/$defs/pet"}},
            "required": ["age"],
            "additionalProperties": False,
        }
    },
}


def walk(strategy: GrammarStrategy, constraint: Constraint, num_tokens: int, seed: int) -> bytes | None:
    """Return a random output of a constraint; None if it is incomplete."""
    budget = Budget(num_tokens, Reserve.of(constraint, VOCABULARY))
    return drawn(strategy, strategy.compile(constraint), budget, seed)


def shortest(strategy: GrammarStrategy, constraint: Constraint, is_json: bool = True) -> list[int]:
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    cursor = START if is_json else None
    found = completion(matcher, 500, cursor)
    assert found is not None
    return found


@pytest.mark.parametrize("more", everyday([0, 1, 7, 40], 0, 40))
@pytest.mark.parametrize("cls", one_in(2, STRATEGIES), ids=lambda cls: cls.name)
def test_a_random_walk_completes_a_schema_within_any_budget_it_fits(cls: type[GrammarStrategy], more: int) -> None:
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(PERSON)
    least = len(shortest(strategy, constraint))
    for seed in range(6):
        output = walk(strategy, constraint, least + more, seed)
        assert output is not None
        jsonschema.validate(json.loads(output), PERSON)


@pytest.mark.parametrize(
    ("constraint", "num_tokens"),
    [
        (JsonObject(), 12),
        (Regex("[ab]{3}(c|dd)+x"), 6),
        (Regex("[^/]+/[^/]+"), 12),
        (Choice(["yes", "no", "perhaps not"]), 4),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_a_random_walk_completes_other_kinds(
    cls: type[GrammarStrategy], constraint: Constraint, num_tokens: int
) -> None:
    strategy = cls(VOCABULARY, {})
    for seed in range(6):
        assert walk(strategy, constraint, num_tokens, seed) is not None


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_a_completion_is_taken_from_everywhere_and_its_rest_is_found_again(cls: type[GrammarStrategy]) -> None:
    """A rebuilt matcher therefore draws the same tokens."""
    strategy, rng = cls(VOCABULARY, {}), random.Random(4)
    matcher = new_matcher(strategy, strategy.compile(JsonSchema(PERSON)), STOPS)
    bitmask = np.zeros((1, LEXICON.words), dtype=np.int32)
    cursor: JsonCursor = START
    for _ in range(60):
        matcher.fill_bitmask(bitmask, 0)
        found = completion(matcher, 300, cursor)
        assert found is not None and found[-1] in STOPS
        again = np.zeros_like(bitmask)
        matcher.fill_bitmask(again, 0)
        assert (again == bitmask).all(), "the search moved the matcher"
        assert matcher.validate(tuple(found)) == len(found)
        after = found[0]
        if len(found) > 1:
            matcher.accept((after,))
            rest = completion(matcher, 299, cursor.after(VOCABULARY.tokens[after]))
            assert rest == found[1:]
            matcher.rollback(1)
        drawn = [i for i in range(len(VOCABULARY)) if is_allowed(bitmask, 0, i) and i not in STOPS]
        if not drawn:
            return
        token_id = rng.choice(drawn)
        matcher.accept((token_id,))
        cursor = cursor.after(VOCABULARY.tokens[token_id])


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_the_shortest_value_of_an_enumeration_is_found_first(cls: type[GrammarStrategy]) -> None:
    values = {"enum": ["a long one", "z", "longer"]}
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema({"type": "array", "items": values, "minItems": 8})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    closer = Closer(LEXICON, STOPS, Budget(100, Reserve.of(constraint, VOCABULARY)))
    assert closer.shortest(matcher) == 8 * len(b',"z"') + len(b"]") + 1


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_what_is_optional_is_left_out(cls: type[GrammarStrategy]) -> None:
    item = {
        "type": "object",
        "properties": {"all": {"type": "integer"}, "many": {"type": "integer"}, "z": {"type": "integer"}},
        "required": ["z"],
        "additionalProperties": False,
    }
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema({"type": "array", "items": item, "minItems": 8})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    closer = Closer(LEXICON, STOPS, Budget(200, Reserve.of(constraint, VOCABULARY)))
    assert closer.shortest(matcher) == 8 * len(b',{"z":0}') + len(b"]") + 1


def test_far_from_the_end_no_mask_changes() -> None:
    strategy, constraint = LLGuidanceStrategy(VOCABULARY, {}), JsonSchema(PERSON)
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    closer = Closer(LEXICON, STOPS, Budget(10_000, Reserve.of(constraint, VOCABULARY)))
    bitmask = np.zeros((1, LEXICON.words), dtype=np.int32)
    matcher.fill_bitmask(bitmask, 0)
    whole, record = bitmask.copy(), closer.record
    assert closer.restrict(matcher, (), bitmask) is None
    assert (bitmask == whole).all()
    assert closer.record is record


@pytest.mark.parametrize(("num_tokens", "first"), [(6, b"a"), (2, b"c")])
def test_a_completion_does_without_banned_tokens_where_it_can(num_tokens: int, first: bytes) -> None:
    strategy, constraint = LLGuidanceStrategy(VOCABULARY, {}), Regex("[ab]{4}x|c")
    banned = frozenset(i for i, token in enumerate(VOCABULARY.tokens) if token == b"c")
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    closer = Closer(LEXICON, STOPS, Budget(num_tokens, Reserve.of(constraint, VOCABULARY), Bans(logit_bias=banned)))
    allowed_after(matcher, closer)
    assert closer.records[0].texts[0].startswith(first)


@pytest.mark.parametrize(
    ("text", "place", "opened"),
    [
        (b"", Place.VALUE, b""),
        (b'{"a', Place.KEY, b"{"),
        (b'{"a"', Place.COLON, b"{"),
        (b'{"a":', Place.VALUE, b"{"),
        (b'{"a": [1', Place.SCALAR, b"{["),
        (b'{"a": [1 ', Place.AFTER, b"{["),
        (b'{"a": [1, "x\\"}', Place.STRING, b"{["),
        (b'{"a": [1, "x\\\\"', Place.AFTER, b"{["),
        (b'{"a": [1], ', Place.KEY_START, b"{"),
        (b'{"a": {}}', Place.AFTER, b""),
    ],
)
def test_where_a_text_ends(text: bytes, place: Place, opened: bytes) -> None:
    whole = START.after(text)
    byte_by_byte = START
    for i in range(len(text)):
        byte_by_byte = byte_by_byte.after(text[i : i + 1])
    assert (whole.place, b"".join(b"[" if names is None else b"{" for names in whole.open)) == (place, opened)
    assert byte_by_byte == whole


def generate(params: Sequence[SamplingParams], **options: Any) -> list[Any]:
    options = {"strategies": {"reference": ReferenceStrategy(VOCABULARY, {})}} | options
    host = FakeHost(VOCABULARY, NumpyDevice(), **options)
    return host.generate([(1, 2 + i) for i in range(len(params))], params)


ENDLESS = Regex("(ab?)+c")


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_an_output_without_an_end_is_closed_and_says_so(num_drafts: int) -> None:
    (closed,) = generate([SamplingParams(max_tokens=9, constraint=ENDLESS)], num_drafts=num_drafts)
    assert closed.finish_reason is FinishReason.STOP
    assert closed.text.endswith("c")
    assert closed.unenforced == ()


def test_who_asks_for_it_is_cut() -> None:
    params = SamplingParams(max_tokens=4, constraint=Regex("[ab]{6}c"), close=False)
    (cut,) = generate([params])
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.unenforced == ()


def test_what_does_not_fit_is_refused_and_says_what_would() -> None:
    params = SamplingParams(max_tokens=4, constraint=Regex("[ab]{6}c"))
    (refused,) = generate([params])
    assert isinstance(refused.error, InvalidRequest)
    assert "into the 4 tokens that are left for it: the shortest one found has 8" in str(refused.error)
    (closed,) = generate([replace(params, max_tokens=8)])
    assert (closed.finish_reason, len(closed.token_ids)) == (FinishReason.STOP, 8)


@pytest.mark.parametrize(
    "constraint",
    [
        Regex("[ab]{6}c"),
        Regex("a(b|ab)+c{2}"),
        Choice(["abcabc", "cab"]),
        JsonSchema({"type": "array", "items": {"enum": [1, 12]}, "minItems": 3}),
        JsonSchema({"type": "string", "minLength": 5}),
    ],
    ids=str,
)
def test_each_limit_below_the_number_that_an_error_names_is_refused_and_others_complete(constraint: Constraint) -> None:
    (refused,) = generate([SamplingParams(max_tokens=1, constraint=constraint)])
    found = re.search(r"the shortest one found has (\d+)", str(refused.error))
    assert found is not None
    shortest = int(found[1])
    params = [SamplingParams(max_tokens=n, constraint=constraint) for n in range(1, shortest + 4)]
    for limit, output in zip(range(1, shortest + 4), generate(params), strict=True):
        if limit < shortest:
            assert found[0] in str(output.error)
        else:
            assert (output.finish_reason, output.unenforced) == (FinishReason.STOP, ())


class Watched(ReferenceStrategy):
    """Records the threads in which drafts are tried, as a search does."""

    threads: ClassVar[set[str]] = set()

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        grammar = super().compile(constraint)
        make = grammar.matcher

        def matcher(stop_token_ids: frozenset[int]) -> Matcher:
            made = make(stop_token_ids)
            validate = made.validate

            def noted(token_ids: Sequence[int]) -> int:
                self.threads.add(threading.current_thread().name)
                return validate(token_ids)

            made.validate = noted  # type: ignore[method-assign]
            return made

        grammar.matcher = matcher  # type: ignore[method-assign]
        return grammar


def test_no_step_waits_for_the_search_for_what_would_fit() -> None:
    host = FakeHost(VOCABULARY, NumpyDevice(), strategies={"watched": Watched(VOCABULARY, {})})
    (refused,) = host.generate([(1,)], [SamplingParams(max_tokens=4, constraint=Regex("[ab]{6}c"))])
    assert "the shortest one found has 8" in str(refused.outputs[0].error)
    assert Watched.threads
    assert all(name.startswith("guideway-compile") for name in Watched.threads)


def test_what_does_not_fit_is_cut_where_the_operator_says_so() -> None:
    (cut,) = generate([SamplingParams(max_tokens=4, constraint=Regex("[ab]{6}c"))], short_budget="cut")
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.unenforced == ("closing",)


def test_an_end_is_known_though_a_step_of_others_is_prepared_before_its_tokens_come() -> None:
    """Several steps may run at once, as in pipeline parallelism."""
    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=2, max_model_len=64)
    runtime = Runtime(context, strategies={"xgrammar": XGrammarStrategy(VOCABULARY, {})})
    constraint = Regex("[ab]+x")
    for slot, params in enumerate([SamplingParams(max_tokens=3, constraint=constraint), SamplingParams(max_tokens=9)]):
        request = Request(request_id=str(slot), prompt_token_ids=(1,), params=params)
        runtime.start(runtime.admit(request), slot)
    for position, token_id in enumerate((*b"ax", min(STOPS)), start=1):
        runtime.prepare(StepBatch.build([0], [position], [[]]))
        runtime.prepare(StepBatch.build([1], [position], [[]]))
        runtime.accept_one(0, 0, [token_id])
        runtime.accept_one(1, 0, [ord("b")])
    assert runtime.closed_early(0)
    assert runtime.journal(0).ends
    runtime.release(0)
    runtime.release(1)
    runtime.close()


def test_a_neighbor_that_is_closed_changes_nobody_else() -> None:
    long = SamplingParams(max_tokens=40, constraint=Regex("[a-z]{20}"))
    alone = generate([long])[0]
    beside = generate([long, SamplingParams(max_tokens=5, constraint=ENDLESS)])[0]
    assert beside.token_ids == alone.token_ids
    assert replace(alone, request_id="") == replace(beside, request_id="")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("string", "begun"),
    [
        ({"pattern": "[0-9]{5}"}, b"12"),
        ({"pattern": "^[A-Z]{3}-[0-9]{4}$"}, b"QX"),
        ({"pattern": "^(19|20)[0-9]{2}/(Q[1-4]|W[0-5][0-9])$"}, b"2024/W"),
        ({"format": "email"}, b"peter"),
        ({"format": "date-time"}, b"2024-11-2"),
        ({"format": "uuid"}, b"0f"),
        ({"minLength": 30}, b"Peter"),
    ],
)
def test_an_end_far_away_is_found(strategy: type[GrammarStrategy], string: dict[str, Any], begun: bytes) -> None:
    """The string that was begun requires characters that no single mask shows."""
    made = strategy(VOCABULARY, {})
    constraint = JsonSchema({"type": "object", "properties": {"z": {"type": "string"} | string}, "required": ["z"]})
    matcher = new_matcher(made, made.compile(constraint), STOPS)
    cursor, begun = START.after(b'{"z":"' + begun), b'{"z":"' + begun
    assert matcher.accept(tuple(LEXICON.spell(begun) or ())) == len(LEXICON.spell(begun) or ())
    witnesses = Reserve.of(constraint, VOCABULARY).witnesses
    found = completion(matcher, 60, cursor, witnesses=witnesses)
    assert found is not None and matcher.accept(tuple(found)) == len(found)
    text = begun + VOCABULARY.decode(found[:-1])
    jsonschema.validate(json.loads(text), json.loads(json.dumps(constraint.parsed)))


@pytest.mark.parametrize(
    ("pattern", "least", "farthest", "examples"),
    [
        ("^[A-Z]{3}-[0-9]{4}$", 8, 8, ("AAA-0000",)),
        ("(a|bcd|ef)+@x", 3, 5, ("a@x", "ef@x", "bcd@x")),
        ("([a-z]{10})*", 0, 10, ("", "aaaaaaaaaa")),
        (r"^(?!foo)\w+\.[^a]$", 3, 3, ("a.0",)),
        (r"\D\S\W[^\d\s]", 4, 4, ("aa-a",)),
        ("", 0, 0, ("",)),
    ],
)
def test_what_a_pattern_asks_for(pattern: str, least: int, farthest: int, examples: tuple[str, ...]) -> None:
    found = Pattern.of(pattern)
    assert found is not None
    assert (found.least, found.farthest, found.examples) == (least, farthest, examples)
    assert all(re.search(pattern, example) for example in examples)


@pytest.mark.parametrize("pattern", ["(", r"\p{L}+", "a{2,1}"])
def test_a_pattern_that_cannot_be_read_has_no_examples(pattern: str) -> None:
    assert Pattern.of(pattern) is None
    assert Reserve.of(Regex(pattern), VOCABULARY).witnesses == ()


def test_a_completion_does_without_stop_strings_where_it_can() -> None:
    strategy = LLGuidanceStrategy(VOCABULARY, {})
    constraint = JsonSchema({"type": "object", "properties": {"z": {"type": "string"}}, "required": ["z"]})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    texts = []
    for avoided in ((), (b'""',), (b'""', b"a", b"q"), (b"}",)):
        found = completion(matcher, 40, bans=Bans(stop=avoided))
        texts.append(None if found is None else VOCABULARY.decode(found))
    assert texts[0] == b'{"z":""}'
    assert all(text is not None for text in texts[:3])
    assert b'""' not in texts[1]
    assert not any(text in texts[2] for text in (b'""', b"a", b"q"))
    assert texts[3] is None
    budget = Budget(12, Reserve.of(constraint, VOCABULARY), Bans(stop=(b"}",)))
    closer = Closer(LEXICON, STOPS, budget)
    assert closer.shortest(matcher) == 9, "the grammar wins"


@pytest.mark.parametrize(
    "pattern",
    [r"([[:space:]]){1024}", "[a&&[b]]{9}", "[a[bc]]{9}"],
    ids=["a class of POSIX", "an intersection", "nested"],
)
def test_what_libraries_read_otherwise_is_not_read(pattern: str) -> None:
    assert Pattern.of(pattern) is None


@pytest.mark.slow
def test_accepted_drafts_decide_as_single_tokens_do() -> None:
    """Closing records depend only on the tokens, not on how many arrive per step."""
    strategy, constraint = LLGuidanceStrategy(VOCABULARY, {}), JsonSchema(PERSON)
    rng = random.Random(3)
    for _ in range(6):
        budget = Budget(rng.randrange(60, 110), Reserve.of(constraint, VOCABULARY))
        one, several = (new_matcher(strategy, strategy.compile(constraint), STOPS) for _ in range(2))
        alone, together = Closer(LEXICON, STOPS, budget), Closer(LEXICON, STOPS, budget)
        rows: list[list[int]] = []
        tokens: list[int] = []
        while not tokens or tokens[-1] not in STOPS:
            allowed = allowed_after(one, alone)
            rows.append(allowed)
            tokens.append(rng.choice([i for i in allowed if rng.random() < 0.2] or allowed))
            one.accept(tokens[-1:])
            alone.accept(tokens[-1:])
        done = 0
        while done < len(tokens):
            drafts = tuple(tokens[done : done + rng.randrange(4)])
            bitmask = np.zeros((1 + len(drafts), LEXICON.words), dtype=np.int32)
            strategy.fill((FillJob(several, drafts, 0),), bitmask)
            together.restrict(several, drafts, bitmask)
            count = min(len(drafts) + 1, len(tokens) - done)
            for row, wanted in enumerate(rows[done : done + count]):
                assert [i for i in range(len(VOCABULARY)) if is_allowed(bitmask, row, i)] == wanted
            several.accept(tokens[done : done + count])
            known = together.records[min(count, len(together.records)) - 1]
            together.accept(())  # as in a query before the draw
            together.accept(tokens[done : done + count])
            assert together.record == known
            done += count


@pytest.mark.parametrize(
    ("constraint", "least"),
    [
        (
            StructuralTag(
                {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<p>",
                        "content": {"type": "json_schema", "json_schema": PERSON},
                        "end": "</p>",
                    },
                }
            ),
            70,
        ),
        (Grammar('start: "<" /[a-z ]+/ ">" num\nnum: /[0-9]{3}/', dialect="lark"), 10),
    ],
    ids=["tag", "grammar"],
)
def test_what_is_no_json_from_its_first_byte_is_closed(constraint: Constraint, least: int) -> None:
    for budget in (least + 20, least + 60):
        (closed,) = generate(
            [SamplingParams(max_tokens=budget, constraint=constraint)],
            strategies={"llguidance": LLGuidanceStrategy(VOCABULARY, {})},
        )
        assert (closed.finish_reason, closed.unenforced) == (FinishReason.STOP, ()), closed.text


LOCK = b"zebraxylophone"


class LockMatcher(Matcher):
    """A matcher of letters that must end with one word. It knows the tokens to that end."""

    def __init__(self, says: Callable[[list[int]], list[int] | None]) -> None:
        self.says = says
        self.states = [(0, False)]
        """Matched characters of the word, and whether the text is complete, after each token."""

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            held, is_over = self.states[-1]
            token = VOCABULARY.tokens[token_id]
            if is_over or not (held == len(LOCK) if token_id in STOPS else held < len(LOCK) and token.islower()):
                return count
            held += 1 if token == LOCK[held : held + 1] else -held
            self.states.append((held, token_id in STOPS))
        return len(token_ids)

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        allow_only(bitmask, row, [i for i in range(len(VOCABULARY)) if self.validate((i,)) == 1])

    def is_terminated(self) -> bool:
        return self.states[-1][1]

    def is_accepting(self) -> bool:
        return self.states[-1] == (len(LOCK), False)

    def rollback(self, num_tokens: int) -> None:
        self.states = self.states[: len(self.states) - num_tokens]

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        rest = [LEXICON.ids[bytes([byte])] for byte in LOCK[self.states[-1][0] :]] + [min(STOPS)]
        return self.says(rest) if len(rest) <= limit else None


@pytest.mark.parametrize(
    ("says", "is_complete"),
    [
        (lambda rest: rest, True),
        (lambda _: None, False),
        (lambda rest: rest[:-1], False),
        (lambda rest: [LEXICON.ids[b"q"], *rest[1:]], False),
    ],
    ids=["all", "none", "without a stop token", "what is refused"],
)
def test_a_matcher_that_knows_the_way_is_asked_and_not_believed(
    says: Callable[[list[int]], list[int] | None], is_complete: bool
) -> None:
    matcher, rng = LockMatcher(says), random.Random(1)
    closer = Closer(LEXICON, STOPS, Budget(40, Reserve.of(Regex("[a-z]{14}"), VOCABULARY)))
    output: list[int] = []
    while len(output) < 40 and not matcher.is_terminated():
        token_id = rng.choice(allowed_after(matcher, closer))
        assert matcher.accept((token_id,)) == 1
        closer.accept((token_id,))
        output.append(token_id)
    assert matcher.is_terminated() == is_complete
    assert VOCABULARY.decode(output).endswith(LOCK) == is_complete


@pytest.mark.parametrize(
    ("banned", "avoided", "wanted"),
    [("", (), b"a"), ("a", (), b"e"), ("", (b"a",), b"e"), ("ae", (), b"bcd"), ("abe", (), b"a")],
)
def test_what_a_matcher_says_gives_way_to_what_has_no_banned_token(
    banned: str, avoided: tuple[bytes, ...], wanted: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint, strategy = Regex("a|bcd|e"), LLGuidanceStrategy(VOCABULARY, {})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    told = [LEXICON.ids[b"a"], min(STOPS)]
    monkeypatch.setattr(type(matcher), "shortest_completion", lambda *_: told)
    without = frozenset(LEXICON.ids[letter.encode()] for letter in banned)
    closer = Closer(
        LEXICON, STOPS, Budget(4, Reserve.of(constraint, VOCABULARY), Bans(logit_bias=without, stop=avoided))
    )
    bitmask = np.zeros((1, LEXICON.words), dtype=np.int32)
    assert closer.shortest(matcher) == len(wanted) + 1
    matcher.fill_bitmask(bitmask, 0)
    closer.restrict(matcher, (), bitmask)
    assert closer.records[0].texts[0] == wanted


NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "l": {}, "r": {}}, "required": ["v", "l", "r"]}


@pytest.mark.parametrize(
    "leaf",
    everyday(
        [{"type": "null"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}],
        {"type": "null"},
    ),
)
@pytest.mark.parametrize("cls", everyday(STRATEGIES, LLGuidanceStrategy), ids=lambda cls: cls.name)
def test_recursion_does_not_lead_astray(cls: type[GrammarStrategy], leaf: dict[str, Any]) -> None:
    """The token sequence that ends the recursion is longer than the one that continues it, and comes second."""
    either = {"anyOf": [{"$ref": "#/$defs/node"}, leaf]}
    node = NODE | {"properties": {"v": {"type": "integer"}, "l": either, "r": either}, "additionalProperties": False}
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema({"$ref": "#/$defs/node", "$defs": {"node": node}})
    least = len(shortest(strategy, constraint))
    for seed in range(4):
        output = walk(strategy, constraint, least + 30, seed)
        assert output is not None
        jsonschema.validate(json.loads(output), constraint.parsed)


EXPRESSION = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"a": {"enum": ["+", "-"]}, "b": {"$ref": "#"}, "c": {"$ref": "#"}},
            "required": ["a", "b", "c"],
            "additionalProperties": False,
        },
        {"type": "object", "properties": {"z": {"type": "number"}}, "required": ["z"], "additionalProperties": False},
    ]
}


@pytest.mark.parametrize("cls", everyday(STRATEGIES, LLGuidanceStrategy), ids=lambda cls: cls.name)
def test_the_name_that_leads_into_recursion_gives_way_to_another(cls: type[GrammarStrategy]) -> None:
    strategy, constraint = cls(VOCABULARY, {}), JsonSchema(EXPRESSION)
    assert len(shortest(strategy, constraint)) == len('{"z":0}') + 1
    for seed in range(4):
        output = walk(strategy, constraint, 60 + 10 * seed, seed)
        assert output is not None
        jsonschema.validate(json.loads(output), EXPRESSION)


@pytest.mark.parametrize("depth", one_in(2, [0, 3]))
def test_what_is_called_far_would_have_been_left_alone(depth: int) -> None:
    """Steps skip the check far from the end, which changes nothing, even after refused drafts."""
    schema = PERSON if depth == 0 else {"type": "array", "items": {"type": "array", "items": {"type": "array"}}}
    strategy, constraint = LLGuidanceStrategy(VOCABULARY, {}), JsonSchema(schema)
    grammar, rng, num_far = strategy.compile(constraint), random.Random(5), 0
    for _ in range(8):
        budget = Budget(rng.randrange(60, 400), Reserve.of(constraint, VOCABULARY))
        matcher = new_matcher(strategy, grammar, STOPS)
        always, seldom = Closer(LEXICON, STOPS, budget), Closer(LEXICON, STOPS, budget)
        token_id, num_steps = -1, 0
        while token_id not in STOPS and num_steps < budget.num_tokens:
            num_steps += 1
            bitmask = np.zeros((1, LEXICON.words), dtype=np.int32)
            matcher.fill_bitmask(bitmask, 0)
            before = bitmask.copy()
            first = always.restrict(matcher, (), bitmask)
            if seldom.is_far(1):
                num_far += 1
                assert first is None and (bitmask == before).all()
            else:
                seldom.restrict(matcher, (), before)
                assert (bitmask == before).all()
            allowed = [i for i in range(len(VOCABULARY)) if is_allowed(bitmask, 0, i)]
            token_id = rng.choice([i for i in allowed if VOCABULARY.tokens[i] in (b"[", b"{", b"[[")] or allowed)
            token_id = token_id if rng.random() < 0.2 else rng.choice(allowed)
            for closer in (always, seldom):
                closer.accept((token_id,))
            assert seldom.record == always.record
            if rng.random() < 0.1:  # the token was not final
                for closer in (always, seldom):
                    closer.rollback(1)
                continue
            assert matcher.accept((token_id,)) == 1
    assert num_far > 100
