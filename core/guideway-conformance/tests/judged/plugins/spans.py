"""Finds spans of a text: each token gets a label, and neighbors of one label are one span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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
    WorkflowRunner,
    hookimpl,
)
from guideway.api.options import Range, is_int

LABELS = ("O", "PERSON", "PLACE", "THING")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of an operator."""

    max_step_tokens: Annotated[int, Range(1)] = 4096
    max_step_requests: Annotated[int, Range(1)] = 32
    truncate: Literal["refuse", "right"] = "refuse"


def text_of(value: Any) -> Any:
    return value["prompt"] if isinstance(value, Mapping) and set(value) == {"prompt"} else value


class SpanInputs(InputProcessor):
    def check(self, task: Task) -> None:
        text = text_of(task.value)
        if not isinstance(text, str) or not text.strip():
            raise InvalidRequest("spans takes a text that is not empty", field="input")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("a text holds half a character", field="input") from error
        for name, given in task.params.items():
            if name == "labels":
                if not isinstance(given, list | tuple) or not all(
                    isinstance(label, str) and label in LABELS[1:] for label in given
                ):
                    raise InvalidRequest(f"labels must be some of {', '.join(LABELS[1:])}", field="labels")
            elif name == "min_score":
                if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
                    raise InvalidRequest("min_score must be a number from 0 to 1", field="min_score")
            elif name == "truncate":
                if not isinstance(given, str) or given not in ("refuse", "right"):
                    raise InvalidRequest("truncate must be 'refuse' or 'right'", field="truncate")
            else:
                raise InvalidRequest(f"spans has no parameter {name!r}", field="params")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanRequest(Prepared):
    offsets: tuple[tuple[int, int], ...]
    """The characters that each token is of; none of a special token's."""


class SpanRequests(RequestProcessor):
    """Tokenizes in batches; where a batch fails, one by one, to find out whose fault it is."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)
        self._tokenizer.backend_tokenizer.no_truncation()
        self._tokenizer.backend_tokenizer.no_padding()

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        if not tasks:
            return []
        try:
            encoded = self._tokenizer([text_of(task.value) for task in tasks], return_offsets_mapping=True)
            return [
                self._prepared(task, ids, offsets)
                for task, ids, offsets in zip(tasks, encoded["input_ids"], encoded["offset_mapping"], strict=True)
            ]
        except Exception as error:
            if len(tasks) == 1:
                return [InvalidRequest(f"the text cannot be tokenized: {error}", field="input")]
            return [result for task in tasks for result in self.prepare([task])]

    def _prepared(self, task: Task, ids: list[int], offsets: list[tuple[int, int]]) -> Prepared | GuidewayError:
        if all(start == end for start, end in offsets):
            return InvalidRequest("the text holds no word", field="input")
        most = self.context.max_model_len
        truncated = len(ids) > most
        if truncated:
            how = task.params.get("truncate", self.context.options.truncate)
            if how == "refuse" or most < 3:
                return LimitExceeded(f"the text has {len(ids)} tokens, and the model takes {most}", field="input")
            ids, offsets = ids[: most - 1] + ids[-1:], offsets[: most - 1] + offsets[-1:]
        spots = tuple((int(start), int(end)) for start, end in offsets)
        return SpanRequest(task=task, token_ids=np.array(ids, dtype=np.int64), truncated=truncated, offsets=spots)


@dataclass(frozen=True)
class RowStep:
    """The tokens of all requests in one row, and where each begins."""

    token_ids: np.ndarray
    starts: np.ndarray


class RowSteps(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> RowStep:
        starts = np.cumsum([0, *(request.num_tokens for request in work)])
        return RowStep(np.concatenate([request.token_ids for request in work]), starts)


class SpanRunner(WorkflowRunner):
    """Probabilities of the labels, a row a token: how a token's vector lies to one direction a label."""

    _model: Any = None

    def load(self) -> None:
        import torch
        from transformers import AutoModel

        context = self.context
        try:
            model = AutoModel.from_pretrained(
                context.model.path, local_files_only=True, dtype=getattr(torch, context.dtype)
            )
        except (OSError, ValueError, AttributeError) as error:
            raise InvalidConfiguration(f"spans cannot load the model: {error}", field="model") from error
        self._model = model.to(context.device).eval()
        heads = np.random.default_rng(11).standard_normal((model.config.hidden_size, len(LABELS)))
        self._heads = torch.from_numpy(heads).to(context.device, torch.float32)

    def execute(self, step: RowStep) -> np.ndarray:
        import torch

        found = []
        with torch.inference_mode():
            for start, end in zip(step.starts[:-1], step.starts[1:], strict=True):
                ids = torch.from_numpy(step.token_ids[start:end])[None].to(self.context.device)
                hidden = self._model(input_ids=ids).last_hidden_state[0].float()
                found.append((hidden @ self._heads).softmax(dim=-1).cpu().numpy())
        return np.concatenate(found)

    def close(self) -> None:
        self._model = self._heads = None


@dataclass(frozen=True)
class Span:
    label: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Spans:
    request_id: str
    spans: tuple[Span, ...] = ()
    num_tokens: int = 0
    truncated: bool = False
    error: GuidewayError | None = None


class SpanOutputs(OutputProcessor):
    def results(self, work: Sequence[Any], output: np.ndarray) -> list[Any]:
        ends = np.cumsum([request.num_tokens for request in work])
        return [self._result(request, rows) for request, rows in zip(work, np.split(output, ends[:-1]), strict=True)]

    def _result(self, request: Any, rows: np.ndarray) -> Any:
        if not np.isfinite(rows).all():
            return GuidewayError("the model gave numbers that are not finite")
        params = request.task.params
        wanted, least = params.get("labels", LABELS[1:]), params.get("min_score", 0.0)
        tokens = [i for i, (start, end) in enumerate(request.offsets) if start < end]
        spans = []
        for label, group in groupby(tokens, key=lambda i: LABELS[int(rows[i].argmax())]):
            members = list(group)
            score = float(np.mean([rows[i].max() for i in members]))
            if label != "O" and label in wanted and score >= least:
                spans.append(Span(label, request.offsets[members[0]][0], request.offsets[members[-1]][1], score))
        return Spans(request.task.request_id, tuple(spans), request.num_tokens, request.truncated)

    def failed(self, task: Task, error: GuidewayError) -> Spans:
        return Spans(task.request_id, error=error)


class SpanWorkflow(Workflow):
    contract = "1.0"
    name = "spans"
    tasks = ("spans",)
    options = Options
    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": f"{__name__}:SpanInputs",
        "request_processor": f"{__name__}:SpanRequests",
        "scheduler": "guideway_engine.prefill.scheduler:PrefillScheduler",
        "step_builder": f"{__name__}:RowSteps",
        "runner": f"{__name__}:SpanRunner",
        "output_processor": f"{__name__}:SpanOutputs",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        if kind != "bert":
            return f"spans is made for bert, and this is {kind}"
        return (
            None
            if is_int(model.config.get("max_position_embeddings"))
            else "its config.json does not say how long it is"
        )

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return int(model.config["max_position_embeddings"])

    @classmethod
    def default_length(cls, model: ModelFolder) -> int:
        return min(cls.max_length(model), 256)


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return SpanWorkflow
