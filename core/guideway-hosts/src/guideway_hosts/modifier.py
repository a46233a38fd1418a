"""The proxy in the serving process for a modifier in hosts, with the same interface."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from guideway.api.grammar import CompiledGrammar
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.steps import CONTINUE, Fault, Feedback, Outcome, Payload, StepBatch
from guideway.api.types import Companion, Request, SequenceInfo
from guideway.errors import (
    GuidewayError,
    InvalidRequest,
    UnsupportedCapability,
    contain,
    passable,
    text_of,
)

from guideway_hosts.codec import encode
from guideway_hosts.fork_server import HostSource
from guideway_hosts.host import Allowed, Host, HostDied
from guideway_hosts.matcher import HostedGrammar
from guideway_hosts.messages import read_error, read_payload
from guideway_hosts.pool import Pool
from guideway_hosts.seat import SECONDS_PER_TOKEN, Seat, isolate

__all__ = ["HostedModifier"]

log = logging.getLogger(__name__)

MOST_TOGETHER = 3.0
"""Most time for one `prepare` of all sequences, in deadlines of one sequence. After that each is prepared alone."""

T = TypeVar("T")

_NUMBERS = itertools.count()
"""The numbers of states and compiled values, unique in all hosts of this process."""


class HostedCompiled:
    """A value of `LogitModifier.compile` in a host, with the source to make it from again."""

    def __init__(self, home: States, request: Request, grammar: Sequence[Any] | None) -> None:
        self.number = next(_NUMBERS)
        self.request = request
        self.grammar = grammar
        """The name of the strategy, and the constraint or bytes that it makes the grammar from."""
        self._home = home

    def __del__(self) -> None:
        self._home.unload(self.number)


class HostedState:
    """A state in a host, with the source to make it from again."""

    def __init__(
        self,
        home: States,
        request: Any,
        sequence: SequenceInfo,
        compiled: HostedCompiled | None,
        steps: Sequence[Any] = (),
        forks: tuple[int, ...] = (),
    ) -> None:
        self.number = next(_NUMBERS)
        self.request = request
        """The request, encoded."""
        self.sequence = sequence
        self.compiled = compiled
        self.steps = list(steps)
        """Token ids and feedback of each accepted step, in order."""
        self.forks = forks
        """For each fork in this state's history, the number of steps accepted before the fork."""
        self.born_in = -1
        """The number of the host that has the state; -1: no host has it."""
        self.plugin = ""
        self.unenforced: Sequence[str] | GuidewayError = ()
        self.answered: tuple[tuple[int, ...], Any] | None = None
        """Tokens that `take` announced and the host's answer to them, until `accept` is called with the tokens."""
        self._home = home

    def birth(self) -> Any:
        """Return the encoded source that the host makes the state from."""
        compiled = None if self.compiled is None else [self.compiled.number, encode(self.compiled.grammar)]
        return [self.request, encode(self.sequence), compiled, encode(self.steps), list(self.forks)]

    def take_back(self) -> None:
        """Drop announced tokens that did not become final. The host makes the state again without them."""
        if self.answered is not None:
            self.answered = None
            self.steps.pop()
            self._home.tell("release", self.number, self.born_in)
            self._home.tell("forget", self.number, self.born_in)
            self.born_in = -1

    def __del__(self) -> None:
        self._home.tell("forget", self.number, self.born_in)


class States(Seat):
    """The host with the states of one modifier."""

    def __init__(self, name: str, source: HostSource) -> None:
        super().__init__(f"states:{name}", source, threading.RLock())
        self.name = name

    def ask(
        self,
        command: str,
        states: Sequence[HostedState],
        *arguments: Any,
        allowed: Allowed,
        read: Callable[[Any, bytes], T],
        makes: bool = False,
    ) -> T:
        """Return what `read` makes of the answer to a command about these states, and of the bytes with it.

        The host first makes the states again that it does not have, unless the command `makes` them. Raises `HostDied`,
        and the modifier's errors.
        """
        with self.lock, self.losing({state.number for state in states}):
            host = self.alive()
            for state in states:
                state.take_back()
            births = {state.number: state.birth() for state in states if state.born_in != self.number}
            more = {state.number: self._seconds_of(state) for state in states if state.number in births}
            if births and not makes:
                seconds = self._limits.start_seconds
                together = seconds * (1 + len(births)) + sum(more.values())
                self._tell(host, "revive", births, allowed=Allowed(seconds, together, more))
                self._note(states)  # also if the command fails: its host has them
                more = {}
            allowed = Allowed(allowed.alone, allowed.together + sum(more.values()), more)
            found = read(*self._tell(host, command, *arguments, allowed=allowed))
            self._note(states)
            return found

    def _note(self, states: Sequence[HostedState]) -> None:
        """Record that the host has these states."""
        for state in states:
            state.born_in = self.number
            if state.compiled is not None:
                self.loaded.add(state.compiled.number)

    def end(self) -> None:
        """Close the modifier in its host, and end the host."""
        with self.lock:
            try:
                if self.host is not None and self.host.alive:
                    self.ask("close", (), allowed=Allowed(self._limits.start_seconds), read=lambda *_: None)
            except BaseException as error:
                contain(error)
                log.warning("modifier.%s failed in close: %s", self.name, passable(str(error)))
            self.close()

    def _tell(self, host: Host, command: str, *arguments: Any, allowed: Allowed) -> tuple[Any, bytes]:
        """Return the answer to a command, and the bytes with it. Logs failures of `release` that it reports."""
        host.send(command, self.name, self.news(), *arguments)
        answer = host.answer(allowed)
        assert answer is not None
        for text in answer[0]["failures"]:
            log.warning("modifier.%s failed in release; its sequence had ended: %s", self.name, passable(str(text)))
        return answer[0], answer[1] or b""

    def _seconds_of(self, state: HostedState) -> float:
        """Return the extra seconds for making a state: for its tokens, and for compiling its grammar and its value."""
        seconds = SECONDS_PER_TOKEN * sum(len(token_ids) for token_ids, _ in state.steps)
        is_compiled = state.compiled is None or state.compiled.number in self.loaded
        return seconds if is_compiled else seconds + 2 * self._limits.compile_seconds


class HostedModifier(LogitModifier[HostedState]):
    """A proxy of the modifier `cls`.

    Calls for sequences are sent to the host with their states, calls for a request to a host without state. If a host
    is lost, the next one makes its states again. A state during whose work the host crashed or exceeded a limit fails.
    Raises `LimitExceeded`, in addition to the errors of the contract, if a call exceeds a limit of a host.
    """

    def __init__(
        self,
        cls: type[LogitModifier[Any]],
        options: Mapping[str, Any],
        context: ModifierContext,
        home: States,
        pool: Pool,
        close: Callable[[str], None],
    ) -> None:
        super().__init__(options, context)
        self.cls = cls
        # set on the instance, because this class is the proxy of every modifier
        self.name, self.stage, self.needs = cls.name, cls.stage, cls.needs  # type: ignore[misc]
        self.transform, self.derived, self.examples = cls.transform, cls.derived, cls.examples  # type: ignore[misc]
        self.contract = cls.contract  # type: ignore[misc]
        self._home = home
        self._pool = pool
        self._limits = pool.limits
        self._close = close

    # For a request

    def companions(self, request: Request) -> Sequence[Companion]:
        found = self._look("companions", request) if self._has("companions") else ()
        return [Companion(tuple(int(token_id) for token_id in token_ids)) for token_ids in found]

    def edit_prompt(self, request: Request) -> tuple[tuple[int, ...], bytes]:
        if not self._has("edit_prompt"):
            return request.prompt_token_ids, b""
        found = self._look("edit_prompt", request)
        return tuple(int(token_id) for token_id in found["token_ids"]), bytes.fromhex(found["prefix"])

    def compile_key(self, request: Request) -> Hashable | None:
        """Return the key as text. None also if its equality cannot be decided outside the host."""
        key = self._look("compile_key", request) if self._has("compile_key") else None
        return None if key is None else str(key)

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> HostedCompiled:
        given = None
        if isinstance(grammar, HostedGrammar):
            given = (grammar.strategy, grammar.given)
        elif grammar is not None:
            raise UnsupportedCapability(
                f"modifier {self.name!r} needs the compiled grammar, which is in the serving process; set "
                "modifier_host to 'inline', or use a strategy that runs in a grammar host",
                field="modifiers",
            )
        self._encode(request)
        compiled = HostedCompiled(self._home, request, given)
        try:  # first in a host without state: a crash there loses nothing
            self._pool.call("try_value", self.name, request, given, seconds=self._limits.compile_seconds)
            self._home.load(compiled.number, "load_value", self.name, request, given)
        except HostDied as died:
            raise self._error(died, "compile") from died
        return compiled

    # For sequences

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> HostedState | None:
        state = HostedState(self._home, self._encode(request), sequence, compiled)
        (answer,) = self._each("start", [(state, ())], self._limits.start_seconds)
        if isinstance(answer, HostDied):
            raise self._error(answer, "start") from answer
        if isinstance(answer, BaseException):
            raise answer
        if not answer["acts"]:
            return None
        state.plugin, unenforced = str(answer["plugin"]), answer["unenforced"]
        state.unenforced = (
            read_error(unenforced["error"]) if "error" in unenforced else list(map(str, unenforced["names"]))
        )
        return state

    def unenforced(self, state: HostedState) -> Sequence[str]:
        if isinstance(state.unenforced, GuidewayError):
            raise state.unenforced
        return state.unenforced

    def prepare(self, batch: StepBatch, states: Sequence[HostedState | None]) -> Payload | None:
        own = [(i, state) for i, state in enumerate(states) if state is not None]
        arrays = encode([batch.slots, batch.row_start, batch.draft_token_ids, batch.positions])
        faults: dict[int, Fault] = {}
        payloads: list[Payload] = []

        def attempt(left: list[tuple[int, HostedState]], apart: bool) -> list[tuple[int, HostedState]]:
            seconds = self._limits.step_seconds
            share = 1 + len(left) if apart else min(MOST_TOGETHER, 1 + (len(left) - 1) / 8)
            states, places = [state for _, state in left], [i for i, _ in left]
            jobs = [(state.number, place) for place, state in left]
            allowed = Allowed(seconds, seconds * share)

            def read(answer: Any, data: bytes) -> tuple[Payload | None, dict[int, GuidewayError]]:
                failed = {int(place): read_error(words) for place, words in answer["errors"].items()}
                if not failed.keys() <= set(places):
                    raise ValueError(f"errors of {sorted(failed)}, of {places}")
                return None if answer["payload"] is None else read_payload(answer["payload"], data), failed

            payload, failed = self._home.ask("prepare", states, jobs, arrays, apart, allowed=allowed, read=read)
            payloads.extend([] if payload is None else [payload])
            for place, error in failed.items():
                fail(place, error)
            return left

        def fail(place: int, error: GuidewayError) -> None:
            faults[place] = Fault.of(self.plugin_of(states[place]), "prepare", _refusal(error))

        isolate(own, attempt, lambda item: item[1].number, lambda item, died: fail(item[0], died))
        payload = payloads[0] if payloads else None
        if not faults:
            return payload
        if payload is None:
            payload = Payload(batch.slots[:0])
        return Payload(payload.rows, payload.arrays, payload.shared, {**payload.faults, **faults})

    def take(self, steps: Sequence[tuple[HostedState, tuple[int, ...], Feedback | None]]) -> None:
        """Send the final tokens of several sequences to the host in one command. `accept` of each sequence returns the
        answer."""
        if not self._has("accept"):
            return
        taken = [(state, ids, None if feedback is None else dict(feedback)) for state, ids, feedback in steps]
        answers = self._each("accept", [(state, (ids, emitted)) for state, ids, emitted in taken])
        for (state, ids, emitted), answer in zip(taken, answers, strict=True):
            state.steps.append((ids, emitted))
            state.answered = ids, _refusal(answer)

    def accept(self, state: HostedState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if not self._has("accept"):
            return CONTINUE
        if state.answered is None or state.answered[0] != token_ids:
            self.take([(state, tuple(token_ids), feedback)])
        assert state.answered is not None
        answer, state.answered = state.answered[1], None
        if isinstance(answer, BaseException):
            raise answer
        return CONTINUE if answer == ["continue", "", False] else Outcome(answer[0], str(answer[1]), bool(answer[2]))

    def forced(self, state: HostedState, limit: int) -> Sequence[int]:
        return list(map(int, self._ask(state, "forced", limit))) if self._has("forced") else ()

    def validate(self, state: HostedState, token_ids: Sequence[int]) -> int:
        return int(self._ask(state, "validate", tuple(token_ids))) if self._has("validate") else len(token_ids)

    def fork(self, state: HostedState) -> HostedState:
        if not self._has("fork"):
            return super().fork(state)
        state.take_back()
        forks = (*state.forks, len(state.steps))
        child = HostedState(self._home, state.request, state.sequence, state.compiled, state.steps, forks)
        child.plugin = state.plugin
        self._ask(state, "fork", child.number)
        child.born_in = state.born_in
        return child

    def report(self, state: HostedState) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._ask(state, "report") if self._has("report") else None
        return found

    def release(self, state: HostedState | None) -> None:
        if self._has("release"):
            number, born_in = (-1, self._home.number) if state is None else (state.number, state.born_in)
            self._home.tell("release", number, born_in)

    def close(self) -> None:
        self._home.end()
        self._close(f"modifier.{self.name}")

    def plugin_of(self, state: HostedState | None) -> str:
        return (state is not None and state.plugin) or f"modifier.{self.name}"

    # Parts

    def _has(self, method: str) -> bool:
        """Return whether the plugin implements a method. If not, the contract's default applies."""
        return getattr(self.cls, method) is not getattr(LogitModifier, method)

    def _encode(self, request: Request) -> Any:
        try:
            return encode(request)
        except Exception as error:
            raise InvalidRequest(
                f"the request's options cannot be sent to the host of modifier {self.name!r}: {text_of(error)}; use "
                "plain values, or set modifier_host to 'inline'",
                field=f"modifiers.{self.name}",
            ) from error

    def _look(self, method: str, request: Request) -> Any:
        """Return the answer of a method that takes a request, from a host without state."""
        self._encode(request)
        try:
            seconds = self._limits.admission_seconds / self._limits.wall_factor
            return self._pool.call(method, self.name, request, seconds=seconds)[0]
        except HostDied as died:
            raise self._error(died, method) from died

    def _each(
        self, method: str, jobs: Sequence[tuple[HostedState, Sequence[Any]]], seconds: float | None = None
    ) -> list[Any]:
        """Return for each state the answer of a method with its arguments, or its error."""
        answers: dict[int, Any] = {}

        def attempt(left: list[int], _: bool) -> list[int]:
            states, most = [jobs[i][0] for i in left], seconds or self._limits.step_seconds
            makes = method == "start"
            asked = [(jobs[i][0].number, jobs[i][0].birth() if makes else encode(list(jobs[i][1]))) for i in left]

            def read(answer: Any, _: bytes) -> list[Any]:
                errors = {int(i): read_error(words) for i, words in answer["errors"].items()}
                if len(answer["found"]) != len(left):
                    raise ValueError(f"{len(answer['found'])} results of {len(left)} calls")
                return [errors.get(i, found) for i, found in enumerate(answer["found"])]

            allowed = Allowed(most, most * (1 + len(left)))
            found = self._home.ask("each", states, method, asked, allowed=allowed, read=read, makes=makes)
            answers.update(zip(left, found, strict=True))
            return left

        try:
            isolate(range(len(jobs)), attempt, lambda i: jobs[i][0].number, answers.__setitem__)
        except BaseException as error:
            contain(error)
            answers = dict.fromkeys(range(len(jobs)), error)
        return [answers[i] for i in range(len(jobs))]

    def _ask(self, state: HostedState, method: str, *arguments: Any) -> Any:
        """Return the answer of a method for one state. Raises its error."""
        (found,) = map(_refusal, self._each(method, [(state, arguments)]))
        if isinstance(found, BaseException):
            raise found
        return found

    def _error(self, died: HostDied, phase: str) -> GuidewayError:
        """Return the error of a call during which the host died."""
        return died.error(f"modifiers.{self.name}", f"modifier.{self.name} failed in {phase}: ")


def _refusal(found: Any) -> Any:
    """Return an answer or an error, which is `LimitExceeded` if a host exceeded a limit."""
    return found.error() if isinstance(found, HostDied) else found
