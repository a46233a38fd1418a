"""The workflow `signatures`: short binary signatures of texts, for finding near duplicates; tenants take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidRequest,
    LimitExceeded,
    ModelFolder,
    OutputProcessor,
    Prepared,
    Task,
    Workflow,
    WorkScheduler,
    hookimpl,
)
from guideway.api.options import Range


@dataclass(frozen=True, kw_only=True)
class Options:
    max_step_tokens: Annotated[int, Range(1)] = 256
    max_step_requests: Annotated[int, Range(1)] = 4
    max_input_bytes: Annotated[int, Range(1)] = 1 << 20
    truncate: Literal["refuse", "right", "left"] = "refuse"
    attention: str = "auto"
    pooling: Literal["mean", "cls", "last"] | None = "mean"
    bits: Annotated[int, Range(1, 512)] = 64
    seed: int = 0


class Signatures(Workflow):
    contract = "1.0"
    name = "signatures"
    tasks = ("signature",)
    options = Options
    parts: ClassVar[dict[str, str]] = {
        "input_processor": f"{__name__}:Texts",
        "request_processor": "guideway_engine.prefill.requests:Tokenizing",
        "scheduler": f"{__name__}:FairScheduler",
        "step_builder": "guideway_engine.prefill.steps:RaggedSteps",
        "runner": "guideway_engine.prefill.runner:PoolingRunner",
        "output_processor": f"{__name__}:Bits",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        if kind not in ("bert", "distilbert", "mpnet"):
            return f"it is made for encoders, and this is {kind}"
        return None if isinstance(model.config.get("max_position_embeddings"), int) else "its length is not known"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return model.config["max_position_embeddings"] - (2 if model.config["model_type"] == "mpnet" else 0)

    @classmethod
    def default_length(cls, model: ModelFolder) -> int:
        return min(256, cls.max_length(model))


class Texts(InputProcessor):
    def check(self, task: Task) -> None:
        text = task.value
        if isinstance(text, Mapping) and set(text) == {"prompt"}:
            text = text["prompt"]
        if not isinstance(text, str) or not text.strip():
            raise InvalidRequest("an input is a text that is not empty", field="input")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest("a text holds half a character", field="input") from error
        if size > self.context.options.max_input_bytes:
            raise LimitExceeded(f"a text has {size} bytes", field="input")
        for name in task.params:
            raise InvalidRequest(f"signatures has no parameter {name!r}", field="params")


class FairScheduler(WorkScheduler):
    """By priority; within it the tenants take turns; steps in the order in which tasks were handed out."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._waiting: list[Task] = []
        self._turns: list[tuple[Task, Prepared | None]] = []

    def add(self, task: Task) -> None:
        self._waiting.append(task)

    def upcoming(self) -> list[Task]:
        if len(self._turns) >= 2 * self.context.options.max_step_requests:
            return []
        turn_of: dict[tuple[int, str], int] = {}
        order = []
        for task in sorted(self._waiting, key=lambda task: task.arrival):
            turn = turn_of[task.priority, task.tenant] = turn_of.get((task.priority, task.tenant), -1) + 1
            order.append((task.priority, turn, task.arrival, task))
        order.sort(key=lambda entry: entry[:3])
        chosen = [task for *_, task in order[: self.context.options.max_step_requests]]
        self._waiting = [task for task in self._waiting if task not in chosen]
        self._turns += [(task, None) for task in chosen]
        return chosen

    def prepared(self, request: Prepared) -> None:
        self._turns = [(task, request if task is request.task else known) for task, known in self._turns]

    def abort(self, task: Task) -> None:
        self._waiting = [each for each in self._waiting if each is not task]
        self._turns = [turn for turn in self._turns if turn[0] is not task]

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        options = self.context.options
        work: list[Prepared] = []
        tokens, is_full = 0, False
        for _, request in self._turns:
            if request is None:
                return None  # whoever is next comes first
            tokens += request.num_tokens
            if work and tokens > options.max_step_tokens:
                is_full = True
                break
            work.append(request)
            if len(work) == options.max_step_requests:
                is_full = True
                break
        if not work or (not is_full and (more or self._waiting)):
            return None
        self._turns = self._turns[len(work) :]
        return work

    def finished(self, work: Sequence[Prepared]) -> None:
        """Nothing is kept of it."""

    def window(self) -> int:
        return 4 * self.context.options.max_step_requests


@dataclass(frozen=True)
class Signature:
    request_id: str
    num_tokens: int = 0
    truncated: bool = False
    signature: bytes = b""
    error: Exception | None = None


class Bits(OutputProcessor):
    """The sides of some random planes that a vector lies on."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._planes: dict[int, np.ndarray] = {}

    def results(self, work: Sequence[Prepared], output: np.ndarray) -> list[Signature | GuidewayError]:
        width = output.shape[1]
        if width not in self._planes:
            draw = np.random.default_rng(self.context.options.seed)
            self._planes[width] = draw.normal(size=(width, self.context.options.bits)).round(2)
        sides = np.packbits(output @ self._planes[width] > 0, axis=1)
        results: list[Signature | GuidewayError] = []
        for request, vector, side in zip(work, output, sides, strict=True):
            if not np.isfinite(vector).all():
                results.append(GuidewayError("the model gave a vector that is not finite"))
            else:
                task = request.task
                results.append(Signature(task.request_id, request.num_tokens, request.truncated, side.tobytes()))
        return results

    def failed(self, task: Task, error: GuidewayError) -> Signature:
        return Signature(task.request_id, error=error)


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return Signatures
