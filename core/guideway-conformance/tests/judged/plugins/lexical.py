"""Sparse lexical vectors: a weight for each word of the vocabulary that a text is about, as SPLADE makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidConfiguration,
    InvalidRequest,
    ModelFolder,
    OutputProcessor,
    StepBuilder,
    Workflow,
    WorkflowRunner,
    hookimpl,
)
from guideway.api.options import Range, is_int


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of an operator; all but the last are read by parts of the engine."""

    max_step_tokens: Annotated[int, Range(1)] = 4096
    max_step_requests: Annotated[int, Range(1)] = 32
    truncate: Literal["refuse", "right", "left"] = "refuse"
    top_k: Annotated[int, Range(1)] = 128


class LexicalInputs(InputProcessor):
    """Texts and token ids; of parameters `top_k` and `floor`."""

    def check(self, task: Any) -> None:
        value = task.value
        if isinstance(value, Mapping):
            if len(value) != 1 or not set(value) <= {"prompt", "prompt_token_ids"}:
                raise InvalidRequest("an input has a prompt or its prompt_token_ids", field="input")
            ((name, value),) = value.items()
            if (name == "prompt") != isinstance(value, str):
                raise InvalidRequest(f"{name} is not of its type", field="input")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest("a text holds half a character", field="input") from error
        elif not (isinstance(value, list | tuple) and value and all(is_int(token) for token in value)):
            raise InvalidRequest("lexical takes a text or a list of token ids", field="input")
        elif not all(0 <= token < self.context.model.config["vocab_size"] for token in value):
            raise InvalidRequest("a token id is not of the model's vocabulary", field="input")
        for name, given in task.params.items():
            if name == "top_k":
                if not (is_int(given) and given >= 1):
                    raise InvalidRequest("top_k must be a whole number of at least 1", field="top_k")
            elif name == "floor":
                if not (isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 100):
                    raise InvalidRequest("floor must be a number from 0 to 100", field="floor")
            else:
                raise InvalidRequest(f"lexical has no parameter {name!r}", field="params")


@dataclass(frozen=True)
class PaddedStep:
    """Token ids of requests, a row each, filled up with zeros."""

    token_ids: np.ndarray
    lengths: np.ndarray


class PaddedSteps(StepBuilder):
    def build(self, work: Any) -> PaddedStep:
        lengths = np.array([request.num_tokens for request in work], dtype=np.int64)
        token_ids = np.zeros((len(work), int(lengths.max())), dtype=np.int64)
        for row, request in zip(token_ids, work, strict=True):
            row[: request.num_tokens] = request.token_ids
        return PaddedStep(token_ids, lengths)


class Sparse(NamedTuple):
    """The words of all requests in one row; those of request i are ``[starts[i], starts[i + 1])``."""

    words: np.ndarray
    weights: np.ndarray
    starts: np.ndarray


class LexicalRunner(WorkflowRunner):
    """log(1 + relu(hidden · embeddings)), the largest of each word over the tokens."""

    _model: Any = None

    def load(self) -> None:
        import torch
        from transformers import AutoModel

        context = self.context
        try:
            dtype = getattr(torch, context.dtype)
            model = AutoModel.from_pretrained(context.model.path, local_files_only=True, dtype=dtype)
        except (OSError, ValueError, AttributeError) as error:
            raise InvalidConfiguration(f"lexical cannot load the model: {error}", field="model") from error
        self._model = model.to(context.device).eval()

    def execute(self, step: PaddedStep) -> Sparse:
        import torch

        with torch.inference_mode():
            device = self.context.device
            ids = torch.from_numpy(step.token_ids).to(device)
            lengths = torch.from_numpy(step.lengths).to(device)
            mask = torch.arange(ids.shape[1], device=device)[None] < lengths[:, None]
            hidden = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
            table = self._model.get_input_embeddings().weight
            scores = torch.log1p(torch.relu((hidden @ table.T).float()))
            scores = scores.masked_fill(~mask[:, :, None], 0.0)
            dense = scores.amax(dim=1).cpu().numpy()
        rows, words = np.nonzero(dense)  # what is not finite is not zero
        starts = np.searchsorted(rows, np.arange(len(dense) + 1))
        return Sparse(words.astype(np.int32), dense[rows, words], starts)

    def close(self) -> None:
        self._model = None


@dataclass(frozen=True, eq=False)
class Lexical:
    """The result: words by their weight, the heaviest first. Equal to itself alone: arrays have no truth."""

    request_id: str
    words: tuple[int, ...] = ()
    weights: np.ndarray | None = None
    num_tokens: int = 0
    truncated: bool = False
    error: GuidewayError | None = None


class LexicalOutputs(OutputProcessor):
    def results(self, work: Any, output: Sparse) -> list[Any]:
        return [self._result(request, output, index) for index, request in enumerate(work)]

    def _result(self, request: Any, output: Sparse, index: int) -> Any:
        part = slice(output.starts[index], output.starts[index + 1])
        words, weights = output.words[part], output.weights[part]
        if not np.isfinite(weights).all():
            return GuidewayError("the model gave numbers that are not finite")
        params = request.task.params
        order = np.argsort(-weights, kind="stable")[: params.get("top_k", self.context.options.top_k)]
        order = order[weights[order] >= params.get("floor", 0.0)]
        return Lexical(
            request_id=request.task.request_id,
            words=tuple(words[order].tolist()),
            weights=weights[order].astype(np.float32),
            num_tokens=request.num_tokens,
            truncated=request.truncated,
        )

    def failed(self, task: Any, error: GuidewayError) -> Lexical:
        return Lexical(request_id=task.request_id, error=error)


class LexicalWorkflow(Workflow):
    contract = "1.0"
    name = "lexical"
    tasks = ("lexical",)
    options = Options
    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": f"{__name__}:LexicalInputs",
        "request_processor": "guideway_engine.prefill.requests:Tokenizing",
        "scheduler": "guideway_engine.prefill.scheduler:PrefillScheduler",
        "step_builder": f"{__name__}:PaddedSteps",
        "runner": f"{__name__}:LexicalRunner",
        "output_processor": f"{__name__}:LexicalOutputs",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        if kind not in ("bert", "distilbert"):
            return f"lexical is made for bert and distilbert, and this is {kind}"
        for name in ("max_position_embeddings", "vocab_size"):
            if not is_int(model.config.get(name)):
                return f"its config.json has no number {name}"
        return None

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return int(model.config["max_position_embeddings"])


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return LexicalWorkflow
