"""The report that finished outputs carry in the front end, and the checks of their texts.

vLLM has one field per request, but a request may have several outputs. So each finished ``CompletionOutput`` carries
its own report as an attribute, and the field is combined from these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, TypeAlias

from guideway.runtime.admission.checking import completed_future

from guideway_vllm.steps import ATTRIBUTE, RECORDS

__all__ = [
    "Judge",
    "StreamReports",
    "add_up",
    "is_recorded",
    "report_of",
    "set_report",
    "shutdown_error",
    "with_records",
]

WHOLE = ("stop", "length", "repetition")
"""Finish reasons of outputs that neither failed nor were aborted."""

Check: TypeAlias = Callable[[str, bool], Future[bool | None]]
"""Checks a text; the second argument says whether formats are enforced."""

REPORT_ATTRIBUTE = "guideway_told"
"""Attribute of a finished ``CompletionOutput`` that holds its report."""

RECORDS_ATTRIBUTE = "guideway_records"
"""Attribute of vLLM's ``RequestState`` of an output that holds the records of its tokens until it ends."""


class Judge:
    """Adds to the report of finished outputs the facts that only their texts show: ``constraint`` in `unenforced` if a
    stop string, which vLLM finds only in the front end, cut the output before it was complete, and ``valid`` if the
    request asks for a check."""

    def __init__(self, params: Any, *, check: Check | None, completes: Callable[[str], Future[bool]] | None) -> None:
        """Store the checks; `check` or `completes` is None if the request does not need it."""
        from vllm.sampling_params import RequestOutputKind

        self._check = check
        self._completes = completes
        self._comes_in_pieces = params.output_kind == RequestOutputKind.DELTA
        self._texts: dict[int, str] = {}
        self._cut: dict[int, bool] = {}
        self._verdicts: dict[int, Future[bool | None]] = {}
        """By the index of a finished output."""

    async def judge_stream(self, outputs: Any) -> AsyncIterator[Any]:
        """Yield `outputs`, with the additions in the last ones."""
        async with aclosing(outputs):
            async for output in outputs:
                trial = self._judge(output)
                while (waited_for := next(trial, None)) is not None:
                    await asyncio.gather(asyncio.wrap_future(waited_for), return_exceptions=True)
                yield output

    def judge_now(self, output: Any) -> None:
        """Add to the report of an output, if it has ended. Blocks until its checks are done."""
        for waited_for in self._judge(output):
            wait([waited_for])

    def _judge(self, output: Any) -> Iterator[Future[Any]]:
        """Check finished outputs; the caller waits for each yielded future."""
        ended = []
        for one in output.outputs:
            before = self._texts.get(one.index, "") if self._comes_in_pieces else ""
            self._texts[one.index] = before + one.text
            if one.finish_reason is not None:
                ended.append(one)
        if not ended:
            _set_field(output, None)  # the core reports on a request with stop strings before it has ended
            return
        yield from self._find_cuts(ended)
        for one in ended:
            if self._cut.get(one.index):
                report = report_of(one)
                set_report(
                    one, {**report, "unenforced": list(dict.fromkeys([*report.get("unenforced", ()), "constraint"]))}
                )
        yield from self._find_verdicts(ended)
        if self._check is not None:
            for one in ended:
                set_report(one, {**report_of(one), "valid": self._verdicts[one.index].result()})
        add_up(output)

    def _find_cuts(self, ended: list[Any]) -> Iterator[Future[bool]]:
        if self._completes is None:
            return
        stopped = [one for one in ended if one.finish_reason == "stop" and isinstance(one.stop_reason, str)]
        new = [one for one in stopped if one.index not in self._cut]
        answers = [self._completes(self._texts[one.index]) for one in new]
        yield from answers
        for one, answer in zip(new, answers, strict=True):
            # a text that could not be checked in time may be incomplete
            self._cut[one.index] = answer.exception() is not None or not answer.result()

    def _find_verdicts(self, ended: list[Any]) -> Iterator[Future[bool | None]]:
        if self._check is None:
            return
        for one in ended:
            if one.index not in self._verdicts:
                enforces_formats = not any(name.startswith("format") for name in report_of(one).get("unenforced", ()))
                whole = one.finish_reason in WHOLE
                text = self._texts[one.index]
                self._verdicts[one.index] = self._check(text, enforces_formats) if whole else completed_future(None)
        yield from [self._verdicts[one.index] for one in ended]


def is_recorded(state: Any) -> bool:
    """Return whether `with_records` has collected records in vLLM's ``RequestState`` of an output."""
    return hasattr(state, RECORDS_ATTRIBUTE)


def with_records(state: Any, given: dict[str, Any], *, ended: bool) -> dict[str, Any] | None:
    """Return what the engine core said of an output, without the records of its new tokens, which `state` collects; if
    the output has ended, with all of them in its report."""
    told = {name: value for name, value in given.items() if name != RECORDS}
    so_far: dict[str, Any] | None = getattr(state, RECORDS_ATTRIBUTE, None)
    if (new := given.get(RECORDS)) is not None:
        if so_far is None:
            so_far = {"model": [], "drawn": [], "allowed": [], "pressure": [], "changed": {}}
            setattr(state, RECORDS_ATTRIBUTE, so_far)
        for name, indices in new["changed"].items():
            so_far["changed"].setdefault(name, []).extend(len(so_far["model"]) + index for index in indices)
        for name in ("model", "drawn", "allowed", "pressure"):
            so_far[name] += new[name]
    if ended and so_far is not None:
        told[ATTRIBUTE] = {**told.get(ATTRIBUTE, {}), "records": so_far}
    return told or None


class StreamReports:
    """Records the reports of a request that is streamed over HTTP, for which vLLM's chunks have no field."""

    def __init__(self, results: Any, num_choices: int) -> None:
        self._results = results
        self._num_choices = num_choices
        self._reports: dict[int, dict[str, Any]] = {}

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for result in self._results:
            prompt, output = result if isinstance(result, tuple) else (0, result)
            for one in output.outputs:
                if one.finish_reason is not None and (report := report_of(one)):
                    self._reports[one.index + prompt * self._num_choices] = {ATTRIBUTE: report}
            yield result

    async def add_to(self, events: Any) -> AsyncIterator[str]:
        """Yield `events`; those that end a choice carry its report in ``kv_transfer_params``."""
        async with aclosing(events):
            async for event in events:
                yield self._with_report(event) if self._reports and '"finish_reason":"' in event else event

    def _with_report(self, event: str) -> str:
        before, _, data = event.partition("data: ")
        chunk = json.loads(data)
        for choice in chunk.get("choices", ()):
            if (
                choice.get("finish_reason") is not None
                and (report := self._reports.pop(choice["index"], None)) is not None
            ):
                chunk["kv_transfer_params"] = report
        return f"{before}data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def set_report(one: Any, report: dict[str, Any]) -> None:
    """Set the report of one output."""
    setattr(one, REPORT_ATTRIBUTE, report)


def report_of(one: Any) -> dict[str, Any]:
    """Return the report of one output; empty if it has not ended."""
    report: dict[str, Any] = getattr(one, REPORT_ATTRIBUTE, {})
    return report


def add_up(result: Any, *others: Any) -> None:
    """Set the field of `result` from the reports of its outputs, and of `others` that belong to the same answer. For
    several outputs it combines their reports, and has each one under ``outputs``."""
    found = [report_of(one) for each in (result, *others) for one in each.outputs]
    if len(found) == 1:
        _set_field(result, found[0] or None)
    elif any(found):
        _set_field(result, {**_combine([report for report in found if report]), "outputs": found})


def _combine(found: list[dict[str, Any]]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name in ("strategy", "error"):
        if (said := next((one[name] for one in found if name in one), None)) is not None:
            report[name] = said
    if unenforced := list(dict.fromkeys(name for one in found for name in one.get("unenforced", ()))):
        report["unenforced"] = unenforced
    if losses := [list(loss) for loss in dict.fromkeys(tuple(loss) for one in found for loss in one.get("losses", ()))]:
        report["losses"] = losses
    if any(one.get("closed_early") for one in found):
        report["closed_early"] = True
    if any("valid" in one for one in found):
        verdicts = [one.get("valid") for one in found]
        report["valid"] = False if False in verdicts else None if None in verdicts else True
    return report


def _set_field(output: Any, report: dict[str, Any] | None) -> None:
    """Set guideway's part of the field of a result, or remove it."""
    others = {name: value for name, value in (output.kv_transfer_params or {}).items() if name != ATTRIBUTE}
    output.kv_transfer_params = (others if report is None else {**others, ATTRIBUTE: report}) or None


def shutdown_error() -> Exception:
    """Return the error of a request that was running when the server's shutdown began: status 503 and a message."""
    from vllm.exceptions import GracefulHTTPError, RetryableRequestError

    class ServerStops(GracefulHTTPError, RetryableRequestError):  # type: ignore[misc]
        """vLLM answers the first with its status everywhere, and logs no traceback of the second in streams."""

    return ServerStops("the server is shutting down; ask again, or another one", HTTPStatus.SERVICE_UNAVAILABLE)
