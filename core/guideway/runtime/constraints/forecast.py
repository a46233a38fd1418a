"""Forecasts of a sequence's next forced tokens, without a search in its matcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["Forecast", "KnownRuns"]

MOST_KNOWN = 1024
"""Maximum number of runs to keep for one grammar."""
MOST_TRUST = 3
"""Wrong guesses in a row after which a run is dropped, if at least as many guesses were right before."""
GRACE = 2.0
"""Forward passes that a sequence may spend on searches and wrong guesses in advance."""
SEARCH_COSTS = 0.1
"""Cost of a search for forced tokens, in forward passes of one sequence among others."""
GUESS_COSTS = 0.3
"""Cost of a row of logits for a draft that is refused, in the same unit."""
LONGEST_PAUSE = 64
"""Maximum number of steps in which a sequence does not search, before it tries again."""

KnownRuns: TypeAlias = dict[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]]
"""Runs of forced tokens in the sequences of one grammar, each with the number of wrong guesses in a row left to it, the
most recently right one last. The key is the run before it in its sequence and the last token, because these two
distinguish most places in a schema."""


class Forecast:
    """The forced tokens that are expected in one sequence, and a balance of the forward passes that they save and cost.

    A run was found by the matcher, or followed the same tokens in an earlier sequence. The latter may be wrong, so a
    host may only use it as drafts, which masks check. With `saves`, a sequence searches only while that pays.
    """

    def __init__(self, known: KnownRuns, stop_token_ids: frozenset[int], *, saves: bool) -> None:
        self._known = known
        self._stop_token_ids = stop_token_ids
        self._saves = saves
        self._last: tuple[int, ...] = ()
        """The last run that was not empty, in full length."""
        self._token = -1
        """The last token; -1: none yet."""
        self._told: tuple[int, ...] = ()
        """The run in full length, of which `run` is the rest."""
        self._balance = GRACE
        """Forward passes saved minus forward passes spent."""
        self._pause = 1
        self._paused = 0
        """Number of steps left without a search."""
        self._searches: bool | None = None
        """The last result of `searches`, until a token is accepted."""
        self.run: tuple[int, ...] | None = None
        """The tokens that probably come next; None if unknown."""
        self._look_up()

    def searches(self) -> bool:
        """Return whether to search for the next run."""
        if self._searches is None:
            self._searches = self.run is None and (not self._saves or self._may_search())
        return self._searches

    def _may_search(self) -> bool:
        if self._paused:
            self._paused -= 1
            return False
        if self._balance < 0:
            self._paused, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
            self._balance = SEARCH_COSTS  # pays one more search
            return False
        self._balance -= SEARCH_COSTS
        return True

    def learn(self, run: Sequence[int]) -> None:
        """Record the next run, found by a search."""
        self.run = self._told = tuple(run)
        guess = self._without_end(self.run)
        if guess or not run:
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[self._last, self._token] = guess, 1

    def accept(self, token_ids: Sequence[int], num_drafts: int) -> None:
        """Record the final tokens of a step in which the first `num_drafts` tokens of the run were drafts."""
        if not token_ids:
            return
        self._searches = None
        run = self.run
        if run:
            num_drafts = min(num_drafts, len(run))
            count, most = 0, min(len(run), len(token_ids))
            while count < most and run[count] == token_ids[count]:
                count += 1
            if len(run) == len(self._told):  # the run's first token
                self._judge(count > 0)
            drawn = min(count, num_drafts, len(token_ids) - 1)
            self._balance = min(GRACE, self._balance + drawn - GUESS_COSTS * (num_drafts - min(count, num_drafts)))
            if drawn:
                self._pause = 1
            if count:
                self._last = self._told
            if count == len(token_ids) and count < len(run):
                self.run = run[count:]
                return
        self._token = token_ids[-1]
        self._look_up()

    def restart(self) -> Forecast:
        """Return the forecast of a sequence of the same grammar without tokens."""
        return Forecast(self._known, self._stop_token_ids, saves=self._saves)

    def fork(self) -> Forecast:
        copy = self.restart()
        vars(copy).update(vars(self))
        return copy

    def _look_up(self) -> None:
        known = self._known.get((self._last, self._token))
        self.run = None if known is None else self._without_end(known[0])
        self._told = self.run or ()

    def _without_end(self, run: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the first stop token, because the end of an output is never guessed."""
        stops = self._stop_token_ids
        return run if stops.isdisjoint(run) else run[: next(i for i, token_id in enumerate(run) if token_id in stops)]

    def _judge(self, was_right: bool) -> None:
        key = self._last, self._token
        if (known := self._known.pop(key, None)) is not None:
            run, trust = known
            trust = min(trust + 1, MOST_TRUST) if was_right else trust - 1
            self._known[key] = (run, trust) if trust > 0 else ((), 0)
