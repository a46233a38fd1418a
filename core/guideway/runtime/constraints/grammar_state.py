"""The state of the grammar mask for one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from guideway.api.grammar import CompiledGrammar, FillJob
from guideway.errors import ConformanceError
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.candidates import Candidate
from guideway.runtime.constraints.closing import Beginnings, Budget, Record, Reserve
from guideway.runtime.constraints.forecast import Forecast
from guideway.runtime.constraints.home import Ending
from guideway.runtime.sequences.replay import new_matcher

__all__ = ["GrammarState"]

NO_BANS = Bans()


@dataclass(slots=True, eq=False)
class GrammarState:
    """The matcher and the closing state of one sequence."""

    candidate: Candidate
    grammar: CompiledGrammar
    job: FillJob
    """The job with the sequence's matcher."""
    stop_token_ids: frozenset[int]
    reserve: Reserve | None = None
    """Tokens to keep for completing the output; None: it may be cut."""
    bans: Bans = NO_BANS
    """Tokens and texts that completions avoid if possible."""
    accepted: list[int] = field(default_factory=list)
    """Every token that the matcher accepted."""
    num_live_drafts: int = 0
    """The number of the last step's drafts that led to a state with a legal token, or to the end."""
    terminated: bool = False
    begins_in: int | None = 0
    """Tokens left until the constraint begins; None: not known yet."""
    budget: Budget | None = None
    """Budget for the complete output; None if it may be cut, or the constraint has not begun."""
    closer: Ending | None = None
    """Object that completes the output; None if it may be cut, or the constraint has not begun."""
    beginnings: Beginnings = field(default_factory=dict)
    """The closing records of the grammar's outputs at their first token, shared with the closer."""
    shortest: int | None = None
    """Tokens of the shortest output, if one was searched for and found."""
    first_closed: int | None = None
    """Index of the first row of the last step in which closing excluded tokens."""
    closed_early: bool = False
    """True if a token was drawn from such a row."""
    forecast: Forecast | None = None
    """The expected forced tokens; None if forecasts are not used."""
    canonical: tuple[int, ...] = ()
    """Forced tokens that the next step must draw, up to the first that differs from its drafts."""
    first_row: int = 0
    """Index of the first row in the last step's bitmask. The job's `first_row` counts within the strategy's block."""
    num_rows: int = 1

    def write(self, num_tokens: int, token_ids: Sequence[int]) -> None:
        """Write tokens that the matcher accepted after the first `num_tokens`, and replace the ones after those."""
        self.accepted[num_tokens:] = token_ids
        if self.closer is not None:
            self.closer.write(num_tokens, token_ids)

    def learn_forced(self) -> None:
        """Pass the forced tokens that the matcher's host has found to the forecast."""
        home, forecast = self.candidate.home, self.forecast
        if home.waits and forecast is not None and forecast.run is None:
            forced = home.forced(self.job.matcher, self.stop_token_ids, 0)
            if forced is not None:
                forecast.learn(forced)

    def replay(self) -> None:
        """Replace the matcher with a new one in the same state: the one after `accepted`."""
        matcher = new_matcher(self.candidate.strategy, self.grammar, self.stop_token_ids)
        if self.closer is not None:  # first, because a host must know the budget when it gets the tokens
            self.closer = self.closer.fork(matcher)
        if matcher.accept(tuple(self.accepted)) != len(self.accepted):
            raise ConformanceError("a new matcher refused tokens an equal one had accepted")
        self.job.matcher = matcher

    @property
    def rows(self) -> slice:
        """Rows of the sequence in the last step's bitmask."""
        return slice(self.first_row, self.first_row + self.num_rows)

    @property
    def end(self) -> Record | None:
        """Latest closing record of the output."""
        return None if self.closer is None else self.closer.record
