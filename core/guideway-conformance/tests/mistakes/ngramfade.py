"""Discourages recently generated n-grams, less as they age, and blocks those that recur too often."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range
from numpy.typing import NDArray

WIDTH = 32
"""Columns of a row's payload: the maximum of continuations that are discouraged at once."""


@dataclass(frozen=True)
class Options:
    """The operator's options: the longest window that a request may have."""

    max_window: Annotated[int, Range(8, 4096)] = 512


@dataclass(frozen=True)
class Wish:
    n: Annotated[int, Range(1, 8)] = 2
    window: Annotated[int, Range(4, 4096)] = 128
    penalty: Annotated[float, Range(0.0, 50.0)] = 4.0
    half_life: Annotated[float, Range(above=0.0, most=1e6)] = 32.0
    """Tokens after which the penalty of an n-gram is halved."""
    block_after: Annotated[int, Range(1, 1000)] = 3
    """Occurrences of an n-gram in the window after which it is blocked."""
    spare_stops: bool = True


@dataclass
class State:
    wish: Wish
    length: int = 0
    recent: deque[int] = field(default_factory=deque)
    """The last n - 1 tokens."""
    seen: dict[tuple[int, ...], deque[tuple[int, int]]] = field(default_factory=dict)
    """By the preceding n - 1 tokens: position and token of each continuation in the window, in order."""
    placed: deque[tuple[int, ...]] = field(default_factory=deque)
    """The key in `seen` of each n-gram in the window, in order."""
    repeats: int = 0

    def take(self, token_id: int) -> None:
        key = tuple(self.recent)
        if len(key) == self.wish.n - 1:
            earlier = self.seen.setdefault(key, deque())
            self.repeats += any(token == token_id for _, token in earlier)
            earlier.append((self.length, token_id))
            self.placed.append(key)
            if len(self.placed) > self.wish.window:
                self.forget(self.placed.popleft())
        self.recent.append(token_id)
        if len(self.recent) > self.wish.n - 1:
            self.recent.popleft()
        self.length += 1

    def forget(self, key: tuple[int, ...]) -> None:
        self.seen[key].popleft()
        if not self.seen[key]:
            del self.seen[key]

    def copy(self) -> State:
        seen = {key: deque(entries) for key, entries in self.seen.items()}
        return State(self.wish, self.length, deque(self.recent), seen, deque(self.placed), self.repeats)


class NgramFadeTransform(api.LogitTransform):
    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, m = step.ops, len(payload)
        entries = ops.asarray(np.repeat(np.arange(m, dtype=np.int32), WIDTH))
        columns = payload.arrays["columns"].reshape(m * WIDTH)
        values = payload.arrays["values"].reshape(m * WIDTH)
        return ops.add_at(logits, payload.rows[entries], columns, values)


class NgramFade(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "ngramfade", api.Stage.PRE_WARP, NgramFadeTransform
    examples = (
        api.Example({"n": 1, "penalty": 2.0}),
        api.Example({"n": 2, "block_after": 1}, generated=(97, 98, 97, 98, 97)),
        api.Example({"n": 3, "half_life": 2.0, "window": 6}, generated=(97, 98, 99, 97, 98, 99, 97, 98)),
        api.Example({"n": 1, "window": 4, "block_after": 2, "spare_stops": False}, generated=(97, 97, 98, 97)),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.operator = api.parse_options(Options, options, where="modifier.ngramfade")
        self.buffers: list[tuple[NDArray[np.int32], NDArray[np.float32]]] = [self.buffer(64), self.buffer(64)]
        self.steps = 0

    @staticmethod
    def buffer(num_rows: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return np.zeros((num_rows, WIDTH), dtype=np.int32), np.zeros((num_rows, WIDTH), dtype=np.float32)

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.ngramfade")
        if wish.window > self.operator.max_window:
            raise api.InvalidRequest(
                f"window may be at most {self.operator.max_window}", field="modifiers.ngramfade.window"
            )
        return State(wish)

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        # a payload is read until the second `prepare` after it, so two buffers are used in turn
        self.steps += 1
        turn = self.steps % 2
        if len(self.buffers[turn][0]) < len(rows):
            self.buffers[turn] = self.buffer(2 * len(rows))
        columns, values = (array[: len(rows)] for array in self.buffers[turn])
        columns[:], values[:] = 0, 0.0
        entry = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            drafts = batch.drafts(i).tolist()
            self.fill(state, columns[entry], values[entry])
            entry += 1
            if drafts:
                ahead = state.copy()
                for token_id in drafts:
                    ahead.take(token_id)
                    self.fill(ahead, columns[entry], values[entry])
                    entry += 1
        return api.Payload(rows, {"columns": columns, "values": values})

    def fill(self, state: State, columns: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Write the numbers to add to the logits of the next token of `state`."""
        wish, taken, counts = state.wish, dict[int, float](), dict[int, int]()
        for place, token_id in state.seen.get(tuple(state.recent), ()):
            if wish.spare_stops and token_id in self.context.vocabulary.stop_token_ids:
                continue
            age = state.length - place
            taken[token_id] = taken.get(token_id, 0.0) - wish.penalty * 0.5 ** (age / wish.half_life)
            counts[token_id] = counts.get(token_id, 0) + 1
        # the strongest ones, if there are more than fit
        strongest = sorted(taken, key=lambda token_id: (-counts[token_id], taken[token_id], token_id))[:WIDTH]
        for j, token_id in enumerate(strongest):
            columns[j] = token_id
            values[j] = -1e4 if counts[token_id] >= wish.block_after else taken[token_id]

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            state.take(token_id)
        return api.CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return len(token_ids)  # all drafts may be drawn

    def fork(self, state: State) -> State:
        return state.copy()

    def report(self, state: State) -> Mapping[str, Any]:
        return {"tokens": state.length, "repeats": state.repeats, "n": state.wish.n}
