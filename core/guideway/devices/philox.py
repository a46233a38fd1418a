"""Philox4x32-10, the counter-based random number generator of every draw, for any array library.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC'11). The known answers of the authors'
Random123 are in its test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from guideway.api.steps import Array

__all__ = ["WORD", "Block", "multiply_64", "philox4x32"]

Block: TypeAlias = tuple[Array, Array, Array, Array]

WORD = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox4x32(
    counter: Block,
    key: tuple[Array, Array],
    multiply: Callable[[Array, int], tuple[Array, Array]],
    scalar: Callable[[int], Any] = int,
) -> Block:
    """Return four random words for each counter and key, whose words broadcast against each other.

    Words are integers from 0 to 2**32 - 1 in uint32, int64 or uint64. ``multiply(word, constant)`` returns
    ``(high, low)``, the two words of the product. `scalar` converts a constant if the library cannot combine such words
    with a Python int of 32 bits.
    """
    mask = scalar(WORD)
    step0, step1 = (scalar(step) for step in KEY_STEPS)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = multiply(c0, MULTIPLIERS[0])
        high1, low1 = multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + step0) & mask, (k1 + step1) & mask
    return c0, c1, c2, c3


def multiply_64(word: Array, constant: int) -> tuple[Array, Array]:
    """Return the two words of a product (`multiply`) for 64-bit integers, signed or not: a signed product wraps
    around, but has the same bits."""
    product = word * constant
    return (product >> 32) & WORD, product & WORD
