"""Only the order and the budgets determine the requests of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guideway.api import ModelFolder, Prepared, Task, WorkflowContext
from guideway_engine.prefill.scheduler import PrefillScheduler
from guideway_engine.prefill.workflows import PrefillOptions


def made(**options: Any) -> PrefillScheduler:
    given = PrefillOptions(**{"max_step_tokens": 10, "max_step_requests": 3} | options)
    return PrefillScheduler(WorkflowContext(model=ModelFolder(Path(), {}), max_model_len=100, options=given))


def task(arrival: int, **fields: Any) -> Task:
    return Task(request_id=str(arrival), kind="embed", value="x", arrival=arrival, **fields)


def prepare(scheduler: PrefillScheduler, lengths: dict[Task, int]) -> None:
    while upcoming := scheduler.upcoming():
        for each in upcoming:
            scheduler.prepared(Prepared(task=each, token_ids=np.zeros(lengths[each], dtype=np.int64)))


def steps(scheduler: PrefillScheduler, lengths: dict[Task, int]) -> list[list[int]]:
    found = []
    while True:
        prepare(scheduler, lengths)
        work = scheduler.next(more=False)
        if work is None:
            return found
        found.append([request.task.arrival for request in work])
        scheduler.finished(work)


def run(lengths: dict[Task, int], **options: Any) -> list[list[int]]:
    scheduler = made(**options)
    for each in lengths:
        scheduler.add(each)
    return steps(scheduler, lengths)


def test_first_come_first_served_under_both_budgets() -> None:
    sizes = [4, 4, 4, 1, 1, 1, 50, 10, 1]
    assert run({task(i): size for i, size in enumerate(sizes)}) == [[0, 1], [2, 3, 4], [5], [6], [7], [8]]


def test_lower_priorities_go_first() -> None:
    tasks = {task(i, priority=priority): 1 for i, priority in enumerate([1, 0, 1, 0, -1])}
    assert run(tasks) == [[4, 1, 3], [0, 2]]


def test_a_tenant_with_much_waits_for_one_with_little() -> None:
    tasks = {task(i, tenant="much"): 5 for i in range(20)} | {task(20 + i, tenant="little"): 5 for i in range(2)}
    found = [arrival for step in run(tasks, max_step_requests=1) for arrival in step]
    assert {found.index(20), found.index(21)} <= set(range(5))


@pytest.mark.parametrize("coming", ["more", "waiting", "preparing"])
def test_a_step_that_is_not_full_waits_for_what_comes(coming: str) -> None:
    scheduler = made()
    lengths = {task(i): 1 for i in range(2)}
    first, second = lengths
    scheduler.add(first)
    prepare(scheduler, lengths)
    if coming != "more":
        scheduler.add(second)
    if coming == "preparing":
        assert scheduler.upcoming() == [second]
    assert scheduler.next(more=coming == "more") is None
    if coming == "preparing":
        scheduler.abort(second)
    else:
        prepare(scheduler, lengths)
    assert scheduler.next(more=False) is not None


def test_few_are_prepared_ahead_and_an_aborted_one_is_gone() -> None:
    scheduler = made()
    tasks = [task(i) for i in range(100)]
    for each in tasks:
        scheduler.add(each)
    upcoming = scheduler.upcoming()
    assert upcoming == tasks[:6] and scheduler.upcoming() == []
    for each in tasks[1:]:
        scheduler.abort(each)
    for each in upcoming:
        scheduler.prepared(Prepared(task=each, token_ids=np.zeros(1, dtype=np.int64)))
    work = scheduler.next(more=False)
    assert work is not None and [request.task for request in work] == tasks[:1]
    scheduler.finished(work)
    assert scheduler.next(more=False) is None and not scheduler._served._busy
