"""Work in several steps, each of which waits for a future, as one future."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress
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
    found: Future[T] = Future()

    def settle(error: BaseException | None, value: Any) -> None:
        if not found.set_running_or_notify_cancel():
            return
        if error is None:
            found.set_result(value)
        else:
            found.set_exception(error)

    def proceed(_: Future[Any]) -> None:
        try:
            awaited = next(steps)
        except StopIteration as end:
            settle(*(end.value or (None, None)))  # it was closed if there is no value
        except BaseException as error:
            settle(error, None)
        else:
            awaited.add_done_callback(proceed)
            end_if_canceled(found)

    def end_if_canceled(_: Future[T]) -> None:
        if found.cancelled():
            with suppress(ValueError):  # another thread executes it, and ends it after this step
                steps.close()

    try:
        first = next(steps)
    except StopIteration as end:
        settle(*end.value)
        return found
    found.add_done_callback(end_if_canceled)
    first.add_done_callback(proceed)
    return found


def error_of(future: Future[Any]) -> BaseException | None:
    """Return the error of a future that is done, or None."""
    return GuidewayError("closed before it was compiled") if future.cancelled() else future.exception()
