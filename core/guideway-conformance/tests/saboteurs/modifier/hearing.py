"""Modifiers that hear wrongly, each in one way: from readers of the contract, who saw no check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guideway.api import CONTINUE, FINISH, Array, Feedback, Outcome

from saboteurs import saboteur
from saboteurs.modifier.references import Guide, GuideTransform, Mass, Repetition, RepetitionState

__all__: list[str] = []

ENOUGH = 9
"""Tokens after which a sequence is over."""


@saboteur("modifier.steps_of_any_size")
class EndsAlone(Repetition):
    """Ends a sequence only if the last token came alone."""

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        super().accept(state, token_ids, feedback)
        return FINISH if len(state.tokens) > ENOUGH and len(token_ids) == 1 else CONTINUE


@saboteur("modifier.feedback_may_be_missing")
class CountsOnFeedback(Mass):
    """Takes for granted that there is feedback."""

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.extend(feedback["mass"].tolist())  # type: ignore[index]
        return CONTINUE


@saboteur("modifier.feedback_comes_for_steps_of_any_size")
class HearsTheFirstMass(Mass):
    """Lets drafts pass, and hears the feedback of the first token of a step."""

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is not None:
            state.extend(feedback["mass"][:1].tolist())
        return CONTINUE

    def validate(self, state: list[float], token_ids: Sequence[int]) -> int:
        return len(token_ids)


@saboteur("modifier.feedback_comes_for_steps_of_any_size")
class CountsSilentSteps(Mass):
    """Lets drafts pass, and counts steps without feedback instead of their tokens."""

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is None:
            state.append(0.3)
        return super().accept(state, token_ids, feedback)

    def validate(self, state: list[float], token_ids: Sequence[int]) -> int:
        return len(token_ids)


@saboteur("modifier.drafts_change_nothing")
class WaitsForNoFeedback(Mass):
    """Lets drafts pass, and treats the rows after them as if there were nothing to hear of them."""

    def validate(self, state: list[float], token_ids: Sequence[int]) -> int:
        return len(token_ids)


@saboteur("modifier.drafts_change_nothing")
class TakesRepeatedDraftsOnce(Repetition):
    """Leaves out a draft that is the one before it."""

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, [t for k, t in enumerate(drafts) if not k or drafts[k - 1] != t], ids, values)


@saboteur("modifier.keeps_copies")
class ReportsWhatItKept(Mass):
    """Keeps the feedback itself for its report, and nothing for its payload."""

    def accept(self, state: Any, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is not None:
            self.__dict__["kept"] = feedback["mass"]
        return super().accept(state, token_ids, feedback)

    def report(self, state: list[float]) -> Mapping[str, Any]:
        return {"last": float(self.__dict__["kept"][-1]) if "kept" in self.__dict__ else 0.0}


@saboteur("modifier.forbidden_stays_forbidden")
class SubtractsInfinities(Guide):
    """Computes also where the model has forbidden a token in both rows: what comes of it is no number."""

    class Transform(GuideTransform):
        """Asks for nothing."""

        def usable(self, own: Array, other: Array) -> Array:
            return own == own

    transform = Transform


@saboteur("modifier.numbers_stay_numbers")
class LooksAtItsOwnAlone(Guide):
    """Computes also where only the companion's token is forbidden: what comes of it is infinite."""

    class Transform(GuideTransform):
        """Asks for one of the two."""

        def usable(self, own: Array, other: Array) -> Array:
            return own > float("-inf")

    transform = Transform
