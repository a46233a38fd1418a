"""Keeps requests within what an operator wants one of them to cost. GUIDEWAY_SAMPLING_FENCE may name a JSON file:

    {"max_tokens": 4096, "max_sequences": 8, "max_logprobs": 20, "max_prompt_bytes": 200000,
     "constraints": ["json_schema"], "roles": ["system", "user", "assistant", "tool"], "tasks": ["generate", "embed"]}

What the file leaves out has its default. Without the variable all defaults hold. If it cannot be read, all is refused.
It also counts what became of requests: `snapshot`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from guideway.api import (
    GenerationResult,
    InvalidRequest,
    LimitExceeded,
    Request,
    Submission,
    ValidationContext,
    hookimpl,
)

VARIABLE = "GUIDEWAY_SAMPLING_FENCE"


@dataclass(frozen=True)
class Fence:
    """The most that a request may ask for; None: anything."""

    max_tokens: int | None = 100_000
    max_sequences: int | None = 8
    max_logprobs: int | None = 20
    max_prompt_bytes: int | None = 1_000_000
    max_tools: int | None = 64
    constraints: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = ("system", "developer", "user", "assistant", "tool")
    tasks: tuple[str, ...] | None = None


def read_fence() -> Fence:
    """Read anew for each request: an operator changes the file of a running host."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return Fence()
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        known = {field.name for field in fields(Fence)}
        if not isinstance(given, dict) or not set(given) <= known:
            raise ValueError(f"it must be an object with some of {', '.join(sorted(known))}")
        for name, value in given.items():
            if not _fits(name, value):
                raise ValueError(f"{name} must not be {value!r}")
        return Fence(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"no request is served: {VARIABLE} names no file of limits: {error}", field="params"
        ) from error


def _fits(name: str, value: object) -> bool:
    if value is None:
        return True
    if name.startswith("max_"):
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _number(value: object) -> float:
    """The number that a parameter counts for; what is no number is for the host's admission to refuse."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


class SamplingFence:
    """The hooks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: dict[str, float] = {}
        self._ended: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[str] = Counter()
        self._seconds = 0.0

    @hookimpl
    def guideway_validate_submission(self, submission: Submission, context: ValidationContext) -> None:
        fence = read_fence()
        if fence.tasks is not None and submission.task not in fence.tasks:
            raise InvalidRequest(f"task {submission.task!r} is not served here", field="task")
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(submission.prompt))
        if fence.max_prompt_bytes is not None and size > fence.max_prompt_bytes:
            raise LimitExceeded(
                f"the prompt has {size} bytes, and {fence.max_prompt_bytes} are allowed", field="prompt"
            )
        if fence.max_tools is not None and len(submission.tools) > fence.max_tools:
            raise LimitExceeded(f"{len(submission.tools)} tools are more than {fence.max_tools}", field="tools")
        for role in _roles(submission.prompt):
            if fence.roles is not None and role not in fence.roles:
                raise InvalidRequest(f"no message may be of the role {role!r}", field="prompt")

    @hookimpl
    def guideway_validate_request(self, request: Request, context: ValidationContext) -> None:
        fence = read_fence()
        if request.task != "generate":
            return  # its parameters are a priority alone
        params = request.params
        limit = params.max_tokens
        if limit is None:
            limit = context.max_model_len - len(request.prompt_token_ids)
        if fence.max_tokens is not None and _number(limit) > fence.max_tokens:
            raise LimitExceeded(f"max_tokens may be at most {fence.max_tokens}, and is {limit}", field="max_tokens")
        if fence.max_sequences is not None:
            for name, number in (("n", params.n), ("best_of", params.best_of)):
                if _number(number) > fence.max_sequences:
                    raise LimitExceeded(f"{name} may be at most {fence.max_sequences}", field=name)
        if fence.max_logprobs is not None:
            for name, number in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
                if _number(number) > fence.max_logprobs:
                    raise LimitExceeded(f"{name} may be at most {fence.max_logprobs}", field=name)
        kind = getattr(params.constraint, "kind", None)
        if fence.constraints is not None and kind is not None and kind not in fence.constraints:
            raise InvalidRequest(f"no constraint of kind {kind!r} is served here", field="constraint")
        for name in params.modifiers:
            if name not in context.modifiers:
                raise InvalidRequest(f"modifier {name!r} is not configured here", field="modifiers")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        with self._lock:
            self._began[request.request_id] = time.monotonic()

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        with self._lock:
            self._failures[type(error).__name__] += 1

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        with self._lock:
            began = self._began.pop(request.request_id, None)
            if began is not None:
                self._seconds += time.monotonic() - began
            for output in result.outputs:
                self._ended[request.task, str(output.finish_reason)] += 1

    def snapshot(self) -> dict[str, Any]:
        """Return what happened so far."""
        with self._lock:
            return {
                "running": len(self._began),
                "ended": dict(self._ended),
                "failures": dict(self._failures),
                "seconds": self._seconds,
            }


def _texts(prompt: object) -> list[str]:
    """All text of a prompt; token ids have none."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, Mapping):
        return [text for value in prompt.values() for text in _texts(value)]
    if isinstance(prompt, tuple | list):
        return [text for item in prompt for text in _texts(item)]
    return []


def _roles(prompt: object) -> list[object]:
    messages = prompt if isinstance(prompt, tuple | list) else ()
    return [
        message["role"] for message in messages if isinstance(message, Mapping) and isinstance(message.get("role"), str)
    ]
