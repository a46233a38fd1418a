"""The matchers of all strategies in their hosts: one command a step, and all of them made anew where a host is lost."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from guideway.api.bitmask import Bitmask
from guideway.api.grammar import FillJob
from guideway.api.types import Constraint
from guideway.errors import GuidewayError, LimitExceeded
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.mask_block import Late
from numpy.typing import NDArray

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Host, HostDied, Patience
from guideway_hosts.matcher import HostedGrammar, HostedMatcher
from guideway_hosts.room import Answer, Filled, MatcherDied, Room, matcher_of
from guideway_hosts.seat import MAX_DEATHS, Died, isolate

__all__ = ["MatcherHost"]

LATE_WHERE_OTHERS_WAIT = 3
"""So often the rows of one sequence may be late where the host cannot let it sit a step out."""

MOST_OWN = 4
"""Grammars that have a host of their own; one more ends the one that was not used for the longest."""

STARTS_WITHIN = 0.002
"""Seconds that a step waits for a host which takes the place of a lost one; sequences that need it sit out then."""

HURRIED = Patience(2e-4, 2e-4)
"""With sequences that are known to be slow."""


T = TypeVar("T")


class MatcherHost:
    """The home of the matchers of all strategies. A host is started with the first grammar, and anew when it is lost:
    matchers are rebuilt from what they accepted. What it was working on when it broke a limit, or crashed, fails.

    Where the host of the runtime can let a sequence sit a step out, one whose rows are late does: the next steps ask
    for them again. Its grammar gets a host of its own, so that it is late alone.
    """

    def __init__(
        self,
        source: HostSource,
        limits: Limits,
        refuse: Callable[[str, Constraint, str], None],
        *,
        sits_out: bool,
        loads: bool = True,
    ) -> None:
        self._source = source
        self._limits = limits
        self._refuse = refuse
        """Told of a strategy's constraint that broke a limit or killed the host."""
        self._sits_out = sits_out
        self._loads = loads
        """True if a grammar is loaded before its first matcher is asked for anything."""
        self._most_late = limits.late_fills if sits_out else min(limits.late_fills, LATE_WHERE_OTHERS_WAIT)
        self._lock = threading.RLock()
        self.common = Room("fill", source, limits)
        """The host of all that have none of their own."""
        self.own: dict[int, Room] = {}
        """By the number of a grammar whose rows were late its host, the longest unused first."""
        self._unused: deque[int] = deque()
        """Grammars that nobody uses any more."""
        self._num_late: dict[int, int] = {}
        """By the number of a matcher how often its rows were."""
        self._deaths: dict[int, int] = {}
        """By the number of a matcher how often the host died at work on it, since its last rows."""
        self._failed: dict[int, GuidewayError] = {}
        """By the number of a matcher why its rows will not come, which nobody was told yet."""
        self._kept: dict[int, Filled] = {}
        """By the number of a matcher its rows, which came while it was in no step."""
        self._closed = False

    @property
    def rooms(self) -> list[Room]:
        """All hosts, the common one first."""
        return [self.common, *list(self.own.values())]

    def start(self) -> None:
        """Start the host that the first grammar would wait for. Raises `HostDied`."""
        if self._loads:
            self._when_up()

    def load(self, grammar: HostedGrammar) -> None:
        """Hand a grammar to the host, beside what it does otherwise. Raises what the strategy raises, and
        `LimitExceeded`."""

        def attempt(left: list[HostedGrammar], _: bool) -> list[HostedGrammar]:
            host, number = self._when_up()
            try:
                self.common.load(host, grammar)
            except HostDied as error:
                host.close()
                if error.by_itself:
                    self._refuse(grammar.strategy, grammar.constraint, str(error))
                raise Died(error, grammar.number) from error
            with self._lock:
                if number == self.common.number:
                    self.common.loaded.add(grammar.number)
            return left

        if self._loads:
            isolate([grammar], attempt, lambda each: each.number, _raise)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """`GrammarStrategy.fill`. The error of a job whose rows come in a later step is `Late`."""
        accepted = np.full(len(jobs), -1, dtype=np.int32)
        with self._lock:
            self._check_open()
            for room, left in self._by_room(range(len(jobs)), lambda i: matcher_of(jobs[i])).items():
                self._fill(room, jobs, left, bitmask, accepted, self._patience(room, len(left)))
        return accepted

    def fail(self, job: FillJob) -> None:
        """Let the next `fill` fail a job as the last one did."""
        if isinstance(job.error, GuidewayError):
            with self._lock:
                self._failed[matcher_of(job).number] = job.error

    def foresee(self, jobs: Sequence[FillJob], limits: Sequence[int] = ()) -> None:
        """Begin with what `fill` is about to be asked for, in hosts that are there and do nothing else. What is asked
        otherwise after all is done anew; what fails, fails then. `limits` says for each job how many forced tokens to
        find as its drafts, empty: none for any. `hear` reads them."""
        with self._lock:
            if self._closed:
                return
            # what comes of others is told before they are asked
            known = self._kept.keys() | self._failed.keys()
            chosen = [i for i, job in enumerate(jobs) if matcher_of(job).number not in known]
            for room, some in self._by_room(chosen, lambda i: matcher_of(jobs[i])).items():
                try:
                    is_free = not room.is_pending and room.together and room.is_up(0.0 if self._sits_out else None)
                    if is_free and room.fitting(jobs, some, limits) == some:
                        room.begin(jobs, some, limits, is_ahead=True)
                except HostDied:
                    continue  # the step's own command says why
                except MatcherDied as died:
                    self._blame(died)

    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any:
        """Return what a method of a matcher returns. Raises what it raises there, and `LimitExceeded`."""
        found: list[Any] = []

        def attempt(left: list[HostedMatcher], _: bool) -> list[HostedMatcher]:
            room = self._room_of(matcher)
            try:
                self._check_open()
                room.alive()
                while room.is_pending:
                    if (answer := room.end(None)) is not None:
                        self._note(answer.by_number(), set())
                found.append(room.ask(matcher, method, arguments))
            except HostDied as error:
                room.lose()
                died = MatcherDied(error, matcher.number, matcher.grammar)
                self._hold_against(died)
                raise died from error
            except MatcherDied as died:  # over a command before
                self._hold_against(died)
                raise
            except GuidewayError:
                matcher.lost()
                raise
            return left

        with self._lock:
            isolate([matcher], attempt, lambda each: each.number, _raise)
        return found[0]

    def hear(self, *, waits: bool) -> None:
        """Set `HostedMatcher.forced` of those for which `foresee` asked, in hosts that have answered, or with `waits`
        in all. What fails, fails with the rows."""
        with self._lock:
            for room in self.rooms:
                try:
                    if room.is_ahead:
                        room.hear(waits=waits)
                except MatcherDied as died:
                    self._blame(died)

    def close(self) -> None:
        """End the hosts."""
        with self._lock:
            self._closed = True
            for room in self.rooms:
                room.close()

    def is_ready(self, matcher: HostedMatcher) -> bool:
        """Return whether asking again for rows that were late may bring them: what they waited for has ended."""
        with self._lock:
            room = self._room_of(matcher)
            try:
                if matcher.number in self._kept:
                    return True
                return room.is_answered() if room.is_pending else not room.is_starting
            except MatcherDied as died:
                self._blame(died)
                return True

    def is_slow(self, grammar: int) -> bool:
        """Return whether nothing should be asked of the sequences of a grammar beside their masks."""
        room = self.own.get(grammar)
        return room is not None and room.left_to_prove > 0

    # Called by the collector of garbage, at any moment: they take no lock

    def forget(self, what: str, matcher: int, host: int) -> None:
        """A host is to have a matcher no more."""
        for room in self.rooms:
            if room.number == host:
                room.tell(what, matcher, host)

    def end_for(self, matcher: int) -> None:
        """Nobody uses a matcher any more."""
        for known in (self._num_late, self._failed, self._deaths, self._kept):
            known.pop(matcher, None)
        for room in self.rooms:
            room.end_for(matcher)

    def unload(self, grammar: int) -> None:
        """Nobody uses a grammar any more."""
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
            room.together = room.together and not apart
            in_room, answer = None, None
            try:
                if room.is_pending or self._is_up(room, jobs, left, patience):
                    is_whole = room.is_ahead and room.is_about(jobs, left)
                    if not room.is_pending:
                        group = room.fitting(jobs, left) if room.together else left[:1]
                        is_whole = len(group) == len(left)
                        room.begin(jobs, group)
                    # the rows stay where they are, if no command follows before what is drawn is accepted
                    in_room = room if is_whole else None
                    answer = room.end(patience)
            except MatcherDied as died:
                self._hold_against(died)
                raise
            if answer is None:
                for i in left:
                    jobs[i].error = Late()
                return left
            if answer.outcomes is None and in_room is not None and self._is_calm(jobs, left):
                _take_all(in_room, jobs, left, answer, bitmask, accepted)
                return left
            filled = answer.by_number()
            self._note(filled, {matcher_of(jobs[i]).number for i in left})
            room.together = room.together and not any(found.apart for found in filled.values())
            return [
                i
                for i in left
                if (found := filled.get(matcher_of(jobs[i]).number)) is not None
                and self._take(in_room, jobs[i], found, bitmask, accepted, i)
            ]

        def fail(i: int, cause: HostDied) -> None:
            jobs[i].error = cause.error()

        isolate(left, attempt, lambda i: matcher_of(jobs[i]).number, fail, self._deaths)
        room.together = True

    def _is_calm(self, jobs: Sequence[FillJob], left: Sequence[int]) -> bool:
        """Return whether nothing is to be remembered of jobs that were filled in time, and none has drafts."""
        return not (self.own or self._num_late or self._deaths) and not any(jobs[i].draft_token_ids for i in left)

    def _is_up(self, room: Room, jobs: Sequence[FillJob], left: list[int], patience: Patience | None) -> bool:
        """Return whether the room has a host. One is started while the steps go on, where they need not wait."""
        try:
            return room.is_up(None if patience is None else 0.0 if room.is_starting else STARTS_WITHIN)
        except HostDied as error:
            alone = len(left) == 1 or not room.together
            raise MatcherDied(error, matcher_of(jobs[left[0]]).number if alone else None) from error

    def _take(
        self, room: Room | None, job: FillJob, filled: Filled, bitmask: Bitmask, accepted: NDArray[np.int32], i: int
    ) -> bool:
        """Let a job have what became of it; its rows stay in `room`, or None: become its own. False if it is to be
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
        matcher.filled(masks.copy() if room is None else masks, sent[:count], room)
        if room is not None:
            room.lent.append(weakref.ref(matcher))
        matcher.first_closed, matcher.ends = filled.first_closed, filled.ends
        accepted[i] = count
        if self._num_late.get(matcher.number, 0) >= self._most_late:
            seconds = self._limits.late_seconds
            why = f"it took more than {seconds:g} s processor time for one step, {self._most_late} times"
            self._refuse(matcher.grammar.strategy, matcher.grammar.constraint, why)
            job.error = LimitExceeded(why, field="constraint")
            accepted[i] = -1
        return True

    def _had(self, job: FillJob, bitmask: Bitmask, accepted: NDArray[np.int32], i: int) -> bool:
        """Let a job have what came for it while it was in no step, if something did."""
        matcher = matcher_of(job)
        found = self._kept.pop(matcher.number, None)
        return found is not None and not matcher.has_news() and self._take(None, job, found, bitmask, accepted, i)

    def _note(self, filled: Mapping[int, Filled], asking: set[int]) -> None:
        """Count how often the rows of a sequence were late: it, and all with its grammar, go on in the other room; and
        how often they were not. Keep
        what came for those that are not asking now."""
        for number, outcome in filled.items():
            if outcome.slow:
                self._num_late[number] = self._num_late.get(number, 0) + 1
            self._judge(outcome.grammar, outcome.slow)
            if number not in asking and outcome.error is None:
                self._kept[number] = replace(outcome, masks=outcome.masks.copy())

    def _judge(self, grammar: int, slow: bool) -> None:
        """Note whether the rows of a sequence of a grammar were late. Then the grammar has a host of its own."""
        if slow and self._sits_out and grammar not in self.own:
            if len(self.own) >= MOST_OWN:
                idle = (number for number, room in self.own.items() if not room.is_pending)
                self.own.pop(next(idle, next(iter(self.own)))).close()
            self.own[grammar] = Room("slow", self._source, self._limits)
        if grammar in self.own:
            self.own[grammar].judge(slow)

    def _ends(self, died: MatcherDied, matcher: int) -> bool:
        """Return whether a sequence fails for the death of a host at work on it."""
        self._deaths[matcher] = self._deaths.get(matcher, 0) + 1
        return died.cause.by_itself or self._deaths[matcher] >= MAX_DEATHS

    def _hold_against(self, died: MatcherDied) -> None:
        if died.cause.by_itself and died.grammar is not None:
            self._refuse(died.grammar.strategy, died.grammar.constraint, str(died.cause))

    def _blame(self, died: MatcherDied) -> None:
        """A sequence that the first room died over fails with its next rows; where nobody knows which, they are asked
        for one by one."""
        self._hold_against(died)
        if died.number is None:
            for room in self.rooms:
                room.together = False
        elif died.wanted and self._ends(died, died.number):
            self._failed[died.number] = died.cause.error()

    def _by_room(self, items: Iterable[T], matcher: Callable[[T], HostedMatcher]) -> dict[Room, list[T]]:
        """Return the items by the host of their matchers."""
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
        """Return where it is asked: until a command about it is answered, where that is."""
        if not self.own:
            return self.common
        having = (room for room in self.rooms if room.has(matcher.number))
        return next(having, None) or self.own.get(matcher.grammar.number, self.common)

    def _patience(self, room: Room, num_jobs: int) -> Patience | None:
        if not self._sits_out:
            return None
        if (room.is_pending and not room.is_ahead) or room.left_to_prove:
            return HURRIED
        late_seconds = self._limits.late_seconds
        return Patience(late_seconds, late_seconds * (1 + num_jobs / 8))

    def _when_up(self) -> tuple[Host, int]:
        """Return the common host and its number; while it is started, steps go on."""
        while True:
            with self._lock:
                self._check_open()
                if self.common.is_up(0.0):
                    return self.common.alive(), self.common.number
                starting = self.common.starting
            if starting is not None:
                wait([starting])

    def _check_open(self) -> None:
        if self._closed:
            raise GuidewayError("the grammar hosts are closed")


def _take_all(
    room: Room,
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
        matcher.filled(answer.masks[i : i + 1], (), room)
        matcher.first_closed, matcher.ends = None, ()
    room.lent = [weakref.ref(matcher_of(job)) for job in some]


def _raise(_: Any, died: HostDied) -> None:
    raise died.error()
