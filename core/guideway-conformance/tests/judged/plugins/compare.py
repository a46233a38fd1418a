"""Likeness of two texts, by the vectors of an encoder. The workflow `compare`."""

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
    hookimpl,
)
from guideway.api.options import Range, is_int

MEASURES = ("cosine", "dot", "distance")
SIDES = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that the scheduler of the engine reads."""

    max_step_tokens: Annotated[int, Range(1)] = 2048
    max_step_requests: Annotated[int, Range(1)] = 16


class Pairs(InputProcessor):
    def check(self, task: Task) -> None:
        value = task.value
        if not (isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)):
            raise InvalidRequest("compare takes pairs of texts", field="input")
        try:
            "".join(value).encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("a text holds half a character", field="input") from error
        for name, given in task.params.items():
            if name == "measure":
                known = MEASURES
            elif name == "truncate":
                known = SIDES
            else:
                raise InvalidRequest(f"compare has no parameter {name!r}", field="params")
            if not isinstance(given, str) or given not in known:
                raise InvalidRequest(f"{name} is one of {', '.join(known)}", field=f"params.{name}")


class BothTexts(RequestProcessor):
    """The tokens of both texts, one after the other, each with the special tokens of its own."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)
        self._tokenizer.backend_tokenizer.no_truncation()
        self._most = context.max_model_len // 2
        empty = self._tokenizer("").input_ids  # bert: one token before a text, one behind it
        self._before, self._behind = empty[:1], empty[1:]

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self._prepared(task) for task in tasks]

    def _prepared(self, task: Task) -> Prepared | GuidewayError:
        try:
            plain = [self._tokenizer(text, add_special_tokens=False).input_ids for text in task.value]
        except Exception as error:  # a word that the tokenizer has no token for
            return InvalidRequest(f"a text cannot be tokenized: {error}", field="input")
        room = self._most - len(self._before) - len(self._behind)
        side = task.params.get("truncate")
        truncated = False
        for index, ids in enumerate(plain):
            if len(ids) > room:
                if side is None or room < 1:
                    return LimitExceeded(f"a text has more than {self._most} tokens", field="input")
                plain[index] = ids[:room] if side == "right" else ids[len(ids) - room :]
                truncated = True
        first, second = (self._before + ids + self._behind for ids in plain)
        return Prepared(
            task=task,
            token_ids=np.array(first + second, dtype=np.int64),
            token_types=np.array([0] * len(first) + [1] * len(second), dtype=np.int64),
            truncated=truncated,
        )


@dataclass(frozen=True)
class Step:
    """Rows of texts, two of each request, padded at the right."""

    token_ids: np.ndarray
    lengths: np.ndarray


class PaddedSteps(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> Step:
        rows = [request.token_ids[request.token_types == which] for request in work for which in (0, 1)]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        token_ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
        for index, row in enumerate(rows):
            token_ids[index, : len(row)] = row
        return Step(token_ids, lengths)


class MeanVectors(WorkflowRunner):
    """The mean of each text's vectors, float32 ``[2 * requests, width]``."""

    _model: Any = None

    def load(self) -> None:
        from transformers import AutoModel

        context = self.context
        model = AutoModel.from_pretrained(context.model.path, local_files_only=True, dtype=context.dtype)
        self._model = model.to(context.device).eval()

    def execute(self, step: Step) -> np.ndarray:
        import torch

        found = []
        with torch.inference_mode():
            for row, length in zip(step.token_ids, step.lengths, strict=True):  # by itself: no padding has a part in it
                ids = torch.tensor(row[:length], device=self.context.device)[None]
                hidden = self._model(input_ids=ids).last_hidden_state[0]
                found.append(hidden.float().mean(dim=0).cpu().numpy())
        return np.stack(found)

    def close(self) -> None:
        self._model = None


@dataclass(frozen=True)
class Likeness:
    """The result of one pair."""

    request_id: str
    value: float | None = None
    truncated: bool = False
    error: GuidewayError | None = None


class Measured(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        found: list[Any] = []
        vectors = np.asarray(output, dtype=np.float64).reshape(len(work), 2, -1)
        for request, (one, two) in zip(work, vectors, strict=True):
            measure = request.task.params.get("measure", "cosine")
            with np.errstate(all="ignore"):
                if measure == "distance":
                    value = float(np.linalg.norm(one - two))
                elif measure == "dot":
                    value = float(one @ two)
                else:
                    value = float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))
            if not np.isfinite(value):
                found.append(GuidewayError("the model gave numbers that are not finite"))
                continue
            found.append(Likeness(request.task.request_id, value, request.truncated))
        return found

    def failed(self, task: Task, error: GuidewayError) -> Likeness:
        return Likeness(task.request_id, error=error)


class Compare(Workflow):
    """Compares the texts of a pair."""

    contract = "1.0"
    name = "compare"
    tasks = ("compare",)
    options = Options
    parts: ClassVar[dict[str, str]] = {
        "input_processor": f"{__name__}:Pairs",
        "request_processor": f"{__name__}:BothTexts",
        "scheduler": "guideway_engine.prefill.scheduler:PrefillScheduler",
        "step_builder": f"{__name__}:PaddedSteps",
        "runner": f"{__name__}:MeanVectors",
        "output_processor": f"{__name__}:Measured",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        return None if kind == "bert" else f"it is made for bert, and this is {kind}"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        length = model.config.get("max_position_embeddings")
        if not is_int(length) or length < 4:
            raise InvalidConfiguration("config.json does not say how long a text may be", field="model")
        return 2 * length


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return Compare
