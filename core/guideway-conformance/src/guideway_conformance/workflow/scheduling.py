"""The scheduler: everything gets its turn, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guideway.api import Prepared, Task, WorkScheduler

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.workflow.subject import Host, WorkflowSubject

__all__: list[str] = []

ROUNDS = 10_000


def _many(subject: WorkflowSubject, host: Host, number: int) -> list[Task]:
    """Tasks of several tenants and priorities."""
    values = [task.value for task in subject.tasks(host, at_least=1)]
    found = []
    for i in range(number):
        task = subject.task(values[i % len(values)], arrival=i)
        found.append(
            Task(
                request_id=task.request_id,
                kind=task.kind,
                value=task.value,
                params=task.params,
                priority=i % 3,
                tenant=f"tenant {i % 4}",
                arrival=i,
            )
        )
    return found


def _drive(
    scheduler: WorkScheduler,
    host: Host,
    on_upcoming: Callable[[Sequence[Task]], None] = lambda _: None,
    *,
    failing: frozenset[Task] = frozenset(),
) -> tuple[list[Task], list[list[Prepared]]]:
    """All that is handed out to be prepared, and the steps. Of the tasks that are `failing` comes no request."""
    handed: list[Task] = []
    steps: list[list[Prepared]] = []
    for _ in range(ROUNDS):
        upcoming = list(scheduler.upcoming())
        handed += upcoming
        on_upcoming(upcoming)
        for request in host.prepared(upcoming) if upcoming else ():
            if request.task in failing:
                scheduler.abort(request.task)
            else:
                scheduler.prepared(request)
        work = scheduler.next(more=False)
        if work is not None:
            expect(len(work), "it returned a step of nothing, which is None")
            steps.append(list(work))
            scheduler.finished(work)
        elif not upcoming:
            return handed, steps
    raise AssertionError(f"after {ROUNDS} rounds it had not come to an end")


@check("workflow", seconds=60)
def each_has_its_turn_once(subject: WorkflowSubject) -> None:
    """Every task that is added is handed out to be prepared once, and is in one step once; afterwards there is none."""
    host = subject.host()
    tasks = _many(subject, host, 50)
    expect(host.scheduler.next(more=False) is None, "it returned a step of nothing")
    for task in tasks:
        host.scheduler.add(task)
    handed, steps = _drive(host.scheduler, host)
    for what, found in (("handed out", handed), ("in steps", [r.task for work in steps for r in work])):
        numbers = sorted(task.arrival for task in found)
        expect(numbers == list(range(50)), f"of tasks 0 to 49, {what} were {numbers}")
    expect(host.scheduler.window() >= 1, f"its window is {host.scheduler.window()}")


@check("workflow", seconds=60)
def aborted_tasks_are_gone(subject: WorkflowSubject) -> None:
    """A task that is aborted is in no later step, wherever it stood; the others are, and aborting another one is no
    error."""
    host = subject.host()
    tasks = _many(subject, host, 40)
    scheduler = host.scheduler
    scheduler.abort(tasks[0])
    for task in tasks:
        scheduler.add(task)
    gone = {tasks[1], tasks[30]}
    for task in gone:
        scheduler.abort(task)

    def abort(upcoming: Sequence[Task]) -> None:
        for task in upcoming[::5]:
            gone.add(task)
            scheduler.abort(task)

    _, steps = _drive(scheduler, host, abort)
    found = [request.task for work in steps for request in work]
    expect(not gone & set(found), "a task that was aborted was in a later step")
    expect(set(tasks) - gone == set(found), "a task that was not aborted was in no step")
    for task in tasks:
        scheduler.abort(task)
    expect(scheduler.next(more=False) is None, "after all were aborted there was a step")


@check("workflow", seconds=60)
def failed_tasks_hold_nothing_up(subject: WorkflowSubject) -> None:
    """A task that is aborted after it was handed out, as no request came of it, is in no step; the others are, however
    many failed."""
    host = subject.host()
    for places in (range(0, 40, 3), range(20), range(20, 40), range(39)):
        tasks = _many(subject, host, 40)
        scheduler = subject.part("scheduler")
        for task in tasks:
            scheduler.add(task)
        _, steps = _drive(scheduler, host, failing=frozenset(tasks[i] for i in places))
        found = sorted(request.task.arrival for work in steps for request in work)
        expect(
            found == sorted(set(range(40)) - set(places)),
            f"of tasks 0 to 39, {[*places]} came to no request, and in steps were {found}",
        )


@check("workflow", seconds=60)
def order_settles_steps(subject: WorkflowSubject) -> None:
    """The same tasks in the same order give the same steps."""
    host = subject.host()
    tasks = _many(subject, host, 50)
    found = []
    for _ in range(2):
        scheduler = subject.part("scheduler")
        for task in tasks:
            scheduler.add(task)
        _, steps = _drive(scheduler, host)
        found.append([[request.task.arrival for request in work] for work in steps])
    expect(found[0] == found[1], f"once the steps were {found[0]}, and once {found[1]}")
