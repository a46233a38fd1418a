"""The reasoning gate: a constraint that begins after a number of generated tokens the host learns as it goes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    CompiledGrammar,
    Constraint,
    Matcher,
    ModifierContext,
    Regex,
    Request,
    SamplingParams,
    StepBatch,
)
from guideway.api.bitmask import FULL
from guideway.api.steps import GRAMMAR_MASK
from guideway.runtime import Journal, Runtime
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

from tests.support.moves import moved, rebuilt
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
STOP = next(iter(VOCABULARY.stop_token_ids))
REASONING = encode(VOCABULARY, b"so")
OUTPUT = [*encode(VOCABULARY, b"xy1"), STOP]
PATTERN = "xy?[0-9]"
CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)


class Listening(ReferenceStrategy):
    """Notes what its matchers are fed; these force what `OUTPUT` begins with."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fed: list[int] = []

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return ListeningGrammar(super().compile(constraint), self.fed)


class ListeningGrammar(CompiledGrammar):
    def __init__(self, inner: CompiledGrammar, fed: list[int]) -> None:
        self.inner, self.fed = inner, fed

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return listening(self.inner.matcher(stop_token_ids), self.fed)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


def listening(matcher: Matcher, fed: list[int]) -> Matcher:
    accept = matcher.accept

    def heard(token_ids: Sequence[int]) -> int:
        fed.extend(token_ids)
        return accept(token_ids)

    matcher.accept = heard  # type: ignore[method-assign]
    matcher.forced_tokens = lambda: OUTPUT[:1]  # type: ignore[method-assign]
    return matcher


STRATEGIES = {"reference": ReferenceStrategy, "xgrammar": XGrammarStrategy}


def runtime(strategy: Any = None) -> Runtime:
    return Runtime(CONTEXT, strategies={"own": strategy or ReferenceStrategy(VOCABULARY, {})})


def started(subject: Runtime, *, constraint: Constraint | None = None, reasoning: bool = True, slot: int = 0) -> Any:
    params = SamplingParams(max_tokens=40, constraint=constraint or Regex(PATTERN))
    admission = subject.admit(Request(request_id=f"r{slot}", prompt_token_ids=(1,), params=params))
    subject.start(admission, slot, reasoning=reasoning)
    return admission


def masks(subject: Runtime, slot: int = 0, drafts: Sequence[int] = ()) -> list[bytes | None]:
    """The mask of each row of the next step; None for an open one."""
    position = 1 + len(subject.journal(slot).token_ids)
    step = subject.prepare(StepBatch.build([slot], [position], [list(drafts)]))
    found: list[bytes | None] = [None] * (1 + len(drafts))
    if (payload := step.payloads.get(GRAMMAR_MASK)) is not None:
        for row, mask in zip(payload.rows.tolist(), payload.arrays["bitmask"], strict=True):
            found[row] = None if (mask == FULL).all() else mask.tobytes()
    return found


def accept(subject: Runtime, token_ids: Sequence[int], slot: int = 0) -> str:
    return subject.accept_one(slot, 0, list(token_ids)).action


def legal(output: Sequence[int]) -> bytes:
    """The mask after `output`, as the strategy itself has it."""
    matcher = ReferenceStrategy(VOCABULARY, {}).compile(Regex(PATTERN)).matcher(VOCABULARY.stop_token_ids)
    assert matcher.accept(output) == len(output)
    bitmask = np.zeros((1, 4), dtype=np.int32)
    matcher.fill_bitmask(bitmask, 0)
    return bitmask.tobytes()


def expected(num_generated: int) -> bytes | None:
    """The mask of the row after so many tokens of `REASONING` and `OUTPUT`."""
    num_output = num_generated - len(REASONING)
    return None if num_output < 0 or num_output == len(OUTPUT) else legal(OUTPUT[:num_output])


def test_nothing_is_masked_and_nothing_fed_before_the_reasoning_ends() -> None:
    strategy = Listening(VOCABULARY, {})
    subject = runtime(strategy)
    started(subject)
    for token_id in REASONING:
        assert masks(subject) == [None]
        assert masks(subject, drafts=OUTPUT) == [None] * 5
        assert subject.validate(0, [1, 2, 3]) == 3
        assert subject.forced({0: 8})[0] == ()
        assert accept(subject, [token_id]) == "continue"
    assert strategy.fed == []
    subject.end_reasoning(0, len(REASONING))
    assert masks(subject) == [legal([])]
    assert subject.validate(0, OUTPUT) == len(OUTPUT)
    assert subject.validate(0, REASONING) == 0
    assert list(subject.forced({0: 8})[0]) == OUTPUT[:1]
    strategy.fed.clear()
    assert [accept(subject, [token_id]) for token_id in OUTPUT] == ["continue"] * 3 + ["finish"]
    assert strategy.fed == OUTPUT
    assert masks(subject) == [None]


def test_without_reasoning_the_constraint_holds_from_the_start() -> None:
    subject = runtime()
    started(subject, reasoning=False)
    assert masks(subject) == [legal([])]
    assert subject.validate(0, REASONING) == 0


def test_a_stop_token_while_reasoning_is_the_hosts_to_judge() -> None:
    subject = runtime()
    started(subject)
    assert accept(subject, [REASONING[0], STOP]) == "continue"
    assert masks(subject) == [None]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("width", [1, 2, 3, 6])
@pytest.mark.parametrize("known", range(len(REASONING) + 1))
def test_the_constraint_begins_exactly_where_it_was_said_to(strategy: str, width: int, known: int) -> None:
    """However many tokens a step accepts, and whether the end of the reasoning is known long before or just then."""
    subject = runtime(STRATEGIES[strategy](VOCABULARY, {}))
    started(subject)
    tokens = [*REASONING, *OUTPUT]
    for start in range(0, len(tokens), width):
        if subject.journal(0).constraint_start is None and start + width > known:
            subject.end_reasoning(0, len(REASONING))
        if subject.journal(0).constraint_start is not None:
            assert masks(subject) == [expected(start)]
        action = accept(subject, tokens[start : start + width])
    assert action == "finish"
    assert subject.fault(0) is None


def forked(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    subject.fork(0, 2, index=1)
    return subject, 2


def elsewhere(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    journal: Journal = pickle.loads(pickle.dumps(subject.journal(0)))
    other = runtime()
    other.start(other.admit(admission.request), 1, journal=journal)
    return other, 1


@pytest.mark.parametrize("told", range(len(REASONING) + 1), ids="told_after_{}".format)
@pytest.mark.parametrize("moment", range(len(REASONING) + len(OUTPUT) + 1), ids="at_{}".format)
@pytest.mark.parametrize("change", [rebuilt, forked, moved, elsewhere])
def test_whatever_becomes_of_a_sequence_its_gate_goes_with_it(
    change: Callable[[Runtime, Any], tuple[Runtime, int]], moment: int, told: int
) -> None:
    subject, slot = runtime(), 0
    admission = started(subject)
    tokens = [*REASONING, *OUTPUT]
    for i in range(len(tokens) + 1):
        if i == moment:
            subject, slot = change(subject, admission)
        if i == told:
            subject.end_reasoning(slot, len(REASONING))
        ahead = tokens[i : i + 3]
        wanted = [expected(i + j) if i >= told else None for j in range(len(ahead) + 1)]
        assert masks(subject, slot) == wanted[:1]
        assert masks(subject, slot, ahead) == wanted
        if i < len(tokens):
            assert accept(subject, tokens[i : i + 1], slot) == ("finish" if i == len(tokens) - 1 else "continue")
    assert subject.journal(slot).constraint_start == len(REASONING)


def test_parent_and_fork_end_their_reasoning_apart() -> None:
    subject = runtime()
    started(subject)
    subject.fork(0, 1, index=1)
    subject.end_reasoning(1, 0)
    assert (masks(subject, 0), masks(subject, 1)) == ([None], [legal([])])
    accept(subject, REASONING, 0)
    subject.end_reasoning(0, 2)
    accept(subject, OUTPUT[:1], 1)
    assert (masks(subject, 0), masks(subject, 1)) == ([legal([])], [legal(OUTPUT[:1])])


def test_drafts_reach_across_the_gate() -> None:
    """Each row after it has the mask its own drafts lead to, also where one of these is wrong."""
    subject = runtime(Listening(VOCABULARY, {}))
    started(subject)
    subject.end_reasoning(0, 2)
    assert subject.forced({0: 8})[0] == ()
    good = [*REASONING, *OUTPUT[:2]]
    assert masks(subject, drafts=good) == [None, None, legal([]), legal(OUTPUT[:1]), legal(OUTPUT[:2])]
    assert subject.validate(0, good) == 4
    wrong = [*REASONING, OUTPUT[0], REASONING[0]]
    assert masks(subject, drafts=wrong)[:4] == [None, None, legal([]), legal(OUTPUT[:1])]
    assert subject.validate(0, wrong) == 3
    assert masks(subject, drafts=REASONING) == [None, None, legal([])]
    assert masks(subject, drafts=REASONING[:1]) == [None, None]
    assert accept(subject, good[:3]) == "continue"
    assert masks(subject) == [legal(OUTPUT[:1])]


def test_sequences_that_reason_and_those_that_do_not_share_a_batch() -> None:
    subject = runtime()
    for slot, reasoning in enumerate([True, False, True, False]):
        started(subject, slot=slot, reasoning=reasoning)
    subject.end_reasoning(0, 1)
    batch = StepBatch.build([0, 1, 2, 3], [1] * 4, [[5, OUTPUT[0]], OUTPUT[:1], [5, 6], []])
    payload = subject.prepare(batch).payloads[GRAMMAR_MASK]
    rows = dict(zip(payload.rows.tolist(), payload.arrays["bitmask"], strict=True))
    found = [None if row not in rows or (rows[row] == FULL).all() else rows[row].tobytes() for row in range(9)]
    begun, then = legal([]), legal(OUTPUT[:1])
    assert found == [None, begun, then, begun, then, None, None, None, begun]


def test_a_token_drawn_before_the_constraint_was_known_to_begin_is_no_fault_of_the_mask() -> None:
    """The step was open; the host then learns that the constraint began in the middle of it."""
    subject = runtime()
    started(subject, slot=1, reasoning=False)  # whose mask lies where a stale row would be looked up
    started(subject)
    subject.prepare(StepBatch.build([1, 0], [1, 1], [[], [5, 6]]))
    subject.end_reasoning(0, 1)
    outcome = subject.accept_one(0, 1, [5, 6, 7])
    assert outcome.action == "fail"
    assert str(subject.fault(0)) == (
        "grammar.own failed in accept: token 6 was drawn before the start of the constraint was known, and the "
        "constraint forbids it"
    )
    assert subject.journal(0).token_ids == []


def test_a_forbidden_token_after_a_known_gate_is_one_the_mask_forbade() -> None:
    subject = runtime()
    started(subject)
    subject.end_reasoning(0, 1)
    masks(subject, drafts=[5, OUTPUT[0]])
    assert accept(subject, [5, 6]) == "fail"
    assert "token 6 was drawn although the mask forbids it" in str(subject.fault(0))


def test_a_sequence_without_a_constraint_may_reason_too() -> None:
    subject = runtime()
    params = SamplingParams(max_tokens=8)
    subject.start(subject.admit(Request(request_id="r", prompt_token_ids=(1,), params=params)), 0, reasoning=True)
    assert accept(subject, REASONING) == "continue"
    subject.end_reasoning(0, 2)
    assert masks(subject) == [None]
    assert accept(subject, REASONING) == "continue"


def test_the_journal_forgets_an_end_that_was_rewound() -> None:
    subject = runtime()
    started(subject)
    accept(subject, REASONING[:1])
    accept(subject, REASONING[1:])
    subject.end_reasoning(0, 2)
    journal = subject.journal(0)
    journal.rewind(2)
    assert journal.constraint_start == 2
    journal.rewind(1)
    assert journal.constraint_start is None
    subject.rebuild(0)
    assert masks(subject) == [None]
    subject.end_reasoning(0, 1)
    assert masks(subject) == [legal([])]


def test_misuse_is_refused() -> None:
    subject = runtime()
    with pytest.raises(ValueError, match="no sequence was started in slot 0"):
        subject.end_reasoning(0, 0)
    started(subject)
    started(subject, slot=1, reasoning=False)
    with pytest.raises(ValueError, match=r"slot 1 cannot begin after 3 tokens.*it begins after 0"):
        subject.end_reasoning(1, 3)
    accept(subject, REASONING)
    with pytest.raises(ValueError, match="cannot begin after 1 tokens: 2 are accepted"):
        subject.end_reasoning(0, 1)
    with pytest.raises(ValueError, match="cannot begin after -1 tokens"):
        subject.end_reasoning(0, -1)
    assert masks(subject) == [None]
    subject.end_reasoning(0, 4)
    with pytest.raises(ValueError, match="it begins after 4"):
        subject.end_reasoning(0, 4)
    accept(subject, REASONING)
    assert masks(subject) == [legal([])]


def test_a_text_is_judged_without_the_reasoning_before_it() -> None:
    subject = runtime()
    started(subject)
    tokens = subject.context.vocabulary.tokens
    reasoning = b"".join(tokens[token_id] for token_id in REASONING).decode()
    assert not subject.completes(0, reasoning), "the constraint has not begun"
    accept(subject, REASONING)
    subject.end_reasoning(0, len(REASONING))
    written = OUTPUT[:-1]  # the stop token has no text
    texts = [reasoning + b"".join(tokens[i] for i in written[:count]).decode() for count in range(len(written) + 1)]
    accept(subject, written)
    assert [subject.completes(0, text) for text in texts] == [False] * len(written) + [True]
