"""A plugin that never acts is not certified, and the report says which example to add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    Example,
    Feedback,
    LogitModifier,
    LogitTransform,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    UnsupportedCapability,
)
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.registry import Obligation, checks
from guideway_conformance.runner import run
from guideway_conformance.subjects import NotPerformed, Settings, perform
from guideway_conformance.target import Target
from mistakes.modifiers import Mass, Repetition, RepetitionState

from tests.support.stages import one_in


class RefusesEveryFork(Repetition):
    """Its class says that it can fork, but it refuses each state."""

    def fork(self, state: RepetitionState) -> RepetitionState:
        raise UnsupportedCapability("this sequence cannot be forked", field="fork")


class Deaf(Repetition):
    """Acts on the prompt, and never on generated tokens."""

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, [], ids, values)

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        return CONTINUE


class Powerless(Repetition):
    """Has examples without effect."""

    examples: ClassVar[Sequence[Example]] = (Example({"strength": 0.0}),)


class Unmoved(Mass):
    """Gets the values that its transform emits, and ignores them."""

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.extend(0.25 for _ in token_ids)
        return CONTINUE


class FirstRows(Repetition):
    """Has a payload only for the first row of a step, though it accepts drafts."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        return None if payload is None else payload.take(batch.row_start[:-1])


class NothingTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class OnlySpeaks(LogitModifier[list[int]]):
    """Forces tokens, and its transform does nothing."""

    contract = "1.0"
    name, stage, transform = "only_speaks", Stage.PRE_WARP, NothingTransform

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> list[int] | None:
        return [97, 98] if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[list[int] | None]) -> Payload | None:
        return None

    def accept(self, state: list[int], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        return CONTINUE

    def forced(self, state: list[int], limit: int) -> Sequence[int]:
        return state[:limit]


class NeverForces(OnlySpeaks):
    """Has a `forced` that returns nothing."""

    def forced(self, state: list[int], limit: int) -> Sequence[int]:
        return ()


class ForksAfterTheirEnd(Repetition):
    """Could fork, but ends each sequence at its first token."""

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        return FINISH


class ForksSome(Repetition):
    """Refuses to fork weak states; the other examples are enough."""

    def fork(self, state: RepetitionState) -> RepetitionState:
        if state.strength == 3.0:
            raise UnsupportedCapability("it is too weak", field="fork")
        return super().fork(state)


class Ends(OnlySpeaks):
    """Has no payload, but ends sequences, so it acts."""

    def accept(self, state: list[int], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.extend(token_ids)
        return FINISH if len(state) > 4 else CONTINUE


def run_check(modifier: type[LogitModifier[Any]], name: str) -> None:
    known = {check.id: check for check in checks("modifier")}
    perform(known[f"modifier.{name}"], "positive", ModifierSubject(modifier, Settings()))


@pytest.mark.parametrize(
    ("modifier", "name", "advice"),
    one_in(
        3,
        [
            (Deaf, "replay_rebuilds_the_state", "heard none of its tokens.*`generated`"),
            (Deaf, "forks_are_independent", "heard none of its tokens"),
            (Deaf, "steps_of_any_size", "heard none of its tokens"),
            (Powerless, "other_rows_stay", "none was changed.*options"),
            (Powerless, "company_changes_nothing", "none was changed"),
            (Unmoved, "emits_what_it_declares", "heard none of its feedback"),
            (OnlySpeaks, "numbers_stay_numbers", "spoke of 0 rows"),
            (
                RefusesEveryFork,
                "forks_go_on_as_their_parent",
                "of [1-9][0-9]* states it refused each.*at which it forks",
            ),
            (RefusesEveryFork, "forks_are_independent", "of [1-9][0-9]* states it refused each"),
            (RefusesEveryFork, "forks_end_alone", "of [1-9][0-9]* states it refused each.*leave out its `fork`"),
            (ForksAfterTheirEnd, "forks_end_alone", "lived on after a token"),
            (NeverForces, "forced_is_all_that_is_left", "force a token.*`forced` gives one"),
        ],
    ),
)
def test_what_never_acts_is_not_performed(modifier: type[LogitModifier[Any]], name: str, advice: str) -> None:
    with pytest.raises(NotPerformed, match=f"your examples never made it .*{advice}"):
        run_check(modifier, name)


@pytest.mark.parametrize("name", ["forks_go_on_as_their_parent", "forks_are_independent", "forks_end_alone"])
def test_a_fork_of_some_states_is_enough(name: str) -> None:
    run_check(ForksSome, name)


def test_rows_after_drafts_are_part_of_it() -> None:
    with pytest.raises(AssertionError, match="the row after 1 drafts"):
        run_check(FirstRows, "drafts_change_nothing")


@pytest.mark.parametrize("name", ["numbers_stay_numbers", "replay_rebuilds_the_state", "keeps_copies"])
def test_to_end_a_sequence_is_to_act(name: str) -> None:
    run_check(Ends, name)


@pytest.mark.slow
def test_it_is_not_certified_and_the_report_says_why() -> None:
    report = run(Target.of_class(Powerless), up_to="core")
    assert report.verdict == "incomplete"
    result = {result.obligation: result for result in report.results}[Obligation("modifier.other_rows_stay")]
    assert (result.outcome, "Add an Example" in result.detail) == ("error", True)
