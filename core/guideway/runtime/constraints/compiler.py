"""Compilation of constraints and modifiers, outside the decoding thread and once for equal constraints."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from guideway.api.grammar import CompiledGrammar
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.types import Constraint, Request
from guideway.errors import (
    GuidewayError,
    InvalidGrammar,
    InvalidRequest,
    LimitExceeded,
    PluginError,
    UnsupportedGrammar,
    blame,
    passable,
)
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.candidates import Candidate
from guideway.runtime.constraints.closing import Beginnings, Budget, Reserve
from guideway.runtime.constraints.forecast import KnownRuns
from guideway.runtime.modifiers.modifier_set import ModifierSet
from guideway.runtime.work.metrics import CACHE_BYTES, COMPILE_SECONDS
from guideway.runtime.work.shared_work import PluginUses, SharedWork
from guideway.runtime.work.threads import Threads

__all__ = ["Compilation", "Compiled", "Compiler", "RequestCompiler", "SearchParameters", "Shortest"]

log = logging.getLogger(__name__)

MAX_VALUES = 1024
"""Cached values of `LogitModifier.compile`, and cached lengths of shortest outputs, at most."""

CompiledParts: TypeAlias = tuple[CompiledGrammar, Reserve, Beginnings, KnownRuns]
"""Result of one compilation, shared by all requests with its constraint."""
Compiled: TypeAlias = Mapping[str, Any]
"""By modifier name the compiled value that its `start` gets; the grammar mask's is a `Compilation`."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compiled constraint."""

    candidate: Candidate
    grammar: CompiledGrammar
    reserve: Reserve
    """Tokens to keep for completing an output."""
    beginnings: Beginnings
    """Records of how outputs can be completed from their beginning."""
    runs: KnownRuns
    """Forced tokens of its outputs."""
    shortest: int | None = None
    """Tokens of the shortest output that was found; None if none was, or `Shortest` did not search."""


class Compiler:
    """Compiles constraints. Equal constraints share one compilation and a cache bounded by bytes; with
    `isolates_tenants` only within one tenant."""

    def __init__(
        self, threads: Threads, at_work: PluginUses, cache_bytes: int, *, isolates_tenants: bool = False
    ) -> None:
        self._work: SharedWork[CompiledParts] = SharedWork(
            threads, at_work, cache_bytes, CACHE_BYTES, isolates=isolates_tenants
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of all cached grammars, as they report them."""
        return self._work.weight

    def submit(self, candidates: Sequence[Candidate], constraint: Constraint, tenant: str = "") -> Future[Compilation]:
        """Compile with the first candidate that can. The future fails with `InvalidGrammar`, with an
        `UnsupportedGrammar` that has every candidate's reason, or with a `PluginError` if a strategy failed; later
        candidates are tried only after `UnsupportedGrammar`. After `close` it fails with a `GuidewayError`. The
        compilation is canceled once every caller has canceled its future; a running one is interrupted only if the
        strategy lives in hosts."""
        compilation: Future[Compilation] = Future()
        self._try(candidates, constraint, tenant, [], compilation)
        return compilation

    def close(self) -> None:
        """Stop compiling: running compilations end by themselves, and queued ones fail."""
        self._work.close()

    def _try(
        self,
        candidates: Sequence[Candidate],
        constraint: Constraint,
        tenant: str,
        refusals: list[str],
        compilation: Future[Compilation],
    ) -> None:
        def end(future: Future[CompiledParts]) -> None:
            error = _error_of(future)
            if isinstance(error, UnsupportedGrammar):
                refusals.append(f"{candidates[0].title}: {error}")
                if len(candidates) > 1 and not compilation.cancelled():
                    self._try(candidates[1:], constraint, tenant, refusals, compilation)
                    return
                if len(refusals) > 1:
                    message = f"no strategy could compile it ({'; '.join(refusals)})"
                    error = UnsupportedGrammar(message, feature=error.feature)
            _settle(compilation, error, lambda: Compilation(candidates[0], *future.result()))

        served, key, home = candidates[0].served(constraint), candidates[0].key, candidates[0].home
        work = partial(_compile, candidates[0], served)
        interrupt = partial(home.give_up, "make", served) if home.waits else None
        submitted = self._work.submit([f"grammar.{candidates[0].name}"], key, work, interrupt, owner=tenant)
        submitted.add_done_callback(end)
        shared = weakref.ref(submitted)  # a weak reference avoids a cycle that would keep the grammar alive

        def leave(future: Future[Compilation]) -> None:
            if future.cancelled() and (submitted := shared()) is not None:
                self._work.leave(key, submitted, tenant)

        compilation.add_done_callback(leave)


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """Parameters of the search for a constraint's shortest output."""

    room: int
    """Token budget. If it is surely too small, the search must succeed before admission."""
    always: bool
    """True to search whatever the budget; False to search only if it is surely too small."""
    stop_token_ids: frozenset[int]
    bans: Bans
    """Tokens and texts to avoid where possible."""

    def needs(self, compiled: Compilation) -> bool:
        """Return whether the shortest output must be known before admission."""
        return self.room < compiled.reserve.fewest

    @property
    def weight(self) -> int:
        """Share of the `MAX_VALUES` cache that a result takes; bans may list as many tokens as the vocabulary has."""
        bans = self.bans
        num_words = sum(map(len, bans.bad_words)) + sum(map(len, bans.stop))
        return 1 + (len(bans.logit_bias) + len(bans.allowed_token_ids or ()) + num_words) // 16


class Shortest:
    """Finds the shortest outputs of constraints, in the compile threads, so that no step waits for a search. Results
    are shared as compilations are."""

    def __init__(
        self, threads: Threads, at_work: PluginUses, context: ModifierContext, *, isolates_tenants: bool = False
    ) -> None:
        self._context = context
        self._work: SharedWork[int | None] = SharedWork(threads, at_work, MAX_VALUES, isolates=isolates_tenants)

    def submit(
        self, compilation: Future[Compilation], search: SearchParameters, tenant: str = ""
    ) -> Future[Compilation]:
        """Return `compilation` with `shortest` set if `search` asks for it. The future fails as `compilation` does and,
        if the length must be known, with `LimitExceeded` or `PluginError`. Canceling it cancels the compilation."""
        found: Future[Compilation] = Future()

        def end(future: Future[Compilation]) -> None:
            error = _error_of(future)
            if error is not None or found.cancelled() or not (search.always or search.needs(future.result())):
                _settle(found, error, future.result)
                return
            try:
                self._find(future.result(), search, tenant, found)
            except GuidewayError as error:
                _settle(found, error, future.result)

        compilation.add_done_callback(end)
        _cancel_with(found, compilation)
        return found

    def close(self) -> None:
        """Stop searching."""
        self._work.close()

    def _find(self, compiled: Compilation, search: SearchParameters, tenant: str, found: Future[Compilation]) -> None:
        candidate, grammar = compiled.candidate, compiled.grammar
        given = (search.stop_token_ids, Budget(self._context.max_model_len, compiled.reserve, search.bans))
        home = candidate.home
        interrupt = partial(home.give_up, "shortest", grammar, *given) if home.waits else None

        def work() -> tuple[int | None, int]:
            with blame(
                f"grammar.{candidate.name}",
                "closing",
                passing=(InvalidRequest, LimitExceeded, PluginError),
                keeps_deadlines=home.waits,
            ):
                return home.shortest(grammar, *given), search.weight

        def end(future: Future[int | None]) -> None:
            error = _error_of(future)
            if error is not None and not search.needs(compiled):
                log.warning("grammar.%s: the shortest output is not known: %s", candidate.name, passable(str(error)))
                _settle(found, None, lambda: compiled)
                return
            _settle(found, error, lambda: replace(compiled, shortest=future.result()))

        key = (candidate.key, search.stop_token_ids, search.bans)
        submitted = self._work.submit([f"grammar.{candidate.name}"], key, work, interrupt, owner=tenant)
        submitted.add_done_callback(end)
        shared = weakref.ref(submitted)

        def leave(future: Future[Compilation]) -> None:
            if future.cancelled() and (submitted := shared()) is not None:
                self._work.leave(key, submitted, tenant)

        found.add_done_callback(leave)


class RequestCompiler:
    """Compiles the constraint of a request and then the values of its modifiers, before the request starts."""

    def __init__(
        self,
        modifiers: ModifierSet,
        owner: str,
        threads: Threads,
        at_work: PluginUses,
        *,
        isolates_tenants: bool = False,
    ) -> None:
        self._modifiers = modifiers
        self._owner = owner
        """Name of the modifier that gets the compiled constraint."""
        self._compiling = [m for m in modifiers.all if modifiers.overrides(m, "compile")]
        self._work: SharedWork[Any] = SharedWork(threads, at_work, MAX_VALUES, isolates=isolates_tenants)

    def submit(self, request: Request, constraint: Future[Compilation] | None) -> Future[Compiled] | None:
        """Compile the values that each `start` gets; `constraint` is the request's compilation, already running.
        Returns None if nothing has to be compiled. The future fails as `Compiler.submit` or a modifier's `compile`
        does. Raises `PluginError` if a `compile_key` fails."""
        compiling = [modifier for modifier in self._compiling if modifier.name in request.params.modifiers]
        if constraint is None and not compiling:
            return None
        left = [(modifier, self._modifiers.compile_key(modifier, request)) for modifier in compiling]
        compiled: Future[Compiled] = Future()
        if constraint is None:
            self._next(request, None, left, {}, compiled)
            return compiled

        def end(future: Future[Compilation]) -> None:
            if (error := _error_of(future)) is not None:
                _settle(compiled, error, dict)
            else:
                self._next(request, future.result(), left, {self._owner: future.result()}, compiled)

        constraint.add_done_callback(end)
        _cancel_with(compiled, constraint)
        return compiled

    def close(self) -> None:
        """Stop compiling."""
        self._work.close()

    def _next(
        self,
        request: Request,
        constraint: Compilation | None,
        left: Sequence[tuple[LogitModifier[Any], Hashable | None]],
        values: dict[str, Any],
        compiled: Future[Compiled],
    ) -> None:
        """Run `compile` of the remaining modifiers, one after the other."""
        if not left or compiled.cancelled():
            _settle(compiled, None, lambda: values)
            return
        modifier, key = left[0]

        def end(future: Future[Any]) -> None:
            if (error := _error_of(future)) is not None:
                _settle(compiled, error, dict)
            else:
                values[modifier.name] = future.result()
                self._next(request, constraint, left[1:], values, compiled)

        def work() -> tuple[Any, int]:
            return self._modifiers.compile(modifier, request, None if constraint is None else constraint.grammar), 1

        # keeps the strategy open while its grammar is used
        uses = [f"modifier.{modifier.name}", *([] if constraint is None else [f"grammar.{constraint.candidate.name}"])]
        try:
            # comparing keys calls the modifier's code
            with blame(f"modifier.{modifier.name}", "compile_key", passing=(GuidewayError,)):
                shared = None if key is None else (modifier.name, key)
                submitted = self._work.submit(uses, shared, work, owner=request.tenant)
        except GuidewayError as error:
            _settle(compiled, error, dict)
            return
        submitted.add_done_callback(end)


def _compile(candidate: Candidate, constraint: Constraint) -> tuple[CompiledParts, int]:
    """Return the grammar, the reserve of its outputs, empty dicts of beginnings and runs, and its size in bytes."""
    with (
        blame(
            f"grammar.{candidate.name}",
            "compile",
            passing=(InvalidGrammar, LimitExceeded, UnsupportedGrammar),
            keeps_deadlines=candidate.home.waits,
        ),
        COMPILE_SECONDS.labels(candidate.name).time(),
    ):
        grammar, reserve = candidate.home.make(constraint)
    with blame(f"grammar.{candidate.name}", "nbytes"):
        return (grammar, reserve, {}, {}), max(0, int(grammar.nbytes))


def _error_of(future: Future[Any]) -> BaseException | None:
    """Return the error of a future that is done, or None."""
    return GuidewayError("closed before it was compiled") if future.cancelled() else future.exception()


def _cancel_with(future: Future[Any], awaited: Future[Any]) -> None:
    """Cancel `awaited` when `future` is canceled."""
    waits_for = weakref.ref(awaited)  # as in `Compiler._try`

    def leave(future: Future[Any]) -> None:
        if future.cancelled() and (awaited := waits_for()) is not None:
            awaited.cancel()

    future.add_done_callback(leave)


def _settle(future: Future[Any], error: BaseException | None, value: Callable[[], Any]) -> None:
    """Complete `future` unless it was canceled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(value())
    else:
        future.set_exception(error)
