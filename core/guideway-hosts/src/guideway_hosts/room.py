"""A host process for matchers and their grammars, and the command that it is executing."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
from guideway.api.grammar import FillJob
from guideway.errors import ConformanceError, GuidewayError
from guideway.runtime.constraints.closing import Record
from numpy.typing import NDArray

from guideway_hosts.codec import encode
from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Allowed, HostDied
from guideway_hosts.matcher import HostedGrammar, HostedMatcher, Rows
from guideway_hosts.messages import MAX_ROWS, Birth, Job, read_error
from guideway_hosts.seat import SECONDS_PER_TOKEN, Seat

__all__ = ["DROPPED", "Command", "Filled", "Room", "matcher_of"]

PROVES_FAST = 16
"""Consecutive rows that must arrive in time before a step waits as long for a grammar that was late as for any other.

The number doubles each time the grammar is late again after these rows, up to `PROVES_FAST_AT_MOST`. One late row is
weak evidence: the cache may have been cold, or the machine may have paused.
"""
PROVES_FAST_AT_MOST = 4096

DROPPED = -2
"""`HostDied.working_on` of a matcher that the serving process has dropped since the command was sent."""

PLAIN: dict[str, Any] = {"counts": None, "drafts": None, "errors": {}, "apart": [], "slow": [], "closing": {}}
"""The answer to a step without drafts in which every job was filled in time and nothing about closing changed."""


@dataclass(slots=True)
class Filled:
    """The result of one job of a command."""

    rows: Rows
    first: int
    """The index of the job's first row in `rows`."""
    drafts: tuple[int, ...]
    """The drafts of the job, or the forced tokens that the host found as its drafts."""
    count: int
    """Drafts accepted; -1 if the job failed."""
    grammar: int
    """The number of the matcher's grammar."""
    error: GuidewayError | None = None
    apart: bool = False
    """True if a whole batch failed and it is unknown which job caused it: send this job again, alone."""
    slow: bool = False
    """True if the job took longer than `Limits.late_seconds`."""
    first_closed: int | None = None
    """The first row in which closing removed tokens that the grammar allows; None if there is no such row."""
    ends: Sequence[Record] = ()
    """The closing record for each row, valid after a token was drawn from it; empty if the record did not change."""


@dataclass(slots=True)
class Command:
    """A command to fill the rows of matchers, and its answer."""

    jobs: list[Job]
    matchers: list[weakref.ref[HostedMatcher]]
    grammars: dict[int, HostedGrammar]
    """By the number of each matcher its grammar, in the order of the jobs."""
    wanted: set[int]
    """The numbers of the matchers that still exist in the serving process."""
    is_ahead: bool
    """True if it was sent before a step needed its answer, until one has lost its patience with it."""
    searches: bool
    """True if the host must search forced tokens for one of its jobs."""
    rows: Rows | None = None
    """The rows of all jobs; None: there is no answer yet."""
    outcomes: list[Filled] | None = None
    """None in the usual case: no drafts, every job filled in time, and nothing about closing changed."""

    def by_number(self) -> dict[int, Filled]:
        """Return the result of each job whose matcher still exists, by the matcher's number."""
        outcomes, rows = self.outcomes, self.rows
        if outcomes is None:
            assert rows is not None
            numbers = [self.grammars[job.matcher].number for job in self.jobs]
            outcomes = [Filled(rows, i, (), 0, number) for i, number in enumerate(numbers)]
        pairs = zip(self.jobs, outcomes, strict=True)
        return {job.matcher: outcome for job, outcome in pairs if job.matcher in self.wanted}

    def is_about(self, jobs: Sequence[FillJob]) -> bool:
        """Return whether the command is for the matchers of these jobs, in this order, and no others."""
        return [each() for each in self.matchers] == [job.matcher for job in jobs]


class Room(Seat):
    """A host of matchers. `refuse` is called with a grammar and the reason if a matcher of it ended the host."""

    def __init__(
        self, role: str, source: HostSource, lock: RLock, refuse: Callable[[HostedGrammar, str], None]
    ) -> None:
        super().__init__(role, source, lock)
        self._refuse = refuse
        self.command: Command | None = None
        """The command that is not answered yet, or whose answer no step has taken."""
        self.together = True
        """True if one command may contain several matchers. False after a command for several matchers ended the host
        and it is unknown which matcher caused it."""
        self._lent: Callable[[], Rows | None] = lambda: None
        """Returns the rows of the last command if a matcher needs them. The next command overwrites their memory."""
        self.left_to_prove = 0
        """Consecutive rows that must still arrive in time before a step waits for them as long as for any others."""
        self._had_to_prove = PROVES_FAST // 2

    def judge(self, slow: bool) -> None:
        """Record whether a row was late."""
        if slow and not self.left_to_prove:
            self._had_to_prove = min(PROVES_FAST_AT_MOST, 2 * self._had_to_prove)
        self.left_to_prove = self._had_to_prove if slow else max(0, self.left_to_prove - 1)

    def has(self, matcher: int) -> bool:
        """Return whether the command includes a matcher that still exists."""
        return self.command is not None and matcher in self.command.wanted

    def lose(self) -> None:
        self.command = None
        super().lose()

    def fitting(self, jobs: Sequence[FillJob], left: Sequence[int], limits: Sequence[int] = ()) -> list[int]:
        """Return the longest prefix of `left` whose rows fit into the host's memory, but at least one job. `limits` as
        for `begin`."""
        group: list[int] = []
        room = MAX_ROWS
        for i in left:
            room -= 1 + max(len(jobs[i].draft_token_ids), limits[i] if limits else 0)
            if room < 0 and group:
                break
            group.append(i)
        return group

    def begin(
        self,
        jobs: Sequence[FillJob],
        group: Sequence[int],
        limits: Sequence[int] = (),
        search_seconds: float | None = None,
        *,
        is_ahead: bool = False,
    ) -> None:
        """Send the command for the jobs of `group`. `limits` has for each job of `jobs` the most forced tokens that the
        host searches as its drafts, in at most `search_seconds` of CPU time; empty: it searches none. Raises
        `HostDied`."""
        host, sent, first = self.alive(), list[Job](), 1
        matchers = [matcher_of(jobs[i]) for i in group]
        for i, matcher in zip(group, matchers, strict=True):
            drafts = tuple(jobs[i].draft_token_ids)
            sent.append(self._job(matcher, drafts, first, limits[i] if limits else 0))
            first += 1 + len(drafts)
        if (lent := self._lent()) is not None:
            lent.block = lent.block.copy()
            self._lent = lambda: None
        grammars = {matcher.number: matcher.grammar for matcher in matchers}
        references = [weakref.ref(matcher) for matcher in matchers]
        command = Command(sent, references, grammars, set(grammars), is_ahead, any(limits))
        with self._working(command):
            self.command = command
            host.send("step", *host.masks.write_jobs(sent), self.news(), search_seconds)

    def end(self, patience: Allowed | None) -> Command | None:
        """Return the command with its answer, or None if `patience` ends before it arrives. Raises `HostDied`."""
        if (command := self._receive(patience)) is not None:
            self.command = None
        return command

    def hear(self, *, waits: bool) -> None:
        """Set `HostedMatcher.forced` to the tokens that the host found, if it has answered; with `waits`, wait for the
        answer. Raises `HostDied`."""
        command, host = self.command, self.host
        if command is None or host is None or not (command.searches and command.is_ahead):
            return
        if waits or host.has_news():
            self._receive(None)

    def _receive(self, patience: Allowed | None) -> Command | None:
        """Wait for the answer, and let the matchers that still exist have it. Return None if `patience` ends first."""
        command = self.command
        assert command is not None and self.host is not None
        if command.rows is not None:
            return command
        jobs, block = command.jobs, self.host.masks.rows
        with self._working(command):
            try:
                answer = self.host.answer(self._allowed(jobs), patience=patience)
            except GuidewayError as error:
                if isinstance(error, HostDied):
                    raise
                raise ValueError(str(error)) from error  # errors of strategies are in the answer
            if answer is None:
                command.is_ahead = False
                return None
            if answer[0] != PLAIN or any(job.draft_token_ids for job in jobs):
                command.outcomes = _read(answer[0], jobs, command.grammars, block)
        outcomes = command.outcomes
        command.rows = Rows(block[1 : 1 + len(jobs)]) if outcomes is None else outcomes[0].rows
        self._lent = weakref.ref(command.rows)
        for i, (reference, job) in enumerate(zip(command.matchers, jobs, strict=True)):
            matcher, failed = reference(), outcomes is not None and outcomes[i].count < 0
            if job.birth is not None and not failed:
                self.loaded.add(job.birth.grammar)
            if matcher is None:  # dropped while the host was working: the host must drop it too
                self.tell("end", job.matcher, self.number)
            elif failed:
                matcher.lost()
            else:
                matcher.done(self.number)
                if job.num_forced:
                    matcher.forced = () if outcomes is None else tuple(outcomes[i].drafts)
        return command

    def is_answered(self) -> bool:
        """Return whether `end` would return without waiting. Raises `HostDied`."""
        command = self.command
        assert command is not None and self.host is not None
        if command.rows is not None:
            return True
        with self._working(command):
            return self.host.is_answered(self._allowed(command.jobs))

    def ask(self, matcher: HostedMatcher, method: str, arguments: Sequence[Any]) -> Any:
        """Return the result of a matcher's method. Raises the errors that the method raises, and `HostDied`."""
        host, job, number = self.alive(), self._job(matcher), matcher.number
        seconds = self._limits.fill_seconds + sum(self._more_seconds([job]).values())
        if method in ("accept", "validate"):
            seconds += SECONDS_PER_TOKEN * len(arguments[0])
        with self._working(Command([job], [], {number: matcher.grammar}, {number}, False, False)):
            host.send("ask", *host.masks.write_jobs([job]), self.news(), method, arguments)
            answer = host.answer(Allowed(seconds))
        assert answer is not None
        if job.birth is not None:
            self.loaded.add(job.birth.grammar)
        matcher.done(self.number)
        return answer[0]

    def end_for(self, matcher: int) -> None:
        """Remove a dropped matcher from the command, and kill the host if it works for dropped matchers only. Takes no
        lock and never waits, because the garbage collector may call it."""
        command, host = self.command, self.host
        if command is not None and matcher in command.wanted:
            command.wanted.discard(matcher)
            is_useless = not command.wanted and command.rows is None and self.command is command
            if is_useless and host is not None and not host.has_news():
                host.kill()

    @contextmanager
    def _working(self, command: Command) -> Iterator[None]:
        """Do as `losing` does, and refuse the grammar of the matcher that ended the host."""
        try:
            with self.losing(command.grammars):
                yield
        except HostDied as died:
            if died.working_on is not None:
                if died.by_itself:
                    self._refuse(command.grammars[died.working_on], str(died))
                if died.working_on not in command.wanted:
                    died.working_on = DROPPED
            raise

    def _job(
        self, matcher: HostedMatcher, draft_token_ids: tuple[int, ...] = (), first_row: int = 0, num_forced: int = 0
    ) -> Job:
        """Return a matcher's job. If the host does not have the matcher's grammar, the job contains its source, so that
        a step without patience does not wait for the grammar either."""
        birth, rollback, accept, grammar = None, *matcher.changes, matcher.grammar
        if matcher.born_in != self.number:
            matcher.moves()
            birth, rollback, accept = matcher.birth(), 0, ()
            if grammar.number not in self.loaded:
                birth = birth._replace(strategy=grammar.strategy, given=encode(grammar.given))
        return Job(matcher.number, birth, rollback, accept, draft_token_ids, first_row, num_forced)

    def _allowed(self, jobs: Sequence[Job]) -> Allowed:
        """Return the time limits for a command with these jobs."""
        seconds, more = self._limits.fill_seconds, self._more_seconds(jobs)
        return Allowed(seconds, seconds * (1 + len(jobs)) + sum(more.values()), more)

    def _more_seconds(self, jobs: Sequence[Job]) -> dict[int, float]:
        """Return the extra seconds allowed for each matcher that the host must rebuild, by its number: for accepting
        its tokens, and for compiling its grammar if the host does not have it."""
        return {job.matcher: self._seconds_of(job.birth) for job in jobs if job.birth is not None}

    def _seconds_of(self, birth: Birth) -> float:
        compiling = 0.0 if birth.given is None else self._limits.compile_seconds
        return SECONDS_PER_TOKEN * len(birth.token_ids) + compiling


def matcher_of(job: FillJob) -> HostedMatcher:
    """Return the matcher of a job. Raises `ConformanceError` if it is not a matcher of a grammar host."""
    matcher = job.matcher
    if not isinstance(matcher, HostedMatcher):
        raise ConformanceError(f"a {type(matcher).__name__} is not a matcher of a grammar host")
    return matcher


def _read(
    answer: Any, jobs: Sequence[Job], grammars: dict[int, HostedGrammar], block: NDArray[np.int32]
) -> list[Filled]:
    """Return the results of a step from the host's answer. Raises ValueError, KeyError or TypeError if the answer does
    not fit the command: the host is not trusted."""
    counts = [0] * len(jobs) if answer["counts"] is None else answer["counts"]
    searched = [()] * len(jobs) if answer["drafts"] is None else answer["drafts"]
    errors, apart, slow, closing = dict(answer["errors"]), answer["apart"], set(answer["slow"]), dict(answer["closing"])
    found, first, rows = list[Filled](), 0, Rows(block)
    for i, (count, drafts, job) in enumerate(zip(counts, searched, jobs, strict=True)):
        drafts = tuple(map(int, drafts))
        if len(drafts) > max(job.num_forced, len(job.draft_token_ids)):
            raise ValueError(f"{len(drafts)} drafts of at most {job.num_forced}")
        if not all(0 <= token_id < 32 * block.shape[1] for token_id in drafts):
            raise ValueError(f"the drafts {drafts} are not tokens")
        drafts = drafts or tuple(job.draft_token_ids)
        if type(count) is not int or not -1 <= count <= len(drafts) or (count < 0) is not (str(i) in errors):
            raise ValueError(f"{count} drafts accepted of {len(drafts)}")
        filled = Filled(rows, first, drafts, count, grammars[job.matcher].number, slow=i in slow)
        first += 1 + len(drafts)
        if count < 0:
            filled.error, filled.apart = read_error(errors[str(i)]), i in apart
        if str(i) in closing:
            first_closed, records = closing[str(i)]
            filled.first_closed = None if first_closed is None else int(first_closed)
            filled.ends = [Record.from_json(record) for record in records]
        found.append(filled)
    rows.block = block[1 : 1 + first]
    return found
