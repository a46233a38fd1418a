"""What the scheduler tells workers about one forward pass. Plain values that pickle; no tensors.

Keys and values live in cells, one per token, numbered through the whole cache. A sequence owns one region of
neighboring cells. The scheduler decides where; the worker moves and computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Append", "Clear", "Copy", "ForwardStep", "ModelInfo", "Move", "Region", "Score"]


@dataclass(frozen=True, slots=True)
class Region:
    """Cells from `start` on; `size` is a power of two, and `start` a multiple of it."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the keys and values of `num_tokens` cells; source and target do not overlap."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Set `num_tokens` cells to zero."""

    start: int
    num_tokens: int


Move: TypeAlias = Copy | Clear


class Append(NamedTuple):
    """New tokens of one sequence."""

    region: Region
    length: int
    """How many tokens the region holds before them."""
    token_ids: Sequence[int]
    """At least one."""
    num_rows: int
    """For how many of the last of them logits are wanted, each row predicting the token that follows."""


@dataclass(frozen=True, slots=True)
class Score:
    """Given tokens whose log-probabilities are wanted: those of a prompt."""

    token_ids: NDArray[np.int32]
    """``int32[m]``: what follows at each of the last m rows of logits."""
    num_logprobs: int
    """How many most likely tokens to return beside each."""


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """One forward pass. Rows of logits come in the order of `appends`: those of sampled sequences, then those of their
    companions, then those of `score`."""

    appends: Sequence[Append]
    moves: Sequence[Move] = ()
    """To be done in order before the pass, each exactly once: a worker counts those it has done, and of a step that
    is sent again does only the rest."""
    first_move: int = 0
    """How many moves there have been before `moves`."""
    hidden_states: bool = False
    """Whether the hidden states of each row are wanted too."""
    score: Score | None = None

    @property
    def num_sequences(self) -> int:
        return len(self.appends)

    @property
    def num_tokens(self) -> int:
        return sum(len(append.token_ids) for append in self.appends)

    @property
    def num_rows(self) -> int:
        return sum(append.num_rows for append in self.appends)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a worker says about the model it has loaded."""

    logits_width: int
    """The width of a row of logits, which may be more than the vocabulary holds."""
    max_context: int | None
    """The most tokens the model was made for; None if its configuration does not say."""
    stop_token_ids: tuple[int, ...]
