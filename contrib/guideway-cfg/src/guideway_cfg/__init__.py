"""Classifier-free guidance: moves a text away from, or towards, the continuation of a second prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range


@dataclass(frozen=True)
class Wish:
    """The wish of a request."""

    negative_prompt: str | tuple[int, ...]
    """The second prompt, as a text or token ids."""
    scale: Annotated[float, Range(-100, 100)] = 1.5
    """1 changes nothing, 0 continues the second prompt, more than 1 moves away from it."""


class CfgTransform(api.LogitTransform):
    """Computes ``second + scale * (first - second)`` of the log-probabilities after both prompts."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows = step.ops, payload.rows
        first = ops.log_softmax(ops.gather(logits, rows))
        second = ops.log_softmax(ops.gather(logits, step.companion_rows[rows][:, 0]))
        guided = second + payload.arrays["scale"][:, None] * (first - second)
        both = (first > -np.inf) & (second > -np.inf)
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        return ops.where_rows(logits, rows, True, ops.where_rows(first, every, both, guided))


class Cfg(api.LogitModifier[Wish]):
    """In the scheduler: each request's second prompt, and its scale."""

    contract, name, stage, transform, derived = "1.0", "cfg", api.Stage.PRE_WARP, CfgTransform, True
    needs = frozenset({api.Need.COMPANIONS})
    examples = (api.Example({"negative_prompt": [97]}), api.Example({"negative_prompt": "so", "scale": -1}))

    def wish(self, request: api.Request) -> Wish | None:
        """Return the wish of a request, or None. Raises `InvalidRequest`."""
        options = request.params.modifiers.get(self.name)
        return None if options is None else api.parse_options(Wish, options, where="modifiers.cfg")

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> Wish | None:
        wish = self.wish(request)
        if wish is not None:
            self.companions(request)
        return wish

    def companions(self, request: api.Request) -> Sequence[api.Companion]:
        wish, vocabulary = self.wish(request), self.context.vocabulary
        if wish is None:
            return []
        found: Any = wish.negative_prompt
        if isinstance(found, str):
            found = vocabulary.encode(found.encode(errors="surrogatepass"))
        if not found or not all(0 <= i < len(vocabulary) for i in found):
            raise api.InvalidRequest(
                "negative_prompt must be a text or token ids of the model, not empty",
                field="modifiers.cfg.negative_prompt",
            )
        return [api.Companion(tuple(found))]

    def prepare(self, batch: api.StepBatch, states: Sequence[Wish | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        scales = np.array([state.scale if state else 0 for state in states], dtype=np.float32)
        return api.Payload(rows, {"scale": scales[sequences]})


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[Any]]:
    return Cfg
