"""Workers that are killed and stopped at random change no tokens."""

from __future__ import annotations

import asyncio

import pytest

from tests.benchmarks.kill_soak import soak_workers

RUNS = 2


@pytest.mark.slow
def test_workers_lost_at_random_cost_nobody_a_token() -> None:
    found = asyncio.run(soak_workers(RUNS, seed=3))
    assert found.num_ended == 6 * RUNS and sum(found.times.values()) > RUNS
    assert found.failed == found.moved == []
    assert found.left == 0
