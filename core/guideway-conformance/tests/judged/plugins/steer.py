"""Away from what the model would say after another prompt, as far as its hidden state is flat: guidance without a
classifier, whose scale comes from the model (after Sanchez et al., 2023, and for what is plausible Li et al., 2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.api import (
    Array,
    Companion,
    Example,
    InvalidConfiguration,
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
    parse_options,
)


@dataclass(frozen=True)
class Settings:
    strongest: float = 10.0


@dataclass(frozen=True)
class Wish:
    negative: tuple[int, ...] = (120,)  # token ids of the other prompt
    prompt_follows: bool = False  # the request's own prompt stands after it
    strength: float = 1.5
    trust: float = 0.5  # how much of the strength depends on the hidden state
    plausible: float = 0.1  # tokens less likely than this part of the likeliest are forbidden


class SteerTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        beside = ops.gather(step.companion_rows, rows)[:, :1]
        missing = beside < 0
        beside = ops.where_rows(ops.gather(beside, every), every, missing, rows[:, None])[:, 0]
        own, other = ops.log_softmax(ops.gather(logits, rows)), ops.log_softmax(ops.gather(logits, beside))
        finite = ops.where_rows(ops.gather(own, every), every, own == -np.inf, 0.0)
        other = ops.where_rows(ops.gather(other, every), every, other == -np.inf, finite)
        away = finite - other
        away = ops.where_rows(ops.gather(away, every), every, away > 50.0, 50.0)
        away = ops.where_rows(ops.gather(away, every), every, away < -50.0, -50.0)
        scale = payload.arrays["strength"] * (1.0 - payload.arrays["trust"] * (1.0 - self.flatness(step, rows, every)))
        guided = own + away * scale[:, None]
        candidates = ops.where_rows(ops.gather(own, every), every, step.bitmask(rows) == False, -np.inf)  # noqa: E712
        likeliest, _ = ops.topk(ops.forbid_from(candidates, self.context.vocabulary_size), 1)
        guided = ops.where_rows(guided, every, own < likeliest + payload.arrays["margin"][:, None], -np.inf)
        return ops.where_rows(logits, rows, missing == False, guided)  # noqa: E712

    def flatness(self, step: Step, rows: Array, every: Array) -> Array:
        """The mean of each hidden state's absolute values over the largest of them: from 0 to 1."""
        ops = step.ops
        hidden = step.hidden_states(rows) * ops.asarray(np.ones((1, 1), dtype=np.float32))
        size = ops.where_rows(ops.gather(hidden, every), every, hidden < 0, -hidden)
        largest, _ = ops.topk(size, 1)
        return (size / (largest + 1e-20)).sum(axis=1) / size.shape[1]


class Steer(LogitModifier[Wish]):
    contract, name, stage, transform, derived = "1.0", "steer", Stage.PRE_WARP, SteerTransform, True
    needs = frozenset({Need.COMPANIONS, Need.HIDDEN_STATES, Need.BITMASK})
    examples = (
        Example({}),
        Example({"negative": [32, 98], "prompt_follows": True, "strength": 3.0, "trust": 0.0}),
        Example({"plausible": 0.0, "trust": 1.0, "strength": 4.0}),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.settings = parse_options(Settings, options, where="modifier.steer")
        if not 0 < self.settings.strongest <= 100:
            raise InvalidConfiguration("strongest is above 0 and at most 100", field="modifier.steer.strongest")

    def wish(self, request: Request) -> Wish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.steer")
        size = len(self.context.vocabulary)
        if not wish.negative or not all(0 <= token_id < size for token_id in wish.negative):
            raise InvalidRequest("negative has token ids, at least one", field="modifiers.steer.negative")
        if not 0 <= wish.strength <= self.settings.strongest:
            raise InvalidRequest(f"strength is from 0 to {self.settings.strongest}", field="modifiers.steer.strength")
        if not 0 <= wish.trust <= 1 or not 0 <= wish.plausible <= 1:
            raise InvalidRequest("trust and plausible are from 0 to 1", field="modifiers.steer")
        return wish

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Wish | None:
        return self.wish(request)

    def companions(self, request: Request) -> Sequence[Companion]:
        wish = self.wish(request)
        if wish is None:
            return ()
        prompt = wish.negative + request.prompt_token_ids if wish.prompt_follows else wish.negative
        return (Companion(prompt[-max(self.context.max_model_len - 1, 1) :]),)

    def prepare(self, batch: StepBatch, states: Sequence[Wish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        wishes = [wish for i in sequences if (wish := states[i]) is not None]
        if not wishes:
            return None
        margins = [math.log(wish.plausible) if wish.plausible else -math.inf for wish in wishes]
        arrays = {
            "strength": np.array([wish.strength for wish in wishes], dtype=np.float32),
            "trust": np.array([wish.trust for wish in wishes], dtype=np.float32),
            "margin": np.array(margins, dtype=np.float32),
        }
        return Payload(rows, arrays)

    def report(self, state: Wish) -> Mapping[str, Any]:
        return {"strength": state.strength, "negative_tokens": len(state.negative)}
