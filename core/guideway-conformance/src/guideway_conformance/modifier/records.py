"""Sequences, and their steps before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from guideway.api import Companion, Example, Feedback, Request, SequenceInfo, StepBatch
from numpy.typing import NDArray

from guideway_conformance.modifier.step import StepArrays

__all__ = ["Applied", "Running", "Work"]


@dataclass(eq=False, slots=True)
class Running:
    """A sequence."""

    request: Request
    info: SequenceInfo
    slot: int
    state: Any
    companions: tuple[Companion, ...] = ()
    tokens: list[int] = field(default_factory=list)
    journal: list[tuple[list[int], Feedback | None]] = field(default_factory=list)
    outcome: str = "continue"
    example: Example | None = None
    """The example it is one of."""
    started_as: SequenceInfo | None = None
    """The facts that `start` was told, for a fork those of its origin, because its state is a copy of one that was
    started for another sequence."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step before anything is applied."""

    batch: StepBatch
    sequences: Sequence[Running]
    logits: NDArray[Any]
    """``[num_rows + companions, width]``"""
    arrays: StepArrays

    @property
    def states(self) -> tuple[Any, ...]:
        return tuple(sequence.state for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class Applied:
    """One step after it."""

    work: Work
    rows: NDArray[np.int32]
    """The rows that were acted on."""
    logits: NDArray[Any]
    """``[num_rows + companions, width]``"""
    token_ids: NDArray[np.int64] | None
    """``[num_rows]``: what a sampler drew, -1 at rows it does not own."""
    emitted: Mapping[str, NDArray[Any]]
    """In the order of `rows`."""

    def of(self, index: int) -> NDArray[Any]:
        """Return what came of the rows of the `index`-th sequence: logits, or with a sampler token ids."""
        values = self.logits if self.token_ids is None else self.token_ids
        return values[self.work.batch.row_start[index] : self.work.batch.row_start[index + 1]]
