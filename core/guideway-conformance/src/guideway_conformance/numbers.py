"""Numbers on the command line."""

from __future__ import annotations

import argparse
import math

__all__ = ["positive", "positive_int"]


def positive_int(text: str) -> int:
    """Return the integer, which must be at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def positive(text: str) -> float:
    """Return the number, which must be greater than 0 and finite."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be greater than 0, not {text}")
    return value
