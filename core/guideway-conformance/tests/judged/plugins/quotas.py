"""Hooks: a limit of tokens for each tenant, and a count of what is under way."""

from __future__ import annotations

import threading
from collections import Counter

from guideway.api import GenerationResult, InvalidRequest, Request, hookimpl
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
