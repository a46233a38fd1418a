"""Saying how two results differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.conformance.modifier.bench import Applied, alike

__all__ = ["bits", "expect_alike", "expect_same_steps"]


def expect_alike(found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
    """Fail with `what` and the first difference, unless two results of `Applied.of` say the same."""
    if alike(found, wanted):
        return
    if found.shape != wanted.shape:
        difference = f"{found.shape} instead of {wanted.shape}"
    elif found.dtype.kind == "i":
        difference = f"it drew {found.tolist()} instead of {wanted.tolist()}"
    else:
        place = np.unravel_index(int(np.argmax(~np.isclose(found, wanted, 1e-4, 1e-4, equal_nan=True))), found.shape)
        difference = f"{found[place]:.5g} instead of {wanted[place]:.5g} for token {place[-1]}"
    raise AssertionError(f"{what}: {difference}")


def expect_same_steps(found: Applied, wanted: Applied, what: str) -> None:
    """Fail unless two steps of the same sequences, in the same order, say the same for each."""
    for i, sequence in enumerate(wanted.work.sequences):
        expect_alike(found.of(i), wanted.of(i), f"{what} ({sequence.request.request_id})")


def bits(array: NDArray[Any]) -> bytes:
    """What is the same only bit for bit."""
    return array.tobytes()
