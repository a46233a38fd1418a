"""Contracts that may still change inside v1: models and executors. So may `guideway.api.attention` and
`guideway.api.workflow`."""

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
        """A folder ``transformers`` can load: configuration, weights, tokenizer, chat template."""


class Call(Protocol):
    """A method under way on every worker."""

    def wait(self, seconds: float) -> bool:
        """Wait at most so long. Returns whether `result` would not wait any more."""
        ...

    def result(self) -> Any:
        """Wait, and return what worker 0 returned. Raises what any worker raised, and `WorkerLost`."""
        ...

    def results(self) -> list[Any]:
        """The same of every worker, by rank."""
        ...


class Executor(ABC):
    """The owner of the workers, which decides where they live and how calls reach them.

    ``make_worker(rank, num_workers)`` makes one worker; it pickles, so that another process can call it. Making the
    executor makes the workers and raises what that raises. Used by one thread.
    """

    contract: ClassVar[str]
    name: ClassVar[str]

    def __init__(self, make_worker: Callable[[int, int], Any], options: Mapping[str, Any]) -> None:
        self.make_worker = make_worker
        self.options = options

    @abstractmethod
    def submit(self, method: str, *args: Any) -> Call:
        """Call a method of every worker, after all that were submitted before. Returns at once where workers run
        elsewhere. Arguments pickle; arrays in them may change once the call's result is there."""

    @abstractmethod
    def restart(self) -> None:
        """Begin to make new workers in place of lost ones; calls under way are lost. What making them raises is raised
        here, or by the results of the calls that follow."""

    @abstractmethod
    def close(self) -> None:
        """Let every worker go, calling its ``close()`` if it has one. Closing twice is fine."""
