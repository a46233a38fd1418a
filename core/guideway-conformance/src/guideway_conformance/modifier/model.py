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


class Model:
    """Everything is a function of `context`, the token ids before a row: prompt, output and earlier drafts."""

    def __init__(self, vocabulary: Vocabulary, stage: Stage) -> None:
        self.vocabulary = vocabulary
        self.stage = stage

    def logits(self, context: Sequence[int], given: Mapping[int, float] | None = None) -> NDArray[Any]:
        """``float32[width]`` as a modifier of the stage finds them: raw and finite, or log-probabilities. `given` are
        the raw ones of some tokens."""
        logits = 2 * _noise(context, self.vocabulary.logits_width, 0)
        for token_id, value in (given or {}).items():
            if token_id < len(self.vocabulary):
                logits[token_id] = value
        if self.stage in (Stage.PRE_WARP, Stage.MASK):
            return logits
        logits[~self.allowed(context)] = -np.inf
        logits[len(self.vocabulary) :] = -np.inf
        logprobs: NDArray[Any] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return logprobs

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
    seed = zlib.crc32(np.array([purpose, len(context), *context[-8:]], dtype=np.int64).tobytes())
    return np.random.default_rng(seed).standard_normal(width, dtype=np.float32)
