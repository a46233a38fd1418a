"""Compiling: in threads, once for equal constraints, cached by bytes."""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from guideway.api.grammar import CompiledGrammar, GrammarStrategy
from guideway.api.types import Constraint
from guideway.errors import GuidewayError, InvalidGrammar, UnsupportedGrammar, blame, close_each
from guideway.runtime.candidates import Candidate, Key

__all__ = ["Compilation", "Compiler"]

STACK_BYTES = 64 << 20
"""Stack of a compile thread. Native compilers recurse over `$ref` and rule chains; at the usual 8 MiB they overflow
from about 2,500 links on, which kills the process. Virtual memory only."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """A constraint compiled."""

    candidate: Candidate
    grammar: CompiledGrammar


class Compiler:
    """Compiles in threads of its own; equal constraints in flight share one compilation, finished ones a cache.

    The threads are daemons: a compilation that never ends keeps its request waiting, but not the interpreter.
    """

    def __init__(self, *, cache_bytes: int, num_threads: int) -> None:
        self._cache_bytes = cache_bytes
        self._num_threads = num_threads
        self._threads: list[threading.Thread] = []
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._cached: OrderedDict[Key, tuple[CompiledGrammar, int]] = OrderedDict()
        self._held = 0
        self._in_flight: dict[Key, Future[CompiledGrammar]] = {}
        self._compiling: Counter[str] = Counter()
        """By strategy, how many compilations are running."""
        self._to_close: dict[str, GrammarStrategy] = {}
        """Strategies that close with the end of what they compile."""
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Memory of all cached grammars, as they report it."""
        return self._held

    def submit(self, candidates: Sequence[Candidate], constraint: Constraint) -> Future[Compilation]:
        """Compile with the first candidate that can. The future fails with `InvalidGrammar`, with an
        `UnsupportedGrammar` that has every candidate's reason, or with a `PluginError` if a strategy broke: after an
        error nothing else is tried. After `close` it fails with a `GuidewayError`."""
        compilation: Future[Compilation] = Future()
        self._try(candidates, constraint, [], compilation)
        return compilation

    def close(self, strategies: Mapping[str, GrammarStrategy] | None = None) -> None:
        """Compile nothing more; what is running ends in its own time, and what is queued fails. Close `strategies`:
        those that compile at the end of that, in its thread, the others now."""
        strategies = strategies or {}
        with self._lock:
            self._closed = True
            pending = list(self._in_flight.values())
            self._to_close = {name: strategy for name, strategy in strategies.items() if self._compiling[name]}
            idle = [strategy for name, strategy in strategies.items() if name not in self._to_close]
        for _ in self._threads:
            self._queue.put(None)
        for future in pending:
            future.cancel()
        close_each((f"grammar.{strategy.name}", strategy.close) for strategy in idle)

    def _try(
        self,
        candidates: Sequence[Candidate],
        constraint: Constraint,
        refusals: list[str],
        compilation: Future[Compilation],
    ) -> None:
        def end(future: Future[CompiledGrammar]) -> None:
            closed = future.cancelled() or self._closed
            error = GuidewayError("closed before the constraint was compiled") if closed else future.exception()
            if isinstance(error, UnsupportedGrammar):
                refusals.append(f"{candidates[0].name}: {error}")
                if len(candidates) > 1 and not compilation.cancelled():
                    self._try(candidates[1:], constraint, refusals, compilation)
                    return
                if len(refusals) > 1:
                    message = f"no strategy could compile it ({'; '.join(refusals)})"
                    error = UnsupportedGrammar(message, feature=error.feature)
            if not compilation.set_running_or_notify_cancel():
                return
            if error is None:
                compilation.set_result(Compilation(candidates[0], future.result()))
            else:
                compilation.set_exception(error)

        self._grammar(candidates[0], constraint).add_done_callback(end)

    def _grammar(self, candidate: Candidate, constraint: Constraint) -> Future[CompiledGrammar]:
        """The compilation by one candidate: cached, in flight, or begun."""
        key = candidate.key
        with self._lock:
            if key in self._in_flight:
                return self._in_flight[key]
            future: Future[CompiledGrammar] = Future()
            if key in self._cached:
                self._cached.move_to_end(key)
                future.set_result(self._cached[key][0])
                return future
            if self._closed:
                future.cancel()
                return future
            self._start_threads()
            # queued before it is known: what cannot be queued, or is interrupted here, leaves nothing to wait for
            self._queue.put(partial(self._compile, candidate, constraint, future))
            self._in_flight[key] = future
        return future

    def _compile(self, candidate: Candidate, constraint: Constraint, future: Future[CompiledGrammar]) -> None:
        with self._lock:
            if self._closed or not future.set_running_or_notify_cancel():
                return
            self._compiling[candidate.name] += 1
        try:
            self._compile_now(candidate, constraint, future)
        finally:
            with self._lock:
                self._compiling[candidate.name] -= 1
                over = None if self._compiling[candidate.name] else self._to_close.pop(candidate.name, None)
            if over is not None:
                close_each([(f"grammar.{over.name}", over.close)])

    def _compile_now(self, candidate: Candidate, constraint: Constraint, future: Future[CompiledGrammar]) -> None:
        try:
            with blame(f"grammar.{candidate.name}", "compile", passing=(InvalidGrammar, UnsupportedGrammar)):
                grammar = candidate.strategy.compile(constraint)
            with blame(f"grammar.{candidate.name}", "nbytes"):
                nbytes = max(0, int(grammar.nbytes))
        except BaseException as error:  # whatever it is, whoever waits must hear of it
            with self._lock:
                self._in_flight.pop(candidate.key, None)
            future.set_exception(error)
            return
        with self._lock:
            self._in_flight.pop(candidate.key, None)
            self._store(candidate.key, grammar, nbytes)
        future.set_result(grammar)

    def _store(self, key: Key, grammar: CompiledGrammar, nbytes: int) -> None:
        if nbytes > self._cache_bytes:
            return
        self._cached[key] = (grammar, nbytes)
        self._held += nbytes
        while self._held > self._cache_bytes:
            _, (_, freed) = self._cached.popitem(last=False)
            self._held -= freed

    def _start_threads(self) -> None:
        """Start the threads with the first compilation, so that a host without constraints has none."""
        if len(self._threads) == self._num_threads:
            return
        previous = threading.stack_size(STACK_BYTES)
        try:
            while len(self._threads) < self._num_threads:
                thread = threading.Thread(target=self._work, name="guideway-compile", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:  # the system has no more threads; one is enough
            if not self._threads:
                raise GuidewayError(f"no thread can be started to compile constraints: {error}") from error
        finally:
            threading.stack_size(previous)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
