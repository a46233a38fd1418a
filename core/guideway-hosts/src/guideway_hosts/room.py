"""A host process for matchers and their grammars, and the command that it is executing."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.api.grammar import FillJob
from guideway.errors import ConformanceError, GuidewayError, text_of
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.closing import Record
from numpy.typing import NDArray

from guideway_hosts.codec import encode
from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Allowed, Host, HostDied, Patience
from guideway_hosts.matcher import HostedGrammar, HostedMatcher
from guideway_hosts.messages import MAX_ROWS, Birth, Job, error_of
from guideway_hosts.seat import SECONDS_PER_TOKEN, Died, Seat

__all__ = ["NONE", "Answer", "Filled", "MatcherDied", "Room", "matcher_of"]

PROVES_FAST = 16
"""Consecutive rows that must arrive in time before a step waits as long for a grammar that was late as for any other.

The number doubles each time the grammar is late again after these rows, up to `PROVES_FAST_AT_MOST`. One late row is
weak evidence: the cache may have been cold, or the machine may have paused.
"""
PROVES_FAST_AT_MOST = 4096

NONE = Patience(0.0, 0.0)

PLAIN: dict[str, Any] = {"counts": None, "drafts": None, "errors": {}, "apart": [], "slow": [], "closing": {}}
"""The answer to a step without drafts in which every job was filled in time and nothing about closing changed."""


class MatcherDied(Died):
    """The host died during a command.

    `number` is the matcher that it was working on, `grammar` is that matcher's grammar. `wanted` is False if the
    serving process has dropped the matcher since.
    """

    def __init__(
        self, cause: HostDied, number: int | None = None, grammar: HostedGrammar | None = None, *, wanted: bool = True
    ) -> None:
        super().__init__(cause, number)
        self.grammar = grammar
        self.wanted = wanted


@dataclass(slots=True)
class Filled:
    """The result of one job of a command."""

    command: Job
    count: int
    """Drafts accepted; -1 if the job failed."""
    error: GuidewayError | None
    apart: bool
    """True if a whole batch failed and it is unknown which job caused it: send this job again, alone."""
    slow: bool
    """True if the job took longer than `Limits.late_seconds`."""
    grammar: int
    """The number of the matcher's grammar."""
    masks: NDArray[np.int32]
    """The job's rows. The next command overwrites them."""
    first_closed: int | None = None
    """The first row in which closing removed tokens that the grammar allows; None if there is no such row."""
    ends: Sequence[Record] = ()
    """The closing record for each row, valid after a token was drawn from it; empty if the record did not change."""


@dataclass(slots=True)
class Answer:
    """The results of a command."""

    commands: list[Job]
    matchers: list[HostedMatcher | None]
    """None for a matcher that the serving process has dropped."""
    masks: NDArray[np.int32]
    """The rows of all jobs. The next command overwrites them."""
    outcomes: list[Filled] | None
    """None in the usual case: no drafts, every job filled in time, and nothing about closing changed."""

    def by_number(self) -> dict[int, Filled]:
        """Return the result of each job whose matcher still exists, by the matcher's number."""
        outcomes = self.outcomes
        if outcomes is None:
            numbers = [0 if matcher is None else matcher.grammar.number for matcher in self.matchers]
            outcomes = [
                Filled(command, 0, None, False, False, number, self.masks[i : i + 1])
                for i, (command, number) in enumerate(zip(self.commands, numbers, strict=True))
            ]
        pairs = zip(self.matchers, outcomes, strict=True)
        return {matcher.number: outcome for matcher, outcome in pairs if matcher is not None}


@dataclass(slots=True)
class _Pending:
    """A command that is not answered yet."""

    commands: list[Job]
    matchers: list[weakref.ref[HostedMatcher]]
    grammars: list[HostedGrammar]
    """The grammars of the matchers, in the same order."""
    wanted: set[int]
    """The numbers of the matchers that still exist in the serving process."""
    is_ahead: bool = False
    """True if the command was sent by `foresee`, before a step needed its answer."""
    searches: bool = False
    """True if the host must search forced tokens for a job of the command."""

    def died(self, cause: HostDied) -> MatcherDied:
        """Return the error for this command, with the matcher that the host was working on."""
        numbers = [command.matcher for command in self.commands]
        number = numbers[0] if len(numbers) == 1 else cause.working_on
        if number not in numbers:
            return MatcherDied(cause)
        return MatcherDied(cause, number, self.grammars[numbers.index(number)], wanted=number in self.wanted)


class Room(Seat):
    """A host of matchers.

    Callers hold the lock of its `MatcherHost`, except for `load` and the methods that the garbage collector calls.
    """

    def __init__(self, role: str, source: HostSource, limits: Limits) -> None:
        super().__init__(role, source, limits)
        self.loaded: set[int] = set()
        self._pending: _Pending | None = None
        self._heard: Answer | None = None
        """The answer to the pending command, received but not yet returned by `end`."""
        self.together = True
        """True if one command may contain several matchers. False after a command for several matchers ended the host
        and it is unknown which matcher caused it."""
        self.num_commands = 0
        """Commands sent until now. Each command overwrites the masks of the one before."""
        self.lent: list[weakref.ref[HostedMatcher]] = []
        """Matchers whose rows are still in the shared memory that the last command wrote."""
        self.left_to_prove = 0
        """Consecutive rows that must still arrive in time before a step waits for them as long as for any others."""
        self._had_to_prove = PROVES_FAST // 2

    def judge(self, slow: bool) -> None:
        """Record whether a row was late."""
        if slow and not self.left_to_prove:
            self._had_to_prove = min(PROVES_FAST_AT_MOST, 2 * self._had_to_prove)
        self.left_to_prove = self._had_to_prove if slow else max(0, self.left_to_prove - 1)

    @property
    def is_pending(self) -> bool:
        """True if a command is not answered yet."""
        return self._pending is not None

    @property
    def is_ahead(self) -> bool:
        """True if a command that was sent ahead of its step is not answered yet."""
        return self._pending is not None and self._pending.is_ahead

    def is_about(self, jobs: Sequence[FillJob], group: Sequence[int]) -> bool:
        """Return whether the unanswered command is for the matchers of these jobs, in this order, and no others."""
        pending = self._pending
        return pending is not None and [each() for each in pending.matchers] == [jobs[i].matcher for i in group]

    def has(self, matcher: int) -> bool:
        """Return whether the unanswered command includes a matcher that still exists."""
        return self._pending is not None and matcher in self._pending.wanted

    def reset(self) -> None:
        self.loaded.clear()
        self._pending = self._heard = None

    def lose(self) -> None:
        self._pending = self._heard = None
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

    @property
    def has_heard(self) -> bool:
        """True if a command is answered whose rows no step has taken yet."""
        return self._heard is not None

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
        host searches as its drafts, in at most `search_seconds` of CPU time; empty: it searches none. Raises `Died`."""
        matchers = [matcher_of(jobs[i]) for i in group]
        try:
            host = self.alive()
        except HostDied as error:
            raise MatcherDied(error, matchers[0].number if len(matchers) == 1 else None) from error
        commands, first = list[Job](), 1
        for i, matcher in zip(group, matchers, strict=True):
            command = self._job(matcher, jobs[i].draft_token_ids, first)
            commands.append(command._replace(num_forced=limits[i]) if limits and limits[i] else command)
            first += 1 + len(jobs[i].draft_token_ids)
        told = self._to_tell()
        grammars, numbers = [matcher.grammar for matcher in matchers], {matcher.number for matcher in matchers}
        references = [weakref.ref(matcher) for matcher in matchers]
        pending = _Pending(commands, references, grammars, numbers, is_ahead, any(limits))
        for lent in (reference() for reference in self.lent):
            if lent is not None:
                lent.keep_rows()
        self.lent = []
        self.num_commands += 1
        with self._losing(pending):
            self._pending = pending
            host.send("step", *host.masks.write_jobs(commands), told, search_seconds)

    def end(self, patience: Patience | None) -> Answer | None:
        """Return the answer to the command that `begin` sent, or None if `patience` ends before it arrives.

        Matchers that still exist take over their results. Raises `Died`.
        """
        if self._heard is None:
            self._heard = self._receive(patience)
        answer = self._heard
        if answer is not None:
            self._pending = self._heard = None
        return answer

    def hear(self, *, waits: bool) -> None:
        """Set `HostedMatcher.forced` to the tokens that the host found, if it has answered; with `waits`, wait for the
        answer. Raises `Died`."""
        pending, host = self._pending, self.host
        if pending is None or host is None or self._heard is not None or not pending.searches:
            return
        if waits or host.has_news():
            self._heard = self._receive(None)

    def _receive(self, patience: Patience | None) -> Answer | None:
        pending = self._pending
        assert pending is not None and self.host is not None
        commands = pending.commands
        with self._losing(pending):
            answer = self.host.answer(self._allowed(commands), patience=patience)
            if answer is None:
                pending.is_ahead = False
                return None
            rows = self.host.masks.rows
            is_plain = answer[0] == PLAIN and not any(command.draft_token_ids for command in commands)
            outcomes = None if is_plain else _read(answer[0], commands, pending.grammars, rows)
        matchers = [reference() for reference in pending.matchers]
        failed = () if outcomes is None else {i for i, outcome in enumerate(outcomes) if outcome.count < 0}
        for i, (matcher, command) in enumerate(zip(matchers, commands, strict=True)):
            if command.birth is not None and i not in failed:
                self.loaded.add(command.birth.grammar)
            if matcher is None:  # dropped while the host was working: the host must drop it too
                self.tell("end", command.matcher, self.number)
            elif i in failed:
                matcher.lost()
            else:
                matcher.done(self.number)
                if command.num_forced:
                    matcher.forced = () if outcomes is None else tuple(outcomes[i].command.draft_token_ids)
        return Answer(commands, matchers, rows[1 : 1 + len(commands)], outcomes)

    def is_answered(self) -> bool:
        """Return whether `end` would return without waiting. Raises `Died`."""
        if self._heard is not None:
            return True
        pending = self._pending
        assert pending is not None and self.host is not None
        with self._losing(pending):
            return self.host.is_answered(self._allowed(pending.commands), patience=NONE)

    def ask(self, matcher: HostedMatcher, method: str, arguments: Sequence[Any]) -> Any:
        """Return the result of a matcher's method. Raises the errors that the method raises, and `HostDied`."""
        host, job = self.alive(), self._job(matcher)
        seconds = self._limits.fill_seconds + sum(self._more_seconds([job]).values())
        if method in ("accept", "validate"):
            seconds += SECONDS_PER_TOKEN * len(arguments[0])
        host.send("ask", *host.masks.write_jobs([job]), self._to_tell(), method, arguments)
        answer = host.answer(Allowed(seconds))
        assert answer is not None
        if job.birth is not None:
            self.loaded.add(job.birth.grammar)
        matcher.done(self.number)
        return answer[0]

    def load(self, host: Host, grammar: HostedGrammar) -> None:
        """Load a grammar in the host's second thread, while commands continue. Raises the strategy's errors, and
        `HostDied`."""
        seconds = self._limits.compile_seconds
        host.call("load", grammar.number, grammar.strategy, grammar.given, seconds=seconds, beside=True)

    # The garbage collector calls these at any moment: they take no lock and never wait

    def end_for(self, matcher: int) -> None:
        """Remove a dropped matcher from the pending command. Kill the host if it works for dropped matchers only."""
        pending, host = self._pending, self.host
        if pending is not None and matcher in pending.wanted:
            pending.wanted.discard(matcher)
            if not pending.wanted and host is not None and self._pending is pending and not host.has_news():
                host.kill()

    def unload(self, grammar: int) -> None:
        """Tell the host to drop a grammar that the serving process has dropped."""
        if grammar in self.loaded:
            self.tell("unload", grammar, self.number)

    @contextmanager
    def _losing(self, pending: _Pending) -> Iterator[None]:
        """End the host if the body raises, because part of an answer may still arrive. Raises `Died`."""
        try:
            yield
        except HostDied as error:
            self.lose()
            raise pending.died(error) from error
        except (KeyError, TypeError, ValueError, GuidewayError) as error:  # a broken protocol, not a strategy's error
            self.lose()
            why = (
                f"its grammar host sent an answer that is none ({text_of(error)}): is guideway installed in several "
                "versions, or was it changed while the server ran? Start it anew."
            )
            raise pending.died(HostDied(why)) from error
        except BaseException:  # interrupted: the rest of the answer may still arrive
            self.lose()
            raise

    def _job(self, matcher: HostedMatcher, draft_token_ids: Sequence[int] = (), first_row: int = 0) -> Job:
        """Return a matcher's job. If the host does not have the matcher's grammar, the job contains its source, so that
        a step without patience does not wait for the grammar either."""
        if matcher.born_in not in (-1, self.number):
            matcher.moves()
        job = matcher.job(self.number, draft_token_ids, first_row)
        if job.birth is None or job.birth.grammar in self.loaded:
            return job
        grammar = matcher.grammar
        return job._replace(birth=job.birth._replace(strategy=grammar.strategy, given=encode(grammar.given)))

    def _to_tell(self) -> list[tuple[str, int]]:
        told = self.news()
        self.loaded.difference_update(number for what, number in told if what == "unload")
        return told

    def _allowed(self, commands: Sequence[Job]) -> Allowed:
        """Return the time limits for a command with these jobs."""
        seconds, more = self._limits.fill_seconds, self._more_seconds(commands)
        return Allowed(seconds, seconds * (1 + len(commands)) + sum(more.values()), more)

    def _more_seconds(self, commands: Sequence[Job]) -> dict[int, float]:
        """Return the extra seconds allowed for each matcher that the host must rebuild, by its number: for accepting
        its tokens, and for compiling its grammar if the host does not have it."""
        return {job.matcher: self._seconds_of(job.birth) for job in commands if job.birth is not None}

    def _seconds_of(self, birth: Birth) -> float:
        compiling = 0.0 if birth.given is None else self._limits.compile_seconds
        return SECONDS_PER_TOKEN * len(birth.token_ids) + compiling


def matcher_of(job: FillJob) -> HostedMatcher:
    """Return the matcher of a job. Raises `ConformanceError` if it is not a matcher of a grammar host."""
    matcher = job.matcher
    if not isinstance(matcher, HostedMatcher):
        raise ConformanceError(f"a {type(matcher).__name__} is no matcher of a grammar host")
    return matcher


def _read(
    answer: Any, commands: Sequence[Job], grammars: Sequence[HostedGrammar], rows: NDArray[np.int32]
) -> list[Filled]:
    """Return the results of a step from the host's answer. Raises ValueError, KeyError or TypeError if the answer does
    not fit the command: the host is not trusted."""
    counts = [0] * len(commands) if answer["counts"] is None else answer["counts"]
    told = [()] * len(commands) if answer["drafts"] is None else answer["drafts"]
    errors, apart, slow, closing = dict(answer["errors"]), answer["apart"], set(answer["slow"]), dict(answer["closing"])
    found, first = [], 1
    for i, (count, drafts, job) in enumerate(zip(counts, told, commands, strict=True)):
        if drafts:
            job = job._replace(draft_token_ids=tuple(map(int, drafts)))
            if len(drafts) > max(job.num_forced, len(commands[i].draft_token_ids)):
                raise ValueError(f"{len(drafts)} drafts of at most {job.num_forced}")
            if not all(0 <= token_id < 32 * rows.shape[1] for token_id in job.draft_token_ids):
                raise ValueError(f"the drafts {job.draft_token_ids} are no tokens")
        if job.first_row != first:
            job = job._replace(first_row=first)
        first += 1 + len(job.draft_token_ids)
        is_count = type(count) is int and -1 <= count <= len(job.draft_token_ids)
        if not is_count or (count < 0) is not (str(i) in errors):
            raise ValueError(f"{count} drafts accepted of {len(job.draft_token_ids)}")
        error = error_of(errors[str(i)]) if count < 0 else None
        masks = rows[job.first_row : first]
        first_closed, ends = _read_closing(closing[str(i)]) if closing and str(i) in closing else (None, ())
        number, is_apart = grammars[i].number, error is not None and i in apart
        found.append(Filled(job, count, error, is_apart, i in slow, number, masks, first_closed, ends))
    return found


def _read_closing(answer: Any) -> tuple[int | None, Sequence[Record]]:
    first, records = answer
    ends = [Record.from_json(record) for record in records]
    return None if first is None else int(first), ends
