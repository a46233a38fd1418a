"""Serves only what can be replayed, and keeps what a replay needs. A request that draws must bring its seed.

GUIDEWAY_REPLAY_JOURNAL may name a JSON file of settings: {"require_seed": true, "tasks": ["generate"], "keep": 1000,
"journal": "/var/log/replay.jsonl"}. Without the variable the defaults hold. A file that cannot be read refuses all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guideway.api import GenerationResult, InvalidRequest, Request, Submission, ValidationContext, hookimpl

LOGGER = logging.getLogger(__name__)
VARIABLE = "GUIDEWAY_REPLAY_JOURNAL"
DEFAULTS: dict[str, Any] = {"require_seed": True, "tasks": None, "keep": 1000, "journal": None}
MOST_RUNNING = 100_000


def settings() -> Mapping[str, Any]:
    """The operator's settings as they are now."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return DEFAULTS
    given = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(given, dict):
        raise ValueError("it holds no object")
    for name, value in given.items():
        if name not in DEFAULTS:
            raise ValueError(f"unknown setting {name!r}")
        right = {
            "require_seed": isinstance(value, bool),
            "tasks": value is None or (isinstance(value, list) and all(isinstance(task, str) for task in value)),
            "keep": isinstance(value, int) and not isinstance(value, bool) and value >= 0,
            "journal": value is None or isinstance(value, str),
        }[name]
        if not right:
            raise ValueError(f"{name} must not be {value!r}")
    return {**DEFAULTS, **given}


def settings_or_refuse() -> Mapping[str, Any]:
    try:
        return settings()
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"nothing is served: {VARIABLE} names no settings: {error}", field="params") from error


def digest(token_ids: tuple[int, ...]) -> str:
    """A name for some token ids, the same in every process."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def draws(params: Any) -> bool:
    temperature = params.temperature
    return isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature > 0


class ReplayJournal:
    """The hooks, and what they remember."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._records: deque[dict[str, Any]] = deque(maxlen=1000)

    @hookimpl
    def guideway_validate_submission(self, submission: Submission, context: ValidationContext) -> None:
        now = settings_or_refuse()
        if now["tasks"] is not None and submission.task not in now["tasks"]:
            raise InvalidRequest(f"task {submission.task!r} is not journaled, so it is not served", field="task")
        if submission.task == "generate" and now["require_seed"]:
            params = submission.params
            if draws(params) and params.seed is None:
                raise InvalidRequest("a request that draws must bring its seed", field="seed")

    @hookimpl
    def guideway_validate_request(self, request: Request, context: ValidationContext) -> None:
        settings_or_refuse()
        unknown = [name for name in request.params.modifiers if name not in context.modifiers]
        if unknown:
            raise InvalidRequest(f"a replay would miss the modifiers {', '.join(map(str, unknown))}", field="modifiers")
        strategy = getattr(request.params.constraint, "strategy", None)
        if strategy is not None and strategy not in context.grammars:
            raise InvalidRequest(f"a replay would miss the strategy {strategy!r}", field="constraint")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        record = {
            "id": request.request_id,
            "task": request.task,
            "seed": request.seed,
            "prompt": digest(request.prompt_token_ids),
            "modifiers": sorted(map(str, request.params.modifiers)),
            "error": None,
        }
        with self._lock:
            self._running[request.request_id] = record
            while len(self._running) > MOST_RUNNING:
                self._running.popitem(last=False)

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        with self._lock:
            record = self._running.get(request.request_id)
            if record is not None:
                record["error"] = f"{type(error).__name__}: {error}"

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        with self._lock:
            record = self._running.pop(request.request_id, None)
        if record is None:  # it started before this plugin did
            return
        record["outputs"] = [
            {"index": output.index, "tokens": digest(output.token_ids), "reason": str(output.finish_reason)}
            for output in result.outputs
        ]
        try:
            now = settings()
            with self._lock:
                self._records.append(record)
                while len(self._records) > now["keep"]:
                    self._records.popleft()
                if now["journal"] is not None:
                    with Path(now["journal"]).open("a", encoding="utf-8", errors="backslashreplace") as file:
                        file.write(json.dumps(record) + "\n")
        except Exception as error:  # a full disk ends no request
            LOGGER.warning("request %s is not journaled: %s", request.request_id, error)

    def replays(self, request_id: str) -> list[dict[str, Any]]:
        """Return what is remembered of a request."""
        with self._lock:
            return [dict(record) for record in self._records if record["id"] == request_id]
