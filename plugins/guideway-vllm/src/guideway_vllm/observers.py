"""The operator's observers, called for each admitted request and at its end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from guideway.api import Completion, FinishReason, GenerationResult, GuidewayError, Loss, Losses, Records, Request
from guideway.errors import contain
from guideway.plugins import Hooks
from guideway.plugins.hooks import Hook

from guideway_vllm.answers import report_of

__all__ = ["Observers"]

log = logging.getLogger("vllm.guideway")

REASONS = {
    "stop": FinishReason.STOP,
    "repetition": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "error": FinishReason.INTERNAL_ERROR,
}
"""Finish reasons of vLLM; all others are aborts."""


_CALL: ContextVar[list[_Result] | None] = ContextVar("_CALL", default=None)
"""The call whose request is entering the engine."""


class Observers:
    """Calls observers in one thread, in order of events, so that a slow one delays no request. For use by one
    thread."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guideway-observers")
        self._admitted: dict[str, deque[_Result]] = {}
        """Requests that have not entered the engine, by client-given id, which need not be unique. Requests with
        `records` of their own are not here."""
        self._under_way: dict[str, _Result] = {}
        """Requests whose outputs `take` gets."""

    @classmethod
    def of(cls, hooks: Hooks) -> Observers | None:
        """Return the observers among an operator's hooks; None if there are none."""
        return cls(hooks) if hooks.request_started or hooks.request_finished or hooks.request_failed else None

    def record_admission(
        self, request_id: str, request: Request, *, in_pieces: bool, records: list[Any] | None = None
    ) -> None:
        """Record a request that has been tried; its outputs will arrive `in_pieces` or cumulatively. If `records` is
        given, the record is added there and passed to `report_start`. May be called from any thread."""
        result = _Result(replace(request, request_id=request_id), in_pieces)
        if records is None:
            self._admitted.setdefault(request_id, deque()).append(result)
        else:
            records.append(result)

    def report_start(self, request_id: str, records: Sequence[Any] = ()) -> None:
        """Call the observers of started requests: an admitted request has entered the engine."""
        result: _Result | None = records[0] if records else self._next_admitted(request_id)
        if result is None:
            return
        if (call := _CALL.get()) is not None:
            call.append(result)
        else:
            self._under_way[request_id] = result
        self._call(self._hooks.request_started, request=result.request)

    async def watch(self, request_id: str, outputs: Any) -> AsyncIterator[Any]:
        """Yield the `outputs` of a request, and report its end, however it ends."""
        error: BaseException | None = None
        call: list[_Result] = []
        try:
            async with aclosing(outputs):
                with _during(call):  # it enters the engine when its first output is requested
                    output = await anext(outputs, None)
                while output is not None:
                    for result in call:
                        result.take(output)
                    yield output
                    output = await anext(outputs, None)
        except Exception as raised:
            error = raised
            raise
        finally:
            if not call:
                self._next_admitted(request_id)
            for result in call:
                self._tell_end(result, error)

    def take(self, output: Any) -> None:
        """Record an output of a request, and report its end if it is the last."""
        if (result := self._under_way.get(output.request_id)) is not None:
            result.take(output)
            if output.finished:
                self._end(output.request_id)

    def end_all(self) -> None:
        """Report the end of all remaining requests, which were aborted."""
        for request_id in list(self._under_way):
            self._end(request_id)

    def close(self) -> None:
        """Stop, after observers have received everything."""
        self._thread.shutdown()

    def _next_admitted(self, request_id: str) -> _Result | None:
        if (admitted := self._admitted.get(request_id)) is None:
            return None
        result = admitted.popleft()
        if not admitted:
            del self._admitted[request_id]
        return result

    def _end(self, request_id: str) -> None:
        if (result := self._under_way.pop(request_id, None)) is not None:
            self._tell_end(result)

    def _tell_end(self, result: _Result, error: BaseException | None = None) -> None:
        ended = result.finish(error)
        if (failure := next((each.error for each in ended.outputs if each.error is not None), None)) is not None:
            self._call(self._hooks.request_failed, request=result.request, error=failure)
        self._call(self._hooks.request_finished, request=result.request, result=ended)

    def _call(self, hooks: Sequence[Hook], **arguments: object) -> None:
        if hooks:
            self._thread.submit(_observe, hooks, arguments)


@contextmanager
def _during(call: list[_Result]) -> Iterator[None]:
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def _observe(hooks: Sequence[Hook], arguments: dict[str, object]) -> None:
    """Call observers; one that raises affects neither the request nor the others."""
    for hook in hooks:
        try:
            hook(**arguments)
        except BaseException as error:
            contain(error)
            log.warning("observer %s failed", hook.plugin, exc_info=True)


class _Result:
    """Accumulates the outputs of one request."""

    def __init__(self, request: Request, in_pieces: bool) -> None:
        self.request = request
        self._in_pieces = in_pieces
        self._texts: dict[int, str] = {}
        self._token_ids: dict[int, tuple[int, ...]] = {}
        self._ended: dict[int, Completion] = {}

    def take(self, output: Any) -> None:
        for one in output.outputs:
            index, text, token_ids = one.index, one.text, tuple(one.token_ids)
            if self._in_pieces:
                text = self._texts.get(index, "") + text
                token_ids = self._token_ids.get(index, ()) + token_ids
            self._texts[index], self._token_ids[index] = text, token_ids
            if one.finish_reason is not None:
                self._ended[index] = self._completion(one, report_of(one))

    def finish(self, error: BaseException | None) -> GenerationResult:
        reason = FinishReason.ABORT if error is None else FinishReason.INTERNAL_ERROR
        failure = None if error is None else GuidewayError(f"vLLM ended the request: {error}")
        for index in range(self.request.params.num_sequences):
            self._ended.setdefault(
                index,
                Completion(
                    index=index,
                    text=self._texts.get(index, ""),
                    token_ids=self._token_ids.get(index, ()),
                    finish_reason=reason,
                    error=failure,
                ),
            )
        return GenerationResult(
            request_id=self.request.request_id,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=tuple(self._ended[index] for index in sorted(self._ended)),
        )

    def _completion(self, one: Any, report: dict[str, Any]) -> Completion:
        reason = REASONS.get(one.finish_reason, FinishReason.ABORT)
        failed = reason is FinishReason.INTERNAL_ERROR
        return Completion(
            index=one.index,
            text=self._texts[one.index],
            token_ids=self._token_ids[one.index],
            finish_reason=reason,
            stop=one.stop_reason,
            error=GuidewayError(report.get("error", "vLLM ended it with an error")) if failed else None,
            strategy=report.get("strategy"),
            unenforced=tuple(report.get("unenforced", ())),
            losses=Losses(Loss(*loss) for loss in report.get("losses", ())),
            closed_early=report.get("closed_early", False),
            valid=report.get("valid"),
            reports=report.get("reports", {}),
            records=Records.from_lists(records) if (records := report.get("records")) is not None else None,
        )
