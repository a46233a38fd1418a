"""The program of the processes of modifier hosts."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from guideway.api.grammar import CompiledGrammar
from guideway.api.modifier import LogitModifier
from guideway.api.steps import Outcome, StepBatch
from guideway.api.types import Companion, Request
from guideway.errors import ConformanceError, contain, text_of
from guideway.runtime.constraints.tracking import compile_grammar
from guideway.runtime.modifiers.answers import read_count, read_edit, read_ids, read_key, read_names, read_report
from guideway.runtime.modifiers.rows import check_payload, keep_unchanged, lend_feedback, sequence_of_row
from numpy.typing import NDArray

from guideway_hosts.messages import IDLE, SharedMasks, words_of
from guideway_hosts.modifiers.messages import Birth, Command, Given, Job, Recipe, packed
from guideway_hosts.plugins import Plugins

__all__ = ["StateServer"]

PLAIN = (bool, int, float, str, bytes, type(None))
"""Types whose values are equal where their `repr` is."""


class StateServer:
    """The answers of a host about modifiers."""

    def __init__(self, plugins: Plugins, shared: SharedMasks) -> None:
        self._plugins = plugins
        self._shared = shared
        self._states: dict[int, Any] = {}
        self._failed: dict[int, BaseException] = {}
        """Why states could not be made anew."""
        self._compiled: dict[int, Any] = {}
        self.commands: dict[str, Callable[..., Any]] = {
            "companions": self._companions,
            "edit_prompt": self._edit_prompt,
            "compile_key": self._compile_key,
            "try_compile": self._compile,
            "start": self._start,
            "revive": self._revive,
            "prepare": self._prepare,
            "accept": self._accept,
            "ask_state": self._ask,
            "close": self._close,
        }
        self.beside: dict[str, Callable[..., Any]] = {"load_value": self._load}

    # For any request, of a host that holds nothing

    def _companions(self, name: str, request: bytes) -> list[list[int]]:
        found = self._plugins.modifiers[name].companions(_request(request))
        if not isinstance(found, list | tuple) or not all(isinstance(one, Companion) for one in found):
            raise ConformanceError(f"it must return a list of Companion, not {type(found).__name__}")
        return [[int(token_id) for token_id in one.prompt_token_ids] for one in found]

    def _edit_prompt(self, name: str, request: bytes) -> dict[str, Any]:
        token_ids, prefix = read_edit(self._plugins.modifiers[name].edit_prompt(_request(request)))
        return {"token_ids": token_ids, "prefix": prefix.hex()}

    def _compile_key(self, name: str, request: bytes) -> str | None:
        key = read_key(self._plugins.modifiers[name].compile_key(_request(request)))
        return None if key is None else canonical(key)

    def _compile(self, name: str, request: bytes, grammar: Given | None) -> None:
        self._plugins.modifiers[name].compile(_request(request), self._grammar(grammar))

    # For sequences

    def _load(self, name: str, recipe: Recipe) -> None:
        self._compiled[recipe.number] = self._value(self._plugins.modifiers[name], recipe)

    def _start(self, command: Command) -> dict[str, Any]:
        """Return whether the modifier acts on a new sequence, and what it says of that."""
        modifier, said = self._begin(command)
        (job,) = command.jobs
        assert job.birth is not None
        with self._working_on(job.state):
            state = self._started(modifier, job.birth)
            if state is None:
                return {"acts": False, "said": said}
            self._states[job.state] = state
            plugin = str(modifier.plugin_of(state))
            try:
                unenforced: Any = {"names": read_names(modifier.unenforced(state))}
            except BaseException as error:
                unenforced = {"error": words_of(error)}
            return {"acts": True, "unenforced": unenforced, "plugin": plugin, "said": said}

    def _revive(self, command: Command) -> dict[str, Any]:
        """Make states anew that another host had."""
        modifier, said = self._begin(command)
        for job in command.jobs:
            assert job.birth is not None
            with self._working_on(job.state):
                try:
                    self._rebuild(modifier, job.state, job.birth)
                except BaseException as error:
                    self._failed[job.state] = error
        return {"said": said}

    def _prepare(
        self, command: Command, places: Sequence[int], arrays: Sequence[NDArray[Any]], apart: bool
    ) -> tuple[dict[str, Any], bytes | None]:
        """The payload of a step for the sequences at these places. `apart`: for each of them alone before, so that the
        serving process knows over which of them this process ended."""
        modifier, said = self._begin(command)
        batch = StepBatch(*arrays)
        owners = None if batch.num_rows == batch.num_sequences else sequence_of_row(batch)
        states, errors = self._living(command)
        of_place = {place: states[i] for i, place in enumerate(places) if i in states}

        def attempt(some: Sequence[int]) -> tuple[dict[str, Any], bytes] | None:
            given = tuple([of_place[i] if i in some else None for i in range(batch.num_sequences)])
            payload = check_payload(modifier.prepare(batch, given), batch, given, owners)
            return None if payload is None else packed(payload)

        for i, place in enumerate(places if apart else ()):
            if place in of_place:
                with self._working_on(command.jobs[i].state):
                    try:
                        attempt([place])
                    except BaseException as error:
                        errors[i] = words_of(error)
                        del of_place[place]
        made = None
        if of_place:
            only = next((job.state for i, job in enumerate(command.jobs) if i in states), IDLE)
            with self._working_on(only if len(of_place) == 1 else IDLE):
                made = attempt(list(of_place))
        words, data = (None, None) if made is None else made
        return {"payload": words, "errors": errors, "said": said}, data

    def _accept(self, command: Command, steps: Sequence[Any]) -> dict[str, Any]:
        """Return what is to become of each sequence after its final tokens and feedback."""
        modifier, said = self._begin(command)
        errors: dict[int, Any] = {}
        outcomes: list[Any] = []
        for i, (job, (token_ids, feedback)) in enumerate(zip(command.jobs, steps, strict=True)):
            outcomes.append(None)
            with self._working_on(job.state):
                try:
                    outcome = modifier.accept(self._state(job), token_ids, _handed(feedback))
                    if not isinstance(outcome, Outcome):
                        raise ConformanceError(f"accept must return an Outcome, not {type(outcome).__name__}")
                    outcomes[i] = [outcome.action, str(outcome.message), bool(outcome.was_forbidden)]
                except BaseException as error:
                    errors[i] = words_of(error)
        return {"outcomes": outcomes, "errors": errors, "said": said}

    def _ask(self, command: Command, method: str, argument: Any) -> dict[str, Any]:
        """Return what another method says of a state."""
        modifier, said = self._begin(command)
        (job,) = command.jobs
        found: Any = None
        with self._working_on(job.state):
            state = self._state(job)
            if method == "fork":
                self._states[argument] = modifier.fork(state)
            elif method == "report":
                report = modifier.report(state)
                found = None if report is None else read_report(report)
            elif method == "forced":
                found = read_ids(argument, modifier.forced(state, argument))
            else:
                found = read_count(len(argument), modifier.validate(state, argument))
        return {"found": found, "said": said}

    def _close(self, command: Command) -> dict[str, Any]:
        """Close the modifier of this host, in which all states have ended."""
        modifier, said = self._begin(command)
        modifier.close()
        return {"said": said}

    # Parts

    def _begin(self, command: Command) -> tuple[LogitModifier[Any], list[str]]:
        """Take in what happened since the last command, and what failed in that."""
        modifier = self._plugins.modifiers[command.modifier]
        said = []
        for what, number in command.told:
            if what == "forget":
                self._states.pop(number, None)
                self._failed.pop(number, None)
            elif what == "unload":
                self._compiled.pop(number, None)
            else:
                with self._working_on(number):
                    try:
                        modifier.release(self._states.get(number))
                    except BaseException as error:
                        contain(error)
                        said.append(text_of(error))
        return modifier, said

    def _living(self, command: Command) -> tuple[dict[int, Any], dict[int, dict[str, Any]]]:
        """By the index of its job each state, and what failed where one was made anew."""
        states, errors = {}, {}
        for i, job in enumerate(command.jobs):
            try:
                states[i] = self._state(job)
            except BaseException as error:
                errors[i] = words_of(error)
        return states, errors

    def _state(self, job: Job) -> Any:
        if (error := self._failed.get(job.state)) is not None:
            raise error
        return self._states[job.state]

    def _rebuild(self, modifier: LogitModifier[Any], number: int, birth: Birth) -> None:
        """Make a state as it was in another host."""
        self._states[number] = self._started(modifier, birth)
        if self._states[number] is None:
            raise ConformanceError("start left a sequence alone on which it had acted before")
        forks = list(birth.forks)
        for i in range(len(birth.steps) + 1):
            while forks and forks[0] == i:
                forks.pop(0)
                parent = self._states[number]
                self._states[number] = modifier.fork(parent)
                modifier.release(parent)
            if i < len(birth.steps):
                token_ids, feedback = birth.steps[i]
                outcome = modifier.accept(self._states[number], token_ids, _handed(feedback))
                if outcome.action == "fail":
                    raise ConformanceError(f"it refused in replay what it had accepted before: {outcome.message}")

    def _started(self, modifier: LogitModifier[Any], birth: Birth) -> Any:
        value = None
        if birth.compiled is not None:
            if birth.compiled.number not in self._compiled:
                self._compiled[birth.compiled.number] = self._value(modifier, birth.compiled)
            value = self._compiled[birth.compiled.number]
        return modifier.start(_request(birth.request), birth.sequence, value)

    def _value(self, modifier: LogitModifier[Any], recipe: Recipe) -> Any:
        return modifier.compile(_request(recipe.request), self._grammar(recipe.grammar))

    def _grammar(self, given: Given | None) -> CompiledGrammar | None:
        if given is None:
            return None
        strategy = self._plugins.strategies[given.strategy]
        return (
            strategy.from_bytes(given.source)
            if isinstance(given.source, bytes)
            else compile_grammar(strategy, given.source)
        )

    @contextmanager
    def _working_on(self, number: int) -> Iterator[None]:
        before = self._shared.working_on
        self._shared.working_on = number
        try:
            yield
        finally:
            self._shared.working_on = before


def canonical(key: Any) -> str | None:
    """Words that two keys share only if they are equal; None where nobody can tell."""
    if type(key) in PLAIN and key == key:  # a NaN is not
        return f"{type(key).__name__}:{key!r}"
    if isinstance(key, Enum):
        return f"{type(key).__module__}.{type(key).__qualname__}.{key.name}"
    if type(key) in (tuple, frozenset):
        parts = [canonical(part) for part in key]
        if None in parts:
            return None
        ordered = parts if type(key) is tuple else sorted(part for part in parts if part is not None)
        return f"{type(key).__name__}({', '.join(repr(part) for part in ordered)})"
    return None


def _request(data: bytes) -> Request:
    request: Request = pickle.loads(data)
    return request


def _handed(feedback: Mapping[str, NDArray[Any]] | None) -> Any:
    named = None if feedback is None else {"": feedback}
    keep_unchanged(named)
    return lend_feedback(named, "")
