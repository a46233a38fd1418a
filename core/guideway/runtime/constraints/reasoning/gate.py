"""The reasoning gate, a logit modifier that masks the tokens before the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from guideway.api.bitmask import BITS_PER_WORD, Bitmask, allow_only, num_words, pack
from guideway.api.modifier import ModifierContext
from guideway.api.reasoning import ReasoningConfig
from guideway.api.steps import CONTINUE, Feedback, Outcome, Payload, StepBatch, fail
from guideway.api.types import Request, SequenceInfo
from guideway.errors import InvalidRequest
from guideway.runtime.constraints.grammar_mask import GrammarMask
from guideway.runtime.constraints.grammar_state import GrammarState
from guideway.runtime.constraints.reasoning.marker import EndMarker, StartMarker
from guideway.runtime.constraints.worker_half import WorkerGate

__all__ = ["GateState", "ReasoningGate", "refuse_reasoning"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an output through its reasoning. A function of its tokens and its request."""

    num_tokens: int = 0
    opening: int | None = None
    """Parts of the opening marker that the output has, while it may still be that marker; None afterwards."""
    matched: int = 0
    """Parts of the end marker that the output ends with."""
    forced: tuple[int, ...] = ()
    """Tokens that must come next; empty if the model is free."""
    was_cut: bool = False
    """True if they are forced by the token limit rather than by the reasoning budget."""
    is_over: bool = False
    """True if the answer has begun: the end marker is complete, or the output began with the answer."""


@dataclass(slots=True, eq=False)
class GateState:
    """The reasoning state of one sequence."""

    budget: int | None
    """Most tokens before the end marker."""
    stop_token_ids: frozenset[int]
    room: int = 0
    """Most tokens of the whole output."""
    constraint: GrammarState | None = None
    """State of the constraint that begins after the marker; None without one. A fork shares its parent's, of which only
    constant attributes are read."""
    reasons: bool = True
    """False if the output itself decides; until it opens the reasoning, its constraint applies."""
    at: Progress = Progress()
    """Progress after the accepted tokens."""

    @property
    def is_undecided(self) -> bool:
        """True if the output may still open the reasoning."""
        return not self.reasons and self.at.opening is not None


class ReasoningGate(WorkerGate[GateState]):
    """Masks tokens during reasoning. If a constraint follows, it excludes stop tokens, and tokens that contain the end
    of the marker and more text. It forces the end marker once the budget is used up, or the tokens left are needed for
    the marker and the constraint.

    If neither request nor prompt says whether an output reasons, its first tokens decide: they may follow the
    constraint or spell the opening marker. Tokens that fit both leave it undecided.
    """

    def __init__(self, config: ReasoningConfig, mask: GrammarMask, context: ModifierContext) -> None:
        super().__init__({}, context)
        self.config = config
        self.marker = EndMarker(config, context.vocabulary)
        self.opening = StartMarker(config, context.vocabulary) if config.has_opening else None
        self._excluded = frozenset(config.excluded_token_ids)
        self._mask = mask
        self._words = num_words(context.vocabulary.logits_width)
        self._rows: dict[int, Bitmask] = {}
        """Bitmask rows of allowed tokens, by how much of the end marker an output ends with."""
        self._ways: dict[int, Bitmask] = {}
        """Bitmask rows of tokens that continue the opening marker, by how much of it is there."""

    def resolve_reasoning(self, request: Request) -> Request:
        """Return `request` with its `reasoning` set: True, False, or None if its first tokens decide. Raises
        `InvalidRequest` for contradictory parameters."""
        params, prompt, opening = request.params, request.prompt_token_ids, self.opening
        if params.reasoning is False and params.thinking_token_budget is not None:
            raise InvalidRequest(
                "thinking_token_budget has no effect with reasoning=False; remove one of the two",
                field="thinking_token_budget",
            )
        reasoning = params.reasoning
        if reasoning is None and self.marker.ends(prompt):
            reasoning = False
        elif reasoning is None and (opening is None or opening.last(prompt) > self.marker.last(prompt)):
            reasoning = True
        if reasoning is not False and params.constraint is not None:
            signs = [self.marker] if reasoning or opening is None else [opening, self.marker]
            if stops := [token_id for token_id in params.stop_token_ids if any(token_id in s.pieces for s in signs)]:
                raise InvalidRequest(
                    f"stop_token_ids has {stops[0]}, which is part of a marker of the reasoning and would end the "
                    "output before the answer; remove it, or set reasoning to False",
                    field="stop_token_ids",
                )
        return replace(request, params=replace(params, reasoning=reasoning))

    def start(self, request: Request, sequence: SequenceInfo, compiled: object) -> GateState | None:
        params = request.params
        if params.reasoning is False or (params.reasoning is None and self.opening is None):
            return None
        stops = self.context.vocabulary.stop_token_ids | frozenset(params.stop_token_ids)
        return GateState(params.thinking_token_budget, stops, reasons=params.reasoning is True)

    def begin(self, state: GateState, room: int, constraint: GrammarState | None) -> None:
        """Set the token limit of the output and the constraint that follows. Call it once, before anything else."""
        state.room, state.constraint = room, constraint
        state.at = self._force_marker(state, replace(state.at, opening=None if state.reasons else 0))

    def opens(self, state: GateState, token_ids: Sequence[int], takes: Callable[[Sequence[int]], bool]) -> bool:
        """Return whether `token_ids`, which come next, open the reasoning. `takes` returns whether their first ones
        also fit the constraint."""
        if not state.is_undecided:
            return False
        at = state.at
        for count, token_id in enumerate(token_ids, 1):
            at = self._after(state, at, token_id)
            if at.is_over:
                return False
            if at.opening is None or not takes(token_ids[:count]):
                state.reasons = True
                return True
        return False

    def end_among(self, state: GateState, token_ids: Sequence[int]) -> int | None:
        """Return the number of `token_ids`, which come next, after which the reasoning is over; None if it is not over,
        or there is none."""
        at = state.at
        for count, token_id in enumerate(token_ids if state.reasons and not at.is_over else (), 1):
            at = self._after(state, at, token_id)
            if at.is_over:
                return count
        return None

    def prepare(self, batch: StepBatch, states: Sequence[GateState | None]) -> Payload | None:
        rows: list[int] = []
        bitmask = np.empty((batch.num_rows, self._words), dtype=np.int32)
        for i, state in enumerate(states):
            if state is None or not state.reasons:
                continue
            for row, at in self._along(batch, i, state):
                if at.forced or state.constraint is not None:
                    self._fill(state, at, bitmask, len(rows))
                    rows.append(row)
        return Payload(np.array(rows, dtype=np.int32), {"bitmask": bitmask[: len(rows)]}) if rows else None

    def with_opening(self, masks: Payload, batch: StepBatch, states: Sequence[GateState | None]) -> Payload:
        """Return the constraint masks of a step, with the opening marker allowed where it may still come."""
        undecided = [(i, state) for i, state in enumerate(states) if state is not None and state.is_undecided]
        if not undecided:
            return masks
        places = {row: place for place, row in enumerate(masks.rows.tolist())}
        bitmask = masks.arrays["bitmask"].copy()
        for i, state in undecided:
            for row, at in self._along(batch, i, state):
                if row in places and self._may_open(state, at):
                    bitmask[places[row]] |= self._way(at)
        return replace(masks, arrays={**masks.arrays, "bitmask": bitmask})

    def accept(self, state: GateState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            if state.at.is_over:
                break
            if not self._allows(state, state.at, token_id):
                return fail(f"token {token_id} was drawn although the mask forbids it", was_forbidden=True)
            state.at = self._after(state, state.at, token_id)
        return CONTINUE

    def forced(self, state: GateState, limit: int) -> Sequence[int]:
        """Return the forced tokens of the end marker except the last one (see `validate`)."""
        return state.at.forced[:-1][:limit]

    def validate(self, state: GateState, token_ids: Sequence[int]) -> int:
        """Return how many drafts are accepted. Tokens that open or end the reasoning must be drawn, because the masks
        after them depend on it."""
        at = state.at
        for count, token_id in enumerate(token_ids):
            if at.is_over:
                break
            if not self._allows(state, at, token_id):
                return count
            at = self._after(state, at, token_id)
            if at.opening is None and at.is_over is state.reasons:  # it has ended, or has just opened
                return count
        return len(token_ids)

    def fork(self, state: GateState) -> GateState:
        return replace(state)

    def plugin_of(self, state: GateState | None) -> str:
        """Return the plugin that can fail here: the constraint's strategy, if there is a constraint."""
        constraint = None if state is None else state.constraint
        return super().plugin_of(state) if constraint is None else self._mask.plugin_of(constraint)

    # Parts

    def _along(self, batch: StepBatch, sequence: int, state: GateState) -> Iterator[tuple[int, Progress]]:
        """Yield the rows of a sequence that the gate masks, each with its progress."""
        at, first = state.at, int(batch.row_start[sequence])
        for row, draft in enumerate([None, *batch.drafts(sequence).tolist()], first):
            if draft is not None:
                if not self._allows(state, at, draft):
                    return
                at = self._after(state, at, draft)
            if at.is_over or (at.opening is None and not state.reasons):
                return
            yield row, at

    def _allows(self, state: GateState, at: Progress, token_id: int) -> bool:
        if at.forced:
            return token_id == at.forced[0]
        if state.constraint is None or not state.reasons:
            return True
        if self.opening is not None and at.opening is not None:
            return token_id in self.opening.ways[at.opening]
        kept_out = token_id in state.stop_token_ids or token_id in self._excluded
        return not kept_out and self.marker.advance(at.matched, token_id)[1] == 0

    def _after(self, state: GateState, at: Progress, token_id: int) -> Progress:
        """Return the progress after one more token."""
        if self.opening is not None and at.opening is not None:
            opening = self.opening.onward(at.opening, token_id, past=state.constraint is None)
            is_whole = opening is not None and not self.opening.num_left(opening)
            return self._force_marker(
                state, Progress(at.num_tokens + 1, None if is_whole else opening, is_over=opening is None)
            )
        matched, _ = self.marker.advance(at.matched, token_id)
        is_over = self.marker.is_whole(matched)
        return self._force_marker(state, Progress(at.num_tokens + 1, None, matched, at.forced[1:], at.was_cut, is_over))

    def _force_marker(self, state: GateState, at: Progress) -> Progress:
        """Return `at` with the end marker forced if it is time. Forcing continues once begun."""
        if at.is_over or at.forced or at.opening is not None:
            return at
        if state.budget is not None and at.num_tokens >= state.budget:
            return replace(at, forced=self.marker.endings[at.matched])
        # after one more free token, the rest must still hold the marker and the constraint
        if not self._fits(state, at, 1):
            return replace(at, forced=self.marker.endings[at.matched], was_cut=True)
        return at

    def _fits(self, state: GateState, at: Progress, num_tokens: int) -> bool:
        """Return whether the marker and the constraint still fit after `num_tokens` more tokens."""
        return self._mask.fits(state.constraint, state.room - at.num_tokens - num_tokens - self.marker.longest)

    def _may_open(self, state: GateState, at: Progress) -> bool:
        return (
            self.opening is not None
            and at.opening is not None
            and self._fits(state, at, self.opening.num_left(at.opening))
        )

    def _way(self, at: Progress) -> Bitmask:
        """Return the row of the tokens that continue the opening marker."""
        assert self.opening is not None
        assert at.opening is not None
        if at.opening not in self._ways:
            row = np.zeros((1, self._words), dtype=np.int32)
            allow_only(row, 0, self.opening.ways[at.opening])
            self._ways[at.opening] = row[0]
        return self._ways[at.opening]

    def _fill(self, state: GateState, at: Progress, bitmask: Bitmask, row: int) -> None:
        if at.forced:
            allow_only(bitmask, row, at.forced[:1])
            return
        if at.opening is not None:
            bitmask[row] = self._way(at)
            return
        if at.matched not in self._rows:
            allowed = np.zeros((1, self._words * BITS_PER_WORD), dtype=np.bool_)
            allowed[0, : len(self.context.vocabulary)] = True
            allowed[0, [*self.marker.straddling(at.matched), *self._excluded]] = False
            self._rows[at.matched] = pack(allowed)[0]
        bitmask[row] = self._rows[at.matched]
        words = bitmask[row].view(np.uint32)
        for token_id in state.stop_token_ids:
            words[token_id // BITS_PER_WORD] &= ~np.uint32(1 << token_id % BITS_PER_WORD)


def refuse_reasoning(request: Request) -> Request:
    """Return `request` if it needs no reasoning gate; raise `InvalidRequest` otherwise."""
    params = request.params
    for field in ("reasoning", "thinking_token_budget"):
        if value := getattr(params, field):
            raise InvalidRequest(
                f"{field} is {value}, but the end of reasoning is not configured; set reasoning.end_str, such as "
                "'</think>'",
                field=field,
            )
    return request
