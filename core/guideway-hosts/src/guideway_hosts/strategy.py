"""The proxy in the serving process for a strategy in hosts, with the same interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from guideway.api.bitmask import Bitmask
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy, Matcher, Support
from guideway.api.types import Constraint, JsonSchema, Loss, Losses
from guideway.api.vocabulary import Vocabulary
from guideway.errors import contain
from guideway.runtime.constraints.closing import Beginnings, Budget, Record, Reserve
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.rewriting import Rewritten
from numpy.typing import NDArray

from guideway_hosts.host import HostDied
from guideway_hosts.matcher import HostedGrammar, HostedMatcher
from guideway_hosts.matchers import MatcherHost
from guideway_hosts.pool import Pool

__all__ = ["HostedStrategy", "Shared"]


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts of `Hosts` that strategies share."""

    pool: Pool
    matchers: MatcherHost
    close: Callable[[str], None]


class HostedStrategy(GrammarStrategy, Home):
    """The proxy of the strategy `cls`, and its `Home`. Compile hosts compile its constraints, matcher hosts have its
    matchers.

    Raises `LimitExceeded`, in addition to the errors of the contract, if a constraint exceeds the limits of a host.
    """

    waits = True

    def __init__(
        self, cls: type[GrammarStrategy], vocabulary: Vocabulary, options: Mapping[str, Any], shared: Shared
    ) -> None:
        super().__init__(vocabulary, options)
        # set on the instance, because this class is the proxy of every strategy
        self.name, self.kinds = cls.name, cls.kinds  # type: ignore[misc]
        self.capabilities = frozenset({"fork"})  # type: ignore[misc]
        self.max_rollback = None  # type: ignore[misc]
        self._shared = shared
        self._matchers = shared.matchers
        self._takes: frozenset[str] | None = None if cls.takes is not GrammarStrategy.takes else frozenset()

    # In a compile host

    @property
    def takes(self) -> frozenset[str]:
        if self._takes is None:
            names, _ = self._shared.pool.call("takes", self.name, seconds=self._shared.pool.limits.compile_seconds)
            self._takes = frozenset(map(str, names))
        return self._takes

    def supports(self, constraint: Constraint) -> Support:
        answer, _ = self._call("supports", constraint)
        return Support(frozenset(answer["enforced"]), frozenset(answer["unenforced"]), answer["reason"])

    def rewritings(self, constraint: JsonSchema, *, repeats: bool) -> list[Rewritten]:
        answer, _ = self._call("rewritings", constraint, repeats)
        return [
            Rewritten(str(text), Losses(Loss(*map(str, loss)) for loss in losses), str(ordered))
            for text, losses, ordered in answer
        ]

    def compile(self, constraint: Constraint) -> HostedGrammar:
        answer, data = self._call("compile", constraint)
        reserve = Reserve.from_json(answer["reserve"])
        grammar = HostedGrammar(self._matchers, self.name, constraint, data, answer["nbytes"], reserve)
        self._matchers.load(grammar)
        return grammar

    def make(self, constraint: Constraint) -> tuple[HostedGrammar, Reserve]:
        grammar = self.compile(constraint)
        return grammar, grammar.reserve

    def shortest(self, grammar: CompiledGrammar, stop_token_ids: frozenset[int], budget: Budget) -> int | None:
        assert isinstance(grammar, HostedGrammar)
        answer, _ = self._call("shortest", grammar.constraint, grammar.given, stop_token_ids, budget)
        return None if answer is None else int(answer)

    # In a matcher host

    def ending(
        self,
        matcher: Matcher,
        stop_token_ids: frozenset[int],
        budget: Budget,
        record: Record | None,
        beginnings: Beginnings,
    ) -> HostedEnding:
        return HostedEnding(matcher, budget, record)

    def is_ready(self, matcher: Matcher) -> bool:
        return self._matchers.is_ready(cast("HostedMatcher", matcher))

    def is_slow(self, matcher: Matcher) -> bool:
        return self._matchers.is_slow(cast("HostedMatcher", matcher).grammar.number)

    def forced(self, matcher: Matcher, stop_token_ids: frozenset[int], limit: int) -> Sequence[int] | None:
        return cast("HostedMatcher", matcher).forced

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        return self._matchers.fill(jobs, bitmask)

    def advance(self, matchers: Sequence[Matcher], token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        if self._matchers.advance(matchers, token_ids):
            return np.ones(len(matchers), dtype=np.int32)
        counts = [-1] * len(matchers)
        for i, (matcher, token_id) in enumerate(zip(matchers, token_ids.tolist(), strict=True)):
            try:
                counts[i] = cast("HostedMatcher", matcher).advance(token_id)
            except BaseException as error:
                contain(error)
        return np.array(counts, dtype=np.int32)

    def fail(self, job: FillJob) -> None:
        self._matchers.fail(job)

    @property
    def has_closed(self) -> bool:
        return self._matchers.has_closed

    @property
    def is_ahead(self) -> bool:
        return self._matchers.is_ahead

    def foresee(self, jobs: Sequence[FillJob], limits: Sequence[int] = (), *, waits: bool = False) -> None:
        self._matchers.foresee(jobs, limits, waits=waits)

    def hear(self, *, waits: bool) -> None:
        """Set `HostedMatcher.forced` of the matchers for which `foresee` searched, in hosts that have answered; with
        `waits`, wait for all hosts."""
        self._matchers.hear(waits=waits)

    def close(self) -> None:
        self._shared.close(f"grammar.{self.name}")

    def _call(self, name: str, constraint: Constraint, *more: Any) -> tuple[Any, bytes | None]:
        """Return a compile host's answer about a constraint. A constraint that ends the host is remembered."""
        shared, seconds = self._shared, self._shared.pool.limits.compile_seconds
        refused = self._matchers.refused
        refused.check(self.name, constraint)
        try:
            # the search for the shortest output may have to compile the constraint again
            seconds *= 1 + (name == "shortest")
            return shared.pool.call(name, self.name, constraint, *more, seconds=seconds)
        except HostDied as error:
            if error.by_itself:
                refused.remember(self.name, constraint, str(error))
            raise error.error() from error


class HostedEnding:
    """The `Ending` of an output that its host closes."""

    num_free = 1 << 31

    def __init__(self, matcher: Matcher, budget: Budget | None, record: Record | None) -> None:
        assert isinstance(matcher, HostedMatcher)
        self.matcher = matcher
        matcher.budget, matcher.end = budget, record

    @property
    def record(self) -> Record | None:
        return self.matcher.end

    @property
    def records(self) -> Sequence[Record]:
        return self.matcher.ends

    def fork(self, matcher: Matcher) -> HostedEnding:
        return HostedEnding(matcher, self.matcher.budget, self.matcher.end)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Do nothing: the matcher has accepted the tokens."""

    def write(self, num_tokens: int, token_ids: Sequence[int]) -> None:
        """Do nothing: the matcher has the tokens."""

    def is_far(self, num_rows: int) -> bool:
        return not self.matcher.ends and self.matcher.first_closed is None

    def restrict(self, matcher: Matcher, draft_token_ids: Sequence[int], rows: Bitmask) -> int | None:
        return self.matcher.first_closed
