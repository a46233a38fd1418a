"""Detectors of both watermarks, with exact p-values. They need token ids and the key, neither model nor prompt.

A p-value is the probability that a text without the watermark scores as high, over random keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, lgamma, log, log1p
from struct import pack

import numpy as np
from guideway.devices.philox import WORD, multiply_64, philox4x32
from numpy.typing import NDArray

from guideway_watermark import CONTEXT_LENGTH, noise_of, noise_seeds

__all__ = ["Verdict", "detect_gumbel_max", "detect_kgw"]


@dataclass(frozen=True)
class Verdict:
    """The result of a detector."""

    num_scored: int
    """Tokens that carry evidence: those after a context that was not scored before."""
    score: float
    """Green tokens, or the sum of ``-log(1 - u)`` of the drawn tokens' numbers u."""
    p_value: float


def detect_kgw(token_ids: Sequence[int], key: int, gamma: float = 0.25) -> Verdict:
    """Count green tokens among the different pairs of neighbors. The count without a watermark is binomial."""
    pairs = np.array(sorted(set(pairwise(token_ids))), dtype=np.int64).reshape(-1, 2)
    numbers = _numbers(np.full(len(pairs), key), pairs[:, 0], pairs[:, 1])
    hits, n = int((numbers < np.float32(gamma)).sum()), len(pairs)
    terms = (
        lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(gamma) + (n - k) * log1p(-gamma)
        for k in range(hits, n + 1)
    )
    return Verdict(n, hits, _sum_of_exp(terms) if hits else 1.0)


def detect_gumbel_max(token_ids: Sequence[int], key: int) -> Verdict:
    """Sum ``-log(1 - u)`` over the tokens after different contexts. The sum without a watermark has a gamma
    distribution."""
    tokens: dict[tuple[int, ...], int] = {}
    for end in range(CONTEXT_LENGTH, len(token_ids)):
        tokens.setdefault(tuple(token_ids[end - CONTEXT_LENGTH : end]), token_ids[end])
    seeds = noise_seeds([_digest(key, context) for context in tokens])
    numbers = _numbers(seeds, np.zeros(len(seeds), dtype=np.int64), np.array(list(tokens.values()), dtype=np.int64))
    score, n = float(-np.log1p(-numbers.astype(np.float64)).sum()), len(seeds)
    terms = (k * log(score) - score - lgamma(k + 1) for k in range(n))
    return Verdict(n, score, _sum_of_exp(terms) if n else 1.0)


def _digest(key: int, context: tuple[int, ...]) -> bytes:
    """Return the digest for the noise of the token after `context`."""
    noise = noise_of(key)
    noise.update(pack(f"<{CONTEXT_LENGTH}q", *context))
    return bytes(noise.digest())


def _numbers(seeds: NDArray[np.int64], context: NDArray[np.int64], token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the entry of ``ArrayOps.uniform(seeds, context, context, 0, width)`` at each token id, ``float32[n]``."""
    seed, place, columns = (a.astype(np.int64).view(np.uint64) for a in (seeds, context & WORD, token_ids))
    zero = np.zeros_like(seed)
    block = philox4x32((columns // 4, place, place, zero), (seed & WORD, seed >> 32), multiply_64)
    words = np.stack(block)[(token_ids % 4).astype(np.intp), np.arange(len(token_ids))]
    numbers: NDArray[np.float32] = ((words >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return numbers


def _sum_of_exp(terms: Iterable[float]) -> float:
    """Return the sum of ``exp(term)``, at most 1."""
    return min(1.0, sum(map(exp, terms)))
