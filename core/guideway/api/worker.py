"""Worker mixins: code that runs inside every worker process, beside the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

__all__ = ["Worker", "WorkerMixin", "WorkerStep"]


class Worker(Protocol):
    """The facts that a mixin may know of the worker it is part of."""

    @property
    def model(self) -> Any:
        """The model, as its runner loaded it: with the engine's own runner a ``transformers.PreTrainedModel``."""
        ...

    @property
    def device(self) -> str:
        """The device it runs on, in the words of the device's library."""
        ...

    @property
    def rank(self) -> int:
        """The number of this worker among all workers, from 0."""
        ...

    @property
    def num_workers(self) -> int: ...


class WorkerStep(Protocol):
    """The facts that a mixin may know of a step."""

    @property
    def num_sequences(self) -> int:
        """The number of sequences, companions included, that append tokens."""
        ...

    @property
    def sequence_ids(self) -> Sequence[str]:
        """Whose they are, ``num_sequences`` of them: what the host calls a sequence in all its steps, made from its
        request's id. A companion has that of the sequence it runs beside."""
        ...

    @property
    def num_tokens(self) -> int:
        """The number of tokens that pass through the model."""
        ...

    @property
    def num_rows(self) -> int:
        """The number of rows of logits that come out."""
        ...


class WorkerMixin:
    """Subclass, and override what you need. The mixins of a configuration become one class, in configured order, of
    which each worker has one object: `self` is the same for all of them.

    The host calls the five methods below for every mixin in order (`close` in reverse). Any other attribute that two
    mixins define, on their classes or in ``__init__``, is refused at start-up, naming both. Public methods you add are
    reachable as ``engine.call_workers("name.method", ...)``; give them arguments and results that pickle.
    """

    contract: ClassVar[str]
    """The version of the contract it was written for, such as ``"1.0"``: each plugin's class states its own."""
    name: ClassVar[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are this mixin's own; an `InvalidConfiguration`, as `parse_options` raises, refuses them. Do not
        call ``super().__init__``: the host calls each mixin's."""

    def on_model_loaded(self, worker: Worker) -> None:
        """Once, after the model's weights are in place and before the first step. What it raises stops the start.

        Here weights may be changed in any way. Later only by assignment or in place under `torch.no_grad`, not through
        ``.data``: the engine may keep a copy arranged for the processor, and does not see that one."""

    def before_step(self, step: WorkerStep) -> None:
        """Before each forward pass. `SequencesFailed` ends the sequences it names, and the step goes on for the others;
        what else it raises ends the requests of this step. The next step calls it again."""

    def after_step(self, step: WorkerStep) -> None:
        """After each step's tokens are drawn, which are not final yet. `SequencesFailed` ends the sequences it names;
        what else it raises ends the requests of this step."""

    def close(self) -> None:
        """Once, when the worker shuts down or fails to start, with or without `on_model_loaded` before it. What it
        raises is logged."""
