"""The scheduler: everything gets its turn, once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from guideway.api import Prepared, Task, WorkflowContext, WorkScheduler

from guideway_conformance.clock import HOURS, clock_moved
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.workflow.subject import Host, WorkflowSubject, with_other_options

__all__: list[str] = []

ROUNDS = 10_000
BUSY = 36
"""So often a host that is busy is played."""
BACKLOGS = (3, 12, 40, 72, 96)
"""The tasks that it has."""
BUDGET = "max_step_tokens"
"""The option of the engine's schedulers, and of those that follow them, with the most tokens of a step."""


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
    piecemeal: bool = False,
) -> tuple[list[Task], list[list[Prepared]]]:
    """All that is handed out to be prepared, and the steps. Of the tasks that are `failing` comes no request.
    `piecemeal`: the last is prepared first, and after each a step is asked for."""
    handed: list[Task] = []
    steps: list[list[Prepared]] = []
    for _ in range(ROUNDS):
        upcoming = list(scheduler.upcoming())
        handed += upcoming
        on_upcoming(upcoming)
        requests = host.prepared(upcoming) if upcoming else []
        for request in reversed(requests) if piecemeal else requests:
            if request.task in failing:
                scheduler.abort(request.task)
            else:
                scheduler.prepared(request)
            if piecemeal:
                _take(scheduler, steps)
        if not _take(scheduler, steps) and not upcoming:
            return handed, steps
    raise AssertionError(f"after {ROUNDS} rounds it had not come to an end")


def _take(scheduler: WorkScheduler, steps: list[list[Prepared]]) -> bool:
    """Take the next step, if there is one, and say whether there was."""
    work = scheduler.next(more=False)
    if work is None:
        return False
    expect(len(work), "it returned a step of nothing, which is None")
    steps.append(list(work))
    scheduler.finished(work)
    return True


class _Busy:
    """A host whose callers come and give up at any time, and which prepares requests in any order; the moves are drawn
    by `seed`. `alike`: its tasks are of one value and tenant, and have priorities."""

    def __init__(self, subject: WorkflowSubject, host: Host, seed: int, *, alike: bool = False) -> None:
        self.chance = random.Random(seed)
        self.scheduler: WorkScheduler = subject.part("scheduler")
        number = self.chance.choice(BACKLOGS)
        priorities = [self.chance.randint(-2, 2) for _ in range(number)]
        many = _alike(subject, host, number) if alike else _many(subject, host, number)
        self.tasks = [replace(task, priority=priority) for task, priority in zip(many, priorities, strict=True)]
        of_values = host.prepared(self.tasks[:1] if alike else subject.tasks(host, at_least=1))
        self.requests = {task: replace(of_values[i % len(of_values)], task=task) for i, task in enumerate(self.tasks)}
        self.coming = self.tasks[:]
        self.under_way: list[Task] = []
        self.handed: list[Task] = []
        self.ready: list[Task] = []
        self.gone: set[Task] = set()
        self.computed: list[Task] = []
        self.computing: list[list[Prepared]] = []
        self.overtaken = ""
        """The first request that was overtaken by one which came later and was no more urgent, in words."""

    def serve(self) -> None:
        """Serve until all are gone or computed."""
        if self.chance.random() < 0.5:  # a backlog: all are there and prepared before anything is computed
            self.come(len(self.coming))
            while self.hand_out():
                self.prepare(len(self.handed))
            self.give_up(self.chance.choice((1, 1, 2, 5)))
        while self.coming:
            self.come(self.chance.choice((1, 1, 3, 20)))
            for _ in range(self.chance.randint(0, 3)):
                self.move()
        for _ in range(ROUNDS):
            came = self.hand_out()
            self.prepare(len(self.handed))
            if not self.compute(more=False) and not came:
                break
            if self.chance.random() < 0.1:
                self.give_up(1)
        left = [task.arrival for task in self.tasks if task not in self.gone and task not in self.computed]
        expect(
            not left, f"tasks {left} of {len(self.tasks)}, which were not aborted as {self.said} were, are in no step"
        )

    @property
    def said(self) -> str:
        return f"{sorted(task.arrival for task in self.gone)}"

    def move(self) -> None:
        which = self.chance.random()
        if which < 0.3:
            self.hand_out()
        elif which < 0.6:
            self.prepare(self.chance.randint(0, len(self.handed)))
        elif which < 0.9:
            self.compute(more=self.chance.random() < 0.5)
        elif which < 0.92:
            self.begin_again()
        else:
            self.give_up(self.chance.choice((1, 1, 2, 5)))

    def come(self, number: int) -> None:
        for task in self.coming[:number]:
            self.scheduler.add(task)
            self.under_way.append(task)
        self.coming = self.coming[number:]

    def hand_out(self) -> bool:
        upcoming = list(self.scheduler.upcoming())
        for task in upcoming:
            expect(task in self.under_way, f"task {task.arrival} was handed out, and it is aborted or was before")
            self.under_way.remove(task)
        self.handed += upcoming
        return bool(upcoming)

    def prepare(self, number: int) -> None:
        self.chance.shuffle(self.handed)
        for task in self.handed[:number]:
            self.scheduler.prepared(self.requests[task])
            if task not in self.gone:
                self.ready.append(task)
        self.handed = self.handed[number:]

    def give_up(self, number: int) -> None:
        """Abort tasks, wherever they stand, also such as are computed or have been."""
        for task in self.chance.sample(self.tasks, min(number, len(self.tasks))):
            if task in self.coming:
                continue
            self.scheduler.abort(task)
            self.gone |= {task} - set(self.computed)
            for of_them in (self.under_way, self.ready):
                if task in of_them:
                    of_them.remove(task)

    def begin_again(self) -> None:
        """Abort all that is under way and add it once more, as a host does that was interrupted."""
        for work in self.computing:
            self.scheduler.finished(work)
        again = [task for task in self.tasks if task in self.under_way or task in self.handed or task in self.ready]
        again = [task for task in again if task not in self.gone]
        for task in again:
            self.scheduler.abort(task)
            self.scheduler.add(task)
        self.under_way, self.handed, self.ready, self.computing = again, [], [], []

    def compute(self, *, more: bool) -> bool:
        """Take a step; the one before it is over now, or was."""
        work = self.scheduler.next(more=more)
        if self.computing and (work is None or self.chance.random() < 0.7):
            self.scheduler.finished(self.computing.pop(0))
        if work is None:
            return False
        expect(len(work), "it returned a step of nothing, which is None")
        for request in work:
            task = request.task
            expect(task not in self.gone, f"task {task.arrival}, which was aborted, was in a later step")
            expect(task not in self.computed, f"task {task.arrival} was in two steps, after {self.said} were aborted")
            expect(task in self.ready, f"task {task.arrival} was in a step, and was not prepared")
            self.ready.remove(task)
            self.computed.append(task)
        for request in work:
            for left in self.ready:
                if left.arrival < request.task.arrival and left.priority <= request.task.priority:
                    self.overtaken = self.overtaken or (
                        f"after {self.said} were aborted, {left.arrival} of priority {left.priority} was in a later "
                        f"step than {request.task.arrival} of priority {request.task.priority}"
                    )
        self.computing.append(list(work))
        return True


@check("workflow", seconds=60)
@with_other_options
def each_has_its_turn_once(subject: WorkflowSubject) -> None:
    """Every task that is added is handed out to be prepared once, and is in one step once, however long it is, whatever
    is prepared first, and whenever a step is asked for; afterwards there is none."""
    host = subject.host()
    tasks = _many(subject, host, 50)
    expect(host.scheduler.next(more=False) is None, "it returned a step of nothing")
    for context in (subject.context, _of_one_token(subject.context)):
        for piecemeal in (False, True):
            scheduler = subject.part("scheduler", context)
            for task in tasks:
                scheduler.add(task)
            handed, steps = _drive(scheduler, host, piecemeal=piecemeal)
            when = f"{', prepared one by one, the last first' * piecemeal}{_said(context, subject.context)}"
            for what, found in (("handed out", handed), ("in steps", [r.task for work in steps for r in work])):
                numbers = sorted(task.arrival for task in found)
                expect(numbers == list(range(50)), f"of tasks 0 to 49{when}, {what} were {numbers}")


def _of_one_token(context: WorkflowContext) -> WorkflowContext:
    """`context`, with a budget so small that every request is longer, if the workflow has such an option."""
    if not hasattr(context.options, BUDGET):
        return context
    return replace(context, options=replace(context.options, **{BUDGET: 1}))


def _said(context: WorkflowContext, usual: WorkflowContext) -> str:
    return "" if context is usual else f", each of them longer than {BUDGET}"


def _alike(subject: WorkflowSubject, host: Host, number: int, **fields: Any) -> list[Task]:
    """Tasks of one value, in the order in which they come. `fields`: their values, one for each task."""
    value = subject.tasks(host, at_least=1)[0].value
    tasks = [subject.task(value, arrival=i) for i in range(number)]
    for name, values in fields.items():
        tasks = [replace(task, **{name: each}) for task, each in zip(tasks, values, strict=True)]
    return tasks


@check("workflow", seconds=60)
@with_other_options
def a_step_that_is_not_full_waits(subject: WorkflowSubject) -> None:
    """A step that is not full waits while there is more to come, however long that takes, and no longer than that."""
    host = subject.host()
    scheduler = subject.part("scheduler")
    for task in _alike(subject, host, 50):
        scheduler.add(task)
    most = max(len(work) for work in _drive(scheduler, host)[1])
    for number in range(1, min(most, 4)):
        scheduler = subject.part("scheduler")
        tasks = _alike(subject, host, number)
        for task in tasks:
            scheduler.add(task)
        while upcoming := scheduler.upcoming():
            for request in host.prepared(upcoming):
                scheduler.prepared(request)
        what = f"{number} of the {most} requests that a step may have"
        expect(scheduler.next(more=True) is None, f"of {what} it made a step while more were to come")
        with clock_moved(type(scheduler), HOURS):
            expect(scheduler.next(more=True) is None, f"of {what} it made a step, when time had passed")
        work = scheduler.next(more=False)
        found = [request.task for request in work or ()]
        expect(set(found) == set(tasks), f"no more was to come, and of {what} {len(found)} were in the next step")


@check("workflow", seconds=60)
@with_other_options
def the_urgent_are_not_overtaken(subject: WorkflowSubject) -> None:
    """A scheduler that goes by priority lets the lower go first: among a tenant's requests of one size, none is
    computed before one that is prepared, in whatever order, came earlier and has a priority as low or lower."""
    host = subject.host()
    priorities = [(7 * i) % 5 - 2 for i in range(60)]
    scheduler = subject.part("scheduler")
    for task in _alike(subject, host, 60, priority=priorities):
        scheduler.add(task)
    order = [request.task for work in _drive(scheduler, host)[1] for request in work]
    for place, task in enumerate(order):
        for later in order[place + 1 :]:
            expect(
                later.arrival > task.arrival or later.priority > task.priority,
                f"request {later.arrival} of priority {later.priority} was computed after request {task.arrival} of "
                f"priority {task.priority}",
            )
    ahead = any(
        later.arrival < task.arrival for place, task in enumerate(order) for later in order[place + 1 :]
    )  # else it does not go by priority
    for seed in range(3 if ahead else 0):
        _expect_order_of_arrival(subject, host, priorities, seed)
    for seed in range(BUSY // 2 if ahead else 0):
        busy = _Busy(subject, host, seed, alike=True)
        busy.serve()
        expect(not busy.overtaken, busy.overtaken)


def _expect_order_of_arrival(subject: WorkflowSubject, host: Host, priorities: Sequence[int], seed: int) -> None:
    """That in whatever order requests are prepared, none is in an earlier step than one that was prepared as well, came
    earlier and is as urgent."""
    scheduler = subject.part("scheduler")
    for task in _alike(subject, host, len(priorities), priority=priorities if seed else [0] * len(priorities)):
        scheduler.add(task)
    ready: list[Task] = []
    for _ in range(ROUNDS):
        upcoming = list(scheduler.upcoming())
        requests = host.prepared(upcoming)[::-1] if upcoming else []
        if seed > 1:
            random.Random(seed).shuffle(requests)
        for request in requests:
            scheduler.prepared(request)
        ready += upcoming
        work = scheduler.next(more=False)
        if work is None and not upcoming:
            return
        step = [request.task for request in work or ()]
        ready = [task for task in ready if task not in step]
        for task in step:
            for left in ready:
                expect(
                    left.arrival > task.arrival or left.priority > task.priority,
                    f"of requests that were prepared in another order than they came, {left.arrival} of priority "
                    f"{left.priority} was in a later step than {task.arrival} of priority {task.priority}",
                )
        if work is not None:
            scheduler.finished(work)
    raise AssertionError(f"after {ROUNDS} rounds it had not come to an end")


@check("workflow")
@with_other_options
def its_window_holds_several_steps(subject: WorkflowSubject) -> None:
    """The window of a scheduler is enough for several full steps: at least two of the largest."""
    host = subject.host()
    for task in _alike(subject, host, 300):
        host.scheduler.add(task)
    most = max(len(work) for work in _drive(host.scheduler, host)[1])
    window = host.scheduler.window()
    expect(window >= 2 * min(most, 150), f"its window is {window}, and a step had {most} requests")


@check("workflow", seconds=60)
@with_other_options
def aborted_tasks_are_gone(subject: WorkflowSubject) -> None:
    """A task that is aborted is in no later step, wherever it stood, and however many are prepared; the others are in
    one, as is one that is added again, and aborting another one is no error."""
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
    for seed in range(BUSY):
        _Busy(subject, host, seed).serve()


@check("workflow", seconds=60)
@with_other_options
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
@with_other_options
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
