"""One step of a workflow from work to results, whatever fails in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from guideway.api.provisional import Call, Executor
from guideway.api.workflow import Prepared
from guideway.errors import GuidewayError, PluginError, WorkerLost, contain, text_of

from guideway_engine.errors import EngineClosed
from guideway_engine.executors.restarting import Restarts
from guideway_engine.workflows.parts import Parts

__all__ = ["Computing"]

log = logging.getLogger("guideway_engine")

DEATHS_ALONE = 2
"""The worker has to be lost so often with a request that is computed alone, before that is the request's doing."""

WAIT_SECONDS = 1.0
"""The seconds for which the worker is waited for at a time."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A step on its way."""

    call: Call
    life: int
    """The number of the worker that it was sent to."""


class Computing:
    """Builds steps, sends them to the worker and reads what comes back. Used by one thread."""

    def __init__(self, workflow: str, parts: Parts, executor: Executor) -> None:
        self._plugin = f"workflow.{workflow}"
        self._parts = parts
        self._executor = executor
        self._lives = 1
        """The workers that there were, one after the other."""
        self._restarts = Restarts(self._begin_again)
        self._closed = False

    @property
    def failure(self) -> WorkerLost | None:
        """Why there is no worker, if no attempt to restart it has succeeded."""
        return self._restarts.failure

    def close(self) -> None:
        """Let nothing be waited for any more. May be called from any thread."""
        self._closed = True

    def submit(self, work: Sequence[Prepared]) -> Sent | GuidewayError:
        """Send the step of this work on its way, once there is a worker."""
        try:
            self._await_worker()
            return Sent(self._executor.submit("execute", self._parts.step_builder.build(work)), self._lives)
        except BaseException as error:
            return self.named(error)

    def results(self, work: Sequence[Prepared], sent: Sent | GuidewayError) -> list[Any | GuidewayError]:
        """The result of each request, or why it has none. If the step failed, each is computed by itself, so that
        whatever one of them does ends that one alone. A worker that is lost need not be the request's doing: each is
        tried several times."""
        found = self._read(work, sent)
        if not isinstance(found, GuidewayError):
            return found
        if len(work) == 1 and not isinstance(found, WorkerLost):
            return [found]
        results: list[Any | GuidewayError] = []
        for one in work:
            no_worker = found if found is self.failure else None
            results.append(found := no_worker or self._alone(one))
        return results

    def _alone(self, request: Prepared) -> Any | GuidewayError:
        """The result of one request, or why it has none."""
        for _ in range(DEATHS_ALONE):
            found = self._read([request], self.submit([request]))
            if not isinstance(found, WorkerLost) or found is self.failure:
                break
        return found if isinstance(found, GuidewayError) else found[0]

    def drop(self, sent: Sent | GuidewayError) -> None:
        """Wait for a step whose results nobody wants."""
        if not isinstance(sent, GuidewayError):
            try:
                self._answer(sent)
            except BaseException as error:
                contain(error)

    def _answer(self, sent: Sent) -> Any:
        while not sent.call.wait(WAIT_SECONDS):
            self._check_open()
        return sent.call.result()

    def _read(self, work: Sequence[Prepared], sent: Sent | GuidewayError) -> list[Any] | GuidewayError:
        if isinstance(sent, GuidewayError):
            return sent
        try:
            found = list(self._parts.output_processor.results(work, self._answer(sent)))
            if len(found) != len(work):
                raise ValueError(f"{len(found)} results of {len(work)} requests")
            return [self._checked(one) for one in found]
        except WorkerLost as error:
            if sent.life == self._lives:  # else there is another one since
                self._restarts.record_loss(error)
            return error
        except BaseException as error:
            return self.named(error)

    def _checked(self, result: Any) -> Any | GuidewayError:
        """Return what an output processor made of a request, or an error if that is no result."""
        if result is None or isinstance(result, BaseException):
            return self.named(
                result if result is not None else TypeError("the output processor made None of a request")
            )
        return result

    def _begin_again(self) -> Iterator[Call]:
        """Make a new worker in place of a lost one."""
        self._executor.restart()
        self._lives += 1
        yield self._executor.submit("load")

    def _await_worker(self) -> None:
        """Wait until there is a worker. Raises `WorkerLost` if there can be none."""
        while not self._restarts.advance(WAIT_SECONDS):
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine was closed")

    def named(self, error: BaseException) -> GuidewayError:
        """`error` as one of guideway's own, which names the workflow."""
        contain(error)
        if isinstance(error, GuidewayError):
            return error
        named = PluginError(f"{self._plugin} failed while it computed: {text_of(error)}", plugin=self._plugin)
        named.__cause__ = error
        return named
