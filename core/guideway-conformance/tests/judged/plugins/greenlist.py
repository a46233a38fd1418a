"""A watermark (Kirchenbauer et al., 2023, arXiv 2301.10226): the tokens before a row choose the half of the vocabulary
that is preferred. The tables are made of the operator's key, in the worker; a request says how strong its mark is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range


@dataclass(frozen=True)
class Settings:
    """The operator's."""

    key: Annotated[int, Range(0)] = 20_230_124
    gamma: Annotated[float, Range(0.05, 0.95)] = 0.5
    """Share of the vocabulary that is green."""
    buckets: Annotated[int, Range(2, 256)] = 32


@dataclass(frozen=True)
class Wish:
    delta: float = 2.0
    context: int = 1
    """One or two tokens choose the list."""
    least_choices: int = 2
    """Rows with fewer allowed tokens are left as they are."""
    skip: int = 0
    """So many generated tokens are left without the mark."""


@dataclass(frozen=True)
class State:
    wish: Wish
    first: int
    """The position of the first token with a mark."""


class GreenlistTransform(api.LogitTransform):
    history_length = 2

    def __init__(self, context: api.WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        settings = api.parse_options(Settings, options, where="modifier.greenlist")
        random = np.random.default_rng([settings.key, settings.buckets])
        # entry 0 stands for the tokens that a short sequence has not
        self.of_nearest = random.integers(settings.buckets, size=(context.logits_width + 1, 1), dtype=np.int32)
        self.of_second = random.integers(settings.buckets, size=(context.logits_width + 1, 1), dtype=np.int32)
        self.joined = random.integers(settings.buckets, size=(settings.buckets, settings.buckets), dtype=np.int32)
        num_green = max(1, round(settings.gamma * context.vocabulary_size))
        self.green = np.zeros((settings.buckets, context.logits_width), dtype=np.float32)
        for bucket in self.green:
            bucket[random.permutation(context.vocabulary_size)[:num_green]] = 1

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        history = step.history(rows) + 1
        nearest = ops.gather(ops.asarray(self.of_nearest), history[:, 1])
        second = ops.gather(ops.asarray(self.of_second), history[:, 0])
        both = ops.gather(ops.asarray(self.joined), nearest[:, 0], second)
        bucket = ops.where_rows(nearest, every, payload.arrays["context"][:, None] == 2, both)[:, 0]
        green = ops.gather(ops.asarray(self.green), bucket)
        choices = step.bitmask(rows).sum(axis=1)
        free = (choices >= payload.arrays["least_choices"])[:, None]
        raised = ops.gather(logits, rows) + green * payload.arrays["delta"][:, None]
        return ops.where_rows(logits, rows, free, raised)


class Greenlist(api.LogitModifier[State]):
    contract, name, stage, transform, derived = "1.0", "greenlist", api.Stage.PRE_WARP, GreenlistTransform, True
    needs = frozenset({api.Need.HISTORY, api.Need.BITMASK})
    examples = (
        api.Example({}),
        api.Example({"delta": 6.0, "context": 2}),
        api.Example({"delta": 3.0, "skip": 3, "least_choices": 5}),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        api.parse_options(Settings, options, where="modifier.greenlist")

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = api.parse_options(Wish, options, where="modifiers.greenlist")
        if not 0 < wish.delta <= 30:
            raise api.InvalidRequest("delta must be above 0 and at most 30", field="modifiers.greenlist.delta")
        if wish.context not in (1, 2):
            raise api.InvalidRequest("context must be 1 or 2", field="modifiers.greenlist.context")
        if not 0 <= wish.least_choices <= 1 << 20 or not 0 <= wish.skip <= 1 << 20:
            raise api.InvalidRequest("least_choices and skip must be from 0 to 1048576", field="modifiers.greenlist")
        return State(wish, len(sequence.prompt_token_ids) + wish.skip)

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        acting = [state for i in sequences if (state := states[i]) is not None]
        if not acting:
            return None
        first = np.array([state.first for state in acting], dtype=np.int32)
        delta = np.array([state.wish.delta for state in acting], dtype=np.float32)
        return api.Payload(
            rows,
            {
                "delta": np.where(batch.positions[rows] >= first, delta, np.float32(0)),
                "context": np.array([state.wish.context for state in acting], dtype=np.int32),
                "least_choices": np.array([state.wish.least_choices for state in acting], dtype=np.int32),
            },
        )


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[State]]:
    return Greenlist
