"""A workflow that adds up the bytes of a text."""

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


class Texts(InputProcessor):
    """Texts, and whether to double the sum."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str):
            raise InvalidRequest("it takes text", field="input")
        for name, value in task.params.items():
            if name != "double" or not isinstance(value, bool):
                raise InvalidRequest("it takes double, which is true or false", field=str(name))


class Bytes(RequestProcessor):
    """Tokens, one per byte of UTF-8."""

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self.one(task) for task in tasks]

    def one(self, task: Task) -> Prepared | GuidewayError:
        if len(task.value) > self.context.max_model_len:
            return LimitExceeded("too long", field="input")
        try:
            text = task.value.encode()
        except UnicodeEncodeError as error:
            return InvalidRequest(f"the text has half a character: {error}", field="input")
        return Prepared(task=task, token_ids=np.frombuffer(text, dtype=np.uint8).astype(np.int64))


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
        if more and len(self.ready) < 7:
            return None
        work, self.ready = self.ready[:7], self.ready[7:]
        return work or None

    def finished(self, work: Sequence[Prepared]) -> None:
        pass

    def window(self) -> int:
        return 14


class Lists(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> Any:
        return [request.token_ids for request in work]


class Sums(WorkflowRunner):
    def load(self) -> None:
        self.weight = 0.5

    def execute(self, step: Any) -> Any:
        return np.array([self.weight * ids.sum() for ids in step])


@dataclass(frozen=True)
class Sum:
    value: float = 0.0
    error: GuidewayError | None = None


class Results(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [
            Sum(float(value) * (2 if request.task.params.get("double") else 1))
            for request, value in zip(work, output, strict=True)
        ]

    def failed(self, task: Task, error: GuidewayError) -> Any:
        return Sum(error=error)


class Total(Workflow):
    contract = "1.0"
    name = "sums"
    tasks = ("sum",)
    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": f"{__name__}:Texts",
        "request_processor": f"{__name__}:Bytes",
        "scheduler": f"{__name__}:InOrder",
        "step_builder": f"{__name__}:Lists",
        "runner": f"{__name__}:Sums",
        "output_processor": f"{__name__}:Results",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:  # noqa: ARG003
        return None

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:  # noqa: ARG003
        return 32
