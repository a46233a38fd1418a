"""Calls of an `AsyncEngine` that embeds, reranks or classifies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from guideway.api.options import short_repr
from guideway.errors import InvalidRequest

from guideway_engine.task_calls import Input, Truncate

if TYPE_CHECKING:
    from guideway_engine.engine import Engine
    from guideway_engine.task_results import Classification, Embedding, Score

__all__ = ["AsyncTaskCalls"]

T = TypeVar("T")

MOST_CALLS = 64
"""Maximum number of calls that wait for results at once; their inputs are batched together."""


class AsyncTaskCalls:
    """The task calls of `Engine` as coroutines, with a list of results for a list of inputs.

    Iterators are refused, because their results would be computed in the event loop's thread. The inputs of a cancelled
    call are still computed.
    """

    _engine: Engine

    async def embed(
        self,
        inputs: str | Sequence[Input],
        *,
        dimensions: int | None = None,
        truncate: Truncate = None,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Embedding]:
        """See `Engine.embed`."""
        _check_list(inputs)
        given: dict[str, Any] = {"dimensions": dimensions, "truncate": truncate}
        return await self._await(partial(self._engine.embed, inputs, **given, priority=priority, tenant=tenant))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        truncate: Truncate = None,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Score]:
        """See `Engine.rerank`."""
        call = partial(self._engine.rerank, query, documents, truncate=truncate, priority=priority, tenant=tenant)
        return await self._await(call)

    async def classify(
        self,
        inputs: str | Sequence[Input | tuple[str, str]],
        *,
        truncate: Truncate = None,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Classification]:
        """See `Engine.classify`."""
        _check_list(inputs)
        call = partial(self._engine.classify, inputs, truncate=truncate, priority=priority, tenant=tenant)
        return await self._await(call)

    async def run(
        self,
        task: str,
        inputs: str | Sequence[Any],
        params: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
    ) -> Any:
        """See `Engine.run`."""
        _check_list(inputs)
        return await self._await(partial(self._engine.run, task, inputs, params, priority=priority, tenant=tenant))

    async def _await(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._callers, call)

    @cached_property
    def _callers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="guideway-call")


def _check_list(inputs: object) -> None:
    if isinstance(inputs, Iterator):
        raise InvalidRequest(
            f"inputs must be a list, not {short_repr(inputs)}; await a list after another, or read Engine's results in "
            "a thread",
            field="inputs",
        )
