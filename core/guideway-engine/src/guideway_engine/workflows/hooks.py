"""Calling validators and observers for the tasks of a workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from threading import Lock
from typing import Any

import numpy as np
from guideway.api.hooks import ValidationContext
from guideway.api.types import Completion, FinishReason, GenerationResult, Request, SamplingParams, Submission
from guideway.api.workflow import Prepared, Task
from guideway.errors import GuidewayError
from guideway.plugins import Hooks
from guideway.plugins.building import validators
from guideway.plugins.hooks import observe, validate

__all__ = ["Listening"]


class Listening:
    """Calls the hooks of one workflow. May be used by several threads."""

    def __init__(self, hooks: Hooks, context: ValidationContext) -> None:
        self._hooks = hooks
        self._context = context
        found = validators(hooks)
        self._of_submissions, self._of_requests = found[Submission], found[Request]
        self._observes = bool(hooks.request_started or hooks.request_finished or hooks.request_failed)
        self._under_way: dict[Task, Request] = {}
        self._lock = Lock()

    def check(self, task: Task) -> None:
        """Call the validators of submissions. Raises `InvalidRequest`."""
        if self._of_submissions:
            prompt = _prompt_of(task.value)
            submission = Submission(
                request_id=task.request_id,
                task=task.kind,
                prompt=prompt,
                prompt_token_ids=prompt if _are_ids(prompt) else None,
                params=SamplingParams(priority=task.priority),
                tenant=task.tenant,
            )
            for plugin, validator in self._of_submissions:
                validate(plugin, validator, submission, self._context)

    def admit(self, prepared: Prepared) -> Request | None:
        """Call the validators of requests. Return the request for observers, or None if there are no hooks. Raises
        `InvalidRequest`."""
        if not self._of_requests and not self._observes:
            return None
        task = prepared.task
        prompt = _prompt_of(task.value)
        request = Request(
            request_id=task.request_id,
            task=task.kind,
            prompt_token_ids=tuple(prepared.token_ids.tolist()),
            params=SamplingParams(priority=task.priority),
            prompt=prompt if isinstance(prompt, str) else None,
            tenant=task.tenant,
        )
        for plugin, validator in self._of_requests:
            validate(plugin, validator, request, self._context)
        return request

    def has_started(self, task: Task) -> bool:
        """Return whether observers were notified of the start of a task."""
        return task in self._under_way

    def started(self, task: Task, request: Request) -> None:
        """Notify observers that a request was admitted."""
        if self._observes:
            with self._lock:
                self._under_way[task] = request
            observe(self._hooks.request_started, request=request)

    def ended(self, task: Task, error: GuidewayError | None = None, *, given_up: bool = False) -> None:
        """Notify observers that a request has ended. Tasks that never became requests are ignored."""
        if not self._observes:
            return
        with self._lock:
            request = self._under_way.pop(task, None)
        if request is None:
            return
        reason = FinishReason.STOP if error is None else FinishReason.INTERNAL_ERROR
        outputs = (Completion(finish_reason=FinishReason.ABORT if given_up else reason, error=error),)
        if error is not None:
            observe(self._hooks.request_failed, request=request, error=error)
        result = GenerationResult(
            request_id=request.request_id, prompt_token_ids=request.prompt_token_ids, outputs=outputs
        )
        observe(self._hooks.request_finished, request=request, result=result)


def _prompt_of(value: Any) -> Any:
    """Return the input of a task in the form that hooks see: text, token ids, a pair of texts, or the workflow's own
    type."""
    if isinstance(value, Mapping):
        value = value.get("prompt", value.get("prompt_token_ids", value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(value)
    return tuple(value.tolist()) if isinstance(value, np.ndarray) and value.ndim == 1 else value


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, tuple) and all(isinstance(item, Integral) for item in prompt)
