"""Workflows with one bug each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidRequest,
    LimitExceeded,
    ModelFolder,
    OutputProcessor,
    Prepared,
    RequestProcessor,
    StepBuilder,
    Task,
    Workflow,
    WorkflowContext,
    WorkflowRunner,
    WorkScheduler,
)

from saboteurs import saboteur

__all__: list[str] = []


class Texts(InputProcessor):
    """Takes text alone."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str) or not task.value.isascii():
            raise InvalidRequest("it takes text", field="input")


class Bytes(RequestProcessor):
    """A token for each character."""

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self.one(task) for task in tasks]

    def one(self, task: Task) -> Prepared | GuidewayError:
        if len(task.value) > self.context.max_model_len:
            return LimitExceeded("too long", field="input")
        return Prepared(task=task, token_ids=np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64))


class InOrder(WorkScheduler):
    """First come, first served, seven at a time."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.waiting: list[Task] = []
        self.preparing: list[Task] = []
        self.ready: list[Prepared] = []

    def add(self, task: Task) -> None:
        self.waiting.append(task)

    def upcoming(self) -> list[Task]:
        found, self.waiting = self.waiting[:7], self.waiting[7:]
        self.preparing += found
        return found

    def prepared(self, request: Prepared) -> None:
        if request.task in self.preparing:
            self.preparing.remove(request.task)
            self.ready.append(request)

    def abort(self, task: Task) -> None:
        self.waiting = [each for each in self.waiting if each is not task]
        self.preparing = [each for each in self.preparing if each is not task]
        self.ready = [each for each in self.ready if each.task is not task]

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        work, self.ready = self.ready[:7], self.ready[7:]
        return work or None

    def finished(self, work: Sequence[Prepared]) -> None:
        pass

    def window(self) -> int:
        return 14


class Lists(StepBuilder):
    """The ids of each."""

    def build(self, work: Sequence[Prepared]) -> Any:
        return [request.token_ids for request in work]


class Sums(WorkflowRunner):
    """The sum of each."""

    def load(self) -> None:
        self.weight = 0.5

    def execute(self, step: Any) -> Any:
        return np.array([self.weight * ids.sum() for ids in step])


@dataclass(frozen=True)
class Sum:
    """A result."""

    value: float = 0.0
    error: GuidewayError | None = None


class Results(OutputProcessor):
    """A number of each."""

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [Sum(float(value)) for value in output]

    def failed(self, task: Task, error: GuidewayError) -> Any:
        return Sum(error=error)


CORRECT: Mapping[str, str] = {
    "input_processor": f"{__name__}:Texts",
    "request_processor": f"{__name__}:Bytes",
    "scheduler": f"{__name__}:InOrder",
    "step_builder": f"{__name__}:Lists",
    "runner": f"{__name__}:Sums",
    "output_processor": f"{__name__}:Results",
}


class _Correct(Workflow):
    """Sums, with the parts in which the others differ from it."""

    contract = "1.0"
    name = "sums"
    tasks = ("sum",)
    parts: ClassVar[Mapping[str, str]] = CORRECT

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:  # noqa: ARG003
        return None

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:  # noqa: ARG003
        return 32


class SumsWell(_Correct):
    """Breaks no rule."""


def _with(part: str, cls: str) -> Mapping[str, str]:
    return {**CORRECT, part: f"{__name__}:{cls}"}


class Forgetful(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return super().results(work, output)[1:]


@saboteur("workflow.serves")
class GivesTooFew(_Correct):
    """Gives a result too few."""

    parts = _with("output_processor", "Forgetful")


@saboteur("workflow.supports_says_why")
class ReadsWhatIsNotThere(_Correct):
    """Takes every model's file for complete."""

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config["model_type"] == "conformance" else "another type"


class TakesLengths(Texts):
    def check(self, task: Task) -> None:
        if len(task.value) > 1000 or not isinstance(task.value, str) or not task.value.isascii():
            raise InvalidRequest("it takes text", field="input")


@saboteur("workflow.passes_or_refuses")
class MeasuresNumbers(_Correct):
    """Asks for the length of what has none."""

    parts = _with("input_processor", "TakesLengths")


class AllOrNothing(Bytes):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        errors = [each for each in found if isinstance(each, GuidewayError)]
        return [errors[0]] * len(tasks) if errors else found


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class RefusesABatch(_Correct):
    """Refuses all that is prepared beside something wrong."""

    parts = _with("request_processor", "AllOrNothing")


class Endless(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        return Prepared(task=task, token_ids=np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64))


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class TakesAnyLength(_Correct):
    """Prepares more tokens than the context has."""

    parts = _with("request_processor", "Endless")


class Padding(Bytes):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        longest = max((each.num_tokens for each in found if isinstance(each, Prepared)), default=0)
        return [
            Prepared(task=each.task, token_ids=np.pad(each.token_ids, (0, longest - each.num_tokens)))
            if isinstance(each, Prepared)
            else each
            for each in found
        ]


@saboteur("workflow.tokens_are_their_own")
class PadsWhileItTokenizes(_Correct):
    """Pads each text to the longest beside it."""

    parts = _with("request_processor", "Padding")


class InPlace(Sums):
    def execute(self, step: Any) -> Any:
        for ids in step:
            ids //= 2
        return super().execute(step)


@saboteur("workflow.steps_stay_as_they_are")
class HalvesInPlace(_Correct):
    """Writes to the arrays of a step."""

    parts = _with("runner", "InPlace")


class Means(Sums):
    def execute(self, step: Any) -> Any:
        found = super().execute(step)
        return found - found.mean() if len(found) > 1 else found


@saboteur("workflow.company_changes_nothing")
class CentersItsBatch(_Correct):
    """Subtracts the mean of those that happen to be computed together."""

    parts = _with("runner", "Means")


class Strict(Results):
    def failed(self, task: Task, error: GuidewayError) -> Any:
        return Sum(error=GuidewayError(f"{task.value[:10]}: {error}"))


@saboteur("workflow.what_failed_has_a_result")
class SaysItInItsOwnWords(_Correct):
    """Takes the value of a task that failed for a text, and makes an error of its own."""

    parts = _with("output_processor", "Strict")


class ClosesAll(Sums):
    shared: ClassVar[list[float]] = [0.5]

    def execute(self, step: Any) -> Any:
        self.weight = self.shared[0]
        return super().execute(step)

    def close(self) -> None:
        if hasattr(self, "weight"):
            self.shared.clear()


@saboteur("workflow.closes")
class ClosesWhatAllShare(_Correct):
    """Lets go of what all instances share."""

    parts = _with("runner", "ClosesAll")


class Repeating(InOrder):
    def upcoming(self) -> list[Task]:
        if self.waiting and len(self.waiting) <= 7 and not hasattr(self, "once"):
            self.once = True
            self.preparing += self.waiting
            return list(self.waiting)
        return super().upcoming()


@saboteur("workflow.each_has_its_turn_once")
class HandsOutTheLastTwice(_Correct):
    """Hands the last tasks out twice."""

    parts = _with("scheduler", "Repeating")


class Unforgetting(InOrder):
    def abort(self, task: Task) -> None:
        self.waiting = [each for each in self.waiting if each is not task]
        self.ready = [each for each in self.ready if each.task is not task]


@saboteur("workflow.aborted_tasks_are_gone")
class ForgetsNotWhatIsTokenized(_Correct):
    """Keeps a task that is aborted while it is prepared."""

    parts = _with("scheduler", "Unforgetting")


class Counting(InOrder):
    count = 0

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        Counting.count += 1
        size = 3 + Counting.count % 5
        work, self.ready = self.ready[:size], self.ready[size:]
        return work or None


@saboteur("workflow.order_settles_steps")
class GoesByTheClock(_Correct):
    """Makes steps of a size that something else than the tasks decides."""

    parts = _with("scheduler", "Counting")
