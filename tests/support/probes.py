"""Modifiers beyond the mask, each as short as the contract allows. They test the contract: if one cannot be written
cleanly here, the contract is wrong. All run on every device, because they use only `Step.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

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
    Need,
    Outcome,
    Payload,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
    parse_options,
)


class GreenListTransform(LogitTransform):
    """Adds `delta` to half of the vocabulary, chosen by a keyed hash of the previous token."""

    history_length = 1

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        previous = step.history(payload.rows)[:, 0]
        hashed = step.ops.uniform(payload.arrays["key"], previous, previous, 0, self.context.logits_width)
        raised = step.ops.gather(logits, payload.rows) + payload.arrays["delta"][:, None]
        return step.ops.where_rows(logits, payload.rows, hashed < 0.5, raised)


class GreenList(LogitModifier[tuple[int, float]]):
    """A watermark whose state is derived from the token history (Kirchenbauer et al., arXiv 2301.10226)."""

    contract = "1.0"
    name, stage, transform, derived = "green_list", Stage.PRE_WARP, GreenListTransform, True
    examples = (Example({"key": 1, "delta": 1.0}),)
    needs = frozenset({Need.HISTORY})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> tuple[int, float] | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else (wanted["key"], wanted["delta"])

    def prepare(self, batch: StepBatch, states: Sequence[tuple[int, float] | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        keys = np.array([state[0] if state else 0 for state in states], dtype=np.int64)
        deltas = np.array([state[1] if state else 0 for state in states], dtype=np.float32)
        return Payload(rows, {"key": keys[sequences], "delta": deltas[sequences]})


class GumbelSampler(Sampler):
    """Computes ``argmax(log p + Gumbel noise)``: a draw from p, with noise that is a function of the position."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        ops = step.ops
        noise = -ops.log(-ops.log(step.uniform("gumbel", payload.rows, self.context.logits_width)))
        return ops.argmax(ops.gather(logprobs, payload.rows) + noise)


class Gumbel(LogitModifier[bool]):
    """A sampler that owns the draw (Aaronson's watermark is this with a keyed source of noise)."""

    contract = "1.0"
    name, stage, transform, derived = "gumbel", Stage.SAMPLE, GumbelSampler, True
    needs = frozenset({Need.UNIFORM})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


class GuidanceTransform(LogitTransform):
    """Computes ``uncond + scale * (cond - uncond)`` on log-probabilities."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        conditional = ops.log_softmax(ops.gather(logits, rows))
        unconditional = ops.log_softmax(ops.gather(logits, step.companion_rows[rows][:, 0]))
        guided = unconditional + payload.arrays["scale"][:, None] * (conditional - unconditional)
        either = (conditional > -np.inf) * (unconditional > -np.inf)  # the model's own -inf stay
        return ops.where_rows(logits, rows, either, guided)


class Guidance(LogitModifier[float]):
    """Classifier-free guidance with a companion sequence (Sanchez et al., arXiv 2306.17806)."""

    contract = "1.0"
    name, stage, transform, derived = "guidance", Stage.PRE_WARP, GuidanceTransform, True
    examples = (Example({"scale": 1.0, "negative_prompt": [1]}),)
    needs = frozenset({Need.COMPANIONS})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> float | None:
        wanted = request.params.modifiers.get(self.name)
        if wanted is not None and not -100 <= wanted["scale"] <= 100:
            raise InvalidRequest("scale must be from -100 to 100", field="modifiers.guidance.scale")
        return None if wanted is None else float(wanted["scale"])

    def companions(self, request: Request) -> Sequence[Companion]:
        wanted = request.params.modifiers.get(self.name)
        prompt = () if wanted is None else tuple(wanted["negative_prompt"])
        if wanted is not None and not (prompt and all(0 <= i < len(self.context.vocabulary) for i in prompt)):
            raise InvalidRequest("negative_prompt must be token ids", field="modifiers.guidance.negative_prompt")
        return [Companion(prompt)] if prompt else []

    def prepare(self, batch: StepBatch, states: Sequence[float | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        scales = np.array([state or 0 for state in states], dtype=np.float32)
        return Payload(rows, {"scale": scales[sequences]})


class AlignedTransform(LogitTransform):
    """Adds the known corrections, and emits the probability of all tokens that the grammar allows."""

    emits: ClassVar = {"mass": ((), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows, ids = step.ops, payload.rows, payload.arrays["ids"]
        probability = ops.exp(ops.log_softmax(ops.gather(logits, rows)))
        step.emit("mass", (probability * step.bitmask(rows)).sum(axis=1))
        repeated = (rows[:, None] + 0 * ids).reshape(-1)
        return ops.add_at(logits, repeated, ids.reshape(-1), payload.arrays["corrections"].reshape(-1))


@dataclass(frozen=True)
class NoOptions:
    """There are none."""


@dataclass
class AlignedState:
    known: dict[tuple[int, ...], float]
    path: list[int] = field(default_factory=list)


class Aligned(LogitModifier[AlignedState]):
    """Grammar-aligned decoding (ASAp, Park et al., arXiv 2405.21047), simplified: it stores for each prefix the
    probability of its grammatical continuations, as reported by the worker, and later runs weight the prefix by it."""

    contract = "1.0"
    name, stage, transform = "aligned", Stage.PRE_WARP, AlignedTransform
    needs = frozenset({Need.BITMASK, Need.FEEDBACK})

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        parse_options(NoOptions, options, where="modifier.aligned")
        self.stores: dict[tuple[int, ...], dict[tuple[int, ...], float]] = {}

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> AlignedState | None:
        if self.name not in request.params.modifiers:
            return None
        return AlignedState(self.stores.setdefault(request.prompt_token_ids, {}))

    def prepare(self, batch: StepBatch, states: Sequence[AlignedState | None]) -> Payload | None:
        rows, _ = batch.select(states)
        corrections: list[dict[int, float]] = []
        for i, state in enumerate(states):
            drafts = batch.drafts(i).tolist()
            for k in range(len(drafts) + 1 if state is not None else 0):
                corrections.append(self.corrections(state, drafts[:k]))
        width = max(1, *(len(found) for found in corrections))
        ids = np.zeros((len(rows), width), dtype=np.int32)
        values = np.zeros((len(rows), width), dtype=np.float32)
        for i, found in enumerate(corrections):
            ids[i, : len(found)], values[i, : len(found)] = list(found), list(found.values())
        return Payload(rows, {"ids": ids, "corrections": values})

    def corrections(self, state: AlignedState | None, drafts: list[int]) -> dict[int, float]:
        """Return the log mass of each child of this prefix that was visited before."""
        assert state is not None
        path = (*state.path, *drafts)
        return {p[-1]: float(np.log(m)) for p, m in state.known.items() if len(p) == len(path) + 1 and p[:-1] == path}

    def accept(self, state: AlignedState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        masses = [None] * len(token_ids) if feedback is None else feedback["mass"].tolist()
        for token_id, mass in zip(token_ids, masses, strict=True):
            if mass is not None:
                state.known[tuple(state.path)] = mass
            state.path.append(token_id)
        return CONTINUE

    def fork(self, state: AlignedState) -> AlignedState:
        return AlignedState(state.known, list(state.path))


class LastWordTransform(LogitTransform):
    """Makes one token the likeliest, overriding earlier modifiers."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        logits = step.ops.where_rows(logits, payload.rows, True, 0.0)
        return step.ops.add_at(logits, payload.rows, payload.arrays["ids"], payload.arrays["raise"])


class LastWord(LogitModifier[int]):
    """A modifier that decides which token is drawn if it acts last; for tests of the order within a stage."""

    contract = "1.0"
    stage, transform = Stage.PRE_WARP, LastWordTransform
    heard: ClassVar[list[str]] = []
    """The names of modifiers whose `accept` was called, in order."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> int | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else int(wanted["id"])

    def prepare(self, batch: StepBatch, states: Sequence[int | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        ids = np.array([state or 0 for state in states], dtype=np.int32)[sequences]
        return Payload(rows, {"ids": ids, "raise": np.full(len(rows), 50, dtype=np.float32)})

    def accept(self, state: int, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        self.heard.append(self.name)
        return CONTINUE

    def report(self, state: int) -> Mapping[str, Any]:
        if state == 302:
            raise RuntimeError("nothing to tell")
        return {"said": state}


class LastWordA(LastWord):
    name = "last_word_a"


class LastWordB(LastWord):
    name = "last_word_b"


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    """Return the probes as components, for tests that install them."""
    return {cls.name: cls for cls in (GreenList, Gumbel, Guidance, Aligned, LastWordA, LastWordB)}[name]
