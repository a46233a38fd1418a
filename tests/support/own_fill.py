"""A strategy with its own `fill`, which accepts only its own matchers and breaks for some; they roll back a little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from guideway.api import CompiledGrammar, Constraint, FillJob, GrammarStrategy, Matcher, Regex, hookimpl
from guideway.api.bitmask import Bitmask
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from numpy.typing import NDArray

MOST = 2

BREAKS = "x{3,5}y"
"""The pattern for which `fill` raises, also for others beside it."""


class Own(Matcher):
    """A matcher that rolls back at most the last two tokens."""

    def __init__(self, inner: Matcher, breaks: bool) -> None:
        self.inner, self.undoable, self.breaks = inner, 0, breaks

    def accept(self, token_ids: Sequence[int]) -> int:
        count = self.inner.accept(token_ids)
        self.undoable = min(MOST, self.undoable + count)
        return count

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > self.undoable:
            raise ValueError(f"cannot roll back {num_tokens} tokens")
        self.undoable -= num_tokens
        self.inner.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.inner.fill_bitmask(bitmask, row)

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()


class Compiled(CompiledGrammar):
    def __init__(self, inner: CompiledGrammar, breaks: bool) -> None:
        self.inner, self.breaks = inner, breaks

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Own(self.inner.matcher(stop_token_ids), self.breaks)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


class Strategy(ReferenceStrategy):
    name: ClassVar[str] = "own-fill"
    capabilities: ClassVar[frozenset[str]] = frozenset()
    max_rollback: ClassVar[int | None] = MOST

    def compile(self, constraint: Constraint) -> Any:
        return Compiled(super().compile(constraint), constraint == Regex(BREAKS))

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        for job in jobs:
            if type(job.matcher) is not Own or len(job.draft_token_ids) > MOST:
                raise TypeError(f"no job for a library: {job}")
            if job.matcher.breaks:
                raise RuntimeError("a bug")
        return super().fill(jobs, bitmask)


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    return Strategy
