"""Hooks that record their calls."""

from __future__ import annotations

from typing import Any

from guideway import InvalidRequest
from guideway.api import GenerationResult, Request, Submission, ValidationContext, hookimpl

HEARD: list[tuple[str, Any]] = []
CONTEXTS: list[ValidationContext] = []


@hookimpl
def guideway_validate_submission(submission: Submission, context: ValidationContext) -> None:
    HEARD.append(("submission", submission))
    CONTEXTS.append(context)
    if submission.prompt == "w7":
        raise InvalidRequest("not that text", field="prompt")
    if submission.prompt == "w8":
        raise RuntimeError("broken validator")


@hookimpl
def guideway_validate_request(request: Request) -> None:
    if len(request.prompt_token_ids) > 40:
        raise InvalidRequest("too many tokens for you", field="prompt")


@hookimpl
def guideway_request_started(request: Request) -> None:
    HEARD.append(("started", request))


@hookimpl
def guideway_request_finished(request: Request, result: GenerationResult) -> None:
    HEARD.append(("finished", (request, result)))
    raise RuntimeError("an observer that breaks")


@hookimpl
def guideway_request_failed(request: Request, error: BaseException) -> None:
    HEARD.append(("failed", (request, error)))
