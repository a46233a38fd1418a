"""The contract of a workflow: what a host does with requests of one kind, and the parts that do it.

A workflow says which tasks it serves and which models it can serve them with, and names its parts. Asking it imports
none of them; an engine that serves it imports them, and makes each once.
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
    """A model as it lies on the disk; none of its weights are read."""

    path: Path
    config: Mapping[str, Any]
    """The content of its ``config.json``."""

    @staticmethod
    def read(path: Path) -> ModelFolder:
        """The model in the folder `path`. Raises `InvalidConfiguration` if it has no ``config.json``."""
        folder = ModelFolder(path, {})
        config = folder.json("config.json")
        if not isinstance(config, dict):
            why = "is no model folder: it has no config.json" if config is None else "has a config.json of another form"
            raise InvalidConfiguration(f"model {str(path)!r} {why}", field="model")
        return ModelFolder(path, config)

    def file(self, name: str) -> Path:
        """The path of the file `name` of the model, which need not exist. Names in a model's own files may lead
        anywhere, and so may links: raises `InvalidConfiguration` where this one leaves the folder, or is no regular
        file. The links of a snapshot in the hub's cache lead to its ``blobs``, which belong to it."""
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
        """The content of the JSON file `name` beside the model; None if there is no such file. Raises
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
        """The name of the model's class, such as ``BertModel``; else its type, such as ``bert``."""
        names = self.config.get("architectures") or [self.config.get("model_type", "a model of no type")]
        return str(names[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One request as a caller sent it: nothing of it is tokenized. Equal to itself alone."""

    request_id: str
    kind: str
    """One of the workflow's `tasks`."""
    value: Any
    """The input: text, token ids, ``{"prompt": ...}``, ``{"prompt_token_ids": ...}``, a pair, or what else
    the workflow takes."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the call, by name."""
    priority: int = 0
    """Lower goes first."""
    tenant: str = ""
    """On whose behalf: tenants share a busy host fairly."""
    arrival: int = 0
    """Its number among all that came."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A task that can be computed."""

    task: Task
    token_ids: np.ndarray[Any, Any]
    """int64 ``[num_tokens]``, with special tokens."""
    token_types: np.ndarray[Any, Any] | None = None
    """int64 ``[num_tokens]``: which text of a pair each is of; None: the model has no such types."""
    truncated: bool = False
    """True if the input was longer, and cut as the caller allowed."""

    @property
    def num_tokens(self) -> int:
        """The number of its tokens."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContext:
    """The things that each part of a workflow is made from; it pickles."""

    model: ModelFolder
    max_model_len: int
    """The most tokens of a request."""
    dtype: str = "float32"
    """The type of weights."""
    device: str = "cpu"
    options: Any = None
    """An instance of `Workflow.options`, from the operator's configuration."""


class Part:
    """A part of a workflow."""

    def __init__(self, context: WorkflowContext) -> None:
        self.context = context


class InputProcessor(Part, ABC):
    """Looks at what a caller gave, before it waits. Called in the caller's thread."""

    @abstractmethod
    def check(self, task: Task) -> None:
        """Pass, or raise `InvalidRequest`. Must not tokenise: of a text's length only its bytes are known here."""


class RequestProcessor(Part, ABC):
    """Turns tasks into what can be computed, when the scheduler is about to take them. Called off the
    caller's thread."""

    @abstractmethod
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        """One of each task, in order: the request, or why there is none. A task's error touches no other task, so
        nothing is raised: what is raised at one input, as by a tokenizer, becomes the error of its task. A request of
        more than `max_model_len` tokens is cut if the caller allows it, or refused with `LimitExceeded`."""


class WorkScheduler(Part, ABC):
    """Decides what is computed together. Its methods are called by one thread at a time."""

    @abstractmethod
    def add(self, task: Task) -> None:
        """A task waits from now on."""

    @abstractmethod
    def upcoming(self) -> list[Task]:
        """The tasks to prepare next, in turn; each is returned once. Empty: enough are prepared, or none waits."""

    @abstractmethod
    def prepared(self, request: Prepared) -> None:
        """The request of a task that `upcoming` returned."""

    @abstractmethod
    def abort(self, task: Task) -> None:
        """Forget a task, wherever it stands. Nothing happens if it is not known. Called in the place of `prepared`
        for a task that came to no request."""

    @abstractmethod
    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        """The work of one step, taken out of what is prepared; None if there is none yet. `more`: tasks are about to be
        added, so that a step which is not full had better wait."""

    @abstractmethod
    def finished(self, work: Sequence[Prepared]) -> None:
        """The step of this work is over, well or not."""

    @abstractmethod
    def window(self) -> int:
        """The tasks of one caller that are taken from him at a time: enough for several full steps."""


class StepBuilder(Part, ABC):
    """Turns work into arrays."""

    @abstractmethod
    def build(self, work: Sequence[Prepared]) -> Any:
        """The step that goes to a worker: arrays and small plain values; it pickles."""


class WorkflowRunner(Part, ABC):
    """The model on a worker. Made and called there."""

    @abstractmethod
    def load(self) -> None:
        """Load the model. Raises `InvalidConfiguration`."""

    @abstractmethod
    def execute(self, step: Any) -> Any:
        """The output of a step: NumPy arrays; it pickles."""

    def close(self) -> None:
        """Let go of what it holds."""


class OutputProcessor(Part, ABC):
    """Turns outputs into what callers get."""

    @abstractmethod
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any | GuidewayError]:
        """The result of each request, in order, or why it has none."""

    @abstractmethod
    def failed(self, task: Task, error: GuidewayError) -> Any:
        """The result of a task that came to nothing."""


PARTS: Mapping[str, type[Part]] = {
    "input_processor": InputProcessor,
    "request_processor": RequestProcessor,
    "scheduler": WorkScheduler,
    "step_builder": StepBuilder,
    "runner": WorkflowRunner,
    "output_processor": OutputProcessor,
}
"""The parts of a workflow, and the class each derives from. An option of the workflow of the same name,
``"module:Class"``, replaces one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """There are none."""


class Workflow(ABC):
    """A way to serve requests. Only its class is used: it says what it can do and names its parts.

    The class is imported to find out whether it serves a model, so its module imports nothing heavy.
    """

    contract: ClassVar[str]
    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]
    """The tasks that it serves, such as ``embed``."""
    parts: ClassVar[Mapping[str, str]]
    """By name of `PARTS`, each as ``"module:Class"``."""
    options: ClassVar[type] = NoOptions
    """A dataclass of the operator's options, each with a default. No field is named ``driver`` or as one of `PARTS`."""

    @classmethod
    @abstractmethod
    def supports(cls, model: ModelFolder) -> str | None:
        """None if it serves this model; else why not, as what follows "it cannot serve ...: "."""

    @classmethod
    @abstractmethod
    def max_length(cls, model: ModelFolder) -> int:
        """The most tokens of a request that the model was made for."""

    @classmethod
    def default_length(cls, model: ModelFolder) -> int:
        """The most tokens of a request where the operator does not say; at most `max_length`."""
        return cls.max_length(model)
