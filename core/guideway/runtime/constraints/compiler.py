"""Compilation of constraints and modifiers, outside the decoding thread and once for equal constraints."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
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
from guideway.runtime.work.steps import Steps, error_of, run
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

    def compile(
        self, candidates: Sequence[Candidate], constraint: Constraint, tenant: str = ""
    ) -> Steps[Compilation | None]:
        """Compile with the first candidate that can. Ends with `InvalidGrammar`, with an `UnsupportedGrammar` that has
        every candidate's reason, or with a `PluginError` if a strategy failed; later candidates are tried only after
        `UnsupportedGrammar`. After `close` it ends with a `GuidewayError`. The compilation is canceled once every
        request has left it; a running one ends early only if the strategy lives in hosts."""
        refusals, last = list[str](), None
        for candidate in candidates:
            work = partial(_compile, candidate, candidate.served(constraint))
            uses = [f"grammar.{candidate.name}"]
            done = self._work.submit(uses, candidate.key, work, owner=tenant)
            yield from self._work.wait_for(done, candidate.key, tenant)
            if not isinstance(error := error_of(done), UnsupportedGrammar):
                return error, None if error else Compilation(candidate, *done.result())
            refusals.append(f"{candidate.title}: {error}")
            last = error
        if last is None or len(refusals) == 1:
            return last, None
        return UnsupportedGrammar(f"no strategy could compile it ({'; '.join(refusals)})", feature=last.feature), None

    def close(self) -> None:
        """Stop compiling: running compilations end by themselves, and queued ones fail."""
        self._work.close()


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """Parameters of the search for a constraint's shortest output."""

    room: int
    """Token budget of the output."""
    refuses: bool
    """True if the request is refused if its shortest output does not fit into the budget."""
    always: bool
    """True to search whatever the budget; False to search only if the output may not fit into it."""
    stop_token_ids: frozenset[int]
    bans: Bans
    """Tokens and texts to avoid where possible."""

    def is_near(self, reserve: Reserve) -> bool:
        """Return whether the output may not fit, so that the length must be known before admission."""
        return self.room - 1 <= reserve.level + reserve.growth

    def refusal(self, shortest: int | None) -> InvalidRequest | None:
        """Return the error of a request whose shortest output that was found has these tokens; None if it is
        served."""
        if not self.refuses or shortest is None or shortest <= self.room:
            return None
        return InvalidRequest(
            f"no output of this constraint fits into the {self.room} tokens that are left for it: the shortest one "
            f"found has {shortest}, including the stop token; raise max_tokens, shorten the prompt, or set close=False "
            "to allow a cut output",
            field="max_tokens",
        )

    @property
    def weight(self) -> int:
        """Share of the `MAX_VALUES` cache that a result takes; bans may list as many tokens as the vocabulary has."""
        bans = self.bans
        num_words = sum(map(len, bans.bad_words)) + sum(map(len, bans.stop))
        return 1 + (len(bans.logit_bias) + len(bans.allowed_token_ids or ()) + num_words) // 16


class Shortest:
    """Finds the shortest outputs of constraints, in the compile threads, so that no step waits for a search. Equal
    searches are shared as equal compilations are."""

    def __init__(
        self, threads: Threads, at_work: PluginUses, context: ModifierContext, *, isolates_tenants: bool = False
    ) -> None:
        self._context = context
        self._work: SharedWork[int | None] = SharedWork(threads, at_work, MAX_VALUES, isolates=isolates_tenants)

    def find(self, compiled: Compilation, search: SearchParameters, tenant: str = "") -> Steps[Compilation | None]:
        """Set `shortest` of a compilation if `search` asks for it. Ends with `LimitExceeded` or `PluginError` if the
        length must be known, and with `InvalidRequest` if it is refused."""
        is_near = search.is_near(compiled.reserve)
        if not (search.always or is_near):
            return None, compiled
        candidate, grammar, home = compiled.candidate, compiled.grammar, compiled.candidate.home
        given = (search.stop_token_ids, Budget(self._context.max_model_len, compiled.reserve, search.bans))

        def work() -> tuple[int | None, int]:
            with blame(
                f"grammar.{candidate.name}",
                "closing",
                passing=(InvalidRequest, LimitExceeded, PluginError),
                keeps_deadlines=home.waits,
            ):
                return home.shortest(grammar, *given), search.weight

        key = (candidate.key, search.stop_token_ids, search.bans)
        done = self._work.submit([f"grammar.{candidate.name}"], key, work, owner=tenant)
        yield from self._work.wait_for(done, key, tenant)
        if (error := error_of(done)) is None:
            if (refusal := search.refusal(done.result())) is not None:
                return refusal, None
            return None, replace(compiled, shortest=done.result())
        if is_near:
            return error, None
        log.warning("grammar.%s: the shortest output is not known: %s", candidate.name, passable(str(error)))
        return None, compiled

    def close(self) -> None:
        """Stop searching."""
        self._work.close()


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

    def submit(self, request: Request, constraint: Steps[Compilation | None] | None) -> Future[Compiled] | None:
        """Compile the values that each `start` gets; `constraint` compiles the request's constraint. Returns None if
        nothing has to be compiled. The future fails as `Compiler.compile` or a modifier's `compile` does. Canceling it
        cancels what no other request waits for. Raises `PluginError` if a `compile_key` fails."""
        compiling = [modifier for modifier in self._compiling if modifier.name in request.params.modifiers]
        if constraint is None and not compiling:
            return None
        keys = [(modifier, self._modifiers.compile_key(modifier, request)) for modifier in compiling]
        return run(self._compile(request, constraint, keys))

    def close(self) -> None:
        """Stop compiling."""
        self._work.close()

    def _compile(
        self,
        request: Request,
        constraint: Steps[Compilation | None] | None,
        keys: Sequence[tuple[LogitModifier[Any], Hashable | None]],
    ) -> Steps[Compiled]:
        """Compile the constraint, and then run `compile` of the modifiers, one after the other."""
        values, compiled = dict[str, Any](), None
        if constraint is not None:
            error, compiled = yield from constraint
            if compiled is None:
                return error, values
            values[self._owner] = compiled
        for modifier, key in keys:
            # keeps the strategy open while its grammar is used
            uses = [f"modifier.{modifier.name}", *([] if compiled is None else [f"grammar.{compiled.candidate.name}"])]
            grammar = None if compiled is None else compiled.grammar
            work = partial(self._compile_value, modifier, request, grammar)
            try:
                # comparing keys calls the modifier's code
                with blame(f"modifier.{modifier.name}", "compile_key", passing=(GuidewayError,)):
                    shared = None if key is None else (modifier.name, key)
                    submitted = self._work.submit(uses, shared, work, owner=request.tenant)
            except GuidewayError as failure:
                return failure, values
            yield from self._work.wait_for(submitted, shared, request.tenant)
            if (error := error_of(submitted)) is not None:
                return error, values
            values[modifier.name] = submitted.result()
        return None, values

    def _compile_value(
        self, modifier: LogitModifier[Any], request: Request, grammar: CompiledGrammar | None
    ) -> tuple[Any, int]:
        return self._modifiers.compile(modifier, request, grammar), 1


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
