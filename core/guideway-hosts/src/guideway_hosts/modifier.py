"""The proxy in the serving process for a modifier in hosts, with the same interface."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

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
from guideway.runtime.modifiers.modifier_set import MOST_TOGETHER

from guideway_hosts.codec import encode
from guideway_hosts.deaths import isolate
from guideway_hosts.fork_server import ForkServer
from guideway_hosts.host import HostDied
from guideway_hosts.matcher import HostedGrammar
from guideway_hosts.messages import read_error, read_payload
from guideway_hosts.pool import Pool
from guideway_hosts.room import Call, Remote, Room, Source

__all__ = ["HostedModifier"]

log = logging.getLogger(__name__)


class HostedState(Remote):
    """A state in a host."""

    def __init__(
        self,
        request: Any,
        sequence: SequenceInfo,
        compiled: Source | None,
        steps: Sequence[Any] = (),
        forks: tuple[int, ...] = (),
    ) -> None:
        super().__init__(compiled)
        self.request = request
        """The request, encoded."""
        self.sequence = sequence
        self.steps = list(steps)
        """Token ids and feedback of each accepted step, in order."""
        self.forks = forks
        """For each fork in this state's history, the number of steps accepted before the fork."""
        self.plugin = ""
        """The name for errors; empty until it has started."""
        self.unenforced: Sequence[str] | GuidewayError = ()
        self.answered: tuple[tuple[int, ...], Any] | None = None
        """Tokens that `take` announced and the host's answer to them, until `accept` is called with the tokens."""

    def take_changes(self) -> Sequence[int]:
        """Drop announced tokens that did not become final. The host makes the state again without them."""
        if self.answered is not None:
            self.answered = None
            self.steps.pop()
            self.release()
        return ()

    def history(self) -> tuple[list[Any], int]:
        num_tokens = sum(len(token_ids) for token_ids, _ in self.steps)
        its_own = [encode(self.sequence), encode(self.steps), list(self.forks), bool(self.plugin)]
        return [self.request, *its_own], num_tokens

    def release(self) -> None:
        """Let the host release the state and drop it."""
        if self.room is not None:
            self.room.tell("release", self.number, self.born_in)
        self.born_in = -1


class Preparation(Call):
    """A call of `prepare`."""

    payload: Payload | None = None

    def read(self, answer: Any, data: bytes | None) -> None:
        super().read(answer, data)
        self.payload = None if answer["payload"] is None else read_payload(answer["payload"], data or b"")


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
        server: ForkServer,
        pool: Pool,
        close: Callable[[str], None],
    ) -> None:
        super().__init__(options, context)
        self.cls = cls
        # set on the instance, because this class is the proxy of every modifier
        self.name, self.stage, self.needs = cls.name, cls.stage, cls.needs  # type: ignore[misc]
        self.transform, self.derived, self.examples = cls.transform, cls.derived, cls.examples  # type: ignore[misc]
        self.contract = cls.contract  # type: ignore[misc]
        self._room = Room(f"states:{cls.name}", server, threading.RLock(), cls.name)
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

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Source:
        if not (grammar is None or isinstance(grammar, HostedGrammar)):
            raise UnsupportedCapability(
                f"modifier {self.name!r} needs the compiled grammar, which is in the serving process; set "
                "modifier_host to 'inline', or use a strategy that runs in a grammar host",
                field="modifiers",
            )
        self._encode(request)
        given = None if grammar is None else grammar.made_from
        compiled = Source(self._room.unload, f"modifier.{self.name}", request, given)
        try:  # first in a host without state: a crash there loses nothing
            self._pool.call("try", *compiled.made_from, seconds=self._limits.compile_seconds)
            self._room.load(compiled)
        except HostDied as died:
            raise self._error(died, "compile") from died
        return compiled

    # For sequences

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> HostedState | None:
        state = HostedState(self._encode(request), sequence, compiled)
        answer = self._ask(state, "start")
        if answer is None:
            return None
        state.plugin, unenforced = str(answer["plugin"]), answer["unenforced"]
        state.unenforced = read_error(unenforced) if isinstance(unenforced, dict) else list(map(str, unenforced))
        return state

    def unenforced(self, state: HostedState) -> Sequence[str]:
        if isinstance(state.unenforced, GuidewayError):
            raise state.unenforced
        return state.unenforced

    def prepare(self, batch: StepBatch, states: Sequence[HostedState | None]) -> Payload | None:
        places, own = [i for i, each in enumerate(states) if each is not None], [each for each in states if each]
        arrays = encode([batch.slots, batch.row_start, batch.draft_token_ids, batch.positions])
        last: list[Preparation] = []

        def make(left: list[int], apart: bool) -> Call:
            share = 0 if apart else min(MOST_TOGETHER, 1 + (len(left) - 1) / 8)
            given = [arrays, [places[i] for i in left], apart]
            last[:] = [Preparation("prepare", [own[i] for i in left], given, self._limits.step_seconds, share)]
            return last[0]

        faults = {
            int(batch.slots[places[i]]): Fault.of(self.plugin_of(own[i]), "prepare", error)
            for i, error in enumerate(self._each(own, make))
            if isinstance(error, GuidewayError)
        }
        payload = last[0].payload if last else None
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
        try:
            answers = self._ask_each("accept", [state for state, *_ in taken], [each[1:] for each in taken])
        except BaseException as error:
            contain(error)
            answers = [error] * len(taken)
        for (state, ids, emitted), answer in zip(taken, answers, strict=True):
            state.steps.append((ids, emitted))
            state.answered = ids, answer

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
        state.take_changes()
        forks = (*state.forks, len(state.steps))
        child = HostedState(state.request, state.sequence, state.source, state.steps, forks)
        child.plugin = state.plugin
        self._ask(state, "fork", child.number)
        child.room, child.born_in = state.room, state.born_in
        return child

    def report(self, state: HostedState) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._ask(state, "report") if self._has("report") else None
        return found

    def release(self, state: HostedState | None) -> None:
        if not self._has("release"):
            return
        if state is None:
            self._room.tell("release", -1, self._room.number)
        else:
            state.release()

    def close(self) -> None:
        room = self._room
        with room.lock:
            try:
                if room.host is not None and room.host.alive:
                    room.call(Call("close", (), None, self._limits.start_seconds))
            except BaseException as error:
                contain(error)
                log.warning("modifier.%s failed in close: %s", self.name, passable(str(error)))
            room.close()
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
        self, states: Sequence[HostedState], make: Callable[[list[int], bool], Call], phase: str = ""
    ) -> list[Any]:
        """Return for each state its result of a call or its error. ``make(left, apart)`` returns the call for the
        states at the places `left`, one after the other if `apart`. `phase` is for callers who do not name it."""
        answers: dict[int, Any] = {}

        def attempt(left: list[int], apart: bool) -> list[int]:
            answers.update(zip(left, self._tell(make(left, apart), [states[i] for i in left]).results, strict=True))
            return left

        for i, died in isolate(attempt, dict(enumerate(states))).items():
            answers[i] = self._error(died, phase)
        return [answers[i] for i in range(len(states))]

    def _ask_each(self, method: str, states: Sequence[HostedState], arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Return for each state the answer of a method with its arguments, or its error."""
        seconds = self._limits.step_seconds

        def make(left: list[int], _: bool) -> Call:
            return Call(method, [states[i] for i in left], [encode(arguments[i]) for i in left], seconds)

        return self._each(states, make, method if method == "start" else "")

    def _tell(self, call: Call, states: Sequence[HostedState]) -> Call:
        """Return a call with its answer. States that the host does not have are made before it, in a call of their own,
        because that may take longer."""
        with self._room.lock:
            self._room.is_up(None)
            new = []
            for state in states:
                state.take_changes()
                if state.born_in != self._room.number:
                    new.append(state)
            if call.method == "start":
                call.seconds = 0.0
            elif new:
                self._room.call(Call("make", new, [()] * len(new), 0.0))
            self._room.call(call)
        for state in states:
            state.deaths = 0
        return call

    def _ask(self, state: HostedState, method: str, *arguments: Any) -> Any:
        """Return the answer of a method for one state. Raises its error."""
        (found,) = self._ask_each(method, [state], [arguments])
        if isinstance(found, BaseException):
            raise found
        return found

    def _error(self, died: HostDied, phase: str) -> GuidewayError:
        """Return the error of a call during which the host died; with a phase, its text names it."""
        return died.error(f"modifiers.{self.name}", f"modifier.{self.name} failed in {phase}: " if phase else "")
