"""The plugins that the tests of this folder run for: those whose libraries agree with the reference."""

from __future__ import annotations

import pytest

from tests.support.strategies import ids, legal, make, strategy, vocabulary

__all__ = ["ids", "legal", "make", "plugin", "strategy", "vocabulary"]


@pytest.fixture(scope="session", params=["llguidance", "xgrammar"])
def plugin(request: pytest.FixtureRequest) -> str:
    return f"guideway_{request.param}"
