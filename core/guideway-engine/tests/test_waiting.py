"""Order of the waiting queue."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from guideway.api import Request, SamplingParams
from guideway.runtime.admission.admission import Admission
from guideway_engine.scheduling.sequence import SequenceGroup, SequenceState
from guideway_engine.scheduling.waiting import ServedTokens, WaitingQueue

arrivals = iter(range(10**6))


def waiting(tenant: str = "", priority: int = 0, compilation: Future[Any] | None = None, n: int = 1) -> SequenceGroup:
    arrival = next(arrivals)
    params = SamplingParams(priority=priority, n=n)
    request = Request(request_id=str(arrival), prompt_token_ids=(1,), params=params, tenant=tenant)
    return SequenceGroup(
        Admission(request, compilation, (), ()), arrival=arrival, max_tokens=5, stop_token_ids=frozenset(), inbox=[]
    )


class Queue:
    """Waiting sequences and the tokens served to tenants, as in `SequenceTable`."""

    def __init__(self) -> None:
        self.waiting: WaitingQueue[SequenceState] = WaitingQueue()
        self.served = ServedTokens()

    def add(self, sequence: SequenceState) -> None:
        self.served.enter(sequence)
        self.waiting.add(sequence)

    def leave(self, sequence: SequenceState) -> None:
        self.waiting.discard(sequence)
        self.served.leave(sequence)

    def best(self) -> SequenceState | None:
        return next((sequence for sequence in self.waiting.in_turn(self.served) if sequence.ready()), None)

    def take(self) -> SequenceState:
        best = self.best()
        assert best is not None
        self.waiting.discard(best)
        return best


def test_priority_first_then_arrival() -> None:
    queue = Queue()
    groups = [waiting(priority=p) for p in (3, -1, 3, 0, -1)]
    for group in groups:
        queue.add(group.sequences[0])
    assert len(queue.waiting) == 5
    assert [queue.take().group for _ in groups] == [groups[i] for i in (1, 4, 3, 0, 2)]
    assert queue.best() is None


def test_of_tenants_that_have_had_as_much_the_first_to_come_goes_first() -> None:
    queue = Queue()
    sequences = [waiting(tenant).sequences[0] for tenant in ("b", "a", "b", "c", "a")]
    for sequence in sequences:
        queue.add(sequence)
    assert [queue.take() for _ in sequences] == sequences


def test_one_that_is_added_late_waits_where_it_came() -> None:
    queue = Queue()
    sequences = [waiting("a").sequences[0] for _ in range(5)]
    for i in (1, 3, 0, 4, 2):
        queue.add(sequences[i])
    assert [queue.take() for _ in sequences] == sequences


def test_an_interrupted_change_leaves_a_queue_that_works() -> None:
    queue = Queue()
    sequence = waiting("a").sequences[0]
    queue.add(sequence)
    queue.waiting._queues[0]["b"] = {}  # left by an interrupt in `add` or `discard`
    assert queue.best() is sequence
    queue.leave(sequence)
    assert not queue.waiting
    assert (len(queue.waiting), queue.best()) == (0, None)


def test_those_of_the_same_or_a_better_priority_are_counted() -> None:
    queue = Queue()
    for priority in (3, -1, 3, 0, -1):
        queue.add(waiting("a" if priority else "b", priority=priority, n=2).sequences[0])
    assert [queue.waiting.count(priority) for priority in (-2, -1, 0, 2, 3, 9)] == [0, 2, 3, 3, 5, 5]
    queue.take()
    queue.leave(queue.take())
    assert [queue.waiting.count(priority) for priority in (-1, 0, 3)] == [0, 1, 3]


def test_what_is_still_compiling_blocks_nobody() -> None:
    queue = Queue()
    compilation: Future[Any] = Future()
    compiling, ready = waiting(compilation=compilation), waiting()
    for group in (compiling, ready):
        queue.add(group.sequences[0])
    assert queue.best() is ready.sequences[0]
    compilation.set_result(None)
    assert queue.best() is compiling.sequences[0]


def test_a_further_output_waits_for_the_prompt_of_the_first() -> None:
    queue = Queue()
    group = waiting(n=2)
    for sequence in group.sequences:
        queue.add(sequence)
    first = queue.take()
    assert first.index == 0
    assert queue.best() is None
    first.output.append(7)
    assert queue.best() is group.sequences[1]


def test_tenants_take_turns_by_what_they_have_had() -> None:
    queue = Queue()
    for _ in range(6):
        queue.add(waiting("big").sequences[0])
    for _ in range(6):
        queue.add(waiting("small").sequences[0])
    order = []
    for _ in range(9):
        sequence = queue.take()
        order.append(sequence.tenant)
        queue.served.charge(sequence.tenant, 200 if sequence.tenant == "big" else 100)
    assert order == ["big", "small", "small", "big", "small", "small", "big", "small", "small"]


def test_a_tenant_that_comes_back_keeps_its_debt_and_has_not_saved() -> None:
    queue = Queue()
    steady = [waiting("steady").sequences[0] for _ in range(3)]
    for sequence in steady:
        queue.add(sequence)
    once = waiting("visitor").sequences[0]
    queue.add(once)
    queue.served.charge("visitor", 500)
    queue.leave(once)
    queue.leave(once)
    queue.served.charge("visitor", 5000)  # no effect, because it has left
    again = waiting("visitor").sequences[0]
    queue.add(again)
    assert queue.served("visitor") == 500
    queue.leave(again)
    queue.served.charge("steady", 1000)
    queue.add(waiting("visitor").sequences[0])
    assert queue.served("visitor") == queue.served("steady") == 1000
    for sequence in [*steady, *queue.waiting]:
        queue.leave(sequence)
    assert queue.served("steady") == 0
    assert not queue.served._served


@pytest.mark.parametrize("started", [False, True])
def test_a_tenant_is_busy_until_its_last_sequence_has_ended(started: bool) -> None:
    queue = Queue()
    sequence = waiting("a").sequences[0]
    queue.add(sequence)
    queue.served.charge("a", 10)
    if started:
        queue.waiting.discard(sequence)
        assert queue.served("a") == 10
    queue.leave(sequence)
    assert queue.served("a") == 0
    assert len(queue.waiting) == 0
    assert list(queue.waiting) == []
