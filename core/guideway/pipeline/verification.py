"""Decide which drawn tokens become final when draft tokens were scored beside them."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from guideway.api.steps import StepBatch

__all__ = ["accepted_tokens"]


def accepted_tokens(batch: StepBatch, token_ids: NDArray[np.int32]) -> list[tuple[int, ...]]:
    """The final tokens of each sequence: the drafts that equal the draw at the row before them, up to the first that
    does not, and then that row's own draw (the bonus token).

    Every row is drawn from its true distribution with random numbers that depend on its position alone, so what is
    kept is what decoding one token at a time would have drawn, whoever owns the draw: lossless.
    """
    if batch.num_rows == batch.num_sequences:
        return [(token_id,) for token_id in token_ids.tolist()]
    starts, drawn = batch.row_start.tolist(), token_ids.tolist()
    drafts = batch.draft_token_ids.tolist()
    finals = []
    for i, (first, end) in enumerate(itertools.pairwise(starts)):
        kept = first
        while kept < end - 1 and drafts[kept - i] == drawn[kept]:
            kept += 1
        finals.append(tuple(drawn[first : kept + 1]))
    return finals
