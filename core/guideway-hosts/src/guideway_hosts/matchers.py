"""The matchers of all strategies in their hosts: one command a step, and all of them made anew where a host is lost."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api.bitmask import Bitmask
from guideway.api.grammar import FillJob
from guideway.errors import GuidewayError, LimitExceeded
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.mask_block import Late
from numpy.typing import NDArray

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Host, HostDied, Patience
from guideway_hosts.lane import Answer, Filled, Lane, MatcherDied, matcher_of
from guideway_hosts.seat import MAX_DEATHS, isolate
from guideway_hosts.strategy import HostedGrammar, HostedMatcher

__all__ = ["MatcherHost"]

LATE_WHERE_OTHERS_WAIT = 3
"""So often the rows of one sequence may be late where the host cannot let it sit a step out."""

PROVES_FAST = 16
"""A grammar that was slow is so no longer after so many rows in turn that were not late; each further time after twice
as many, at most `PROVES_FAST_AT_MOST`. What was late once may have found a cold cache, or a machine that stood still,
and all that are slow sit every other step out, which a host that preempts them pays for."""
PROVES_FAST_AT_MOST = 4096

STARTS_WITHIN = 0.002
"""Seconds that a step waits for a host which takes the place of a lost one; sequences that need it sit out then."""

HURRIED = Patience(2e-4, 2e-4)
"""With sequences that are known to be slow."""


class MatcherHost:
    """The home of the matchers of all strategies. A host is started with the first grammar, and anew when it is lost:
    matchers are rebuilt from what they accepted. What it was working on when it broke a limit, or crashed, fails.

    Where the host of the runtime can let a sequence sit a step out, one whose rows are late does: the next steps ask
    for them again. It moves to a second lane, a host for such as it, so that it is late alone, until its rows have come
    in time for a while.
    """

    def __init__(
        self,
        source: HostSource,
        limits: Limits,
        refuse: Callable[[HostedGrammar, str], None],
        *,
        sits_out: bool,
        loads: bool = True,
    ) -> None:
        self._limits = limits
        self._refuse = refuse
        """Told of a grammar that broke a limit or killed the host."""
        self._sits_out = sits_out
        self._loads = loads
        """True if a grammar is loaded before its first matcher is asked for anything."""
        self._most_late = limits.late_fills if sits_out else min(limits.late_fills, LATE_WHERE_OTHERS_WAIT)
        self._lock = threading.RLock()
        self._lanes = [Lane(role, source, limits) for role in (("fill", "slow") if sits_out else ("fill",))]
        """The usual one, and that of sequences which were slow."""
        self._slow: dict[int, int] = {}
        """By the number of a grammar whose rows were late how many have to come in time before it is not slow."""
        self._had_to_prove: dict[int, int] = {}
        """By the number of a grammar that was slow how many those were the last time."""
        self._num_late: dict[int, int] = {}
        """By the number of a matcher how often its rows were."""
        self._deaths: dict[int, int] = {}
        """By the number of a matcher how often the host was killed from outside at work on it, since its last rows."""
        self._failed: dict[int, GuidewayError] = {}
        """By the number of a matcher why its rows will not come, which nobody was told yet."""
        self._kept: dict[int, Filled] = {}
        """By the number of a matcher its rows, which came while it was in no step."""
        self._closed = False

    def start(self) -> None:
        """Start the host that the first grammar would wait for. Raises `HostDied`."""
        if self._loads:
            self._when_up(self._lanes[0])

    def load(self, grammar: HostedGrammar) -> None:
        """Hand a grammar to the host, beside what it does otherwise. Raises what the strategy raises, and
        `LimitExceeded`."""
        if not self._loads:
            return
        lane = self._lanes[0]
        for last in (False, True):
            host, number = self._when_up(lane)
            try:
                lane.load(host, grammar)
            except HostDied as error:
                host.close()
                if error.by_itself:
                    self._refuse(grammar, str(error))
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
            if self._slow or any(lane.is_pending and not lane.is_ahead for lane in self._lanes):
                for i, job in enumerate(jobs):
                    lanes[self._lane_of(matcher_of(job))].append(i)
            else:
                lanes[0] += range(len(jobs))
            for lane, left in zip(self._lanes, lanes, strict=True):
                if left:
                    self._fill(lane, jobs, left, bitmask, accepted, self._patience(lane, len(left)))
        return accepted

    def fail(self, job: FillJob) -> None:
        """Let the next `fill` fail a job as the last one did."""
        if isinstance(job.error, GuidewayError):
            with self._lock:
                self._failed[matcher_of(job).number] = job.error

    def foresee(self, jobs: Sequence[FillJob], limits: Sequence[int] = ()) -> None:
        """Begin with what `fill` is about to be asked for, if the host is there and does nothing else. What is asked
        otherwise after all is done anew; what fails, fails then. `limits` says for each job how many forced tokens are
        to be found as its drafts; empty: none for any. `hear` tells them."""
        with self._lock:
            lane = self._lanes[0]
            chosen = [i for i, job in enumerate(jobs) if self._may_begin(matcher_of(job))]
            try:
                if self._closed or not chosen or lane.is_pending or not lane.together:
                    return
                if lane.is_up(0.0 if self._sits_out else None) and lane.fitting(jobs, chosen, limits) == chosen:
                    lane.begin(jobs, chosen, limits, is_ahead=True)
            except HostDied:
                return  # the step's own command says why
            except MatcherDied as died:
                self._blame(died)

    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any:
        """Return what a method of a matcher returns. Raises what it raises there, and `LimitExceeded`."""
        with self._lock:
            deaths = 0
            lane = self._lanes[self._lane_of(matcher)]
            while True:
                try:
                    self._alive(lane)
                    while lane.is_pending:
                        if (answer := lane.end(None)) is not None:
                            self._note(answer.by_number(), set())
                    return lane.ask(matcher, method, arguments)
                except MatcherDied as died:  # over a command before
                    self._hold_against(died)
                except HostDied as error:
                    lane.lose()
                    deaths += 1
                    if error.by_itself:
                        self._refuse(matcher.grammar, str(error))
                    if error.by_itself or deaths == MAX_DEATHS:
                        raise error.error() from error
                except GuidewayError:
                    matcher.lost()
                    raise

    def hear(self, *, waits: bool) -> None:
        """Set `HostedMatcher.forced` of those that `foresee` was told of, if the host has answered, or with `waits` in
        any case. What fails, fails with the rows."""
        with self._lock:
            lane = self._lanes[0]
            try:
                if lane.is_ahead:
                    lane.hear(waits=waits)
            except MatcherDied as died:
                self._blame(died)

    def close(self) -> None:
        """End the hosts."""
        with self._lock:
            self._closed = True
            for lane in self._lanes:
                lane.close()

    def is_ready(self, matcher: HostedMatcher) -> bool:
        """Return whether asking again for rows that were late may bring them: what they waited for has ended."""
        with self._lock:
            lane = self._lanes[self._lane_of(matcher)]
            try:
                if matcher.number in self._kept:
                    return True
                return lane.is_answered() if lane.is_pending else not lane.is_starting
            except MatcherDied as died:
                self._blame(died)
                return True

    def is_slow(self, grammar: int) -> bool:
        """Return whether the sequences of a grammar are in the other lane, where nothing should be asked beside the
        masks."""
        return self._sits_out and grammar in self._slow

    # Called by the collector of garbage, at any moment: they take no lock

    def forget(self, what: str, matcher: int, host: int) -> None:
        """A host is to have a matcher no more."""
        for lane in self._lanes:
            if lane.number == host:
                lane.tell(what, matcher, host)

    def end_for(self, matcher: int) -> None:
        """Nobody uses a matcher any more."""
        self._num_late.pop(matcher, None)
        self._failed.pop(matcher, None)
        self._deaths.pop(matcher, None)
        self._kept.pop(matcher, None)
        for lane in self._lanes:
            lane.end_for(matcher)

    def unload(self, grammar: int) -> None:
        """Nobody uses a grammar any more."""
        self._slow.pop(grammar, None)
        self._had_to_prove.pop(grammar, None)
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
        patience: Patience | None,
    ) -> None:
        """Fill the rows of the jobs left."""
        for i in left:
            jobs[i].error = None
        if self._failed or self._kept:
            for i in left:
                jobs[i].error = self._failed.pop(matcher_of(jobs[i]).number, None)
            left = [i for i in left if jobs[i].error is None and not self._had(jobs[i], bitmask, accepted, i)]

        def attempt(left: list[int], apart: bool) -> Sequence[int]:
            lane.together = lane.together and not apart
            in_lane, answer = None, None
            try:
                if lane.is_pending or self._is_up(lane, jobs, left, patience):
                    is_whole = lane.is_ahead and lane.is_about(jobs, left)
                    if not lane.is_pending:
                        group = lane.fitting(jobs, left) if lane.together else left[:1]
                        is_whole = len(group) == len(left)
                        lane.begin(jobs, group)
                    # the rows stay where they are, if no command follows before what is drawn is accepted
                    in_lane = lane if is_whole and lane is self._lanes[0] else None
                    answer = lane.end(patience)
            except MatcherDied as died:
                self._hold_against(died)
                raise
            if answer is None:
                for i in left:
                    jobs[i].error = Late()
                return left
            if answer.outcomes is None and in_lane is not None and self._is_calm(jobs, left):
                _take_all(in_lane, jobs, left, answer, bitmask, accepted)
                return left
            filled = answer.by_number()
            self._note(filled, {matcher_of(jobs[i]).number for i in left})
            lane.together = lane.together and not any(found.apart for found in filled.values())
            return [
                i
                for i in left
                if (found := filled.get(matcher_of(jobs[i]).number)) is not None
                and self._take(in_lane, jobs[i], found, bitmask, accepted, i)
            ]

        def fail(i: int, cause: HostDied) -> None:
            jobs[i].error = cause.error()

        isolate(left, attempt, lambda i: matcher_of(jobs[i]).number, fail, self._deaths)
        lane.together = True

    def _is_calm(self, jobs: Sequence[FillJob], left: Sequence[int]) -> bool:
        """Return whether nothing is to be remembered of jobs that were filled in time, and none has drafts."""
        return not (self._slow or self._num_late or self._deaths) and not any(jobs[i].draft_token_ids for i in left)

    def _is_up(self, lane: Lane, jobs: Sequence[FillJob], left: list[int], patience: Patience | None) -> bool:
        """Return whether the lane has a host. One is started while the steps go on, where they need not wait."""
        try:
            return lane.is_up(None if patience is None else 0.0 if lane.is_starting else STARTS_WITHIN)
        except HostDied as error:
            alone = len(left) == 1 or not lane.together
            raise MatcherDied(error, matcher_of(jobs[left[0]]).number if alone else None) from error

    def _take(
        self, lane: Lane | None, job: FillJob, filled: Filled, bitmask: Bitmask, accepted: NDArray[np.int32], i: int
    ) -> bool:
        """Let a job have what became of it; its rows stay in `lane`, or None: become its own. False if it is to be
        asked anew: alone, or because it was asked before with fewer or other drafts."""
        if filled.apart:
            return False
        if filled.error is not None:
            job.error = filled.error
            return True
        count, sent, asked = filled.count, filled.command.draft_token_ids, tuple(job.draft_token_ids)
        if sent != asked:
            alike = next((n for n, pair in enumerate(zip(sent, asked, strict=False)) if pair[0] != pair[1]), len(sent))
            if alike <= count and alike < len(asked):  # nobody knows of the next: a row after it would stay open
                return False
            count = min(count, len(asked))
        matcher = matcher_of(job)
        self._deaths.pop(matcher.number, None)
        masks = filled.masks[: matcher.num_filled(count, sent)]
        bitmask[job.first_row : job.first_row + len(masks)] = masks
        matcher.filled(masks.copy() if lane is None else masks, sent[:count], lane)
        if lane is not None:
            lane.lent.append(weakref.ref(matcher))
        matcher.first_closed, matcher.ends = filled.first_closed, filled.ends
        accepted[i] = count
        if self._num_late.get(matcher.number, 0) >= self._most_late:
            seconds = self._limits.late_seconds
            why = f"it took more than {seconds:g} s processor time for one step, {self._most_late} times"
            self._refuse(matcher.grammar, why)
            job.error = LimitExceeded(why, field="constraint")
            accepted[i] = -1
        return True

    def _had(self, job: FillJob, bitmask: Bitmask, accepted: NDArray[np.int32], i: int) -> bool:
        """Let a job have what came for it while it was in no step, if something did."""
        matcher = matcher_of(job)
        found = self._kept.pop(matcher.number, None)
        return found is not None and not matcher.has_news() and self._take(None, job, found, bitmask, accepted, i)

    def _note(self, filled: Mapping[int, Filled], asking: set[int]) -> None:
        """Count how often the rows of a sequence were late: it, and all with its grammar, go on in the other lane; and
        how often they were not. Keep
        what came for those that are not asking now."""
        for number, outcome in filled.items():
            if outcome.slow:
                self._num_late[number] = self._num_late.get(number, 0) + 1
            self._judge(outcome.grammar, outcome.slow)
            if number not in asking and outcome.error is None:
                self._kept[number] = replace(outcome, masks=outcome.masks.copy())

    def _judge(self, grammar: int, slow: bool) -> None:
        """Note whether the rows of a sequence of a grammar were late."""
        left = self._slow.get(grammar)
        if slow:
            if left is None:
                before = self._had_to_prove.get(grammar, PROVES_FAST // 2)
                self._had_to_prove[grammar] = min(PROVES_FAST_AT_MOST, 2 * before)
            self._slow[grammar] = self._had_to_prove[grammar]
        elif left is not None and left > 1:
            self._slow[grammar] = left - 1
        elif left is not None:
            self._slow.pop(grammar, None)

    def _ends(self, died: MatcherDied, matcher: int) -> bool:
        """Return whether a sequence fails for the death of a host at work on it."""
        self._deaths[matcher] = self._deaths.get(matcher, 0) + 1
        return died.cause.by_itself or self._deaths[matcher] >= MAX_DEATHS

    def _hold_against(self, died: MatcherDied) -> None:
        if died.cause.by_itself and died.grammar is not None:
            self._refuse(died.grammar, str(died.cause))

    def _blame(self, died: MatcherDied) -> None:
        """A sequence that the first lane died over fails with its next rows; where nobody knows which, they are asked
        for one by one."""
        self._hold_against(died)
        if died.number is None:
            for lane in self._lanes:
                lane.together = False
        elif died.wanted and self._ends(died, died.number):
            self._failed[died.number] = died.cause.error()

    def _may_begin(self, matcher: HostedMatcher) -> bool:
        """Return whether what comes of it need not be told before it is asked."""
        number = matcher.number
        return number not in self._kept and number not in self._failed and self._lane_of(matcher) == 0

    def _lane_of(self, matcher: HostedMatcher) -> int:
        """Return where it is asked: until a command about it is answered, where that is."""
        for number, lane in enumerate(self._lanes):
            if lane.has(matcher.number):
                return number
        return int(self.is_slow(matcher.grammar.number))

    def _patience(self, lane: Lane, num_jobs: int) -> Patience | None:
        if not self._sits_out:
            return None
        if (lane.is_pending and not lane.is_ahead) or lane is not self._lanes[0]:
            return HURRIED
        late_seconds = self._limits.late_seconds
        return Patience(late_seconds, late_seconds * (1 + num_jobs / 8))

    def _when_up(self, lane: Lane) -> tuple[Host, int]:
        """The lane's host and its number; while it is started, steps go on."""
        while True:
            with self._lock:
                self._check_open()
                if lane.is_up(0.0):
                    return lane.alive(), lane.number
                starting = lane.starting
            if starting is not None:
                wait([starting])

    def _check_open(self) -> None:
        if self._closed:
            raise GuidewayError("the grammar hosts are closed")

    def _alive(self, lane: Lane) -> Host:
        self._check_open()
        return lane.alive()


def _take_all(
    lane: Lane,
    jobs: Sequence[FillJob],
    group: Sequence[int],
    answer: Answer,
    bitmask: Bitmask,
    accepted: NDArray[np.int32],
) -> None:
    """Let the jobs of a group, which has all of an answer that says nothing else, have their rows."""
    accepted[group] = 0
    some = [jobs[i] for i in group]
    bitmask[[job.first_row for job in some]] = answer.masks
    for i, job in enumerate(some):
        matcher = matcher_of(job)
        matcher.filled(answer.masks[i : i + 1], (), lane)
        matcher.first_closed, matcher.ends = None, ()
    lane.lent = [weakref.ref(matcher_of(job)) for job in some]
