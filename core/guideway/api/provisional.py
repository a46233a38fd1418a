"""Provisional contracts, which may change within v1: models and executors. `guideway.api.attention` and
`guideway.api.workflow` are provisional too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

__all__ = ["Call", "Executor", "Model"]


class Model(ABC):
    """A model that ships as a Python package."""

    contract: ClassVar[str]
    name: ClassVar[str]

    @abstractmethod
    def path(self) -> Path:
        """Return a folder that ``transformers`` can load: configuration, weights, tokenizer, chat template."""


class Call(Protocol):
    """A pending method call on every worker."""

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`. Return True if `result` would then return or raise at once."""
        ...

    def result(self) -> Any:
        """Wait, and return the result of worker 0. Raises the error of any worker, and `WorkerLost`."""
        ...

    def results(self) -> list[Any]:
        """Wait, and return the results of all workers, by rank. Raises as `result` does."""
        ...


class Executor(ABC):
    """The owner of the workers, which decides where they run and how calls reach them.

    ``make_worker(rank, num_workers)`` creates one worker; the function pickles, so another process can call it.
    Creating the executor creates the workers and raises their errors. An executor is used by one thread.
    """

    contract: ClassVar[str]
    name: ClassVar[str]

    def __init__(self, make_worker: Callable[[int, int], Any], options: Mapping[str, Any]) -> None:
        self.make_worker = make_worker
        self.options = options

    @abstractmethod
    def submit(self, method: str, *args: Any) -> Call:
        """Call a method of every worker, in the order of submission. Returns at once if the workers run elsewhere.
        Arguments pickle; the caller may change arrays in them once the call has a result."""

    @abstractmethod
    def restart(self) -> None:
        """Start to replace lost workers; pending calls are lost. If creating a worker fails, its error is raised here
        or by the results of later calls."""

    @abstractmethod
    def close(self) -> None:
        """Shut down every worker, calling its ``close()`` if it has one. May be called twice."""
