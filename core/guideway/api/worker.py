"""Worker mixins: code that runs with the model in every worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

__all__ = ["Worker", "WorkerMixin", "WorkerStep"]


class Worker(Protocol):
    """The worker, as its mixins see it."""

    @property
    def model(self) -> Any:
        """The model that the runner loaded; with the engine's default runner a ``transformers.PreTrainedModel``."""
        ...

    @property
    def device(self) -> str:
        """The worker's device, as the device's library names it."""
        ...

    @property
    def rank(self) -> int:
        """The number of this worker among all workers, from 0."""
        ...

    @property
    def num_workers(self) -> int: ...


class WorkerStep(Protocol):
    """A step, as worker mixins see it."""

    @property
    def num_sequences(self) -> int:
        """The number of sequences, companions included, that append tokens."""
        ...

    @property
    def sequence_ids(self) -> Sequence[str]:
        """The ids of these sequences, ``num_sequences`` of them. The host derives the id of a sequence from its
        request's and keeps it for all steps. A companion has the id of its main sequence."""
        ...

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the model processes."""
        ...

    @property
    def num_rows(self) -> int:
        """The number of rows of logits that the model returns."""
        ...


class WorkerMixin:
    """Base class of worker mixins. The mixins of a configuration are combined into one class, in configured order, and
    each worker has one instance of it: `self` is the same object for all of them.

    The host calls the five methods below for every mixin in order (`close` in reverse). If two mixins define the same
    other attribute, on their classes or in ``__init__``, start-up fails with an error that names both. Public methods
    can be called as ``engine.call_workers("name.method", ...)``; their arguments and results must pickle.
    """

    contract: ClassVar[str]
    """The version of the contract that the class was written for, such as ``"1.0"``. Every plugin's class sets it."""
    name: ClassVar[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Check `options`, which are this mixin's own. Raises `InvalidConfiguration`, as `parse_options` does, to
        refuse them. Do not call ``super().__init__``: the host calls each mixin's."""

    def on_model_loaded(self, worker: Worker) -> None:
        """Called once, after the weights are loaded and before the first step. An exception stops the start-up.

        Weights may be changed here in any way. Later change them only by assignment or in place under `torch.no_grad`,
        not through ``.data``: the engine may hold a repacked copy and does not notice such a change."""

    def before_step(self, step: WorkerStep) -> None:
        """Called before each forward pass. `SequencesFailed` ends the sequences it names, and the step continues with
        the others; any other exception ends the requests of this step. The next step calls it again."""

    def after_step(self, step: WorkerStep) -> None:
        """Called after each step's tokens are drawn; they are not final yet. `SequencesFailed` ends the sequences it
        names; any other exception ends the requests of this step."""

    def close(self) -> None:
        """Called once, when the worker shuts down or fails to start, perhaps without `on_model_loaded` before it.
        Exceptions are logged."""
