"""The gate, one logit modifier among others: masks of the tokens before the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from guideway.api.bitmask import BITS_PER_WORD, Bitmask, allow_only, num_words, pack
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.steps import CONTINUE, Feedback, Outcome, Payload, Stage, StepBatch, fail
from guideway.api.types import Request, SequenceInfo
from guideway.errors import InvalidRequest
from guideway.runtime.grammar_mask import GrammarMask, MaskTransform
from guideway.runtime.grammar_state import GrammarState
from guideway.runtime.reasoning.marker import Marker

__all__ = ["GateState", "ReasoningGate", "check_reasoning"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an output: a function of its tokens and of what its request asks for."""

    num_tokens: int = 0
    matched: int = 0
    """With how much of the marker it ends."""
    forced: tuple[int, ...] = ()
    """The tokens that must come next; empty: the model is free."""
    was_cut: bool = False
    """True if its limit, and not its budget, is why they must."""
    is_over: bool = False
    """True if the marker has ended."""


@dataclass(slots=True, eq=False)
class GateState:
    """The reasoning of one sequence."""

    budget: int | None
    """The number of tokens that may come before the marker."""
    stop_token_ids: frozenset[int]
    room: int = 0
    """The number of tokens that the whole output may have."""
    constraint: GrammarState | None = None
    """The constraint that begins after it; None: nothing. A fork has its parent's, of which only what never changes is
    asked."""
    at: Progress = Progress()
    """The place where it stands."""


class ReasoningGate(LogitModifier[GateState]):
    """Until the marker, keeps out stop tokens and tokens that end the marker and go on after it, where a constraint
    waits; and forces the marker once the budget is used up, or what is left is needed for it and the constraint."""

    name = "reasoning"
    stage = Stage.MASK
    transform = MaskTransform

    def __init__(self, marker: Marker, mask: GrammarMask, context: ModifierContext) -> None:
        super().__init__({}, context)
        self.marker = marker
        self._mask = mask
        self._words = num_words(context.vocabulary.logits_width)
        self._rows: dict[int, Bitmask] = {}
        """By how much of the marker an output ends with: the tokens that do not go on after its end."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: object) -> GateState | None:
        params = request.params
        if not params.reasoning:
            return None
        stops = self.context.vocabulary.stop_token_ids | frozenset(params.stop_token_ids)
        return GateState(params.thinking_token_budget, stops)

    def begin(self, state: GateState, room: int, constraint: GrammarState | None) -> None:
        """The output may have `room` tokens, and `constraint` waits. To be called once, before anything else."""
        state.room, state.constraint = room, constraint
        state.at = self._decided(state, state.at)

    def end_among(self, state: GateState, token_ids: Sequence[int]) -> int | None:
        """After how many of these tokens, which come next, the reasoning is over; None: after more."""
        matched = state.at.matched
        for count, token_id in enumerate(() if state.at.is_over else token_ids, 1):
            matched, _ = self.marker.advance(matched, token_id)
            if self.marker.is_whole(matched):
                return count
        return None

    def prepare(self, batch: StepBatch, states: Sequence[GateState | None]) -> Payload | None:
        rows: list[int] = []
        bitmask = np.empty((batch.num_rows, self._words), dtype=np.int32)
        for i, state in enumerate(states):
            if state is None or state.at.is_over:
                continue
            at, drafts = state.at, batch.drafts(i).tolist()
            for j in range(1 + len(drafts)):
                if j:
                    if not self._allows(state, at, drafts[j - 1]):
                        break
                    at = self._after(state, at, drafts[j - 1])
                if at.is_over:
                    break
                if at.forced or state.constraint is not None:
                    self._fill(state, at, bitmask, len(rows))
                    rows.append(int(batch.row_start[i]) + j)
        return Payload(np.array(rows, dtype=np.int32), {"bitmask": bitmask[: len(rows)]}) if rows else None

    def accept(self, state: GateState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            if state.at.is_over:
                break
            if not self._allows(state, state.at, token_id):
                return fail(f"token {token_id} was drawn although the mask forbids it", was_forbidden=True)
            state.at = self._after(state, state.at, token_id)
        return CONTINUE

    def forced(self, state: GateState, limit: int) -> Sequence[int]:
        """The marker, where it has begun to be forced, without the token that ends it: see `validate`."""
        return state.at.forced[:-1][:limit]

    def validate(self, state: GateState, token_ids: Sequence[int]) -> int:
        """Count the drafts; what ends the reasoning is left to be drawn: the constraint begins with the step after."""
        at = state.at
        for count, token_id in enumerate(token_ids):
            if at.is_over:
                break
            if not self._allows(state, at, token_id):
                return count
            at = self._after(state, at, token_id)
            if at.is_over:
                return count
        return len(token_ids)

    def fork(self, state: GateState) -> GateState:
        return replace(state)

    def plugin_of(self, state: GateState | None) -> str:
        """Name the plugin that can fail here: the search for the end of what the constraint asks for."""
        constraint = None if state is None else state.constraint
        return super().plugin_of(state) if constraint is None else self._mask.plugin_of(constraint)

    # Parts

    def _allows(self, state: GateState, at: Progress, token_id: int) -> bool:
        if at.forced:
            return token_id == at.forced[0]
        if state.constraint is None:
            return True
        return token_id not in state.stop_token_ids and self.marker.advance(at.matched, token_id)[1] == 0

    def _after(self, state: GateState, at: Progress, token_id: int) -> Progress:
        """After one more token."""
        matched, _ = self.marker.advance(at.matched, token_id)
        is_over = self.marker.is_whole(matched)
        return self._decided(state, Progress(at.num_tokens + 1, matched, at.forced[1:], at.was_cut, is_over))

    def _decided(self, state: GateState, at: Progress) -> Progress:
        """With the marker forced, if it is time. One that has begun to be forced goes on."""
        if at.is_over or at.forced:
            return at
        if state.budget is not None and at.num_tokens >= state.budget:
            return replace(at, forced=self.marker.endings[at.matched])
        # if one more token is free, the marker and the constraint need what is left then
        if not self._mask.fits(state.constraint, state.room - at.num_tokens - 1 - self.marker.longest):
            return replace(at, forced=self.marker.endings[at.matched], was_cut=True)
        return at

    def _fill(self, state: GateState, at: Progress, bitmask: Bitmask, row: int) -> None:
        if at.forced:
            allow_only(bitmask, row, at.forced[:1])
            return
        if at.matched not in self._rows:
            allowed = np.zeros((1, self._words * BITS_PER_WORD), dtype=np.bool_)
            allowed[0, : len(self.context.vocabulary)] = True
            allowed[0, self.marker.straddling(at.matched)] = False
            self._rows[at.matched] = pack(allowed)[0]
        bitmask[row] = self._rows[at.matched]
        words = bitmask[row].view(np.uint32)
        for token_id in state.stop_token_ids:
            words[token_id // BITS_PER_WORD] &= ~np.uint32(1 << token_id % BITS_PER_WORD)


def check_reasoning(request: Request, marker: Marker | None) -> Request:
    """`request` with it settled whether it reasons. Raises `InvalidRequest` for one that asks for what cannot be."""
    params = request.params
    if params.reasoning is False and params.thinking_token_budget is not None:
        raise InvalidRequest(
            "thinking_token_budget has no effect with reasoning=False; remove one of the two",
            field="thinking_token_budget",
        )
    if marker is None:
        if params.reasoning or params.thinking_token_budget is not None:
            field = "reasoning" if params.reasoning else "thinking_token_budget"
            raise InvalidRequest(
                f"{field} is {getattr(params, field)}, but the end of reasoning is not configured; set "
                "reasoning.end_str, such as '</think>'",
                field=field,
            )
        return request
    reasoning = params.reasoning
    if reasoning is None:
        reasoning = not marker.ends(request.prompt_token_ids)
    if reasoning and params.constraint is not None and (stops := marker.used(params.stop_token_ids)):
        raise InvalidRequest(
            f"stop_token_ids has {stops[0]}, which ends the reasoning and would end the output before the answer; "
            "remove it, or set reasoning to False",
            field="stop_token_ids",
        )
    return replace(request, params=replace(params, reasoning=reasoning))
