"""The interface between the runtime and work in other processes. The runtime knows nothing else about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import CompiledGrammar, FillJob, Matcher
from guideway.api.modifier import LogitModifier
from guideway.api.types import Constraint, JsonSchema
from guideway.runtime.admission.checking import Judge
from guideway.runtime.constraints.closing import Beginnings, Budget, Record, Reserve
from guideway.runtime.constraints.rewriting import Rewritten

__all__ = ["Ending", "Home", "Hosts"]


class Ending(Protocol):
    """Completes one output within its budget. `Closer` documents the methods."""

    @property
    def record(self) -> Record | None: ...
    @property
    def num_free(self) -> int: ...
    def fork(self, matcher: Matcher) -> Ending: ...
    def accept(self, token_ids: Sequence[int]) -> None: ...
    def write(self, num_tokens: int, token_ids: Sequence[int]) -> None: ...
    def is_far(self, num_rows: int) -> bool: ...
    def restrict(self, matcher: Matcher, draft_token_ids: Sequence[int], rows: Bitmask) -> int | None: ...


class Home(Protocol):
    """The process in which a strategy works: this one, or hosts. `Here` documents the methods."""

    waits: bool
    """True if calls wait for another process, which enforces deadlines itself."""

    @property
    def has_closed(self) -> bool: ...
    @property
    def is_ahead(self) -> bool: ...

    def rewritings(self, constraint: JsonSchema, *, repeats: bool) -> list[Rewritten]: ...
    def make(self, constraint: Constraint) -> tuple[CompiledGrammar, Reserve]: ...
    def shortest(self, grammar: CompiledGrammar, stop_token_ids: frozenset[int], budget: Budget) -> int | None: ...
    def ending(
        self,
        matcher: Matcher,
        stop_token_ids: frozenset[int],
        budget: Budget,
        record: Record | None,
        beginnings: Beginnings,
    ) -> Ending: ...
    def foresee(self, jobs: Sequence[FillJob], limits: Sequence[int] = (), *, waits: bool = False) -> None: ...
    def hear(self, *, waits: bool) -> None: ...
    def fail(self, job: FillJob) -> None: ...
    def is_ready(self, matcher: Matcher) -> bool: ...
    def is_slow(self, matcher: Matcher) -> bool: ...
    def forced(self, matcher: Matcher, stop_token_ids: frozenset[int], limit: int) -> Sequence[int] | None: ...


class Hosts(Protocol):
    """Processes that can be killed one by one, for strategies, modifiers and the check of texts."""

    @property
    def failure(self) -> str | None:
        """Why no process can be started at the moment, or None."""

    homes: Mapping[str, Home]
    """The homes of strategies by name."""
    classes: Mapping[str, type[LogitModifier[Any]]]
    """The classes of modifiers by name."""

    @property
    def judge(self) -> Judge: ...

    def start_soon(self) -> None:
        """Start the processes that the first call would wait for, in the background."""

    def announce(self, modifier: str, steps: Sequence[tuple[Any, tuple[int, ...], Any]]) -> None:
        """Announce calls of `accept`, as (state, token ids, feedback), so that one command serves all."""
