"""A probe on hidden states that ends what it dislikes, and guidance by a second prompt (Sanchez et al., 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    Companion,
    Example,
    Feedback,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
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


@dataclass(frozen=True)
class ProbeWish:
    limit: float = 0.9
    patience: int = 3
    damp: float = 0.25


@dataclass
class ProbeState:
    wish: ProbeWish
    sum: float = 0.0
    count: int = 0
    strikes: int = 0


class ProbeTransform(LogitTransform):
    """Computes a score of each row from 0 to 1, and flattens the logits of rows with a high one."""

    emits: ClassVar = {"score": ((), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        hidden = step.hidden_states(rows) + ops.asarray(np.zeros((1, 1), dtype=np.float32))  # float32 from here on
        largest = ops.topk((hidden > 0) * hidden - (hidden < 0) * hidden, 1)[0]
        scaled = hidden / (largest + 1e-20)  # sums of squares of the states themselves may overflow
        direction = ops.asarray(np.cos(np.arange(scaled.shape[1], dtype=np.float32)))
        norm = ops.exp(0.5 * ops.log((scaled * scaled).sum(axis=1) + 1e-20))
        cosine = (scaled * direction[None, :]).sum(axis=1) / norm / float(np.sqrt(scaled.shape[1]))
        score = 1.0 / (1.0 + ops.exp(-4.0 * cosine))
        step.emit("score", score)
        return ops.scale_rows(logits, rows, 1.0 - payload.arrays["damp"] * score)


class Probe(LogitModifier[ProbeState]):
    contract, name, stage, transform = "1.0", "probe", Stage.PRE_WARP, ProbeTransform
    needs = frozenset({Need.HIDDEN_STATES, Need.FEEDBACK})
    examples = (Example({}), Example({"limit": 0.4, "patience": 2, "damp": 0.5}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> ProbeState | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(ProbeWish, request.params.modifiers[self.name], where="modifiers.probe")
        if not 0 < wish.limit < 1 or wish.patience < 1 or not 0 <= wish.damp < 1:
            raise InvalidRequest("limit and damp are between 0 and 1, patience at least 1", field="modifiers.probe")
        return ProbeState(wish)

    def prepare(self, batch: StepBatch, states: Sequence[ProbeState | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        damp = [state.wish.damp for i in sequences if (state := states[i]) is not None]
        return Payload(rows, {"damp": np.array(damp, dtype=np.float32)}) if damp else None

    def accept(self, state: ProbeState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is None:
            return CONTINUE
        for score in feedback["score"].tolist():
            state.sum += score
            state.count += 1
            state.strikes = state.strikes + 1 if score > state.wish.limit else 0
            if state.strikes >= state.wish.patience:
                return FINISH
        return CONTINUE

    def fork(self, state: ProbeState) -> ProbeState:
        return replace(state)

    def report(self, state: ProbeState) -> Mapping[str, Any] | None:
        return {"mean": state.sum / state.count, "strikes": state.strikes} if state.count else None


@dataclass(frozen=True)
class AgainstWish:
    weight: float = 0.5
    prompt: tuple[int, ...] = (97, 98)


class AgainstTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own = ops.gather(logits, rows)
        other = ops.gather(logits, step.companion_rows[rows][:, 0])
        # where either forbids, what is computed would be infinite or no number
        usable = (own > -np.inf) * (other > -np.inf)
        difference = ops.where_rows(own - other, every, usable == 0, 0.0)
        guided = own + payload.arrays["weight"][:, None] * difference
        return ops.where_rows(logits, rows, usable, guided)


class Against(LogitModifier[AgainstWish]):
    contract, name, stage, transform, derived = "1.0", "against", Stage.PRE_WARP, AgainstTransform, True
    needs = frozenset({Need.COMPANIONS})
    examples = (Example({}), Example({"weight": 1.5, "prompt": [99]}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> AgainstWish | None:
        return self.wish(request)

    def companions(self, request: Request) -> Sequence[Companion]:
        wish = self.wish(request)
        return () if wish is None else (Companion(prompt_token_ids=wish.prompt),)

    def prepare(self, batch: StepBatch, states: Sequence[AgainstWish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        weights = [wish.weight for i in sequences if (wish := states[i]) is not None]
        return Payload(rows, {"weight": np.array(weights, dtype=np.float32)}) if weights else None

    def wish(self, request: Request) -> AgainstWish | None:
        if self.name not in request.params.modifiers:
            return None
        options = {**request.params.modifiers[self.name]}
        if isinstance(options.get("prompt"), list):
            options["prompt"] = tuple(options["prompt"])
        wish = parse_options(AgainstWish, options, where="modifiers.against")
        size = len(self.context.vocabulary)
        if not wish.prompt or not all(0 <= token_id < size for token_id in wish.prompt):
            raise InvalidRequest("prompt must be token ids of the vocabulary", field="modifiers.against.prompt")
        if not abs(wish.weight) <= 100:
            raise InvalidRequest("weight must be from -100 to 100", field="modifiers.against.weight")
        return wish
