"""A repetition penalty that fades: what was said a moment ago costs much, what was said long ago little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from guideway import api
from numpy.typing import NDArray

WIDEST = 128
"""The longest window, and the width of every payload."""


@dataclass(frozen=True)
class Wish:
    strength: float = 1.5
    """Cost of a token that has just been said."""
    window: int = 48
    """The number of tokens back that it looks."""
    half_life: float = 16.0
    """After so many tokens the cost is half."""
    prompt: bool = False
    """True if the prompt counts as said."""
    exempt: tuple[int, ...] = ()
    """Tokens that cost nothing, such as spaces and commas."""
    give_up: int = 0
    """End a text after so many repeated tokens in a row; 0: never."""


@dataclass
class State:
    wish: Wish
    costs: NDArray[np.float32]
    """By distance, nearest first; read only."""
    exempt: NDArray[np.int32]
    recent: list[int] = field(default_factory=list)
    tokens: int = 0
    repeats: int = 0
    streak: int = 0


class FadingTransform(api.LogitTransform):
    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        columns, costs = payload.arrays["columns"], payload.arrays["costs"]
        rows = payload.rows[:, None] + 0 * columns
        return step.ops.add_at(logits, rows.reshape(-1), columns.reshape(-1), -1.0 * costs.reshape(-1))


class Fading(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "fading", api.Stage.PRE_WARP, FadingTransform
    examples = (
        api.Example({}),
        api.Example({"strength": 4.0, "window": 5, "half_life": 2.0, "prompt": True}, generated=(97, 98, 97, 97)),
        api.Example({"exempt": [97, 32], "give_up": 3}, generated=(97, 98, 98, 98, 98, 98)),
    )

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = api.parse_options(Wish, options, where="modifiers.fading")
        if not 0 <= wish.strength <= 50:
            raise api.InvalidRequest("strength must be from 0 to 50", field="modifiers.fading.strength")
        if not 1 <= wish.window <= WIDEST:
            raise api.InvalidRequest(f"window must be from 1 to {WIDEST}", field="modifiers.fading.window")
        if not 0.1 <= wish.half_life <= 10_000:
            raise api.InvalidRequest("half_life must be from 0.1 to 10000", field="modifiers.fading.half_life")
        if not 0 <= wish.give_up <= 10_000:
            raise api.InvalidRequest("give_up must be from 0 to 10000", field="modifiers.fading.give_up")
        if not all(0 <= token_id < len(self.context.vocabulary) for token_id in wish.exempt):
            raise api.InvalidRequest("exempt has an unknown token", field="modifiers.fading.exempt")
        costs = wish.strength * 0.5 ** (np.arange(wish.window) / wish.half_life)
        state = State(wish, costs.astype(np.float32), np.unique(np.array(wish.exempt, dtype=np.int32)))
        if wish.prompt:
            state.recent = list(sequence.prompt_token_ids[-wish.window :])
        return state

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        columns = np.zeros((len(rows), WIDEST), dtype=np.int32)
        costs = np.zeros((len(rows), WIDEST), dtype=np.float32)
        entry = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            drafts = batch.drafts(i).tolist()
            for count in range(len(drafts) + 1):
                said = (state.recent + drafts[:count])[-state.wish.window :]
                nearest_first = np.array(said[::-1], dtype=np.int32)
                columns[entry, : len(said)] = nearest_first
                free = np.isin(nearest_first, state.exempt)
                costs[entry, : len(said)] = np.where(free, 0, state.costs[: len(said)])
                entry += 1
        return api.Payload(rows, {"columns": columns, "costs": costs})

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        outcome = api.CONTINUE
        for token_id in token_ids:
            repeated = token_id in state.recent and token_id not in state.exempt
            state.streak = state.streak + 1 if repeated else 0
            state.repeats += repeated
            state.tokens += 1
            state.recent.append(token_id)
            del state.recent[: -state.wish.window]
            if state.wish.give_up and state.streak >= state.wish.give_up:
                outcome = api.FINISH
        return outcome

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def fork(self, state: State) -> State:
        copy = State(state.wish, state.costs, state.exempt, list(state.recent))
        copy.tokens, copy.repeats, copy.streak = state.tokens, state.repeats, state.streak
        return copy

    def report(self, state: State) -> dict[str, Any]:
        return {"tokens": state.tokens, "repeats": state.repeats, "gave_up": self.gave_up(state)}

    def gave_up(self, state: State) -> bool:
        return 0 < state.wish.give_up <= state.streak


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[State]]:
    return Fading
