"""The opening marker of the reasoning. If neither request nor prompt says whether an output reasons, its first tokens
decide: they may follow the constraint, or spell the marker in any tokens."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guideway import FinishReason, InvalidConfiguration, InvalidRequest, ReasoningConfig
from guideway.api import ModifierContext, Regex, Request, SamplingParams, StepBatch, Vocabulary
from guideway.api.bitmask import unpack
from guideway.devices.numpy.device import NumpyDevice
from guideway.runtime import Journal, Runtime
from guideway.runtime.constraints.reasoning import StartMarker
from guideway.vocabulary import build_vocabulary
from guideway_conformance.grammar.vocabularies import GreedyEncoder
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from transformers import PreTrainedTokenizerBase

from tests.support.fake_host import FakeHost
from tests.support.moves import moved, rebuilt
from tests.support.stages import everyday
from tests.vocabulary.tokenizers_under_test import byte_level_with_added_tokens, demo, llama2

TOKENS = (b"<", b"t", b">", b"<t", b"t>", b"/", b"</t>", b">x", b"x", b"y", b"1", b"<tx", b"x1", b"", b"", b"")
OPEN, CLOSE, STOP = range(len(TOKENS) - 3, len(TOKENS))
SPECIALS = {OPEN: "<think>", CLOSE: "</think>", STOP: "</s>"}
VOCABULARY = Vocabulary(TOKENS, frozenset({STOP}), SPECIALS, encoder=GreedyEncoder(TOKENS))
CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=12, max_model_len=96)
TEXT = ReasoningConfig(start_str="<t>", end_str="</t>")
SPECIAL = ReasoningConfig(start_str="<think>", end_str="</think>")
IDS = ReasoningConfig(start_token_ids=(0, 8, 0), end_token_ids=(CLOSE,))
MARKERS = {"text": TEXT, "special": SPECIAL, "ids": IDS}
PATTERNS = ["x[xy]{0,9}1", "<[tx<]{0,9}>?[x1]?", "(<t>|<x<)x", "[xy]{0,3}"]
"""Some share a prefix with a marker, or contain it."""


REFERENCE = ReferenceStrategy(VOCABULARY, {})
GRAMMARS = {pattern: REFERENCE.compile(Regex(pattern)) for pattern in PATTERNS}


def runtime(config: ReasoningConfig = TEXT) -> Runtime:
    return Runtime(CONTEXT, strategies={"reference": REFERENCE}, reasoning=config)


def start_sequence(subject: Runtime, prompt: Sequence[int] = (8,), slot: int = 0, **params: Any) -> Any:
    params = {"max_tokens": 60, "constraint": Regex(PATTERNS[0])} | params
    wanted = SamplingParams(**params)
    admission = subject.admit(Request(request_id=f"r{slot}", prompt_token_ids=tuple(prompt), params=wanted))
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


def spell(token_ids: Sequence[int], config: ReasoningConfig) -> tuple[Any, ...]:
    """Return an output as parts, in the units of the configuration's markers."""
    if config is TEXT:  # a special token is not text
        return tuple(part for i in token_ids for part in TOKENS[i] or (f"special {i}",))
    return tuple(token_ids)


def opening_of(config: ReasoningConfig) -> tuple[Any, ...]:
    return {TEXT: tuple(b"<t>"), SPECIAL: (OPEN,), IDS: (0, 8, 0)}[config]


def legal(output: Sequence[int], pattern: str) -> set[int]:
    """Return the tokens that a constraint allows after an output; empty if it does not accept the output."""
    matcher = GRAMMARS[pattern].matcher(VOCABULARY.stop_token_ids)
    if matcher.accept(list(output)) != len(output):
        return set()
    return {i for i in range(len(TOKENS)) if matcher.validate([i]) == 1}


def ways(output: Sequence[int], config: ReasoningConfig) -> set[int]:
    """Return the tokens that continue the opening marker, if an output is a prefix of it."""
    opening, outputs = opening_of(config), [spell([*output, i], config) for i in range(len(TOKENS))]
    return {i for i, then in enumerate(outputs) if len(then) > len(output) and opening[: len(then)] == then}


def expected(output: Sequence[int], config: ReasoningConfig, pattern: str) -> set[int] | None:
    """Return the tokens allowed next while the output is undecided, by definition; None if it reasons."""
    for count in range(1, len(output) + 1):
        if output[count - 1] not in ways(output[: count - 1], config):
            break
        if spell(output[:count], config) == opening_of(config):
            return None
    return legal(output, pattern) | ways(output, config)


def forked(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    subject.fork(0, 2, index=1)
    subject.release(0)
    return subject, 2


def elsewhere(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    journal: Journal = pickle.loads(pickle.dumps(subject.journal(0)))
    other = Runtime(CONTEXT, strategies=subject._strategies, reasoning=subject._gate.config)  # type: ignore[union-attr]
    other.start(other.admit(admission.request), 1, journal=journal)
    return other, 1


@pytest.mark.parametrize("pattern", everyday(PATTERNS, *PATTERNS[1:3]))
@pytest.mark.parametrize("config", MARKERS.values(), ids=MARKERS)
def test_the_first_tokens_decide(config: ReasoningConfig, pattern: str) -> None:
    """Compares with the definition over random outputs, each with one rebuild, move or fork."""
    opened = answered = 0
    for seed in range(40):
        rng = random.Random(seed)
        subject, slot, output = runtime(config), 0, list[int]()
        admission = start_sequence(subject, constraint=Regex(pattern))
        change, moment = rng.choice([rebuilt, moved, forked, elsewhere]), rng.randrange(5)
        while (wanted := expected(output, config, pattern)) is not None and output[-1:] != [STOP]:
            if len(output) == moment and slot == 0:
                subject, slot = change(subject, admission)
            assert allowed_tokens(subject, slot=slot) == [wanted], output
            opening = sorted(ways(output, config)) if rng.random() < 0.6 else ()
            output.append(rng.choice(opening or sorted(wanted)))
            assert accept(subject, output[-1:], slot) == ("finish" if output[-1] == STOP else "continue")
        assert subject.fault(slot) is None
        if wanted is not None:
            assert not legal(output, pattern)
            assert legal(output[:-1], pattern) >= {STOP}
            assert (subject.journal(slot).constraint_start, subject.unenforced(slot)) == (0, ())
            answered += 1
            continue
        opened += 1
        assert (subject.journal(slot).constraint_start, subject.unenforced(slot)) == (None, ("constraint",))
        assert STOP not in allowed_tokens(subject, slot=slot)[0]
        ending = [CLOSE] if config is not TEXT else [6]
        for token_id in (9, *ending):
            assert accept(subject, [token_id], slot) == "continue"
        assert subject.journal(slot).constraint_start == len(output) + 2
        assert allowed_tokens(subject, slot=slot)[0] == legal([], pattern)
    assert opened
    assert answered


@pytest.mark.parametrize("config", MARKERS.values(), ids=MARKERS)
def test_several_tokens_of_a_step_are_as_one_by_one(config: ReasoningConfig) -> None:
    """A step may be discarded and repeated with other tokens."""
    opening = {TEXT: [3, 2], SPECIAL: [OPEN], IDS: [0, 8, 0]}[config]
    output = [*opening, 9, 8, *([CLOSE] if config is not TEXT else [6]), 8, 9, 10, STOP]
    for width in range(1, len(output) + 1):
        subject = runtime(config)
        start_sequence(subject)
        for start in range(0, len(output), width):
            action = accept(subject, output[start : start + width])
        assert (action, subject.fault(0)) == ("finish", None)
        assert subject.journal(0).constraint_start == len(opening) + 3
        subject.journal(0).rewind(0)
        subject.rebuild(0)
        assert subject.journal(0).constraint_start == 0
        assert [accept(subject, [token_id]) for token_id in (8, 10, STOP)][-1] == "finish"


def test_drafts_have_the_masks_of_where_they_lead() -> None:
    subject = runtime()
    start_sequence(subject, constraint=Regex(PATTERNS[1]))
    assert allowed_tokens(subject, [0, 1, 8]) == [
        expected(output, TEXT, PATTERNS[1]) for output in ([], [0], [0, 1], [0, 1, 8])
    ]
    assert subject.validate(0, [0, 1, 8, 8]) == 4
    assert subject.validate(0, [0, 1, 2, 8]) == 2, "what opens the reasoning is left to be drawn"
    assert subject.forced({0: 8}) == {0: ()}


def test_where_it_may_open_nothing_is_forced() -> None:
    subject = runtime(SPECIAL)
    start_sequence(subject, constraint=Regex("xyx1"))
    assert subject.forced({0: 8}) == {0: ()}
    accept(subject, [8])
    assert list(subject.forced({0: 8})[0]) == [9, 12, STOP]


@pytest.mark.parametrize(
    ("prompt", "reasons"),
    [
        ([8], None),
        ([OPEN], True),
        ([8, OPEN, 9, 8], True),
        ([OPEN, 9, CLOSE], False),
        ([OPEN, 9, CLOSE, 8], None),
        ([CLOSE, OPEN], True),
        ([8, CLOSE], False),
    ],
)
def test_the_prompt_says_whether_an_output_reasons(prompt: list[int], reasons: bool | None) -> None:
    subject = runtime(SPECIAL)
    assert start_sequence(subject, prompt).request.params.reasoning is reasons
    free, bound = set(range(len(TOKENS))) - {STOP}, {8, 12}
    assert allowed_tokens(subject) == [free if reasons else bound if reasons is False else bound | {OPEN}]
    assert start_sequence(subject, prompt, 1, reasoning=False) is not None
    assert allowed_tokens(subject, slot=1) == [bound]


def test_without_an_opening_marker_all_outputs_reason_whose_prompts_have_not_ended_it() -> None:
    subject = runtime(ReasoningConfig(end_str="</think>"))
    assert start_sequence(subject).request.params.reasoning is True
    assert start_sequence(subject, [8, CLOSE], 1).request.params.reasoning is False


def test_it_is_not_opened_where_marker_and_answer_would_not_fit() -> None:
    """Opening marker, end marker, `x1` and stop token take four tokens."""
    for max_tokens, may_open in ((2, False), (3, False), (4, True)):
        subject = runtime(SPECIAL)
        start_sequence(subject, constraint=Regex("x1"), max_tokens=max_tokens)
        assert (OPEN in allowed_tokens(subject)[0]) is may_open
    output = [OPEN]
    accept(subject, output)
    while output[-1] != STOP:
        (token_id,) = allowed_tokens(subject)[0] - {8}
        output.append(token_id)
        accept(subject, output[-1:])
    assert output == [OPEN, CLOSE, 12, STOP]
    assert subject.unenforced(0) == ()


def test_what_a_reader_takes_for_the_end_is_kept_out() -> None:
    subject = runtime(replace(SPECIAL, excluded_token_ids=(9,)))
    start_sequence(subject, [OPEN])
    assert allowed_tokens(subject) == [set(range(len(TOKENS))) - {STOP, 9}]
    assert accept(subject, [9]) == "fail"
    start_sequence(subject, [OPEN], 1, constraint=None)
    assert accept(subject, [9], 1) == "continue"


def test_a_ban_of_the_marker_holds() -> None:
    from guideway.runtime.constraints.bans import Bans

    subject = runtime(SPECIAL)
    params = SamplingParams(max_tokens=40, constraint=Regex("x+1"))
    request = Request(request_id="r", prompt_token_ids=(8,), params=params)
    subject.start(subject.admit(request, Bans(logit_bias=frozenset({OPEN}))), 0)
    assert allowed_tokens(subject) == [{8, 12}]


def test_an_output_without_a_constraint_is_read_the_same_way() -> None:
    subject = runtime()
    start_sequence(subject, constraint=None)
    assert allowed_tokens(subject) == [set(range(len(TOKENS)))]
    accept(subject, [3, 7])  # 7 is past the end of the marker
    assert subject.journal(0).constraint_start is None
    accept(subject, [6, 8])
    assert subject.journal(0).constraint_start == 3
    start_sequence(subject, constraint=None, slot=1)
    accept(subject, [0, 8], 1)
    assert (subject.journal(1).constraint_start, subject.unenforced(1)) == (0, ())


def test_a_stop_token_of_the_opening_marker_is_refused() -> None:
    subject = runtime(SPECIAL)
    with pytest.raises(InvalidRequest, match=f"stop_token_ids has {OPEN}, which is part of a marker"):
        start_sequence(subject, stop_token_ids=(OPEN,))
    start_sequence(subject, [OPEN], stop_token_ids=(OPEN,))


@pytest.mark.parametrize("tokenizer", [demo, byte_level_with_added_tokens, llama2], ids=lambda make: make.__name__)
@pytest.mark.parametrize("text", ["<think>", "[THINK]", "◁think▷", "Here is my thought process:"])
def test_real_tokenizers_can_spell_it_whichever_way_they_begin(
    tokenizer: Callable[[], PreTrainedTokenizerBase], text: str
) -> None:
    vocabulary = build_vocabulary(tokenizer())
    opening = StartMarker(ReasoningConfig(start_str=text, end_str="</think>"), vocabulary)
    for seed in range(40):
        rng, output, matched = random.Random(seed), list[int](), 0
        while opening.num_left(matched):
            output.append(rng.choice(opening.ways[matched]))
            matched = opening.onward(matched, output[-1], past=False) or -1
        assert vocabulary.decode(output) == text.encode()
        begun = [*output, *output[: rng.randrange(len(output))]]
        assert opening.last([*begun, 5]) == len(output)


def test_a_marker_is_never_begun_that_cannot_be_ended() -> None:
    tokens = [b"<", b"<th", b"ink>", b"t", b""]
    vocabulary = Vocabulary(tokens, frozenset({4}), {4: "</s>"}, encoder=GreedyEncoder(tuple(tokens)))
    opening = StartMarker(ReasoningConfig(start_str="<think>", end_str="t"), vocabulary)
    assert [way for way in opening.ways if way] == [(1,), (2,)]
    with pytest.raises(InvalidConfiguration, match="start_str '<o>' cannot be written"):
        StartMarker(ReasoningConfig(start_str="<o>", end_str="t"), vocabulary)


REQUESTS = [
    SamplingParams(
        max_tokens=30, constraint=Regex("x[xy]{2,8}1"), temperature=1.0, seed=seed, logit_bias={OPEN: 3.0 * (seed % 2)}
    )
    for seed in range(12)
]


@pytest.mark.parametrize("strategy", [ReferenceStrategy, LLGuidanceStrategy])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_every_answer_is_complete_after_its_reasoning_or_without(strategy: Any, num_drafts: int) -> None:
    def results(drafts: int) -> Any:
        built = Runtime(CONTEXT, strategies={"s": strategy(VOCABULARY, {})}, reasoning=SPECIAL)
        host = Validating(VOCABULARY, NumpyDevice(), runtime=built, num_drafts=drafts)
        return host.generate([[i % 4 + 7] for i in range(len(REQUESTS))], REQUESTS)

    found = results(num_drafts)
    kinds = set()
    for result in found:
        assert (result.error, result.finish_reason, result.unenforced) == (None, FinishReason.STOP, ())
        reasons = result.token_ids[0] == OPEN
        answer = result.token_ids[result.token_ids.index(CLOSE) + 1 if reasons else 0 :]
        assert re.fullmatch("x[xy]{2,8}1", VOCABULARY.decode(answer).decode())
        kinds.add(reasons)
    assert kinds == {True, False}
    if num_drafts:
        assert [result.token_ids for result in found] == [result.token_ids for result in results(0)]


class Validating(FakeHost):
    """Cuts drafts where the runtime does not accept them."""

    def drafts(self, tokens: list[int]) -> list[int]:
        slot = next(slot for slot, theirs in self.tokens.items() if theirs is tokens)
        found = super().drafts(tokens)
        return found[: self.runtime.validate(slot, found)]
