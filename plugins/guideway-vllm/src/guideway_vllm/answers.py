"""The facts that go with finished outputs in the front end: their validity, and in streams what guideway tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from guideway.api import JsonObject, JsonSchema
from guideway.runtime.checking import Checker, known

from guideway_vllm.steps import ATTRIBUTE

__all__ = ["VALID", "Judge", "Noted", "told_of"]

WHOLE = ("stop", "length", "repetition")
"""The finish reasons of outputs that neither failed nor were given up."""


VALID = "guideway_valid"
"""The attribute in which each of vLLM's ``CompletionOutput`` has its own verdict: several may come together."""


class Judge:
    """Checks the outputs of one request when they have ended, and adds ``valid`` to what guideway tells of it: of
    several that come together whether all of them are."""

    def __init__(self, checker: Checker, constraint: JsonSchema | JsonObject, params: Any) -> None:
        from vllm.sampling_params import RequestOutputKind

        self._checker = checker
        self._constraint = constraint
        self._comes_in_pieces = params.output_kind == RequestOutputKind.DELTA
        self._texts: dict[int, str] = {}
        self._verdicts: dict[int, Future[bool | None]] = {}

    async def judged(self, outputs: Any) -> AsyncIterator[Any]:
        """`outputs` as they come, the last ones with their verdict."""
        async with aclosing(outputs):
            async for output in outputs:
                verdicts = self._begin(output)
                _add(output, {index: await asyncio.wrap_future(verdict) for index, verdict in verdicts.items()})
                yield output

    def judge_now(self, output: Any) -> None:
        """Add the verdict of an output that came, if it has ended; waits for it."""
        _add(output, {index: verdict.result() for index, verdict in self._begin(output).items()})

    def _begin(self, output: Any) -> dict[int, Future[bool | None]]:
        """Begin to judge what has ended, by its index."""
        found = {}
        for one in output.outputs:
            before = self._texts.get(one.index, "") if self._comes_in_pieces else ""
            self._texts[one.index] = before + one.text
            if one.finish_reason is not None:
                if one.index not in self._verdicts:
                    self._verdicts[one.index] = self._judge(one, output)
                found[one.index] = self._verdicts[one.index]
        return found

    def _judge(self, one: Any, output: Any) -> Future[bool | None]:
        if one.finish_reason not in WHOLE:
            return known(None)
        unenforced = told_of(output).get("unenforced", ())
        enforces_formats = not any(name.startswith("format") for name in unenforced)
        return self._checker.judge(self._constraint, self._texts[one.index], enforces_formats=enforces_formats)


class Noted:
    """The results of a request that is streamed over HTTP, and what guideway tells of each of its choices: the chunks
    that vLLM makes of them have no field for it."""

    def __init__(self, results: Any, num_choices: int) -> None:
        self._results = results
        self._num_choices = num_choices
        self._told: dict[int, dict[str, Any]] = {}

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for result in self._results:
            prompt, output = result if isinstance(result, tuple) else (0, result)
            for one in output.outputs:
                if one.finish_reason is not None and (told := told_of(output)):
                    own = {"valid": getattr(one, VALID)} if hasattr(one, VALID) else {}
                    self._told[one.index + prompt * self._num_choices] = {ATTRIBUTE: told | own}
            yield result

    async def added_to(self, events: Any) -> AsyncIterator[str]:
        """`events`, those that end a choice with what guideway tells of it in ``kv_transfer_params``."""
        async with aclosing(events):
            async for event in events:
                yield self._with_report(event) if self._told and '"finish_reason":"' in event else event

    def _with_report(self, event: str) -> str:
        before, _, data = event.partition("data: ")
        chunk = json.loads(data)
        for choice in chunk.get("choices", ()):
            if choice.get("finish_reason") is not None and (told := self._told.pop(choice["index"], None)) is not None:
                chunk["kv_transfer_params"] = told
        return f"{before}data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def told_of(output: Any) -> dict[str, Any]:
    """Return what guideway tells of an output that has ended."""
    told: dict[str, Any] = (output.kv_transfer_params or {}).get(ATTRIBUTE, {})
    return told


def _add(output: Any, verdicts: dict[int, bool | None]) -> None:
    if not verdicts:
        return
    for one in output.outputs:
        if one.index in verdicts:
            setattr(one, VALID, verdicts[one.index])
    found = verdicts.values()
    told = {**told_of(output), "valid": False if False in found else None if None in found else True}
    output.kv_transfer_params = {**(output.kv_transfer_params or {}), ATTRIBUTE: told}
