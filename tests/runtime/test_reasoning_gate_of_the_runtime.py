"""The reasoning gate: it finds the end of the reasoning, masks tokens that would blur it, and forces it in time."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guideway import FinishReason, ReasoningConfig
from guideway.api import (
    CompiledGrammar,
    Constraint,
    GenerationResult,
    InvalidRequest,
    Matcher,
    ModifierContext,
    PluginError,
    Regex,
    Request,
    SamplingParams,
    StepBatch,
    Vocabulary,
)
from guideway.api.bitmask import unpack
from guideway.devices.numpy.device import NumpyDevice
from guideway.runtime import Journal, Runtime
from guideway_conformance.grammar.vocabularies import GreedyEncoder
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy
from prometheus_client import REGISTRY

from tests.support.fake_host import FakeHost
from tests.support.moves import moved, rebuilt
from tests.support.stages import one_in

TOKENS = (b"<", b"/", b">", b"t", b"</t", b">x", b"x", b"y", b"1", b"x1", b" ", b"t>y1", b"xy1", b"")
STOP = len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, frozenset({STOP}), {STOP: "</s>"}, encoder=GreedyEncoder(TOKENS), logits_width=40)
MARKER = "</t>"
ENDING = (4, 2)
PATTERN = "x[xy]{0,200}1"
CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=8, max_model_len=64)
STRATEGIES = {"reference": ReferenceStrategy, "xgrammar": XGrammarStrategy}


def runtime(strategy: str = "reference", **options: Any) -> Runtime:
    built = {strategy: STRATEGIES[strategy](VOCABULARY, {})}
    return Runtime(CONTEXT, strategies=built, reasoning=ReasoningConfig(end_str=MARKER), **options)


def start_sequence(subject: Runtime, slot: int = 0, request_id: str = "r", **params: Any) -> Any:
    params = {"max_tokens": 40, "constraint": Regex(PATTERN)} | params
    admission = subject.admit(Request(request_id=request_id, prompt_token_ids=(1,), params=SamplingParams(**params)))
    subject.start(admission, slot)
    return admission


def allowed_tokens(subject: Runtime, drafts: Sequence[int] = (), slot: int = 0) -> list[set[int]]:
    """Return the tokens that each row of the next step allows."""
    position = 1 + len(subject.journal(slot).token_ids)
    step = subject.prepare(StepBatch.build([slot], [position], [list(drafts)]))
    found = np.ones((1 + len(drafts), len(TOKENS)), dtype=bool)
    if (payload := subject.bitmask(step)) is not None:
        found[payload.rows] &= unpack(payload.arrays["bitmask"], len(TOKENS))
    return [set(np.flatnonzero(row).tolist()) for row in found]


def accept(subject: Runtime, token_ids: Sequence[int], slot: int = 0) -> str:
    return subject.accept_one(slot, 0, list(token_ids)).action


def count_released(subject: Runtime) -> float:
    """Release the sequence in slot 0 and return how many outputs that were closed early this counted."""
    before = REGISTRY.get_sample_value("guideway_closed_early_total", {"strategy": "reference"}) or 0
    subject.release(0)
    return (REGISTRY.get_sample_value("guideway_closed_early_total", {"strategy": "reference"}) or 0) - before


EVERY = set(range(len(TOKENS)))


def test_until_the_marker_all_is_free_but_the_end_and_what_straddles_it() -> None:
    subject = runtime()
    start_sequence(subject)
    assert allowed_tokens(subject) == [EVERY - {STOP}]
    for token_id, free in ((6, EVERY - {STOP}), (0, EVERY - {STOP}), (1, EVERY - {STOP, 11})):
        assert accept(subject, [token_id]) == "continue"
        assert allowed_tokens(subject) == [free]
    assert accept(subject, [3]) == "continue"
    assert allowed_tokens(subject) == [EVERY - {STOP, 5}]
    assert subject.journal(0).constraint_start is None
    assert accept(subject, [2]) == "continue"
    assert subject.journal(0).constraint_start == 5
    assert allowed_tokens(subject) == [{6, 9, 12}]
    assert [accept(subject, [token_id]) for token_id in (6, 7, 8, STOP)] == ["continue"] * 3 + ["finish"]
    assert subject.fault(0) is None


@pytest.mark.parametrize("width", range(1, 9))
def test_the_constraint_begins_in_the_midst_of_a_step(width: int) -> None:
    """If a host has drawn further, the constraint checks the tokens after the marker."""
    subject = runtime()
    start_sequence(subject)
    tokens = [7, *ENDING, 6, 7, 8, STOP]
    for start in range(0, len(tokens), width):
        action = accept(subject, tokens[start : start + width])
    assert (action, subject.journal(0).constraint_start) == ("finish", 3)


def test_drafts_are_cut_before_what_ends_the_reasoning() -> None:
    subject = runtime()
    start_sequence(subject)
    assert subject.validate(0, [6, 7, *ENDING, 6]) == 3
    assert subject.validate(0, [6, STOP, 6]) == 1
    assert subject.validate(0, [4, 5]) == 1
    assert allowed_tokens(subject, [6, 4]) == [EVERY - {STOP}, EVERY - {STOP}, EVERY - {STOP, 5}]


def test_a_budget_that_is_used_up_forces_the_marker() -> None:
    subject = runtime()
    start_sequence(subject, thinking_token_budget=3)
    assert accept(subject, [6, 6]) == "continue"
    assert allowed_tokens(subject, [6, 4]) == [EVERY - {STOP}, {4}, {2}]
    assert accept(subject, [6]) == "continue"
    assert subject.validate(0, [4, 2]) == 1
    assert allowed_tokens(subject) == [{4}]
    assert accept(subject, [4]) == "continue"
    assert allowed_tokens(subject) == [{2}]
    assert accept(subject, [2]) == "continue"
    assert allowed_tokens(subject) == [{6, 9, 12}]
    assert not subject.closed_early(0)


def test_a_marker_that_has_begun_is_completed() -> None:
    subject = runtime()
    start_sequence(subject, thinking_token_budget=3)
    accept(subject, [6, 7, 4])
    assert allowed_tokens(subject) == [{2}]
    other = runtime()
    start_sequence(other, thinking_token_budget=2)
    accept(other, [6, 0])
    assert allowed_tokens(other) == [{4}], "one of two tokens is no shorter than the marker, which the model knows"


def test_the_marker_is_forced_when_what_is_left_is_marker_and_completion() -> None:
    """The marker takes two tokens, `x1` and the stop token one each."""
    subject = runtime()
    start_sequence(subject, max_tokens=9, constraint=Regex("x1"))
    for _ in range(5):
        assert allowed_tokens(subject) == [EVERY - {STOP}]
        accept(subject, [7])
    for token_id in (4, 2, 9, STOP):
        assert token_id in allowed_tokens(subject)[0]
        assert len(allowed_tokens(subject)[0] - {6}) == 1
        action = accept(subject, [token_id])
    assert action == "finish"
    assert subject.closed_early(0)
    assert subject.unenforced(0) == ()
    assert count_released(subject) == 1


def test_what_is_cut_all_the_same_was_not_closed() -> None:
    subject = runtime()
    start_sequence(subject, max_tokens=9, constraint=Regex("x[xy]*1"))
    for token_id in (7, 7, 7, 7, 7, 4, 2, 6, 6):  # from a host that ignores masks
        allowed_tokens(subject)
        accept(subject, [token_id])
    assert subject.unenforced(0) == ("closing",)
    assert not subject.closed_early(0)
    assert count_released(subject) == 0


def test_without_closing_nothing_is_forced_by_the_limit() -> None:
    subject = runtime()
    start_sequence(subject, max_tokens=4, close=False)
    for _ in range(4):
        assert allowed_tokens(subject) == [EVERY - {STOP}]
        accept(subject, [7])
    assert subject.unenforced(0) == ("constraint",), "it never began"


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_limit_too_small_for_marker_and_answer_is_refused(max_tokens: int) -> None:
    """The marker takes two tokens; `x1` and the stop token take two more."""
    with pytest.raises(InvalidRequest, match=f"into the {max(0, max_tokens - 2)} tokens that are left") as refused:
        start_sequence(runtime(), max_tokens=max_tokens, constraint=Regex("x1"))
    assert refused.value.field == "max_tokens"
    start_sequence(runtime(), max_tokens=max_tokens, constraint=Regex("x1"), close=False)
    start_sequence(runtime(), max_tokens=max_tokens + 1, constraint=Regex("x1"), reasoning=False)
    start_sequence(runtime(), max_tokens=4, constraint=Regex("x1"))


def test_a_limit_too_small_for_marker_and_answer_is_named() -> None:
    subject = runtime(short_budget="cut")
    start_sequence(subject, max_tokens=3)
    for token_id in (4, 2):
        assert allowed_tokens(subject) == [{token_id}]
        accept(subject, [token_id])
    accept(subject, [6])
    assert subject.unenforced(0) == ("closing",)


def test_reasoning_without_a_constraint_is_only_bounded() -> None:
    subject = runtime()
    start_sequence(subject, constraint=None, thinking_token_budget=2, max_tokens=4)
    assert allowed_tokens(subject) == [EVERY]
    accept(subject, [0, 1])
    assert allowed_tokens(subject) == [{4}]
    accept(subject, [4, 2])
    assert subject.journal(0).constraint_start == 4
    straddled = runtime()
    start_sequence(straddled, constraint=None)
    accept(straddled, [4])
    assert allowed_tokens(straddled) == [EVERY]
    accept(straddled, [5, STOP])
    assert straddled.journal(0).constraint_start == 2


def test_a_request_may_do_without() -> None:
    subject = runtime()
    start_sequence(subject, reasoning=False)
    assert allowed_tokens(subject) == [{6, 9, 12}]


def test_a_prompt_that_has_ended_it_asks_for_the_answer() -> None:
    subject = runtime()
    for request_id, reasoning, free in (("a", None, {6, 9, 12}), ("b", True, EVERY - {STOP})):
        params = SamplingParams(constraint=Regex(PATTERN), reasoning=reasoning)
        admission = subject.admit(Request(request_id=request_id, prompt_token_ids=(1, 4, 2, 10), params=params))
        assert admission.request.params.reasoning is bool(reasoning)
        subject.start(admission, 0)
        assert allowed_tokens(subject) == [free]
        subject.release(0)


class Validating(FakeHost):
    """Cuts drafts where the runtime does not accept them."""

    def drafts(self, tokens: list[int]) -> list[int]:
        slot = next(slot for slot, theirs in self.tokens.items() if theirs is tokens)
        found = super().drafts(tokens)
        return found[: self.runtime.validate(slot, found)]


REQUESTS = [
    SamplingParams(max_tokens=40, thinking_token_budget=10, constraint=Regex("x[xy]{3,9}1"), temperature=1.0, seed=1),
    SamplingParams(max_tokens=24, constraint=Regex("x[xy]{3,9}1"), temperature=1.0, seed=2),
    SamplingParams(max_tokens=24, constraint=Regex("x[xy]{3,9}1"), reasoning=False, temperature=1.0, seed=3),
    SamplingParams(max_tokens=40, thinking_token_budget=5, temperature=1.0, seed=4),
    SamplingParams(max_tokens=50, constraint=Regex("x[xy]{3,9}1"), temperature=2.0, seed=5),
    SamplingParams(max_tokens=16, constraint=Regex("x1"), logit_bias={4: -np.inf, 2: -np.inf}, seed=6),
]


def results(host: FakeHost) -> list[GenerationResult]:
    return host.generate([[i + 1] for i in range(len(REQUESTS))], REQUESTS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_answer_is_complete_behind_the_first_marker(strategy: str) -> None:
    found = results(Validating(VOCABULARY, NumpyDevice(), runtime=runtime(strategy)))
    for params, result in zip(REQUESTS, found, strict=True):
        assert result.error is None
        if params.constraint is None:
            continue
        assert isinstance(params.constraint, Regex)
        assert result.finish_reason is FinishReason.STOP
        reasoning, marker, answer = result.text.rpartition(MARKER)
        assert bool(marker) is (params.reasoning is not False)
        assert re.fullmatch(params.constraint.pattern, answer), result.text
        assert MARKER not in reasoning
    assert found[5].unenforced == ("logit_bias",), "the marker's tokens were banned"


@pytest.mark.parametrize("num_drafts", [1, 3, 6])
def test_drafts_change_no_token(num_drafts: int) -> None:
    expected = results(FakeHost(VOCABULARY, NumpyDevice(), runtime=runtime()))
    host = Validating(VOCABULARY, NumpyDevice(), runtime=runtime(), num_drafts=num_drafts)
    assert [result.token_ids for result in results(host)] == [result.token_ids for result in expected]


OUTPUT = [7, 6, 7, *ENDING, 6, 7, 8, STOP]


def forked(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    subject.fork(0, 2, index=1)
    if subject.journal(0).constraint_start is None:  # its parent continues too
        accept(subject, subject.journal(0).token_ids[-1:] or [6], 0)
    return subject, 2


def elsewhere(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    journal: Journal = pickle.loads(pickle.dumps(subject.journal(0)))
    other = runtime()
    other.start(other.admit(replace(admission.request, request_id="r")), 1, journal=journal)
    return other, 1


def rewound(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    """Interrupt a step after its tokens were accepted."""
    count = len(subject.journal(0).token_ids)
    if count < len(OUTPUT):
        accept(subject, OUTPUT[count : count + 1])
        subject.journal(0).rewind(count)
        subject.rebuild(0)
    return subject, 0


@pytest.mark.parametrize("moment", one_in(4, range(len(OUTPUT))), ids="at_{}".format)
@pytest.mark.parametrize("change", [rebuilt, moved, elsewhere, rewound, forked])
@pytest.mark.parametrize("params", [{"thinking_token_budget": 3}, {"max_tokens": 9}], ids=["budget", "limit"])
def test_whatever_becomes_of_a_sequence_its_reasoning_goes_with_it(
    change: Any, moment: int, params: dict[str, Any]
) -> None:
    params = params | {"constraint": Regex("x?yx?y1|xy1")}
    straight = runtime()
    start_sequence(straight, **params)
    masks = []
    for token_id in OUTPUT:
        masks.append(allowed_tokens(straight))
        accept(straight, [token_id])
    subject, slot = runtime(), 0
    admission = start_sequence(subject, **params)
    for i, token_id in enumerate(OUTPUT):
        if i == moment and not (change is forked and i in (3, 4)):  # its parent could not continue
            subject, slot = change(subject, admission)
        assert allowed_tokens(subject, slot=slot) == masks[i]
        assert accept(subject, [token_id], slot) == ("finish" if i == len(OUTPUT) - 1 else "continue")
    assert subject.journal(slot).constraint_start == 5
    assert subject.closed_early(slot) is straight.closed_early(0) is ("max_tokens" in params)


@pytest.mark.parametrize(
    ("params", "field", "said"),
    [
        ({"reasoning": False, "thinking_token_budget": 3}, "thinking_token_budget", "has no effect"),
        ({"thinking_token_budget": 0}, "thinking_token_budget", "a whole number of at least 1"),
        ({"thinking_token_budget": True}, "thinking_token_budget", "a whole number of at least 1"),
        ({"thinking_token_budget": 2.5}, "thinking_token_budget", "a whole number of at least 1"),
        ({"reasoning": "yes"}, "reasoning", "True or False"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        start_sequence(runtime(), **params)
    assert caught.value.field == field


@pytest.mark.parametrize("params", [{"reasoning": True}, {"thinking_token_budget": 3}])
def test_without_a_marker_reasoning_is_refused(params: dict[str, Any]) -> None:
    subject = Runtime(CONTEXT, strategies={}, reasoning=ReasoningConfig())
    with pytest.raises(InvalidRequest, match=r"end of reasoning is not configured; set reasoning\.end_str") as caught:
        start_sequence(subject, constraint=None, **params)
    assert caught.value.field == next(iter(params))
    start_sequence(subject, constraint=None, reasoning=False)


def test_a_stop_token_of_the_marker_is_refused_beside_a_constraint() -> None:
    tokens = (b"x", b"", b"")
    vocabulary = Vocabulary(tokens, frozenset({2}), {1: "</think>", 2: "</s>"})
    context = replace(CONTEXT, vocabulary=vocabulary)
    strategies = {"reference": ReferenceStrategy(vocabulary, {})}
    subject = Runtime(context, strategies=strategies, reasoning=ReasoningConfig(end_str="</think>"))

    def admit(request_id: str, constraint: Constraint | None, **params: Any) -> None:
        wanted = SamplingParams(stop_token_ids=(1,), constraint=constraint, **params)
        subject.admit(Request(request_id=request_id, prompt_token_ids=(0,), params=wanted))

    with pytest.raises(InvalidRequest, match="stop_token_ids has 1, which is part of a marker"):
        admit("a", Regex("x"))
    admit("b", Regex("x"), reasoning=False)
    admit("c", None)


def test_a_token_that_was_kept_out_is_a_fault() -> None:
    subject = runtime()
    start_sequence(subject)
    allowed_tokens(subject)
    assert accept(subject, [STOP]) == "fail"
    assert f"token {STOP} was drawn although the mask forbids it" in str(subject.fault(0))


class Breaking(ReferenceStrategy):
    """Its matchers raise in `validate`, which the search for a shortest output calls."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        grammar = super().compile(constraint)
        make = grammar.matcher

        def matcher(stop_token_ids: frozenset[int]) -> Matcher:
            made = make(stop_token_ids)

            def validate(token_ids: Sequence[int]) -> int:
                raise RuntimeError("out of order")

            made.validate = validate  # type: ignore[method-assign]
            return made

        grammar.matcher = matcher  # type: ignore[method-assign]
        return grammar


def test_a_strategy_that_breaks_when_its_shortest_answer_is_searched_for_ends_no_request_that_has_room() -> None:
    """A request with enough room does without the search, and forces the marker early enough; only a request that needs
    the length fails."""
    subject = Runtime(
        CONTEXT, strategies={"breaking": Breaking(VOCABULARY, {})}, reasoning=ReasoningConfig(end_str=MARKER)
    )
    start_sequence(subject, 1, "other", constraint=None)
    start_sequence(subject, max_tokens=40, constraint=Regex("x1"))
    with pytest.raises(PluginError, match=r"grammar\.breaking failed in closing: RuntimeError: out of order"):
        start_sequence(subject, 2, "r2", max_tokens=2, constraint=Regex("x1"))
    batch = StepBatch.build([1], [1], [[]])
    subject.prepare(batch)
    assert [outcome.action for outcome in subject.accept(batch, [[7]])] == ["continue"]
    subject.release(0)
    subject.start(subject.admit(Request(request_id="r3", prompt_token_ids=(1,), params=SamplingParams())), 0)
