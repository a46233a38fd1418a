"""Logits of which others have forbidden some."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway_conformance.modifier.records import Work
from guideway_conformance.subjects import expect

__all__ = ["expect_allowed", "forbidding", "only_few", "without_some_columns"]


def forbidding(work: Work) -> NDArray[Any]:
    """The logits with a third of the tokens of the sampled rows at -inf."""
    logits = work.logits.copy()
    rng = np.random.default_rng(0)
    logits[: work.batch.num_rows][rng.random((work.batch.num_rows, logits.shape[1])) < 1 / 3] = -np.inf
    return logits


def without_some_columns(work: Work) -> NDArray[Any]:
    """The logits of a model that gives some tokens -inf everywhere, also in the rows of companions."""
    logits = work.logits.copy()
    logits[:, np.random.default_rng(1).random(logits.shape[1]) < 1 / 4] = -np.inf
    return logits


def only_few(work: Work, count: int) -> NDArray[Any]:
    """Log-probabilities of which at most `count` tokens in each row are left, never the first or the last ones."""
    rng = np.random.default_rng(count)
    logprobs = np.full_like(work.logits, -np.inf)
    places = rng.integers(3, work.arrays.bitmask.shape[1] // 2, size=(len(logprobs), count))
    np.put_along_axis(logprobs, places, rng.standard_normal(places.shape).astype(logprobs.dtype), axis=1)
    total = np.log(np.exp(logprobs.astype(np.float64)).sum(axis=1, keepdims=True))
    found: NDArray[Any] = (logprobs - total).astype(np.float32)
    return found


def expect_allowed(token_ids: NDArray[Any], logprobs: NDArray[Any], what: str) -> None:
    """Fail with `what` if one of `token_ids`, which were drawn in these rows or are -1, is at -inf."""
    rows = np.flatnonzero(token_ids >= 0)
    wrong = token_ids[rows][np.isneginf(logprobs[rows, token_ids[rows]])]
    expect(len(wrong) == 0, f"{what} it drew token {wrong[:1]}, whose log-probability is -inf")
