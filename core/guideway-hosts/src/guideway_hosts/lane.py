"""One matcher host, the grammars and matchers in it, and the command that it works on."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from guideway.api.grammar import FillJob
from guideway.errors import ConformanceError, GuidewayError, contain, text_of
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.closing import Record
from numpy.typing import NDArray

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Allowed, Host, HostDied, Patience
from guideway_hosts.messages import MAX_ROWS, Birth, Job, error_of
from guideway_hosts.strategy import HostedGrammar, HostedMatcher

__all__ = ["Answer", "Died", "Filled", "Lane"]

SECONDS_PER_TOKEN = 1e-3
"""Seconds that a matcher which is rebuilt may take besides, for each token it had accepted."""

NONE = Patience(0.0, 0.0)

PLAIN: dict[str, Any] = {"counts": None, "drafts": None, "errors": {}, "apart": [], "slow": [], "closing": {}}
"""The answer to a step without drafts of which there is nothing to say."""

T = TypeVar("T")

_NUMBERS = itertools.count()
"""The numbers of hosts, in all lanes of this process."""


class Died(Exception):
    """The host died over a command; `matcher` is the number of the one it was at work on, where that is known,
    `grammar` that one's, and `wanted` whether somebody still has it."""

    def __init__(
        self, cause: HostDied, matcher: int | None = None, grammar: HostedGrammar | None = None, *, wanted: bool = True
    ) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.matcher = matcher
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

    def died(self, cause: HostDied) -> Died:
        """Over what."""
        numbers = [command.matcher for command in self.commands]
        number = numbers[0] if len(numbers) == 1 else cause.working_on
        if number not in numbers:
            return Died(cause)
        return Died(cause, number, self.grammars[numbers.index(number)], wanted=number in self.wanted)


class Lane:
    """A host, started when it is needed and anew where it was lost. To be used under the lock of its `MatcherHost`, but
    for `load` and what the collector of garbage calls."""

    def __init__(self, role: str, source: HostSource, limits: Limits) -> None:
        self._role = role
        self._source = source
        self._limits = limits
        self.host: Host | None = None
        self.number = -1
        """The number of the host: matchers are born in one, and rebuilt in another."""
        self.loaded: set[int] = set()
        self._ended: deque[tuple[int, bool]] = deque()
        self._unloaded: deque[int] = deque()
        self._pending: _Pending | None = None
        self.starting: Future[Host] | None = None
        """The host that is being started."""
        self.together = True
        """True if commands are for several matchers: not after one of several ended the host and nobody knows which."""
        self.lent: list[weakref.ref[HostedMatcher]] = []
        """The matchers whose rows lie where the last command wrote them."""
        self.num_commands = 0
        """The masks of one are overwritten by the next."""

    @property
    def is_pending(self) -> bool:
        """True if a command is not answered yet."""
        return self._pending is not None

    @property
    def is_ahead(self) -> bool:
        """True if a command is not answered yet that was sent before its answer was asked for."""
        return self._pending is not None and self._pending.is_ahead

    @property
    def is_starting(self) -> bool:
        """True if a host is being started."""
        return self.starting is not None and not self.starting.done()

    def is_about(self, jobs: Sequence[FillJob], group: Sequence[int]) -> bool:
        """Return whether the command that is not answered is about the matchers of these, and no others."""
        pending = self._pending
        return pending is not None and [each() for each in pending.matchers] == [jobs[i].matcher for i in group]

    def has(self, matcher: int) -> bool:
        """Return whether the command that is not answered is about a matcher."""
        return self._pending is not None and matcher in self._pending.wanted

    def alive(self) -> Host:
        """The host. Raises `HostDied` if there can be none."""
        self.is_up(None)
        assert self.host is not None
        return self.host

    def is_up(self, seconds: float | None) -> bool:
        """Return whether the host is there, or comes within so many seconds: it is started beside what else is done.
        None: wait for it. Raises `HostDied` if there can be none."""
        if self.host is not None and self.host.alive:
            return True
        if self.starting is None:
            self.starting = _beside(partial(self._source.fork, self._role))
        try:
            self.host = self.starting.result(seconds)
        except TimeoutError:
            return False
        except HostDied:
            self.starting = None
            raise
        self.starting = None
        self.number = next(_NUMBERS)
        self.loaded.clear()
        self._ended.clear()
        self._unloaded.clear()
        self._pending = None
        return True

    def lose(self) -> None:
        """End the host: it is started anew when it is needed."""
        host, self.host, self._pending = self.host, None, None
        if host is not None:
            host.close()

    def close(self) -> None:
        """End the host, also one that is being started."""
        self.lose()
        if self.starting is not None:
            self.starting.add_done_callback(_close)

    def fitting(self, jobs: Sequence[FillJob], left: Sequence[int]) -> list[int]:
        """The first of the jobs left whose rows fit into the host's memory."""
        group: list[int] = []
        room = MAX_ROWS
        for i in left:
            room -= 1 + len(jobs[i].draft_token_ids)
            if room < 0 and group:
                break
            group.append(i)
        return group

    def begin(
        self, jobs: Sequence[FillJob], group: Sequence[int], num_forced: int = 0, *, is_ahead: bool = False
    ) -> None:
        """Send the command for some of `jobs`, which have no drafts where the host is to find so many that are forced.
        Raises `Died`."""
        matchers = [matcher_of(jobs[i]) for i in group]
        try:
            host = self.alive()
        except HostDied as error:
            raise Died(error, matchers[0].number if len(matchers) == 1 else None) from error
        commands, first, number = [], 1, self.number
        for i, matcher in zip(group, matchers, strict=True):
            if matcher.born_in != number and matcher.born_in != -1:
                matcher.moves()
            command = matcher.job(number, jobs[i].draft_token_ids, first)
            if command.birth is not None and command.birth.grammar not in self.loaded:
                # with the command, so that a step which has no patience does not wait for this either
                birth = replace(command.birth, strategy=matcher.grammar.strategy, given=matcher.grammar.given)
                command = command._replace(birth=birth)
            commands.append(command)
            first += 1 + len(jobs[i].draft_token_ids)
        ended, unloaded = _taken(self._ended), self._to_unload()
        grammars, numbers = [matcher.grammar for matcher in matchers], {matcher.number for matcher in matchers}
        references = [weakref.ref(matcher) for matcher in matchers]
        pending = _Pending(commands, references, grammars, numbers, is_ahead)
        for lent in (reference() for reference in self.lent):
            if lent is not None:
                lent.keep_rows()
        self.lent = []
        self.num_commands += 1
        try:
            self._pending = pending
            host.send("step", [tuple(command) for command in commands], ended, unloaded, num_forced)
        except HostDied as error:
            self.lose()
            raise pending.died(error) from error
        except BaseException:  # interrupted: the answer to half a command would be waited for
            self.lose()
            raise

    def end(self, patience: Patience | None) -> Answer | None:
        """Return what became of the command that was begun; None if it is not known before `patience` ends. What it
        says of matchers is noted there. Raises `Died`."""
        pending = self._pending
        assert pending is not None and self.host is not None
        commands = pending.commands
        try:
            answer = self.host.answer(self._allowed(commands), patience=patience)
            if answer is None:
                pending.is_ahead = False
                return None
            rows = self.host.masks.rows
            is_plain = answer[0] == PLAIN and not any(command.draft_token_ids for command in commands)
            outcomes = None if is_plain else _read(answer[0], commands, pending.grammars, rows)
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
        except BaseException:  # interrupted: the answer may be half read
            self.lose()
            raise
        self._pending = None
        matchers = [reference() for reference in pending.matchers]
        failed = () if outcomes is None else {i for i, outcome in enumerate(outcomes) if outcome.count < 0}
        for i, (matcher, command) in enumerate(zip(matchers, commands, strict=True)):
            if command.birth is not None and i not in failed:
                self.loaded.add(command.birth.grammar)
            if matcher is None:  # born in the meantime, for nobody
                self.forget(command.matcher, False)
            elif i in failed:
                matcher.lost()
            else:
                matcher.done(self.number)
        return Answer(commands, matchers, rows[1 : 1 + len(commands)], outcomes)

    def is_answered(self) -> bool:
        """Return whether `end` need not wait. Raises `Died`."""
        pending = self._pending
        assert pending is not None and self.host is not None
        try:
            return self.host.is_answered(self._allowed(pending.commands), patience=NONE)
        except HostDied as error:
            self.lose()
            raise pending.died(error) from error

    def ask(self, matcher: HostedMatcher, method: str, arguments: Sequence[Any]) -> Any:
        """Return what a method of a matcher returns. Raises what it raises there, and `HostDied`."""
        host = self.alive()
        self.ensure_loaded(host, matcher.grammar)
        if matcher.born_in not in (-1, self.number):
            matcher.moves()
        job = matcher.job(self.number)
        seconds = self._limits.fill_seconds + sum(self._more_seconds([job]).values())
        if method in ("accept", "validate"):
            seconds += SECONDS_PER_TOKEN * len(arguments[0])
        answer, _ = host.call("ask", job, method, arguments, _taken(self._ended), seconds=seconds)
        matcher.done(self.number)
        return answer

    def ensure_loaded(self, host: Host, grammar: HostedGrammar) -> None:
        if grammar.number not in self.loaded:
            self.load(host, grammar)
            self.loaded.add(grammar.number)

    def load(self, host: Host, grammar: HostedGrammar) -> None:
        """Hand a grammar to the host beside what else it does. Raises what the strategy raises, and `HostDied`."""
        unloaded, seconds = self._to_unload(), self._limits.compile_seconds
        host.call("load", grammar.number, grammar.strategy, grammar.given, unloaded, seconds=seconds, beside=True)

    # Called by the collector of garbage, at any moment: they take no lock and wait for nothing

    def forget(self, matcher: int, recycled: bool) -> None:
        """The host is to have a matcher no more."""
        self._ended.append((matcher, recycled))

    def end_for(self, matcher: int) -> None:
        """Nobody uses a matcher any more: what is computed for it alone is ended."""
        pending, host = self._pending, self.host
        if pending is not None and matcher in pending.wanted:
            pending.wanted.discard(matcher)
            if not pending.wanted and host is not None and self._pending is pending:
                host.kill()

    def unload(self, grammar: int) -> None:
        """Nobody uses a grammar any more."""
        if grammar in self.loaded:
            self._unloaded.append(grammar)

    def _to_unload(self) -> list[int]:
        unloaded = _taken(self._unloaded)
        self.loaded.difference_update(unloaded)
        return unloaded

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


def _beside(start: Callable[[], Host]) -> Future[Host]:
    """The host that is started in a thread of its own. Raises `HostDied` where there can be no thread."""
    future: Future[Host] = Future()

    def run() -> None:
        try:
            host = start()
        except BaseException as error:
            contain(error)
            future.set_exception(error if isinstance(error, HostDied) else HostDied(text_of(error)))
        else:
            future.set_result(host)

    try:
        threading.Thread(target=run, name="guideway-starts-host", daemon=True).start()
    except RuntimeError as error:
        raise HostDied(f"no grammar host can be started: {text_of(error)}") from error
    return future


def _close(started: Future[Host]) -> None:
    if started.exception() is None:
        started.result().close()


def _taken(items: deque[T]) -> list[T]:
    """Take what is in it now, and no more from then on; others may add to it meanwhile."""
    return [items.popleft() for _ in range(len(items))]


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
