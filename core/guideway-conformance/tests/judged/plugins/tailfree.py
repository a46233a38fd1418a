"""Tail-free and top-a truncation: cuts where the curve of sorted probabilities goes flat, not where a text loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from guideway import api
from guideway.api.options import Range

CANDIDATES = 128
"""The number of sorted probabilities that are looked at: a tail that begins later is left alone."""


@dataclass(frozen=True)
class NoOptions:
    pass


@dataclass(frozen=True)
class Wish:
    z: Annotated[float, Range(above=0.0, most=1.0)] = 0.9
    """The share of the curvature that is kept; 1: no tail is cut."""
    top_a: Annotated[float, Range(0.0, 1.0)] = 0.0
    """Cut what is less likely than this times the square of the likeliest; 0: nothing."""
    min_keep: Annotated[int, Range(1, CANDIDATES)] = 1
    warmup: Annotated[int, Range(0, 1_000_000)] = 0
    """The first tokens, which are drawn from the whole distribution."""
    loop: Annotated[int, Range(0, 16)] = 0
    """Cut nothing where the last token stands so often among the last 16; 0: cut also there."""


@dataclass(frozen=True)
class State:
    wish: Wish
    prompt_length: int


class TailFreeTransform(api.LogitTransform):
    history_length: ClassVar = 16

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows, arrays = step.ops, payload.rows, payload.arrays
        entries = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own = ops.log_softmax(ops.gather(logits, rows))
        top, _ = ops.topk(own, min(CANDIDATES, self.context.logits_width))
        p = ops.exp(top)
        slope = p[:, :-1] - p[:, 1:]
        bend = slope[:, :-1] - slope[:, 1:]
        bend = ops.where_rows(bend, entries, bend < 0, -bend)
        share = ops.cumsum(bend) / (bend.sum(axis=1) + 1e-20)[:, None]
        kept = (share < arrays["z"][:, None]).sum(axis=1)
        floor = ops.gather(top, entries, kept[:, None])
        # where all of the curve is kept, so is what comes after it
        floor = ops.where_rows(floor, entries, (kept == share.shape[1])[:, None], -np.inf)
        spared = ops.gather(top, entries, (arrays["min_keep"] - 1)[:, None])
        rare = own < 2.0 * top[:, :1] + ops.log(arrays["top_a"])[:, None]
        history = step.history(rows)
        loops = (history == history[:, -1:]).sum(axis=1) >= arrays["loop"]
        may_go = (own < spared) * (arrays["active"] * (loops == False))[:, None]  # noqa: E712 (an array)
        logits = ops.where_rows(logits, rows, (own < floor) * may_go, -np.inf)
        return ops.where_rows(logits, rows, rare * may_go, -np.inf)


class TailFree(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "tailfree", api.Stage.POST_WARP, TailFreeTransform
    derived = True
    needs = frozenset({api.Need.HISTORY})
    examples = (
        api.Example({}),
        api.Example({"z": 0.5, "min_keep": 3}),
        api.Example({"top_a": 0.4, "warmup": 2}),
        api.Example({"z": 0.3, "loop": 3}, generated=(97, 98, 97, 97, 99, 97)),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        api.parse_options(NoOptions, options, where="modifier.tailfree")

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = api.parse_options(Wish, options, where="modifiers.tailfree")
        return State(wish, len(sequence.prompt_token_ids))

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        if not len(rows):
            return None
        acting = [state for i in sequences if (state := states[i]) is not None]
        generated = batch.positions[rows] - np.array([state.prompt_length for state in acting], dtype=np.int32)
        warmup = np.array([state.wish.warmup for state in acting], dtype=np.int32)
        never = TailFreeTransform.history_length + 1
        arrays = {
            "z": np.array([state.wish.z for state in acting], dtype=np.float32),
            "top_a": np.array([state.wish.top_a for state in acting], dtype=np.float32),
            "min_keep": np.array([state.wish.min_keep for state in acting], dtype=np.int32),
            "loop": np.array([state.wish.loop or never for state in acting], dtype=np.int32),
            "active": generated >= warmup,
        }
        return api.Payload(rows, arrays)
