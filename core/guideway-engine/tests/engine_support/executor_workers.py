"""Small workers for executors, importable by the processes they run in."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import InvalidConfiguration, PluginError
from numpy.typing import NDArray


class Worker:
    """A worker with methods for tests."""

    def __init__(self, rank: int, num_workers: int) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.kept: Any = None
        self.counted = 0

    def identity(self) -> tuple[int, int, int]:
        return self.rank, self.num_workers, os.getpid()

    def echo(self, *values: Any) -> Any:
        return values

    def keep(self, value: Any) -> None:
        self.kept = value

    def count(self) -> int:
        self.counted += 1
        return self.counted

    def kept_value(self) -> Any:
        return self.kept

    def add_one(self, array: NDArray[Any]) -> NDArray[Any]:
        array += 1  # the arriving array is the worker's own copy
        return array

    def rising(self, size: int) -> NDArray[np.int64]:
        return np.arange(size)

    def fail(self, error: BaseException) -> None:
        raise error

    def lose_device(self) -> None:
        """Fail like CUDA after an error in a kernel: every later call fails too."""
        import torch

        def fail() -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, fail
        fail()

    def fail_from_cause(self) -> None:
        try:
            int("missing")
        except ValueError as cause:
            raise PluginError("it broke", plugin="worker.test") from cause

    def fail_with_the_unpicklable(self) -> None:
        raise Stubborn("cannot", "travel")

    def return_the_unpicklable(self) -> Any:
        return lambda: None

    def fail_at(self, rank: int) -> int:
        if self.rank == rank:
            raise ValueError(f"rank {rank} failed")
        return self.rank

    def fail_or_hang(self, rank: int) -> None:
        if self.rank == rank:
            raise ValueError(f"rank {rank} failed")
        time.sleep(600)

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def compute(self, seconds: float) -> float:
        """Use CPU time for some seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return seconds

    def execute(self, how: str, seconds: float) -> float:
        """Compute for some seconds, as a step; while compiling, as reported by torch or jax, if `how` names it."""
        if how == "torch":
            from torch._dynamo.callback import CallbackTrigger, callback_handler

            with callback_handler.install_callbacks(CallbackTrigger.DYNAMO, "1"):
                self.compute(seconds)
        if how == "jax":
            import jax
            import jax.numpy as jnp

            def slow(x: Any) -> Any:
                return jnp.sin(x)

            lowered = jax.jit(slow).lower(jnp.zeros(3))
            from jax._src import compiler

            compiler.compile_or_get_cached = partial(self._slowly, seconds, compiler.compile_or_get_cached)
            lowered.compile()
        if how == "compute":
            self.compute(seconds)
        return seconds

    def _slowly(self, seconds: float, compile_it: Any, *args: Any, **kwargs: Any) -> Any:
        self.compute(seconds)
        return compile_it(*args, **kwargs)

    def imported(self, name: str) -> None:
        importlib.import_module(name)

    def exit(self, status: int) -> None:
        os._exit(status)

    def system_exit(self) -> None:
        sys.exit(7)

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fork_and_exit(self) -> None:
        """Exit, leaving a child that has inherited the pipes and lives a few seconds longer."""
        if os.fork() == 0:
            time.sleep(8)
            os._exit(0)
        os._exit(3)

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)


class Stubborn(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Closing(Worker):
    """Writes a note when it is closed."""

    def __init__(self, note: str, rank: int, num_workers: int) -> None:
        super().__init__(rank, num_workers)
        self.note = Path(note)

    def close(self) -> None:
        with self.note.open("a") as file:
            file.write(f"{self.rank} ")


class Clinging(Worker):
    """Does not return from `close` and ignores SIGTERM."""

    def close(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


def stopping(rank: int, num_workers: int) -> Worker:
    """Stop the process, as by SIGSTOP, while the worker is created."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return Worker(rank, num_workers)


def refused(rank: int, num_workers: int) -> Worker:
    raise InvalidConfiguration("not like this", field="worker.option")


def only_once(made: Path, rank: int, num_workers: int) -> Worker:
    if made.exists():
        return refused(rank, num_workers)
    made.touch()
    return Worker(rank, num_workers)
