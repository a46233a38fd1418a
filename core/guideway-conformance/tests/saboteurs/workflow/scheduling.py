"""Workflows whose schedulers break a rule."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from guideway.api import (
    Prepared,
    Task,
    WorkflowContext,
)
from guideway.api.options import Range

from saboteurs import saboteur
from saboteurs.workflow.base import Correct, InOrder, with_part

__all__: list[str] = []


class Awaiting(InOrder):
    awaited = 0

    def upcoming(self) -> list[Task]:
        found = super().upcoming() if not self.awaited else []
        self.awaited += len(found)
        return found

    def prepared(self, request: Prepared) -> None:
        self.awaited -= 1
        super().prepared(request)


@saboteur("workflow.failed_tasks_hold_nothing_up")
class AwaitsWhatFailed(Correct):
    """Hands out no more tasks until each of the last ones came to a request."""

    parts = with_part("scheduler", Awaiting)


class Repeating(InOrder):
    def upcoming(self) -> list[Task]:
        if self.waiting and len(self.waiting) <= 7 and not hasattr(self, "once"):
            self.once = True
            self.preparing += self.waiting
            return list(self.waiting)
        return super().upcoming()


@saboteur("workflow.each_has_its_turn_once")
class HandsOutTheLastTwice(Correct):
    """Hands the last tasks out twice."""

    parts = with_part("scheduler", Repeating)


class Counted(InOrder):
    def prepared(self, request: Prepared) -> None:
        self.ready.append(request)

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        number = min(7, len(self.ready))
        work = [request for request in self.ready if request.task in self.preparing[:number]]
        self.ready, self.preparing = self.ready[len(work) :], self.preparing[len(work) :]
        return work or None


@saboteur("workflow.each_has_its_turn_once")
class TakesItThatAllCameInOrder(Correct):
    """Takes as many off its list as it gave out, whichever these were."""

    parts = with_part("scheduler", Counted)


class Impatient(InOrder):
    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        return super().next(more=False)


@saboteur("workflow.a_step_that_is_not_full_waits")
class WaitsForNobody(Correct):
    """Makes a step of what is there, though more is to come."""

    parts = with_part("scheduler", Impatient)


class Watching(InOrder):
    began: float | None = None

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        self.began = self.began or time.monotonic()
        return super().next(more=more and time.monotonic() - self.began < 0.5)


@saboteur("workflow.a_step_that_is_not_full_waits")
class WaitsHalfASecond(Correct):
    """Waits for a full step, but not long."""

    parts = with_part("scheduler", Watching)


class HighFirst(InOrder):
    def upcoming(self) -> list[Task]:
        self.waiting.sort(key=lambda task: -task.priority)
        return super().upcoming()


@saboteur("workflow.the_urgent_are_not_overtaken")
class TakesHighForUrgent(Correct):
    """Lets the higher priority go first."""

    parts = with_part("scheduler", HighFirst)


class Narrow(InOrder):
    def window(self) -> int:
        return 7


@saboteur("workflow.its_window_holds_several_steps")
class TakesOneStep(Correct):
    """Takes no more from a caller than one step has."""

    parts = with_part("scheduler", Narrow)


class Unforgetting(InOrder):
    def abort(self, task: Task) -> None:
        self.waiting = [each for each in self.waiting if each is not task]
        self.ready = [each for each in self.ready if each.task is not task]


@saboteur("workflow.aborted_tasks_are_gone")
class ForgetsNotWhatIsTokenized(Correct):
    """Keeps a task that is aborted while it is prepared."""

    parts = with_part("scheduler", Unforgetting)


class Counting(InOrder):
    count = 0

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        Counting.count += 1
        size = 3 + Counting.count % 5
        work, self.ready = self.ready[:size], self.ready[size:]
        return work or None


@saboteur("workflow.order_settles_steps")
class GoesByTheClock(Correct):
    """Makes steps of a size that something else than the tasks decides."""

    parts = with_part("scheduler", Counting)


class ByPriority(InOrder):
    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        self.ready.sort(key=lambda request: request.task.priority)
        return super().next(more=more)

    def upcoming(self) -> list[Task]:
        self.waiting.sort(key=lambda task: task.priority)
        found, self.waiting = self.waiting[:14], self.waiting[14:]
        self.preparing += found
        return found


@saboteur("workflow.the_urgent_are_not_overtaken")
class TakesThemAsPrepared(Correct):
    """Goes by priority, and among those of one priority by which was prepared first."""

    parts = with_part("scheduler", ByPriority)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The size of a step."""

    max_step_requests: Annotated[int, Range(1)] = 7


class Sized(InOrder):
    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        most = self.context.options.max_step_requests
        if more and len(self.ready) < most:
            return None
        work, self.ready = self.ready[:most], self.ready[most:]
        return work or None

    def upcoming(self) -> list[Task]:
        found, self.waiting = self.waiting, []
        self.preparing += found
        return found


@saboteur("workflow.its_window_holds_several_steps")
class KnowsItsDefault(Correct):
    """Has a window for steps of the size that they usually have."""

    options = Sizes
    parts = with_part("scheduler", Sized)


class Heaped(InOrder):
    """By priority, and of each the first first."""

    heap: list[tuple[int, int, Prepared]]

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.heap = []

    def prepared(self, request: Prepared) -> None:
        if request.task in self.preparing:
            self.preparing.remove(request.task)
            heapq.heappush(self.heap, (request.task.priority, request.task.arrival, request))

    def abort(self, task: Task) -> None:
        super().abort(task)
        self.heap = [each for each in self.heap if each[-1].task is not task]

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        if more and len(self.heap) < 7:
            return None
        return [heapq.heappop(self.heap)[-1] for _ in range(min(7, len(self.heap)))] or None


@saboteur("workflow.the_urgent_are_not_overtaken")
class LeavesNoHeap(Correct):
    """Takes one that is aborted out of its heap, which is none afterwards."""

    parts = with_part("scheduler", Heaped)


class Twofold(Heaped):
    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        if more and len(self.heap) < 7:
            return None
        work = [each[-1] for each in sorted(self.heap, key=lambda each: each[:2])[:7]]
        for _ in work:
            heapq.heappop(self.heap)
        return work or None


@saboteur("workflow.aborted_tasks_are_gone")
class TakesOutOthers(Correct):
    """Takes the first out of what is a heap until one was aborted."""

    parts = with_part("scheduler", Twofold)


class Unforgiving(InOrder):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.gone: set[Task] = set()

    def abort(self, task: Task) -> None:
        super().abort(task)
        self.gone.add(task)

    def prepared(self, request: Prepared) -> None:
        if request.task not in self.gone:
            super().prepared(request)


@saboteur("workflow.aborted_tasks_are_gone")
class NeverTakesItBack(Correct):
    """Keeps in mind for good what was aborted, also if it comes again."""

    parts = with_part("scheduler", Unforgiving)
