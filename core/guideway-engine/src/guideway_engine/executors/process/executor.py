"""Each worker in a process of its own: commands through pipes, arrays through shared memory."""

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
    """More than one share the model, if it can be shared."""
    timeout: Annotated[float, Range(above=0)] | None = 300.0
    """Seconds after which a worker that has not answered a step counts as lost. Loading, a method of a mixin that is
    called by name, and a step in which something is compiled may take longer, as long as they take processor time: a
    worker that has taken none for so many seconds is lost. None: it may take for ever."""


class ProcessExecutor(Executor):
    """Workers in processes started afresh, so that the program needs no ``if __name__ == "__main__"``.

    A worker that dies or does not answer is `WorkerLost`, for every call under way and every later one until
    `restart`. Several workers find each other as those of ``torchrun`` do, through ``RANK``, ``WORLD_SIZE``,
    ``MASTER_ADDR`` and ``MASTER_PORT`` in their environment.
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
