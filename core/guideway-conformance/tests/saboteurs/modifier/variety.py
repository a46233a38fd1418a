"""Modifiers that serve their examples, and not what is near them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    Companion,
    Example,
    Feedback,
    InvalidRequest,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Step,
    StepBatch,
    parse_options,
)

from saboteurs import saboteur
from saboteurs.modifier.references import (
    WINDOW,
    Ban,
    Guide,
    Mass,
    Repetition,
    RepetitionState,
    Watermark,
    WatermarkTransform,
)

__all__: list[str] = []

MOST_TOKENS = 20
FEW = 2
SIXTEEN_BITS = 1 << 16


@dataclass(frozen=True)
class Wish:
    strength: float = 3.0
    against: tuple[int, ...] = (101, 102)


@dataclass(frozen=True)
class Settings:
    window: int = WINDOW


@saboteur("modifier.operators_options_are_known")
class TakesAnyOption(Repetition):
    """Never looks at the operator's options."""

    def __init__(self, options: Mapping[str, Any], context: Any) -> None:
        super().__init__(options, context)


@saboteur("modifier.operators_options_are_served")
class WiderThanItsArrays(Repetition):
    """Takes a window from the operator, and has arrays of four."""

    def __init__(self, options: Mapping[str, Any], context: Any) -> None:
        super().__init__(options, context)
        self.window = max(1, parse_options(Settings, options, where="modifier.repetition").window)

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        near = [*state.tokens, *drafts][-self.window :]
        ids[: len(near)] = near
        values[: len(near)] = -state.strength


@saboteur("modifier.options_near_its_examples_are_served")
class TakesWhatIsNoNumber(Repetition):
    """Refuses a strength that is too large, which NaN is not."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        if self.name in request.params.modifiers:
            wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.repetition")
            if abs(wish.strength) > 10:
                raise InvalidRequest("strength is out of range", field="modifiers.repetition.strength")
        return super().start(request, sequence, compiled)


@saboteur("modifier.options_near_its_examples_are_served")
class OneTokenTooMany(Guide):
    """Takes a token id that is one past the vocabulary."""

    examples = (Example({"against": [65, 66]}),)

    def companions(self, request: Request) -> Sequence[Companion]:
        if self.name not in request.params.modifiers:
            return []
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.guide")
        if not wish.against or not all(0 <= i <= len(self.context.vocabulary) for i in wish.against):
            raise InvalidRequest("against has no such token", field="modifiers.guide.against")
        return [Companion(wish.against)]


@saboteur("modifier.any_token_may_come")
class TrustsItsMask(Ban):
    """Takes for granted that nothing it forbade comes."""

    derived = False

    def accept(self, state: bool, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if any(token_id % 3 == 0 for token_id in token_ids):
            raise KeyError("the place of a forbidden token")
        return CONTINUE


@saboteur("modifier.prompts_may_be_short")
class OneNameIsAString(Repetition):
    """Says of a short prompt that it is not enforced, in a str."""

    def unenforced(self, state: RepetitionState) -> Sequence[str]:
        return "repetition" if len(state.tokens) <= FEW else ()


@saboteur("modifier.one_request_after_another")
class KnowsRequestsByName(Repetition):
    """Gives a request what the first one of its name wished for."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        state = super().start(request, sequence, compiled)
        known = self.__dict__.setdefault("known", {})
        return state and replace(state, strength=known.setdefault(request.request_id, state.strength))


@saboteur("modifier.crowds_of_all_sorts")
class CountsInEightBits(Repetition):
    """Looks up the strengths of a batch by a number of eight bits."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        there = [state for state in states if state is not None]
        places = (np.arange(len(there)) * 9).astype(np.uint8) // 9
        strengths = iter([there[place].strength for place in places])
        return super().prepare(batch, [state and replace(state, strength=next(strengths)) for state in states])


@saboteur("modifier.no_count_is_too_large")
class CountsInSixteenBits(Repetition):
    """Acts as long as the number of tokens is above zero, in 16 bits with a sign."""

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts, ids, values)
        if (len(state.tokens) + len(drafts)) % SIXTEEN_BITS >= SIXTEEN_BITS // 2:
            values[...] = 0


class LooksBack(WatermarkTransform):
    """Looks up a number of the token before, also where there is none."""

    history_length = 64

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        oldest = step.history(payload.rows)[:, 0]
        raised = step.ops.gather(payload.shared["numbers"], oldest)
        return step.ops.where_rows(logits, payload.rows, True, step.ops.gather(logits, payload.rows) + raised)


@saboteur("modifier.runs_on_every_device")
class LooksBeforeTheBeginning(Watermark):
    """Asks for row -1, where NumPy gives the last one."""

    transform = LooksBack

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        numbers = np.arange(len(self.context.vocabulary), dtype=np.float32)[:, None] / 100
        return Payload(batch.select(states)[0], shared={"numbers": numbers})


@dataclass
class Family:
    masses: list[float]
    heard: list[int]


@saboteur("modifier.forks_are_independent")
class ForksReportTogether(Mass):
    """Hears for itself, and counts for a whole family."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        masses = super().start(request, sequence, compiled)
        return None if masses is None else Family(masses, [])

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        return super().prepare(batch, [state and [0.5, *state.masses] for state in states])

    def accept(self, state: Any, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.heard.extend(token_ids)
        return super().accept(state.masses, token_ids, feedback)

    def fork(self, state: Any) -> Any:
        return Family(list(state.masses), state.heard)

    def report(self, state: Any) -> Mapping[str, Any]:
        return {"heard": len(state.heard)}


@saboteur("modifier.forks_go_on_as_their_parent")
class ForksOutliveTheirParent(Repetition):
    """Ends after twenty tokens, which a fork counts anew."""

    def accept(self, state: Any, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.heard = getattr(state, "heard", 0) + len(token_ids)
        super().accept(state, token_ids, feedback)
        return FINISH if state.heard >= MOST_TOKENS else CONTINUE


@saboteur("modifier.feedback_comes_for_steps_of_any_size")
class LooksAtTheLastMass(Mass):
    """Ends where a grammar leaves little, if that is told of the last token of a step."""

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        super().accept(state, token_ids, feedback)
        return CONTINUE if feedback is None or feedback["mass"][-1] > 0.9 else FINISH
