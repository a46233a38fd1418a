"""Context-aware decoding after the temperature: what the context made likelier becomes likelier still.

A companion runs beside each sequence, with the end of the prompt alone, or with token ids of the request's. Where the
prompt and it differ, the difference is added to the log-probabilities, `strength` times (Shi et al., 2023). Tokens that
are less than `plausible` times as likely as the likeliest go. The guidance rises over `ramp` tokens, and ends when the
text `until` was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    Companion,
    Example,
    Feedback,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Need,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
    parse_options,
)


@dataclass(frozen=True)
class Wish:
    strength: float = 0.5
    keep: int = 2
    against: tuple[int, ...] = ()
    """Token ids of the companion's prompt; empty: the last `keep` of the prompt."""
    plausible: float = 0.02
    ramp: int = 0
    until: str = ""


class Progress(NamedTuple):
    heard: int = 0
    tail: bytes = b""
    """The end of the text, as much of it as `until` may begin in."""
    over: bool = False


@dataclass(frozen=True)
class Settings:
    """The operator has no options."""


@dataclass
class State:
    wish: Wish
    until: bytes
    moot: bool
    """True if the companion's prompt is the prompt."""
    progress: Progress = Progress()  # noqa: RUF009 (a NamedTuple never changes)
    guided: int = 0


class ContrastTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        beside = ops.gather(step.companion_rows, rows)[:, :1]
        has_none = beside < 0
        place = ops.where_rows(beside, every, has_none, 0)[:, 0]
        own = ops.log_softmax(ops.gather(logits, rows))
        other = ops.log_softmax(ops.gather(logits, place))
        forbidden = own == -np.inf
        # what the companion forbids, or no companion: no difference
        other = ops.where_rows(other, every, other == -np.inf, own)
        other = ops.where_rows(other, every, has_none, own)
        other = ops.where_rows(other, every, forbidden, 0.0)
        own = ops.where_rows(own, every, forbidden, 0.0)
        guided = own + payload.arrays["strength"][:, None] * (own - other)
        result = ops.where_rows(guided, every, forbidden, -np.inf)
        own = ops.where_rows(own, every, forbidden, -np.inf)
        likeliest, _ = ops.topk(own, 1)
        result = ops.where_rows(result, every, own < likeliest + payload.arrays["cut"][:, None], -np.inf)
        return ops.where_rows(logits, rows, True, result)


class Contrast(LogitModifier[State]):
    contract = "1.0"
    name, stage, transform = "contrast", Stage.POST_WARP, ContrastTransform
    needs = frozenset({Need.COMPANIONS})
    examples = (
        Example({}, prompt_token_ids=(97, 98, 99, 100, 101)),
        Example({"strength": 1.5, "against": [65, 66], "plausible": 0.3, "ramp": 4}),
        Example({"until": "ab", "ramp": 2}, prompt_token_ids=(40, 41, 42), generated=(120, 97, 97, 98, 99)),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        parse_options(Settings, options, where="modifier.contrast")

    def wish(self, request: Request) -> Wish:
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.contrast")
        if not 0 < wish.strength <= 10 or not 0 < wish.plausible <= 1 or not 0 <= wish.ramp <= 1000:
            raise InvalidRequest("strength, plausible or ramp is out of range", field="modifiers.contrast")
        if not 1 <= wish.keep <= 1000 or len(wish.against) > 1000 or len(wish.until) > 100:
            raise InvalidRequest("keep, against or until is too much", field="modifiers.contrast")
        if any(not 0 <= token_id < len(self.context.vocabulary) for token_id in wish.against):
            raise InvalidRequest(
                "against has a token id that the vocabulary has not", field="modifiers.contrast.against"
            )
        return wish

    def companions(self, request: Request) -> Sequence[Companion]:
        if self.name not in request.params.modifiers:
            return ()
        wish = self.wish(request)
        return (Companion(wish.against or request.prompt_token_ids[-wish.keep :]),)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        wish = self.wish(request)
        try:
            until = wish.until.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("until is no valid text", field="modifiers.contrast.until") from None
        beside = wish.against or request.prompt_token_ids[-wish.keep :]
        return State(wish, until, moot=beside == request.prompt_token_ids)

    def unenforced(self, state: State) -> Sequence[str]:
        return ("contrast.strength",) if state.moot else ()

    def after(self, state: State, progress: Progress, token_id: int) -> Progress:
        if progress.over or not state.until:
            return progress._replace(heard=progress.heard + 1)
        text = progress.tail + self.context.vocabulary.tokens[token_id]
        kept = len(state.until) - 1
        return Progress(progress.heard + 1, text[-kept:] if kept else b"", state.until in text)

    def strength(self, state: State, progress: Progress) -> float:
        if progress.over:
            return 0.0
        wish = state.wish
        return wish.strength * (min(1.0, (progress.heard + 1) / wish.ramp) if wish.ramp else 1.0)

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        rows, strengths, cuts = [], [], []
        for i, state in enumerate(states):
            if state is None:
                continue
            progress, first = state.progress, int(batch.row_start[i])
            for row, draft in enumerate([*batch.drafts(i).tolist(), None], first):
                if strength := self.strength(state, progress):
                    rows.append(row)
                    strengths.append(strength)
                    cuts.append(math.log(state.wish.plausible))
                if draft is not None:
                    progress = self.after(state, progress, draft)
        if not rows:
            return None
        arrays = {"strength": np.array(strengths, dtype=np.float32), "cut": np.array(cuts, dtype=np.float32)}
        return Payload(np.array(rows, dtype=np.int32), arrays)

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.guided += not state.progress.over
            state.progress = self.after(state, state.progress, token_id)
        return CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def fork(self, state: State) -> State:
        return replace(state)

    def report(self, state: State) -> Mapping[str, Any]:
        return {"guided": state.guided, "ended": state.progress.over}


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return Contrast
