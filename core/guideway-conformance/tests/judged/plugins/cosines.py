"""The workflow `similar`: how alike two texts are, the cosine of their mean vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

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
)
from guideway.api.options import Range

CHOICES = {"pooling": ("mean", "cls"), "truncate": (True, False)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of an operator; the first two are read by the engine's scheduler."""

    max_step_tokens: Annotated[int, Range(1)] = 2048
    max_step_requests: Annotated[int, Range(1)] = 32
    decimals: Annotated[int, Range(0, 12)] = 6


class Similar(Workflow):
    """Cosines of pairs."""

    contract = "1.0"
    name = "similar"
    tasks = ("similar",)
    options = Options
    parts: ClassVar[dict[str, str]] = {
        "input_processor": f"{__name__}:Pairs",
        "request_processor": f"{__name__}:Tokens",
        "scheduler": "guideway_engine.prefill.scheduler:PrefillScheduler",
        "step_builder": f"{__name__}:Steps",
        "runner": f"{__name__}:Cosines",
        "output_processor": f"{__name__}:Scores",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        return None if kind == "bert" else f"it is made for bert, and this is {kind}"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        length = model.config.get("max_position_embeddings")
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise InvalidConfiguration("its config.json has no max_position_embeddings", field="model")
        return length


class Pairs(InputProcessor):
    def check(self, task: Task) -> None:
        value = task.value
        if not (isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(text, str) for text in value)):
            raise InvalidRequest("similar takes pairs of texts", field="input")
        try:
            "".join(value).encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("a text holds half a character", field="input") from error
        for name, given in task.params.items():
            if name not in CHOICES:
                raise InvalidRequest(f"similar has no parameter {name!r}", field="params")
            if not any(type(given) is type(known) and given == known for known in CHOICES[name]):
                raise InvalidRequest(f"{name} is one of {CHOICES[name]}", field=f"params.{name}")


class Tokens(RequestProcessor):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self._prepared(task) for task in tasks]

    def _prepared(self, task: Task) -> Prepared | GuidewayError:
        try:
            first, second = (self._tokenizer(text, truncation=False).input_ids for text in task.value)
        except Exception as error:
            return InvalidRequest(f"a text cannot be tokenized: {error}", field="input")
        most = self.context.max_model_len
        excess = len(first) + len(second) - most
        if excess > 0:
            if not task.params.get("truncate", False) or excess > len(second) - 2:
                return LimitExceeded(f"{most + excess} tokens, and the model takes {most}", field="input")
            second = [*second[: -1 - excess], second[-1]]  # the end of the second text, without its last token
        types = np.array([0] * len(first) + [1] * len(second), dtype=np.int64)
        ids = np.array([*first, *second], dtype=np.int64)
        return Prepared(task=task, token_ids=ids, token_types=types, truncated=excess > 0)


@dataclass(frozen=True)
class Step:
    token_ids: np.ndarray[Any, Any]
    bounds: list[tuple[int, int, int]]
    poolings: list[str]


class Steps(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> Step:
        bounds, start = [], 0
        for request in work:
            assert request.token_types is not None
            middle = start + int((request.token_types == 0).sum())
            bounds.append((start, middle, start + request.num_tokens))
            start += request.num_tokens
        poolings = [request.task.params.get("pooling", "mean") for request in work]
        return Step(np.concatenate([request.token_ids for request in work]), bounds, poolings)


class Cosines(WorkflowRunner):
    _model: Any = None

    def load(self) -> None:
        import torch
        from transformers import AutoModel

        context = self.context
        try:
            dtype = getattr(torch, context.dtype)
            model = AutoModel.from_pretrained(context.model.path, local_files_only=True, dtype=dtype)
            self._model = model.to(context.device).eval()
        except Exception as error:
            raise InvalidConfiguration(f"the model cannot be loaded: {error}", field="model") from error

    def execute(self, step: Step) -> np.ndarray[Any, Any]:
        scores = np.zeros(len(step.bounds), dtype=np.float32)
        for index, ((start, middle, end), pooling) in enumerate(zip(step.bounds, step.poolings, strict=True)):
            first = self._vector(step.token_ids[start:middle], pooling)
            second = self._vector(step.token_ids[middle:end], pooling)
            norm = np.linalg.norm(first) * np.linalg.norm(second)
            scores[index] = first @ second / norm if norm != 0 else 0.0
        return scores

    def _vector(self, ids: np.ndarray[Any, Any], pooling: str) -> np.ndarray[Any, Any]:
        import torch

        with torch.inference_mode():
            batch = torch.tensor(ids, device=self.context.device)[None]
            hidden = self._model(input_ids=batch).last_hidden_state[0].float()
            vector: np.ndarray[Any, Any] = (hidden[0] if pooling == "cls" else hidden.mean(0)).cpu().numpy()
        return vector

    def close(self) -> None:
        self._model = None


@dataclass(frozen=True)
class Similarity:
    request_id: str
    score: float | None = None
    num_tokens: int = 0
    truncated: bool = False
    error: GuidewayError | None = None


class Scores(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Similarity | GuidewayError]:
        return [self._result(request, float(score)) for request, score in zip(work, output, strict=True)]

    def _result(self, request: Prepared, score: float) -> Similarity | GuidewayError:
        if not np.isfinite(score):
            return GuidewayError("the model's numbers are not finite")
        rounded = round(score, self.context.options.decimals)
        return Similarity(request.task.request_id, rounded, request.num_tokens, request.truncated)

    def failed(self, task: Task, error: GuidewayError) -> Similarity:
        return Similarity(task.request_id, error=error)
