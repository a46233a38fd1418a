"""Which parameters of a test are for every day, and which for the slow stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def everyday(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """`values` as parameters of a test, of which all but `chosen` are marked ``slow``. A tuple is several."""
    found = list(values)
    assert all(value in found for value in chosen), f"{chosen} are not among {found}"
    several = [value if isinstance(value, tuple) else (value,) for value in found]
    marks = [() if value in chosen else pytest.mark.slow for value in found]
    return [pytest.param(*values, marks=mark) for values, mark in zip(several, marks, strict=True)]
