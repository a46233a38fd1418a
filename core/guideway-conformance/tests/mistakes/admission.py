"""Admission by priority class: each class has limits, also on the number of requests served at once.

A request's `priority` selects its class. A value beyond the class's limit is refused, and the error names the limit:
validators cannot rewrite a request, so the caller has to.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api import (
    Constraint,
    GenerationResult,
    InvalidRequest,
    JsonSchema,
    LimitExceeded,
    Request,
    SamplingParams,
    Submission,
    ValidationContext,
    hookimpl,
)

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Class:
    """The limits of requests of one class."""

    name: str
    upto: int
    """The largest priority number that belongs to it."""
    at_once: int
    max_tokens: int
    num_sequences: int
    max_bias: float
    advice: str


CLASSES = (
    Class("interactive", -1, 64, 1024, 2, 100.0, "send long work with a priority above 0"),
    Class("standard", 9, 512, 8192, 8, 50.0, "split the work into several requests"),
    Class("batch", 99, 4096, 65536, 64, 20.0, "split the work into several requests"),
)
LAST = Class("best effort", 1 << 62, 4096, 65536, 64, 10.0, "use a priority up to 99")

KINDS = {"json_object": 1, "choice": 1, "regex": 2, "json_schema": 4, "structural_tag": 8}
"""The cost of a constraint; kinds that are not listed cost 8."""

COSTLY = frozenset({"description", "title", "examples", "$comment"})
"""Keywords that no strategy reads; they count for nothing."""


class Admission:
    """The hooks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, str] = {}
        self._ended: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    @hookimpl
    def guideway_validate_submission(self, submission: Submission, context: ValidationContext) -> None:
        priority = submission.params.priority
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidRequest("priority must be a whole number", field="priority")
        limit = 4 * context.max_model_len + 4096
        prompt = submission.prompt
        length = len(prompt) if isinstance(prompt, tuple) and prompt and isinstance(prompt[0], int) else 0
        if length > limit:
            raise LimitExceeded(f"the prompt has {length} tokens, which no class takes", field="prompt")
        if len(submission.tools) > 128:
            raise LimitExceeded("there may be 128 tools", field="tools")

    @hookimpl
    def guideway_validate_request(self, request: Request, context: ValidationContext) -> None:
        its = _class_of(request.params.priority)
        with self._lock:
            running = sum(name == its.name for name in self._running.values())
        if running >= its.at_once:
            raise LimitExceeded(f"{running} requests of class {its.name} are served; {its.advice}", field="priority")
        if request.task != "generate":
            return
        for name, (value, granted) in self._wishes(request.params, its).items():
            if value > granted:
                raise LimitExceeded(
                    f"class {its.name} grants {name} up to {granted}, not {value}; {its.advice}", field=name
                )
        self._check_modifiers(request.params, context)
        if isinstance(request.params.constraint, Constraint):
            _check_constraint(request.params.constraint, its)

    def _wishes(self, params: SamplingParams, its: Class) -> dict[str, tuple[float, float]]:
        """Return the requested and the granted value, by parameter."""
        wishes: dict[str, tuple[float, float]] = {}
        wishes["max_tokens"] = params.max_tokens or 0, its.max_tokens
        wishes["n"] = params.num_sequences, its.num_sequences
        finite = {token: bias for token, bias in params.logit_bias.items() if bias > float("-inf")}
        wishes["logit_bias"] = max(map(abs, finite.values()), default=0.0), its.max_bias
        return wishes

    def _check_modifiers(self, params: SamplingParams, context: ValidationContext) -> None:
        """Refuse the later modifiers in the operator's order, which are expensive."""
        for name in params.modifiers:
            place = context.modifiers.index(name) if name in context.modifiers else -1
            if place >= 8:
                raise InvalidRequest(f"modifier {name!r} is for the operator alone", field="modifiers")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        its = _class_of(request.params.priority)
        with self._lock:
            self._running[request.request_id] = its.name

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        LOGGER.warning("request %s failed with %s", request.request_id, type(error).__qualname__)
        with self._lock:
            self._ended["failed"] += 1

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        with self._lock:
            name = self._running.pop(request.request_id, "unknown")
            self._ended[str(result.finish_reason)] += 1
            self._tokens[name] += sum(len(output.token_ids) for output in result.outputs)
        last = result.token_ids[-1] if result.token_ids else None
        LOGGER.debug("request %s of class %s ended with token %s", request.request_id, name, last)


def _class_of(priority: int) -> Class:
    return next((each for each in CLASSES if priority <= each.upto), LAST)


def _check_constraint(constraint: Constraint, its: Class) -> None:
    """Refuse constraints that take longer to compile than the class allows. `source` refuses malformed ones."""
    dear = KINDS.get(constraint.kind, 8)
    size = len(constraint.source())
    if isinstance(constraint, JsonSchema) and isinstance(constraint.parsed, Mapping):
        schema = {key: value for key, value in constraint.parsed.items() if key not in COSTLY}
        size = _weight(schema)
    if size * dear > 4 * 65536:
        raise LimitExceeded(f"class {its.name} does not wait for a constraint of this size", field="constraint")


def _weight(value: Any) -> int:
    """Count the values in a schema, without recursion."""
    count, stack = 0, [value]
    while stack:
        item = stack.pop()
        count += 1
        if isinstance(item, Mapping):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item
    return count
