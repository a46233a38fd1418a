"""A sampler with an allowance: its temperature follows the entropy of each row (Zhang et al., EDT, arXiv 2403.14541),
and what a text has spent in nats of surprise makes it colder, until the allowance is used up and the text ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from guideway import api


@dataclass(frozen=True)
class Wish:
    hot: float = 1.3
    """Temperature of a row with high entropy."""
    cold: float = 0.6
    """Temperature of a row without any."""
    min_p: float = 0.02
    allowance: float = 0.0
    """Nats of surprise for a text; 0: any."""


@dataclass
class State:
    wish: Wish
    spent: float = 0.0
    heard: int = 0
    peak: float = 0.0
    peak_at: int = -1
    """The place of the most uncertain one among the tokens with feedback."""


class AllowanceSampler(api.Sampler):
    emits: ClassVar = {"surprise": ((), "float32"), "entropy": ((), "float32")}

    def sample(self, logprobs: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own, finite = ops.gather(logprobs, rows), ops.gather(logprobs, rows)
        finite = ops.where_rows(finite, every, own == -np.inf, 0.0)
        entropy = -1.0 * (ops.exp(own) * finite).sum(axis=1)
        certain = ops.exp(-1.0 * entropy)
        temperature = payload.arrays["hot"] + certain * (payload.arrays["cold"] - payload.arrays["hot"])
        likeliest, _ = ops.topk(own, 1)
        kept = ops.gather(logprobs, rows)
        kept = ops.where_rows(kept, every, own < likeliest + payload.arrays["log_min_p"][:, None], -np.inf)
        kept = ops.scale_rows(kept, every, 1.0 / temperature)
        drawn = ops.categorical(kept, step.uniform("allowance", rows)[:, 0])
        step.emit("surprise", -1.0 * ops.gather(logprobs, rows, drawn[:, None])[:, 0])
        step.emit("entropy", entropy)
        return drawn


class Allowance(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "allowance", api.Stage.SAMPLE, AllowanceSampler
    needs = frozenset({api.Need.UNIFORM, api.Need.FEEDBACK})
    examples = (
        api.Example({}),
        api.Example({"hot": 2.0, "cold": 1.0, "allowance": 40.0}, logits={97: 6.0, 98: 5.0}),
        api.Example({"min_p": 0.0, "allowance": 12.0}),
    )

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.allowance")
        if not 0.05 <= wish.cold <= wish.hot <= 20:
            raise api.InvalidRequest("0.05 <= cold <= hot <= 20 is false", field="modifiers.allowance")
        if not 0 <= wish.min_p <= 1:
            raise api.InvalidRequest("min_p must be from 0 to 1", field="modifiers.allowance.min_p")
        if not 0 <= wish.allowance <= 1e6:
            raise api.InvalidRequest("allowance must be from 0 to 1e6", field="modifiers.allowance.allowance")
        return State(wish)

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        acting = [state for i in sequences if (state := states[i]) is not None]
        if not acting:
            return None
        hot = [state.wish.cold + (state.wish.hot - state.wish.cold) * self.left(state) for state in acting]
        log_min_p = [math.log(state.wish.min_p) if state.wish.min_p > 0 else -math.inf for state in acting]
        return api.Payload(
            rows,
            {
                "hot": np.array(hot, dtype=np.float32),
                "cold": np.array([state.wish.cold for state in acting], dtype=np.float32),
                "log_min_p": np.array(log_min_p, dtype=np.float32),
            },
        )

    def left(self, state: State) -> float:
        """The share of its allowance that a text has not spent."""
        if not state.wish.allowance:
            return 1.0
        return max(0.0, 1 - state.spent / state.wish.allowance)

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        if feedback is None:
            return api.CONTINUE
        outcome = api.CONTINUE
        for surprise, entropy in zip(feedback["surprise"].tolist(), feedback["entropy"].tolist(), strict=True):
            if entropy > state.peak:
                state.peak, state.peak_at = entropy, state.heard
            state.heard += 1
            # a token that came from elsewhere may have been impossible
            state.spent += min(surprise, 100.0)
            if state.wish.allowance and state.spent >= state.wish.allowance:
                outcome = api.FINISH
        return outcome

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return 0 if state.wish.allowance else len(token_ids)

    def fork(self, state: State) -> State:
        return replace(state)

    def report(self, state: State) -> dict[str, Any]:
        return {"nats": round(state.spent, 3), "tokens": state.heard, "peak": round(state.peak, 3), "at": state.peak_at}


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[State]]:
    return Allowance
