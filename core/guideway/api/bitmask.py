"""Token bitmasks; no other module depends on their layout.

A bitmask is ``int32[rows, num_words(width)]``. Token ``t`` of a row is allowed exactly if
``bitmask[row, t // 32] >> (t % 32) & 1``; a word of -1 allows its 32 tokens. This is the layout of xgrammar, llguidance
and vLLM, so their native code can write into it directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FULL",
    "Bitmask",
    "TokenLists",
    "allocate",
    "allow_only",
    "count_allowed",
    "empty_rows",
    "is_allowed",
    "num_words",
    "pack",
    "token_lists",
    "unpack",
]

Bitmask: TypeAlias = NDArray[np.int32]

BITS_PER_WORD = 32
FULL = np.int32(-1)
"""A word that allows all of its tokens."""


def num_words(width: int) -> int:
    """Return the number of int32 words that a row of `width` tokens takes."""
    return -(-width // BITS_PER_WORD)


def allocate(num_rows: int, width: int) -> Bitmask:
    """Return ``int32[num_rows, num_words(width)]`` with every token allowed."""
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
    """Return whether bit `token_id` of `row` is set."""
    return bool((int(bitmask[row, token_id // BITS_PER_WORD]) >> (token_id % BITS_PER_WORD)) & 1)


def pack(allowed: NDArray[np.bool_]) -> Bitmask:
    """Convert ``bool[rows, width]`` to ``int32[rows, num_words(width)]``; bits past the width are zero."""
    num_rows, width = allowed.shape
    padded = np.zeros((num_rows, num_words(width) * BITS_PER_WORD), dtype=np.bool_)
    padded[:, :width] = allowed
    words: NDArray[np.uint32] = np.packbits(padded, axis=1, bitorder="little").view("<u4")
    return words.astype(np.uint32).view(np.int32)


def unpack(bitmask: Bitmask, width: int) -> NDArray[np.bool_]:
    """Convert ``int32[rows, words]`` to ``bool[rows, width]``. Raises ValueError if a row has too few words."""
    if bitmask.shape[1] < num_words(width):
        raise ValueError(f"a row of {bitmask.shape[1]} words holds fewer than {width} tokens")
    as_bytes = np.ascontiguousarray(bitmask).astype("<i4", copy=False).view(np.uint8)
    bits: NDArray[np.bool_] = np.unpackbits(as_bytes, axis=1, count=width, bitorder="little").view(np.bool_)
    return bits


def count_allowed(bitmask: Bitmask, num_tokens: int) -> NDArray[np.int64]:
    """Return ``int64[rows]``: how many of the first `num_tokens` tokens each row allows."""
    counts: NDArray[np.int64] = _count_bits(_meaningful(bitmask, num_tokens)).sum(axis=1)
    return counts


def empty_rows(bitmask: Bitmask) -> NDArray[np.bool_]:
    """Return ``bool[rows]``: True for rows that allow no token.

    Runs once per step over every row. Most rows allow one of the first tokens, so only these words are read.
    """
    empty: NDArray[np.bool_] = np.bitwise_or.reduce(bitmask[:, :32], axis=1) == 0
    if np.count_nonzero(empty):  # a third of the time of `any`
        empty[empty] = np.bitwise_or.reduce(bitmask[empty], axis=1) == 0
    return empty


@dataclass(frozen=True, slots=True)
class TokenLists:
    """Masks stored as lists of the allowed or of the forbidden tokens, whichever is shorter."""

    offsets: NDArray[np.int32]
    """``int32[m + 1]``, the first 0: mask i has ``token_ids[offsets[i] : offsets[i + 1]]``."""
    token_ids: NDArray[np.int32]
    """``int32[offsets[m]]``: ascending within a mask, without repetition."""
    allow: NDArray[np.bool_]
    """``bool[m]``: True if the mask's list holds its allowed tokens, False if it holds the forbidden ones."""

    def __len__(self) -> int:
        return len(self.allow)

    def bitmask(self, width: int) -> Bitmask:
        """Return the masks as ``int32[m, num_words(width)]``; listed tokens past the width are ignored."""
        listed = np.zeros((len(self), width), dtype=np.bool_)
        rows = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        inside = self.token_ids < width
        listed[rows[inside], self.token_ids[inside]] = True
        return pack(np.where(self.allow[:, None], listed, ~listed))


def token_lists(bitmask: Bitmask, num_tokens: int) -> tuple[TokenLists, NDArray[np.bool_]]:
    """Return as lists the rows of `bitmask` that are smaller that way, and ``bool[rows]``, True for these rows. Only
    the first `num_tokens` bits of a row count.

    Real masks are bimodal: they allow few tokens or forbid few. Only the words with such exceptions are unpacked.
    """
    allowed = _meaningful(bitmask, num_tokens)
    num_rows, words = allowed.shape
    # A list has one entry per exceptional bit, so at least as many as there are words with one.
    least = [(kind != 0).sum(axis=1, dtype=np.int32) for kind in (allowed, _meaningful(~allowed, num_tokens))]
    allow = least[0] < least[1]
    undecided = least[0] == least[1]
    if undecided.any():
        allow[undecided] = [2 * count <= num_tokens for count in _count_bits(allowed[undecided]).sum(axis=1)]
    exceptions = _meaningful(allowed ^ np.where(allow, np.int32(0), FULL)[:, None], num_tokens)
    exceptions[np.where(allow, *least) >= words] = 0

    places = np.flatnonzero(exceptions != 0)
    found = exceptions.reshape(-1)[places]
    of_row = np.searchsorted(places, np.arange(num_rows + 1) * words)
    before = np.concatenate([[0], np.cumsum(_count_bits(found), dtype=np.int64)])
    lengths = np.diff(before[of_row])
    chosen: NDArray[np.bool_] = (lengths < words) & (np.where(allow, *least) < words)
    if not chosen.all():
        listed = np.repeat(chosen, np.diff(of_row))
        places, found = places[listed], found[listed]

    bits = np.unpackbits(found.astype("<i4", copy=False).view(np.uint8), bitorder="little")
    is_set = np.flatnonzero(bits.view(np.bool_))  # three times as fast on bools as on integers
    token_ids = places[is_set // BITS_PER_WORD] % max(words, 1) * BITS_PER_WORD + is_set % BITS_PER_WORD
    offsets = np.zeros(np.count_nonzero(chosen) + 1, dtype=np.int32)
    np.cumsum(lengths[chosen], out=offsets[1:])
    return TokenLists(offsets, token_ids.astype(np.int32), allow[chosen]), chosen


def _meaningful(bitmask: Bitmask, num_tokens: int) -> Bitmask:
    """Return `bitmask` as ``int32[rows, num_words(num_tokens)]``: bits past `num_tokens` are cleared, missing words
    are 0."""
    words = num_words(num_tokens)
    missing, rest = words - bitmask.shape[1], num_tokens % BITS_PER_WORD
    if missing > 0:
        return np.pad(bitmask, ((0, 0), (0, missing)))
    if not rest:
        return np.ascontiguousarray(bitmask[:, :words])
    used = bitmask[:, :words].copy()
    used[:, -1] &= np.int32((1 << rest) - 1)
    return used


def _count_bits(words: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the number of set bits of each word, in the same shape. (Warren: Hacker's Delight, 5-1)"""
    if hasattr(np, "bitwise_count"):  # since NumPy 2
        return np.bitwise_count(words.view(np.uint32)).astype(np.int64)
    x = words.astype(np.uint32)
    x -= x >> np.uint32(1) & np.uint32(0x55555555)
    x = (x & np.uint32(0x33333333)) + (x >> np.uint32(2) & np.uint32(0x33333333))
    x = x + (x >> np.uint32(4)) & np.uint32(0x0F0F0F0F)
    return (x * np.uint32(0x01010101) >> np.uint32(24)).astype(np.int64)
