"""A language model that prefers a letter, or avoids one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.api import (
    Array,
    Example,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
    parse_options,
)
from numpy.typing import NDArray


@dataclass(frozen=True)
class Settings:
    """The operator has no options."""


@dataclass(frozen=True)
class Wish:
    """The wish of a request."""

    letter: str
    strength: float = -50.0


class HelloTransform(LogitTransform):
    """In the worker: adds each row's strength to the logits of all tokens that hold its letter."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        holds_letter = step.ops.gather(payload.shared["holds_letter"], payload.arrays["letter"])
        wished = step.ops.gather(logits, payload.rows) + holds_letter * payload.arrays["strength"][:, None]
        return step.ops.where_rows(logits, payload.rows, True, wished)


class Hello(LogitModifier[Wish]):
    """In the scheduler: knows what each request wants, and says so for each row."""

    contract = "1.0"
    name, stage, transform, derived = "hello", Stage.PRE_WARP, HelloTransform, True
    examples = (Example({"letter": "e"}), Example({"letter": "a", "strength": 7.5}))

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        parse_options(Settings, options, where="modifier.hello")
        self.tables: dict[str, NDArray[np.float32]] = {}

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Wish | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.hello")
        if not re.fullmatch("[a-z]", wish.letter) or not -100 <= wish.strength <= 100:
            raise InvalidRequest("letter must be one of a to z, strength from -100 to 100", field="modifiers.hello")
        return wish

    def prepare(self, batch: StepBatch, states: Sequence[Wish | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        wishes = [wish for i in sequences if (wish := states[i]) is not None]
        if not wishes:
            return None
        letters = sorted({wish.letter for wish in wishes})
        which = np.array([letters.index(wish.letter) for wish in wishes], dtype=np.int32)
        strengths = np.array([wish.strength for wish in wishes], dtype=np.float32)
        tables = np.stack([self.table(letter) for letter in letters])
        return Payload(rows, arrays={"letter": which, "strength": strengths}, shared={"holds_letter": tables})

    def table(self, letter: str) -> NDArray[np.float32]:
        """``float32[width]``: 1 for each token that holds the letter, 0 for the others."""
        if letter not in self.tables:
            vocabulary = self.context.vocabulary
            holding = [i for i, token in enumerate(vocabulary.tokens) if letter.encode() in token.lower()]
            self.tables[letter] = np.zeros(vocabulary.logits_width, dtype=np.float32)
            self.tables[letter][holding] = 1
        return self.tables[letter]


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Wish]]:
    return Hello
