"""One matcher host, the grammars and matchers in it, and the command that it works on."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.grammar import FillJob
from guideway.errors import ConformanceError, GuidewayError
from guideway.plugins.limits import Limits
from guideway.runtime.grammar_hosts.messages import MAX_ROWS, Job, error_of
from guideway.runtime.grammar_hosts.processes import Host, HostDied, Zygote
from guideway.runtime.grammar_hosts.strategy import HostedGrammar, HostedMatcher

__all__ = ["Died", "Filled", "Lane"]

SECONDS_PER_TOKEN = 1e-3
"""That a matcher which is rebuilt may take besides, for each token it had accepted."""

_NUMBERS = itertools.count()
"""Of hosts, in all lanes of this process."""


class Died(Exception):
    """The host died over a command."""

    def __init__(self, cause: HostDied) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Filled:
    """What became of one job of a command."""

    command: Job
    count: int
    """Drafts accepted; -1: it failed."""
    error: GuidewayError | None
    slow: bool
    """Whether it took longer than rows should."""


@dataclass(slots=True)
class _Pending:
    """A command that is not answered yet."""

    commands: list[Job]
    matchers: list[weakref.ref[HostedMatcher]]
    wanted: set[int] = field(default_factory=set)
    """The numbers of matchers that somebody still has."""


class Lane:
    """A host, started when it is needed and anew where it was lost. To be used under the lock of its `MatcherHost`, but
    for `forget`, `unload` and `load`."""

    def __init__(self, strategy: str, zygote: Zygote, limits: Limits) -> None:
        self._strategy = strategy
        self._zygote = zygote
        self._limits = limits
        self.host: Host | None = None
        self.number = -1
        """Of the host: matchers are born in one, and rebuilt in another."""
        self.loaded: set[int] = set()
        self._ended: list[tuple[int, bool]] = []
        self._unloaded: list[int] = []
        self._pending: _Pending | None = None
        self.num_commands = 0
        """The masks of one are overwritten by the next."""

    @property
    def is_pending(self) -> bool:
        """Whether a command is not answered yet."""
        return self._pending is not None

    def alive(self) -> Host:
        """The host. Raises `HostDied` if there can be none."""
        if self.host is None or not self.host.alive:
            self.host = self._zygote.fork()
            self.number = next(_NUMBERS)
            self.loaded.clear()
            self._ended.clear()
            self._pending = None
        return self.host

    def lose(self) -> None:
        """End the host: it is started anew when it is needed."""
        if self.host is not None:
            self.host.close()
        self._pending = None

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

    def begin(self, jobs: Sequence[FillJob], group: Sequence[int]) -> None:
        """Send the command for some of `jobs`. Raises `Died`."""
        try:
            host = self.alive()
        except HostDied as error:
            raise Died(error) from error
        matchers = [matcher_of(jobs[i]) for i in group]
        commands, first = [], 1
        for i, matcher in zip(group, matchers, strict=True):
            command = matcher.job(self.number, jobs[i].draft_token_ids, first)
            if command.birth is not None and command.birth.grammar not in self.loaded:
                # with the command, so that a step which has no patience does not wait for this either
                birth = replace(command.birth, strategy=self._strategy, given=matcher.grammar.given)
                command = replace(command, birth=birth)
            commands.append(command)
            first += 1 + len(jobs[i].draft_token_ids)
        ended, self._ended = self._ended, []
        unloaded, self._unloaded = self._unloaded, []
        self.loaded.difference_update(unloaded)
        self._pending = _Pending(
            commands, [weakref.ref(matcher) for matcher in matchers], {matcher.number for matcher in matchers}
        )
        self.num_commands += 1
        try:
            host.send("step", commands, ended, unloaded)
        except HostDied as error:
            self.lose()
            raise Died(error) from error

    def end(self, patience: float | None) -> dict[int, Filled] | None:
        """What became of the command that was begun, by the number of the matcher; None if it is not known before
        `patience` ends. What it says of matchers is noted there. Raises `Died`."""
        pending = self._pending
        assert pending is not None and self.host is not None
        commands = pending.commands
        try:
            seconds = self._seconds(commands)
            together = seconds + self._limits.fill_seconds * len(commands)
            answer = self.host.answer(seconds=seconds, together=together, patience=patience)
            if answer is None:
                return None
            found = _read(answer[0], commands)
        except (KeyError, TypeError, ValueError, GuidewayError) as error:  # no strategy is asked what it makes of this
            self.lose()
            if isinstance(error, HostDied):
                raise Died(error) from error
            raise Died(HostDied(f"what it answered is no answer: {error}")) from error
        self._pending = None
        filled = {}
        for reference, outcome in zip(pending.matchers, found, strict=True):
            matcher = reference()
            if matcher is None:
                continue
            if outcome.count < 0:
                matcher.lost()
            else:
                matcher.done(self.number)
                self.loaded.add(matcher.grammar.number)
            filled[matcher.number] = outcome
        return filled

    def rows(self, matcher: HostedMatcher, filled: Filled, count: int) -> NDArray[np.int32]:
        """The masks of a job up to and with that after `count` drafts, until the next command."""
        assert self.host is not None
        first, drafts = filled.command.first_row, filled.command.draft_token_ids
        return self.host.masks.rows[first : first + matcher.num_filled(count, drafts)]

    def ask(self, matcher: HostedMatcher, method: str, arguments: Sequence[Any]) -> Any:
        """What a method of a matcher returns. Raises what it raises there, and `HostDied`."""
        host = self.alive()
        self.ensure_loaded(host, matcher.grammar)
        job = matcher.job(self.number)
        ended, self._ended = self._ended, []
        answer, _ = host.call("ask", job, method, arguments, ended, seconds=self._seconds([job]))
        matcher.done(self.number)
        return answer

    def ensure_loaded(self, host: Host, grammar: HostedGrammar) -> None:
        if grammar.number not in self.loaded:
            self.load(host, grammar)
            self.loaded.add(grammar.number)

    def load(self, host: Host, grammar: HostedGrammar) -> None:
        """Hand a grammar to the host beside what else it does. Raises what the strategy raises, and `HostDied`."""
        unloaded, self._unloaded = self._unloaded, []
        self.loaded.difference_update(unloaded)
        seconds = self._limits.compile_seconds
        host.call("load", grammar.number, self._strategy, grammar.given, unloaded, seconds=seconds, beside=True)

    # Called by the collector of garbage, at any moment: they take no lock and wait for nothing

    def forget(self, matcher: int, recycled: bool) -> None:
        """The host is to have a matcher no more."""
        self._ended.append((matcher, recycled))

    def end_for(self, matcher: int) -> None:
        """Nobody uses a matcher any more: what is computed for it alone is ended."""
        pending, host = self._pending, self.host
        if pending is not None and matcher in pending.wanted:
            pending.wanted.discard(matcher)
            if not pending.wanted and host is not None:
                host.kill()

    def unload(self, grammar: int) -> None:
        """Nobody uses a grammar any more."""
        self._unloaded.append(grammar)

    def _seconds(self, commands: Sequence[Job]) -> float:
        """For any one of these: more where a matcher is rebuilt from what it accepted, or its grammar."""
        births = [job.birth for job in commands if job.birth is not None]
        longest = max((len(birth.token_ids) for birth in births), default=0)
        compiling = self._limits.compile_seconds if any(birth.given is not None for birth in births) else 0.0
        return self._limits.fill_seconds + SECONDS_PER_TOKEN * longest + compiling


def matcher_of(job: FillJob) -> HostedMatcher:
    """That of a job for a host."""
    matcher = job.matcher
    if not isinstance(matcher, HostedMatcher):
        raise ConformanceError(f"a {type(matcher).__name__} is no matcher of a grammar host")
    return matcher


def _read(answer: Any, commands: Sequence[Job]) -> list[Filled]:
    """What a host says of a step, checked: it is not trusted to stay within what it was asked."""
    counts, errors, slow = list(answer["counts"]), dict(answer["errors"]), set(answer["slow"])
    found = []
    for i, (count, job) in enumerate(zip(counts, commands, strict=True)):
        if not -1 <= count <= len(job.draft_token_ids) or (count < 0) is not (str(i) in errors):
            raise ValueError(f"{count} drafts accepted of {len(job.draft_token_ids)}")
        found.append(Filled(job, count, error_of(errors[str(i)]) if count < 0 else None, i in slow))
    return found
