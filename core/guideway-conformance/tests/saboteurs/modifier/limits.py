"""Modifiers that serve their examples, and neither the last options that they take nor requests of another sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    Array,
    Example,
    InvalidRequest,
    LogitTransform,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    WorkerContext,
    parse_options,
)

from saboteurs import saboteur
from saboteurs.modifier.references import (
    Ban,
    Draw,
    DrawSampler,
    Repetition,
    RepetitionState,
    RepetitionTransform,
    Watermark,
    WatermarkTransform,
)

__all__: list[str] = []

MOST = 10.0


@dataclass(frozen=True)
class Wish:
    strength: float = 3.0


@saboteur("modifier.options_near_its_examples_are_served")
class EndlessAtTheMost(Repetition):
    """Makes tokens likelier the nearer it is to the most that it takes, and endlessly so there."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        if self.name in request.params.modifiers:
            wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.repetition")
            if not 0 <= wish.strength <= MOST:
                raise InvalidRequest("strength is out of range", field="modifiers.repetition.strength")
        return super().start(request, sequence, compiled)

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts, ids, values)
        with np.errstate(divide="ignore", invalid="ignore"):
            values /= -np.float32(MOST - state.strength)


class FlatteningTransform(LogitTransform):
    """Multiplies rows by a number."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        scaled = step.ops.gather(logits, payload.rows) * payload.arrays["factor"][:, None]
        return step.ops.where_rows(logits, payload.rows, True, scaled)


@dataclass(frozen=True)
class Factor:
    factor: float = 0.5


@saboteur("modifier.options_near_its_examples_are_served")
class NothingTimesInfinity(Ban):
    """Multiplies logits by 0 where that is wished for, what is forbidden too."""

    name, stage, transform = "flatten", Stage.PRE_WARP, FlatteningTransform
    examples: ClassVar[Sequence[Example]] = (Example({}), Example({"factor": 0.9}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        if self.name not in request.params.modifiers:
            return None
        factor = parse_options(Factor, request.params.modifiers[self.name], where="modifiers.flatten").factor
        if not 0 <= factor <= 1:
            raise InvalidRequest("factor is out of range", field="modifiers.flatten.factor")
        return [factor]

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        rows, sequences = batch.select(states)
        factors = [factor for i in sequences if states[i] for factor in states[i]]
        return Payload(rows, {"factor": np.array(factors, dtype=np.float32)})


class CuttingSampler(DrawSampler):
    """Draws among tokens that are likelier than a share of the likeliest."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        own = step.ops.gather(logprobs, payload.rows)
        every = step.ops.asarray(np.arange(len(payload), dtype=np.int32))
        cut = own.max(axis=1)[:, None] + payload.arrays["cut"][:, None]
        own = step.ops.where_rows(own, every, own <= cut, -np.inf)
        return step.ops.categorical(own, step.uniform("draw", payload.rows)[:, 0])


@saboteur("modifier.options_near_its_examples_are_served")
class LeavesNoToken(Draw):
    """Leaves none where only the likeliest one is wished for."""

    name, transform = "cutting", CuttingSampler
    examples: ClassVar[Sequence[Example]] = (Example({}), Example({"factor": 0.1}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        if self.name not in request.params.modifiers:
            return None
        share = parse_options(Factor, request.params.modifiers[self.name], where="modifiers.cutting").factor
        if not 0 < share <= 1:
            raise InvalidRequest("factor is out of range", field="modifiers.cutting.factor")
        return share

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        rows, sequences = batch.select(states)
        return Payload(rows, {"cut": np.log(np.array([states[i] for i in sequences], dtype=np.float32))})


@dataclass(frozen=True)
class Sequences:
    banned: tuple[tuple[int, ...], ...] = ()
    after: int = 0


@saboteur("modifier.options_near_its_examples_are_served")
class LastBitOfAWord(Repetition):
    """Cannot name a token that is the last of a word of a bitmask, in a list of lists."""

    examples: ClassVar[Sequence[Example]] = (Example({"banned": [[97, 98]]}),)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(Sequences, request.params.modifiers[self.name], where="modifiers.repetition")
        if not all(0 <= i < len(self.context.vocabulary) for each in wish.banned for i in each):
            raise InvalidRequest("no such token", field="modifiers.repetition.banned")
        state: Any = RepetitionState(3.0, list(sequence.prompt_token_ids))
        state.banned = [each for each in wish.banned if each]
        return state

    def fill(self, state: Any, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts, ids, values)
        for each in state.banned:
            np.int32(1 << each[-1] % 32)


@saboteur("modifier.validate_knows_what_is_forbidden")
class StopsWithoutLooking(Ban):
    """Lets so many drafts pass as are wished for, whatever they are; none of its examples forbids and counts."""

    examples: ClassVar[Sequence[Example]] = (Example({"banned": [[99]]}), Example({"after": 2}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        if self.name not in request.params.modifiers:
            return None
        return parse_options(Sequences, request.params.modifiers[self.name], where="modifiers.ban")

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        rows, sequences = batch.select(states)
        banned = np.zeros((len(rows), self.context.vocabulary.logits_width), dtype=np.bool_)
        for entry, i in enumerate(sequences):
            banned[entry, [each[-1] for each in states[i].banned if each]] = True
        return Payload(rows, {"banned": banned})

    def validate(self, state: Any, token_ids: Sequence[int]) -> int:
        return min(len(token_ids), state.after) if state.after else len(token_ids)

    class Transform(LogitTransform):
        """Forbids by row."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            return step.ops.where_rows(logits, payload.rows, payload.arrays["banned"], -np.inf)

    transform = Transform


@saboteur("modifier.what_start_takes_is_served")
class ReportsEachToken(Repetition):
    """Tells each token of its options once, however many they are."""

    examples: ClassVar[Sequence[Example]] = (Example({"strength": 3.0, "spared": [97, 98]}),)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state: Any = super().start(request, sequence, compiled)
        if state is not None:
            state.spared = sorted(set(request.params.modifiers[self.name]["spared"]))
        return state

    def report(self, state: Any) -> dict[str, Any]:
        return {"spared": state.spared}


@saboteur("modifier.requests_ask_for_other_things_too")
class ToldOnce(Repetition):
    """Says once of a request with few tokens that it is not enforced."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state: Any = super().start(request, sequence, compiled)
        if state is not None:
            state.short = request.params.max_tokens == 1
        return state

    def unenforced(self, state: Any) -> Sequence[str]:
        short, state.short = state.short, False
        return ("repetition",) if short else ()

    def fork(self, state: Any) -> Any:
        copy: Any = super().fork(state)
        copy.short = state.short
        return copy


@saboteur("modifier.requests_ask_for_other_things_too")
class FillsTheContext(Repetition):
    """Has no place for a text that is as long as the context lets it be."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        state = super().start(request, sequence, compiled)
        if state is not None and request.params.max_tokens is None:
            state.strength /= request.params.max_tokens or 0
        return state


class StrictWatermark(WatermarkTransform):
    """Takes no option."""

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        parse_options(Nothing, options, where="modifier.watermark")


@dataclass(frozen=True)
class Nothing:
    pass


@saboteur("modifier.operators_options_are_known")
class LeavesItToTheTransform(Watermark):
    """Looks at the operator's options in the other half."""

    transform = StrictWatermark

    def __init__(self, options: Mapping[str, Any], context: Any) -> None:
        super().__init__(options, context)


class TableByWidth(RepetitionTransform):
    """Looks up how much each token counts in a table by the width of the logits."""

    tables: ClassVar[dict[int, Any]] = {}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        width, size = self.context.logits_width, self.context.vocabulary_size
        table = self.tables.setdefault(width, (np.arange(width) == size - 1).astype(np.float32)[None])
        raised = step.ops.gather(logits, payload.rows) + step.ops.gather(step.ops.asarray(table), 0 * payload.rows)
        return step.ops.where_rows(logits, payload.rows, True, raised)


@saboteur("modifier.any_vocabulary_beside_another")
class OneTableForAWidth(Repetition):
    """Gives a vocabulary what it found in another one of the same width."""

    transform = TableByWidth


class WritesBackTheSame(RepetitionTransform):
    """Puts in `Step.positions` what is there."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        places = step.ops.where_rows(step.positions, payload.rows, False, 0)
        return super().apply(logits, payload, step) + 0 * places.sum()


@saboteur("modifier.arguments_stay")
class TakesPositionsForItsOwn(Repetition):
    """Gives an operation that may change it what others read, though nothing changes with NumPy."""

    transform = WritesBackTheSame
