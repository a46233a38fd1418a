"""One step of a workflow from work to results, whatever fails in it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guideway.api.provisional import Call, Executor
from guideway.api.workflow import Prepared
from guideway.errors import GuidewayError, PluginError, WorkerLost, contain, text_of

from guideway_engine.workflows.parts import Parts

__all__ = ["Computing"]

log = logging.getLogger("guideway_engine")


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

    def submit(self, work: Sequence[Prepared]) -> Sent | GuidewayError:
        """Send the step of this work on its way."""
        try:
            return Sent(self._executor.submit("execute", self._parts.step_builder.build(work)), self._lives)
        except BaseException as error:
            return self.named(error)

    def results(
        self, work: Sequence[Prepared], sent: Sent | GuidewayError, *, spared: bool = True
    ) -> list[Any | GuidewayError]:
        """The result of each request, or why it has none. If the step failed, each is computed by itself, so that
        whatever one of them does ends that one alone. Who a worker is lost with is `spared` once: it need not be the
        request's doing."""
        found = self._read(work, sent)
        if not isinstance(found, GuidewayError):
            return found
        is_lost = isinstance(found, WorkerLost)
        lost = self._lives if isinstance(sent, GuidewayError) else sent.life
        if is_lost and lost == self._lives:  # else there is another one since
            found = self._restarted() or found
        if len(work) > 1 or (spared and isinstance(found, WorkerLost)):
            return [self.results([one], self.submit([one]), spared=spared and not is_lost)[0] for one in work]
        return [found]

    def drop(self, sent: Sent | GuidewayError) -> None:
        """Wait for a step whose results nobody wants."""
        if not isinstance(sent, GuidewayError):
            try:
                sent.call.result()
            except BaseException as error:
                contain(error)

    def _read(self, work: Sequence[Prepared], sent: Sent | GuidewayError) -> list[Any] | GuidewayError:
        if isinstance(sent, GuidewayError):
            return sent
        try:
            found = list(self._parts.output_processor.results(work, sent.call.result()))
            if len(found) != len(work):
                raise ValueError(f"{len(found)} results of {len(work)} requests")
            return [self._checked(one) for one in found]
        except BaseException as error:
            return self.named(error)

    def _checked(self, result: Any) -> Any | GuidewayError:
        """Return what an output processor made of a request, or an error if that is no result."""
        if result is None or isinstance(result, BaseException):
            return self.named(
                result if result is not None else TypeError("the output processor made None of a request")
            )
        return result

    def _restarted(self) -> GuidewayError | None:
        """Make a new worker in place of a lost one; why there can be none."""
        try:
            self._executor.restart()
            self._lives += 1
            self._executor.submit("load").result()
        except BaseException as error:
            contain(error)
            log.exception("no new worker for %s", self._plugin)
            return self.named(error)
        return None

    def named(self, error: BaseException) -> GuidewayError:
        """`error` as one of guideway's own, which names the workflow."""
        contain(error)
        if isinstance(error, GuidewayError):
            return error
        named = PluginError(f"{self._plugin} failed while it computed: {text_of(error)}", plugin=self._plugin)
        named.__cause__ = error
        return named
