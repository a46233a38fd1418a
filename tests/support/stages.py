"""The choice of a test's parameters and examples for every day and for the slow stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def everyday(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return `values` as parameters of a test, marking all but `chosen` as ``slow``. A tuple is several parameters."""
    found = list(values)
    assert all(value in found for value in chosen), f"{chosen} are not among {found}"
    several = [value if isinstance(value, tuple) else (value,) for value in found]
    marks = [() if value in chosen else pytest.mark.slow for value in found]
    return [pytest.param(*values, marks=mark) for values, mark in zip(several, marks, strict=True)]


def one_in(number: int, values: Iterable[Any]) -> list[Any]:
    """Return `values` as parameters of a test, marking all as ``slow`` but the first and each `number`-th after it."""
    found = list(values)
    return everyday(found, *found[::number])


def examples(number: int) -> int:
    """Return how many examples a property takes: `number` with ``--hypothesis-profile full``, a quarter without."""
    return number if settings.get_current_profile_name() == "full" else number // 4
