"""A workflow without bugs, and the parts in which the others differ from it."""

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
from tokenizers import Tokenizer

__all__ = [
    "CORRECT",
    "Anything",
    "Bytes",
    "Correct",
    "Guarded",
    "InOrder",
    "Lists",
    "Results",
    "Sum",
    "Sums",
    "SumsAnything",
    "SumsWell",
    "Texts",
    "Words",
    "preparing",
    "with_part",
]


class Texts(InputProcessor):
    """Takes text alone, and whether to double what comes of it."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str) or not task.value.isascii():
            raise InvalidRequest("it takes text", field="input")
        self.check_params(task)

    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name != "double" or not isinstance(value, bool):
                raise InvalidRequest("it takes double, which is true or false", field=str(name))


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
        if more and len(self.ready) < 7:
            return None
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
        return [
            Sum(float(value) * (2 if request.task.params.get("double") else 1))
            for request, value in zip(work, output, strict=True)
        ]

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


class Correct(Workflow):
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


def with_part(part: str, cls: type[Any]) -> Mapping[str, str]:
    """The parts of a correct one, but for this."""
    return {**CORRECT, part: f"{cls.__module__}:{cls.__qualname__}"}


def preparing(cls: type[Any]) -> Mapping[str, str]:
    """The parts of one that takes any text."""
    return {**with_part("request_processor", cls), "input_processor": f"{__name__}:Anything"}


class Anything(Texts):
    """Takes text with half characters, too."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str):
            raise InvalidRequest("it takes text", field="input")
        self.check_params(task)


class Words(RequestProcessor):
    """Tokenizes in one call."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.tokenizer = Tokenizer.from_file(str(context.model.path / "tokenizer.json"))

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = self.tokenizer.encode_batch([task.value for task in tasks])
        return [
            Prepared(task=task, token_ids=np.array(each.ids))
            if len(each) <= self.context.max_model_len
            else LimitExceeded("too long", field="input")
            for task, each in zip(tasks, found, strict=True)
        ]


class SumsWell(Correct):
    """Breaks no rule."""


class Guarded(Bytes):
    """Gives a text that has no bytes its error."""

    def one(self, task: Task) -> Prepared | GuidewayError:
        try:
            return super().one(task)
        except UnicodeEncodeError as error:
            return InvalidRequest(f"the text has half a character: {error}", field="input")


class SumsAnything(Correct):
    """Breaks no rule, and leaves it to its request processor to find out what has no tokens."""

    parts = preparing(Guarded)
