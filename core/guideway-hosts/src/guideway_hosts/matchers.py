"""The matchers of all strategies in their hosts: one command per step, and rows that are late."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from guideway.api.bitmask import Bitmask
from guideway.api.grammar import FillJob, Matcher
from guideway.errors import GuidewayError, LimitExceeded
from guideway.runtime.constraints.closing import Record
from guideway.runtime.constraints.mask_block import Late
from guideway.runtime.modifiers.modifier_set import MOST_TOGETHER
from numpy.typing import NDArray

from guideway_hosts.codec import encode
from guideway_hosts.deaths import isolate, retry
from guideway_hosts.fork_server import ForkServer
from guideway_hosts.host import Allowed, Host, HostDied
from guideway_hosts.matcher import NOBODY, Filled, Group, HostedGrammar, HostedMatcher, Refused, Rows
from guideway_hosts.messages import MAX_ROWS, Job
from guideway_hosts.room import LIVING, SECONDS_PER_TOKEN, Call, Room

__all__ = ["MatcherHost"]

LATE_WHERE_OTHERS_WAIT = 3
"""Times that the rows of one sequence may be late if the host program cannot let a sequence skip a step."""

MOST_OWN = 4
"""Most grammars with a host of their own. One more ends the host that was unused for the longest time."""

STARTS_WITHIN = 0.002
"""Seconds that a step waits for the replacement of a lost host. After that, sequences that need it skip the step."""

HURRIED = Allowed(2e-4, 2e-4)
"""The wait for sequences that are known to be slow."""

MOST_STEPS = 256
"""Steps after which a group tells its matchers their tokens."""

NOW = Allowed(0.0)
"""No wait: an answer is taken if it has arrived."""

PROVES_FAST = 16
"""Consecutive rows that must arrive in time before a step waits as long for a grammar that was late as for any other.

The number doubles each time the grammar is late again after these rows, up to `PROVES_FAST_AT_MOST`. One late row is
weak evidence: the cache may have been cold, or the machine may have paused.
"""
PROVES_FAST_AT_MOST = 4096


class Step(Call):
    """A call that fills the rows of matchers.

    With `is_ahead` it is sent before a step needs its answer. `limits` has for each job the most forced tokens that the
    host searches as its drafts, in at most `search_seconds` of CPU time (None: no limit); empty: it searches none.
    """

    def __init__(
        self,
        jobs: Sequence[FillJob],
        seconds: float,
        limits: Sequence[int] = (),
        search_seconds: float | None = None,
        *,
        is_ahead: bool = False,
    ) -> None:
        super().__init__("step", matchers_of(jobs), search_seconds, seconds, share_of(jobs))
        self._fills = [(job.draft_token_ids, limits[i] if limits else 0) for i, job in enumerate(jobs)]
        self.is_ahead = is_ahead
        """Also False after a step has lost its patience with it."""
        self.searches = any(limits)
        self.rows = Rows(np.empty((0, 0), np.int32))
        self.is_plain = False
        """True in the usual case: no drafts, every job filled in time, and nothing about closing changed."""
        self.slow: set[int] = set()
        """The places of jobs that took longer than `Limits.late_seconds`."""
        self.group: Group | None = None
        """Its matchers, after they have taken their rows."""
        self.token_ids: NDArray[np.int32] | None = None
        """The token that each matcher has accepted since the last step, which was this one too, by place."""
        self._removed: list[int] = []
        """The places of matchers that have left since the last step."""
        self._added: dict[int, HostedMatcher] = {}
        """The matchers that join with this step, by place."""
        self._places: dict[int, int] = {}
        """Their places, by number."""
        self._born_in = -1
        """The number of the host that has the jobs."""

    def go_on(self, matchers: Sequence[HostedMatcher], token_ids: NDArray[np.integer[Any]]) -> bool:
        """Let each of these matchers accept one more token, and become the next step. Others leave. Return False, and
        do nothing, unless they are matchers of the step, whose masks allow these tokens, which end none of them."""
        group = self.group
        if group is None or not group.is_told or not group.stop_token_ids.isdisjoint(token_ids.tolist()):
            return False
        found = [each.place_in(group) for each in matchers]
        places = np.array([place for place in found if place is not None], dtype=np.intp)
        if len(places) != len(found) or not self.rows.allow(places, token_ids):
            return False
        if len(places) != len(group.numbers) - group.numbers.count(NOBODY):
            group.keep({each.number for each in matchers})
        if self.token_ids is None:
            self.jobs = [Job(number, None) for number in self.numbers]
        self.token_ids = np.zeros(len(group.numbers), dtype=np.int32)
        self.token_ids[places] = token_ids
        self.rows, self.is_ahead = Rows(self.rows.block), True
        group.is_told = False
        group.log.append(self.token_ids)
        group.rows = None
        if len(group.log) >= MOST_STEPS:
            group.settle()
        return True

    @property
    def is_whole(self) -> bool:
        """True if no matcher has left since the last step."""
        return self.group is not None and self.group.numbers == self.numbers

    def change(self, jobs: Sequence[FillJob]) -> bool:
        """Let the step, which has gone on, be for these jobs. If it was not sent: for those of its matchers that stay,
        and others that join; others leave. If it was answered: for others that join those that have their rows. Return
        False, and do nothing, if that is not possible."""
        group, matchers = self.group, matchers_of(jobs)
        if group is None or self.token_ids is None or any(job.draft_token_ids for job in jobs):
            return False
        joining = [each for each in matchers if each.place_in(group) is None]
        num_staying = len(group.numbers) if group.is_told else len(matchers) - len(joining)
        if not num_staying or (group.is_told and len(joining) < len(matchers)) or num_staying + len(joining) > MAX_ROWS:
            return False
        if group.is_told:
            self.rows = Rows(self.rows.block)
        else:
            group.keep({each.number for each in matchers})
        self._removed = [i for i, (old, new) in enumerate(zip(self.numbers, group.numbers, strict=True)) if old != new]
        for place in self._removed:
            del self.sources[self.numbers[place]]
        free = [place for place, number in enumerate(group.numbers) if number == NOBODY]
        free += range(len(group.numbers), len(group.numbers) + max(0, len(joining) - len(free)))
        self._added = dict(zip(free, joining, strict=False))
        self._places = {each.number: place for place, each in self._added.items()}
        num_new = max(0, 1 + max(self._added, default=-1) - len(group.numbers))
        self.numbers = group.numbers + [NOBODY] * num_new
        self.jobs += [Job(NOBODY, None)] * num_new
        for place, each in self._added.items():
            self.numbers[place], self.sources[each.number] = each.number, each.source
        self.share = share_of(self.numbers)
        return True

    def enter(self, room: Room) -> None:
        assert room.host is not None
        self.rows.block = room.host.masks.rows
        if self.token_ids is not None and self._born_in != room.number:
            raise HostDied("its host was started again after the last step")
        self._born_in = room.number
        if self.token_ids is None:
            self.jobs = [room.job(each, *fill) for each, fill in zip(self.objects, self._fills, strict=True)]
        for place, each in self._added.items():
            self.jobs[place] = room.job(each)

    def send(self, host: Host, name: str, news: Sequence[tuple[str, int]]) -> None:
        if self.token_ids is None:
            super().send(host, name, news)
            return
        assert self.group is not None
        removed, added = self._removed, [(place, self.jobs[place]) for place in self._added]
        moves = not self.group.is_told
        for place, job in added:
            self.jobs[place] = Job(job.number, None)
        self._removed, self._added, self.group.is_told = [], {}, True
        host.masks.write_tokens(self.token_ids)
        host.send(*(("again", news, removed, added, moves) if news or removed or added else ()))

    def read(self, answer: Any, data: bytes | None) -> None:
        first, block, num_jobs = 0, self.rows.block, len(self.jobs)
        self.is_plain = answer is None or not (answer["errors"] or answer["found"])
        if self.is_plain:
            self.failures = [] if answer is None else list(map(str, answer["failures"]))
            self.results = [Filled(self.rows, i) for i in range(num_jobs)] if self.searches else []
            self.rows.block = block[1 : 1 + num_jobs]
        else:
            super().read(answer, data)
            self.slow = set(answer["slow"])
            for i, job in enumerate(self.jobs):
                filled = _read(answer["found"][i], tuple(job.draft_token_ids), job.num_forced, self.rows, first)
                first += 1 + len(filled.drafts)
                if i not in self.errors:
                    self.results[i] = filled
            self.rows.block = block[1 : 1 + first]
        for number, job, filled in zip(self.numbers, self.jobs, self.results, strict=True) if self.searches else ():
            matcher = LIVING.get(number)
            if job.num_forced and isinstance(matcher, HostedMatcher) and isinstance(filled, Filled):
                matcher.forced = filled.drafts

    def known(self, jobs: Sequence[FillJob]) -> list[int]:
        """Return the indices of the jobs whose rows its plain answer has: for their matchers in their present states,
        without drafts. A first step has the rows of all of them, or of none that it can `give`."""
        places = self._places_of(matchers_of(jobs))
        if any(job.draft_token_ids for job in jobs) or (self.group is None and None in places):
            return []
        return [i for i, place in enumerate(places) if place is not None]

    def give(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> None:
        """Set the rows of these jobs, which are `known`, from its plain answer."""
        rows, matchers = [job.first_row for job in jobs], matchers_of(jobs)
        places = [place for place in self._places_of(matchers) if place is not None]
        first, end = rows[0], rows[0] + len(rows)
        block = self.rows.block if places == list(range(len(self.rows.block))) else self.rows.block[places]
        bitmask[slice(first, end) if rows == list(range(first, end)) else rows] = block
        if self.group is None:
            self.group = Group()
        group = self.group
        group.rows = self.rows
        pairs = zip(places, matchers, strict=True)
        group.join({place: each for place, each in pairs if each.place_in(group) is None})
        self._places = {}

    def has_rows(self, matcher: HostedMatcher) -> bool:
        """Return whether a matcher of its group has rows for its present state, so that it needs no answer."""
        return self.group is not None and self.group.rows is not None and matcher.place_in(self.group) is not None

    def _places_of(self, matchers: Sequence[HostedMatcher]) -> list[int | None]:
        """Return the place of each matcher; None if the call is not about its present state."""
        if self.group is None:
            is_same = [each.number for each in matchers] == self.numbers
            return [i if is_same and not each.has_changed else None for i, each in enumerate(matchers)]
        places = [each.place_in(self.group) for each in matchers]
        for i, each in enumerate(matchers) if None in places else ():
            if places[i] is None and not each.has_changed:
                places[i] = self._places.get(each.number)
        return places


def _read(found: Any, drafts: tuple[int, ...], num_forced: int, rows: Rows, first: int) -> Filled:
    """Return the rows of a job from its part of an answer: the accepted drafts, or also the forced tokens that the host
    found as drafts, the first row that lost tokens, and the closing records. Raises ValueError, KeyError or TypeError
    for anything else."""
    count, forced, closed, records = found if isinstance(found, list) else (found, (), None, ())
    if forced:
        drafts = tuple(map(int, forced))
        if len(drafts) > num_forced or not all(0 <= token_id < 32 * rows.block.shape[1] for token_id in drafts):
            raise ValueError(f"the drafts {drafts} are not at most {num_forced} tokens")
    if type(count) is not int or not 0 <= count <= len(drafts):
        raise ValueError(f"{count} drafts accepted of {len(drafts)}")
    first_closed = None if closed is None else int(closed)
    return Filled(rows, first, drafts, count, first_closed, [Record.from_json(record) for record in records])


def share_of(jobs: Sequence[object]) -> float:
    """Return `Call.share` of a step. After that time each job is filled alone, which shows the slow one."""
    return min(MOST_TOGETHER, 1 + (len(jobs) - 1) / 8)


class MatcherRoom(Room):
    """A host of matchers."""

    def __init__(
        self, role: str, server: ForkServer, lock: threading.RLock, refuse: Callable[[HostedGrammar, str], None]
    ) -> None:
        super().__init__(role, server, lock, refuse=refuse)
        self.last: Step | None = None
        """The last command, if it was a plain step whose rows its matchers have."""
        self._lent: Callable[[], Rows | None] = lambda: None
        """Returns the rows of the last step if a matcher needs them. The next one overwrites their memory."""
        self.grammar: Callable[[], HostedGrammar | None] = lambda: None
        """Returns the grammar whose own host it is, if it still exists."""
        self.left_to_prove = 0
        """Consecutive rows that must still arrive in time before a step waits for them as long as for any others."""
        self._had_to_prove = PROVES_FAST // 2

    def judge(self, slow: bool) -> None:
        """Record whether a row was late."""
        if slow and not self.left_to_prove:
            self._had_to_prove = min(PROVES_FAST_AT_MOST, 2 * self._had_to_prove)
        self.left_to_prove = self._had_to_prove if slow else max(0, self.left_to_prove - 1)

    def lose(self) -> None:
        self.last = None
        super().lose()

    def advance(self, matchers: Sequence[HostedMatcher], token_ids: NDArray[np.integer[Any]]) -> bool:
        """Accept one token of each matcher. If these are all matchers of the last step, send the next step ahead, as
        nothing but the tokens; if some have left, others may join, so wait for `next_step`. Return False, and do
        nothing, unless the matchers are in the last step, and their masks allow the tokens. Raises `HostDied`, after
        which the tokens are accepted too."""
        last, host = self.last, self.host
        if last is None or host is None or not host.alive or not last.go_on(matchers, token_ids):
            return False
        if last.is_whole:
            self.begin(last)
        return True

    def next_step(self, jobs: Sequence[FillJob]) -> Step | None:
        """Return the last step, changed to be for these jobs, whose matchers have accepted their tokens; None if it
        cannot be."""
        return self.last if self.last is not None and self.last.change(jobs) else None

    def begin(self, call: Call) -> None:
        self.last = None
        if isinstance(call, Step) and (lent := self._lent()) is not None:
            lent.block = lent.block.copy()
        super().begin(call)

    def end(self, patience: Allowed | None = None) -> Call | None:
        step = self.pending
        try:
            ended = super().end(patience)
        except HostDied:
            raise
        except GuidewayError as error:  # of a batch: the matchers are in an unknown state now
            self.lose()
            raise HostDied(str(error)) from error
        if isinstance(step, Step):
            self._lent = weakref.ref(step.rows)
        return ended


class MatcherHost:
    """The hosts of the matchers of all strategies.

    A host is started with the first grammar, and again when it is lost: its matchers are made again from the tokens
    that they accepted. If a matcher makes its host crash or exceed a limit, its sequence fails.

    If the host program can let a sequence skip a step, a sequence whose rows are late skips it, and the next steps ask
    for the rows again. Its grammar gets a host of its own, so that it delays no other sequence.
    """

    def __init__(self, server: ForkServer, *, sits_out: bool, loads: bool = True) -> None:
        self._server = server
        self._limits = limits = server.limits
        self.refused = Refused(limits.remembered_seconds)
        self._sits_out = sits_out
        self._search_seconds = limits.late_seconds / 2 if sits_out else None
        """CPU seconds for the forced tokens of one sequence, so that a search makes no row late; None: no limit, since
        canonical tokens must not depend on time."""
        self._loads = loads
        """True if a grammar is loaded in the host as soon as it is compiled."""
        self._most_late = limits.late_fills if sits_out else min(limits.late_fills, LATE_WHERE_OTHERS_WAIT)
        self.has_closed = False
        """True if closing changed anything about the last jobs that were filled."""
        self._searched = False
        """True if forced tokens were asked for. Then a step is sent by `foresee`, which knows how many to search."""
        self._lock = threading.RLock()
        self.common = self._room("fill")
        """The host of all grammars without a host of their own."""
        self.own: dict[int, MatcherRoom] = {}
        """The hosts of grammars whose rows were late, by the grammar's number, the longest unused first."""

    @property
    def rooms(self) -> list[MatcherRoom]:
        """All hosts, the common one first."""
        return [self.common, *list(self.own.values())]

    def load(self, grammar: HostedGrammar) -> None:
        """Load a grammar in the common host's second thread, so that its first matcher need not wait for it. Raises the
        strategy's errors, and `LimitExceeded`."""
        try:
            if self._loads:
                self.common.load(grammar)
        except HostDied as died:
            if died.by_itself:
                self._refuse(grammar, str(died))
            if died.by_itself or died.broke:
                raise died.error() from died

    def unload(self, grammar: int) -> None:
        """Release a grammar that the serving process has dropped. Takes no lock, because the garbage collector may call
        it."""
        self.common.unload(grammar)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """Fill the rows of the jobs, as `GrammarStrategy.fill` does. A job whose rows arrive in a later step gets the
        error `Late`."""
        accepted = np.full(len(jobs), -1, dtype=np.int32)
        self.has_closed = False
        with self._lock:
            for room, left in self._by_room(jobs).items():
                self._fill(room, jobs, left, bitmask, accepted)
        return accepted

    def advance(self, matchers: Sequence[Matcher], token_ids: NDArray[np.integer[Any]]) -> bool:
        """Do as `MatcherRoom.advance`. Errors are reported by `fill`."""
        with self._lock:
            if self.own or self._searched:
                return False
            try:
                return self.common.advance(cast("Sequence[HostedMatcher]", matchers), token_ids)
            except HostDied as died:
                self._blame(died)
                return True

    def fail(self, job: FillJob) -> None:
        """Let the next `fill` fail this job with the error that it has now."""
        if isinstance(job.error, GuidewayError):
            with self._lock:
                matcher_of(job).answer = job.error

    @property
    def is_ahead(self) -> bool:
        """True if the only host works for the next step."""
        step = self.common.pending
        return not self.own and isinstance(step, Step) and step.is_ahead

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
            self._searched = self._searched or bool(limits)
            matchers = matchers_of(jobs)
            for room, some in self._by_room(jobs).items():
                # answers are taken by a step before these matchers are asked again
                some = [i for i in some if matchers[i].answer is None]
                num_left = MAX_ROWS - sum([1 + len(jobs[i].draft_token_ids) for i in some])
                try:
                    if not some or room.pending is not None or not room.is_up(None if waits else 0.0) or num_left < 0:
                        continue
                    searched = list[int]()
                    for i in some if limits and not room.left_to_prove else ():
                        searched.append(limits[i] if limits[i] <= num_left else 0)
                        num_left -= searched[-1]
                    asking = [jobs[i] for i in some]
                    step = None if any(searched) else room.next_step(asking)
                    seconds, searching = self._limits.fill_seconds, self._search_seconds
                    room.begin(step or Step(asking, seconds, searched, searching, is_ahead=True))
                except HostDied as died:  # if none can be started, the step's own command says why
                    self._blame(died)

    def hear(self, *, waits: bool) -> None:
        """Set `HostedMatcher.forced` of the matchers for which `foresee` searched, in hosts that have answered; with
        `waits`, wait for all hosts. Errors are reported with the rows."""
        with self._lock:
            for room in self.rooms:
                step = room.pending
                if isinstance(step, Step) and step.is_ahead and step.searches:
                    self._end(room, None if waits else NOW)

    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any:
        """Return the result of a matcher's method. Raises the errors that the method raises, and `LimitExceeded`."""
        seconds = self._limits.fill_seconds
        if method in ("accept", "validate"):
            seconds += SECONDS_PER_TOKEN * len(arguments[0])

        def attempt(matcher: HostedMatcher) -> Any:
            room = self._room_of(matcher)
            while room.pending is not None:
                self._end(room)
            return room.call(Call(method, [matcher], [encode(arguments)], seconds)).results[0]

        with self._lock:
            try:
                found = retry(matcher, attempt)
            except HostDied as died:
                found = died.error()
        if isinstance(found, GuidewayError):
            raise found
        return found

    def is_ready(self, matcher: HostedMatcher) -> bool:
        """Return whether late rows of a matcher may be available now, so that asking again makes sense."""
        with self._lock:
            room = self._room_of(matcher)
            if matcher.answer is None and room.pending is not None:
                self._end(room, NOW)
            return matcher.answer is not None or (room.pending is None and not room.is_starting)

    def is_slow(self, grammar: int) -> bool:
        """Return whether a grammar is slow, so that its sequences should be asked for masks only."""
        room = self.own.get(grammar)
        return room is not None and room.left_to_prove > 0

    def close(self) -> None:
        """End the hosts."""
        with self._lock:
            for room in self.rooms:
                room.close()

    # Parts

    def _fill(
        self,
        room: MatcherRoom,
        jobs: Sequence[FillJob],
        left: list[int],
        bitmask: Bitmask,
        accepted: NDArray[np.int32],
    ) -> None:
        """Fill the rows of the jobs `left` in one host, and set the error of jobs that fail."""
        patience = self._patience(room, len(left))
        # without patience, or while others start the host already, steps continue
        seconds = None if patience is None else 0.0 if room.is_starting else STARTS_WITHIN
        matchers = matchers_of(jobs)
        for i in left:
            jobs[i].error = None

        def attempt(left: list[int], apart: bool) -> Sequence[int]:
            taken = [i for i in left if matchers[i].answer is not None]
            if taken:
                return [i for i in taken if self._take(jobs[i], bitmask, accepted, i)]
            asking, step = [jobs[i] for i in left], None
            if room.pending is not None or room.is_up(seconds):
                if room.pending is None:
                    some = asking[:1] if apart else _fitting(asking)
                    room.begin(room.next_step(some) or Step(some, self._limits.fill_seconds))
                step = room.end(patience)
            if step is None:
                if isinstance(room.pending, Step):
                    room.pending.is_ahead = False
                room.give_up()
                for job in asking:
                    job.error = Late()
                return left
            assert isinstance(step, Step)
            if step.is_plain and room is self.common and (known := step.known(asking)):
                done = [left[i] for i in known]
                accepted[done] = 0
                step.give([asking[i] for i in known], bitmask)
                room.last = step
                return done
            self._deliver(step)
            return ()

        for i, died in isolate(attempt, {i: matchers[i] for i in left}).items():
            jobs[i].error = died.error()

    def _take(self, job: FillJob, bitmask: Bitmask, accepted: NDArray[np.int32], i: int) -> bool:
        """Set a job's rows and count, or its error, from its matcher's answer.

        Return False if the job must be sent again, because it was sent with other or fewer drafts, or has changed.
        """
        matcher = matcher_of(job)
        filled, matcher.answer = matcher.answer, None
        if isinstance(filled, GuidewayError):
            job.error = filled
            return True
        if filled is None or matcher.has_changed:
            return False
        count, sent, asked = filled.count, filled.drafts, tuple(job.draft_token_ids)
        if sent != asked:
            alike = next((n for n, pair in enumerate(zip(sent, asked, strict=False)) if pair[0] != pair[1]), len(sent))
            if alike <= count and alike < len(asked):  # the host did not check the next draft: its row is missing
                return False
            count = min(count, len(asked))
        num_rows = matcher.count_rows(count, sent)
        bitmask[job.first_row : job.first_row + num_rows] = filled.rows.block[filled.first : filled.first + num_rows]
        matcher.take(filled.rows, filled.first, sent[: num_rows - 1])
        matcher.first_closed, matcher.ends = filled.first_closed, filled.ends
        self.has_closed |= bool(filled.ends) or filled.first_closed is not None
        accepted[i] = count
        if matcher.num_late >= self._most_late:
            seconds = self._limits.late_seconds
            why = f"it took more than {seconds:g} s processor time for one step, {self._most_late} times"
            self._refuse(matcher.grammar, why)
            job.error = LimitExceeded(why, field="constraint")
            accepted[i] = -1
        return True

    def _end(self, room: MatcherRoom, patience: Allowed | None = None) -> None:
        """Wait for the answer of a host, until `patience` ends, and keep it for the next `fill`."""
        try:
            if isinstance(step := room.end(patience), Step):
                self._deliver(step)
        except HostDied as died:
            self._blame(died)

    def _deliver(self, step: Step) -> None:
        """Give each matcher that still exists its result, and record whether it was late."""
        for i, number in enumerate(step.numbers):
            matcher, slow = LIVING.get(number), i in step.slow
            if isinstance(matcher, HostedMatcher) and not step.has_rows(matcher):
                matcher.num_late += slow
                matcher.answer = step.results[i] if step.results else Filled(step.rows, i)
                self._judge(matcher.grammar, slow)

    def _judge(self, grammar: HostedGrammar, slow: bool) -> None:
        """Record whether a row of a grammar was late. A late grammar gets a host of its own."""
        if slow and self._sits_out and grammar.number not in self.own:
            self.own[grammar.number] = self._room("slow")
            self.own[grammar.number].grammar = weakref.ref(grammar)
        if grammar.number in self.own:
            self.own[grammar.number].judge(slow)

    def _room(self, role: str) -> MatcherRoom:
        return MatcherRoom(role, self._server, self._lock, self._refuse)

    def _refuse(self, grammar: HostedGrammar, why: str) -> None:
        self.refused.remember(grammar.strategy, grammar.constraint, why)

    def _blame(self, died: HostDied) -> None:
        """Fail the sequence that the host was working on when it died, with its next rows."""
        matcher = None if died.working_on is None else LIVING.get(died.working_on)
        if isinstance(matcher, HostedMatcher) and matcher.died(died.by_itself):
            matcher.answer = died.error()

    def _by_room(self, jobs: Sequence[FillJob]) -> dict[MatcherRoom, list[int]]:
        """Return the places of the jobs by the host of their matchers. Closes hosts of dropped grammars, and of more
        than `MOST_OWN`, if possible one that is idle."""
        if not self.own:
            return {self.common: list(range(len(jobs)))} if jobs else {}
        order = sorted(self.own.items(), key=lambda own: (own[1].grammar() is not None, own[1].pending is not None))
        num_dropped = sum(room.grammar() is None for _, room in order)
        for number, room in order[: max(num_dropped, len(order) - MOST_OWN)]:
            del self.own[number]
            room.close()
        found: dict[MatcherRoom, list[int]] = {}
        for i, job in enumerate(jobs):
            found.setdefault(self._room_of(matcher_of(job)), []).append(i)
        for grammar in [grammar for grammar, room in self.own.items() if room in found]:
            self.own[grammar] = self.own.pop(grammar)
        return found

    def _room_of(self, matcher: HostedMatcher) -> MatcherRoom:
        """Return the host to ask for a matcher: while a command with the matcher is unanswered, the host that has that
        command."""
        room = matcher.room
        if isinstance(room, MatcherRoom) and room.has(matcher):
            return room
        return self.own.get(matcher.grammar.number, self.common)

    def _patience(self, room: MatcherRoom, num_jobs: int) -> Allowed | None:
        if not self._sits_out:
            return None
        if (isinstance(room.pending, Step) and not room.pending.is_ahead) or room.left_to_prove:
            return HURRIED
        late_seconds = self._limits.late_seconds
        return Allowed(late_seconds, late_seconds * (1 + num_jobs / 8))


def matcher_of(job: FillJob) -> HostedMatcher:
    """Return the matcher of a job."""
    return cast("HostedMatcher", job.matcher)


def matchers_of(jobs: Sequence[FillJob]) -> list[HostedMatcher]:
    """Return the matchers of jobs."""
    return cast("list[HostedMatcher]", [job.matcher for job in jobs])


def _fitting(jobs: Sequence[FillJob]) -> Sequence[FillJob]:
    """Return the longest prefix of the jobs whose rows fit into a host's memory, but at least one job."""
    num_rows = 0
    for i, job in enumerate(jobs):
        num_rows += 1 + len(job.draft_token_ids)
        if i and num_rows > MAX_ROWS:
            return jobs[:i]
    return jobs
