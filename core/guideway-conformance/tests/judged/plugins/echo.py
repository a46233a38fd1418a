"""Raises or lowers the tokens that stood a short while ago, the more the nearer, and less where the model's hidden
state is spread evenly (it is then unsure what it writes about).

The state is the request's wish, so it is derived: what stood there is read from the history, and how much of it is
prompt and how much output from the position of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from guideway.api import (
    Array,
    Example,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Need,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    WorkerContext,
    hookimpl,
    parse_options,
)
from numpy.typing import NDArray

WINDOW = 48


@dataclass(frozen=True)
class Wish:
    strength: float = 1.5
    decay: float = 0.9
    window: int = 24
    source: Literal["all", "prompt", "output"] = "all"
    gate: float = 0.5
    """The share that an even hidden state takes away; 0: nothing."""
    words_only: bool = False
    """True if tokens without a letter or digit do not count."""


@dataclass(frozen=True)
class Settings:
    """The operator's options."""

    max_strength: float = 20.0


@dataclass(frozen=True)
class State:
    wish: Wish
    prompt_length: int
    fading: NDArray[np.float32]
    """By distance, the farthest first as in the history; of all rows of the sequence: only to be read."""


class EchoTransform(LogitTransform):
    history_length: ClassVar = WINDOW

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        self.one_row = np.zeros((1, WINDOW), dtype=np.int32)
        self.wide = np.zeros((1, 1), dtype=np.float32)

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows, arrays = step.ops, payload.rows, payload.arrays
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        hidden = step.hidden_states(rows) + ops.asarray(self.wide)  # in float32: squares of a half overflow
        energy = hidden * hidden
        peak, _ = ops.topk(energy, 1)
        evenness = (energy / (peak + 1e-30)).sum(axis=1) / hidden.shape[1]
        amount = arrays["strength"] * (1.0 - arrays["gate"] * evenness)

        before = step.history(rows)
        missing = before < 0
        columns = ops.where_rows(ops.gather(before, every), every, missing, 0)  # a copy, as it may be changed
        counted = ops.gather(payload.shared["counted"], arrays["table"], columns)
        values = counted * arrays["fading"] * amount[:, None]
        values = ops.where_rows(values, every, missing, 0.0)
        each = (rows[:, None] + ops.asarray(self.one_row)).reshape(-1)
        return ops.add_at(logits, each, columns.reshape(-1), values.reshape(-1))


class Echo(LogitModifier[State]):
    contract = "1.0"
    name, stage, transform, derived = "echo", Stage.PRE_WARP, EchoTransform, True
    needs = frozenset({Need.HISTORY, Need.HIDDEN_STATES})
    examples = (
        Example({}),
        Example({"strength": -4.0, "source": "output", "window": 5, "gate": 1.0}),
        Example(
            {"source": "prompt", "words_only": True, "decay": 1.0, "window": 48}, prompt_token_ids=(97, 32, 98, 99)
        ),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.settings = parse_options(Settings, options, where="modifier.echo")
        vocabulary = context.vocabulary
        self.counted = np.zeros((2, vocabulary.logits_width), dtype=np.float32)
        for token_id, token in enumerate(vocabulary.tokens):
            if token and token_id not in vocabulary.special_tokens:
                self.counted[0, token_id] = 1
                self.counted[1, token_id] = any(48 <= b < 58 or 65 <= (b & 0xDF) <= 90 or b >= 128 for b in token)
        self.counted.setflags(write=False)
        self.distance = np.arange(WINDOW, 0, -1)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.echo")
        most = self.settings.max_strength
        if not -most <= wish.strength <= most or not 0 < wish.decay <= 1:
            raise InvalidRequest(f"strength must be within {most:g}, decay above 0 and up to 1", field="modifiers.echo")
        if not 1 <= wish.window <= WINDOW or not 0 <= wish.gate <= 1:
            raise InvalidRequest(f"window must be from 1 to {WINDOW}, gate from 0 to 1", field="modifiers.echo")
        fading = np.where(self.distance <= wish.window, wish.decay ** (self.distance - 1.0), 0).astype(np.float32)
        fading.setflags(write=False)
        return State(wish, len(sequence.prompt_token_ids), fading)

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        if not len(rows):
            return None
        acting = [state for i in sequences if (state := states[i]) is not None]
        fading = np.stack([state.fading for state in acting])
        # so many of the tokens before a row were generated
        generated = batch.positions[rows] - np.array([state.prompt_length for state in acting], dtype=np.int32)
        is_output = self.distance[None, :] <= generated[:, None]
        sources = np.array([state.wish.source for state in acting])[:, None]
        fading[(sources == "output") & ~is_output] = 0
        fading[(sources == "prompt") & is_output] = 0
        return Payload(
            rows,
            {
                "fading": fading,
                "strength": np.array([state.wish.strength for state in acting], dtype=np.float32),
                "gate": np.array([state.wish.gate for state in acting], dtype=np.float32),
                "table": np.array([int(state.wish.words_only) for state in acting], dtype=np.int32),
            },
            {"counted": self.counted},
        )


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return Echo
