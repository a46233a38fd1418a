"""Ways to choose among likely tokens: `Xtc`, `TopNSigma`, `PLess`, `DynamicTemperature` and the sampler `Mirostat`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from guideway import api
from guideway.api.options import Range


class Tuned(api.LogitModifier[Any]):
    """A modifier whose payload has a float32 array for each option of a request."""

    contract, derived = "1.0", True
    wish: ClassVar[type[Any]]

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> Any:
        options = request.params.modifiers.get(self.name)
        return None if options is None else api.parse_options(self.wish, options, where=f"modifiers.{self.name}")

    def prepare(self, batch: api.StepBatch, states: Sequence[Any]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        acting = [states[i] for i in sequences]
        names = [field.name for field in fields(self.wish)]
        return api.Payload(rows, {n: np.array([getattr(s, n) for s in acting], dtype=np.float32) for n in names})


def entries(payload: api.Payload, ops: api.ArrayOps) -> api.Array:
    """Return the indices of the payload's entries, ``int32[m]``."""
    return ops.asarray(np.arange(len(payload), dtype=np.int32))


@dataclass(frozen=True)
class XtcWish:
    """Which tokens are top choices, and how often to exclude them."""

    threshold: Annotated[float, Range(1e-6, 1)] = 0.1
    probability: Annotated[float, Range(0, 1)] = 0.5


class XtcTransform(api.LogitTransform):
    """Forbids all tokens above the threshold but the least likely of them."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows, every = step.ops, payload.rows, entries(payload, step.ops)
        own = ops.log_softmax(ops.gather(logits, rows))
        top = own >= ops.log(payload.arrays["threshold"])[:, None]
        least, _ = ops.topk(
            ops.where_rows(-1.0 * own, every, own < ops.log(payload.arrays["threshold"])[:, None], -np.inf), 1
        )
        excluded = step.uniform("xtc", rows) < payload.arrays["probability"][:, None]
        return ops.where_rows(logits, rows, top & (own > -1.0 * least) & excluded, -np.inf)


class Xtc(Tuned):
    """Excludes top choices: with a probability, the least likely of the likely tokens becomes the likeliest."""

    name, stage, transform, wish = "xtc", api.Stage.POST_WARP, XtcTransform, XtcWish
    needs = frozenset({api.Need.UNIFORM})
    examples = (api.Example({"probability": 1}, logits={97: 9.0, 98: 8.5}), api.Example({}, logits={97: 9, 98: 9}))


@dataclass(frozen=True)
class SigmaWish:
    """How many standard deviations below the largest logit a token may be."""

    n: Annotated[float, Range(0, 1000)] = 1.0


class SigmaTransform(api.LogitTransform):
    """Forbids all logits below the largest minus n standard deviations."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, every = step.ops, entries(payload, step.ops)
        own = ops.log_softmax(ops.forbid_from(ops.gather(logits, payload.rows), self.context.vocabulary_size))
        present = own > -np.inf
        known, count = ops.where_rows(own + 0.0, every, own == -np.inf, 0.0), present.sum(axis=1)[:, None]
        away = (known - known.sum(axis=1)[:, None] / count) * present
        sigma = ops.exp(0.5 * ops.log((away * away).sum(axis=1)[:, None] / count))
        largest, _ = ops.topk(own, 1)
        below = own < largest - payload.arrays["n"][:, None] * sigma
        return ops.where_rows(logits, payload.rows, below, -np.inf)


class TopNSigma(Tuned):
    """Keeps the tokens whose logits are within n standard deviations of the largest."""

    name, stage, transform, wish = "top_n_sigma", api.Stage.MASK, SigmaTransform, SigmaWish
    examples = (api.Example({}), api.Example({"n": 0.1}))


@dataclass(frozen=True)
class PLessWish:
    """Whether to subtract the probability of two different tokens per pair, which keeps more tokens."""

    normalized: bool = False


class PLessTransform(api.LogitTransform):
    """Forbids tokens with a probability below the one of two equal draws."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops = step.ops
        own = ops.exp(ops.log_softmax(ops.gather(logits, payload.rows)))
        likeliest, _ = ops.topk(own, 1)
        equal = (own * own).sum(axis=1)[:, None]
        pairs = max(1, self.context.vocabulary_size - 1)
        equal = equal - payload.arrays["normalized"][:, None] * (1.0 - equal) / pairs
        return ops.where_rows(logits, payload.rows, (own < equal) & (own < likeliest), -np.inf)


class PLess(Tuned):
    """Keeps tokens with at least the probability of two equal draws."""

    name, stage, transform, wish = "p_less", api.Stage.POST_WARP, PLessTransform, PLessWish
    examples = (api.Example({}), api.Example({"normalized": True}))


@dataclass(frozen=True)
class DynamicWish:
    """The temperatures of a certain and of a uniform distribution, and the curve between them."""

    least: Annotated[float, Range(0.01, 100)] = 0.5
    most: Annotated[float, Range(0.01, 100)] = 1.5
    exponent: Annotated[float, Range(0.01, 100)] = 1.0


class DynamicTransform(api.LogitTransform):
    """Divides log-probabilities by a temperature that grows with their entropy."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, every, options = step.ops, entries(payload, step.ops), payload.arrays
        own = ops.log_softmax(ops.gather(logits, payload.rows))
        present = own > -np.inf
        finite = ops.where_rows(own + 0.0, every, own == -np.inf, 0.0)
        entropy = -1.0 * (ops.exp(own) * finite).sum(axis=1)
        most = ops.log(present.sum(axis=1) + 0.0 * options["least"])
        share = entropy / (most + (most <= 0))
        curved = ops.exp(options["exponent"] * ops.log(share * (share > 0)))
        factors = 1.0 / (options["least"] + (options["most"] - options["least"]) * curved)[:, None]
        factors = ops.where_rows(factors, every, factors != factors, 1.0)  # a row without a token
        return ops.scale_rows(logits, payload.rows, factors[:, 0])


class DynamicTemperature(Tuned):
    """Draws boldly where many tokens are likely, and carefully where few are."""

    name, stage, transform, wish = "dynamic_temperature", api.Stage.POST_WARP, DynamicTransform, DynamicWish
    examples = (api.Example({}), api.Example({"least": 2, "most": 0.1, "exponent": 2}))


@dataclass(frozen=True)
class MirostatWish:
    """The surprise to aim at in bits per token, and how fast the limit follows."""

    target: Annotated[float, Range(0.01, 100)] = 5.0
    rate: Annotated[float, Range(0, 1)] = 0.1


@dataclass(slots=True)
class MirostatState:
    """The wish, and the largest surprise that a token may have, in bits."""

    wish: MirostatWish
    limit: float


class MirostatSampler(api.Sampler):
    """Draws among the tokens whose surprise is within the limit, and emits the surprise of the drawn one."""

    emits: ClassVar = {"surprise": ((), "float32")}

    def sample(self, logprobs: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, every = step.ops, entries(payload, step.ops)
        own = ops.gather(logprobs, payload.rows)
        likeliest, _ = ops.topk(own, 1)
        outside = (own < payload.arrays["floor"][:, None]) & (own < likeliest)
        own = ops.log_softmax(ops.where_rows(own, every, outside, -np.inf))
        drawn = ops.categorical(own, step.uniform("mirostat", payload.rows)[:, 0])
        step.emit("surprise", ops.gather(own, every, drawn[:, None])[:, 0] / -np.log(2))
        return drawn


class Mirostat(api.LogitModifier[MirostatState]):
    """Mirostat 2.0: keeps the surprise of a text near a target."""

    contract, name, stage, transform = "1.0", "mirostat", api.Stage.SAMPLE, MirostatSampler
    needs = frozenset({api.Need.UNIFORM, api.Need.FEEDBACK})
    examples = (
        api.Example({}, logits={97: 9.0, 98: 8.0}),
        api.Example({"target": 1, "rate": 1}, logits={97 + i: 9 - 0.4 * i for i in range(8)}),
    )

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> MirostatState | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = api.parse_options(MirostatWish, options, where="modifiers.mirostat")
        return MirostatState(wish, limit=2 * wish.target)

    def prepare(self, batch: api.StepBatch, states: Sequence[MirostatState | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        floors = np.array([-state.limit if state else 0 for state in states]) * np.log(2)
        return api.Payload(rows, {"floor": floors.astype(np.float32)[sequences]})

    def accept(self, state: MirostatState, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for surprise in () if feedback is None else feedback["surprise"].tolist():
            state.limit -= state.wish.rate * (surprise - state.wish.target)
        return api.CONTINUE

    def validate(self, state: MirostatState, token_ids: Sequence[int]) -> int:
        return 0  # the limit after a draft depends on its surprise, which is known too late

    def fork(self, state: MirostatState) -> MirostatState:
        return replace(state)


@api.hookimpl
def guideway_logit_modifier(name: str) -> type[api.LogitModifier[Any]]:
    return {cls.name: cls for cls in (DynamicTemperature, Mirostat, PLess, TopNSigma, Xtc)}[name]
