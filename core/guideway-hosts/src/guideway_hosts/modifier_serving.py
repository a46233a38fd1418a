"""The commands about modifiers, as a host executes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from guideway.api.grammar import CompiledGrammar
from guideway.api.modifier import LogitModifier
from guideway.api.steps import Outcome, StepBatch
from guideway.api.types import Companion, Request
from guideway.errors import ConformanceError, contain, text_of
from guideway.runtime.modifiers.answers import read_count, read_edit, read_ids, read_key, read_names, read_report
from guideway.runtime.modifiers.rows import check_payload, keep_unchanged, lend_feedback, sequence_of_row
from numpy.typing import NDArray

from guideway_hosts.codec import decode
from guideway_hosts.messages import IDLE, SharedMasks, describe_error, write_payload
from guideway_hosts.plugins import Plugins

__all__ = ["StateServer"]

PLAIN = (bool, int, float, str, bytes, type(None))
"""Types whose values are equal if their types and their `repr` are equal."""


News: TypeAlias = Sequence[tuple[str, int]]
"""Events since the last command: what happened, and to which object."""


class StateServer:
    """Calls modifiers for requests, and keeps the states of sequences."""

    def __init__(self, plugins: Plugins, shared: SharedMasks) -> None:
        self._plugins = plugins
        self._shared = shared
        self._states: dict[int, Any] = {}
        self._failed: dict[int, BaseException] = {}
        """By state number the error that occurred when the state was made again."""
        self._compiled: dict[int, Any] = {}
        self.commands: dict[str, Callable[..., Any]] = {
            **{method: partial(self._look, method) for method in LOOKS},
            "try_value": self._try,
            "revive": self._revive,
            "each": self._each,
            "prepare": self._prepare,
            "close": self._close,
        }
        self.beside: dict[str, Callable[..., Any]] = {"load_value": self._load}

    def _look(self, method: str, name: str, request: Request) -> Any:
        """Return the answer, as JSON, of a modifier's method that takes a request."""
        return LOOKS[method](getattr(self._plugins.modifiers[name], method)(request))

    def _try(self, name: str, request: Request, given: Sequence[Any] | None) -> None:
        """Compile a value that is not used."""
        self._plugins.modifiers[name].compile(request, self._grammar(given))

    def _load(self, number: int, name: str, request: Request, given: Sequence[Any] | None) -> None:
        """Compile a value that states use."""
        modifier = self._plugins.modifiers[name]
        self._compiled[number] = modifier.compile(request, self._grammar(given))

    def _each(self, name: str, news: News, method: str, jobs: Sequence[tuple[int, Any]]) -> dict[str, Any]:
        """Return for each state the answer of a method, or its error. A job has the state's number, and the method's
        other arguments; for ``start`` the source of the state."""
        modifier, failures = self._begin(name, news)
        found: list[Any] = []
        errors: dict[int, Any] = {}
        for i, (number, given) in enumerate(jobs):
            with self._working_on(number):
                try:
                    arguments = decode(given)
                    if method == "start":
                        answer = self._start(modifier, number, *arguments[:3])
                    elif method == "fork":
                        self._states[arguments[0]] = modifier.fork(self._state(number))
                        answer = None
                    else:
                        answer = getattr(modifier, method)(self._state(number), *HANDED.get(method, list)(arguments))
                        answer = READ[method](answer, *arguments)
                    found.append(answer)
                except BaseException as error:
                    found.append(None)
                    errors[i] = describe_error(error)
        return {"found": found, "errors": errors, "failures": failures}

    def _prepare(
        self,
        name: str,
        news: News,
        jobs: Sequence[tuple[int, int]],
        arrays: Any,
        apart: bool,
    ) -> tuple[dict[str, Any], bytes | None]:
        """Return the payload of a step, and errors by place. A job has a state's number and its place in the batch.

        With `apart`, each sequence is prepared alone first. If this process ends, the serving process then knows which
        sequence caused it.
        """
        modifier, failures = self._begin(name, news)
        batch = StepBatch(*decode(arrays))
        owners = None if batch.num_rows == batch.num_sequences else sequence_of_row(batch)
        of_place, errors = {}, {}
        number_of = {place: number for number, place in jobs}
        for place, number in number_of.items():
            try:
                of_place[place] = self._state(number)
            except BaseException as error:
                errors[place] = describe_error(error)

        def attempt(some: Sequence[int], working_on: int) -> tuple[dict[str, Any], bytes | None]:
            given = tuple([of_place[i] if i in some else None for i in range(batch.num_sequences)])
            with self._working_on(working_on):
                payload = check_payload(modifier.prepare(batch, given), batch, given, owners)
                return ({}, None) if payload is None else write_payload(payload)

        for place in list(of_place) if apart else ():
            try:
                attempt([place], number_of[place])
            except BaseException as error:
                errors[place] = describe_error(error)
                del of_place[place]
        only = next((number_of[place] for place in of_place), IDLE)
        words, data = attempt(list(of_place), only if len(of_place) == 1 else IDLE) if of_place else ({}, None)
        return {"payload": words or None, "errors": errors, "failures": failures}, data

    def _close(self, name: str, news: News) -> dict[str, Any]:
        """Close the modifier of this host. All its states have ended."""
        modifier, failures = self._begin(name, news)
        modifier.close()
        return {"failures": failures}

    # Parts

    def _begin(self, name: str, news: News) -> tuple[LogitModifier[Any], list[str]]:
        """Execute the releases and drops since the last command. Return the modifier, and the errors of `release`."""
        modifier = self._plugins.modifiers[name]
        failures = []
        for what, number in news:
            if what == "release":
                with self._working_on(number):
                    try:
                        modifier.release(self._states.get(number))
                    except BaseException as error:
                        contain(error)
                        failures.append(text_of(error))
            else:
                for held in (self._compiled,) if what == "unload" else (self._states, self._failed):
                    held.pop(number, None)
        return modifier, failures

    def _state(self, number: int) -> Any:
        if (error := self._failed.get(number)) is not None:
            raise error
        return self._states[number]

    def _start(
        self, modifier: LogitModifier[Any], number: int, request: Request, sequence: Any, compiled: Any
    ) -> dict[str, Any]:
        """Make a new state. Return whether the modifier acts, and if so its unenforced names and its plugin."""
        value = None
        if compiled is not None:
            its_number, given = compiled
            if its_number not in self._compiled:
                self._compiled[its_number] = modifier.compile(request, self._grammar(given))
            value = self._compiled[its_number]
        state = modifier.start(request, sequence, value)
        if state is None:
            return {"acts": False}
        self._states[number] = state
        try:
            unenforced: Any = {"names": read_names(modifier.unenforced(state))}
        except BaseException as error:
            unenforced = {"error": describe_error(error)}
        return {"acts": True, "unenforced": unenforced, "plugin": str(modifier.plugin_of(state))}

    def _revive(self, name: str, news: News, births: Mapping[str, Any]) -> dict[str, Any]:
        """Make states, given by number with their sources, as they were in another host."""
        modifier, failures = self._begin(name, news)
        for number, birth in births.items():
            with self._working_on(int(number)):
                self._replay(modifier, int(number), birth)
        return {"failures": failures}

    def _replay(self, modifier: LogitModifier[Any], number: int, birth: Any) -> None:
        """Start a state, accept its steps, and fork it after each number of steps in `forks`."""
        try:
            request, sequence, compiled, steps, forks = decode(birth)
            if not self._start(modifier, number, request, sequence, compiled)["acts"]:
                raise ConformanceError("start left a sequence alone on which it had acted before")
            for i in range(len(steps) + 1):
                for _ in range(forks.count(i)):
                    parent = self._states[number]
                    self._states[number] = modifier.fork(parent)
                    modifier.release(parent)
                if i < len(steps):
                    token_ids, feedback = steps[i]
                    outcome = modifier.accept(self._states[number], token_ids, _lend(feedback))
                    if outcome.action == "fail":
                        raise ConformanceError(f"it refused in replay what it had accepted before: {outcome.message}")
        except BaseException as error:
            contain(error)
            self._failed[number] = error

    def _grammar(self, given: Sequence[Any] | None) -> CompiledGrammar | None:
        return None if given is None else self._plugins.make_grammar(*given)

    @contextmanager
    def _working_on(self, number: int) -> Iterator[None]:
        before, self._shared.working_on = self._shared.working_on, number
        try:
            yield
        finally:
            self._shared.working_on = before


def write_key(key: Any) -> str | None:
    """Return text that two keys share only if they are equal; None if equality cannot be decided from text."""
    if type(key) in PLAIN and key == key:  # excludes NaN
        return f"{type(key).__name__}:{key!r}"
    if isinstance(key, Enum):
        return f"{type(key).__module__}.{type(key).__qualname__}.{key.name}"
    if type(key) in (tuple, frozenset):
        parts = [write_key(part) for part in key]
        if None in parts:
            return None
        ordered = parts if type(key) is tuple else sorted(part for part in parts if part is not None)
        return f"{type(key).__name__}({', '.join(repr(part) for part in ordered)})"
    return None


def _companions(found: Any) -> list[list[int]]:
    if not isinstance(found, list | tuple) or not all(isinstance(one, Companion) for one in found):
        raise ConformanceError(f"it must return a list of Companion, not {type(found).__name__}")
    return [[int(token_id) for token_id in one.prompt_token_ids] for one in found]


def _edit(found: Any) -> dict[str, Any]:
    token_ids, prefix = read_edit(found)
    return {"token_ids": token_ids, "prefix": prefix.hex()}


def _outcome(found: Any, *_: Any) -> list[Any]:
    if not isinstance(found, Outcome):
        raise ConformanceError(f"accept must return an Outcome, not {type(found).__name__}")
    return [found.action, str(found.message), bool(found.was_forbidden)]


def _lend(feedback: Mapping[str, NDArray[Any]] | None) -> Any:
    named = None if feedback is None else {"": feedback}
    keep_unchanged(named)
    return lend_feedback(named, "")


LOOKS: dict[str, Callable[[Any], Any]] = {
    "companions": _companions,
    "edit_prompt": _edit,
    "compile_key": lambda key: None if read_key(key) is None else write_key(key),
}
"""By a modifier's method that takes a request: a function that converts its answer to JSON."""
READ: dict[str, Callable[..., Any]] = {
    "accept": _outcome,
    "report": lambda found: None if found is None else read_report(found),
    "forced": lambda found, limit: read_ids(limit, found),
    "validate": lambda found, token_ids: read_count(len(token_ids), found),
}
"""By a modifier's method that takes a state: a function that checks its answer and converts it to JSON."""
HANDED: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {"accept": lambda given: (given[0], _lend(given[1]))}
"""By method: a function that returns the arguments for the modifier from the arguments sent. Others are unchanged."""
