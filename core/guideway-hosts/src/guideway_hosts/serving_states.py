"""States of modifiers in a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any

from guideway.api.modifier import LogitModifier
from guideway.api.steps import Outcome, StepBatch
from guideway.api.types import Companion, Request, SequenceInfo
from guideway.errors import ConformanceError
from guideway.runtime.modifiers.answers import read_count, read_edit, read_ids, read_key, read_names, read_report
from guideway.runtime.modifiers.rows import check_payload, keep_unchanged, lend_feedback, sequence_of_row
from numpy.typing import NDArray

from guideway_hosts.codec import decode
from guideway_hosts.messages import IDLE, Job, SharedMasks, describe_error, write_payload

__all__ = ["LOOKS", "LivingState", "prepare"]

PLAIN = (bool, int, float, str, bytes, type(None))
"""Types whose values are equal if their types and their `repr` are equal."""


class LivingState:
    """The state of a sequence, made by starting it and accepting its steps. It is forked after each number of steps in
    `forks`, as it was before in another host. `acted` is True if it had been started before."""

    def __init__(
        self,
        modifier: LogitModifier[Any],
        compiled: Any,
        request: Request,
        sequence: SequenceInfo,
        steps: Sequence[Any],
        forks: Sequence[int],
        acted: bool,
    ) -> None:
        self.modifier = modifier
        self.state = modifier.start(request, sequence, compiled)
        if acted and self.state is None:
            raise ConformanceError("start left a sequence alone on which it had acted before")
        for i in range(len(steps) + 1):
            for _ in range(forks.count(i)):
                parent, self.state = self.state, modifier.fork(self.state)
                modifier.release(parent)
            if i < len(steps):
                token_ids, feedback = steps[i]
                outcome = modifier.accept(self.state, token_ids, _lend(feedback))
                if outcome.action == "fail":
                    raise ConformanceError(f"it refused in replay what it had accepted before: {outcome.message}")

    def update(self, job: Job) -> None:
        """Do nothing: only calls of `accept` bring tokens to a state."""

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Return the checked answer of a method as JSON."""
        modifier, state = self.modifier, self.state
        if method != "start":
            given = (arguments[0], _lend(arguments[1])) if method == "accept" else arguments
            return READ[method](getattr(modifier, method)(state, *given), *arguments)
        if state is None:
            return None
        try:
            unenforced: Any = read_names(modifier.unenforced(state))
        except BaseException as error:
            unenforced = describe_error(error)
        return {"unenforced": unenforced, "plugin": str(modifier.plugin_of(state))}

    def fork(self) -> LivingState:
        """Return a copy with a fork of the state."""
        child = copy(self)
        child.state = self.modifier.fork(self.state)
        return child

    def release(self) -> None:
        """Release the state."""
        self.modifier.release(self.state)


def prepare(
    modifier: LogitModifier[Any],
    jobs: Sequence[Job],
    ready: Mapping[int, LivingState],
    errors: dict[int, BaseException],
    masks: SharedMasks,
    arrays: Any,
    places: Sequence[int],
    apart: bool,
) -> tuple[dict[str, Any] | None, bytes | None]:
    """Return the payload of a step for the `ready` states, by the index of their jobs. Each job has a place in the
    batch whose arrays are given.

    With `apart`, each sequence is prepared alone first. If this process ends, the serving process then knows which
    sequence caused it.
    """
    batch = StepBatch(*decode(arrays))
    owners = None if batch.num_rows == batch.num_sequences else sequence_of_row(batch)

    def attempt(some: Sequence[int]) -> tuple[dict[str, Any] | None, bytes | None]:
        given: list[Any] = [None] * batch.num_sequences
        for i in some:
            given[places[i]] = ready[i].state
        masks.working_on = jobs[some[0]].number if len(some) == 1 else IDLE
        try:
            payload = check_payload(modifier.prepare(batch, tuple(given)), batch, tuple(given), owners)
            return (None, None) if payload is None else write_payload(payload)
        finally:
            masks.working_on = IDLE

    left = list(ready)
    for i in ready if apart else ():
        try:
            attempt([i])
        except BaseException as error:
            errors[i] = error
            left.remove(i)
    return attempt(left) if left else (None, None)


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
