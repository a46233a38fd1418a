"""Says which of two answers is the better one: a reward for each, and the probability that the first one wins."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
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
    WorkScheduler,
    hookimpl,
)
from guideway.api.options import Range, is_int


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of an operator."""

    max_step_tokens: Annotated[int, Range(1)] = 2048
    max_step_requests: Annotated[int, Range(1)] = 16


class PreferInputs(InputProcessor):
    def check(self, task: Task) -> None:
        value = task.value
        if not (isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(text, str) for text in value)):
            raise InvalidRequest("prefer takes two texts: (first, second)", field="input")
        try:
            "".join(value).encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("a text holds half a character", field="input") from error
        for name, given in task.params.items():
            if name == "temperature":
                if isinstance(given, bool) or not isinstance(given, int | float) or not 0.001 <= given <= 1000:
                    raise InvalidRequest("temperature must be a number from 0.001 to 1000", field="temperature")
            elif name == "truncate":
                if not isinstance(given, bool):
                    raise InvalidRequest("truncate must be true or false", field="truncate")
            else:
                raise InvalidRequest(f"prefer has no parameter {name!r}", field="params")


class PreferRequests(RequestProcessor):
    """Both texts in one row, each with its special tokens; token types tell them apart."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)
        self._tokenizer.backend_tokenizer.no_truncation()
        self._positions = context.model.config["max_position_embeddings"]

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self._prepared(task) for task in tasks]

    def _prepared(self, task: Task) -> Prepared | GuidewayError:
        try:
            texts = [self._tokenizer(text).input_ids for text in task.value]
        except Exception as error:  # whatever the tokenizer has against a text
            return InvalidRequest(f"a text cannot be tokenized: {error}", field="input")
        most, half = self.context.max_model_len, min(self.context.max_model_len // 2, self._positions)
        cut = sum(map(len, texts)) > most or max(map(len, texts)) > self._positions
        if cut:
            if not task.params.get("truncate", False) or half < 3:
                return LimitExceeded(
                    f"two texts have {sum(map(len, texts))} tokens, and {most} are allowed", field="input"
                )
            texts = [ids if len(ids) <= half else ids[: half - 1] + ids[-1:] for ids in texts]
        types = np.repeat(np.array([0, 1], dtype=np.int64), [len(ids) for ids in texts])
        return Prepared(
            task=task, token_ids=np.array(texts[0] + texts[1], dtype=np.int64), token_types=types, truncated=cut
        )


class PreferScheduler(WorkScheduler):
    """Strictly by priority and arrival, whoever asks: nobody is overtaken by what came later and is no more urgent."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._waiting: list[tuple[tuple[int, int, int], Task]] = []
        self._preparing: dict[Task, tuple[int, int, int]] = {}
        self._ready: list[tuple[tuple[int, int, int], Prepared]] = []
        self._count = 0

    def add(self, task: Task) -> None:
        self._count += 1
        insort(self._waiting, ((task.priority, task.arrival, self._count), task), key=lambda entry: entry[0])

    def upcoming(self) -> list[Task]:
        room = self.window() - len(self._ready) - len(self._preparing)
        taken, self._waiting = self._waiting[: max(room, 0)], self._waiting[max(room, 0) :]
        self._preparing.update({task: key for key, task in taken})
        return [task for _, task in taken]

    def prepared(self, request: Prepared) -> None:
        key = self._preparing.pop(request.task, None)
        if key is not None:  # else it was aborted meanwhile
            insort(self._ready, (key, request), key=lambda entry: entry[0])

    def abort(self, task: Task) -> None:
        self._preparing.pop(task, None)
        self._waiting = [entry for entry in self._waiting if entry[1] is not task]
        self._ready = [entry for entry in self._ready if entry[1].task is not task]

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        options = self.context.options
        earliest = min(self._preparing.values(), default=None)  # nothing goes before it
        work: list[Prepared] = []
        tokens, full, blocked = 0, False, False
        for key, request in self._ready:
            if earliest is not None and key > earliest:
                blocked = True
                break
            if len(work) == options.max_step_requests or (
                work and tokens + request.num_tokens > options.max_step_tokens
            ):
                full = True
                break
            work.append(request)
            tokens += request.num_tokens
        full = full or len(work) == options.max_step_requests or tokens >= options.max_step_tokens
        if not work or (not full and (blocked or more or self._waiting or self._preparing)):
            return None
        del self._ready[: len(work)]
        return work

    def finished(self, work: Sequence[Prepared]) -> None:
        """Nothing is kept of it."""

    def window(self) -> int:
        return 4 * self.context.options.max_step_requests


class PreferSteps(StepBuilder):
    def build(self, work: Sequence[Prepared]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(request.token_ids, request.token_types) for request in work]


class PreferRunner(WorkflowRunner):
    """The reward of a text: the mean of its tokens' vectors along one direction, which the width settles."""

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
            raise InvalidConfiguration(f"prefer cannot load the model: {error}", field="model") from error
        self._model = model.to(context.device).eval()
        direction = np.random.default_rng(7).standard_normal(model.config.hidden_size)
        self._direction = torch.from_numpy(direction).to(context.device, torch.float32)

    def execute(self, step: Any) -> np.ndarray:
        import torch

        with torch.inference_mode():
            rewards = [[self._reward(torch, ids[types == which]) for which in (0, 1)] for ids, types in step]
        return np.array(rewards, dtype=np.float32).reshape(len(step), 2)

    def _reward(self, torch: Any, ids: np.ndarray) -> float:
        batch = torch.from_numpy(ids)[None].to(self.context.device)
        hidden = self._model(input_ids=batch).last_hidden_state[0].float()
        return float(hidden.mean(dim=0) @ self._direction)

    def close(self) -> None:
        self._model = self._direction = None


@dataclass(frozen=True)
class Preference:
    request_id: str
    num_tokens: int = 0
    truncated: bool = False
    rewards: tuple[float, float] | None = None
    probability: float | None = None
    """That the first one is the better one."""
    error: GuidewayError | None = None


class PreferOutputs(OutputProcessor):
    def results(self, work: Sequence[Prepared], output: np.ndarray) -> list[Any]:
        return [self._result(request, *map(float, row)) for request, row in zip(work, output, strict=True)]

    def _result(self, request: Prepared, first: float, second: float) -> Any:
        if not (math.isfinite(first) and math.isfinite(second)):
            return GuidewayError("the model gave a reward that is not finite")
        margin = (first - second) / request.task.params.get("temperature", 1.0)
        probability = 0.5 * (1.0 + math.tanh(margin / 2))  # the sigmoid, for margins of any size
        return Preference(request.task.request_id, request.num_tokens, request.truncated, (first, second), probability)

    def failed(self, task: Task, error: GuidewayError) -> Preference:
        return Preference(task.request_id, error=error)


class PreferWorkflow(Workflow):
    contract = "1.0"
    name = "prefer"
    tasks = ("prefer",)
    options = Options
    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": f"{__name__}:PreferInputs",
        "request_processor": f"{__name__}:PreferRequests",
        "scheduler": f"{__name__}:PreferScheduler",
        "step_builder": f"{__name__}:PreferSteps",
        "runner": f"{__name__}:PreferRunner",
        "output_processor": f"{__name__}:PreferOutputs",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        if model.config.get("model_type") != "bert":
            return f"prefer is made for bert, and this is {model.config.get('model_type')}"
        return (
            None
            if is_int(model.config.get("max_position_embeddings"))
            else "its config.json does not say how long it is"
        )

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return 2 * int(model.config["max_position_embeddings"])


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return PreferWorkflow
