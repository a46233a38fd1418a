"""Apply a bitmask to logits in host memory.

Real masks are bimodal: half of them allow a few hundred tokens, half of them forbid a few thousand. Only these
exceptions are listed; all other logits are set by one fill of the row, or not touched. Nothing of the size of the
logits is unpacked or copied, so it takes little longer than to fill the rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guideway.api import bitmask as bits

__all__ = ["can_forbid", "forbid"]

SAMPLED = 8
"""Every SAMPLED-th word is read to decide which of the two kinds a row's mask is."""


def can_forbid(logits: Tensor) -> bool:
    """Return whether `forbid` supports these logits: in host memory, with contiguous rows that do not overlap."""
    return logits.device.type == "cpu" and logits.stride(1) == 1 and logits.stride(0) >= logits.shape[1]


def forbid(logits: Tensor, bitmask: NDArray[np.int32], rows: NDArray[np.integer]) -> Tensor:
    """Do `DeviceBackend.apply_bitmask` in place."""
    width, words = logits.shape[1], _whole_rows(bitmask, logits.shape[1])
    stride, chosen = logits.stride(0), rows
    padding = chosen == -1
    if padding.any():
        words, chosen = words[~padding], chosen[~padding]
    flat = logits.as_strided(((len(logits) - 1) * stride + width,), (1,))
    starts = chosen.astype(np.int64) * stride
    # Either list is correct for any row, so sampling some words is enough.
    some = words[:, ::SAMPLED]
    few = np.count_nonzero(some == 0, axis=1) > np.count_nonzero(some == bits.FULL, axis=1)

    if few.any():
        allowed = _places(_within(words[few], width).view(np.uint32), starts[few])
        kept = flat.index_select(0, allowed)
        for row in chosen[few].tolist():
            logits[row].fill_(-torch.inf)
        flat.index_copy_(0, allowed, kept)
    if not few.all():
        # many scattered bits are found faster by bytes than by words
        refused = _places(_within(~words[~few], width).view(np.uint8), starts[~few])
        flat.index_fill_(0, refused, -torch.inf)
    return logits


def _whole_rows(bitmask: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    """Return `bitmask` with exactly the words of `width` tokens; missing words allow nothing."""
    missing = bits.num_words(width) - bitmask.shape[1]
    if missing <= 0:
        return np.ascontiguousarray(bitmask[:, : bits.num_words(width)])
    return np.pad(bitmask, ((0, 0), (0, missing)))


def _within(words: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    """Clear the bits of `words` past `width`, in place, and return it."""
    if width % bits.BITS_PER_WORD:
        words[:, -1] &= np.int32((1 << width % bits.BITS_PER_WORD) - 1)
    return words


def _places(units: NDArray[np.unsignedinteger], starts: NDArray[np.int64]) -> Tensor:
    """Return ``int64[set bits]``: ``starts[i] + t`` for every bit t set in row i of `units`."""
    size, (num_rows, row_size) = 8 * units.itemsize, units.shape
    used = np.flatnonzero(units != 0)  # three times as fast on bools as on integers
    first = used * size
    shifts = starts - np.arange(num_rows) * (row_size * size)
    if shifts.any():
        first += np.repeat(shifts, np.diff(used.searchsorted(np.arange(num_rows + 1) * row_size)))
    is_set = np.unpackbits(units.reshape(-1)[used].view(np.uint8), bitorder="little").view(np.bool_)
    place = np.flatnonzero(is_set)
    found: NDArray[np.int64] = first[place >> size.bit_length() - 1]  # a division would double the time
    found += place & size - 1
    return torch.from_numpy(found)
