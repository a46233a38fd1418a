"""A modifier that keeps to an alphabet."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.api import (
    Array,
    CompiledGrammar,
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
    parse_options,
)
from guideway.api.bitmask import Bitmask, pack

ALPHABETS = {"lower": b"abcdefghijklmnopqrstuvwxyz ", "digits": b"0123456789 .,", "abc": b"abcABC"}


@dataclass(frozen=True)
class AlphabetSettings:
    """The operator has no options."""


@dataclass(frozen=True)
class AlphabetWish:
    name: str = "lower"


class AlphabetTransform(LogitTransform):
    bitmask = "allowed"
    hard = True
    idempotent = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        allowed = step.ops.unpack_bitmask(payload.arrays["allowed"], self.context.logits_width)
        return step.ops.where_rows(logits, payload.rows, allowed == 0, -np.inf)


class Alphabet(LogitModifier[Bitmask]):
    """Tokens of an alphabet, and those that end an output; what a name means is worked out once."""

    contract, name, stage, transform, derived = "1.0", "alphabet", Stage.MASK, AlphabetTransform, True
    examples = (Example({}), Example({"name": "abc"}), Example({"name": "digits"}, generated=(48, 49)))

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        parse_options(AlphabetSettings, options, where="modifier.alphabet")
        self.lock = threading.Lock()
        self.masks: dict[str, Bitmask] = {}

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Bitmask:
        name = self.wish(request).name
        with self.lock:
            if name not in self.masks:
                self.masks[name] = self.mask(frozenset(ALPHABETS[name]))
            return self.masks[name]

    def compile_key(self, request: Request) -> Hashable:
        return self.wish(request).name

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Bitmask | None:
        found: Bitmask | None = compiled
        return found

    def prepare(self, batch: StepBatch, states: Sequence[Bitmask | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        masks = [mask for i in sequences if (mask := states[i]) is not None]
        return Payload(rows, {"allowed": np.stack(masks)}) if masks else None

    def validate(self, state: Bitmask, token_ids: Sequence[int]) -> int:
        words = state.view(np.uint32)
        for count, token_id in enumerate(token_ids):
            if not words[token_id // 32] >> np.uint32(token_id % 32) & 1:
                return count
        return len(token_ids)

    def mask(self, letters: frozenset[int]) -> Bitmask:
        vocabulary = self.context.vocabulary
        allowed = np.zeros((1, vocabulary.logits_width), dtype=np.bool_)
        for token_id, token in enumerate(vocabulary.tokens):
            text = bool(token) and token_id not in vocabulary.special_tokens and letters.issuperset(token)
            allowed[0, token_id] = text or token_id in vocabulary.stop_token_ids
        mask: Bitmask = pack(allowed)[0]
        mask.setflags(write=False)
        return mask

    def wish(self, request: Request) -> AlphabetWish:
        wish = parse_options(AlphabetWish, request.params.modifiers[self.name], where="modifiers.alphabet")
        if wish.name not in ALPHABETS:
            raise InvalidRequest(f"name is one of {', '.join(ALPHABETS)}", field="modifiers.alphabet.name")
        return wish
