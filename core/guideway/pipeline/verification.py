"""Verify draft tokens against drawn tokens."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from guideway.api.steps import StepBatch

__all__ = ["accepted_tokens"]


def accepted_tokens(batch: StepBatch, token_ids: NDArray[np.int32]) -> list[tuple[int, ...]]:
    """Return the final tokens of each sequence: the drafts that equal the draw of the previous row, up to the first
    that does not, then the draw that follows the last kept draft (the bonus token).

    This is lossless for every sampler: each row is drawn from its true distribution with random numbers that depend
    only on its position, so the final tokens are those that decoding one token at a time would draw.
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
