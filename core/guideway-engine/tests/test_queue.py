"""Limits on the number of waiting requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from guideway import Engine, EngineConfig, FinishReason, QueueFull, SamplingParams
from guideway.api import LimitExceeded
from guideway_engine.generation import Generation

PROMPT = [5, 80, 300, 1200]
LONG = SamplingParams(max_tokens=200, ignore_eos=True)


@pytest.fixture
def full() -> Iterator[Engine]:
    """Yield an engine with four running and four waiting sequences."""
    with Engine(EngineConfig(model="demo", max_num_seqs=4, max_waiting=4)) as engine:
        for _ in range(2):
            for _ in range(4):
                engine.submit(PROMPT, LONG, wait=False)
            engine.step()
        assert engine._scheduler.num_waiting == 4
        yield engine


def drawn(n: int, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 3, "temperature": 1.0, "n": n} | others)


def num_steps(engine: Engine, generation: Generation) -> int:
    steps = 0
    while generation.result is None:
        engine.step()
        steps += 1
    return steps


def test_a_full_queue_keeps_nobody_of_a_better_priority_out(full: Engine) -> None:
    with pytest.raises(QueueFull, match=r"4 sequences of priority 0 or higher are waiting.*max_waiting is 4"):
        full.submit(PROMPT, LONG)
    urgent = full.submit(PROMPT, SamplingParams(max_tokens=5, ignore_eos=True, priority=-5))
    assert num_steps(full, urgent) <= 6
    (result,) = full.generate([PROMPT], SamplingParams(max_tokens=2, ignore_eos=True, priority=-1))
    assert result.finish_reason is FinishReason.LENGTH
    assert full._scheduler.num_waiting == 4, "generate waited for room that it had"


def test_numbers_of_numpy_count(full: Engine) -> None:
    better = drawn(np.int64(4), priority=np.int64(-1))  # type: ignore[arg-type]
    assert full.has_room(better)
    full.submit(PROMPT, SamplingParams(max_tokens=3, priority=-1), wait=False)
    assert not full.has_room(better)


def test_each_priority_has_a_bound(full: Engine) -> None:
    better = SamplingParams(max_tokens=3, priority=-1)
    for left in (3, 2, 1, 0):
        full.submit(PROMPT, better, wait=False)
        assert full.has_room(better) is (left > 0)
    for params in (better, LONG, None, SamplingParams(priority=7)):
        assert not full.has_room(params)
        with pytest.raises(QueueFull):
            full.submit(PROMPT, params, wait=False)
    assert full.has_room(SamplingParams(priority=-2))


def test_all_sequences_of_a_request_find_room_or_none_does() -> None:
    with Engine(EngineConfig(model="demo", max_num_seqs=2, max_waiting=4)) as engine:
        first = engine.submit(PROMPT, drawn(3), wait=False)
        for params in (drawn(2), drawn(1, best_of=4)):
            with pytest.raises(QueueFull, match=f"the request has {params.num_sequences}, and max_waiting is 4"):
                engine.submit(PROMPT, params, wait=False)
        engine.submit(PROMPT, drawn(1), wait=False)
        assert engine._scheduler.num_waiting == 4
        results = engine.generate([PROMPT] * 3, drawn(4))
        assert [(result.error, len(result.outputs)) for result in results] == [(None, 4)] * 3
        assert first.result is not None


def test_more_sequences_than_ever_may_wait_are_refused_at_once(full: Engine) -> None:
    with pytest.raises(LimitExceeded, match=r"5 sequences, but max_waiting allows only 4") as caught:
        full.submit(PROMPT, drawn(5))
    assert caught.value.field == "n"
    (refused,) = full.generate([PROMPT], drawn(1, best_of=5))
    assert refused.error is not None
    assert refused.error.field == "best_of"
    assert full._scheduler.num_waiting == 4, "nobody had to end for that"


@pytest.mark.parametrize("params", [{"n": 2}, SamplingParams(priority="high"), SamplingParams(n="2")])  # type: ignore[arg-type]
def test_what_nobody_has_looked_at_yet_waits_like_any_other(params: Any, full: Engine) -> None:
    with pytest.raises(QueueFull):
        full.submit(PROMPT, params, wait=False)
