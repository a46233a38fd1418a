"""Binary sketches: the signs of a text's vector. The workflow `sketch`."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidConfiguration,
    InvalidRequest,
    ModelFolder,
    OutputProcessor,
    Prepared,
    Task,
    Workflow,
    WorkflowContext,
    WorkScheduler,
    hookimpl,
)
from guideway.api.options import Range, is_int


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that the parts read, those of the engine among them."""

    truncate: Literal["refuse", "left", "right"] = "refuse"
    max_step_tokens: Annotated[int, Range(1)] = 4096
    max_step_requests: Annotated[int, Range(1)] = 32
    attention: str = "auto"
    pooling: Literal["mean", "cls", "last"] | None = None


class Texts(InputProcessor):
    """Takes texts and lists of token ids; the parameter `bits` is how many bits of a sketch to give."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        config = context.model.config
        self._vocabulary = config["vocab_size"]
        self._width = config["hidden_size"]

    def check(self, task: Task) -> None:
        value = task.value
        if isinstance(value, str):
            if not value:
                raise InvalidRequest("a text is not empty", field="input")
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest("a text holds half a character", field="input") from error
        elif isinstance(value, list | tuple) and value and all(is_int(item) for item in value):
            if not all(0 <= item < self._vocabulary for item in value):
                raise InvalidRequest(f"token ids are from 0 to {self._vocabulary - 1}", field="input")
        else:
            raise InvalidRequest("sketch takes a text or a list of token ids", field="input")
        for name, given in task.params.items():
            if name != "bits":
                raise InvalidRequest(f"sketch has no parameter {name!r}", field="params")
            if not is_int(given) or not 1 <= given <= self._width:
                raise InvalidRequest(f"bits is a whole number from 1 to {self._width}", field="params.bits")


class InOrder(WorkScheduler):
    """By priority, then as they came."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self._tokens = context.options.max_step_tokens
        self._requests = context.options.max_step_requests
        self._waiting: list[tuple[int, int, int, Task]] = []
        self._ready: list[tuple[int, int, int, Prepared]] = []
        self._out: set[Task] = set()
        self._known: set[Task] = set()
        self._count = 0

    def _ticket(self, task: Task) -> tuple[int, int, int]:
        self._count += 1
        return task.priority, task.arrival, self._count

    def add(self, task: Task) -> None:
        self._known.add(task)
        heapq.heappush(self._waiting, (*self._ticket(task), task))

    def upcoming(self) -> list[Task]:
        taken: list[Task] = []
        while self._waiting and len(self._out) + len(self._ready) < 2 * self._requests:
            task = heapq.heappop(self._waiting)[-1]
            self._out.add(task)
            taken.append(task)
        return taken

    def prepared(self, request: Prepared) -> None:
        task = request.task
        if task in self._known:
            self._out.discard(task)
            heapq.heappush(self._ready, (*self._ticket(task), request))

    def abort(self, task: Task) -> None:
        if task not in self._known:
            return
        self._known.discard(task)
        self._out.discard(task)
        self._waiting = [item for item in self._waiting if item[-1] is not task]
        self._ready = [item for item in self._ready if item[-1].task is not task]
        heapq.heapify(self._waiting)
        heapq.heapify(self._ready)

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        if not self._ready:
            return None
        chosen: list[Prepared] = []
        tokens, full = 0, False
        for *_, request in sorted(self._ready, key=lambda item: item[:3]):
            if len(chosen) == self._requests or (chosen and tokens + request.num_tokens > self._tokens):
                full = True
                break
            chosen.append(request)
            tokens += request.num_tokens
        full = full or len(chosen) == self._requests or tokens >= self._tokens
        if not full and (more or self._out or self._waiting):
            return None
        for _ in chosen:
            self._known.discard(heapq.heappop(self._ready)[-1].task)
        return chosen

    def finished(self, work: Sequence[Prepared]) -> None:
        """Nothing is kept of a step that was given out."""

    def window(self) -> int:
        return 4 * self._requests


@dataclass(frozen=True)
class Sketch:
    """The result of one text."""

    request_id: str
    bits: np.ndarray | None = None
    num_tokens: int = 0
    truncated: bool = False
    error: GuidewayError | None = None


class Signs(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        found: list[Any] = []
        for request, vector in zip(work, output, strict=True):
            if not np.isfinite(vector).all():
                found.append(GuidewayError("the model gave numbers that are not finite"))
                continue
            bits = np.packbits(vector[: request.task.params.get("bits", len(vector))] > 0)
            found.append(Sketch(request.task.request_id, bits, request.num_tokens, request.truncated))
        return found

    def failed(self, task: Task, error: GuidewayError) -> Sketch:
        return Sketch(task.request_id, error=error)


class SketchWorkflow(Workflow):
    """Signs of pooled vectors, packed into bytes."""

    contract = "1.0"
    name = "sketch"
    tasks = ("sketch",)
    options = Options
    parts: ClassVar[dict[str, str]] = {
        "input_processor": f"{__name__}:Texts",
        "request_processor": "guideway_engine.prefill.requests:Tokenizing",
        "scheduler": f"{__name__}:InOrder",
        "step_builder": "guideway_engine.prefill.steps:RaggedSteps",
        "runner": "guideway_engine.prefill.runner:PoolingRunner",
        "output_processor": f"{__name__}:Signs",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        if kind != "bert":
            return f"it is made for bert, and this is {kind}"
        for name in ("vocab_size", "hidden_size", "max_position_embeddings"):
            if not is_int(model.config.get(name)):
                return f"its config.json has no {name}"
        return None

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        length = model.config.get("max_position_embeddings")
        if not is_int(length) or length < 1:
            raise InvalidConfiguration("config.json does not say how long a request may be", field="model")
        return length


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return SketchWorkflow
