"""An audit ledger: what each user's requests cost, with a quota for each user and day, and hours that cost nothing.

GUIDEWAY_LEDGER names a JSON file such as ``{"quota": 200000, "users": {"acme": 50000}, "free_hours": [22, 6]}``.
Without it, the defaults of `Policy` hold. A file that cannot be read refuses everybody.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guideway.api import (
    FinishReason,
    GenerationResult,
    InvalidRequest,
    LimitExceeded,
    Request,
    Submission,
    ValidationContext,
    hookimpl,
)

LOGGER = logging.getLogger(__name__)

RATES = {"generate": (1, 4), "embed": (1, 0), "rerank": (2, 0), "classify": (1, 0)}
"""Units for a token of the prompt and of the output, by task."""

SHARES = {FinishReason.INTERNAL_ERROR: 0.0, FinishReason.ABORT: 0.5}
"""The part of its price that a request costs which ended so; others cost all of it."""


@dataclass(frozen=True)
class Policy:
    """The options of the operator."""

    quota: int = 200_000
    users: Mapping[str, int] = field(default_factory=dict)
    free_hours: tuple[int, int] = (22, 6)
    max_bytes: int = 1 << 16

    @staticmethod
    def read() -> Policy:
        """Anew for each request, so that an operator can change the file of a running host."""
        name = os.environ.get("GUIDEWAY_LEDGER")
        if not name:
            return Policy()
        try:
            found = json.loads(Path(name).read_text("utf-8"))
            first, last = found.get("free_hours", (22, 6))
            users = {str(user): int(quota) for user, quota in found.get("users", {}).items()}
            return Policy(int(found.get("quota", 200_000)), users, (int(first), int(last)))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InvalidRequest("nobody is served: the ledger's policy cannot be read", field="tenant") from error

    def is_free(self, hour: int) -> bool:
        """Return whether nothing is charged at this hour; the hours may pass midnight."""
        first, last = self.free_hours
        return first <= hour < last if first <= last else hour >= first or hour < last


@dataclass
class Entry:
    """A request under way."""

    user: str
    day: int
    free: bool
    reserved: int
    failure: str = ""


class Ledger:
    """The hooks, and the books they keep."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Entry] = {}
        self._spent: dict[tuple[int, str], int] = {}

    @hookimpl
    def guideway_validate_submission(self, submission: Submission, context: ValidationContext) -> None:
        size = _size(submission.prompt)
        for tool in submission.tools:
            size += _size(({"type": "function", **tool},))
        if size > Policy.read().max_bytes:
            raise LimitExceeded(f"the prompt has {size} bytes, and {Policy.max_bytes} are served", field="prompt")
        if not submission.tenant.isprintable():
            raise InvalidRequest("a user's name has characters that cannot be printed", field="tenant")

    @hookimpl
    def guideway_validate_request(self, request: Request, context: ValidationContext) -> None:
        policy, now = Policy.read(), self._clock()
        price = _most(request, context.max_model_len)
        day = now.toordinal()
        with self._lock:
            used = sum(units for (when, user), units in self._spent.items() if when == day and user == request.tenant)
            used += sum(entry.reserved for entry in self._open.values() if entry.user == request.tenant)
        quota = policy.users.get(request.tenant, policy.quota)
        if not policy.is_free(now.hour) and used + price > quota:
            left = max(0, quota - used)
            raise LimitExceeded(
                f"it may cost {price} units, and {left} of today's {quota} are left; ask for fewer tokens",
                field="max_tokens",
            )

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        entry = self._entry(request)
        with self._lock:
            self._open[request.request_id] = entry

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        plugin = getattr(error, "plugin", "the host")
        with self._lock:
            if request.request_id in self._open:
                self._open[request.request_id].failure = f"{plugin}: {type(error).__name__}"

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        for_prompt, for_output = RATES.get(request.task, (1, 4))
        made = sum(len(output.token_ids) for output in result.outputs)
        price = len(request.prompt_token_ids) * for_prompt + made * for_output
        price = round(price * SHARES.get(result.finish_reason, 1.0))
        with self._lock:
            entry = self._open.pop(request.request_id, None) or self._entry(request)
            cost = 0 if entry.free else price
            account = entry.day, entry.user
            self._spent[account] = self._spent.get(account, 0) + cost
            for old in [key for key in self._spent if key[0] < entry.day - 1]:
                del self._spent[old]
        line = {
            "request": request.request_id,
            "user": request.tenant,
            "units": cost,
            "ended": str(result.finish_reason),
            "failure": entry.failure,
        }
        LOGGER.info("%s", json.dumps(line))

    def _entry(self, request: Request) -> Entry:
        now = self._clock()
        try:
            free = Policy.read().is_free(now.hour)
        except InvalidRequest:
            free = False  # the file went away after the request had been admitted
        return Entry(request.tenant, now.toordinal(), free, 0 if free else _most(request, 0))


def _most(request: Request, context_length: int) -> int:
    """The units that a request may cost at most."""
    for_prompt, for_output = RATES.get(request.task, (1, 4))
    length = len(request.prompt_token_ids)
    if request.task != "generate":
        return length * for_prompt
    most = request.params.max_tokens
    if most is None:
        most = max(0, context_length - length)
    return length * for_prompt + most * request.params.num_sequences * for_output


def _size(prompt: Any) -> int:
    """The bytes of a prompt of any form, four for each token id."""
    if prompt is None:
        return 0
    if isinstance(prompt, str):
        return len(prompt.encode("utf-8", "surrogatepass"))
    if isinstance(prompt, int):
        return 4
    if isinstance(prompt, Mapping):
        return sum(_size(str(key)) + _size(value) for key, value in prompt.items())
    if isinstance(prompt, tuple | list):
        return sum(map(_size, prompt))
    return len(repr(prompt))
