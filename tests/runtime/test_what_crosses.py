"""Arguments of plugins: tuples, read-only arrays, and a block of rows to fill. A plugin that writes elsewhere ends only
its own requests, and is named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import (
    CONTINUE,
    Array,
    Choice,
    CompiledGrammar,
    Constraint,
    Feedback,
    FillJob,
    FinishReason,
    LogitModifier,
    LogitTransform,
    Matcher,
    Need,
    Outcome,
    Payload,
    PluginError,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
)
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.hostility import PROMPT, VOCABULARY, WORD, assert_alone_ends, host
from tests.support.stages import one_in
from tests.support.vocabularies import encode

PROMPTS = [PROMPT + encode(VOCABULARY, text) for text in (b"1", b"2", b"3", b"4")]


def before_its_rows(jobs: Sequence[FillJob], bitmask: Any) -> None:
    bitmask[min(job.first_row for job in jobs) - 1] = 0


def after_its_rows(jobs: Sequence[FillJob], bitmask: Any) -> None:
    bitmask[max(job.first_row + len(job.draft_token_ids) for job in jobs) + 1] = 0


def past_the_array(jobs: Sequence[FillJob], bitmask: Any) -> None:
    """Write out of bounds, as native code with an address can."""
    num_rows = max(job.first_row + len(job.draft_token_ids) for job in jobs) + 2
    np.lib.stride_tricks.as_strided(bitmask, (num_rows, bitmask.shape[1]))[-1, -1] = 7


def everywhere(jobs: Sequence[FillJob], bitmask: Any) -> None:
    bitmask[:] = 0


WRITES = [before_its_rows, after_its_rows, past_the_array, everywhere]


class Trespasser(ReferenceStrategy):
    """Writes outside its rows, in a batch fill or in each row."""

    name, capabilities, max_rollback = "trespasser", frozenset({"rollback"}), 8
    write: ClassVar[Callable[[Sequence[FillJob], Any], None]]
    in_each_row: ClassVar[bool]

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        grammar: Any = super().compile(constraint)
        make = grammar.matcher

        def matcher(stop_token_ids: frozenset[int]) -> Matcher:
            made = make(stop_token_ids)
            fill = made.fill_bitmask

            def fill_bitmask(bitmask: Any, row: int) -> None:
                type(self).write([FillJob(made, (), row)], bitmask)
                fill(bitmask, row)

            if self.in_each_row:
                made.fill_bitmask = fill_bitmask
            return made  # type: ignore[no-any-return]

        grammar.matcher = matcher
        return grammar  # type: ignore[no-any-return]

    def fill(self, jobs: Sequence[FillJob], bitmask: Any) -> Any:
        accepted = super().fill(jobs, bitmask)
        if not self.in_each_row:
            type(self).write(jobs, bitmask)
        return accepted


def mixed(first: str, second: str) -> list[SamplingParams]:
    """Return four requests of two strategies in turn."""
    wanted = [Regex("[a-z]{3,12}(x|y)", strategy=name) for name in (first, second, first, second)]
    return [SamplingParams(max_tokens=20, constraint=constraint) for constraint in wanted]


@pytest.mark.parametrize("num_drafts", one_in(2, [0, 2]))
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("place", one_in(2, [0, 1]))
def test_a_batch_fill_that_writes_outside_its_rows_changes_no_token(
    place: int,
    write: Callable[[Any, Any], None],
    num_drafts: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Trespasser, "write", staticmethod(write), raising=False)
    monkeypatch.setattr(Trespasser, "in_each_row", False, raising=False)
    subject = host(strategies=[ReferenceStrategy, Trespasser], num_drafts=num_drafts)
    names = ("reference", "trespasser")
    with caplog.at_level(logging.WARNING):
        results = subject.generate(PROMPTS, mixed(names[place], names[1 - place]))
    expected = host(num_drafts=num_drafts).generate(PROMPTS, mixed("reference", "reference"))
    assert [r.error for r in results] == [None] * 4
    assert [r.token_ids for r in results] == [r.token_ids for r in expected]
    assert "grammar.trespasser failed in fill; filling row by row" in caplog.text
    assert "grammar.reference" not in caplog.text


@pytest.mark.parametrize("num_drafts", one_in(2, [0, 2]))
@pytest.mark.parametrize("write", [before_its_rows, after_its_rows, past_the_array], ids=lambda write: write.__name__)
@pytest.mark.parametrize("place", one_in(2, [0, 1]))
def test_a_matcher_that_writes_outside_its_row_costs_its_own_request(
    place: int, write: Callable[[Any, Any], None], num_drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trespasser, "write", staticmethod(write), raising=False)
    monkeypatch.setattr(Trespasser, "in_each_row", True, raising=False)
    subject = host(strategies=[ReferenceStrategy, Trespasser], num_drafts=num_drafts)
    names = ("reference", "trespasser")
    results = subject.generate(PROMPTS, mixed(names[place], names[1 - place]))
    expected = host(num_drafts=num_drafts).generate(PROMPTS, mixed("reference", "reference"))
    for i, result in enumerate(results):
        if (i + place) % 2 == 0:
            assert (result.error, result.token_ids) == (None, expected[i].token_ids)
        elif num_drafts:  # some of the overwritten rows were its own, which it filled afterwards
            assert result.error is None or "grammar.trespasser failed in fill" in str(result.error)
        else:
            assert isinstance(result.error, PluginError)
            assert "grammar.trespasser failed in fill" in str(result.error)
            assert "outside the rows of its jobs" in str(result.error)


class Mover(ReferenceStrategy):
    """Changes its jobs."""

    name = "mover"

    def fill(self, jobs: Sequence[FillJob], bitmask: Any) -> Any:
        for job in jobs:
            job.first_row, job.draft_token_ids = 0, tuple(range(50))
        raise RuntimeError("moved")


def test_a_job_that_its_strategy_changes_moves_no_row_of_others() -> None:
    subject = host(strategies=[ReferenceStrategy, Mover])
    results = subject.generate(PROMPTS, mixed("mover", "reference"))
    expected = host().generate(PROMPTS, mixed("reference", "reference"))
    assert [(r.error, r.token_ids) for r in results] == [(None, r.token_ids) for r in expected]


class Appending(ReferenceStrategy):
    """Its matchers append to the lists of token ids that they get."""

    name, phase = "appending", "accept"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        grammar: Any = super().compile(constraint)
        make = grammar.matcher

        def matcher(stop_token_ids: frozenset[int]) -> Matcher:
            made = make(stop_token_ids)
            ask = getattr(made, self.phase)

            def asked(token_ids: Any) -> Any:
                token_ids.append(5)
                return ask(token_ids)

            setattr(made, self.phase, asked)
            return made  # type: ignore[no-any-return]

        grammar.matcher = matcher
        return grammar  # type: ignore[no-any-return]


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_a_matcher_that_appends_to_what_it_accepts_costs_its_own_request(num_drafts: int) -> None:
    subject = host(strategies=[ReferenceStrategy, Appending], num_drafts=num_drafts)
    bad = SamplingParams(max_tokens=12, constraint=Choice(["abcdefgh", "hgfedcba"], strategy="appending"))
    result = assert_alone_ends(subject, bad, SamplingParams(max_tokens=12, constraint=WORD))
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert "'tuple' object has no attribute 'append'" in str(result.error)


class MassTransform(LogitTransform):
    emits: ClassVar = {"mass": ((), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        step.emit("mass", payload.arrays["mass"])
        if payload.arrays["spoils"].any():
            step.positions[:] = 0
        return logits


class Spoiler(LogitModifier[str]):
    """Writes to its arguments, as a request asks."""

    name, stage, transform = "spoiler", Stage.PRE_WARP, MassTransform
    needs = frozenset({Need.FEEDBACK})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> str | None:
        options = request.params.modifiers.get(self.name)
        return None if options is None else str(options["what"])

    def prepare(self, batch: StepBatch, states: Sequence[str | None]) -> Payload | None:
        what: Any = states
        for state in states:
            if state in ("slots", "row_start", "draft_token_ids", "positions"):
                getattr(batch, state)[...] = 0
            if state == "states":
                what[0] = None
        rows, sequences = batch.select(states)
        spoils = np.array([states[i] == "apply" for i in sequences.tolist()])
        return Payload(rows, {"mass": np.ones(len(rows), dtype=np.float32), "spoils": spoils})

    def accept(self, state: str, token_ids: Any, feedback: Feedback | None) -> Outcome:
        emitted: Any = feedback
        if state == "token_ids":
            token_ids.append(1)
        if state == "feedback":
            emitted["mass"][:] = 0
        if state == "mapping":
            emitted.clear()
        return CONTINUE

    def validate(self, state: str, token_ids: Any) -> int:
        if state == "drafts":
            token_ids.clear()
        return len(token_ids)


SPOILED = ["slots", "row_start", "draft_token_ids", "positions", "states", "apply", "token_ids", "feedback", "mapping"]


@pytest.mark.parametrize("num_drafts", [0, 2])
@pytest.mark.parametrize("what", SPOILED)
def test_a_modifier_cannot_write_to_what_it_is_handed(what: str, num_drafts: int) -> None:
    subject = host(Spoiler, num_drafts=num_drafts)
    spoiling = SamplingParams(max_tokens=6, modifiers={"spoiler": {"what": what}})
    beside = SamplingParams(max_tokens=6, modifiers={"spoiler": {"what": ""}})
    result = assert_alone_ends(subject, spoiling, beside)
    assert str(result.error).startswith("modifier.spoiler failed in ")
    assert "read-only" in str(result.error) or "object" in str(result.error)


def test_drafts_to_validate_cannot_be_changed() -> None:
    subject = host(Spoiler)
    wanted = SamplingParams(max_tokens=6, modifiers={"spoiler": {"what": "drafts"}})
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    drafts = [1, 2, 3]
    assert subject.runtime.validate(0, drafts) == 0
    assert "modifier.spoiler failed in validate" in str(subject.runtime.fault(0))
    assert drafts == [1, 2, 3]


def test_feedback_of_a_journal_that_travelled_is_read_only_too() -> None:
    import pickle

    subject = host(Spoiler)
    request = Request(
        request_id="r",
        prompt_token_ids=tuple(PROMPT),
        params=SamplingParams(modifiers={"spoiler": {"what": "feedback"}}),
    )
    quiet = Request(
        request_id="q", prompt_token_ids=tuple(PROMPT), params=SamplingParams(modifiers={"spoiler": {"what": ""}})
    )
    subject.join(0, quiet)
    subject.step()
    journal = pickle.loads(pickle.dumps(subject.runtime.journal(0)))
    journal.request = request
    with pytest.raises(PluginError, match="read-only"):
        subject.runtime.start(subject.runtime.admit(request), 1, journal=journal)
