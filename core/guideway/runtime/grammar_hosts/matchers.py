"""The matchers of one strategy in their hosts: one command a step, and all of them made anew where a host is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import FillJob
from guideway.errors import GuidewayError, LimitExceeded
from guideway.plugins.limits import Limits
from guideway.runtime.grammar_hosts.lane import Died, Filled, Lane, matcher_of
from guideway.runtime.grammar_hosts.processes import Host, HostDied, Zygote
from guideway.runtime.grammar_hosts.strategy import HostedGrammar, HostedMatcher
from guideway.runtime.mask_block import Late
from guideway.runtime.metrics import LATE_ROWS

__all__ = ["MatcherHost"]

MAX_DEATHS = 2
"""So often a host may be killed from outside while it works for one sequence, before that one fails."""

LATE_WHERE_OTHERS_WAIT = 3
"""So often the rows of one sequence may be late where the host cannot let it sit a step out."""

HURRIED = 2e-4
"""Seconds of a processor that a step waits for sequences known to be slow."""


class MatcherHost:
    """Where the matchers of one strategy live. A host is started with the first grammar, and anew when it is lost:
    matchers are rebuilt from what they accepted. What it was working on when it broke a limit, or crashed, fails.

    Where the host of the runtime can let a sequence sit a step out, one whose rows are late does: the next steps ask
    for them again. It moves to a second lane, a host of its own kind, so that it is late alone.
    """

    def __init__(
        self,
        strategy: str,
        zygote: Zygote,
        limits: Limits,
        refuse: Callable[[str, HostedGrammar, str], None],
        *,
        sits_out: bool,
    ) -> None:
        self._strategy = strategy
        self._limits = limits
        self._refuse = refuse
        """Told of a grammar that broke a limit or killed the host."""
        self._sits_out = sits_out
        self._most_late = limits.late_fills if sits_out else min(limits.late_fills, LATE_WHERE_OTHERS_WAIT)
        self._lock = threading.RLock()
        self._lanes = [Lane(strategy, zygote, limits) for _ in range(2 if sits_out else 1)]
        """The usual one, and that of sequences which were slow."""
        self._slow: dict[int, int] = {}
        """By the number of a matcher how often its rows were late."""
        self._closed = False

    def load(self, grammar: HostedGrammar) -> None:
        """Hand a grammar to the host, beside what it does otherwise. Raises what the strategy raises, and
        `LimitExceeded`."""
        lane = self._lanes[0]
        for last in (False, True):
            with self._lock:
                host, number = self._alive(lane), lane.number
            try:
                lane.load(host, grammar)
            except HostDied as error:
                host.close()
                if error.by_itself:
                    self._refuse(self._strategy, grammar, str(error))
                if error.by_itself or last:
                    raise error.error() from error
                continue
            with self._lock:
                if number == lane.number:
                    lane.loaded.add(grammar.number)
            return

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """`GrammarStrategy.fill`. The error of a job whose rows come in a later step is `Late`."""
        accepted = np.full(len(jobs), -1, dtype=np.int32)
        with self._lock:
            self._check_open()
            lanes: list[list[int]] = [[] for _ in self._lanes]
            for i, job in enumerate(jobs):
                lanes[self._lane_of(matcher_of(job))].append(i)
            patience = self._limits.late_seconds if self._sits_out else None
            for lane, left in zip(self._lanes, lanes, strict=True):
                if left:
                    self._fill(lane, jobs, left, bitmask, accepted, patience)
                patience = HURRIED
        return accepted

    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any:
        """What a method of a matcher returns. Raises what it raises there, and `LimitExceeded`."""
        with self._lock:
            deaths = 0
            lane = self._lanes[self._lane_of(matcher)]
            while True:
                try:
                    self._alive(lane)
                    while lane.is_pending:
                        lane.end(None)
                    return lane.ask(matcher, method, arguments)
                except Died:  # over a command before, of which its own jobs hear
                    continue
                except HostDied as error:
                    lane.lose()
                    deaths += 1
                    if error.by_itself:
                        self._refuse(self._strategy, matcher.grammar, str(error))
                    if error.by_itself or deaths == MAX_DEATHS:
                        raise error.error() from error
                except GuidewayError:
                    matcher.lost()
                    raise

    def close(self) -> None:
        """End the hosts."""
        with self._lock:
            self._closed = True
            for lane in self._lanes:
                lane.lose()

    # Called by the collector of garbage, at any moment: they take no lock

    def forget(self, matcher: int, host: int, recycled: bool) -> None:
        """A host is to have a matcher no more."""
        for lane in self._lanes:
            if lane.number == host:
                lane.forget(matcher, recycled)

    def end_for(self, matcher: int) -> None:
        """Nobody uses a matcher any more."""
        self._slow.pop(matcher, None)
        for lane in self._lanes:
            lane.end_for(matcher)

    def unload(self, grammar: int) -> None:
        """Nobody uses a grammar any more."""
        for lane in self._lanes:
            lane.unload(grammar)

    # Parts

    def _fill(
        self,
        lane: Lane,
        jobs: Sequence[FillJob],
        left: list[int],
        bitmask: Bitmask,
        accepted: NDArray[np.int32],
        patience: float | None,
    ) -> None:
        """Fill the rows of the jobs left."""
        deaths = dict.fromkeys(left, 0)
        together = True
        while left:
            if lane.is_pending:
                group = left
            else:
                group = lane.fitting(jobs, left) if together else left[:1]
            try:
                if not lane.is_pending:
                    lane.begin(jobs, group)
                filled = lane.end(patience)
            except Died as died:
                at_work = [i for i in group if matcher_of(jobs[i]).number == died.cause.working_on]
                culprit = next(iter(at_work or (group if len(group) == 1 else [])), None)
                if culprit is None:  # it was in the midst of several
                    together = False
                    continue
                deaths[culprit] += 1
                if died.cause.by_itself:
                    self._refuse(self._strategy, matcher_of(jobs[culprit]).grammar, str(died.cause))
                if died.cause.by_itself or deaths[culprit] == MAX_DEATHS:
                    jobs[culprit].error = died.cause.error()
                    left.remove(culprit)
                continue
            if filled is None:
                LATE_ROWS.labels(self._strategy).inc(len(left))
                for i in left:
                    jobs[i].error = Late()
                return
            known = [i for i in left if matcher_of(jobs[i]).number in filled]
            for i in known:
                self._take(lane, jobs[i], filled[matcher_of(jobs[i]).number], bitmask, accepted, i)
            answered = set(known)
            left = [i for i in left if i not in answered]

    def _take(
        self, lane: Lane, job: FillJob, filled: Filled, bitmask: Bitmask, accepted: NDArray[np.int32], i: int
    ) -> None:
        """Let a job have what became of it."""
        matcher = matcher_of(job)
        if filled.error is not None:
            job.error = filled.error
            return
        count = filled.count
        sent = filled.command.draft_token_ids
        if sent != tuple(job.draft_token_ids):  # asked before, and answered now
            count = next((n for n in range(count) if job.draft_token_ids[n : n + 1] != sent[n : n + 1]), count)
        masks = lane.rows(matcher, filled, count)
        bitmask[job.first_row : job.first_row + len(masks)] = masks
        matcher.filled(masks, sent[:count], lane)
        accepted[i] = count
        if filled.slow:
            self._was_slow(matcher, job, accepted, i)

    def _was_slow(self, matcher: HostedMatcher, job: FillJob, accepted: NDArray[np.int32], i: int) -> None:
        """Count how often the rows of a sequence were late, and let it go on in the other lane, or fail."""
        times = self._slow[matcher.number] = self._slow.get(matcher.number, 0) + 1
        if times == 1 and self._sits_out:
            matcher.moves()
        if times < self._most_late:
            return
        why = f"{times} times it took more than {self._limits.late_seconds:g} s of a processor for one step"
        self._refuse(self._strategy, matcher.grammar, why)
        job.error = LimitExceeded(why, field="constraint")
        accepted[i] = -1

    def _lane_of(self, matcher: HostedMatcher) -> int:
        return int(self._sits_out and matcher.number in self._slow)

    def _check_open(self) -> None:
        if self._closed:
            raise GuidewayError(f"closed: grammar.{self._strategy} is used no more")

    def _alive(self, lane: Lane) -> Host:
        self._check_open()
        return lane.alive()
