"""Limits by tenant. GUIDEWAY_QUOTA_FILE names a JSON file:

    {"default": {"max_tokens": 512}, "tenants": {"acme": {"max_prompt_tokens": 4000, "modifiers": ["watermark"]}}}

Without the variable, `USUAL` holds.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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

LOGGER = logging.getLogger(__name__)
VARIABLE = "GUIDEWAY_QUOTA_FILE"
USUAL = json.dumps(
    {
        "default": {
            "max_tokens": 64,
            "max_prompt_tokens": 40,
            "max_characters": 200,
            "modifiers": [],
            "lowest_priority": 0,
        },
        "tenants": {"acme": {"max_tokens": 512, "max_prompt_tokens": 4000, "max_characters": 20000}},
    }
)

_LOCK = threading.Lock()
_PARSED: tuple[str, dict[str, Any]] | None = None
_RUNNING: dict[str, str] = {}
_ENDED: Counter[tuple[str, str]] = Counter()


@dataclass(frozen=True)
class Limits:
    """The limits of one tenant; None: no limit."""

    max_tokens: int | None = None
    max_prompt_tokens: int | None = None
    max_characters: int | None = None
    modifiers: frozenset[str] | None = None
    lowest_priority: int | None = None


def _policy() -> dict[str, Any]:
    """The file is read anew for each request; parsed anew only if its text is another."""
    global _PARSED
    try:
        text = Path(os.environ[VARIABLE]).read_text(encoding="utf-8") if VARIABLE in os.environ else USUAL
    except (KeyError, OSError, ValueError) as error:
        raise InvalidRequest(f"nobody is served: {VARIABLE} names no file that can be read") from error
    with _LOCK:
        if _PARSED is not None and _PARSED[0] == text:
            return _PARSED[1]
    try:
        policy = json.loads(text)
        if not isinstance(policy, dict) or not isinstance(policy.get("tenants", {}), dict):
            raise ValueError("it is no mapping of tenants")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"nobody is served: {VARIABLE} names a file that is no policy: {error}") from error
    with _LOCK:
        _PARSED = (text, policy)
    return policy


def _limits(tenant: str) -> Limits:
    policy = _policy()
    try:
        merged = {**policy.get("default", {}), **policy.get("tenants", {}).get(tenant, {})}
        names = merged.pop("modifiers", None)
        return Limits(modifiers=None if names is None else frozenset(names), **merged)
    except TypeError as error:
        raise InvalidRequest(f"tenant {tenant!r} has limits that are none: {error}", field="tenant") from error


def _characters(prompt: object) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, Mapping):
        return sum(map(_characters, prompt.values()))
    if isinstance(prompt, (tuple, list)):
        return sum(map(_characters, prompt))
    return 0


@hookimpl
def guideway_validate_submission(submission: Submission) -> None:
    limits = _limits(submission.tenant)
    if limits.max_characters is not None:
        found = _characters(submission.prompt) + _characters(submission.tools)
        if found > limits.max_characters:
            raise LimitExceeded(
                f"{found} characters, and tenant {submission.tenant!r} may send {limits.max_characters}", field="prompt"
            )
    priority = submission.params.priority
    if limits.lowest_priority is not None:
        if not isinstance(priority, int):
            raise InvalidRequest(f"a priority is a whole number, not {priority!r}", field="priority")
        if priority < limits.lowest_priority:
            raise InvalidRequest(f"priority {priority} is more urgent than allowed", field="priority")


@hookimpl
def guideway_validate_request(request: Request, context: ValidationContext) -> None:
    limits = _limits(request.tenant)
    length = len(request.prompt_token_ids)
    if limits.max_prompt_tokens is not None and length > limits.max_prompt_tokens:
        raise LimitExceeded(f"{length} tokens, and at most {limits.max_prompt_tokens} are allowed", field="prompt")
    if request.task != "generate":
        return
    if limits.max_tokens is not None:
        asked = request.params.max_tokens
        most = context.max_model_len - length if asked is None else asked
        if not isinstance(most, int):
            raise InvalidRequest(f"max_tokens is a whole number, not {most!r}", field="max_tokens")
        if most > limits.max_tokens:
            raise LimitExceeded(f"max_tokens {most} is above {limits.max_tokens}", field="max_tokens")
    if limits.modifiers is not None:
        unknown = sorted(set(map(str, request.params.modifiers or ())) - limits.modifiers)
        if unknown:
            raise InvalidRequest(f"not for tenant {request.tenant!r}: {', '.join(unknown)}", field="modifiers")


@hookimpl
def guideway_request_started(request: Request) -> None:
    with _LOCK:
        _RUNNING[request.request_id] = request.tenant


@hookimpl
def guideway_request_finished(request: Request, result: GenerationResult) -> None:
    with _LOCK:
        tenant = _RUNNING.pop(request.request_id, request.tenant)
        _ENDED[tenant, str(result.finish_reason)] += 1
    LOGGER.debug("%s of %r ended: %s", request.request_id, tenant, result.finish_reason)


PLUGIN = sys.modules[__name__]
"""The module itself, for who wants an object."""
