"""A watermark that draws by a key (Aaronson, 2022), once for each context of a text; where a context comes again the
draw is an ordinary one, as in SynthID, so that texts do not fall into loops. Tells how well a text was sealed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    Example,
    Feedback,
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    ModifierContext,
    Need,
    Outcome,
    Payload,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)

PURPOSE = 0x5EA1
MANY = 48  # rows whose contexts are worth a second thread


@dataclass(frozen=True)
class Settings:
    key: str = "an operator's secret"
    widest: int = 16


@dataclass(frozen=True)
class Wish:
    width: int = 4  # tokens of a context
    salt: str = ""
    fresh: bool = True  # a context that came already is not sealed again


@dataclass
class State:
    wish: Wish
    secret: bytes
    context: tuple[int, ...]
    seen: set[int] = field(default_factory=set)
    sealed: int = 0
    score: float = 0.0
    plain: int = 0

    def seed(self, context: tuple[int, ...]) -> int:
        text = np.array(context, dtype="<i4").tobytes()
        return int.from_bytes(hashlib.blake2b(text, key=self.secret, digest_size=8).digest(), "little", signed=True)

    def shifted(self, context: tuple[int, ...], token_id: int) -> tuple[int, ...]:
        return (*context, token_id)[-self.wish.width :]

    def ahead(self, drafts: Iterable[int]) -> list[tuple[int, bool]]:
        """Seed and whether it is sealed, of the next row and of those after drafts."""
        context, found, own = self.context, list[tuple[int, bool]](), set[int]()
        for token_id in (*drafts, None):
            seed = self.seed(context)
            found.append((seed, not self.wish.fresh or (seed not in self.seen and seed not in own)))
            own.add(seed)
            if token_id is not None:
                context = self.shifted(context, token_id)
        return found


class SealSampler(Sampler):
    emits: ClassVar = {"chance": ((), "float32")}

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        ops, rows, width = step.ops, payload.rows, logprobs.shape[1]
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        sealed = payload.arrays["sealed"][:, None] > 0
        nowhere = payload.arrays["nowhere"]
        keyed = ops.uniform(payload.arrays["seed"], nowhere, nowhere, PURPOSE, width)
        chance = ops.where_rows(step.uniform("seal", rows, width), every, sealed, keyed)
        noise = 0.0 - ops.log(0.0 - ops.log(chance))
        drawn = ops.argmax(ops.gather(logprobs, rows) + noise)
        step.emit("chance", ops.gather(chance, every, drawn[:, None])[:, 0])
        return drawn


class Seal(LogitModifier[State]):
    contract, name, stage, transform = "1.0", "seal", Stage.SAMPLE, SealSampler
    needs = frozenset({Need.UNIFORM, Need.FEEDBACK})
    examples = (
        Example({}),
        Example({"width": 1, "salt": "pepper"}, logits={97: 9.0, 98: 8.0}),
        Example({"width": 2, "fresh": False}),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.settings = parse_options(Settings, options, where="modifier.seal")
        if not 1 <= self.settings.widest <= 1024:
            raise InvalidConfiguration("widest is from 1 to 1024", field="modifier.seal.widest")
        self.pool: ThreadPoolExecutor | None = None

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.seal")
        if not 1 <= wish.width <= self.settings.widest:
            raise InvalidRequest(f"width is from 1 to {self.settings.widest}", field="modifiers.seal.width")
        words = f"{self.settings.key}\0{wish.salt}".encode("utf-8", "surrogatepass")
        secret = hashlib.blake2b(words, digest_size=32).digest()
        return State(wish, secret, sequence.prompt_token_ids[-wish.width :])

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        acting = [(state, batch.drafts(i).tolist()) for i, state in enumerate(states) if state is not None]
        if len(rows) >= MANY:
            if self.pool is None:
                self.pool = ThreadPoolExecutor(2)
            found = list(self.pool.map(lambda each: each[0].ahead(each[1]), acting))
        else:
            found = [state.ahead(drafts) for state, drafts in acting]
        seeds, sealed = zip(*(each for rows_of_one in found for each in rows_of_one), strict=True)
        arrays = {
            "seed": np.array(seeds, dtype=np.int64),
            "sealed": np.array(sealed, dtype=np.float32),
            "nowhere": np.zeros(len(rows), dtype=np.int32),
        }
        return Payload(rows, arrays)

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        chances = [None] * len(token_ids) if feedback is None else feedback["chance"].tolist()
        for token_id, chance in zip(token_ids, chances, strict=True):
            seed = state.seed(state.context)
            if chance is None or (state.wish.fresh and seed in state.seen):
                state.plain += 1
            else:
                state.sealed += 1
                state.score -= math.log1p(-chance)
            state.seen.add(seed)
            state.context = state.shifted(state.context, token_id)
        return CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return len(token_ids)  # what is sealed depends on the tokens alone

    def fork(self, state: State) -> State:
        return State(state.wish, state.secret, state.context, set(state.seen), state.sealed, state.score, state.plain)

    def report(self, state: State) -> Mapping[str, Any]:
        z = (state.score - state.sealed) / math.sqrt(state.sealed) if state.sealed else 0.0
        return {"sealed": state.sealed, "plain": state.plain, "z": round(z, 3)}

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
