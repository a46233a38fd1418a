"""The scheduler of prefill-only workflows: first come, first served, with budgets of tokens and requests per step."""

from __future__ import annotations

from collections.abc import Sequence

from guideway.api.workflow import Prepared, Task, WorkflowContext, WorkScheduler

from guideway_engine.scheduling.waiting import ServedTokens, WaitingQueue

__all__ = ["PrefillScheduler"]

STEPS_AHEAD = 2
"""Number of full steps whose requests are prepared ahead."""

STEPS_OF_A_CALLER = 8
"""Number of full steps that one caller's pending tasks may fill."""

BATCH_CHARACTERS = 1 << 18
"""Characters that are tokenized in one batch, so that later tasks do not wait long."""


class PrefillScheduler(WorkScheduler):
    """Schedules lower priorities first, then the tenant that was served least, then by arrival. The order and the
    budgets alone determine a step, never time: a step that is not full waits while more tasks are about to come."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self._waiting: WaitingQueue[Task] = WaitingQueue()
        self._preparing: set[Task] = set()
        self._ready: WaitingQueue[Task] = WaitingQueue()
        self._requests: dict[Task, Prepared] = {}
        self._served = ServedTokens()

    def add(self, task: Task) -> None:
        self._served.enter(task)
        self._waiting.add(task)

    def upcoming(self) -> list[Task]:
        wanted = STEPS_AHEAD * self.context.options.max_step_requests - len(self._requests) - len(self._preparing)
        found: list[Task] = []
        size = 0
        if wanted > 0:
            for task in self._waiting.in_turn(self._served):
                if len(found) == wanted or size > BATCH_CHARACTERS:
                    break
                found.append(task)
                size += len(task.value) if isinstance(task.value, str) else 1
        for task in found:
            self._waiting.discard(task)
        self._preparing.update(found)
        return found

    def prepared(self, request: Prepared) -> None:
        if request.task in self._preparing:  # otherwise it was aborted meanwhile
            self._preparing.discard(request.task)
            self._requests[request.task] = request
            self._ready.add(request.task)

    def abort(self, task: Task) -> None:
        self._waiting.discard(task)
        self._preparing.discard(task)
        self._ready.discard(task)
        self._requests.pop(task, None)
        self._served.leave(task)

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        options = self.context.options
        work: list[Prepared] = []
        num_tokens = 0
        full = False
        for task in self._ready.in_turn(self._served):
            request = self._requests[task]
            full = bool(work) and num_tokens + request.num_tokens > options.max_step_tokens
            if full:
                break
            work.append(request)
            num_tokens += request.num_tokens
            full = len(work) == options.max_step_requests
            if full:
                break
        if not work or (not full and (more or self._waiting or self._preparing)):
            return None
        for request in work:
            self._ready.discard(request.task)
            del self._requests[request.task]
            self._served.charge(request.task.tenant, request.num_tokens)
        return work

    def finished(self, work: Sequence[Prepared]) -> None:
        for request in work:
            self._served.leave(request.task)

    def window(self) -> int:
        return STEPS_OF_A_CALLER * int(self.context.options.max_step_requests)
