"""A sampler that steers towards tokens of a wished probability (adaptive-p), and ends a text that has gone to noise.

The probability of each drawn token comes back as feedback. Where the last ones were too likely, the aim moves down, and
the other way round. `patience` tokens in a row at an entropy above `noise` end the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    Example,
    Feedback,
    InvalidRequest,
    LogitModifier,
    ModifierContext,
    Need,
    Outcome,
    Payload,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
    parse_options,
)


@dataclass(frozen=True)
class Wish:
    target: float = 0.4
    """The wished probability of a token."""
    decay: float = 0.9
    """The share of a drawn token that is remembered after the next."""
    sharpness: float = 20.0
    floor: float = 0.01
    """Tokens below it are not drawn, but for the likeliest."""
    patience: int = 0
    """0: never ends a text."""
    noise: float = 3.0
    """In nats."""


@dataclass(frozen=True)
class Settings:
    """The operator has no options."""


@dataclass
class State:
    wish: Wish
    entropies: deque[float]
    weighted: float = 0.0
    weight: float = 0.0
    drawn: int = 0
    given: int = 0
    over: bool = False
    likely: list[int] = field(default_factory=lambda: [0] * 4)
    """The numbers of tokens that were drawn of a probability up to a quarter, a half, three quarters and one."""

    @property
    def mean(self) -> float:
        return self.weighted / self.weight if self.weight else self.wish.target

    @property
    def aim(self) -> float:
        return min(max(2 * self.wish.target - self.mean, 0.01), 1.0)


class SteadySampler(Sampler):
    emits: ClassVar = {"probability": ((), "float32"), "entropy": ((), "float32")}

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        ops, arrays = step.ops, payload.arrays
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own = ops.log_softmax(ops.gather(logprobs, payload.rows))
        p = ops.exp(own)
        likeliest, _ = ops.topk(p, 1)
        off = p - arrays["aim"][:, None]
        score = arrays["sharpness"][:, None] * off * off * -1.0
        # below the floor goes, unless it is the likeliest
        kept = ops.where_rows(ops.gather(own, every), every, own > -np.inf, score)
        low = (p < arrays["floor"][:, None]) * (p < likeliest)
        kept = ops.where_rows(kept, every, low, -np.inf)
        drawn = ops.categorical(kept, step.uniform("steady", payload.rows)[:, 0])
        finite = ops.where_rows(ops.gather(own, every), every, p <= 0, 0.0)
        step.emit("entropy", (p * finite).sum(axis=1) * -1.0)
        step.emit("probability", ops.gather(p, every, drawn[:, None])[:, 0])
        return drawn


class Steady(LogitModifier[State]):
    contract = "1.0"
    name, stage, transform = "steady", Stage.SAMPLE, SteadySampler
    needs = frozenset({Need.UNIFORM, Need.FEEDBACK})
    examples = (
        Example({}),
        Example({"target": 0.9, "sharpness": 80.0, "decay": 0.5}, logits={97: 9.0, 98: 8.0, 99: 8.0}),
        Example({"target": 0.1, "patience": 3, "noise": 0.5, "floor": 0.0}),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        parse_options(Settings, options, where="modifier.steady")

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = parse_options(Wish, options, where="modifiers.steady")
        if not 0 < wish.target <= 1 or not 0 <= wish.decay < 1 or not 0 <= wish.floor < 1:
            raise InvalidRequest("target, decay and floor must be from 0 to 1", field="modifiers.steady")
        if not 0 <= wish.sharpness <= 1000 or not 0 <= wish.patience <= 256 or not 0 <= wish.noise <= 100:
            raise InvalidRequest("sharpness, patience or noise is out of range", field="modifiers.steady")
        return State(wish, deque(maxlen=wish.patience))

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        if not len(rows):
            return None
        acting = [state for i in sequences if (state := states[i]) is not None]
        return Payload(
            rows,
            {
                "aim": np.array([state.aim for state in acting], dtype=np.float32),
                "sharpness": np.array([state.wish.sharpness for state in acting], dtype=np.float32),
                "floor": np.array([state.wish.floor for state in acting], dtype=np.float32),
            },
        )

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if state.over:
            return FINISH
        if feedback is None:
            state.given += len(token_ids)
            return CONTINUE
        wish = state.wish
        for p, entropy in zip(feedback["probability"].tolist(), feedback["entropy"].tolist(), strict=True):
            state.weighted = wish.decay * state.weighted + p
            state.weight = wish.decay * state.weight + 1.0
            state.drawn += 1
            state.likely[min(int(p * 4), 3)] += 1
            state.entropies.append(entropy)
            if 0 < wish.patience == len(state.entropies) and min(state.entropies) > wish.noise:
                state.over = True
                return FINISH
        return CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return 0  # the aim after a draft depends on its probability

    def fork(self, state: State) -> State:
        return replace(state, entropies=state.entropies.copy(), likely=list(state.likely))

    def report(self, state: State) -> Mapping[str, Any]:
        return {
            "drawn": state.drawn,
            "given": state.given,
            "mean": round(state.mean, 6),
            "likely": list(state.likely),
            "noise": state.over,
        }


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return Steady
