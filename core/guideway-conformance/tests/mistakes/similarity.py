"""The workflow `similarity`: the similarity of two sentences, by the mean of their tokens' vectors."""

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
    WorkflowRunner,
    hookimpl,
)
from guideway.api.options import Range

PARAMETERS = {"metric": ("cosine", "dot"), "truncate": ("refuse", "right")}


@dataclass(frozen=True, kw_only=True)
class Options:
    max_step_tokens: Annotated[int, Range(1)] = 2048
    max_step_requests: Annotated[int, Range(1)] = 16
    max_input_bytes: Annotated[int, Range(1)] = 1 << 20


class Similarity(Workflow):
    contract = "1.0"
    name = "similarity"
    tasks = ("similarity",)
    options = Options
    parts: ClassVar[dict[str, str]] = {
        "input_processor": f"{__name__}:Pairs",
        "request_processor": f"{__name__}:BothTexts",
        "scheduler": "guideway_engine.prefill.scheduler:PrefillScheduler",
        "step_builder": f"{__name__}:Padded",
        "runner": f"{__name__}:MeanPooling",
        "output_processor": f"{__name__}:Scores",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        if kind not in ("bert", "electra"):
            return f"it is made for bert and electra, and this is {kind}"
        positions = model.config.get("max_position_embeddings")
        return None if type(positions) is int and positions > 2 else "its config names no number of positions"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return 2 * model.config["max_position_embeddings"]


class Pairs(InputProcessor):
    def check(self, task: Task) -> None:
        pair = task.value
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise InvalidRequest("similarity takes pairs of texts", field="input")
        for text in pair:
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:
                raise InvalidRequest("a text holds half a character", field="input") from error
            if size > self.context.options.max_input_bytes:
                raise LimitExceeded(f"a text has {size} bytes", field="input")
            if not text.strip():
                raise InvalidRequest("a text is empty", field="input")
        for name, value in task.params.items():
            if name not in PARAMETERS:
                raise InvalidRequest(f"similarity has no parameter {name!r}", field="params")
            try:
                known = value in PARAMETERS[name]
            except ValueError as error:  # `value` is an array
                raise InvalidRequest(f"{name} is one of {PARAMETERS[name]}", field=name) from error
            if not known:
                raise InvalidRequest(f"{name} is one of {PARAMETERS[name]}", field=name)


class BothTexts(RequestProcessor):
    """Prepares both texts, one after the other, each with special tokens, distinguished by token types."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)
        self._tokenizer.backend_tokenizer.no_truncation()
        self._tokenizer.backend_tokenizer.no_padding()
        self._half = context.max_model_len // 2

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found: list[Prepared | GuidewayError] = []
        for task in tasks:
            try:
                found.append(self._prepared(task))
            except GuidewayError as error:
                found.append(error)
            except Exception as error:
                found.append(InvalidRequest(f"a text cannot be tokenized: {error}", field="input"))
        return found

    def _prepared(self, task: Task) -> Prepared:
        sides = [self._tokenizer(text, add_special_tokens=False).input_ids for text in task.value]
        if not all(sides):
            raise InvalidRequest("a text has no tokens", field="input")
        room = self._half - 2
        too_long = [len(side) > room for side in sides]
        if any(too_long) and (task.params.get("truncate", "refuse") == "refuse" or room < 1):
            raise LimitExceeded(f"a text has more than the {max(room, 0)} tokens there is room for", field="input")
        ids, types = [], []
        for number, side in enumerate(sides):
            whole = [self._tokenizer.cls_token_id, *side[:room], self._tokenizer.sep_token_id]
            ids += whole
            types += [number] * len(whole)
        return Prepared(
            task=task,
            token_ids=np.array(ids, dtype=np.int64),
            token_types=np.array(types, dtype=np.int64),
            truncated=any(too_long),
        )


@dataclass(frozen=True)
class Step:
    token_ids: np.ndarray
    """int64 ``[2 n, longest]``: the first texts of all pairs, then the second ones."""
    mask: np.ndarray
    """int64, the same shape: 1 for each token."""


class Padded(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> Step:
        texts = [request.token_ids[request.token_types == which] for which in (0, 1) for request in work]
        ids = np.zeros((len(texts), max(map(len, texts), default=0)), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        return Step(ids, mask)


class MeanPooling(WorkflowRunner):
    _model: Any = None

    def load(self) -> None:
        import torch
        from transformers import AutoModel

        where = self.context.model.path
        try:
            model = AutoModel.from_pretrained(where, local_files_only=True, dtype=getattr(torch, self.context.dtype))
        except (OSError, ValueError, AttributeError) as error:
            raise InvalidConfiguration(f"the model cannot be loaded: {error}", field="model") from error
        self._model = model.to(self.context.device).eval()

    def execute(self, step: Step) -> dict[str, np.ndarray]:
        import torch

        with torch.inference_mode():
            ids = torch.tensor(step.token_ids, device=self.context.device)
            mask = torch.tensor(step.mask, device=self.context.device)
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weights = mask[..., None].float()
            means = (hidden * weights).sum(1) / weights.sum(1)
            first, second = means.chunk(2)
            dot = (first * second).sum(1)
            cosine = torch.nn.functional.cosine_similarity(first, second, dim=1)
            return {"dot": dot.cpu().numpy(), "cosine": cosine.cpu().numpy()}

    def close(self) -> None:
        self._model = None


@dataclass(frozen=True)
class Score:
    request_id: str
    num_tokens: int = 0
    truncated: bool = False
    score: float | None = None
    error: Exception | None = None


class Scores(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: dict[str, np.ndarray]) -> list[Score | GuidewayError]:
        found: list[Score | GuidewayError] = []
        for index, request in enumerate(work):
            score = float(output[request.task.params.get("metric", "cosine")][index])
            if not np.isfinite(score):
                found.append(GuidewayError("the model gave a vector that is not finite"))
                continue
            found.append(Score(request.task.request_id, request.num_tokens, request.truncated, score))
        return found

    def failed(self, task: Task, error: GuidewayError) -> Score:
        return Score(task.request_id, error=error)


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return Similarity
