"""One sequence's part in the grammar mask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from guideway.api.grammar import CompiledGrammar, FillJob
from guideway.runtime.bans import Bans
from guideway.runtime.candidates import Candidate
from guideway.runtime.closing import Beginnings, Budget, Closer, Record, Reserve
from guideway.runtime.grammar_hosts.strategy import HostedMatcher

__all__ = ["GrammarState"]

NO_BANS = Bans()


@dataclass(slots=True, eq=False)
class GrammarState:
    """One sequence's matcher."""

    candidate: Candidate
    grammar: CompiledGrammar
    job: FillJob
    """Holds the matcher."""
    stop_token_ids: frozenset[int]
    reserve: Reserve | None = None
    """The reserve that its output needs at its end; None: it may end anywhere."""
    bans: Bans = NO_BANS
    """The tokens and texts that a completion of its output does without where it can."""
    accepted: list[int] = field(default_factory=list)
    """Every token the matcher accepted."""
    num_live_drafts: int = 0
    """The number of the last step's drafts that led to a state with a legal token, or to the end."""
    terminated: bool = False
    begins_in: int | None = 0
    """The number of tokens that are still to come before the constraint begins; None: not known yet."""
    budget: Budget | None = None
    """Within which its output is to be complete; None: it need not, or it has not begun."""
    closer: Closer | None = None
    """None also where the strategy lives in hosts."""
    beginnings: Beginnings = field(default_factory=dict)
    """The grammar's, for the closer."""
    shortest: int | None = None
    """The number of tokens of the shortest output that was found, where it was looked for."""
    first_closed: int | None = None
    """The first of the last step's rows that does not allow all that the constraint does."""
    closed_early: bool = False
    """True if a token was drawn from such a row."""
    hosted: bool = False
    """True if its matcher lives in a host."""
    canonical: tuple[int, ...] = ()
    """The tokens that the next step's drafts begin with, where nothing else is to be drawn in their place."""
    first_row: int = 0
    """The first of its rows in the last step's bitmask; not the job's, which is in the hands of the strategy."""
    num_rows: int = 1

    @property
    def rows(self) -> slice:
        """Its rows of the last step's bitmask."""
        return slice(self.first_row, self.first_row + self.num_rows)

    @property
    def end(self) -> Record | None:
        """The knowledge of the end of its output."""
        if self.hosted:
            return cast("HostedMatcher", self.job.matcher).end
        return None if self.closer is None else self.closer.record
