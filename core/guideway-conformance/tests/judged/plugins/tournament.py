"""Tournament sampling, a watermark (after SynthID-Text, Dathathri et al., 2024): of the likely tokens those win that a
keyed function of the tokens before prefers. A context that stood in the text lately is drawn without it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from guideway import api
from guideway.api.options import Range

MAX_DEPTH = 4
PURPOSE = 0x5EED
"""The place of the layers' numbers among all that a seed gives: layer j at PURPOSE + j."""


@dataclass(frozen=True)
class Options:
    """The operator's: the key of the watermark, and what of a text makes a context."""

    key: Annotated[str, Range(1)] = "a key for tests"
    context: Annotated[int, Range(1, 16)] = 3
    window: Annotated[int, Range(0, 4096)] = 64


@dataclass(frozen=True)
class Wish:
    depth: Annotated[int, Range(1, MAX_DEPTH)] = 3
    report: bool = True


@dataclass
class State:
    wish: Wish
    tail: tuple[int, ...]
    """The last tokens, prompt included: the context of the next one."""
    lately: deque[tuple[int, ...]] = field(default_factory=deque)
    """The contexts of the last tokens, oldest first."""
    scored: int = 0
    won: float = 0.0

    def copy(self) -> State:
        return State(self.wish, self.tail, deque(self.lately), self.scored, self.won)


class TournamentSampler(api.Sampler):
    emits: ClassVar = {"won": ((), "float32"), "layers": ((), "int32")}

    def sample(self, logprobs: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, m, arrays = step.ops, len(payload), payload.arrays
        entries = ops.asarray(np.arange(m, dtype=np.int32))
        zeros = ops.asarray(np.zeros(m, dtype=np.int32))
        width = self.context.logits_width
        own = ops.log_softmax(ops.gather(logprobs, payload.rows))
        won = ops.asarray(np.zeros((m, width), dtype=np.float32))
        for layer in range(MAX_DEPTH):
            noise = ops.uniform(arrays["seed"], zeros, zeros, PURPOSE + layer, width)
            g = (noise < 0.5) * ops.asarray(np.ones((1, 1), dtype=np.float32))
            g = g * (arrays["depth"] > layer)[:, None]
            won = won + g
            expected = (ops.exp(own) * g).sum(axis=1)[:, None]
            # p' = p (1 + g - E[g]): what two players drawn from p leave of each token
            factor = 1.0 + g - expected
            factor = ops.where_rows(factor, entries, factor < 1e-9, 1e-9)
            played = own + ops.log(factor)
            own = ops.where_rows(own, entries, (arrays["depth"] > layer)[:, None], played)
            own = ops.log_softmax(own)
        drawn = ops.categorical(own, step.uniform("tournament", payload.rows)[:, 0])
        step.emit("won", ops.gather(won, entries, drawn[:, None])[:, 0])
        step.emit("layers", arrays["depth"] + zeros)
        return drawn


class Tournament(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "tournament", api.Stage.SAMPLE, TournamentSampler
    needs = frozenset({api.Need.UNIFORM, api.Need.FEEDBACK})
    examples = (
        api.Example({}),
        api.Example({"depth": 1}, logits={97: 9.0, 98: 9.0, 99: 8.5}),
        api.Example({"depth": 4}, prompt_token_ids=(97, 98, 99, 97, 98, 99)),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.operator = api.parse_options(Options, options, where="modifier.tournament")
        self.key = self.operator.key.encode()

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.tournament")
        return State(wish, tuple(sequence.prompt_token_ids[-self.operator.context :]))

    def seed(self, tail: tuple[int, ...]) -> int:
        words = np.array(tail, dtype="<i4").tobytes()
        digest = hashlib.blake2b(words, digest_size=8, key=hashlib.sha256(self.key).digest()).digest()
        return int.from_bytes(digest, "little") >> 1  # `SamplingParams.seed` has 63 bits, too

    def take(self, state: State, token_id: int) -> None:
        state.lately.append(state.tail)
        if len(state.lately) > self.operator.window:
            state.lately.popleft()
        state.tail = (*state.tail, token_id)[-self.operator.context :]

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        seeds, depths = [], []
        for i, state in enumerate(states):
            if state is None:
                continue
            drafts = batch.drafts(i).tolist()
            ahead = state.copy() if drafts else state
            for j in range(len(drafts) + 1):
                if j:
                    self.take(ahead, drafts[j - 1])
                seeds.append(self.seed(ahead.tail))
                depths.append(0 if ahead.tail in ahead.lately else ahead.wish.depth)
        arrays = {"seed": np.array(seeds, dtype=np.int64), "depth": np.array(depths, dtype=np.int32)}
        return api.Payload(rows, arrays)

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            self.take(state, token_id)
        if feedback is not None:
            for won, layers in zip(feedback["won"].tolist(), feedback["layers"].tolist(), strict=True):
                if layers:
                    state.scored += 1
                    state.won += won / layers
        return api.CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return len(token_ids)  # what is drawn after them depends on tokens alone

    def fork(self, state: State) -> State:
        return state.copy()

    def report(self, state: State) -> Mapping[str, Any] | None:
        if not state.wish.report or not state.scored:
            return None
        mean = state.won / state.scored
        return {"scored": state.scored, "mean": round(mean, 6), "marked": mean > 0.5}
