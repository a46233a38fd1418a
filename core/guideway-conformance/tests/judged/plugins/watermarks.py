"""Three plugins that decide by random numbers: a green list after Kirchenbauer et al. (2023), the Gumbel watermark of
Aaronson (2022), and XTC, which leaves out the likeliest tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    Example,
    Feedback,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Need,
    Outcome,
    Payload,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)
from guideway.api.bitmask import Bitmask, is_allowed, num_words


@dataclass(frozen=True)
class GreenWish:
    """The wish of a request: how much greener, and of how many tokens a list depends on."""

    delta: float = 2.0
    window: int = 2


@dataclass
class GreenState:
    wish: GreenWish
    salt: int
    last: tuple[int, ...]
    green: int = 0
    total: int = 0


class GreenTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        green = ops.unpack_bitmask(payload.arrays["green"], self.context.logits_width)
        wished = ops.gather(logits, rows) + payload.arrays["delta"][:, None]
        return ops.where_rows(logits, rows, green, wished)


class Green(LogitModifier[GreenState]):
    contract, name, stage, transform = "1.0", "green", Stage.PRE_WARP, GreenTransform
    examples = (Example({}), Example({"delta": 5.0, "window": 3}), Example({"delta": -1.5, "window": 1}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> GreenState | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(GreenWish, request.params.modifiers[self.name], where="modifiers.green")
        if not -50 <= wish.delta <= 50 or not 1 <= wish.window <= 8:
            raise InvalidRequest("delta is not within 50, or window not from 1 to 8", field="modifiers.green")
        return GreenState(wish, request.seed, sequence.prompt_token_ids[-wish.window :])

    def prepare(self, batch: StepBatch, states: Sequence[GreenState | None]) -> Payload | None:
        rows: list[int] = []
        lists: list[Bitmask] = []
        deltas: list[float] = []
        for i, state in enumerate(states):
            if state is None:
                continue
            seen = state.last
            first = int(batch.row_start[i])
            for j, draft in enumerate((None, *batch.drafts(i).tolist())):
                if draft is not None:
                    seen = (*seen, draft)[-state.wish.window :]
                rows.append(first + j)
                lists.append(self.green_list(state, seen))
                deltas.append(state.wish.delta)
        if not rows:
            return None
        arrays = {"green": np.stack(lists), "delta": np.array(deltas, dtype=np.float32)}
        return Payload(np.array(rows, dtype=np.int32), arrays)

    def accept(self, state: GreenState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.green += is_allowed(self.green_list(state, state.last)[None], 0, token_id)
            state.total += 1
            state.last = (*state.last, token_id)[-state.wish.window :]
        return CONTINUE

    def fork(self, state: GreenState) -> GreenState:
        return replace(state)

    def report(self, state: GreenState) -> Mapping[str, Any]:
        return {"green": state.green, "total": state.total}

    def green_list(self, state: GreenState, seen: tuple[int, ...]) -> Bitmask:
        text = repr((state.salt, state.wish.window, seen)).encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        words = num_words(self.context.vocabulary.logits_width)
        drawn = np.random.Generator(np.random.Philox(key=seed)).integers(0, 1 << 32, words, dtype=np.uint32)
        return drawn.view(np.int32)


class AaronsonSampler(Sampler):
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        ops = step.ops
        own = ops.gather(logprobs, payload.rows)
        uniform = step.uniform("aaronson", payload.rows, own.shape[1])
        return ops.argmax(own - ops.log(-ops.log(uniform)))


class Aaronson(LogitModifier[bool]):
    contract, name, stage, transform, derived = "1.0", "aaronson", Stage.SAMPLE, AaronsonSampler, True
    needs = frozenset({Need.UNIFORM})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        rows, _ = batch.select(states)
        return Payload(rows) if len(rows) else None


@dataclass(frozen=True)
class XtcWish:
    threshold: float = 0.1
    probability: float = 0.9


class XtcTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own = ops.gather(logits, rows)
        bound = ops.log(payload.arrays["threshold"])[:, None]
        likely = own >= bound
        least = -1.0 * ops.topk(ops.where_rows(-1.0 * own, every, own < bound, -np.inf), 1)[0]
        drop = step.uniform("xtc", rows) < payload.arrays["probability"][:, None]
        return ops.where_rows(logits, rows, likely * (own > least) * drop, -np.inf)


class Xtc(LogitModifier[XtcWish]):
    contract, name, stage, transform, derived = "1.0", "xtc", Stage.POST_WARP, XtcTransform, True
    needs = frozenset({Need.UNIFORM})
    examples = (Example({}, logits={97: 9.0, 98: 8.5, 99: 8.0}), Example({"threshold": 0.01, "probability": 0.5}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> XtcWish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(XtcWish, request.params.modifiers[self.name], where="modifiers.xtc")
        if not 0 < wish.threshold <= 0.5 or not 0 <= wish.probability <= 1:
            raise InvalidRequest("threshold is from 0 to 0.5, probability from 0 to 1", field="modifiers.xtc")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[XtcWish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        wishes = [wish for i in sequences if (wish := states[i]) is not None]
        arrays = {
            "threshold": np.array([wish.threshold for wish in wishes], dtype=np.float32),
            "probability": np.array([wish.probability for wish in wishes], dtype=np.float32),
        }
        return Payload(rows, arrays) if wishes else None
