"""Executor with one worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api.options import parse_options
from guideway.api.provisional import Executor
from guideway.errors import GuidewayError, WorkerLost, contain, text_of

from guideway_engine.executors.devices import device_is_lost

__all__ = ["LocalExecutor"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the executor; it has none."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished call."""

    value: Any = None
    error: BaseException | None = None

    def wait(self, seconds: float) -> bool:
        return True

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def results(self) -> list[Any]:
        return [self.result()]


class LocalExecutor(Executor):
    """Runs calls synchronously in `submit`; `Call.result` raises their errors."""

    contract = "1.0"
    name = "local"

    def __init__(self, make_worker: Callable[[int, int], Any], options: Mapping[str, Any]) -> None:
        super().__init__(make_worker, options)
        parse_options(Options, options, where="executor.local")
        self._worker: Any = make_worker(0, 1)

    def submit(self, method: str, *args: Any) -> Done:
        if self._worker is None:
            return Done(error=WorkerLost("the executor is closed"))
        try:
            return Done(getattr(self._worker, method)(*args))
        except BaseException as error:
            contain(error)
            return Done(error=_lost_error(error) if device_is_lost() else error)

    def restart(self) -> None:
        self.close()
        self._worker = self.make_worker(0, 1)

    def close(self) -> None:
        worker, self._worker = self._worker, None
        close = getattr(worker, "close", None)
        if close is not None:
            close()


def _lost_error(error: BaseException) -> GuidewayError:
    lost = GuidewayError(
        f"the device can be used no more in this process: {text_of(error).splitlines()[0]}; start the program again, "
        "or take the executor 'process', which then starts its workers again"
    )
    lost.__cause__ = error
    return lost
