"""Work in several steps, each of which waits for a future, as one future."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from guideway.errors import GuidewayError

__all__ = ["Steps", "error_of", "run"]

T = TypeVar("T")

Steps: TypeAlias = Generator[Future[Any], None, tuple[BaseException | None, T]]
"""Work that yields each future that it waits for. It returns its error or None, and its result."""


def run(steps: Steps[T]) -> Future[T]:
    """Begin work and return its future. Raises the errors of the first step.

    The threads that complete the yielded futures continue the work. If the returned future is canceled, the work ends:
    `GeneratorExit` is raised where it waits.
    """
    work = _Work(steps)
    try:
        first = next(steps)
    except StopIteration as end:
        work.settle(*end.value)
        return work.found
    work.found.add_done_callback(partial(_close_if_canceled, steps))
    first.add_done_callback(work.proceed)
    return work.found


class _Work:
    """Work and its future. The future does not refer to it, so that nothing that was found is in a cycle."""

    def __init__(self, steps: Steps[Any]) -> None:
        self._steps = steps
        self.found: Future[Any] = Future()

    def proceed(self, _: Future[Any]) -> None:
        """Do the next step."""
        try:
            awaited = next(self._steps)
        except StopIteration as end:
            self.settle(*(end.value or (None, None)))  # it was closed if there is no value
        except BaseException as error:
            self.settle(error, None)
        else:
            awaited.add_done_callback(self.proceed)
            _close_if_canceled(self._steps, self.found)

    def settle(self, error: BaseException | None, value: Any) -> None:
        """End with an error or a result."""
        if not self.found.set_running_or_notify_cancel():
            return
        if error is None:
            self.found.set_result(value)
        else:
            self.found.set_exception(error)


def _close_if_canceled(steps: Steps[Any], found: Future[Any]) -> None:
    if found.cancelled():
        with suppress(ValueError):  # another thread executes it, and ends it after this step
            steps.close()


def error_of(future: Future[Any]) -> BaseException | None:
    """Return the error of a future that is done, or None."""
    return GuidewayError("closed before it was compiled") if future.cancelled() else future.exception()
