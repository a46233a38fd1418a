"""The workflow `shelves`: vectors of texts or token ids, computed in padded steps that its own scheduler fills."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidConfiguration,
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
from guideway.api.options import Range


@dataclass(frozen=True, kw_only=True)
class Options:
    max_step_tokens: Annotated[int, Range(1)] = 1024
    """Padding included."""
    max_step_requests: Annotated[int, Range(1)] = 16
    truncate: Literal["refuse", "left", "right"] = "refuse"


class Shelves(Workflow):
    """Mean vectors."""

    contract = "1.0"
    name = "shelves"
    tasks = ("shelve",)
    options = Options
    parts: ClassVar[dict[str, str]] = {
        "input_processor": f"{__name__}:Inputs",
        "request_processor": f"{__name__}:Requests",
        "scheduler": f"{__name__}:Shelf",
        "step_builder": f"{__name__}:Padded",
        "runner": f"{__name__}:Means",
        "output_processor": f"{__name__}:Vectors",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        if model.config.get("model_type") != "bert":
            return f"it is made for bert, and this is {model.architecture}"
        sizes = (model.config.get(name) for name in ("max_position_embeddings", "vocab_size", "hidden_size"))
        return None if all(type(size) is int and size > 0 for size in sizes) else "its config.json lacks a size"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return int(model.config["max_position_embeddings"])

    @classmethod
    def default_length(cls, model: ModelFolder) -> int:
        return min(cls.max_length(model), 512)


def _content(value: Any) -> Any:
    """The text or token ids of an input; None if it is none."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        wanted = {"prompt": str, "prompt_token_ids": (list, tuple)}.get(name)
        return value if wanted is not None and isinstance(value, wanted) else None
    return value if isinstance(value, (str, list, tuple)) else None


class Inputs(InputProcessor):
    def check(self, task: Task) -> None:
        content, config = _content(task.value), self.context.model.config
        if content is None or len(content) == 0:
            raise InvalidRequest("shelve takes a text or token ids that are not empty", field="input")
        if isinstance(content, str):
            try:
                content.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest("the text holds half a character", field="input") from error
        elif not all(type(token) is int and 0 <= token < config["vocab_size"] for token in content):
            raise InvalidRequest(f"a token id is a whole number below {config['vocab_size']}", field="input")
        for name, given in task.params.items():
            if name == "dimensions":
                if type(given) is not int or not 1 <= given <= config["hidden_size"]:
                    raise InvalidRequest(f"dimensions is from 1 to {config['hidden_size']}", field="dimensions")
            elif name == "truncate":
                if not isinstance(given, str) or given not in ("refuse", "left", "right"):
                    raise InvalidRequest("truncate is 'refuse', 'left' or 'right'", field="truncate")
            else:
                raise InvalidRequest(f"shelve has no parameter {name!r}", field="params")


class Requests(RequestProcessor):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        texts = [content for task in tasks if isinstance(content := _content(task.value), str)]
        try:  # in one batch; where that fails, each by itself finds out which one it was
            rows = iter(self._tokenizer(texts).input_ids if texts else [])
        except Exception:
            return [self._alone(task) for task in tasks]
        return [self._cut(task, next(rows) if isinstance(_content(task.value), str) else None) for task in tasks]

    def _alone(self, task: Task) -> Prepared | GuidewayError:
        content = _content(task.value)
        try:
            return self._cut(task, self._tokenizer(content).input_ids if isinstance(content, str) else None)
        except Exception as error:
            return InvalidRequest(f"the text cannot be tokenized: {error}", field="input")

    def _cut(self, task: Task, ids: Sequence[int] | None) -> Prepared | GuidewayError:
        ids = list(_content(task.value) if ids is None else ids)
        most, side = self.context.max_model_len, task.params.get("truncate", self.context.options.truncate)
        longer = len(ids) > most
        if longer and side == "refuse":
            return LimitExceeded(f"{len(ids)} tokens, and at most {most} are allowed", field="input")
        if not ids:
            return InvalidRequest("the text has no tokens", field="input")
        if longer:
            ids = ids[:most] if side == "right" else ids[-most:]
        return Prepared(task=task, token_ids=np.array(ids, dtype=np.int64), truncated=longer)


class Shelf(WorkScheduler):
    """By priority, then arrival. Budgets count padding: as many tokens in each row as the longest has."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self._count = count()
        self._waiting: list[tuple[int, int, int, Task]] = []
        self._handed: dict[Task, tuple[int, int, int]] = {}
        self._ready: list[tuple[tuple[int, int, int], Prepared]] = []

    def add(self, task: Task) -> None:
        heapq.heappush(self._waiting, (task.priority, task.arrival, next(self._count), task))

    def upcoming(self) -> list[Task]:
        room = 2 * self.context.options.max_step_requests - len(self._handed) - len(self._ready)
        found = []
        while self._waiting and len(found) < room:
            *key, task = heapq.heappop(self._waiting)
            self._handed[task] = (key[0], key[1], key[2])
            found.append(task)
        return found

    def prepared(self, request: Prepared) -> None:
        key = self._handed.pop(request.task, None)
        if key is not None:  # else it was aborted meanwhile
            self._ready.append((key, request))

    def abort(self, task: Task) -> None:
        self._handed.pop(task, None)
        self._waiting = [entry for entry in self._waiting if entry[-1] is not task]
        heapq.heapify(self._waiting)
        self._ready = [entry for entry in self._ready if entry[1].task is not task]

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        options = self.context.options
        self._ready.sort(key=lambda entry: entry[0])
        taken, longest, full = 0, 0, False
        for _, request in self._ready:
            longest = max(longest, request.num_tokens)
            full = taken == options.max_step_requests or (taken + 1) * longest > options.max_step_tokens
            if full:
                break
            taken += 1
        full = full or taken == options.max_step_requests
        if not self._ready or (more and not full):
            return None
        taken = max(taken, 1)  # what is longer than the budget has a step of its own
        work = [request for _, request in self._ready[:taken]]
        del self._ready[:taken]
        return work

    def finished(self, work: Sequence[Prepared]) -> None:
        """The steps that are computed are out of sight already."""

    def window(self) -> int:
        return 4 * int(self.context.options.max_step_requests)


@dataclass(frozen=True)
class Step:
    token_ids: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]


class Padded(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> Step:
        lengths = np.array([request.num_tokens for request in work], dtype=np.int64)
        ids = np.zeros((len(work), int(lengths.max())), dtype=np.int64)
        for row, request in zip(ids, work, strict=True):
            row[: request.num_tokens] = request.token_ids
        return Step(ids, lengths)


class Means(WorkflowRunner):
    _model: Any = None

    def load(self) -> None:
        from transformers import AutoModel

        path, dtype = self.context.model.path, self.context.dtype
        try:
            model = AutoModel.from_pretrained(path, local_files_only=True, dtype=dtype)
            self._model = model.to(self.context.device).eval()
        except Exception as error:
            raise InvalidConfiguration(f"{path} cannot be loaded as {dtype}: {error}", field="model") from error

    def execute(self, step: Step) -> np.ndarray[Any, Any]:
        import torch

        with torch.inference_mode():
            ids = torch.tensor(step.token_ids, device=self.context.device)
            lengths = torch.tensor(step.lengths, device=self.context.device)
            mask = torch.arange(ids.shape[1], device=ids.device)[None] < lengths[:, None]
            hidden = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
            sums = hidden.masked_fill(~mask[..., None], 0.0).sum(1)
            means: np.ndarray[Any, Any] = (sums / lengths[:, None]).cpu().numpy()
        return means

    def close(self) -> None:
        self._model = None


@dataclass(frozen=True)
class Vector:
    request_id: str
    vector: np.ndarray[Any, Any] | None = None
    num_tokens: int = 0
    truncated: bool = False
    error: GuidewayError | None = None


class Vectors(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Vector | GuidewayError]:
        return [self._result(request, row) for request, row in zip(work, output, strict=True)]

    def _result(self, request: Prepared, row: np.ndarray[Any, Any]) -> Vector | GuidewayError:
        task = request.task
        vector = row[: task.params.get("dimensions", len(row))].astype(np.float32)
        norm = float(np.linalg.norm(vector))
        if not np.isfinite(norm):
            return GuidewayError("the model's numbers are not finite")
        vector = vector / norm if norm else vector
        return Vector(task.request_id, vector, request.num_tokens, request.truncated)

    def failed(self, task: Task, error: GuidewayError) -> Vector:
        return Vector(task.request_id, error=error)
