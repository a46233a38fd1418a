"""The workflow `keywords`: which tokens of a text are closest to what it says as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from guideway.api.options import Range


@dataclass(frozen=True, kw_only=True)
class Options:
    max_step_tokens: Annotated[int, Range(1)] = 1024
    max_step_requests: Annotated[int, Range(1)] = 8
    truncate: Literal["refuse", "right"] = "right"
    top_k: Annotated[int, Range(1)] = 5


class Keywords(Workflow):
    contract = "1.0"
    name = "keywords"
    tasks = ("keywords",)
    options = Options
    parts: ClassVar[dict[str, str]] = {
        "input_processor": f"{__name__}:Texts",
        "request_processor": f"{__name__}:Tokens",
        "scheduler": "guideway_engine.prefill.scheduler:PrefillScheduler",
        "step_builder": f"{__name__}:Steps",
        "runner": f"{__name__}:Salience",
        "output_processor": f"{__name__}:Lists",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        if not str(model.config.get("model_type", "")).startswith("bert"):
            return f"it is made for BERT, and this is {model.architecture}"
        known = map(model.config.get, ("max_position_embeddings", "vocab_size"))
        return None if all(isinstance(number, int) for number in known) else "its config lacks a size"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return model.config["max_position_embeddings"]


def _input(value: Any) -> str | list[int]:
    """The text or the token ids of an input."""
    if isinstance(value, Mapping) and len(value) == 1:
        name, value = next(iter(value.items()))
        if isinstance(value, {"prompt": str, "prompt_token_ids": list | tuple}.get(str(name), ())):
            return value if isinstance(value, str) else list(value)
    elif isinstance(value, str | list):
        return value
    raise InvalidRequest("an input is a text, a list of token ids, or a mapping with one of these", field="input")


class Texts(InputProcessor):
    def check(self, task: Task) -> None:
        value = _input(task.value)
        if not value:
            raise InvalidRequest("an input is empty", field="input")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest("a text holds half a character", field="input") from error
        else:
            size = self.context.model.config["vocab_size"]
            if not all(type(token) is int and 0 <= token < size for token in value):
                raise InvalidRequest(f"token ids are whole numbers from 0 to {size - 1}", field="input")
        unknown = set(task.params) - {"top_k"}
        if unknown:
            raise InvalidRequest(f"keywords has no parameter {', '.join(map(str, unknown))}", field="params")
        top_k = task.params.get("top_k", 1)
        if type(top_k) is not int or top_k < 1:
            raise InvalidRequest("top_k is a whole number of at least 1", field="top_k")


def _tokenizer(model: ModelFolder) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


class Tokens(RequestProcessor):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._tokenizer = _tokenizer(context.model)
        self._cache: dict[str, list[int]] = {}

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self._prepared(task) for task in tasks]

    def _prepared(self, task: Task) -> Prepared | GuidewayError:
        try:
            value = _input(task.value)
            ids = self._ids(value) if isinstance(value, str) else value
        except GuidewayError as error:
            return error
        except Exception as error:
            return InvalidRequest(f"the text cannot be tokenized: {error}", field="input")
        most = self.context.max_model_len
        if len(ids) > most and (self.context.options.truncate == "refuse" or most < 2):
            return LimitExceeded(f"the input has {len(ids)} tokens, and {most} is the most", field="input")
        cut = [*ids[: most - 1], ids[-1]] if len(ids) > most else ids
        return Prepared(task=task, token_ids=np.array(cut, dtype=np.int64), truncated=len(ids) > most)

    def _ids(self, text: str) -> list[int]:
        """Callers send the same text again and again, with another `top_k`."""
        key = text
        if key not in self._cache:
            if len(self._cache) >= 256:
                self._cache.pop(next(iter(self._cache)))
            ids = self._tokenizer(text).input_ids
            if len(ids) <= self._tokenizer.num_special_tokens_to_add():
                raise InvalidRequest("the text has no tokens", field="input")
            self._cache[key] = ids
        return self._cache[key]


@dataclass(frozen=True)
class Step:
    token_ids: np.ndarray
    """int64 ``[tokens]``: those of all requests, one after the other."""
    lengths: tuple[int, ...]


class Steps(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> Step:
        ids = [request.token_ids for request in work]
        return Step(np.concatenate(ids) if ids else np.empty(0, np.int64), tuple(map(len, ids)))


class Salience(WorkflowRunner):
    """Each text by itself: nothing is padded."""

    _model: Any = None

    def load(self) -> None:
        import torch
        from transformers import AutoModel

        path, dtype = self.context.model.path, getattr(torch, self.context.dtype)
        try:
            model = AutoModel.from_pretrained(path, local_files_only=True, dtype=dtype)
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(f"the model cannot be loaded: {error}", field="model") from error
        self._model = model.to(self.context.device).eval()

    def execute(self, step: Step) -> np.ndarray:
        import torch

        scores, start = [np.empty(0, np.float32)], 0
        with torch.inference_mode():
            for length in step.lengths:
                ids = torch.tensor(step.token_ids[start : start + length], device=self.context.device)
                start += length
                hidden = self._model(input_ids=ids[None]).last_hidden_state[0].float()
                center = hidden.mean(0, keepdim=True)
                scores.append(torch.nn.functional.cosine_similarity(hidden, center, dim=1).cpu().numpy())
        return np.concatenate(scores)

    def close(self) -> None:
        self._model = None


@dataclass(frozen=True)
class KeywordList:
    request_id: str
    num_tokens: int = 0
    truncated: bool = False
    keywords: tuple[tuple[str, float], ...] = ()
    error: Exception | None = None


class Lists(OutputProcessor):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._tokenizer = _tokenizer(context.model)
        self._special = set(self._tokenizer.all_special_ids)

    def results(self, work: Sequence[Prepared], output: np.ndarray) -> list[KeywordList | GuidewayError]:
        ends = np.cumsum([request.num_tokens for request in work])
        return [self._result(request, part) for request, part in zip(work, np.split(output, ends[:-1]), strict=True)]

    def _result(self, request: Prepared, scores: np.ndarray) -> KeywordList | GuidewayError:
        if not np.isfinite(scores).all():
            return GuidewayError("the model gave scores that are not finite")
        best: dict[int, float] = {}
        for token, score in zip(request.token_ids.tolist(), scores.tolist(), strict=True):
            if token not in self._special:
                best[token] = max(score, best.get(token, -1.0))
        top_k = request.task.params.get("top_k", self.context.options.top_k)
        chosen = sorted(best, key=lambda token: (-best[token], token))[:top_k]
        words = self._tokenizer.convert_ids_to_tokens(chosen)
        keywords = tuple((word, round(best[token], 5)) for word, token in zip(words, chosen, strict=True))
        return KeywordList(request.task.request_id, request.num_tokens, request.truncated, keywords)

    def failed(self, task: Task, error: GuidewayError) -> KeywordList:
        return KeywordList(task.request_id, error=error)


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return Keywords
