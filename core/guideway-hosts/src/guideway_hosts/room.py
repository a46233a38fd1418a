"""A host of matchers, with their grammars, and the command that it works on."""

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
"""A grammar that was late is waited for as others are again after so many rows in turn that were not late; each further
time after twice as many, at most `PROVES_FAST_AT_MOST`. What was late once may have found a cold cache, or a machine
that stood still."""
PROVES_FAST_AT_MOST = 4096

NONE = Patience(0.0, 0.0)

PLAIN: dict[str, Any] = {"counts": None, "drafts": None, "errors": {}, "apart": [], "slow": [], "closing": {}}
"""The answer to a step without drafts of which there is nothing to say."""


class MatcherDied(Died):
    """The host died during a command; `number` is the matcher that it was working on, `grammar` that one's, and
    `wanted` whether somebody still has it."""

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
    """Drafts accepted; -1: it failed."""
    error: GuidewayError | None
    apart: bool
    """True if it failed together with others, and is to be asked alone."""
    slow: bool
    """True if it took longer than rows should."""
    grammar: int
    """The number of the matcher's."""
    masks: NDArray[np.int32]
    """Its rows, until the next command."""
    first_closed: int | None = None
    """The first of them that does not allow all that its grammar does."""
    ends: Sequence[Record] = ()
    """By row what is known of its end once a token was drawn from it; empty: what was known before."""


@dataclass(slots=True)
class Answer:
    """The results of a command."""

    commands: list[Job]
    matchers: list[HostedMatcher | None]
    """None: nobody has it any more."""
    masks: NDArray[np.int32]
    """The rows of them all, until the next command."""
    outcomes: list[Filled] | None
    """None: as nearly always, there were no drafts, every job was filled, and nothing else is to be said."""

    def by_number(self) -> dict[int, Filled]:
        """The result of each job whose matcher somebody still has."""
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
    """The numbers of matchers that somebody still has."""
    is_ahead: bool = False
    """True if nobody has waited for the answer yet."""
    searches: bool = False
    """True if the host is to find forced tokens."""

    def died(self, cause: HostDied) -> MatcherDied:
        """Over what."""
        numbers = [command.matcher for command in self.commands]
        number = numbers[0] if len(numbers) == 1 else cause.working_on
        if number not in numbers:
            return MatcherDied(cause)
        return MatcherDied(cause, number, self.grammars[numbers.index(number)], wanted=number in self.wanted)


class Room(Seat):
    """A host of matchers. To be used under the lock of its `MatcherHost`, but for `load` and what the collector of
    garbage calls."""

    def __init__(self, role: str, source: HostSource, limits: Limits) -> None:
        super().__init__(role, source, limits)
        self.loaded: set[int] = set()
        self._pending: _Pending | None = None
        self._heard: Answer | None = None
        """The answer to that command, which nobody has had yet."""
        self.together = True
        """True if commands are for several matchers: not after one of several ended the host and nobody knows which."""
        self.num_commands = 0
        """The masks of one are overwritten by the next."""
        self.lent: list[weakref.ref[HostedMatcher]] = []
        """The matchers whose rows lie where the last command wrote them."""
        self.left_to_prove = 0
        """Rows in a row that have to come in time before a step waits for them as for any others."""
        self._had_to_prove = PROVES_FAST // 2

    def judge(self, slow: bool) -> None:
        """Note whether rows were late."""
        if slow and not self.left_to_prove:
            self._had_to_prove = min(PROVES_FAST_AT_MOST, 2 * self._had_to_prove)
        self.left_to_prove = self._had_to_prove if slow else max(0, self.left_to_prove - 1)

    @property
    def is_pending(self) -> bool:
        """True if a command is not answered yet."""
        return self._pending is not None

    @property
    def is_ahead(self) -> bool:
        """True if a command is not answered yet that was sent before its answer was asked for."""
        return self._pending is not None and self._pending.is_ahead

    def is_about(self, jobs: Sequence[FillJob], group: Sequence[int]) -> bool:
        """Return whether the command that is not answered is about the matchers of these, and no others."""
        pending = self._pending
        return pending is not None and [each() for each in pending.matchers] == [jobs[i].matcher for i in group]

    def has(self, matcher: int) -> bool:
        """Return whether the command that is not answered is about a matcher."""
        return self._pending is not None and matcher in self._pending.wanted

    def reset(self) -> None:
        self.loaded.clear()
        self._pending = self._heard = None

    def lose(self) -> None:
        self._pending = self._heard = None
        super().lose()

    def fitting(self, jobs: Sequence[FillJob], left: Sequence[int], limits: Sequence[int] = ()) -> list[int]:
        """The first of the jobs left whose rows fit into the host's memory; `limits` as for `begin`."""
        group: list[int] = []
        room = MAX_ROWS
        for i in left:
            room -= 1 + max(len(jobs[i].draft_token_ids), limits[i] if limits else 0)
            if room < 0 and group:
                break
            group.append(i)
        return group

    def begin(
        self, jobs: Sequence[FillJob], group: Sequence[int], limits: Sequence[int] = (), *, is_ahead: bool = False
    ) -> None:
        """Send the command for some of `jobs`. `limits` says for each how many forced tokens the host is to find as its
        drafts; empty: none for any. Raises `Died`."""
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
            host.send("step", *host.masks.write_jobs(commands), told)

    def end(self, patience: Patience | None) -> Answer | None:
        """Return what became of the command that was begun; None if it is not known before `patience` ends. What it
        says of matchers is noted there. Raises `Died`."""
        if self._heard is None:
            self._heard = self._receive(patience)
        answer = self._heard
        if answer is not None:
            self._pending = self._heard = None
        return answer

    def hear(self, *, waits: bool) -> None:
        """Let `HostedMatcher.forced` be what the host was to find, if it has answered, or with `waits` in any case.
        Raises `Died`."""
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
            if matcher is None:  # born in the meantime, for nobody
                self.tell("end", command.matcher, self.number)
            elif i in failed:
                matcher.lost()
            else:
                matcher.done(self.number)
                if command.num_forced:
                    matcher.forced = () if outcomes is None else tuple(outcomes[i].command.draft_token_ids)
        return Answer(commands, matchers, rows[1 : 1 + len(commands)], outcomes)

    def is_answered(self) -> bool:
        """Return whether `end` need not wait. Raises `Died`."""
        if self._heard is not None:
            return True
        pending = self._pending
        assert pending is not None and self.host is not None
        with self._losing(pending):
            return self.host.is_answered(self._allowed(pending.commands), patience=NONE)

    def ask(self, matcher: HostedMatcher, method: str, arguments: Sequence[Any]) -> Any:
        """Return what a method of a matcher returns. Raises what it raises there, and `HostDied`."""
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
        """Hand a grammar to the host beside what else it does. Raises what the strategy raises, and `HostDied`."""
        seconds = self._limits.compile_seconds
        host.call("load", grammar.number, grammar.strategy, grammar.given, seconds=seconds, beside=True)

    # Called by the collector of garbage, at any moment: they take no lock and wait for nothing

    def end_for(self, matcher: int) -> None:
        """Nobody uses a matcher any more: what is computed for it alone is ended."""
        pending, host = self._pending, self.host
        if pending is not None and matcher in pending.wanted:
            pending.wanted.discard(matcher)
            if not pending.wanted and host is not None and self._pending is pending and not host.has_news():
                host.kill()

    def unload(self, grammar: int) -> None:
        """Nobody uses a grammar any more."""
        if grammar in self.loaded:
            self.tell("unload", grammar, self.number)

    @contextmanager
    def _losing(self, pending: _Pending) -> Iterator[None]:
        """Around what is said of a command: end the host, unless all of it was. Raises `Died`."""
        try:
            yield
        except HostDied as error:
            self.lose()
            raise pending.died(error) from error
        except (KeyError, TypeError, ValueError, GuidewayError) as error:  # no strategy is asked what it makes of this
            self.lose()
            why = (
                f"its grammar host sent an answer that is none ({text_of(error)}): is guideway installed in several "
                "versions, or was it changed while the server ran? Start it anew."
            )
            raise pending.died(HostDied(why)) from error
        except BaseException:  # interrupted: the rest of an answer may be on its way
            self.lose()
            raise

    def _job(self, matcher: HostedMatcher, draft_token_ids: Sequence[int] = (), first_row: int = 0) -> Job:
        """Return a matcher's part of a command: with what its grammar is made from, where that is not loaded, so that
        a step which has no patience does not wait for this either."""
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
        """Return how long a command for these may take."""
        seconds, more = self._limits.fill_seconds, self._more_seconds(commands)
        return Allowed(seconds, seconds * (1 + len(commands)) + sum(more.values()), more)

    def _more_seconds(self, commands: Sequence[Job]) -> dict[int, float]:
        """By the number of a matcher what else it may take that is rebuilt: from what it accepted, perhaps with its
        grammar."""
        return {job.matcher: self._seconds_of(job.birth) for job in commands if job.birth is not None}

    def _seconds_of(self, birth: Birth) -> float:
        compiling = 0.0 if birth.given is None else self._limits.compile_seconds
        return SECONDS_PER_TOKEN * len(birth.token_ids) + compiling


def matcher_of(job: FillJob) -> HostedMatcher:
    """The matcher of a job for a host."""
    matcher = job.matcher
    if not isinstance(matcher, HostedMatcher):
        raise ConformanceError(f"a {type(matcher).__name__} is no matcher of a grammar host")
    return matcher


def _read(
    answer: Any, commands: Sequence[Job], grammars: Sequence[HostedGrammar], rows: NDArray[np.int32]
) -> list[Filled]:
    """Read what a host says of a step, and check it: it is not trusted to stay within what it was asked."""
    counts = [0] * len(commands) if answer["counts"] is None else answer["counts"]
    told = [()] * len(commands) if answer["drafts"] is None else answer["drafts"]
    errors, apart, slow, closing = dict(answer["errors"]), answer["apart"], set(answer["slow"]), dict(answer["closing"])
    found, first = [], 1
    for i, (count, drafts, job) in enumerate(zip(counts, told, commands, strict=True)):
        if drafts:
            job = job._replace(draft_token_ids=tuple(map(int, drafts)))
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
