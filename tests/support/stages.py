"""Which parameters of a test are for every day, and which for the slow stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def everyday(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """`values` as parameters of a test, of which all but `chosen` are marked ``slow``."""
    found = list(values)
    assert all(value in found for value in chosen), f"{chosen} are not among {found}"
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.slow) for value in found]
