"""Running steps of a workflow, and recovering from their failures."""

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
"""Number of lost workers after which a request that is computed alone is to blame."""

WAIT_SECONDS = 1.0
"""Seconds to wait for the worker before checking again."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A step that was sent to the worker."""

    call: Call
    life: int
    """Number of the worker that it was sent to."""


class Computing:
    """Builds steps, sends them to the worker and reads the results. Used by one thread."""

    def __init__(self, workflow: str, parts: Parts, executor: Executor) -> None:
        self._plugin = f"workflow.{workflow}"
        self._parts = parts
        self._executor = executor
        self._lives = 1
        """Number of workers started, one after the other."""
        self._restarts = Restarts(self._begin_again)
        self._closed = False

    @property
    def failure(self) -> WorkerLost | None:
        """The error if every attempt to restart the worker has failed."""
        return self._restarts.failure

    def close(self) -> None:
        """Stop waiting for steps and workers. May be called from any thread."""
        self._closed = True

    def submit(self, work: Sequence[Prepared]) -> Sent | GuidewayError:
        """Send the step of `work` to the worker, once there is one."""
        try:
            self._await_worker()
            return Sent(self._executor.submit("execute", self._parts.step_builder.build(work)), self._lives)
        except BaseException as error:
            return self.named(error)

    def results(self, work: Sequence[Prepared], sent: Sent | GuidewayError) -> list[Any | GuidewayError]:
        """Return the result or the error of each request.

        If the step failed, each request is computed alone, so that a faulty one does not affect the others. Requests in
        a step whose worker was lost are tried several times, because the loss may have another cause.
        """
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
        """Return the result or the error of one request."""
        for _ in range(DEATHS_ALONE):
            found = self._read([request], self.submit([request]))
            if not isinstance(found, WorkerLost) or found is self.failure:
                break
        return found if isinstance(found, GuidewayError) else found[0]

    def drop(self, sent: Sent | GuidewayError) -> None:
        """Wait for a step whose results are not needed."""
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
            return [self._check_result(one) for one in found]
        except WorkerLost as error:
            if sent.life == self._lives:  # otherwise it was replaced already
                self._restarts.record_loss(error)
            return error
        except BaseException as error:
            return self.named(error)

    def _check_result(self, result: Any) -> Any | GuidewayError:
        """Return the result of an output processor, or an error if it is not a result."""
        if result is None or isinstance(result, BaseException):
            return self.named(
                result if result is not None else TypeError("the output processor made None of a request")
            )
        return result

    def _begin_again(self) -> Iterator[Call]:
        """Start a new worker in place of a lost one."""
        self._executor.restart()
        self._lives += 1
        yield self._executor.submit("load")

    def _await_worker(self) -> None:
        """Wait until there is a worker. Raises `WorkerLost` if none can be started."""
        while not self._restarts.advance(WAIT_SECONDS):
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine was closed")

    def named(self, error: BaseException) -> GuidewayError:
        """Return `error` as a `GuidewayError` that names the workflow."""
        contain(error)
        if isinstance(error, GuidewayError):
            return error
        named = PluginError(f"{self._plugin} failed while it computed: {text_of(error)}", plugin=self._plugin)
        named.__cause__ = error
        return named
