"""The home of the states of one modifier: a host, started when it is needed and anew where it was lost."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from guideway.errors import GuidewayError, contain, passable
from guideway.plugins.limits import Limits

from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Allowed, Host, HostDied
from guideway_hosts.modifiers.messages import Command, Job
from guideway_hosts.modifiers.states import HostedCompiled, HostedState

__all__ = ["MAX_DEATHS", "Died", "Home"]

log = logging.getLogger(__name__)

SECONDS_PER_TOKEN = 1e-3
"""Seconds that a state which is made anew may take besides, for each token it had accepted."""

MAX_DEATHS = 3
"""So often in turn a host may be killed from outside amid one command, before that one fails."""

T = TypeVar("T")

_NUMBERS = itertools.count()
"""The numbers of hosts, of all modifiers of this process."""


class Died(Exception):
    """The host died over a command; `state` is the number of the one it was at work on, where that is known."""

    def __init__(self, cause: HostDied, state: int | None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.state = state


class Home:
    """The host of the states of one modifier. Its states are made anew where it is lost: from what was accepted."""

    def __init__(self, name: str, source: HostSource, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self._source = source
        self._lock = threading.RLock()
        self._host: Host | None = None
        self.number = -1
        """The number of the host; states are born in one, and made anew in another."""
        self._told: deque[tuple[int, str, int]] = deque()
        """The messages that the host does not know yet, with the host's number."""
        self._closed = False

    def ask(
        self,
        command: str,
        states: Sequence[HostedState],
        *arguments: Any,
        read: Callable[[Any, bytes | None], T],
        seconds: float,
        together: float = 0.0,
    ) -> T:
        """Return what `read` makes of the answer to a command about these states, which may take so many seconds of a
        processor for each, and for all `together`. Raises `Died`, and what the plugin raised."""
        with self._lock:
            try:
                host = self._alive()  # once: what the host has is not asked of another
                for state in states:
                    state.take_back()
                # where a state is derived, forks share it
                lost = list({state.number: state for state in states if state.born_in != self.number}.values())
                births = [Job(state.number, state.birth()) for state in lost]
                if command == "start":
                    jobs, more = births, self._more_seconds(lost)
                else:  # first they are made anew, within other limits
                    if births:
                        more = self._more_seconds(lost)
                        start = self.limits.start_seconds
                        everything = start * (1 + len(lost)) + sum(more.values())
                        self._tell(host, "revive", births, allowed=Allowed(start, everything, more))
                        self._note(lost)
                    jobs, more = [Job(state.number, None) for state in states], {}
                result = read(*self._tell(host, command, jobs, *arguments, allowed=Allowed(seconds, together, more)))
            except HostDied as error:
                self._lose()
                numbers = {state.number for state in states}
                raise Died(error, error.working_on if error.working_on in numbers else None) from error
            except GuidewayError:
                raise
            except Exception as error:  # no modifier is asked what it makes of this
                self._lose()
                only = states[0].number if len(states) == 1 else None
                raise Died(HostDied(f"its answer cannot be read: {error}", by_itself=True), only) from error
            except BaseException:  # interrupted: the answer may be half read
                self._lose()
                raise
            self._note(lost)
            return result

    def load(self, value: HostedCompiled) -> None:
        """Let the host compile a value beside what it does otherwise. Raises what the plugin raises, and `HostDied`."""
        for last in (False, True):
            with self._lock:
                host, number = self._alive(), self.number
            try:
                host.call("load_value", self.name, value.recipe, seconds=self.limits.compile_seconds, beside=True)
            except HostDied as error:
                host.close()
                if error.by_itself or last:
                    raise
                continue
            value.born_in = number
            return

    def close(self) -> None:
        """Close the modifier in its host, and end that."""
        with self._lock:
            try:
                if self._host is not None and self._host.alive:
                    self._host.call("close", Command(self.name, (), self._news()), seconds=self.limits.start_seconds)
            except BaseException as error:
                contain(error)
                log.warning("modifier.%s failed in close: %s", self.name, passable(str(error)))
            self._closed = True
            self._lose()

    # Called by the collector of garbage too, at any moment: it takes no lock

    def tell(self, what: str, number: int, host: int) -> None:
        """Let a host know, with the next command, of what happened to what it has."""
        if host >= 0:
            self._told.append((host, what, number))

    # Parts

    def _tell(
        self, host: Host, command: str, jobs: Sequence[Job], *arguments: Any, allowed: Allowed
    ) -> tuple[dict[str, Any], bytes | None]:
        """The answer to a command."""
        host.send(command, Command(self.name, jobs, self._news()), *arguments)
        answer = host.answer(allowed)
        assert answer is not None
        for said in answer[0]["said"]:
            log.warning("modifier.%s failed in release; its sequence had ended: %s", self.name, passable(str(said)))
        return answer

    def _alive(self) -> Host:
        if self._closed:
            raise GuidewayError(f"closed: modifier.{self.name} is used no more")
        if self._host is None or not self._host.alive:
            self._host = self._source.fork(f"states:{self.name}")
            self.number = next(_NUMBERS)
        return self._host

    def _note(self, states: Sequence[HostedState]) -> None:
        """The host has these."""
        for state in states:
            state.born_in = self.number
            if state.compiled is not None:
                state.compiled.born_in = self.number

    def _lose(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def _news(self) -> list[tuple[str, int]]:
        told = [self._told.popleft() for _ in range(len(self._told))]
        return [(what, number) for host, what, number in told if host == self.number]

    def _more_seconds(self, states: Sequence[HostedState]) -> dict[int, float]:
        """By the number of a state how long it may take to make it, beside what is allowed for a start."""
        more = {}
        for state in states:
            more[state.number] = SECONDS_PER_TOKEN * sum(len(token_ids) for token_ids, _ in state.steps)
            if state.compiled is not None and state.compiled.born_in != self.number:
                more[state.number] += 2 * self.limits.compile_seconds  # its grammar and its own
        return more
