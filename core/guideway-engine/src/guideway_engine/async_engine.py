"""The engine for asyncio: one thread drives it; coroutines submit requests and read results."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeAlias, Unpack

from guideway.api.types import GenerationResult, SamplingParams
from guideway.api.vocabulary import Vocabulary
from guideway.errors import GuidewayError, text_of

from guideway_engine.async_task_calls import AsyncTaskCalls
from guideway_engine.config import EngineArguments, EngineConfig
from guideway_engine.decoding.requests import demand
from guideway_engine.engine import Engine
from guideway_engine.entries import read_entry
from guideway_engine.errors import EngineClosed
from guideway_engine.generation import Answers, Chunk, ChunkReader, Generation, check_streamable
from guideway_engine.labels import SCORING, LabelScores, label_tokens, scores_of
from guideway_engine.prompts import Prompt, Tool
from guideway_engine.scheduling.sequence import SequenceGroup, refusal
from guideway_engine.scheduling.waiting import WaitingQueue

__all__ = ["AsyncEngine", "AsyncGeneration"]

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
"""Seconds until a finished compilation is noticed when there is nothing else to do."""


class AsyncGeneration:
    """One submitted request. Its methods must be called in the event loop that submitted it."""

    def __init__(
        self,
        engine: AsyncEngine,
        request_id: str,
        arrival: int,
        prompt: Prompt,
        params: SamplingParams | None,
        tools: Sequence[Tool] | None,
        tenant: str,
    ) -> None:
        self.request_id = request_id
        self.params = SamplingParams() if params is None else params
        self.arguments = (prompt, self.params, tools, tenant)
        self.priority, _ = demand(self.params)
        self.tenant = tenant if isinstance(tenant, str) else ""  # admission refuses a tenant that is not a string
        self.arrival = arrival
        self.loop = asyncio.get_running_loop()
        self.result: GenerationResult | None = None
        """Result, once every output has ended."""
        self.admitted: asyncio.Future[None] = self.loop.create_future()
        self._engine = engine
        self._chunks: deque[Chunk] = deque()
        self._answers = Answers()
        self._changed = asyncio.Event()

    def deliver(self, chunks: list[Chunk], result: GenerationResult | None) -> None:
        """Add new chunks, and the result if there is one. Called in the event loop."""
        self._chunks += chunks
        self._answers.add(chunks)
        self.result = result
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield new text, in whole characters, until the end, as `Generation.__iter__` does. Leaving the loop early
        aborts the request."""
        check_streamable(self.params, mixed=False)
        async for chunk in self.chunks():
            if chunk.text:
                yield chunk.text
        if self.result is not None and self.result.error is not None:
            raise self.result.error

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield new chunks of each output until all have ended, as `Generation.chunks` does. Leaving the loop early
        aborts the request."""
        check_streamable(self.params)
        try:
            while True:
                while self._chunks:
                    yield self._chunks.popleft()
                if self.result is not None:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            if self.result is None:
                self.abort()

    def partial(self, index: int = 0, *, growing_strings: bool = False) -> Any:
        """Return the partial object, as `Generation.partial` does. It may be ahead of the text that was read."""
        check_streamable(self.params)
        return self._answers.partial(self.params, self.result, index, growing_strings=growing_strings)

    async def wait(self) -> GenerationResult:
        """Wait for the result."""
        while self.result is None:
            self._changed.clear()
            await self._changed.wait()
        return self.result

    def abort(self) -> None:
        """End the request at the engine's next opportunity; `wait` then returns the output up to that point."""
        self._engine.abort(self)


Update: TypeAlias = tuple[AsyncGeneration, list[Chunk], GenerationResult | None]
"""New chunks of a request, and its result if it has ended."""


class AsyncEngine(AsyncTaskCalls):
    """An `Engine` for asyncio, driven by its own thread.

    The constructor takes the arguments of `Engine`, loads the model and raises the same errors. For back-pressure,
    submitting waits while `EngineConfig.max_waiting` sequences of the same or a higher priority are waiting.
    """

    def __init__(self, model: str | os.PathLike[str] | EngineConfig, **settings: Unpack[EngineArguments]) -> None:
        self._engine = Engine(model, **settings)
        self._engine._start_hosts()
        self._ids = itertools.count()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._backlog: WaitingQueue[AsyncGeneration] = WaitingQueue()
        """Requests whose admission has not begun, because the engine's queue is full."""
        self._entering: dict[AsyncGeneration, int] = {}
        """Requests being admitted, with the number of sequences of each."""
        self._admitted: dict[AsyncGeneration, tuple[Generation, ChunkReader | None]] = {}
        """Admitted requests that have not ended; without a reader if they cannot be streamed."""
        self._closing = False
        self._commands_lock = Lock()
        """Held while a command is put into `_commands` and while the engine closes, so that no command is added after
        closing."""
        self._thread = Thread(target=self._run, name="guideway-engine", daemon=True)
        self._thread.start()

    @property
    def config(self) -> EngineConfig:
        """Configuration of the engine."""
        return self._engine.config

    @property
    def has_chat_template(self) -> bool:
        """See `Engine.has_chat_template`."""
        return self._engine.has_chat_template

    @property
    def vocabulary(self) -> Vocabulary:
        """Tokens of the model."""
        return self._engine.vocabulary

    async def submit(
        self,
        prompt: Prompt | Mapping[str, Any],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tenant: str = "",
    ) -> AsyncGeneration:
        """Start one request. Raises `InvalidRequest` if admission refuses it, `PluginError` if a plugin failed, and
        `EngineClosed`. Errors found while compiling its constraint are in the result."""
        generation = self._new_generation(prompt, params, tools, tenant, self._new_id())
        await self._begin(generation)
        return generation

    async def generate(
        self,
        prompt: Prompt | Mapping[str, Any],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tenant: str = "",
    ) -> GenerationResult:
        """Return the result of one request, also if it is refused or fails, as `Engine.generate` does. Cancelling
        aborts the request. Raises `EngineClosed`."""
        request_id = self._new_id()
        try:
            generation = self._new_generation(prompt, params, tools, tenant, request_id)
            await self._begin(generation)
        except EngineClosed:
            raise
        except GuidewayError as error:
            return refusal(request_id, error)
        try:
            return await generation.wait()
        except asyncio.CancelledError:
            generation.abort()
            raise

    async def score(self, prompt: Prompt, labels: Sequence[str], *, tenant: str = "") -> LabelScores:
        """See `Engine.score`."""
        tokens = label_tokens(labels, self.vocabulary)
        ids = await asyncio.to_thread(self._engine._inputs.token_ids, prompt)
        each = (self.generate([*ids, *its_own], SCORING, tenant=tenant) for its_own in tokens)
        return scores_of(labels, tokens, await asyncio.gather(*each))

    def abort(self, generation: AsyncGeneration) -> None:
        """See `AsyncGeneration.abort`."""
        self._commands.put(lambda: self._end(generation))

    def check_health(self) -> None:
        """See `Engine.check_health`. Never blocks."""
        self._engine.check_health()

    async def call_workers(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """See `Engine.call_workers`. Runs between two steps."""
        results: list[Any] = await self._call(lambda: self._engine.call_workers(method, *args, **kwargs))
        return results

    async def close(self) -> None:
        """See `Engine.close`. Unfinished requests end with `FinishReason.ABORT`. Closing twice is fine."""
        if not self._closing:
            self._commands.put(self._close)
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _new_generation(
        self,
        prompt: Prompt | Mapping[str, Any],
        params: SamplingParams | None,
        tools: Sequence[Tool] | None,
        tenant: str,
        request_id: str,
    ) -> AsyncGeneration:
        entry, arrival = read_entry(prompt, params, tenant, request_id), self._engine._new_arrival()
        return AsyncGeneration(self, entry.request_id, arrival, entry.prompt, entry.params, tools, entry.tenant)

    def _new_id(self) -> str:
        """Return a new request id. Raises `UnsupportedCapability` unless the engine generates text."""
        self._engine._check_decodes()
        return f"request-{next(self._ids)}"

    async def _begin(self, generation: AsyncGeneration) -> None:
        """Queue `generation` and wait until it is admitted. Raises the errors of `submit`."""
        self._command(lambda: self._backlog.add(generation))
        try:
            await generation.admitted
        except asyncio.CancelledError:
            generation.abort()
            raise

    async def _call(self, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._command(run)
        return await asyncio.wrap_future(future)

    def _command(self, command: Callable[[], None]) -> None:
        with self._commands_lock:
            if self._closing:
                raise EngineClosed("the engine is closed and takes no more requests; create a new one")
            self._commands.put(command)

    # Below: called in the engine's thread

    def _run(self) -> None:
        while not self._closing:
            try:
                self._run_commands()
                self._admit()
                if self._engine.has_work():
                    self._engine.step(timeout=0)
                self._publish()
            except BaseException as error:  # the engine itself is broken, not a request
                log.exception("the engine failed; it is closed")
                self._close(error)

    def _run_commands(self) -> None:
        """Run the queued commands.

        Block for one if there is nothing else to do. While the engine only waits for a compilation or a verdict, block
        at most `POLL_SECONDS`.
        """
        timeout: float | None = 0.0
        if not self._engine.has_work():
            timeout = 0.0 if self._backlog and not self._entering else None
        elif self._engine.is_waiting():
            timeout = POLL_SECONDS
        while not self._closing:
            try:
                command = self._commands.get(block=timeout != 0, timeout=timeout)
            except Empty:
                return
            command()
            timeout = 0.0

    def _admit(self) -> None:
        """Begin admissions in the backlog's order while there is room. If the next request needs more room than there
        is, the others wait behind it."""
        under_way: Counter[str] | None = None
        while self._backlog and self._has_room(SamplingParams(priority=self._backlog.best_priority())):
            if under_way is None:  # in most steps no request is admitted, so count only here
                under_way = Counter(waiting.tenant for waiting in (*self._admitted, *self._entering))
            waiting = next(self._backlog.in_turn(under_way.__getitem__))
            if not self._has_room(waiting.params):
                return
            self._backlog.discard(waiting)
            self._entering[waiting] = demand(waiting.params)[1]
            under_way[waiting.tenant] += 1
            prompt, params, tools, tenant = waiting.arguments
            admit = partial(
                self._engine._admit,
                prompt,
                params,
                tools=tools,
                tenant=tenant,
                request_id=waiting.request_id,
                arrival=waiting.arrival,
            )
            try:
                admitted = self._engine._admission_threads.submit(admit, late=self._engine._withdraw)
            except GuidewayError as error:  # the system has no thread for it
                self._end(waiting)
                self._call_in(waiting.loop, _set_admitted, waiting.admitted, error)
            else:
                admitted.add_done_callback(partial(self._on_admitted, waiting))

    def _has_room(self, params: SamplingParams) -> bool:
        entering: Counter[int] = Counter()
        for waiting, num_sequences in self._entering.items():
            entering[waiting.priority] += num_sequences
        return self._engine.has_room(params, entering)

    def _on_admitted(self, waiting: AsyncGeneration, admitted: Future[SequenceGroup]) -> None:
        """Queue the entry of an admitted request. Called in an admission thread."""
        try:
            self._command(lambda: self._enter(waiting, admitted))
        except EngineClosed:  # `_close` has reported it to the caller
            if admitted.exception() is None:
                self._engine._withdraw(admitted.result())

    def _enter(self, waiting: AsyncGeneration, admitted: Future[SequenceGroup]) -> None:
        """Start a request whose admission has ended, unless it was aborted meanwhile."""
        wanted = self._entering.pop(waiting, None) is not None
        try:
            group = admitted.result()
            if not wanted:
                self._engine._withdraw(group)
                return
            generation = self._engine._enter(group)
        except Exception as error:
            self._call_in(waiting.loop, _set_admitted, waiting.admitted, error)
            return
        reader = None if waiting.params.best_of is not None or waiting.params.max_retries else generation.reader()
        self._admitted[waiting] = (generation, reader)
        self._call_in(waiting.loop, _set_admitted, waiting.admitted, None)

    def _publish(self) -> None:
        """Send each event loop the new chunks and results of its requests, in one call."""
        updates: dict[asyncio.AbstractEventLoop, list[Update]] = {}
        for waiting, (generation, reader) in list(self._admitted.items()):
            result = generation.result
            chunks = reader.read() if reader is not None else []
            if chunks or result is not None:
                updates.setdefault(waiting.loop, []).append((waiting, chunks, result))
            if result is not None:
                del self._admitted[waiting]
        for loop, of_loop in updates.items():
            self._call_in(loop, _deliver, of_loop)

    def _call_in(self, loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
        try:
            loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop is closed, so its requests have no reader
            for waiting in [waiting for waiting in (*self._admitted, *self._entering) if waiting.loop is loop]:
                self._end(waiting)

    def _end(self, waiting: AsyncGeneration) -> None:
        if waiting in self._admitted:
            self._engine.abort(self._admitted[waiting][0])
        self._entering.pop(waiting, None)
        self._backlog.discard(waiting)

    def _close(self, cause: BaseException | None = None) -> None:
        with self._commands_lock:
            self._closing = True
        error = None
        if cause is not None:
            error = GuidewayError(f"the engine failed: {text_of(cause)}")
            error.__cause__ = cause
        try:
            self._engine.close(error)
        except BaseException:
            log.exception("the engine did not close cleanly")
        closed = EngineClosed("the engine was closed before the request was admitted")
        closed.__cause__ = cause
        while not self._commands.empty():  # commands submitted meanwhile
            try:
                self._commands.get()()
            except BaseException:
                log.exception("the engine is closed; a command failed")
        for waiting in (*self._backlog, *self._entering):
            self._call_in(waiting.loop, _set_admitted, waiting.admitted, closed)
        self._backlog, self._entering = WaitingQueue(), {}
        self._publish()


def _set_admitted(admitted: asyncio.Future[None], error: BaseException | None) -> None:
    if admitted.done():  # cancelled meanwhile
        return
    if error is None:
        admitted.set_result(None)
    else:
        admitted.set_exception(error)


def _deliver(updates: list[Update]) -> None:
    for generation, chunks, result in updates:
        generation.deliver(chunks, result)
