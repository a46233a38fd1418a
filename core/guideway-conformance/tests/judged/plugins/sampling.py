"""Ways to cut a distribution short, each a function of its row alone: min-p (Nguyen et al., 2024), locally typical
sampling (Meister et al., 2022), top-n-sigma (Tang et al., 2024), and a sampler of a sharpened distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.api import (
    Array,
    Example,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Need,
    Payload,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)


@dataclass(frozen=True)
class MinPWish:
    share: float = 0.1


class MinPTransform(LogitTransform):
    """Forbids what is less likely than a share of the likeliest."""

    idempotent = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        own = ops.gather(logits, rows)
        bound = ops.topk(own, 1)[0] + ops.log(payload.arrays["share"])[:, None]
        return ops.where_rows(logits, rows, own < bound, -np.inf)


class MinP(LogitModifier[MinPWish]):
    contract, name, stage, transform, derived = "1.0", "min_p", Stage.POST_WARP, MinPTransform, True
    examples = (Example({}), Example({"share": 0.5}, logits={97: 9.0, 98: 8.8}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> MinPWish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(MinPWish, request.params.modifiers[self.name], where="modifiers.min_p")
        if not 0 < wish.share <= 1:
            raise InvalidRequest("share is above 0 and at most 1", field="modifiers.min_p.share")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[MinPWish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        shares = [wish.share for i in sequences if (wish := states[i]) is not None]
        return Payload(rows, {"share": np.array(shares, dtype=np.float32)}) if shares else None


@dataclass(frozen=True)
class TypicalWish:
    mass: float = 0.5


class TypicalTransform(LogitTransform):
    """Keeps the tokens whose surprise is nearest to the entropy, until they have enough of the probability."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own = ops.log_softmax(ops.gather(logits, rows))
        possible = own > -np.inf
        # -inf times a probability of 0 would be no number
        finite = ops.where_rows(ops.gather(own, every), every, possible == 0, 0.0)
        probability = ops.exp(own)
        entropy = -1.0 * (probability * finite).sum(axis=1)
        away = finite + entropy[:, None]
        nearness = ops.where_rows(-1.0 * away * (2.0 * (away > 0) - 1.0), every, possible == 0, -np.inf)
        _, columns = ops.topk(nearness, self.context.logits_width)
        sorted_ = ops.gather(probability, every, columns)
        before = ops.cumsum(sorted_) - sorted_
        # 1 where it is kept, and of what is sorted the first always is
        kept = ops.where_rows(0.0 * sorted_, every, before < payload.arrays["mass"][:, None], 1.0)
        first = ops.asarray(np.arange(self.context.logits_width, dtype=np.int32) == 0)
        kept = ops.where_rows(kept, every, first[None, :], 1.0)
        kept = ops.scatter(0.0 * probability, every, columns, kept)
        return ops.where_rows(logits, rows, kept < 0.5, -np.inf)


class Typical(LogitModifier[TypicalWish]):
    contract, name, stage, transform, derived = "1.0", "typical", Stage.POST_WARP, TypicalTransform, True
    examples = (Example({}), Example({"mass": 0.9}, logits={97: 9.0, 98: 8.5, 99: 8.0}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> TypicalWish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(TypicalWish, request.params.modifiers[self.name], where="modifiers.typical")
        if not 0 < wish.mass < 1:
            raise InvalidRequest("mass is between 0 and 1", field="modifiers.typical.mass")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[TypicalWish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        masses = [wish.mass for i in sequences if (wish := states[i]) is not None]
        return Payload(rows, {"mass": np.array(masses, dtype=np.float32)}) if masses else None


@dataclass(frozen=True)
class SigmaWish:
    n: float = 1.0


class SigmaTransform(LogitTransform):
    """Forbids what is more than `n` standard deviations below the largest logit."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        # to log-probabilities, which are float32 and differ as the logits do
        own = ops.log_softmax(ops.gather(logits, rows))
        possible = own > -np.inf
        finite = ops.where_rows(ops.gather(own, every), every, possible == 0, 0.0)
        ones = ops.where_rows(0.0 * finite, every, possible, 1.0)
        count = ones.sum(axis=1) + 1e-9
        mean = finite.sum(axis=1) / count
        off = (finite - mean[:, None]) * ones
        deviation = ops.exp(0.5 * ops.log((off * off).sum(axis=1) / count + 1e-12))
        bound = ops.topk(own, 1)[0] - (payload.arrays["n"] * deviation)[:, None]
        return ops.where_rows(logits, rows, own < bound, -np.inf)


class Sigma(LogitModifier[SigmaWish]):
    contract, name, stage, transform, derived = "1.0", "sigma", Stage.PRE_WARP, SigmaTransform, True
    examples = (Example({}), Example({"n": 0.3}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> SigmaWish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(SigmaWish, request.params.modifiers[self.name], where="modifiers.sigma")
        if not 0 < wish.n <= 10:
            raise InvalidRequest("n is above 0 and at most 10", field="modifiers.sigma.n")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[SigmaWish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        found = [wish.n for i in sequences if (wish := states[i]) is not None]
        return Payload(rows, {"n": np.array(found, dtype=np.float32)}) if found else None


@dataclass(frozen=True)
class SharpWish:
    power: float = 2.0


class SharpSampler(Sampler):
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        ops = step.ops
        own = ops.gather(logprobs, payload.rows) * payload.arrays["power"][:, None]
        return ops.categorical(own, step.uniform("sharp", payload.rows)[:, 0])


class Sharp(LogitModifier[SharpWish]):
    """Draws from the distribution to a power, which the host's own draw does not do after a cut of the tail."""

    contract, name, stage, transform, derived = "1.0", "sharp", Stage.SAMPLE, SharpSampler, True
    needs = frozenset({Need.UNIFORM})
    examples = (Example({}), Example({"power": 0.5}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> SharpWish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(SharpWish, request.params.modifiers[self.name], where="modifiers.sharp")
        if not 0.01 <= wish.power <= 100:
            raise InvalidRequest("power is from 0.01 to 100", field="modifiers.sharp.power")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[SharpWish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        powers = [wish.power for i in sequences if (wish := states[i]) is not None]
        return Payload(rows, {"power": np.array(powers, dtype=np.float32)}) if powers else None
