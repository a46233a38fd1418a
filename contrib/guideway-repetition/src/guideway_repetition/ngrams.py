"""No sequence of tokens a second time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range
from numpy.typing import NDArray

from guideway_repetition.hearing import Repetition, State


@dataclass(frozen=True)
class NgramWish:
    """The wish of a request."""

    ngram_size: Annotated[int, Range(1, 100)]


class NoRepeatNgram(Repetition):
    """No sequence of `ngram_size` tokens occurs twice in prompt and output."""

    contract, name, stage = "1.0", "no_repeat_ngram", api.Stage.MASK
    examples = (
        api.Example({"ngram_size": 2}, prompt_token_ids=(97, 98, 99, 97), generated=(97, 98)),
        api.Example({"ngram_size": 1}),
    )

    def begin(self, options: Mapping[str, Any]) -> State:
        return State(api.parse_options(NgramWish, options, where="modifiers.no_repeat_ngram").ngram_size - 1)

    def values(self, states: Sequence[State], width: int) -> NDArray[np.float32]:
        return np.full((len(states), width), -np.inf, dtype=np.float32)
