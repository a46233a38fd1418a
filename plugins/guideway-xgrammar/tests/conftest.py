"""The plugin whose strategy the shared fixtures build."""

from __future__ import annotations

import pytest

from tests.support.strategies import ids, legal, make, strategy, vocabulary

__all__ = ["ids", "legal", "make", "plugin", "strategy", "vocabulary"]


@pytest.fixture(scope="session")
def plugin() -> str:
    return "guideway_xgrammar"
