"""Hooks: a limit of tokens for each tenant, and a count of what is under way; a journal of what ended; and a house rule
for prompts."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from guideway.api import GenerationResult, InvalidRequest, Request, Submission, hookimpl
from guideway.api.hooks import ValidationContext

LIMITS = {"small": 64}


class Quotas:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    @hookimpl
    def guideway_validate_request(self, request: Request, context: ValidationContext) -> None:
        limit = LIMITS.get(request.tenant, context.max_model_len)
        if len(request.prompt_token_ids) > limit:
            raise InvalidRequest(f"tenant {request.tenant!r} may send {limit} tokens", field="prompt")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        with self.lock:
            self.under_way[request.tenant] += 1

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        with self.lock:
            self.failed[type(error).__name__] += 1

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        with self.lock:
            self.under_way[request.tenant] -= 1


class Journal:
    """Tells of the last requests how they ended, and which error they met before."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.errors: dict[str, str] = {}
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=1000)

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        with self.lock:
            self.errors[request.request_id] = f"{type(error).__name__}: {error}"

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        with self.lock:
            line = {
                "id": request.request_id,
                "tokens": sum(len(output.token_ids) for output in result.outputs),
                "reasons": sorted({str(output.finish_reason) for output in result.outputs}),
                "error": self.errors.pop(request.request_id, None),
            }
            self.lines.append(line)


class HouseRules:
    """No prompt with a forbidden word, and no request that goes before all others but of the operator's own tenant."""

    WORDS = ("swordfish", "abracadabra")

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        for text in self.texts(submission.prompt):
            for word in self.WORDS:
                if word in text.casefold():
                    raise InvalidRequest(f"the prompt says {word!r}, which it must not", field="prompt")
        priority = getattr(submission.params, "priority", 0)
        if priority != 0 and submission.tenant != "operator":
            raise InvalidRequest("priority is for the operator alone", field="priority")

    def texts(self, prompt: Any) -> Iterator[str]:
        """Every text in a prompt, which may be one, a pair, or messages, whose contents may be parts."""
        if isinstance(prompt, str):
            yield prompt
        elif isinstance(prompt, Mapping):
            for value in prompt.values():
                yield from self.texts(value)
        elif isinstance(prompt, tuple | list):
            for value in prompt:
                yield from self.texts(value)
