"""Hostile constraints of shapes that no corpus was written from: combinations drawn at random, larger and larger."""

from __future__ import annotations

from collections.abc import Iterator

from guideway.api import Constraint


def shapes(seed: int) -> Iterator[tuple[str, Constraint]]:
    """Constraints by name."""
    yield from ()
