"""Executor with each worker in its own process: commands go through pipes, arrays through shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from guideway.api.options import Range, parse_options
from guideway.api.provisional import Executor

from guideway_engine.executors.process.group import PendingCall, WorkerGroup

__all__ = ["ProcessExecutor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the executor."""

    num_workers: Annotated[int, Range(1)] = 1
    """Number of workers. Several workers share the model, if it supports that."""
    timeout: Annotated[float, Range(above=0)] | None = 300.0
    """Seconds without an answer to a step after which a worker counts as lost. Loading, a method of a mixin that is
    called by name, and a step that compiles may take longer while the worker uses CPU time; without any for this many
    seconds it counts as lost. None: no limit."""


class ProcessExecutor(Executor):
    """Runs workers in newly started processes; the program needs no ``if __name__ == "__main__"``.

    If a worker dies or does not answer, all pending and later calls raise `WorkerLost` until `restart`. Several workers
    find each other as with ``torchrun``, through ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` in their
    environment.
    """

    contract = "1.0"
    name = "process"

    def __init__(self, make_worker: Callable[[int, int], Any], options: Mapping[str, Any]) -> None:
        super().__init__(make_worker, options)
        self._options = parse_options(Options, options, where="executor.process")
        self._group = self._new_group()
        try:
            self._group.made()
        except BaseException:
            self._group.kill("it could not be started")
            raise

    def submit(self, method: str, *args: Any) -> PendingCall:
        return self._group.submit(method, *args)

    def restart(self) -> None:
        self._group.kill("its executor was restarted")
        self._group = self._new_group()

    def close(self) -> None:
        self._group.close()

    def _new_group(self) -> WorkerGroup:
        return WorkerGroup(self._options.num_workers, self._options.timeout, self.make_worker)
