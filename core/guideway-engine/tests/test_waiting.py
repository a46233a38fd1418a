"""Whose turn it is."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from guideway.api import Request, SamplingParams
from guideway.runtime.runtime import Admission
from guideway_engine.scheduling.sequence import RequestGroup, Sequence
from guideway_engine.scheduling.waiting import WaitingQueue

arrivals = iter(range(10**6))


def waiting(tenant: str = "", priority: int = 0, compilation: Future[Any] | None = None, n: int = 1) -> RequestGroup:
    arrival = next(arrivals)
    params = SamplingParams(priority=priority, n=n)
    request = Request(request_id=str(arrival), prompt_token_ids=(1,), params=params, tenant=tenant)
    return RequestGroup(
        Admission(request, compilation, (), ()), arrival=arrival, max_tokens=5, stop_token_ids=frozenset(), inbox=[]
    )


def take(queue: WaitingQueue) -> Sequence:
    best = queue.best()
    assert best is not None
    queue.discard(best)
    return best


def test_priority_first_then_arrival() -> None:
    queue = WaitingQueue()
    groups = [waiting(priority=p) for p in (3, -1, 3, 0, -1)]
    for group in groups:
        queue.add(group.sequences[0])
    assert len(queue) == 5
    assert [take(queue).group for _ in groups] == [groups[i] for i in (1, 4, 3, 0, 2)]
    assert queue.best() is None


def test_those_of_the_same_or_a_better_priority_are_counted() -> None:
    queue = WaitingQueue()
    for priority in (3, -1, 3, 0, -1):
        queue.add(waiting("a" if priority else "b", priority=priority, n=2).sequences[0])
    assert [queue.count(priority) for priority in (-2, -1, 0, 2, 3, 9)] == [0, 2, 3, 3, 5, 5]
    take(queue)
    queue.leave(take(queue))
    assert [queue.count(priority) for priority in (-1, 0, 3)] == [0, 1, 3]


def test_what_is_still_compiling_blocks_nobody() -> None:
    queue = WaitingQueue()
    compilation: Future[Any] = Future()
    compiling, ready = waiting(compilation=compilation), waiting()
    for group in (compiling, ready):
        queue.add(group.sequences[0])
    assert queue.best() is ready.sequences[0]
    compilation.set_result(None)
    assert queue.best() is compiling.sequences[0]


def test_a_further_output_waits_for_the_prompt_of_the_first() -> None:
    queue = WaitingQueue()
    group = waiting(n=2)
    for sequence in group.sequences:
        queue.add(sequence)
    first = take(queue)
    assert first.index == 0
    assert queue.best() is None
    first.output.append(7)
    assert queue.best() is group.sequences[1]


def test_tenants_take_turns_by_what_they_have_had() -> None:
    queue = WaitingQueue()
    for _ in range(6):
        queue.add(waiting("big").sequences[0])
    for _ in range(6):
        queue.add(waiting("small").sequences[0])
    order = []
    for _ in range(9):
        sequence = take(queue)
        order.append(sequence.tenant)
        queue.charge(sequence.tenant, 200 if sequence.tenant == "big" else 100)
    assert order == ["big", "small", "small", "big", "small", "small", "big", "small", "small"]


def test_a_tenant_that_comes_back_keeps_its_debt_and_has_not_saved() -> None:
    queue = WaitingQueue()
    steady = [waiting("steady").sequences[0] for _ in range(3)]
    for sequence in steady:
        queue.add(sequence)
    once = waiting("visitor").sequences[0]
    queue.add(once)
    queue.charge("visitor", 500)
    queue.leave(once)
    queue.leave(once)
    queue.charge("visitor", 5000)  # it is gone
    again = waiting("visitor").sequences[0]
    queue.add(again)
    assert queue.served("visitor") == 500
    queue.leave(again)
    queue.charge("steady", 1000)
    queue.add(waiting("visitor").sequences[0])
    assert queue.served("visitor") == queue.served("steady") == 1000
    for sequence in [*steady, *queue]:
        queue.leave(sequence)
    assert queue.served("steady") == 0
    assert not queue._served


@pytest.mark.parametrize("started", [False, True])
def test_a_tenant_is_busy_until_its_last_sequence_has_ended(started: bool) -> None:
    queue = WaitingQueue()
    sequence = waiting("a").sequences[0]
    queue.add(sequence)
    queue.charge("a", 10)
    if started:
        queue.discard(sequence)
        assert queue.served("a") == 10
    queue.leave(sequence)
    assert queue.served("a") == 0
    assert len(queue) == 0
    assert list(queue) == []
