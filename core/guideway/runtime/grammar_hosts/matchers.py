"""The matchers of one strategy in their host: one command a step, and all of them made anew where the host is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import FillJob
from guideway.errors import ConformanceError, GuidewayError
from guideway.runtime.grammar_hosts.limits import HostLimits
from guideway.runtime.grammar_hosts.messages import MAX_ROWS, Job, error_of
from guideway.runtime.grammar_hosts.processes import Host, HostDied, Zygote
from guideway.runtime.grammar_hosts.strategy import HostedGrammar, HostedMatcher

__all__ = ["MatcherHost"]

SECONDS_PER_TOKEN = 1e-3
"""That a matcher which is rebuilt may take besides, for each token it had accepted."""

MAX_DEATHS = 2
"""So often a host may be killed from outside while it works for one sequence, before that one fails."""


class MatcherHost:
    """Where the matchers of one strategy live. Started with the first grammar, and anew when it is lost: matchers are
    rebuilt from what they accepted. What it was working on when it broke a limit, or crashed, fails."""

    def __init__(
        self, strategy: str, zygote: Zygote, limits: HostLimits, refuse: Callable[[str, HostedGrammar, str], None]
    ) -> None:
        self._strategy = strategy
        self._zygote = zygote
        self._limits = limits
        self._refuse = refuse
        """Told of a grammar that broke a limit or killed the host."""
        self._lock = threading.RLock()
        self._host: Host | None = None
        self._incarnation = 0
        self._loaded: set[int] = set()
        self._ended: list[tuple[int, bool]] = []
        self._unloaded: list[int] = []
        self._closed = False
        self.num_fills = 0
        """The masks of the last fill are overwritten by the next one."""

    def load(self, grammar: HostedGrammar) -> None:
        """Hand a grammar to the host, beside what it does otherwise. Raises what the strategy raises, and
        `LimitExceeded`."""
        for last in (False, True):
            with self._lock:
                host, incarnation = self._alive(), self._incarnation
            try:
                self._load(host, grammar)
            except HostDied as error:
                host.close()
                if error.by_itself:
                    self._refuse(self._strategy, grammar, str(error))
                if error.by_itself or last:
                    raise error.error() from error
                continue
            with self._lock:
                if incarnation == self._incarnation:
                    self._loaded.add(grammar.number)
            return

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """`GrammarStrategy.fill`."""
        accepted = np.full(len(jobs), -1, dtype=np.int32)
        deaths = [0] * len(jobs)
        with self._lock:
            left = list(range(len(jobs)))
            together = True
            while left:
                group = self._fitting(jobs, left) if together else left[:1]
                try:
                    self._step(jobs, group, bitmask, accepted)
                    left = left[len(group) :]
                except _Died as died:
                    culprit = died.job
                    if culprit is None:
                        at_work = [i for i in group if _matcher(jobs[i]).number == died.cause.working_on]
                        culprit = next(iter(at_work or (group if len(group) == 1 else [])), None)
                    if culprit is None:  # it was in the midst of several
                        together = False
                        continue
                    deaths[culprit] += 1
                    if died.cause.by_itself:
                        self._refuse(self._strategy, _matcher(jobs[culprit]).grammar, str(died.cause))
                    if died.cause.by_itself or deaths[culprit] == MAX_DEATHS:
                        jobs[culprit].error = died.cause.error()
                        left.remove(culprit)
        return accepted

    def ask(self, matcher: HostedMatcher, method: str, *arguments: Any) -> Any:
        """What a method of a matcher returns. Raises what it raises there, and `LimitExceeded`."""
        with self._lock:
            deaths = 0
            while True:
                host = self._alive()
                try:
                    self._ensure_loaded(host, matcher.grammar)
                    job = matcher.job(self._incarnation)
                    ended, self._ended = self._ended, []
                    seconds = self._seconds([job])
                    answer, _ = host.call("ask", job, method, arguments, ended, seconds=seconds)
                except HostDied as error:
                    host.close()
                    deaths += 1
                    if error.by_itself:
                        self._refuse(self._strategy, matcher.grammar, str(error))
                    if error.by_itself or deaths == MAX_DEATHS:
                        raise error.error() from error
                except GuidewayError:
                    matcher.lost()
                    raise
                else:
                    matcher.done(self._incarnation)
                    return answer

    def forget(self, matcher: int, incarnation: int, recycled: bool) -> None:
        """Nobody uses a matcher any more. Called by the collector of garbage, at any moment: takes no lock."""
        if incarnation == self._incarnation:
            self._ended.append((matcher, recycled))

    def unload(self, grammar: int) -> None:
        """Nobody uses a grammar any more. Called as `forget` is."""
        self._unloaded.append(grammar)

    def close(self) -> None:
        """End the host."""
        with self._lock:
            self._closed = True
            if self._host is not None:
                self._host.close()
                self._host = None

    def _step(
        self, jobs: Sequence[FillJob], group: Sequence[int], bitmask: Bitmask, accepted: NDArray[np.int32]
    ) -> None:
        """One command: the rows and counts of a group of jobs. Raises `_Died`."""
        try:
            host = self._alive()
        except HostDied as error:
            raise _Died(error) from error
        for i in group:
            matcher = _matcher(jobs[i])
            if not matcher.is_born(self._incarnation):
                try:
                    self._ensure_loaded(host, matcher.grammar)
                except HostDied as error:
                    host.close()
                    raise _Died(error, i) from error
        commands, first = [], 1
        for i in group:
            commands.append(_matcher(jobs[i]).job(self._incarnation, jobs[i].draft_token_ids, first))
            first += 1 + len(jobs[i].draft_token_ids)
        ended, self._ended = self._ended, []
        unloaded, self._unloaded = self._unloaded, []
        self._loaded.difference_update(unloaded)
        self.num_fills += 1
        try:
            seconds = self._seconds(commands)
            together = seconds + self._limits.fill_seconds * len(commands)
            answer, _ = host.call("step", commands, ended, unloaded, seconds=seconds, together=together)
            counts, errors = _read(answer, commands)
        except (KeyError, TypeError, ValueError) as error:  # no strategy is asked what it makes of this
            host.close()
            raise _Died(HostDied(f"what it answered is no answer: {error}")) from error
        except HostDied as error:
            host.close()
            raise _Died(error) from error
        rows = host.masks.rows
        for i, command, count in zip(group, commands, counts, strict=True):
            job, matcher = jobs[i], _matcher(jobs[i])
            if count < 0:
                matcher.lost()
                job.error = error_of(errors[str(group.index(i))])
                continue
            matcher.done(self._incarnation)
            num_rows = matcher.num_filled(count, command.draft_token_ids)
            masks = rows[command.first_row : command.first_row + num_rows]
            bitmask[job.first_row : job.first_row + num_rows] = masks
            matcher.filled(masks, command.draft_token_ids, self.num_fills)
            accepted[i] = count

    def _fitting(self, jobs: Sequence[FillJob], left: Sequence[int]) -> list[int]:
        """The first of the jobs left whose rows fit into the host's memory."""
        group: list[int] = []
        room = MAX_ROWS
        for i in left:
            room -= 1 + len(jobs[i].draft_token_ids)
            if room < 0 and group:
                break
            group.append(i)
        return group

    def _ensure_loaded(self, host: Host, grammar: HostedGrammar) -> None:
        if grammar.number not in self._loaded:
            self._load(host, grammar)
            self._loaded.add(grammar.number)

    def _load(self, host: Host, grammar: HostedGrammar) -> None:
        given = grammar.constraint if grammar.data is None else grammar.data
        unloaded, self._unloaded = self._unloaded, []
        self._loaded.difference_update(unloaded)
        host.call(
            "load",
            grammar.number,
            self._strategy,
            given,
            unloaded,
            seconds=self._limits.compile_seconds,
            beside=True,
        )

    def _seconds(self, commands: Sequence[Job]) -> float:
        """For any one of these: more where a matcher is rebuilt from what it accepted."""
        longest = max(len(job.birth.token_ids) if job.birth is not None else 0 for job in commands)
        return self._limits.fill_seconds + SECONDS_PER_TOKEN * longest

    def _alive(self) -> Host:
        if self._closed:
            raise GuidewayError(f"closed: grammar.{self._strategy} is used no more")
        if self._host is None or not self._host.alive:
            self._host = self._zygote.fork()
            self._incarnation += 1
            self._loaded.clear()
            self._ended.clear()
        return self._host


def _read(answer: Any, commands: Sequence[Job]) -> tuple[list[int], dict[str, Any]]:
    """Counts and errors of a step, checked: a host is not trusted to stay within what it was asked."""
    counts, errors = list(answer["counts"]), dict(answer["errors"])
    for i, (count, job) in enumerate(zip(counts, commands, strict=True)):
        if not -1 <= count <= len(job.draft_token_ids) or (count < 0) is not (str(i) in errors):
            raise ValueError(f"{count} drafts accepted of {len(job.draft_token_ids)}")
    return counts, errors


class _Died(Exception):
    """The host died over a command; `job` is the index of the one it was for, where that is known."""

    def __init__(self, cause: HostDied, job: int | None = None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.job = job


def _matcher(job: FillJob) -> HostedMatcher:
    matcher = job.matcher
    if not isinstance(matcher, HostedMatcher):
        raise ConformanceError(f"a {type(matcher).__name__} is no matcher of a grammar host")
    return matcher
