"""Refuses prompts that hold secrets, and keeps an audit log: GUIDEWAY_AUDIT_LOG names the file, an object a line."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guideway.api import GenerationResult, InvalidRequest, Request, Submission, hookimpl

LOGGER = logging.getLogger(__name__)

SECRETS = (
    ("an AWS key", re.compile(r"\bAKIA[0-9A-Z]{16}\b")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a GitHub token", re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36}\b")),
    ("a password", re.compile(r"\bpassword\s*[:=]\s*\S+", re.IGNORECASE)),
)


@dataclass
class Entry:
    """The facts known of a request that runs."""

    began: float
    errors: list[str] = field(default_factory=list)


_LOCK = threading.Lock()
_RUNNING: dict[str, Entry] = {}
_REASONS: Counter[str] = Counter()


def texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Every text in a prompt: of messages also their parts, of tools also their descriptions."""
    if depth > 32:
        raise InvalidRequest("the prompt is nested too deeply", field="prompt")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from texts(part, depth + 1)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from texts(part, depth + 1)


def _write(line: dict[str, Any]) -> None:
    path = os.environ.get("GUIDEWAY_AUDIT_LOG")
    if not path:
        return
    text = json.dumps(line, default=str) + "\n"
    try:
        with _LOCK, Path(path).open("a", encoding="utf-8", errors="replace") as log:
            log.write(text)
    except (OSError, ValueError) as error:
        LOGGER.warning("the audit log %s cannot be written: %s", path, error)


@hookimpl
def guideway_validate_submission(submission: Submission) -> None:
    for name, value in (("prompt", submission.prompt), ("tools", submission.tools)):
        for text in texts(value):
            for what, pattern in SECRETS:
                if pattern.search(text):
                    raise InvalidRequest(f"the {name} holds {what}; take it out", field=name)


@hookimpl
def guideway_request_started(request: Request) -> None:
    with _LOCK:
        _RUNNING[request.request_id] = Entry(began=time.monotonic())
    _write(
        {
            "event": "started",
            "id": request.request_id,
            "tenant": request.tenant,
            "task": request.task,
            "tokens": len(request.prompt_token_ids),
            "constraint": _kind(request.params.constraint),
        }
    )


def _kind(constraint: Any) -> str | None:
    """The kind of a constraint; a stranger's has none, or one that cannot be told."""
    if constraint is None:
        return None
    try:
        return str(constraint.kind)
    except Exception:
        return type(constraint).__name__


@hookimpl
def guideway_request_failed(request: Request, error: BaseException) -> None:
    with _LOCK:
        entry = _RUNNING.get(request.request_id)
        if entry is not None:
            entry.errors.append(type(error).__name__)
    _write({"event": "failed", "id": request.request_id, "error": type(error).__name__})


@hookimpl
def guideway_request_finished(request: Request, result: GenerationResult) -> None:
    with _LOCK:
        entry = _RUNNING.pop(request.request_id, None)
        _REASONS[str(result.finish_reason)] += 1
    _write(
        {
            "event": "finished",
            "id": request.request_id,
            "reason": str(result.finish_reason),
            "seconds": None if entry is None else round(time.monotonic() - entry.began, 3),
            "errors": [] if entry is None else entry.errors,
            "tokens": [len(output.token_ids) for output in result.outputs],
            "modifiers": sorted(map(str, request.params.modifiers or ())),
        }
    )


PLUGIN = sys.modules[__name__]
"""The module itself, for who wants an object."""
