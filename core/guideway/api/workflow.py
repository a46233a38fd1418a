"""The contract of workflows, which serve one kind of request, and of their parts.

A workflow class declares the tasks and models it serves, and names its parts. The parts are imported only by an engine
that serves the workflow, which creates each once.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from guideway.errors import GuidewayError, InvalidConfiguration

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "PARTS",
    "InputProcessor",
    "ModelFolder",
    "OutputProcessor",
    "Prepared",
    "RequestProcessor",
    "StepBuilder",
    "Task",
    "WorkScheduler",
    "Workflow",
    "WorkflowContext",
    "WorkflowRunner",
]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder on disk. Its weights are not read."""

    path: Path
    config: Mapping[str, Any]
    """The content of its ``config.json``."""

    @staticmethod
    def read(path: Path) -> ModelFolder:
        """Read the configuration of the model in the folder `path`. Raises `InvalidConfiguration` if it has no
        ``config.json``."""
        folder = ModelFolder(path, {})
        config = folder.json("config.json")
        if not isinstance(config, dict):
            why = "is no model folder: it has no config.json" if config is None else "has a config.json of another form"
            raise InvalidConfiguration(f"model {str(path)!r} {why}", field="model")
        return ModelFolder(path, config)

    def file(self, name: str) -> Path:
        """Return the path of the model's file `name`, which need not exist. A model's files may contain links and
        names that point elsewhere: raises `InvalidConfiguration` if the path leaves the folder or is not a regular
        file. In the hub's cache, links from a snapshot to its ``blobs`` are accepted."""
        path = self.path / name
        try:
            home, target = self.path.resolve(), path.resolve()
            is_special = target.exists() and not target.is_file()
        except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a NUL
            raise InvalidConfiguration(
                f"model {str(self.path)!r}: {name!r} cannot be found: {error}", field="model"
            ) from error
        homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
        if not any(target.is_relative_to(each) for each in homes):
            raise InvalidConfiguration(
                f"model {str(self.path)!r}: its file {name!r} is {str(target)!r}, outside the folder; put a copy of it "
                "into the folder, if it is one of the model's, or give the folder where all of them are",
                field="model",
            )
        if is_special:
            raise InvalidConfiguration(f"model {str(self.path)!r}: {name!r} is no regular file", field="model")
        return path

    def json(self, name: str) -> Any:
        """Return the content of the JSON file `name` in the model's folder; None if there is no such file. Raises
        `InvalidConfiguration` if it cannot be read, and as `file` does."""
        path = self.file(name)
        try:
            return json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidConfiguration(
                f"model {str(self.path)!r}: {name} cannot be read: {error}", field="model"
            ) from error

    @property
    def architecture(self) -> str:
        """The name of the model's class, such as ``BertModel``, or else its type, such as ``bert``."""
        names = self.config.get("architectures") or [self.config.get("model_type", "a model of no type")]
        return str(names[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One request as the caller sent it, not tokenized. Compared by identity."""

    request_id: str
    kind: str
    """One of the workflow's `tasks`."""
    value: Any
    """The input: text, token ids, ``{"prompt": ...}``, ``{"prompt_token_ids": ...}``, a pair, or another type that the
    workflow accepts."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the call, by name."""
    priority: int = 0
    """Lower runs first."""
    tenant: str = ""
    """The tenant that the request belongs to: tenants share a busy host fairly."""
    arrival: int = 0
    """The task's number in order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A tokenized task, ready to compute."""

    task: Task
    token_ids: np.ndarray[Any, Any]
    """int64 ``[num_tokens]``, with special tokens."""
    token_types: np.ndarray[Any, Any] | None = None
    """int64 ``[num_tokens]``: the index of each token's text in a pair; None: the model has no token types."""
    truncated: bool = False
    """True if the input was too long and was cut, as the caller allowed."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContext:
    """The constructor argument of each part of a workflow; it pickles."""

    model: ModelFolder
    max_model_len: int
    """Maximum number of tokens of a request."""
    dtype: str = "float32"
    """The dtype of the weights."""
    device: str = "cpu"
    options: Any = None
    """An instance of `Workflow.options`, from the operator's configuration."""


class Part:
    """A part of a workflow."""

    def __init__(self, context: WorkflowContext) -> None:
        self.context = context


class InputProcessor(Part, ABC):
    """The validation of tasks before they are queued. Called in the caller's thread."""

    @abstractmethod
    def check(self, task: Task) -> None:
        """Return, or raise `InvalidRequest`. Must not tokenize: only the length of a text in bytes is known here."""


class RequestProcessor(Part, ABC):
    """The tokenization of tasks, shortly before they are scheduled. Not called in the caller's thread."""

    @abstractmethod
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        """Return the prepared request or the error of each task, in order. Never raises: an error at one input, such
        as a tokenizer's, is returned for that task and does not affect others. A request of more than `max_model_len`
        tokens is cut if the caller allows it, or refused with `LimitExceeded`."""


class WorkScheduler(Part, ABC):
    """The queue of tasks and former of batches. Its methods are called by one thread at a time."""

    @abstractmethod
    def add(self, task: Task) -> None:
        """Queue a task."""

    @abstractmethod
    def upcoming(self) -> list[Task]:
        """Return the tasks to prepare next, in order; each is returned once. Empty if enough tasks are prepared or
        none is queued."""

    @abstractmethod
    def prepared(self, request: Prepared) -> None:
        """Take the prepared request of a task that `upcoming` returned."""

    @abstractmethod
    def abort(self, task: Task) -> None:
        """Drop a task in any state; an unknown task is ignored. Called instead of `prepared` if preparing the task
        failed."""

    @abstractmethod
    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        """Remove and return the requests of one step; None if there is none yet. `more`: tasks are about to be added,
        so a step that is not full should wait."""

    @abstractmethod
    def finished(self, work: Sequence[Prepared]) -> None:
        """Note that the step of `work` ended, successfully or not."""

    @abstractmethod
    def window(self) -> int:
        """Return how many tasks of one caller to read ahead: enough for several full steps."""


class StepBuilder(Part, ABC):
    """The conversion of requests to arrays."""

    @abstractmethod
    def build(self, work: Sequence[Prepared]) -> Any:
        """Return the step to send to a worker: arrays and small plain values; it pickles."""


class WorkflowRunner(Part, ABC):
    """The model on a worker. Created and called there."""

    @abstractmethod
    def load(self) -> None:
        """Load the model. Raises `InvalidConfiguration`."""

    @abstractmethod
    def execute(self, step: Any) -> Any:
        """Run a step and return its output: NumPy arrays; it pickles."""

    def close(self) -> None:
        """Release all resources."""


class OutputProcessor(Part, ABC):
    """The conversion of outputs to the results that callers get."""

    @abstractmethod
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any | GuidewayError]:
        """Return the result or the error of each request, in order."""

    @abstractmethod
    def failed(self, task: Task, error: GuidewayError) -> Any:
        """Return the result of a task that failed with `error`."""


PARTS: Mapping[str, type[Part]] = {
    "input_processor": InputProcessor,
    "request_processor": RequestProcessor,
    "scheduler": WorkScheduler,
    "step_builder": StepBuilder,
    "runner": WorkflowRunner,
    "output_processor": OutputProcessor,
}
"""The parts of a workflow and their base classes. The workflow's option of the same name, ``"module:Class"``, replaces
a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """No options."""


class Workflow(ABC):
    """A way to serve requests. Never instantiated: the class declares its tasks and models and names its parts.

    The class is imported only to ask whether it serves a model, so its module must be light.
    """

    contract: ClassVar[str]
    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]
    """The tasks that the workflow serves, such as ``embed``."""
    parts: ClassVar[Mapping[str, str]]
    """The class of each part as ``"module:Class"``, by name of `PARTS`."""
    options: ClassVar[type] = NoOptions
    """A dataclass of the operator's options, each with a default. The names ``driver`` and those in `PARTS` are
    reserved."""

    @classmethod
    @abstractmethod
    def supports(cls, model: ModelFolder) -> str | None:
        """Return None if the workflow serves this model, else the reason, to follow "it cannot serve ...: "."""

    @classmethod
    @abstractmethod
    def max_length(cls, model: ModelFolder) -> int:
        """Return the model's maximum number of tokens of a request."""

    @classmethod
    def default_length(cls, model: ModelFolder) -> int:
        """Return the default maximum number of tokens of a request; at most `max_length`."""
        return cls.max_length(model)
