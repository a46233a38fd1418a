"""Replacements for parts of a workflow, named in a configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from threading import Event, Semaphore, current_thread, main_thread
from typing import Any, ClassVar, cast

from guideway.api import GuidewayError, Prepared, Task
from guideway_engine.prefill.forward import Ragged
from guideway_engine.prefill.inputs import TextInputs
from guideway_engine.prefill.outputs import Embeddings
from guideway_engine.prefill.requests import Tokenizing
from guideway_engine.prefill.runner import PoolingRunner
from guideway_engine.prefill.scheduler import PrefillScheduler

POISON = 5 + 13
"""Token id of the word ``w13``."""


class PoisonedRunner(PoolingRunner):
    """Fails in a step that contains the poison."""

    def execute(self, step: Ragged) -> Any:
        if POISON in step.token_ids:
            raise RuntimeError("poison")
        return super().execute(step)


class DeadlyRunner(PoolingRunner):
    """Exits the process in a step that contains the poison."""

    def execute(self, step: Ragged) -> Any:
        if POISON in step.token_ids:
            os._exit(1)
        return super().execute(step)


class NotFinite(PoolingRunner):
    """Returns NaN for inputs that contain the poison."""

    def execute(self, step: Ragged) -> Any:
        output = super().execute(step)
        ends = step.lengths.cumsum()
        for index, (end, length) in enumerate(zip(ends, step.lengths, strict=True)):
            if POISON in step.token_ids[end - length : end]:
                output[index] = float("nan")
        return output


class BrokenTokenizing(Tokenizing):
    """Raises if any text of the batch is broken."""

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        if any(task.value == "broken" for task in tasks):
            raise RuntimeError("broken")
        return super().prepare(tasks)


class Interrupted:
    """Interrupts the main thread once, as Ctrl-C does, while it drives the inputs of two callers."""

    at: ClassVar[str] = ""
    """Method to interrupt: ``prepare`` or ``results``; empty: none."""

    @classmethod
    def here(cls, where: str, tasks: Sequence[Task]) -> None:
        is_shared = {"first", "second"} <= {task.tenant for task in tasks}
        if cls.at == where and is_shared and current_thread() is main_thread():
            cls.at = ""
            raise KeyboardInterrupt


class InterruptedTokenizing(Tokenizing):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        Interrupted.here("prepare", tasks)
        return super().prepare(tasks)


class InterruptedOutputs(Embeddings):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        Interrupted.here("results", [request.task for request in work])
        return super().results(work, output)


class BreaksOnce(PrefillScheduler):
    """Raises once, at the end of the first step or in the first call of `next`."""

    at: ClassVar[str] = ""

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        self._break("next")
        return super().next(more=more)

    def finished(self, work: Sequence[Prepared]) -> None:
        self._break("finished")
        super().finished(work)

    @classmethod
    def _break(cls, where: str) -> None:
        if cls.at == where:
            cls.at = ""
            raise ValueError("broken")


class Startled(TextInputs):
    def check(self, task: Task) -> None:
        if task.value == "poison":
            raise KeyError("startled")
        super().check(task)


class Picky(PrefillScheduler):
    def add(self, task: Task) -> None:
        if task.value == "poison":
            raise KeyError("picky")
        super().add(task)


class Nothing(Tokenizing):
    """Returns None as the request of one text."""

    def prepare(self, tasks: Sequence[Task]) -> list[Any]:
        made = super().prepare(tasks)
        return [self.made(one) if task.value == "poison" else one for task, one in zip(tasks, made, strict=True)]

    def made(self, _request: Prepared | GuidewayError) -> Any:
        return None


class Mistaken(Nothing):
    """Returns a foreign error as the request of one text."""

    def made(self, _request: Prepared | GuidewayError) -> Any:
        return ValueError("mistaken")


class ReturnsNone(Embeddings):
    """Returns None as one result."""

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        found = super().results(work, output)
        return [self.made() if req.task.value == "poison" else one for req, one in zip(work, found, strict=True)]

    def made(self) -> Any:
        return None


class ReturnsErrors(ReturnsNone):
    def made(self) -> Any:
        return ValueError("returned")


class Unspeaking(Embeddings):
    def failed(self, task: Task, error: GuidewayError) -> Any:
        raise KeyError("of no error")


class RecordingScheduler(PrefillScheduler):
    """Records the tasks of each step."""

    steps: ClassVar[list[list[Any]]] = []

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        work = super().next(more=more)
        if work is not None:
            self.steps.append([request.task.value for request in work])
        return work


class Forgetful(Embeddings):
    """Returns too few results."""

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any | GuidewayError]:
        return super().results(work, output)[:-1]


class BrokenScheduler(PrefillScheduler):
    """Raises in the first step."""

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        if self._requests:
            raise RuntimeError("the scheduler is broken")
        return None


class BrokenForGood(PrefillScheduler):
    def upcoming(self) -> list[Task]:
        raise RuntimeError("broken for good")

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        raise RuntimeError("broken for good")


class Gate:
    """Lets a test block `GatedRunner` and follow its progress."""

    tickets = Semaphore()
    reached = Event()
    steps: ClassVar[int] = 0


class GatedRunner(PoolingRunner):
    """Acquires a ticket for each step."""

    def execute(self, step: Any) -> Any:
        Gate.reached.set()
        Gate.tickets.acquire(timeout=60)
        Gate.steps += 1
        return super().execute(step)


class Headless(Nothing):
    """Returns a request whose token ids are None for one text."""

    def made(self, request: Prepared | GuidewayError) -> Any:
        assert isinstance(request, Prepared)
        return replace(request, token_ids=cast("Any", None))


class Unforgetting(PrefillScheduler):
    """Raises in `abort`."""

    def abort(self, task: Task) -> None:
        super().abort(task)
        raise KeyError("unforgetting")


class Startling(PrefillScheduler):
    """Raises when the request of one text is ready."""

    def prepared(self, request: Prepared) -> None:
        if request.task.value == "poison":
            raise KeyError("startling")
        super().prepared(request)


class Losing(PrefillScheduler):
    """Drops one text."""

    def prepared(self, request: Prepared) -> None:
        if request.task.value == "poison":
            self.abort(request.task)
        else:
            super().prepared(request)


class Hesitant(PrefillScheduler):
    """Never returns one text to be prepared."""

    def add(self, task: Task) -> None:
        if task.value != "poison":
            super().add(task)
