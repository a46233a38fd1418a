"""House rules: what a tenant may ask of this host.

GUIDEWAY_HOUSE_RULES names a JSON file, which is read anew for each request:

    {"default": {"max_output": 512}, "tenants": {"acme": {"tasks": ["generate"], "phrases": ["project x"]}}}

Without the variable the built-in rules hold for everybody.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guideway.api import InvalidRequest, LimitExceeded, Request, Submission, ValidationContext, hookimpl

VARIABLE = "GUIDEWAY_HOUSE_RULES"


@dataclass(frozen=True)
class Rules:
    """Limits of one tenant."""

    tasks: tuple[str, ...] | None = None
    max_bytes: int = 8 << 20
    max_output: int | None = None
    max_sequences: int = 64
    phrases: tuple[str, ...] = ("begin private key",)
    modifiers: tuple[str, ...] | None = None


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return value


def _names(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} must be a list of strings")
    return tuple(value)


READERS = {
    "tasks": _names,
    "max_bytes": _whole,
    "max_output": _whole,
    "max_sequences": _whole,
    "phrases": _names,
    "modifiers": _names,
}


def _rules_of(table: Any, base: Rules) -> Rules:
    if not isinstance(table, dict):
        raise ValueError("rules are a table")
    unknown = set(table) - set(READERS)
    if unknown:
        raise ValueError(f"unknown rule {sorted(unknown)[0]!r}")
    found = {name: READERS[name](value, name) for name, value in table.items()}
    return Rules(**{**vars(base), **found})


def parse(content: bytes) -> tuple[Rules, dict[str, Rules]]:
    """The rules for everybody, and those of the tenants that have their own."""
    table = json.loads(content)
    if not isinstance(table, dict) or not set(table) <= {"default", "tenants"}:
        raise ValueError("a file of rules has the tables default and tenants")
    default = _rules_of(table.get("default", {}), Rules())
    tenants = table.get("tenants", {})
    if not isinstance(tenants, dict):
        raise ValueError("tenants is a table")
    return default, {name: _rules_of(rules, default) for name, rules in tenants.items()}


def texts(value: Any) -> Iterator[str]:
    """Each string in a prompt or in tools, in order, however deep."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            stack.extend(reversed(list(part.values())))
        elif isinstance(part, (list, tuple)):
            stack.extend(reversed(part))


class HouseRules:
    """One object for all requests; only the content that was parsed last is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parsed: tuple[bytes, tuple[Rules, dict[str, Rules]]] | None = None

    def _rules(self, tenant: str) -> Rules:
        path = os.environ.get(VARIABLE)
        if not path:
            return Rules()
        try:
            with Path(path).open("rb") as file:
                content = file.read()
            with self._lock:
                if self._parsed is None or self._parsed[0] != content:
                    self._parsed = (content, parse(content))
                default, tenants = self._parsed[1]
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"nobody is served: {VARIABLE} names no file of rules that can be read") from error
        return tenants.get(tenant, default)

    def _check_phrases(self, value: Any, rules: Rules, field: str) -> None:
        phrases = [phrase.casefold() for phrase in rules.phrases]
        size = 0
        for text in texts(value):
            size += len(text.encode("utf-8", "surrogatepass"))
            folded = text.casefold()
            for phrase in phrases:
                if phrase in folded:
                    raise InvalidRequest(f"the {field} hold a phrase that is not served here", field=field)
        if size > rules.max_bytes:
            raise LimitExceeded(f"the {field} have {size} bytes, more than {rules.max_bytes}", field=field)

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        rules = self._rules(submission.tenant)
        if rules.tasks is not None and submission.task not in rules.tasks:
            raise InvalidRequest(f"tenant {submission.tenant!r} may not {submission.task}", field="task")
        self._check_phrases(submission.prompt, rules, "prompt")
        self._check_phrases(submission.tools, rules, "tools")

    @hookimpl
    def guideway_validate_request(self, request: Request, context: ValidationContext) -> None:
        rules = self._rules(request.tenant)
        if request.task != "generate":
            return
        params = request.params
        if params.num_sequences > rules.max_sequences:
            raise LimitExceeded(f"{params.num_sequences} sequences, more than {rules.max_sequences}", field="n")
        if rules.max_output is not None:
            room = context.max_model_len - len(request.prompt_token_ids)
            asked = room if params.max_tokens is None else min(params.max_tokens, room)
            if asked > rules.max_output:
                raise LimitExceeded(f"max_tokens must be at most {rules.max_output} here", field="max_tokens")
        if rules.modifiers is not None:
            for name in params.modifiers:
                if name not in rules.modifiers:
                    raise InvalidRequest(f"the modifier {name!r} is not for {request.tenant!r}", field="modifiers")


PLUGIN = HouseRules()
