"""Modifiers that look at what was written so far: no n-gram twice, a penalty for each repetition, a bias that fades, a
text that comes to its end, and a temperature that follows the entropy."""

from __future__ import annotations

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
from guideway.api.bitmask import num_words


@dataclass(frozen=True)
class NgramWish:
    size: int = 3


@dataclass
class NgramState:
    """The n-grams so far, by all of their tokens but the last."""

    size: int
    tail: tuple[int, ...] = ()
    followers: dict[tuple[int, ...], set[int]] = field(default_factory=dict)

    def hear(self, token_id: int) -> None:
        if len(self.tail) == self.size - 1:
            self.followers.setdefault(self.tail, set()).add(token_id)
        self.tail = (*self.tail, token_id)[-(self.size - 1) :]


class NgramTransform(LogitTransform):
    bitmask = "allowed"
    idempotent = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        allowed = ops.unpack_bitmask(payload.arrays["allowed"], self.context.logits_width)
        return ops.where_rows(logits, rows, allowed == 0, -np.inf)


class NoRepeat(LogitModifier[NgramState]):
    """No n tokens come in the same order twice (Paulus et al., 2017)."""

    contract, name, stage, transform = "1.0", "no_repeat", Stage.MASK, NgramTransform
    examples = (
        Example({}, prompt_token_ids=(97, 98, 99, 97, 98), generated=(100, 97, 98, 101, 97, 98)),
        Example({"size": 2}, generated=(97, 98, 97, 99, 97)),
    )

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> NgramState | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(NgramWish, request.params.modifiers[self.name], where="modifiers.no_repeat")
        if not 2 <= wish.size <= 16:
            raise InvalidRequest("size is from 2 to 16", field="modifiers.no_repeat.size")
        state = NgramState(wish.size)
        for token_id in sequence.prompt_token_ids:
            state.hear(token_id)
        return state

    def prepare(self, batch: StepBatch, states: Sequence[NgramState | None]) -> Payload | None:
        rows: list[int] = []
        banned: list[set[int]] = []
        for i, state in enumerate(states):
            if state is None:
                continue
            tail, added = state.tail, dict[tuple[int, ...], set[int]]()
            for j, draft in enumerate((None, *batch.drafts(i).tolist())):
                if draft is not None:
                    if len(tail) == state.size - 1:
                        added.setdefault(tail, set()).add(draft)
                    tail = (*tail, draft)[-(state.size - 1) :]
                rows.append(int(batch.row_start[i]) + j)
                banned.append(state.followers.get(tail, set()) | added.get(tail, set()))
        if not rows:
            return None
        masks = np.full((len(rows), num_words(self.context.vocabulary.logits_width)), -1, dtype=np.int32)
        for mask, tokens in zip(masks.view(np.uint32), banned, strict=True):
            for token_id in tokens:
                mask[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return Payload(np.array(rows, dtype=np.int32), {"allowed": masks})

    def accept(self, state: NgramState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.hear(token_id)
        return CONTINUE

    def validate(self, state: NgramState, token_ids: Sequence[int]) -> int:
        tail, added = state.tail, set[tuple[int, ...]]()
        for count, token_id in enumerate(token_ids):
            if token_id in state.followers.get(tail, ()) or (*tail, token_id) in added:
                return count
            if len(tail) == state.size - 1:
                added.add((*tail, token_id))
            tail = (*tail, token_id)[-(state.size - 1) :]
        return len(token_ids)

    def fork(self, state: NgramState) -> NgramState:
        return replace(state, followers={tail: set(tokens) for tail, tokens in state.followers.items()})


@dataclass(frozen=True)
class FrequencyWish:
    penalty: float = 0.7


class FrequencyTransform(LogitTransform):
    """Lowers each of the last tokens, as often as it is among them."""

    history_length = 16

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        history = step.history(rows)
        there = history >= 0
        columns = history * there  # where there is none, nothing is added to token 0
        values = -1.0 * payload.arrays["penalty"][:, None] * there
        every = rows[:, None] + 0 * columns
        return ops.add_at(logits, every.reshape(-1), columns.reshape(-1), values.reshape(-1))


class Frequency(LogitModifier[FrequencyWish]):
    contract, name, stage, transform, derived = "1.0", "frequency", Stage.PRE_WARP, FrequencyTransform, True
    needs = frozenset({Need.HISTORY})
    examples = (Example({}, prompt_token_ids=(97, 98, 97)), Example({"penalty": -2.0}, generated=(97, 97, 98, 97)))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> FrequencyWish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(FrequencyWish, request.params.modifiers[self.name], where="modifiers.frequency")
        if not -5 <= wish.penalty <= 5:
            raise InvalidRequest("penalty is from -5 to 5", field="modifiers.frequency.penalty")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[FrequencyWish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        penalties = [wish.penalty for i in sequences if (wish := states[i]) is not None]
        return Payload(rows, {"penalty": np.array(penalties, dtype=np.float32)}) if penalties else None


@dataclass(frozen=True)
class FadingWish:
    token: int = 97
    bias: float = 6.0
    steps: int = 6


@dataclass(frozen=True)
class FadingState:
    wish: FadingWish
    num_prompt: int


class FadingTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        written = step.positions[rows] - payload.arrays["num_prompt"]
        left = 1.0 - written / payload.arrays["steps"]
        values = payload.arrays["bias"] * left * (left > 0)
        return ops.add_at(logits, rows, payload.arrays["token"], values)


class Fading(LogitModifier[FadingState]):
    """A bias that is whole at the first token of the output, and nothing after `steps`."""

    contract, name, stage, transform, derived = "1.0", "fading", Stage.PRE_WARP, FadingTransform, True
    examples = (Example({}), Example({"token": 98, "bias": -40.0, "steps": 20}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> FadingState | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(FadingWish, request.params.modifiers[self.name], where="modifiers.fading")
        if not 0 <= wish.token < len(self.context.vocabulary):
            raise InvalidRequest("token is none of the vocabulary", field="modifiers.fading.token")
        if not -100 <= wish.bias <= 100 or not 1 <= wish.steps <= 100_000:
            raise InvalidRequest("bias is within 100, steps from 1 to 100,000", field="modifiers.fading")
        return FadingState(wish, len(sequence.prompt_token_ids))

    def prepare(self, batch: StepBatch, states: Sequence[FadingState | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        found = [state for i in sequences if (state := states[i]) is not None]
        arrays = {
            "token": np.array([state.wish.token for state in found], dtype=np.int32),
            "bias": np.array([state.wish.bias for state in found], dtype=np.float32),
            "steps": np.array([state.wish.steps for state in found], dtype=np.float32),
            "num_prompt": np.array([state.num_prompt for state in found], dtype=np.int32),
        }
        return Payload(rows, arrays) if found else None


@dataclass(frozen=True)
class ClosingWish:
    sentences: int = 2
    push: float = 3.0


@dataclass
class ClosingState:
    wish: ClosingWish
    ended: int = 0
    since: int = 0
    """The tokens since enough sentences have ended."""

    def hear(self, token: bytes) -> None:
        self.since += self.ended >= self.wish.sentences
        self.ended += sum(token.count(sign) for sign in (b".", b"!", b"?"))


class ClosingTransform(LogitTransform):
    """Raises the tokens that end an output."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        stops = payload.shared["stops"]
        columns = stops[None, :] + 0 * rows[:, None]
        every = rows[:, None] + 0 * columns
        values = payload.arrays["push"][:, None] + 0.0 * columns
        return ops.add_at(logits, every.reshape(-1), columns.reshape(-1), values.reshape(-1))


class Closing(LogitModifier[ClosingState]):
    """After enough sentences an end becomes likelier with each token, and comes when that has not helped."""

    contract, name, stage, transform = "1.0", "closing", Stage.PRE_WARP, ClosingTransform
    examples = (
        Example({}, generated=tuple(b"a.b!cc")),
        Example({"sentences": 1, "push": 8.0}, generated=tuple(b"ab?a")),
    )
    MOST = 24

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> ClosingState | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(ClosingWish, request.params.modifiers[self.name], where="modifiers.closing")
        if wish.sentences < 1 or not 0 < wish.push <= 20:
            raise InvalidRequest("sentences is at least 1, push at most 20", field="modifiers.closing")
        return ClosingState(wish)

    def prepare(self, batch: StepBatch, states: Sequence[ClosingState | None]) -> Payload | None:
        rows: list[int] = []
        pushes: list[float] = []
        for i, state in enumerate(states):
            if state is None:
                continue
            now = replace(state)
            for j, draft in enumerate((None, *batch.drafts(i).tolist())):
                if draft is not None:
                    now.hear(self.context.vocabulary.tokens[draft])
                if now.ended >= now.wish.sentences:
                    rows.append(int(batch.row_start[i]) + j)
                    pushes.append(min(now.wish.push * (1 + now.since), 60.0))
        if not rows:
            return None
        stops = np.array(sorted(self.context.vocabulary.stop_token_ids), dtype=np.int32)
        arrays = {"push": np.array(pushes, dtype=np.float32)}
        return Payload(np.array(rows, dtype=np.int32), arrays, {"stops": stops})

    def accept(self, state: ClosingState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.hear(self.context.vocabulary.tokens[token_id])
        return FINISH if state.since >= self.MOST else CONTINUE

    def fork(self, state: ClosingState) -> ClosingState:
        return replace(state)

    def report(self, state: ClosingState) -> Mapping[str, Any]:
        return {"sentences": state.ended}


@dataclass(frozen=True)
class SteadyWish:
    target: float = 2.0
    rate: float = 0.2


@dataclass
class SteadyState:
    wish: SteadyWish
    temperature: float = 1.0


class SteadyTransform(LogitTransform):
    emits: ClassVar = {"entropy": ((), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        logits = ops.scale_rows(logits, rows, 1.0 / payload.arrays["temperature"])
        own = ops.log_softmax(ops.gather(logits, rows))
        probability = ops.exp(own)
        finite = ops.where_rows(own, every, probability == 0, 0.0)
        step.emit("entropy", -1.0 * (probability * finite).sum(axis=1))
        return logits


class Steady(LogitModifier[SteadyState]):
    """A temperature that rises where the distribution is narrower than asked for, and falls where it is wider."""

    contract, name, stage, transform = "1.0", "steady", Stage.PRE_WARP, SteadyTransform
    needs = frozenset({Need.FEEDBACK})
    examples = (Example({}), Example({"target": 0.5, "rate": 0.5}, logits={97: 9.0}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> SteadyState | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(SteadyWish, request.params.modifiers[self.name], where="modifiers.steady")
        if not 0 < wish.target <= 10 or not 0 < wish.rate <= 1:
            raise InvalidRequest("target is from 0 to 10, rate from 0 to 1", field="modifiers.steady")
        return SteadyState(wish)

    def prepare(self, batch: StepBatch, states: Sequence[SteadyState | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        found = [state.temperature for i in sequences if (state := states[i]) is not None]
        return Payload(rows, {"temperature": np.array(found, dtype=np.float32)}) if found else None

    def accept(self, state: SteadyState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for entropy in () if feedback is None else feedback["entropy"].tolist():
            moved = state.temperature + state.wish.rate * (state.wish.target - entropy)
            state.temperature = min(max(moved, 0.25), 4.0)
        return CONTINUE

    def validate(self, state: SteadyState, token_ids: Sequence[int]) -> int:
        return 0  # the temperature after a draft is known only when its entropy is

    def fork(self, state: SteadyState) -> SteadyState:
        return replace(state)

    def report(self, state: SteadyState) -> Mapping[str, Any]:
        return {"temperature": round(state.temperature, 4)}
