"""Saying how two results differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from guideway.api import Payload
from numpy.typing import NDArray

from guideway_conformance.modifier.records import Applied

__all__ = ["alike", "bits", "copied", "expect_alike", "expect_same_steps"]

TOLERANCE = 1e-4
"""Sums over a row may round otherwise in another batch."""


def expect_alike(found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
    """Fail with `what` and the first difference, unless two results of `Applied.of` say the same."""
    if alike(found, wanted):
        return
    if found.shape != wanted.shape:
        difference = f"{found.shape} instead of {wanted.shape}"
    elif found.dtype.kind == "i":
        difference = f"it drew {found.tolist()} instead of {wanted.tolist()}"
    else:
        place = np.unravel_index(
            int(np.argmax(~np.isclose(found, wanted, TOLERANCE, TOLERANCE, equal_nan=True))), found.shape
        )
        where = f" for token {place[-1]}" if found.ndim > 1 else ""  # else it is what was emitted
        difference = f"{found[place]:.5g} instead of {wanted[place]:.5g}{where}"
    raise AssertionError(f"{what}: {difference}")


def expect_same_steps(found: Applied, wanted: Applied, what: str) -> None:
    """Fail unless two steps of the same sequences, in the same order, say the same for each."""
    for i, sequence in enumerate(wanted.work.sequences):
        expect_alike(found.of(i), wanted.of(i), f"{what} ({sequence.request.request_id})")


def bits(array: NDArray[Any]) -> bytes:
    """Return a form of a value that is the same only bit for bit."""
    return array.tobytes()


def copied(payload: Payload) -> Payload:
    """A payload that its modifier cannot reuse."""
    arrays = {name: array.copy() for name, array in payload.arrays.items()}
    return Payload(payload.rows.copy(), arrays, {name: array.copy() for name, array in payload.shared.items()})


def alike(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether two results of `Applied.of` say the same."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind == "i":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))
