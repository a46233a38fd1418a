"""A ledger of who used how many tokens, and what a tenant may have at once.

GUIDEWAY_USAGE_LEDGER names the file that gets a JSON line for each request that ended. GUIDEWAY_USAGE_LEDGER_CAPS names
a JSON file, ``{"acme": 4, "*": 32}``: the most requests of a tenant that are under way at once.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from guideway.api import (
    FinishReason,
    GenerationResult,
    InvalidRequest,
    LimitExceeded,
    Request,
    hookimpl,
)

LOGGER = logging.getLogger(__name__)
LEDGER = "GUIDEWAY_USAGE_LEDGER"
CAPS = "GUIDEWAY_USAGE_LEDGER_CAPS"


@dataclass
class Entry:
    """A request under way."""

    tenant: str
    began: float
    failure: str | None = None


def read_caps() -> dict[str, int]:
    """The caps of tenants; 32 for each if the operator set no file."""
    path = os.environ.get(CAPS)
    if not path:
        return {"*": 32}
    try:
        caps = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(caps, dict) or any(type(cap) is not int or cap < 0 for cap in caps.values()):
            raise ValueError("caps are whole numbers by tenant")
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"nobody is served: {CAPS} names no file of caps that can be read") from error
    return caps


class UsageLedger:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Entry] = {}
        self._spent: Counter[str] = Counter()

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        caps = read_caps()
        cap = caps.get(request.tenant, caps.get("*"))
        if cap is None:
            return
        if cap == 0:
            raise InvalidRequest(f"tenant {request.tenant!r} is not served here", field="tenant")
        with self._lock:
            running = sum(entry.tenant == request.tenant for entry in self._open.values())
        if running >= cap:
            raise LimitExceeded(f"tenant {request.tenant!r} has {running} requests under way", field="tenant")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        entry = Entry(request.tenant, time.monotonic())
        with self._lock:
            self._open[request.request_id] = entry

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        what = type(error).__name__
        with self._lock:
            entry = self._open.get(request.request_id)
            if entry is not None:
                entry.failure = what

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        made = sum(len(output.token_ids) for output in result.outputs)
        with self._lock:
            entry = self._open.pop(request.request_id, None)
            self._spent[request.tenant] += len(request.prompt_token_ids) + made
            spent = self._spent[request.tenant]
        line = {
            "request": request.request_id,
            "tenant": request.tenant,
            "task": request.task,
            "prompt_tokens": len(request.prompt_token_ids),
            "output_tokens": made,
            "tenant_total": spent,
            "reason": str(result.finish_reason),
        }
        if entry is not None:
            line["seconds"] = round(time.monotonic() - entry.began, 3)
            line["failure"] = entry.failure
        if result.finish_reason is FinishReason.INTERNAL_ERROR and result.error is not None:
            line["error"] = type(result.error).__name__
        self._write(line)

    def _write(self, line: dict[str, object]) -> None:
        path = os.environ.get(LEDGER)
        if not path:
            return
        text = json.dumps(line) + "\n"
        try:
            with self._lock, Path(path).open("a", encoding="utf-8") as ledger:
                ledger.write(text)
        except OSError as error:
            LOGGER.warning("the ledger lacks a request: %s", error)


PLUGIN = UsageLedger()
