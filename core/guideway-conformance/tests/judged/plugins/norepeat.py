"""No run of n tokens twice within a window of the text. What is forbidden is read from the history, in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    Array,
    Example,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Need,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)

LONGEST = 8  # tokens of a run
WINDOW = 96  # tokens that may end one


@dataclass(frozen=True)
class Settings:
    """The operator says which characters may be repeated."""

    spared: str = " \n"


@dataclass(frozen=True)
class Wish:
    ngram: int = 3
    window: int = WINDOW
    spare: bool = True


class NoRepeatTransform(LogitTransform):
    history_length: ClassVar = WINDOW + LONGEST - 1
    idempotent: ClassVar = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, length = step.ops, self.history_length
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        history = step.history(payload.rows)
        ends = history[:, LONGEST - 1 :]  # int32[m, WINDOW]: each may have ended a run
        known = ends >= 0
        token_ids = ops.where_rows(ops.gather(ends, every), every, known == False, 0)  # noqa: E712
        differs = payload.shared["age"] > payload.arrays["window"][:, None]  # out of the window
        differs = differs * payload.shared["one"]
        for back in range(1, LONGEST):
            earlier = history[:, LONGEST - 1 - back : length - back]
            now = history[:, length - back : length - back + 1]
            differs = differs + (earlier != now) * payload.arrays["counts"][:, back : back + 1]
        spared = ops.gather(payload.shared["spared"], every * 0, token_ids) * payload.arrays["spare"][:, None]
        banned = (differs + spared == 0) * known
        added = ops.where_rows(0 * differs, every, banned, -np.inf)
        rows = payload.rows[:, None] + 0 * token_ids
        return ops.add_at(logits, rows.reshape(-1), token_ids.reshape(-1), added.reshape(-1))


class NoRepeat(LogitModifier[Wish]):
    contract, name, stage, transform, derived = "1.0", "norepeat", Stage.MASK, NoRepeatTransform, True
    needs = frozenset({Need.HISTORY})
    examples = (
        Example({}),
        Example({"ngram": 1, "window": 4, "spare": False}),
        Example({"ngram": 2, "window": 12}, logits={32: 6.0, 97: 6.0, 98: 6.0}),
        Example({"ngram": 4, "spare": False}, prompt_token_ids=(97, 98, 99, 100, 97, 98, 99)),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        characters = parse_options(Settings, options, where="modifier.norepeat").spared
        spared = characters.encode("utf-8", "surrogatepass")
        vocabulary = context.vocabulary
        self.spared = np.zeros((1, vocabulary.logits_width), dtype=np.float32)
        self.spared[0, sorted(vocabulary.stop_token_ids)] = 1
        for token_id, token in enumerate(vocabulary.tokens):
            if token and not token.strip(spared):
                self.spared[0, token_id] = 1
        self.age = np.arange(WINDOW, 0, -1, dtype=np.int32)[None]
        self.one = np.ones((1, 1), dtype=np.float32)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Wish | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = parse_options(Wish, options, where="modifiers.norepeat")
        if not 1 <= wish.ngram <= LONGEST:
            raise InvalidRequest(f"ngram is from 1 to {LONGEST}", field="modifiers.norepeat.ngram")
        if not 1 <= wish.window <= WINDOW:
            raise InvalidRequest(f"window is from 1 to {WINDOW}", field="modifiers.norepeat.window")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[Wish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        wishes = [wish for i in sequences if (wish := states[i]) is not None]
        if not wishes:
            return None
        ngrams = np.array([wish.ngram for wish in wishes], dtype=np.int32)
        arrays = {
            "window": np.array([wish.window for wish in wishes], dtype=np.int32),
            "counts": (np.arange(LONGEST) < ngrams[:, None]).astype(np.float32),
            "spare": np.array([wish.spare for wish in wishes], dtype=np.float32),
        }
        return Payload(rows, arrays, shared={"age": self.age, "one": self.one, "spared": self.spared})

    def report(self, state: Wish) -> Mapping[str, Any]:
        return {"ngram": state.ngram, "window": state.window}
