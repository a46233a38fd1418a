"""Which tokens would have been drawn if closing had excluded none: at temperature 0 the most likely one of the row.

A host that returns log-probabilities can tell: the rows from which closing took tokens ask for the most likely ones,
and none before the one that was drawn may be one that closing excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from guideway.api.steps import Logprobs, StepBatch
from guideway.runtime.modifiers.modifier_set import ActiveSequence
from guideway.runtime.modifiers.warp_builder import WarpBuilder

__all__ = ["ask_for_most_likely", "is_own"]

NUM_MOST_LIKELY = 64
"""Tokens of a row that are looked at. Where more are likelier than the one drawn, it is not known to be the own one."""


def ask_for_most_likely(
    num_logprobs: NDArray[np.int32] | None,
    batch: StepBatch,
    sequences: Sequence[ActiveSequence],
    first_closed: Sequence[int | None],
    warps: WarpBuilder,
) -> NDArray[np.int32] | None:
    """Return `StepInput.num_logprobs` so that it includes the most likely token of the rows from which closing took
    tokens, for the sequences whose draws are always the most likely token that their constraint allows. The first of
    these rows is ``first_closed[i]`` of a sequence's; None if there is none."""
    found, starts = num_logprobs, batch.row_start.tolist()
    for i, (slot, sequence, first) in enumerate(zip(batch.slots.tolist(), sequences, first_closed, strict=True)):
        if first is None:
            continue
        is_alone = len(sequence.acting) == 1 and sequence.bans is None and sequence.opening is None
        if is_alone and warps.draws_most_likely(slot):
            found = np.full(batch.num_rows, -1, dtype=np.int32) if found is None else found
            rows = slice(starts[i] + first, starts[i + 1])
            found[rows] = np.maximum(found[rows], NUM_MOST_LIKELY)
    return found


def is_own(
    logprobs: Logprobs | None,
    first_row: int,
    token_ids: Sequence[int],
    first: int,
    takes: Callable[[Sequence[int]], bool],
) -> bool:
    """Return whether the tokens from the `first` on are known to be the most likely ones that the constraint allows.
    `takes` says whether it allows tokens in their place, and `first_row` is the row of the first."""
    if logprobs is None:
        return False
    places = {row: place for place, row in enumerate(logprobs.rows.tolist())}
    for i in range(first, len(token_ids)):
        likely = logprobs.top_ids[places[first_row + i]].tolist() if first_row + i in places else []
        if token_ids[i] not in likely:
            return False
        others = likely[: likely.index(token_ids[i])]
        if any(takes((*token_ids[:i], other)) for other in others):
            return False
    return True
