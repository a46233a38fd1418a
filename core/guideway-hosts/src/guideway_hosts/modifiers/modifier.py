"""A modifier that lives in a host, as the serving process sees it: under the contract of any modifier."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from guideway.api.grammar import CompiledGrammar
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.steps import CONTINUE, Fault, Feedback, Outcome, Payload, StepBatch
from guideway.api.types import Companion, Request, SequenceInfo
from guideway.errors import GuidewayError, InvalidRequest, LimitExceeded, UnsupportedCapability, contain, text_of

from guideway_hosts.host import HostDied
from guideway_hosts.messages import error_of
from guideway_hosts.modifiers.home import MAX_DEATHS, Died, Home
from guideway_hosts.modifiers.messages import Given, unpacked
from guideway_hosts.modifiers.states import HostedCompiled, HostedState
from guideway_hosts.strategy import HostedGrammar

__all__ = ["HostedModifier"]

MOST_TOGETHER = 3.0
"""So many times as long as one sequence all of them may take in one `prepare`, before each is asked alone."""

T = TypeVar("T")


class Hosts(Protocol):
    """The hosts that look at requests without a state: `ModifierHosts`."""

    def home(self, name: str) -> Home: ...

    def look(self, method: str, name: str, *arguments: Any) -> Any: ...

    def close(self, name: str) -> None: ...


class HostedModifier(LogitModifier[HostedState]):
    """Sends to a host what `cls` does for sequences, and to hosts that hold nothing what it does for a request.

    Where a host is lost, the states in it are made anew in the next one, and what it was working on when it broke a
    limit, or crashed, fails. Raises `LimitExceeded`, beside what the contract names, for what breaks a limit of a host.
    """

    def __init__(
        self, cls: type[LogitModifier[Any]], options: Mapping[str, Any], context: ModifierContext, hosts: Hosts
    ) -> None:
        super().__init__(options, context)
        self.cls = cls
        # of the instance: the class stands for any modifier
        self.name, self.stage, self.needs = cls.name, cls.stage, cls.needs  # type: ignore[misc]
        self.transform, self.derived, self.examples = cls.transform, cls.derived, cls.examples  # type: ignore[misc]
        self.contract = cls.contract  # type: ignore[misc]
        self._hosts = hosts
        self._home = hosts.home(cls.name)
        self._limits = self._home.limits

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
        """None too for keys of which nobody can tell from outside of their process whether they are equal."""
        if not self._has("compile_key"):
            return None
        key = self._look("compile_key", request)
        return None if key is None else str(key)

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> HostedCompiled:
        given = None
        if isinstance(grammar, HostedGrammar):
            given = Given(grammar.strategy, grammar.given)
        elif grammar is not None:
            raise UnsupportedCapability(
                f"modifier {self.name!r} needs the compiled grammar, which is in the serving process; set "
                "modifier_host to 'inline', or use a strategy that runs in a grammar host",
                field="modifiers",
            )
        compiled = HostedCompiled(self._home, self._sent(request), given)
        self._hosts_look("try_compile", compiled.recipe.request, given)  # where it ends nothing but itself
        try:
            self._home.load(compiled)
        except HostDied as died:
            raise self._error(died, "compile") from died
        return compiled

    # For sequences

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> HostedState | None:
        state = HostedState(self._home, self._sent(request), sequence, compiled, [], ())

        def read(answer: Any, _: bytes | None) -> bool:
            if not answer["acts"]:
                return False
            said = answer["unenforced"]
            state.plugin = str(answer["plugin"])
            state.unenforced = error_of(said["error"]) if "error" in said else [str(name) for name in said["names"]]
            return True

        return state if self._ask("start", state, "start", read=read, seconds=self._limits.start_seconds) else None

    def unenforced(self, state: HostedState) -> Sequence[str]:
        if isinstance(state.unenforced, GuidewayError):
            raise state.unenforced
        return state.unenforced

    def prepare(self, batch: StepBatch, states: Sequence[HostedState | None]) -> Payload | None:
        own = [(i, state) for i, state in enumerate(states) if state is not None]
        arrays = (batch.slots, batch.row_start, batch.draft_token_ids, batch.positions)
        faults: dict[int, Fault] = {}
        apart, num_deaths, payload = False, 0, None
        while own:
            share = 1 + len(own) if apart else min(MOST_TOGETHER, 1 + (len(own) - 1) / 8)
            places = [i for i, _ in own]
            try:
                payload, failed = self._home.ask(
                    "prepare",
                    [state for _, state in own],
                    places,
                    arrays,
                    apart,
                    read=partial(_read_prepared, len(own)),
                    seconds=self._limits.step_seconds,
                    together=self._limits.step_seconds * share,
                )
            except Died as died:
                if died.state is None or not died.cause.by_itself:
                    num_deaths += 1
                    if num_deaths < MAX_DEATHS:
                        # over one of several; a kill from outside may be about none
                        apart = apart or died.cause.by_itself or num_deaths == MAX_DEATHS - 1
                        continue
                num_deaths = 0
                error = self._cause(died.cause)
                lost = [(i, s) for i, s in own if died.state is None or s.number == died.state]
                faults |= {i: Fault.of(self.plugin_of(state), "prepare", error) for i, state in lost}
                own = [pair for pair in own if pair not in lost]
                continue
            faults |= {places[j]: Fault.of(self.plugin_of(own[j][1]), "prepare", error) for j, error in failed.items()}
            break
        if not faults:
            return payload
        if payload is None:
            payload = Payload(batch.slots[:0])
        return Payload(payload.rows, payload.arrays, payload.shared, {**payload.faults, **faults})

    def take(self, steps: Sequence[tuple[HostedState, tuple[int, ...], Feedback | None]]) -> None:
        """Let the host accept what is final of several sequences in one command. `accept` of each says what came of
        it."""
        if not self._has("accept"):
            return
        left, num_deaths = list(steps), 0
        while left:
            told = [(token_ids, None if feedback is None else dict(feedback)) for _, token_ids, feedback in left]
            try:
                found = self._home.ask(
                    "accept",
                    [state for state, _, _ in left],
                    told,
                    read=partial(_read_outcomes, len(told)),
                    seconds=self._limits.step_seconds,
                )
            except Died as died:
                num_deaths += died.state is None or not died.cause.by_itself
                if num_deaths < MAX_DEATHS and (died.state is None or not died.cause.by_itself):
                    continue
                for (state, _, _), step in zip(left, told, strict=True):
                    if died.state in (None, state.number):
                        state.take(step, self._cause(died.cause))
                left = [] if died.state is None else [step for step in left if step[0].number != died.state]
                continue
            except BaseException as error:
                contain(error)
                for (state, _, _), step in zip(left, told, strict=True):
                    state.take(step, error)
                return
            for (state, _, _), step, outcome in zip(left, told, found, strict=True):
                state.take(step, outcome)
            return

    def accept(self, state: HostedState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if not self._has("accept"):
            return CONTINUE
        if state.answered is None or state.answered[0] != token_ids:
            self.take([(state, tuple(token_ids), feedback)])
        assert state.answered is not None
        outcome, state.answered = state.answered[1], None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def forced(self, state: HostedState, limit: int) -> Sequence[int]:
        if not self._has("forced"):
            return ()
        return [int(token_id) for token_id in self._said(state, "forced", limit)]

    def validate(self, state: HostedState, token_ids: Sequence[int]) -> int:
        if not self._has("validate"):
            return len(token_ids)
        return int(self._said(state, "validate", tuple(token_ids)))

    def fork(self, state: HostedState) -> HostedState:
        if not self._has("fork"):
            return super().fork(state)
        state.take_back()
        forks = (*state.forks, len(state.steps))
        child = HostedState(self._home, state.request, state.sequence, state.compiled, list(state.steps), forks)
        child.plugin = state.plugin
        self._said(state, "fork", child.number)
        child.born_in = state.born_in
        return child

    def report(self, state: HostedState) -> Mapping[str, Any] | None:
        if not self._has("report"):
            return None
        found: Mapping[str, Any] | None = self._said(state, "report", None)
        return found

    def release(self, state: HostedState | None) -> None:
        if self._has("release"):
            number, born_in = (-1, self._home.number) if state is None else (state.number, state.born_in)
            self._home.tell("release", number, born_in)

    def close(self) -> None:
        self._hosts.close(f"modifier.{self.name}")

    def plugin_of(self, state: HostedState | None) -> str:
        return (state is not None and state.plugin) or f"modifier.{self.name}"

    # Parts

    def _has(self, method: str) -> bool:
        """Return whether the plugin has its own; else the contract says what happens."""
        return getattr(self.cls, method) is not getattr(LogitModifier, method)

    def _sent(self, request: Request) -> bytes:
        try:
            return pickle.dumps(request, protocol=5)
        except Exception as error:
            raise InvalidRequest(
                f"the request's options cannot be sent to the host of modifier {self.name!r}: {text_of(error)}; use "
                "plain values, or set modifier_host to 'inline'",
                field=f"modifiers.{self.name}",
            ) from error

    def _look(self, method: str, request: Request) -> Any:
        return self._hosts_look(method, self._sent(request))

    def _hosts_look(self, method: str, *arguments: Any) -> Any:
        try:
            return self._hosts.look(method, self.name, *arguments)
        except HostDied as died:
            raise self._error(died, method.removeprefix("try_")) from died

    def _ask(
        self,
        command: str,
        state: HostedState,
        phase: str,
        *arguments: Any,
        read: Callable[[Any, bytes | None], T],
        seconds: float,
    ) -> T:
        """`Home.ask` of one state, again where the host was killed from outside."""
        for last in range(MAX_DEATHS):
            try:
                return self._home.ask(command, [state], *arguments, read=read, seconds=seconds)
            except Died as died:
                its_own = died.cause.by_itself and died.state is not None
                if its_own or last == MAX_DEATHS - 1:
                    raise self._error(died.cause, phase) from died
        raise AssertionError

    def _said(self, state: HostedState, method: str, argument: Any) -> Any:
        seconds = self._limits.step_seconds
        return self._ask(
            "ask_state", state, method, method, argument, read=lambda said, _: said["found"], seconds=seconds
        )

    def _error(self, died: HostDied, phase: str) -> GuidewayError:
        """Return the error of a call over which the host died: one that broke a limit is a refusal."""
        if not died.broke:
            return died
        return LimitExceeded(f"modifier.{self.name} failed in {phase}: {died}", field=f"modifiers.{self.name}")

    def _cause(self, died: HostDied) -> GuidewayError:
        return LimitExceeded(str(died)) if died.broke else died


def _read_prepared(count: int, answer: Any, data: bytes | None) -> tuple[Payload | None, dict[int, GuidewayError]]:
    failed = {int(i): error_of(words) for i, words in answer["errors"].items()}
    if not failed.keys() <= set(range(count)):
        raise ValueError(f"errors of {sorted(failed)}, of {count}")
    return None if answer["payload"] is None else unpacked(answer["payload"], data or b""), failed


def _read_outcomes(count: int, answer: Any, _: bytes | None) -> list[Outcome | BaseException]:
    outcomes, errors = answer["outcomes"], answer["errors"]
    if len(outcomes) != count:
        raise ValueError(f"{len(outcomes)} outcomes of {count}")
    found: list[Outcome | BaseException] = []
    for i, said in enumerate(outcomes):
        if str(i) in errors:
            found.append(error_of(errors[str(i)]))
        elif said == ["continue", "", False]:
            found.append(CONTINUE)
        else:
            found.append(Outcome(said[0], str(said[1]), bool(said[2])))
    return found
