"""The results that a device has to compute, as plainly as can be: nothing is shared with any backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "bitmask",
    "considered",
    "forbidden",
    "inverted",
    "log_softmax",
    "logits",
    "philox",
    "scores",
    "special",
    "uniforms",
]

WORD = 0xFFFFFFFF


def forbidden(bitmask: Sequence[Sequence[int]], rows: Sequence[int], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """``bool[shape]``: the logits that the loop in `DeviceBackend.apply_bitmask` sets to -inf."""
    found = np.zeros(shape, dtype=np.bool_)
    for words, row in zip(bitmask, rows, strict=True):
        if row == -1:
            continue
        tokens = np.arange(min(shape[1], 32 * len(words)))
        found[row] = True
        found[row, : len(tokens)] = np.array(words, dtype=np.int64)[tokens // 32] >> (tokens % 32) & 1 == 0
    return found


def considered(
    logits: NDArray[Any], bitmask: Sequence[Sequence[int]], rows: Sequence[int], num_tokens: int
) -> NDArray[np.float64]:
    """`logits` with -inf for all that `DeviceBackend.masked_argmax` does not choose from."""
    x = logits.astype(np.float64)
    x[forbidden(bitmask, rows, x.shape)] = -np.inf
    x[:, num_tokens:] = -np.inf
    return x


def scores(x: NDArray[np.float64], temperatures: Sequence[float], uniforms: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute the scores of which `DeviceBackend.masked_sample` chooses the largest, in each row of a temperature other
    than 0."""
    found: NDArray[np.float64] = x / np.array(temperatures)[:, None] - np.log(-np.log(uniforms.astype(np.float64)))
    return found


def philox(counter: Sequence[Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """The four words of a block of Philox4x32-10, or of many, whose counters are arrays of uint64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = right >> 32 ^ c1 ^ k0, right & WORD, left >> 32 ^ c3 ^ k1, left & WORD
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c0, c1, c2, c3


def uniforms(
    seeds: Sequence[int], sequences: Sequence[int], positions: Sequence[int], purpose: int, width: int
) -> NDArray[np.float32]:
    """Compute what `ArrayOps.uniform` returns."""
    lines = []
    for seed, sequence, position in zip(seeds, sequences, positions, strict=True):
        key = seed & WORD, seed >> 32 & WORD
        blocks = np.arange(-(-width // 4), dtype=np.uint64)
        counter = blocks, position & WORD, sequence & WORD, purpose
        words = np.stack(np.broadcast_arrays(*philox(counter, key)), axis=1)
        lines.append(((words.reshape(-1)[:width].astype(np.int64) >> 9) + 0.5) * 2.0**-23)
    return np.array(lines, dtype=np.float32).reshape(len(seeds), width)


def inverted(weights: Sequence[float], uniform: float) -> int:
    """The first column up to which `weights` sum to more than `uniform` of them all."""
    target, passed = uniform * math.fsum(weights), 0.0
    for column, weight in enumerate(weights):
        passed += weight
        if passed > target:
            return column
    raise AssertionError("a uniform number below 1 leaves some weight to pass")


def log_softmax(row: Sequence[float]) -> list[float]:
    """``x - log(sum(exp(x)))`` in float64."""
    most = max(row)
    log_sum = math.log(math.fsum(math.exp(x - most) for x in row))
    return [x - most - log_sum for x in row]


def logits(seed: int, rows: int, width: int) -> NDArray[np.float32]:
    """Quarters between -3 and 3, which float16 and bfloat16 hold exactly, a fifth of them -inf, none of the rows
    entirely."""
    rng = np.random.default_rng(seed)
    x = (rng.integers(-12, 13, (rows, width)) / 4).astype(np.float32)
    x[rng.random((rows, width)) < 0.2] = -np.inf
    x[np.arange(rows), rng.integers(0, width, rows)] = 1.5
    return x


def special(dtype: str, rows: int, width: int) -> NDArray[np.floating]:
    """Values whose bits a careless backend changes, in turn: zeros, infinities, NaNs and a subnormal
    number among them."""
    least = np.finfo(dtype).smallest_subnormal
    values = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, -np.nan, least, -2.25], dtype=dtype)
    return np.resize(values, (rows, width))


def bitmask(seed: int, rows: int, words: int) -> NDArray[np.int32]:
    """Words of all kinds: none or all of the tokens, one or all but one, and random ones."""
    rng = np.random.default_rng(seed)
    common = rng.choice(np.array([0, -1, 1, -2, -(2**31), 2**31 - 1], dtype=np.int32), (rows, words))
    return np.where(rng.random((rows, words)) < 0.6, common, rng.integers(-(2**31), 2**31, (rows, words))).astype(
        np.int32
    )
