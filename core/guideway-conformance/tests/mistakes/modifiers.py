"""Correct modifiers, one for each part of the contract."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    Companion,
    CompiledGrammar,
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
)
from guideway.api.bitmask import pack

WINDOW = 4


class RepetitionTransform(LogitTransform):
    """Adds a number to each of some tokens."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ids, values = payload.arrays["ids"], payload.arrays["values"]
        rows = (payload.rows[:, None] + 0 * ids).reshape(-1)
        return step.ops.add_at(logits, rows, ids.reshape(-1), values.reshape(-1))


@dataclass
class RepetitionState:
    strength: float
    tokens: list[int] = field(default_factory=list)


class Repetition(LogitModifier[RepetitionState]):
    """A penalty on the last tokens, with a state."""

    name, stage = "repetition", Stage.PRE_WARP
    transform: ClassVar[type[LogitTransform]] = RepetitionTransform
    examples: ClassVar[Sequence[Example]] = (Example({"strength": 3.0}), Example({"strength": 8.0}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else RepetitionState(wanted["strength"], list(sequence.prompt_token_ids))

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        rows, _ = batch.select(states)
        ids = np.zeros((len(rows), WINDOW), dtype=np.int32)
        values = np.zeros((len(rows), WINDOW), dtype=np.float32)
        entry = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            drafts = batch.drafts(i).tolist()
            for k in range(len(drafts) + 1):
                self.fill(state, drafts[:k], ids[entry], values[entry])
                entry += 1
        return Payload(rows, {"ids": ids, "values": values})

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        """Write one row: tokens, and the numbers that are added to their logits."""
        near = [*state.tokens, *drafts][-WINDOW:]
        ids[: len(near)] = near
        values[: len(near)] = -state.strength * np.arange(1, len(near) + 1)

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.tokens += token_ids
        return CONTINUE

    def fork(self, state: RepetitionState) -> RepetitionState:
        return RepetitionState(state.strength, list(state.tokens))


class WatermarkTransform(LogitTransform):
    """Adds a number to half of the vocabulary, chosen by the token before."""

    history_length = 1

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        previous = step.history(payload.rows)[:, 0]
        hashed = step.ops.uniform(payload.arrays["key"], previous, previous, 0, self.context.logits_width)
        raised = step.ops.gather(logits, payload.rows) + payload.arrays["delta"][:, None]
        return step.ops.where_rows(logits, payload.rows, hashed < 0.5, raised)


class Watermark(LogitModifier[Any]):
    """A watermark, with a derived state."""

    name, stage, transform, derived = "watermark", Stage.PRE_WARP, WatermarkTransform, True
    needs = frozenset({Need.HISTORY})
    examples: ClassVar[Sequence[Example]] = (Example({"key": 3}),)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else [wanted["key"], 2.0]

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        rows, sequences = batch.select(states)
        keys = np.array([0 if state is None else state[0] for state in states], dtype=np.int64)
        deltas = np.array([0 if state is None else state[1] for state in states], dtype=np.float32)
        return Payload(rows, {"key": keys[sequences], "delta": deltas[sequences]})


class BanTransform(LogitTransform):
    """Forbids tokens."""

    idempotent = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.where_rows(
            logits, payload.rows, step.ops.gather(payload.shared["banned"], 0 * payload.rows), -np.inf
        )


class Ban(LogitModifier[bool]):
    """A mask without every third token."""

    name, stage, transform, derived = "ban", Stage.MASK, BanTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        banned = np.arange(self.context.vocabulary.logits_width) % 3 == 0
        return Payload(batch.select(states)[0], shared={"banned": banned[None]})


class AllowTransform(LogitTransform):
    """Forbids by a bitmask."""

    bitmask, hard, idempotent = "allowed", True, True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return self.context.device.apply_bitmask(logits, payload.arrays["allowed"], payload.rows)


class Allow(Ban):
    """The same mask as a bitmask."""

    name, transform = "allow", AllowTransform

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        rows, _ = batch.select(states)
        allowed = np.arange(self.context.vocabulary.logits_width) % 3 != 0
        return Payload(rows, {"allowed": np.repeat(pack(allowed[None]), len(rows), axis=0)})


class DrawSampler(Sampler):
    """Draws by Gumbel noise."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        return step.ops.argmax(step.ops.gather(logprobs, payload.rows) + self.noise(payload, step, "noise"))

    def noise(self, payload: Payload, step: Step, purpose: str) -> Array:
        return -step.ops.log(-step.ops.log(step.uniform(purpose, payload.rows, self.context.logits_width)))


class Draw(LogitModifier[bool]):
    """A sampler."""

    name, stage, transform, derived = "draw", Stage.SAMPLE, DrawSampler, True
    needs = frozenset({Need.UNIFORM})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


class SpeculativeSampler(DrawSampler):
    """Accepts a draft with its own probability, and else draws among the other tokens."""

    def verify(self, logprobs: Array, payload: Payload, drafts: Array, step: Step) -> Array:
        ops = step.ops
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        drawn = self.sample(logprobs, payload, step)
        columns = (drafts * (drafts >= 0))[:, None]
        own = ops.gather(logprobs, payload.rows)
        chance = ops.exp(ops.gather(own, every, columns))
        others = ops.scatter(own, every, columns, ops.asarray(np.full((len(payload), 1), -np.inf, dtype=np.float32)))
        other = ops.argmax(self.noise(payload, step, "others") + others)
        accepted = step.uniform("accept", payload.rows) < chance
        accepted = accepted | (ops.gather(others, every, other[:, None]) == -np.inf)
        decided = ops.where_rows(other[:, None], every, accepted, columns)
        return ops.where_rows(drawn[:, None], every, (drafts >= 0)[:, None], decided)[:, 0]


class Speculate(Draw):
    """A sampler that decides about drafts."""

    name, transform = "speculate", SpeculativeSampler
    needs = frozenset({Need.UNIFORM, Need.DRAFTS})


class MassTransform(LogitTransform):
    """Scales the logits, and emits the probability that the grammar leaves."""

    emits: ClassVar[Mapping[str, tuple[tuple[int, ...], str]]] = {"mass": ((), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        step.emit("mass", self.mass(logits, payload, step))
        return step.ops.scale_rows(logits, payload.rows, payload.arrays["scale"])

    def mass(self, logits: Array, payload: Payload, step: Step) -> Array:
        """Return one number per entry."""
        probability = step.ops.exp(step.ops.log_softmax(step.ops.gather(logits, payload.rows)))
        return (probability * step.bitmask(payload.rows)).sum(axis=1)


class Mass(LogitModifier[list[float]]):
    """A modifier that uses feedback. It takes no drafts, because it could not know their masses."""

    name, stage, transform = "mass", Stage.PRE_WARP, MassTransform
    needs = frozenset({Need.BITMASK, Need.FEEDBACK})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> list[float] | None:
        return [] if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[list[float] | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        scales = np.array([1 + sum(state or ()) % 1 for state in states], dtype=np.float32)
        return Payload(rows, {"scale": scales[sequences]})

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is not None:
            state.extend(feedback["mass"].tolist())
        return CONTINUE

    def validate(self, state: list[float], token_ids: Sequence[int]) -> int:
        return 0

    def fork(self, state: list[float]) -> list[float]:
        return list(state)


class GuideTransform(LogitTransform):
    """Moves the logits away from a companion's."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        other = step.ops.gather(logits, step.companion_rows[payload.rows][:, 0])
        own = step.ops.gather(logits, payload.rows)
        with np.errstate(invalid="ignore"):  # what both forbid is not used
            guided = own * 1.5 - other * 0.5
        return step.ops.where_rows(logits, payload.rows, self.usable(own, other), guided)

    def usable(self, own: Array, other: Array) -> Array:
        """Find where neither of the two is -inf, which may be the model's own logit."""
        return (own > -np.inf) * (other > -np.inf)


class Guide(LogitModifier[bool]):
    """A modifier with a companion."""

    name, stage, transform, derived = "guide", Stage.PRE_WARP, GuideTransform, True
    needs = frozenset({Need.COMPANIONS})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def companions(self, request: Request) -> Sequence[Companion]:
        return [Companion((101, 102))] if self.name in request.params.modifiers else []

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


class Idle(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class Trim(LogitModifier[bool]):
    """A modifier that takes tokens off the end of the prompt, for outputs to begin with."""

    name, stage, transform, derived = "trim", Stage.PRE_WARP, Idle, True
    needs = frozenset({Need.EDIT_PROMPT})
    examples = (Example({"tokens": 1}), Example({"tokens": 3}))

    def edit_prompt(self, request: Request) -> tuple[Sequence[int], bytes]:
        count = self.count(request)
        texts = [self.context.vocabulary.tokens[token_id] for token_id in request.prompt_token_ids[-count:]]
        if len(request.prompt_token_ids) <= count or not all(texts):
            return request.prompt_token_ids, b""
        return request.prompt_token_ids[:-count], b"".join(texts)

    def count(self, request: Request) -> int:
        count: int = request.params.modifiers[self.name]["tokens"]
        if not 1 <= count <= 8:
            raise InvalidRequest("tokens must be from 1 to 8", field="modifiers.trim.tokens")
        return count

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers and self.count(request) else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return None


class Compiling(Repetition):
    """A modifier that compiles its strength. Hosts call both methods only for requests that select the modifier."""

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        return [request.params.modifiers[self.name]["strength"]]

    def compile_key(self, request: Request) -> Hashable | None:
        key: Hashable | None = request.params.modifiers[self.name].get("strength")
        return key

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        return None if compiled is None else RepetitionState(compiled[0], list(sequence.prompt_token_ids))


class Altered(Repetition):
    """A penalty with a method in which some mistakes change the payload."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        return None if payload is None else self.alter(payload, batch)

    def alter(self, payload: Payload, batch: StepBatch) -> Payload:
        return payload


class Plugin(Repetition):
    pass
