"""A workflow that needs no model: a text becomes a vector of how often its pairs of bytes come."""

from __future__ import annotations

from collections import OrderedDict
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
from numpy.typing import NDArray

WIDTH = 64
MOST_REQUESTS = 4
MOST_TOKENS = 96


class Text(InputProcessor):
    def check(self, task: Task) -> None:
        if not isinstance(task.value, str) or not task.value:
            raise InvalidRequest("pairs takes a text that is not empty", field="input")
        try:
            task.value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("the text has half a character", field="input") from error
        if task.params:
            raise InvalidRequest(f"pairs has no parameter {', '.join(map(str, task.params))}", field="params")


class Utf8(RequestProcessor):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self.prepared(task) for task in tasks]

    def prepared(self, task: Task) -> Prepared | GuidewayError:
        ids = np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64)
        if len(ids) > self.context.max_model_len:
            return LimitExceeded(f"the text has more than {self.context.max_model_len} bytes", field="input")
        return Prepared(task=task, token_ids=ids)


class Budgeted(WorkScheduler):
    """In the order in which they came, as many as fit into a step's tokens."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.waiting: OrderedDict[int, Task] = OrderedDict()
        self.preparing: dict[int, Task] = {}
        self.ready: list[Prepared] = []

    def add(self, task: Task) -> None:
        self.waiting[id(task)] = task

    def upcoming(self) -> list[Task]:
        found = list(self.waiting.values())[: 2 * MOST_REQUESTS]
        for task in found:
            del self.waiting[id(task)]
            self.preparing[id(task)] = task
        return found

    def prepared(self, request: Prepared) -> None:
        if self.preparing.pop(id(request.task), None) is not None:
            self.ready.append(request)

    def abort(self, task: Task) -> None:
        self.waiting.pop(id(task), None)
        self.preparing.pop(id(task), None)
        self.ready = [request for request in self.ready if request.task is not task]

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        work: list[Prepared] = []
        tokens = 0
        for request in self.ready:
            if work and (len(work) == MOST_REQUESTS or tokens + len(request.token_ids) > MOST_TOKENS):
                break
            work.append(request)
            tokens += len(request.token_ids)
        if more and len(work) == len(self.ready) and len(work) < MOST_REQUESTS and tokens < MOST_TOKENS:
            return None
        self.ready = self.ready[len(work) :]
        return work or None

    def finished(self, work: Sequence[Prepared]) -> None:
        pass

    def window(self) -> int:
        return 4 * MOST_REQUESTS


@dataclass(frozen=True)
class Ragged:
    """The ids of all requests one after the other, and where each ends."""

    ids: NDArray[np.int64]
    ends: NDArray[np.int64]


class Rows(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> Ragged:
        ids = [request.token_ids for request in work]
        return Ragged(np.concatenate(ids), np.cumsum([len(each) for each in ids]))


class Counts(WorkflowRunner):
    def load(self) -> None:
        self._factors = np.array([31, 17], dtype=np.int64)

    def execute(self, step: Ragged) -> NDArray[np.float32]:
        found = np.zeros((len(step.ends), WIDTH), dtype=np.float32)
        start = 0
        for row, end in zip(found, step.ends.tolist(), strict=True):
            ids = step.ids[start:end]
            padded = np.concatenate([[0], ids])
            places = (padded[:-1] * self._factors[0] + padded[1:] * self._factors[1]) % WIDTH
            np.add.at(row, places, 1.0)
            row /= np.sqrt((row * row).sum())
            start = end
        return found


@dataclass(frozen=True)
class Vector:
    vector: tuple[float, ...] = ()
    error: GuidewayError | None = None


class Vectors(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [Vector(tuple(row.tolist())) for row in output]

    def failed(self, task: Task, error: GuidewayError) -> Any:
        return Vector(error=error)


class Pairs(Workflow):
    contract = "1.0"
    name = "pairs"
    tasks = ("pairs",)
    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": f"{__name__}:Text",
        "request_processor": f"{__name__}:Utf8",
        "scheduler": f"{__name__}:Budgeted",
        "step_builder": f"{__name__}:Rows",
        "runner": f"{__name__}:Counts",
        "output_processor": f"{__name__}:Vectors",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:  # noqa: ARG003
        return None

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:  # noqa: ARG003
        return 80
