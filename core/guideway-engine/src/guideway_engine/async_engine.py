"""The engine for asyncio: one thread drives it, coroutines submit and read."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from guideway.api.types import GenerationResult, SamplingParams
from guideway.api.vocabulary import Vocabulary
from guideway.errors import GuidewayError, text_of

from guideway_engine.backlog import Backlog
from guideway_engine.config import EngineConfig
from guideway_engine.engine import Engine, EngineClosed, QueueFull
from guideway_engine.generation import Chunk, ChunkReader, Generation, check_streamable
from guideway_engine.prompts import Prompt
from guideway_engine.scheduling.sequence import refusal

__all__ = ["AsyncEngine", "AsyncGeneration"]

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
"""How long a compilation that has ended may go unnoticed while nothing else is there to do."""


class AsyncGeneration:
    """One submitted request. Its methods are for the event loop that submitted it."""

    def __init__(self, engine: AsyncEngine, prompt: Prompt, params: SamplingParams | None, tenant: str) -> None:
        self.request_id = engine._engine._new_id()
        self.prompt = prompt
        self.params = SamplingParams() if params is None else params
        self.tenant = tenant
        self.loop = asyncio.get_running_loop()
        self.result: GenerationResult | None = None
        """The result, once every output has ended."""
        self.admitted: asyncio.Future[None] = self.loop.create_future()
        self._engine = engine
        self._chunks: deque[Chunk] = deque()
        self._news = asyncio.Event()

    def deliver(self, chunks: list[Chunk], result: GenerationResult | None) -> None:
        """Called in the event loop with what is new."""
        self._chunks += chunks
        self.result = result
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        """New text, in whole characters, until the end, as `Generation.__iter__`. Whoever stops reading before aborts
        the request."""
        check_streamable(self.params, mixed=False)
        async for chunk in self.chunks():
            if chunk.text:
                yield chunk.text
        if self.result is not None and self.result.error is not None:
            raise self.result.error

    async def chunks(self) -> AsyncIterator[Chunk]:
        """What is new of each output, until all have ended, as `Generation.chunks`. Whoever stops reading before
        aborts the request."""
        check_streamable(self.params)
        try:
            while True:
                while self._chunks:
                    yield self._chunks.popleft()
                if self.result is not None:
                    return
                self._news.clear()
                await self._news.wait()
        finally:
            if self.result is None:
                self.abort()

    async def wait(self) -> GenerationResult:
        """Wait for the result."""
        while self.result is None:
            self._news.clear()
            await self._news.wait()
        return self.result

    def abort(self) -> None:
        """End it as soon as the engine gets to it; `wait` then returns what there is."""
        self._engine._abort(self)


class AsyncEngine:
    """An `Engine` for asyncio, driven by a thread of its own. Makes the engine, which takes as long as loading the
    model, and raises what that raises.

    Submitting waits while as many sequences of the same or a better priority wait as may (`EngineConfig.max_waiting`):
    that is the back-pressure.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine(config)
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._backlog = Backlog()
        """Not admitted yet, because the queue is full."""
        self._open: dict[AsyncGeneration, tuple[Generation, ChunkReader]] = {}
        self._closing = False
        self._door = Lock()
        """Held while something is put into `_commands` and while that is closed, so that nothing comes too late."""
        self._thread = Thread(target=self._run, name="guideway-engine", daemon=True)
        self._thread.start()

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""
        return self._engine.vocabulary

    async def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, tenant: str = ""
    ) -> AsyncGeneration:
        """Start one request. Raises `InvalidRequest` if admission refuses it, `PluginError` if a plugin failed over
        it, and `EngineClosed`; what only compiling its constraint finds out comes with the result."""
        generation = AsyncGeneration(self, prompt, params, tenant)
        await self._begin(generation)
        return generation

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, tenant: str = ""
    ) -> GenerationResult:
        """The result of one request, whatever becomes of it, as `Engine.generate`; cancelling aborts it. Raises
        `EngineClosed`."""
        generation = AsyncGeneration(self, prompt, params, tenant)
        try:
            await self._begin(generation)
        except EngineClosed:
            raise
        except GuidewayError as error:
            return refusal(generation.request_id, error)
        try:
            return await generation.wait()
        except asyncio.CancelledError:
            generation.abort()
            raise

    async def call_workers(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """`Engine.call_workers`, between two steps."""
        results: list[Any] = await self._call(lambda: self._engine.call_workers(method, *args, **kwargs))
        return results

    async def close(self) -> None:
        """`Engine.close`; requests that are under way end with `FinishReason.ABORT`. Closing twice is fine."""
        if not self._closing:
            self._commands.put(self._close)
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begin(self, generation: AsyncGeneration) -> None:
        """Wait until it is admitted. Raises what `submit` raises."""
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
        with self._door:
            if self._closing:
                raise EngineClosed("the engine is closed and takes no more requests; make a new one")
            self._commands.put(command)

    def _abort(self, generation: AsyncGeneration) -> None:
        self._commands.put(lambda: self._end(generation))

    # Below: in the engine's thread

    def _run(self) -> None:
        while not self._closing:
            try:
                self._obey()
                self._admit()
                if self._engine.has_work():
                    self._engine.step(timeout=0)
                self._publish()
            except BaseException as error:  # the engine itself is broken, not a request
                log.exception("the engine failed; it is closed")
                self._close(error)

    def _obey(self) -> None:
        """Run what has been asked for. With nothing else to do wait for it; while all that can be done is to wait for a
        compilation, look for both in turn."""
        timeout: float | None = 0.0
        if not self._engine.has_work():
            timeout = 0.0 if self._backlog else None
        elif self._engine.is_compiling():
            timeout = POLL_SECONDS
        while not self._closing:
            try:
                command = self._commands.get(block=timeout != 0, timeout=timeout)
            except Empty:
                return
            command()
            timeout = 0.0

    def _admit(self) -> None:
        """Let in what there is room for, in the backlog's order. Whose turn it is may need many sequences; while it is,
        nobody goes before it."""
        under_way: Counter[str] | None = None
        while self._backlog and self._engine.has_room(SamplingParams(priority=self._backlog.priority())):
            if under_way is None:  # in most steps nobody is let in, so it is counted here
                under_way = Counter(waiting.tenant for waiting in self._open)
            waiting = self._backlog.next(under_way)
            try:
                generation = self._engine._enqueue(waiting.request_id, waiting.prompt, waiting.params, waiting.tenant)
            except QueueFull:
                return
            except Exception as error:
                self._tell(waiting.loop, _settle, waiting.admitted, error)
            else:
                self._open[waiting] = (generation, ChunkReader(generation._group))
                under_way[waiting.tenant] += 1
                self._tell(waiting.loop, _settle, waiting.admitted, None)
            self._backlog.discard(waiting)

    def _publish(self) -> None:
        """Tell each event loop, in one call, what is new for its requests."""
        news: dict[asyncio.AbstractEventLoop, list[tuple[AsyncGeneration, list[Chunk], GenerationResult | None]]] = {}
        for waiting, (generation, reader) in list(self._open.items()):
            result = generation.result
            chunks = reader.read() if waiting.params.best_of is None else []
            if chunks or result is not None:
                news.setdefault(waiting.loop, []).append((waiting, chunks, result))
            if result is not None:
                del self._open[waiting]
        for loop, deliveries in news.items():
            self._tell(loop, _deliver, deliveries)

    def _tell(self, loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
        try:
            loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # that loop is closed: nobody will read what it asked for
            for waiting in [waiting for waiting in self._open if waiting.loop is loop]:
                self._end(waiting)

    def _end(self, waiting: AsyncGeneration) -> None:
        if waiting in self._open:
            self._engine.abort(self._open[waiting][0])
        self._backlog.discard(waiting)

    def _close(self, cause: BaseException | None = None) -> None:
        with self._door:
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
        while not self._commands.empty():  # submitted or called meanwhile
            try:
                self._commands.get()()
            except BaseException:
                log.exception("the engine is closed; a command failed")
        for waiting in self._backlog:
            self._tell(waiting.loop, _settle, waiting.admitted, closed)
        self._backlog.clear()
        self._publish()


def _settle(admitted: asyncio.Future[None], error: BaseException | None) -> None:
    if admitted.done():  # cancelled meanwhile
        return
    if error is None:
        admitted.set_result(None)
    else:
        admitted.set_exception(error)


def _deliver(deliveries: list[tuple[AsyncGeneration, list[Chunk], GenerationResult | None]]) -> None:
    for generation, chunks, result in deliveries:
        generation.deliver(chunks, result)
