"""One strategy's block of mask rows, between guard rows that detect writes outside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import FillJob
from guideway.errors import ConformanceError

__all__ = ["GUARD", "Late", "fill_between_guards"]

GUARD = np.int32(0x6B5A4D3C)
"""Value of each word of a guard row."""


class Late(Exception):
    """Raised, or set as a job's ``error``, if its rows are still being filled: ask again with the next step."""


def fill_between_guards(
    fill: Callable[[Sequence[FillJob], Bitmask], NDArray[np.int32]], jobs: Sequence[FillJob], bitmask: Bitmask
) -> NDArray[np.int32]:
    """Call ``fill(jobs, bitmask)`` and return its result. Raises `ConformanceError` if it wrote to the first or last
    row of `bitmask`, which are guards; these are restored."""
    before, after = bitmask[0], bitmask[-1]
    kept = before.tobytes(), after.tobytes()
    try:
        accepted = fill(jobs, bitmask)
    finally:
        trespassed = (before.tobytes(), after.tobytes()) != kept
        if trespassed:
            before[:], after[:] = (np.frombuffer(row, dtype=np.int32) for row in kept)
    if trespassed:
        raise ConformanceError("fill wrote outside the rows of its jobs")
    if accepted.shape != (len(jobs),):
        raise ConformanceError(f"fill must return int32[{len(jobs)}], not shape {accepted.shape}")
    return accepted
