"""Choosing a strategy for a constraint and compiling it: in threads, once for equal constraints, cached by bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from guideway.api.errors import ConformanceError, InvalidGrammar, PluginError, UnsupportedGrammar
from guideway.api.grammar import CompiledGrammar, GrammarStrategy, Support
from guideway.api.types import Constraint

__all__ = ["Candidate", "Compilation", "Compiler", "choose"]

T = TypeVar("T")

STACK_BYTES = 64 << 20
"""Stack of a compile thread. Native compilers recurse over `$ref` and rule chains; at the usual 8 MiB they overflow
from about 2,500 links on, which kills the process. Virtual memory only."""


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
    whole: list[Candidate] = []
    partial: list[Candidate] = []
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
        candidate = Candidate(name, strategy, tuple(sorted(support.unenforced)))
        (partial if support.unenforced else whole).append(candidate)
    if not whole and not partial:
        offered = "; ".join(refusals) or "no grammar strategy is configured"
        raise UnsupportedGrammar(
            f"no configured strategy can serve this {constraint.kind} constraint ({offered})",
            feature=missing[0] if missing else constraint.kind,
        )
    return whole + partial


def _supports(name: str, strategy: GrammarStrategy, constraint: Constraint) -> Support:
    try:
        support = strategy.supports(constraint)
    except Exception as error:
        raise PluginError(
            f"grammar.{name} failed in supports, which must not raise: {type(error).__name__}: {error}",
            plugin=f"grammar.{name}",
        ) from error
    if not isinstance(support, Support):
        raise ConformanceError(f"grammar.{name}: supports must return a Support, not {type(support).__name__}")
    return support


class Compiler:
    """Compiles in a pool of threads; equal constraints in flight share one compilation, finished ones a cache.

    Lives as long as its strategies, so vocabulary, options and versions need no place in the key; the constraint's
    source keeps the key order of a schema, which decides the order of its output.
    """

    def __init__(self, *, cache_bytes: int, num_threads: int) -> None:
        self._cache_bytes = cache_bytes
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="guideway-compile")
        self._lock = threading.Lock()
        self._cached: OrderedDict[tuple[str, str, str], tuple[CompiledGrammar, int]] = OrderedDict()
        self._held = 0
        self._in_flight: dict[tuple[str, str, str], Future[CompiledGrammar]] = {}

    @property
    def held_bytes(self) -> int:
        """Memory of all cached grammars, as they report it."""
        return self._held

    def submit(self, candidates: list[Candidate], constraint: Constraint) -> Future[Compilation]:
        """Compile with the first candidate that can. The future fails with `InvalidGrammar`, with the last
        `UnsupportedGrammar`, or with a `PluginError` if a strategy broke: after an error nothing else is tried."""
        if (cached := self._lookup(candidates[0], constraint)) is not None:
            done: Future[Compilation] = Future()
            done.set_result(Compilation(candidates[0], cached))
            return done
        with self._lock:  # new threads take the stack size set at that moment, for the whole process
            previous = threading.stack_size(STACK_BYTES)
            try:
                return self._pool.submit(self._compile_first, candidates, constraint)
            finally:
                threading.stack_size(previous)

    def close(self) -> None:
        """Drop what is queued; running compilations end in their own time."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile_first(self, candidates: list[Candidate], constraint: Constraint) -> Compilation:
        for candidate in candidates[:-1]:
            try:
                return Compilation(candidate, self._compile(candidate, constraint))
            except UnsupportedGrammar:
                continue
        return Compilation(candidates[-1], self._compile(candidates[-1], constraint))

    def _compile(self, candidate: Candidate, constraint: Constraint) -> CompiledGrammar:
        key = self._key(candidate, constraint)
        with self._lock:
            flight = self._in_flight.get(key)
            if flight is None and (cached := self._touch(key)) is not None:
                return cached
            leader = flight is None
            if flight is None:
                flight = self._in_flight[key] = Future()
        if not leader:
            return flight.result()  # its leader runs in another thread of the pool, so this ends
        try:
            grammar = _guarded(candidate, lambda: candidate.strategy.compile(constraint))
            nbytes = _guarded(candidate, lambda: int(grammar.nbytes))
        except BaseException as error:
            with self._lock:
                del self._in_flight[key]
            flight.set_exception(error)
            raise
        with self._lock:
            del self._in_flight[key]
            self._store(key, grammar, nbytes)
        flight.set_result(grammar)
        return grammar

    def _lookup(self, candidate: Candidate, constraint: Constraint) -> CompiledGrammar | None:
        with self._lock:
            return self._touch(self._key(candidate, constraint))

    def _touch(self, key: tuple[str, str, str]) -> CompiledGrammar | None:
        if key not in self._cached:
            return None
        self._cached.move_to_end(key)
        return self._cached[key][0]

    def _store(self, key: tuple[str, str, str], grammar: CompiledGrammar, nbytes: int) -> None:
        if nbytes > self._cache_bytes:
            return
        self._cached[key] = (grammar, nbytes)
        self._held += nbytes
        while self._held > self._cache_bytes:
            _, (_, freed) = self._cached.popitem(last=False)
            self._held -= freed

    @staticmethod
    def _key(candidate: Candidate, constraint: Constraint) -> tuple[str, str, str]:
        return candidate.name, constraint.kind, constraint.source()


def _guarded(candidate: Candidate, call: Callable[[], T]) -> T:
    """`call`, with everything a strategy may not raise turned into a `PluginError` that names it."""
    try:
        return call()
    except (InvalidGrammar, UnsupportedGrammar):
        raise
    except Exception as error:
        raise PluginError(
            f"grammar.{candidate.name} failed in compile: {type(error).__name__}: {error}",
            plugin=f"grammar.{candidate.name}",
        ) from error
