"""Keeps the entropy of what is drawn near a target: hotter where the model is too sure, cooler where it is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    Example,
    Feedback,
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Need,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)
from guideway.api.steps import FINISH


@dataclass(frozen=True)
class Bounds:
    """The temperatures that the operator allows."""

    coolest: float = 0.25
    hottest: float = 4.0


@dataclass(frozen=True)
class Wish:
    target: float = 2.0  # nats
    gain: float = 0.3  # how fast the temperature follows
    memory: float = 0.8  # of the running mean of the entropy
    panic: float = 8.0  # nats above which the model is lost
    patience: int = 0  # so many lost tokens in a row end the text; 0: none do


@dataclass
class State:
    wish: Wish
    temperature: float = 1.0
    mean: float | None = None
    lost: int = 0
    heard: int = 0
    unheard: int = 0
    ended: bool = False


class HeatTransform(LogitTransform):
    emits: ClassVar = {"entropy": ((), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own = ops.log_softmax(ops.gather(logits, rows))
        finite = ops.where_rows(ops.gather(own, every), every, own == -np.inf, 0.0)  # 0 * -inf is not a number
        step.emit("entropy", -1.0 * (ops.exp(own) * finite).sum(axis=1))
        heated = ops.scale_rows(ops.gather(own, every), every, payload.arrays["factor"])
        return ops.where_rows(logits, rows, True, ops.log_softmax(heated))


class Heat(LogitModifier[State]):
    contract, name, stage, transform = "1.0", "heat", Stage.POST_WARP, HeatTransform
    needs = frozenset({Need.FEEDBACK})
    examples = (
        Example({}),
        Example({"target": 0.5, "gain": 1.0, "memory": 0.0}),
        Example({"patience": 3, "panic": 0.05, "memory": 0.5}),
        Example({"gain": 0.0, "target": 1.0}),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.bounds = parse_options(Bounds, options, where="modifier.heat")
        if not 0.01 <= self.bounds.coolest <= 1 <= self.bounds.hottest <= 100:
            raise InvalidConfiguration("coolest must be from 0.01 to 1, hottest from 1 to 100", field="modifier.heat")

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.heat")
        if not 0 <= wish.target <= 20 or not 0 <= wish.gain <= 2 or not 0 <= wish.memory < 1:
            raise InvalidRequest("target is from 0 to 20, gain to 2, memory below 1", field="modifiers.heat")
        if not wish.panic > 0 or not wish.patience >= 0:
            raise InvalidRequest("panic is above 0, patience not below", field="modifiers.heat")
        return State(wish)

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        factors = np.array([1 / state.temperature if state is not None else 1 for state in states], dtype=np.float32)
        return Payload(rows, {"factor": factors[sequences]}) if len(rows) else None

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if state.ended:
            return FINISH
        if feedback is None:  # nobody looked at these rows
            state.unheard += len(token_ids)
            return CONTINUE
        for entropy in feedback["entropy"].tolist():
            self.hear(state, entropy)
            if state.wish.patience and state.lost >= state.wish.patience:
                state.ended = True
                return FINISH
        return CONTINUE

    def hear(self, state: State, entropy: float) -> None:
        wish = state.wish
        state.heard += 1
        state.mean = entropy if state.mean is None else wish.memory * state.mean + (1 - wish.memory) * entropy
        wanted = state.temperature * math.exp(wish.gain * (wish.target - state.mean))
        state.temperature = min(max(wanted, self.bounds.coolest), self.bounds.hottest)
        state.lost = state.lost + 1 if entropy > wish.panic else 0

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        steady = state.wish.gain == 0 and state.wish.patience == 0
        return len(token_ids) if steady else 0  # else the row after a draft waits for the draft's entropy

    def fork(self, state: State) -> State:
        return replace(state)

    def report(self, state: State) -> Mapping[str, Any]:
        mean = None if state.mean is None else round(state.mean, 4)
        temperature = round(state.temperature, 4)
        return {"tokens": state.heard, "unheard": state.unheard, "mean": mean, "temperature": temperature}
