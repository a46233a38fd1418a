"""The process in which a strategy works."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from guideway.api.bitmask import Bitmask, num_words
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy, Matcher
from guideway.api.types import Constraint, JsonSchema
from guideway.json_schema.rewriting import Budget as Bounds
from guideway.plugins.contract import checked_names
from guideway.runtime.constraints.closing import Beginnings, Budget, Closer, Lexicon, Record, Reserve
from guideway.runtime.constraints.forced import Forcing
from guideway.runtime.constraints.rewriting import INLINE, Rewritten, rewritings
from guideway.runtime.constraints.tracking import compile_grammar
from guideway.runtime.sequences.replay import new_matcher

__all__ = ["Ending", "Home"]


class Ending(Protocol):
    """Completes one output within its budget. `Closer` documents the methods."""

    @property
    def record(self) -> Record | None: ...
    @property
    def records(self) -> Sequence[Record]: ...
    @property
    def num_free(self) -> int: ...
    def fork(self, matcher: Matcher) -> Ending: ...
    def accept(self, token_ids: Sequence[int]) -> None: ...
    def write(self, num_tokens: int, token_ids: Sequence[int]) -> None: ...
    def is_far(self, num_rows: int) -> bool: ...
    def restrict(self, matcher: Matcher, draft_token_ids: Sequence[int], rows: Bitmask) -> int | None: ...


class Home:
    """The process in which a strategy works: this one, or another one in a subclass, which overrides all methods.
    `lexicon` is shared by the strategies of a runtime."""

    waits = False
    """True if calls wait for another process, which enforces deadlines itself."""

    def __init__(
        self, strategy: GrammarStrategy, lexicon: Lexicon | None = None, bounds: Sequence[Bounds] = INLINE
    ) -> None:
        self._strategy = strategy
        self._lexicon = lexicon
        self._bounds = bounds
        self._forcing: Forcing | None = None
        self._own = threading.local()
        """One lexicon per searching thread, so that a search that hangs blocks no other search."""

    def rewritings(self, constraint: JsonSchema, *, repeats: bool) -> list[Rewritten]:
        """Return `rewritings` of a schema in the keywords that the strategy takes."""
        return rewritings(constraint, checked_names(self._strategy.takes), self._bounds, repeats=repeats)

    def make(self, constraint: Constraint) -> tuple[CompiledGrammar, Reserve]:
        """Compile a constraint. Return its grammar and the reserve of its outputs. Raises the errors of
        `compile_grammar`."""
        return compile_grammar(self._strategy, constraint), Reserve.of(constraint, self._strategy.vocabulary)

    def shortest(self, grammar: CompiledGrammar, stop_token_ids: frozenset[int], budget: Budget) -> int | None:
        """Return the number of tokens of the shortest output that a search finds; None if it finds none."""
        if not hasattr(self._own, "lexicon"):
            self._own.lexicon = Lexicon(self._strategy.vocabulary)
        matcher = new_matcher(self._strategy, grammar, stop_token_ids)
        return Closer(self._own.lexicon, stop_token_ids, budget).shortest(matcher)

    def ending(
        self,
        matcher: Matcher,
        stop_token_ids: frozenset[int],
        budget: Budget,
        record: Record | None,
        beginnings: Beginnings,
    ) -> Ending:
        """Return the object that completes the output of a new matcher."""
        if self._lexicon is None:
            self._lexicon = Lexicon(self._strategy.vocabulary)
        return Closer(self._lexicon, stop_token_ids, budget, record, beginnings)

    @property
    def has_closed(self) -> bool:
        """True if the last `fill` closed an output: a row lost a token, or its record changed."""
        return False

    @property
    def is_ahead(self) -> bool:
        """True if the work of the next `fill` has begun, so that `foresee` has no effect."""
        return False

    def foresee(self, jobs: Sequence[FillJob], limits: Sequence[int] = (), *, waits: bool = False) -> None:
        """Start the work of the next `fill` in advance, if that does not wait. `limits` has for each job the most
        forced tokens to search as its drafts; empty: none."""

    def hear(self, *, waits: bool) -> None:
        """Make the forced tokens that `foresee` searched available to `forced`, if they have arrived; with `waits`,
        wait for them."""

    def fail(self, job: FillJob) -> None:
        """Let the next `fill` fail this job with its present error, without trying it again."""

    def is_ready(self, matcher: Matcher) -> bool:
        """Return whether rows that were late may be ready now."""
        return True

    def is_slow(self, matcher: Matcher) -> bool:
        """Return whether the sequence should be asked for masks only, because other requests would delay others."""
        return False

    def forced(self, matcher: Matcher, stop_token_ids: frozenset[int], limit: int) -> Sequence[int] | None:
        """Return the tokens that must come next, as `Forcing.run` does.

        At most `limit` tokens; if the home `waits`, at most as many as `foresee` searched. None if they were not
        searched since the last token, or the answer has not arrived.
        """
        if self._forcing is None:
            vocabulary = self._strategy.vocabulary
            self._forcing = Forcing(vocabulary.tokens, num_words(vocabulary.logits_width))
        return self._forcing.run(matcher, stop_token_ids, limit)
