"""Choosing a strategy for a constraint and compiling it: in threads, once for equal constraints, cached by bytes."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from guideway.api.grammar import CompiledGrammar, GrammarStrategy, Support
from guideway.api.types import Constraint, JsonSchema, StructuralTag
from guideway.errors import (
    ConformanceError,
    GuidewayError,
    InvalidGrammar,
    PluginError,
    UnsupportedGrammar,
    contain,
    text_of,
)
from guideway.json_schema import misspelt_keywords

__all__ = ["Candidate", "Choices", "Compilation", "Compiler", "choose"]

T = TypeVar("T")
Key: TypeAlias = tuple[str, str, str]
"""Strategy, kind and source of a constraint. A compiler lives as long as its strategies, so vocabulary, options and
versions need no place in it; the source keeps the key order of a schema, which decides the order of its output."""

STACK_BYTES = 64 << 20
"""Stack of a compile thread. Native compilers recurse over `$ref` and rule chains; at the usual 8 MiB they overflow
from about 2,500 links on, which kills the process. Virtual memory only."""

MAX_CHOICES = 4096
"""Of so many constraints it is remembered which strategies take them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy that will take a constraint, and what it would leave unenforced."""

    name: str
    strategy: GrammarStrategy
    unenforced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compilation:
    """A constraint compiled."""

    candidate: Candidate
    grammar: CompiledGrammar


def choose(constraint: Constraint, strategies: Mapping[str, GrammarStrategy]) -> list[Candidate]:
    """The strategies to try for `constraint`, best first.

    `strategies` is in the operator's order of preference. One that would leave a keyword unenforced comes after all
    that enforce everything. Raises `UnsupportedGrammar` if none will take it, with each one's reason.
    """
    names = list(strategies) if constraint.strategy is None else [constraint.strategy]
    misspelt = _misspelt(constraint)
    whole: list[Candidate] = []
    partly: list[Candidate] = []
    refusals, missing = [], []
    for name in names:
        strategy = strategies[name]
        if constraint.kind not in strategy.kinds:
            refusals.append(f"{name} compiles {', '.join(sorted(strategy.kinds))}")
            missing.append(constraint.kind)
            continue
        support = _supports(name, strategy, constraint)
        if support.refused:
            refusals.append(f"{name}: {support.reason}")
            continue
        candidate = Candidate(name, strategy, tuple(sorted(support.unenforced | misspelt)))
        (partly if support.unenforced else whole).append(candidate)
    if not whole and not partly:
        offered = "; ".join(refusals) or "no grammar strategy is configured"
        raise UnsupportedGrammar(
            f"no configured strategy can serve this {constraint.kind} constraint ({offered})",
            feature=missing[0] if missing else constraint.kind,
        )
    return whole + partly


class Choices:
    """What `choose` said of the last constraints, which come again and again: reading a schema takes longer than many
    a step."""

    def __init__(self, strategies: Mapping[str, GrammarStrategy]) -> None:
        self._strategies = strategies
        self._known: OrderedDict[tuple[str | None, str, bytes], list[Candidate]] = OrderedDict()

    def of(self, constraint: Constraint) -> list[Candidate]:
        """The strategies to try, best first. Raises `UnsupportedGrammar`."""
        digest = hashlib.sha256(constraint.source().encode()).digest()
        key = (constraint.strategy, constraint.kind, digest)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = choose(constraint, self._strategies)
            if len(self._known) > MAX_CHOICES:
                self._known.popitem(last=False)
        return found


def _misspelt(constraint: Constraint) -> frozenset[str]:
    """Keywords of a JSON schema that no strategy will enforce, because nobody knows them."""
    if isinstance(constraint, JsonSchema):
        return misspelt_keywords(json.loads(constraint.source()))
    schemas = []
    if isinstance(constraint, StructuralTag):
        stack = [json.loads(constraint.source())]
        while stack:
            item = stack.pop()
            if isinstance(item, dict):
                for key, value in item.items():
                    if key in ("schema", "json_schema") and isinstance(value, dict):
                        schemas.append(value)
                    else:
                        stack.append(value)
            elif isinstance(item, list):
                stack += item
    return misspelt_keywords(*schemas)


def _supports(name: str, strategy: GrammarStrategy, constraint: Constraint) -> Support:
    support = _guarded(name, "supports", lambda: strategy.supports(constraint), passing=())
    if not isinstance(support, Support):
        raise ConformanceError(f"grammar.{name}: supports must return a Support, not {type(support).__name__}")
    return support


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
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Memory of all cached grammars, as they report it."""
        return self._held

    def submit(self, candidates: Sequence[Candidate], constraint: Constraint) -> Future[Compilation]:
        """Compile with the first candidate that can. The future fails with `InvalidGrammar`, with an
        `UnsupportedGrammar` that has every candidate's reason, or with a `PluginError` if a strategy broke: after an
        error nothing else is tried. After `close` it fails with a `GuidewayError`."""
        outcome: Future[Compilation] = Future()
        self._try(candidates, constraint, [], outcome)
        return outcome

    def close(self) -> None:
        """Compile nothing more; what is running ends in its own time, and what is queued fails."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        with self._lock:
            waiting = list(self._in_flight.values())
        for flight in waiting:
            flight.cancel()

    def _try(
        self,
        candidates: Sequence[Candidate],
        constraint: Constraint,
        refusals: list[str],
        outcome: Future[Compilation],
    ) -> None:
        flight = self._flight(candidates[0], constraint)
        flight.add_done_callback(partial(self._settle, candidates, constraint, refusals, outcome))

    def _settle(
        self,
        candidates: Sequence[Candidate],
        constraint: Constraint,
        refusals: list[str],
        outcome: Future[Compilation],
        flight: Future[CompiledGrammar],
    ) -> None:
        closed = flight.cancelled() or self._closed
        error = GuidewayError("closed before the constraint was compiled") if closed else flight.exception()
        if isinstance(error, UnsupportedGrammar):
            refusals = [*refusals, f"{candidates[0].name}: {error}"]
            if len(candidates) > 1 and not outcome.cancelled():
                self._try(candidates[1:], constraint, refusals, outcome)
                return
            if len(refusals) > 1:
                message = f"no strategy could compile it ({'; '.join(refusals)})"
                error = UnsupportedGrammar(message, feature=error.feature)
        if not outcome.set_running_or_notify_cancel():
            return
        if error is None:
            outcome.set_result(Compilation(candidates[0], flight.result()))
        else:
            outcome.set_exception(error)

    def _flight(self, candidate: Candidate, constraint: Constraint) -> Future[CompiledGrammar]:
        """The compilation by one candidate: cached, in flight, or begun."""
        key = (candidate.name, constraint.kind, constraint.source())
        with self._lock:
            if key in self._in_flight:
                return self._in_flight[key]
            flight: Future[CompiledGrammar] = Future()
            if key in self._cached:
                self._cached.move_to_end(key)
                flight.set_result(self._cached[key][0])
                return flight
            if self._closed:
                flight.cancel()
                return flight
            self._start_threads()
            # queued before it is known: what cannot be queued, or is interrupted here, leaves nothing to wait for
            self._queue.put(lambda: self._compile(key, candidate, constraint, flight))
            self._in_flight[key] = flight
        return flight

    def _compile(self, key: Key, candidate: Candidate, constraint: Constraint, flight: Future[CompiledGrammar]) -> None:
        if not flight.set_running_or_notify_cancel():
            return
        error: BaseException | None = None
        try:
            passing = (InvalidGrammar, UnsupportedGrammar)
            grammar = _guarded(
                candidate.name, "compile", lambda: candidate.strategy.compile(constraint), passing=passing
            )
            nbytes = _guarded(candidate.name, "nbytes", lambda: max(0, int(grammar.nbytes)), passing=())
        except BaseException as raised:  # whatever it is, whoever waits must hear of it
            error = raised
        with self._lock:
            self._in_flight.pop(key, None)
            if error is None:
                self._store(key, grammar, nbytes)
        if error is None:
            flight.set_result(grammar)
        else:
            flight.set_exception(error)

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


def _guarded(name: str, phase: str, call: Callable[[], T], *, passing: tuple[type[Exception], ...]) -> T:
    """`call`, with everything a strategy may not raise turned into a `PluginError` that names it."""
    try:
        return call()
    except passing:
        raise
    except BaseException as error:
        contain(error)
        plugin = f"grammar.{name}"
        raise PluginError(f"{plugin} failed in {phase}: {text_of(error)}", plugin=plugin) from error
