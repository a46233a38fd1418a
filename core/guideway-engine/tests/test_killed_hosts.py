"""Grammar hosts that are killed and stopped at random cost nobody a token."""

from __future__ import annotations

import asyncio

import pytest

from tests.benchmarks.kill_soak import soak

TIMES = 10


@pytest.mark.slow
def test_hosts_killed_at_random_cost_at_most_who_they_work_for() -> None:
    found = asyncio.run(soak(TIMES, seed=3))
    assert sum(found.times.values()) == TIMES
    assert found.num_ended > TIMES
    assert found.moved == []
    assert len(found.failed) <= TIMES
    assert found.refused == []
    assert found.left <= 1, "the nursery that conftest.py keeps open for all tests"
