"""The matchers of all strategies in their hosts: one command per step. Matchers of a lost host are rebuilt."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from guideway.api.bitmask import Bitmask
from guideway.api.grammar import FillJob
from guideway.errors import GuidewayError, LimitExceeded
from guideway.runtime.constraints.mask_block import Late
from numpy.typing import NDArray

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Allowed, HostDied
from guideway_hosts.matcher import HostedGrammar, HostedMatcher, Refused
from guideway_hosts.room import DROPPED, Command, Filled, Room, matcher_of
from guideway_hosts.seat import MAX_DEATHS, isolate, retry

__all__ = ["MatcherHost"]

LATE_WHERE_OTHERS_WAIT = 3
"""Times that the rows of one sequence may be late if the host program cannot let a sequence skip a step."""

MOST_OWN = 4
"""Most grammars with a host of their own. One more ends the host that was unused for the longest time."""

STARTS_WITHIN = 0.002
"""Seconds that a step waits for the replacement of a lost host. After that, sequences that need it skip the step."""

HURRIED = Allowed(2e-4, 2e-4)
"""The wait for sequences that are known to be slow."""


T = TypeVar("T")


class MatcherHost:
    """The hosts of the matchers of all strategies.

    A host is started with the first grammar, and again when it is lost: its matchers are rebuilt from the tokens that
    they accepted. If a matcher makes its host crash or exceed a limit, its sequence fails.

    If the host program can let a sequence skip a step, a sequence whose rows are late skips it, and the next steps ask
    for the rows again. Its grammar gets a host of its own, so that it delays no other sequence.
    """

    def __init__(self, source: HostSource, *, sits_out: bool, loads: bool = True) -> None:
        self._source = source
        self._limits = limits = source.limits
        self.refused = Refused(limits.remembered_seconds)
        self._sits_out = sits_out
        self._search_seconds = limits.late_seconds / 2 if sits_out else None
        """CPU seconds for the forced tokens of one sequence, so that a search makes no row late; None: no limit, since
        canonical tokens must not depend on time."""
        self._loads = loads
        """True if a grammar is loaded in the host as soon as it is compiled."""
        self._most_late = limits.late_fills if sits_out else min(limits.late_fills, LATE_WHERE_OTHERS_WAIT)
        self._lock = threading.RLock()
        self.common = self._room("fill")
        """The host of all grammars without a host of their own."""
        self.own: dict[int, Room] = {}
        """The hosts of grammars whose rows were late, by the grammar's number, the longest unused first."""
        self._unused: deque[int] = deque()
        """Grammars that the serving process has dropped, whose own hosts are not closed yet."""
        self._num_late: dict[int, int] = {}
        """By the number of a matcher how many of its steps were late."""
        self._deaths: dict[int, int] = {}
        """By the number of a matcher how often its host died while working on it, since its last rows."""
        self._failed: dict[int, GuidewayError] = {}
        """By the number of a matcher the error that the next `fill` sets for its job."""
        self._kept: dict[int, Filled] = {}
        """By the number of a matcher its rows that arrived in a step without its sequence."""

    @property
    def rooms(self) -> list[Room]:
        """All hosts, the common one first."""
        return [self.common, *list(self.own.values())]

    def start(self) -> None:
        """Start the common host, so that the first grammar does not wait for it. Raises `HostDied`."""
        if self._loads:
            self.common.start()

    def load(self, grammar: HostedGrammar) -> None:
        """Load a grammar in the common host's second thread. Raises the strategy's errors, and `LimitExceeded`."""

        if not self._loads:
            return
        try:
            self.common.load(grammar.number, "load", grammar.strategy, grammar.given)
        except HostDied as died:
            if died.by_itself:
                self._refuse(grammar, str(died))
            raise died.error() from died

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """Fill the rows of the jobs, as `GrammarStrategy.fill` does. A job whose rows arrive in a later step gets the
        error `Late`."""
        accepted = np.full(len(jobs), -1, dtype=np.int32)
        with self._lock:
            for room, left in self._by_room(range(len(jobs)), lambda i: matcher_of(jobs[i])).items():
                self._fill(room, jobs, left, bitmask, accepted, self._patience(room, len(left)))
        return accepted

    def fail(self, job: FillJob) -> None:
        """Let the next `fill` fail this job with the error that it has now."""
        if isinstance(job.error, GuidewayError):
            with self._lock:
                self._failed[matcher_of(job).number] = job.error

    def foresee(self, jobs: Sequence[FillJob], limits: Sequence[int] = (), *, waits: bool = False) -> None:
        """Send the next step's jobs ahead to hosts that are started and idle; with `waits`, wait for their start.

        If the step then needs other rows, `fill` asks for them again. Errors are reported by `fill`. `limits` has for
        each job the most forced tokens that the host searches as its drafts; empty: it searches none. `hear` reads the
        tokens. A host of a slow grammar searches none, and a host whose memory has no room for all drafts searches
        fewer.
        """
        with self._lock:
            if self.common.closed:
                return
            if limits:
                pairs = zip(jobs, limits, strict=True)
                limits = [0 if self.is_slow(matcher_of(job).grammar.number) else limit for job, limit in pairs]
            for room, some in self._by_room(range(len(jobs)), lambda i: matcher_of(jobs[i])).items():
                heard = room.command is not None and room.command.rows is not None
                if heard and not all(room.has(matcher_of(jobs[i]).number) for i in some):
                    self._note(room.end(None), set())  # sequences of this step are missing in it
                # kept results and errors must be delivered before these matchers are asked again
                known = self._kept.keys() | self._failed.keys()
                some = [i for i in some if matcher_of(jobs[i]).number not in known]
                if not some:
                    continue
                if limits and (fitting := room.fitting(jobs, some, limits)) != some:
                    limits = [limit if i in fitting[: len(fitting) // 2] else 0 for i, limit in enumerate(limits)]
                try:
                    is_free = room.command is None and room.together and room.is_up(None if waits else 0.0)
                except HostDied:  # none can be started: the step's own command says why
                    continue
                if is_free and room.fitting(jobs, some, limits) == some:
                    try:
                        room.begin(jobs, some, limits, self._search_seconds, is_ahead=True)
                    except HostDied as died:
                        self._blame(died)

    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any:
        """Return the result of a matcher's method. Raises the errors that the method raises, and `LimitExceeded`."""

        def attempt() -> Any:
            room = self._room_of(matcher)
            room.alive()
            while room.command is not None:
                self._note(room.end(None), set())
            try:
                answer = room.ask(matcher, method, arguments)
            except HostDied:
                raise
            except GuidewayError:
                matcher.lost()
                raise
            if method == "accept":  # its kept rows are those of the state before
                self._kept.pop(matcher.number, None)
            return answer

        try:
            with self._lock:
                return retry(matcher.number, attempt)
        except HostDied as died:
            raise died.error() from died

    def hear(self, *, waits: bool) -> None:
        """Set `HostedMatcher.forced` of the matchers for which `foresee` searched, in hosts that have answered; with
        `waits`, wait for all hosts. Errors are reported with the rows."""
        with self._lock:
            for room in self.rooms:
                try:
                    room.hear(waits=waits)
                except HostDied as died:
                    self._blame(died)

    def close(self) -> None:
        """End the hosts."""
        with self._lock:
            for room in self.rooms:
                room.close()

    def is_ready(self, matcher: HostedMatcher) -> bool:
        """Return whether late rows of a matcher may be available now, so that asking again makes sense."""
        with self._lock:
            room = self._room_of(matcher)
            try:
                if matcher.number in self._kept:
                    return True
                return not room.is_starting if room.command is None else room.is_answered()
            except HostDied as died:
                self._blame(died)
                return True

    def is_slow(self, grammar: int) -> bool:
        """Return whether a grammar is slow, so that its sequences should be asked for masks only."""
        room = self.own.get(grammar)
        return room is not None and room.left_to_prove > 0

    # The garbage collector calls these at any moment: they take no lock

    def forget(self, what: str, matcher: int, host: int) -> None:
        """Tell a host to drop a matcher. `what` is "end", or "recycle" if the strategy may use it again."""
        for room in self.rooms:
            if room.number == host:
                room.tell(what, matcher, host)

    def end_for(self, matcher: int) -> None:
        """Drop all records of a matcher that the serving process has dropped, and the work for it."""
        for known in (self._num_late, self._failed, self._deaths, self._kept):
            known.pop(matcher, None)
        for room in self.rooms:
            room.end_for(matcher)

    def unload(self, grammar: int) -> None:
        """Release a grammar that the serving process has dropped, and its own host if it has one."""
        self.common.unload(grammar)
        if grammar in self.own:
            self._unused.append(grammar)

    # Parts

    def _fill(
        self,
        room: Room,
        jobs: Sequence[FillJob],
        left: list[int],
        bitmask: Bitmask,
        accepted: NDArray[np.int32],
        patience: Allowed | None,
    ) -> None:
        """Fill the rows of the jobs `left` in one host, and set the error of jobs that fail."""
        for i in left:
            jobs[i].error = None
        if self._failed or self._kept:
            for i in left:
                jobs[i].error = self._failed.pop(matcher_of(jobs[i]).number, None)
            left = [i for i in left if jobs[i].error is None and not self._take_kept(jobs[i], bitmask, accepted, i)]

        # without patience, or while others start the host already, steps continue
        seconds = None if patience is None else 0.0 if room.is_starting else STARTS_WITHIN

        def attempt(left: list[int], apart: bool) -> Sequence[int]:
            room.together = room.together and not apart
            answer = None
            if room.command is not None or room.is_up(seconds):
                if room.command is None:
                    room.begin(jobs, room.fitting(jobs, left) if room.together else left[:1])
                answer = room.end(patience)
            if answer is None:
                for i in left:
                    jobs[i].error = Late()
                return left
            asking = [jobs[i] for i in left]
            if answer.outcomes is None and self._is_calm(asking) and answer.is_about(asking):
                accepted[left] = 0
                _take_all(asking, answer, bitmask)
                return left
            filled = self._note(answer, {matcher_of(job).number for job in asking})
            room.together = room.together and not any(found.apart for found in filled.values())
            return [
                i
                for i in left
                if (found := filled.get(matcher_of(jobs[i]).number)) is not None
                and self._take(jobs[i], found, bitmask, accepted, i)
            ]

        def fail(i: int, cause: HostDied) -> None:
            jobs[i].error = cause.error()

        isolate(left, attempt, lambda i: matcher_of(jobs[i]).number, fail, self._deaths)
        room.together = True

    def _is_calm(self, jobs: Sequence[FillJob]) -> bool:
        """Return whether no lateness or deaths are recorded and no job has drafts, so that nothing needs an update."""
        return not (self.own or self._num_late or self._deaths) and not any(job.draft_token_ids for job in jobs)

    def _take(self, job: FillJob, filled: Filled, bitmask: Bitmask, accepted: NDArray[np.int32], i: int) -> bool:
        """Set a job's rows and count, or its error.

        Return False if the job must be sent again: alone, or because it was sent ahead with other or fewer drafts.
        """
        if filled.apart:
            return False
        if filled.error is not None:
            job.error = filled.error
            return True
        count, sent, asked = filled.count, filled.drafts, tuple(job.draft_token_ids)
        if sent != asked:
            alike = next((n for n, pair in enumerate(zip(sent, asked, strict=False)) if pair[0] != pair[1]), len(sent))
            if alike <= count and alike < len(asked):  # the host did not check the next draft: its row is missing
                return False
            count = min(count, len(asked))
        matcher = matcher_of(job)
        self._deaths.pop(matcher.number, None)
        num_rows = matcher.count_rows(count, sent)
        masks = filled.rows.block[filled.first : filled.first + num_rows]
        bitmask[job.first_row : job.first_row + num_rows] = masks
        matcher.take(filled.rows, filled.first, num_rows, sent[:count])
        matcher.first_closed, matcher.ends = filled.first_closed, filled.ends
        accepted[i] = count
        if self._num_late.get(matcher.number, 0) >= self._most_late:
            seconds = self._limits.late_seconds
            why = f"it took more than {seconds:g} s processor time for one step, {self._most_late} times"
            self._refuse(matcher.grammar, why)
            job.error = LimitExceeded(why, field="constraint")
            accepted[i] = -1
        return True

    def _take_kept(self, job: FillJob, bitmask: Bitmask, accepted: NDArray[np.int32], i: int) -> bool:
        """Take the rows that arrived while the job's sequence was in no step. Return False if there are none, or if
        they do not fit the job."""
        matcher = matcher_of(job)
        found = self._kept.pop(matcher.number, None)
        return found is not None and not any(matcher.changes) and self._take(job, found, bitmask, accepted, i)

    def _note(self, answer: Command | None, asking: set[int]) -> Mapping[int, Filled]:
        """Return the results of a command by matcher. Record for each sequence and its grammar whether the rows were
        late, and keep the rows of matchers that are not in `asking`."""
        filled = {} if answer is None else answer.by_number()
        for number, outcome in filled.items():
            if outcome.slow:
                self._num_late[number] = self._num_late.get(number, 0) + 1
            self._judge(outcome.grammar, outcome.slow)
            if number not in asking and outcome.error is None:
                self._kept[number] = outcome
        return filled

    def _judge(self, grammar: int, slow: bool) -> None:
        """Record whether a row of a grammar was late. A late grammar gets a host of its own."""
        if slow and self._sits_out and grammar not in self.own:
            others = [number for number in self.own if number not in self._unused]
            if len(others) >= MOST_OWN:  # the next step ends it: this one may still need its rows
                self._unused.append(next((number for number in others if self.own[number].command is None), others[0]))
            self.own[grammar] = self._room("slow")
        if grammar in self.own:
            self.own[grammar].judge(slow)

    def _room(self, role: str) -> Room:
        return Room(role, self._source, self._lock, self._refuse)

    def _refuse(self, grammar: HostedGrammar, why: str) -> None:
        self.refused.remember(grammar.strategy, grammar.constraint, why)

    def _blame(self, died: HostDied) -> None:
        """Fail the sequence that the host was working on when it died, with its next rows. If that sequence is unknown,
        send the next jobs one at a time."""
        number = died.working_on
        if number is None:
            for room in self.rooms:
                room.together = False
        elif number != DROPPED:
            self._deaths[number] = self._deaths.get(number, 0) + 1
            if died.by_itself or self._deaths[number] >= MAX_DEATHS:
                self._failed[number] = died.error()

    def _by_room(self, items: Iterable[T], matcher: Callable[[T], HostedMatcher]) -> dict[Room, list[T]]:
        """Return the items by the host of their matchers. Closes the hosts of dropped grammars."""
        while self._unused:
            if (room := self.own.pop(self._unused.popleft(), None)) is not None:
                room.close()
        if not self.own:
            return {self.common: all_of} if (all_of := list(items)) else {}
        found: dict[Room, list[T]] = {}
        for item in items:
            found.setdefault(self._room_of(matcher(item)), []).append(item)
        for grammar in [grammar for grammar, room in self.own.items() if room in found]:
            self.own[grammar] = self.own.pop(grammar)
        return found

    def _room_of(self, matcher: HostedMatcher) -> Room:
        """Return the host to ask for a matcher: while a command with the matcher is unanswered, the host that has that
        command."""
        if not self.own:
            return self.common
        having = (room for room in self.rooms if room.has(matcher.number))
        return next(having, None) or self.own.get(matcher.grammar.number, self.common)

    def _patience(self, room: Room, num_jobs: int) -> Allowed | None:
        if not self._sits_out:
            return None
        if (room.command is not None and not room.command.is_ahead) or room.left_to_prove:
            return HURRIED
        late_seconds = self._limits.late_seconds
        return Allowed(late_seconds, late_seconds * (1 + num_jobs / 8))


def _take_all(jobs: Sequence[FillJob], answer: Command, bitmask: Bitmask) -> None:
    """Set the rows of jobs from an answer without errors, drafts or closing records."""
    assert answer.rows is not None
    bitmask[[job.first_row for job in jobs]] = answer.rows.block
    for i, job in enumerate(jobs):
        matcher = matcher_of(job)
        matcher.take(answer.rows, i)
        matcher.first_closed, matcher.ends = None, ()
