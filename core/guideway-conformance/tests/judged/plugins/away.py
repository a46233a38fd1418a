"""Contrastive guidance: away from what the model would say after a negative prompt (Sanchez et al., 2023, arXiv
2306.17806), as far as a probe of the hidden states finds that a row leans that way, and less with every token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range
from numpy.typing import NDArray


@dataclass(frozen=True)
class Settings:
    """The operator's."""

    probe: Annotated[int, Range(0)] = 7
    """Names the probe: a seed here, a file where one was trained."""
    most: Annotated[float, Range(0, 20)] = 8.0
    """The most that a request may ask for."""


@dataclass(frozen=True)
class Wish:
    negative: tuple[int, ...]
    """The negative prompt."""
    scale: float = 1.5
    plausible: float = 0.0
    """Tokens less likely than this share of the likeliest are left out (Li et al., 2022, arXiv 2210.15097)."""
    fade: float = 0.0
    """By how much, per token, the guidance fades."""
    keep_prompt: bool = False
    """True if the prompt follows the negative one."""


@dataclass(frozen=True)
class State:
    wish: Wish
    prompt_length: int


class AwayTransform(api.LogitTransform):
    def __init__(self, context: api.WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        self.settings = api.parse_options(Settings, options, where="modifier.away")
        self.probes: dict[int, NDArray[np.float32]] = {}

    def probe(self, hidden: int) -> NDArray[np.float32]:
        """``float32[1, hidden]``, of length 1."""
        if hidden not in self.probes:
            probe = np.random.default_rng([self.settings.probe, hidden]).standard_normal((1, hidden))
            self.probes[hidden] = (probe / np.linalg.norm(probe)).astype(np.float32)
        return self.probes[hidden]

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        wide = ops.asarray(np.zeros((1, 1), dtype=np.float32))
        # how far the row leans to the probe, from -1 to 1
        hidden = step.hidden_states(rows) + wide
        length = ops.exp(0.5 * ops.log((hidden * hidden).sum(axis=1) + 1e-12))
        lean = (hidden * ops.asarray(self.probe(hidden.shape[1]))).sum(axis=1) / length
        age = ops.gather(step.positions[:, None], rows)[:, 0] - payload.arrays["prompt_length"]
        scale = payload.arrays["scale"] * (1 + lean) * ops.exp(-1.0 * payload.arrays["fade"] * age)
        # its companion, or itself where there is none
        other_rows = ops.gather(step.companion_rows, rows)[:, :1]
        other_rows = ops.where_rows(other_rows, every, other_rows < 0, rows[:, None])[:, 0]
        own, other = ops.gather(logits, rows) + wide, ops.gather(logits, other_rows) + wide
        base = ops.log_softmax(own)
        contrast = base - ops.log_softmax(other)
        contrast = ops.where_rows(contrast, every, other == -np.inf, 0.0)
        guided = own + scale[:, None] * contrast
        likeliest, _ = ops.topk(own, 1)
        guided = ops.where_rows(guided, every, own < likeliest + payload.arrays["cut"][:, None], -np.inf)
        guided = ops.where_rows(guided, every, own == -np.inf, -np.inf)
        return ops.where_rows(logits, rows, True, guided)


class Away(api.LogitModifier[State]):
    contract, name, stage, transform, derived = "1.0", "away", api.Stage.PRE_WARP, AwayTransform, True
    needs = frozenset({api.Need.HIDDEN_STATES, api.Need.COMPANIONS})
    examples = (
        api.Example({"negative": [98, 97, 100]}),
        api.Example({"negative": [120], "scale": 3.0, "plausible": 0.01, "fade": 0.05}),
        api.Example({"negative": [104, 105], "keep_prompt": True}),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.settings = api.parse_options(Settings, options, where="modifier.away")

    def wish(self, request: api.Request) -> Wish:
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.away")
        if not 1 <= len(wish.negative) <= 512:
            raise api.InvalidRequest("negative must have from 1 to 512 tokens", field="modifiers.away.negative")
        if not all(0 <= token_id < len(self.context.vocabulary) for token_id in wish.negative):
            raise api.InvalidRequest("negative has an unknown token", field="modifiers.away.negative")
        if not 0 <= wish.scale <= self.settings.most:
            raise api.InvalidRequest(f"scale must be from 0 to {self.settings.most}", field="modifiers.away.scale")
        if not 0 <= wish.plausible <= 1 or not 0 <= wish.fade <= 10:
            raise api.InvalidRequest("plausible must be from 0 to 1, fade from 0 to 10", field="modifiers.away")
        return wish

    def companions(self, request: api.Request) -> Sequence[api.Companion]:
        if self.name not in request.params.modifiers:
            return ()
        wish = self.wish(request)
        kept = request.prompt_token_ids if wish.keep_prompt else ()
        return (api.Companion((*wish.negative, *kept)),)

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        return State(self.wish(request), len(sequence.prompt_token_ids))

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        acting = [state for i in sequences if (state := states[i]) is not None]
        if not acting:
            return None
        cut = [math.log(state.wish.plausible) if state.wish.plausible > 0 else -math.inf for state in acting]
        return api.Payload(
            rows,
            {
                "scale": np.array([state.wish.scale for state in acting], dtype=np.float32),
                "fade": np.array([state.wish.fade for state in acting], dtype=np.float32),
                "cut": np.array(cut, dtype=np.float32),
                "prompt_length": np.array([state.prompt_length for state in acting], dtype=np.int32),
            },
        )


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[State]]:
    return Away
