"""Token bitmasks: the one place that knows their layout.

A bitmask is ``int32[rows, num_words(width)]``. Token ``t`` of a row is allowed exactly if
``bitmask[row, t // 32] >> (t % 32) & 1``; a word of -1 allows its 32 tokens. This is the layout of xgrammar,
llguidance and vLLM, so their native code writes into it directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["FULL", "Bitmask", "allocate", "allow_only", "empty_rows", "is_allowed", "num_words", "pack", "unpack"]

Bitmask: TypeAlias = NDArray[np.int32]

BITS_PER_WORD = 32
FULL = np.int32(-1)
"""A word that allows all of its tokens."""


def num_words(width: int) -> int:
    """How many int32 words a row of `width` tokens takes."""
    return -(-width // BITS_PER_WORD)


def allocate(num_rows: int, width: int) -> Bitmask:
    """``int32[num_rows, num_words(width)]`` with every token allowed."""
    return np.full((num_rows, num_words(width)), FULL, dtype=np.int32)


def allow_only(bitmask: Bitmask, row: int, token_ids: Iterable[int]) -> None:
    """Overwrite `row` so that exactly `token_ids` are allowed. Raises IndexError for an id past the row's words."""
    words = bitmask[row].view(np.uint32)
    words[:] = 0
    for token_id in token_ids:
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        words[token_id // BITS_PER_WORD] |= np.uint32(1 << (token_id % BITS_PER_WORD))


def is_allowed(bitmask: Bitmask, row: int, token_id: int) -> bool:
    """Whether bit `token_id` of `row` is set."""
    return bool((int(bitmask[row, token_id // BITS_PER_WORD]) >> (token_id % BITS_PER_WORD)) & 1)


def pack(allowed: NDArray[np.bool_]) -> Bitmask:
    """``bool[rows, width]`` to ``int32[rows, num_words(width)]``; bits past the width are zero."""
    num_rows, width = allowed.shape
    padded = np.zeros((num_rows, num_words(width) * BITS_PER_WORD), dtype=np.bool_)
    padded[:, :width] = allowed
    words: NDArray[np.uint32] = np.packbits(padded, axis=1, bitorder="little").view("<u4")
    return words.astype(np.uint32).view(np.int32)


def unpack(bitmask: Bitmask, width: int) -> NDArray[np.bool_]:
    """``int32[rows, words]`` to ``bool[rows, width]``."""
    if bitmask.shape[1] < num_words(width):
        raise ValueError(f"a row of {bitmask.shape[1]} words holds fewer than {width} tokens")
    as_bytes = np.ascontiguousarray(bitmask).astype("<i4", copy=False).view(np.uint8)
    bits: NDArray[np.bool_] = np.unpackbits(as_bytes, axis=1, count=width, bitorder="little").view(np.bool_)
    return bits


def empty_rows(bitmask: Bitmask) -> NDArray[np.bool_]:
    """``bool[rows]``: which rows allow no token at all.

    An even number of words is read as int64, which halves the work: this runs once per step over every row.
    """
    words = bitmask.view(np.int64) if bitmask.shape[1] % 2 == 0 and bitmask.flags.c_contiguous else bitmask
    empty: NDArray[np.bool_] = np.bitwise_or.reduce(words, axis=1) == 0
    return empty
