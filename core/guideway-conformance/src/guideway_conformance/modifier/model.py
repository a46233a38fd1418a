"""A model that is a hash of the tokens before, and whatever else a step holds of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from guideway.api import Stage, Vocabulary
from numpy.typing import NDArray

__all__ = ["Model"]

NUM_HIDDEN = 32
PIECES = ((97, 98, 99), (120, 121), (101, 102, 103, 104))
"""The tokens that prompts repeat."""
NEAR = 64
"""The number of tokens that the likely one is looked for in."""
SURE = 12.0
"""The amount by which the likely token's logit is raised, where the model is sure."""


class Model:
    """Everything is a function of `context`, the token ids before a row: prompt, output and earlier drafts."""

    def __init__(self, vocabulary: Vocabulary, stage: Stage) -> None:
        self.vocabulary = vocabulary
        self.stage = stage

    def logits(self, context: Sequence[int], given: Mapping[int, float] | None = None) -> NDArray[Any]:
        """``float32[width]`` as a modifier of the stage finds them: raw and finite, or log-probabilities. `given` are
        the raw ones of some tokens."""
        mood = _hash(context, 3) % 8
        logits = (0.05 if mood == 7 else 2) * _noise(context, self.vocabulary.logits_width, 0)
        if mood < 6:
            logits[self.likely(context)] += SURE
        for token_id, value in (given or {}).items():
            if token_id < len(self.vocabulary):
                logits[token_id] = value
        if self.stage in (Stage.PRE_WARP, Stage.MASK):
            return logits
        logits[~self.allowed(context)] = -np.inf
        logits[len(self.vocabulary) :] = -np.inf
        logprobs: NDArray[Any] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return logprobs

    def likely(self, context: Sequence[int]) -> int:
        """The token that came after the last one when it was there before, else a letter: so texts repeat themselves,
        as those do that most modifiers are made for."""
        last = context[-1]
        for place in range(len(context) - 2, max(-1, len(context) - NEAR), -1):
            if context[place] == last:
                return context[place + 1]
        return 97 + _hash(context, 4) % 26

    def ahead(self, context: Sequence[int], count: int) -> list[int]:
        """The `count` likely tokens after `context`."""
        found: list[int] = []
        for _ in range(count):
            found.append(self.likely([*context[-NEAR:], *found]))
        return found

    @staticmethod
    def prompt(number: int) -> tuple[int, ...]:
        """The `number`-th prompt: letters, and then some that are repeated. Every third one ends alike."""
        letters = np.random.default_rng(number).integers(97, 123, size=1 + number % 5).tolist()
        return (*letters, *PIECES[number % len(PIECES)] * (2 + number // len(PIECES) % 3))

    def allowed(self, context: Sequence[int]) -> NDArray[np.bool_]:
        """``bool[width]``: what a grammar would allow; every third prompt is without one."""
        width = self.vocabulary.logits_width
        if context[0] % 3 == 0:
            return np.ones(width, dtype=np.bool_)
        allowed = _noise(context, width, 2) > -1
        allowed[len(self.vocabulary) :] = False
        return allowed

    def hidden_state(self, context: Sequence[int]) -> NDArray[np.float32]:
        """``float32[hidden]``"""
        return _noise(context, NUM_HIDDEN, 1)

    def history(self, context: Sequence[int], length: int) -> NDArray[np.int32]:
        """``int32[length]``: the nearest tokens, the nearest last, -1 where there are none."""
        found = np.full(length, -1, dtype=np.int32)
        near = context[-length:] if length else []
        found[length - len(near) :] = near
        return found

    def drawn(self, logits: NDArray[Any], raw: NDArray[Any], position: int) -> int:
        """A token that can be drawn from `logits`, or if they are empty from `raw`; a stop token only if there is no
        other."""
        size = len(self.vocabulary)
        noise = np.random.default_rng(position).gumbel(size=size)
        stops = list(self.vocabulary.stop_token_ids)
        for source in (logits, raw):
            weights = source[:size].astype(np.float64) + noise
            weights[~(weights > -np.inf)] = -np.inf
            without = weights.copy()
            without[stops] = -np.inf
            for candidate in (without, weights):
                if candidate.max() > -np.inf:
                    return int(candidate.argmax())
        raise AssertionError("no token has a probability")


def _noise(context: Sequence[int], width: int, purpose: int) -> NDArray[np.float32]:
    """Normal deviates, a function of the last tokens and how many there are."""
    return np.random.default_rng(_hash(context, purpose)).standard_normal(width, dtype=np.float32)


def _hash(context: Sequence[int], purpose: int) -> int:
    """A number from the last tokens and how many there are."""
    return zlib.crc32(np.array([purpose, len(context), *context[-8:]], dtype=np.int64).tobytes())
