"""Worker mixins and plugins for tests of the worker, importable by the processes it runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guideway.api import SequencesFailed, WorkerMixin, hookimpl


class Recorder(WorkerMixin):
    """Records its calls; fails or exits if its options ask for that."""

    contract = "1.0"
    name = "recorder"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._heard: list[Any] = []
        self._ids: list[list[str]] = []
        self._blamed: tuple[str, list[str]] | None = None
        self._rank = 0

    def on_model_loaded(self, worker: Any) -> None:
        self._heard.append(("loaded", type(worker.model).__name__, worker.device, worker.rank, worker.num_workers))

        self._rank = worker.rank

    def before_step(self, step: Any) -> None:
        self._heard.append(("before", step.num_sequences, step.num_tokens, step.num_rows))
        self._ids.append(list(step.sequence_ids))
        self._maybe("fail_before")
        self._blame("before", step)
        if self._options.get("die_always"):
            os._exit(4)

    def after_step(self, step: Any) -> None:
        self._heard.append(("after", step.num_tokens))
        self._maybe("fail_after")
        self._blame("after", step)

    def _blame(self, phase: str, step: Any) -> None:
        """Raise `SequencesFailed` once for the sequences given to `blame`, if they are in the step."""
        if self._blamed and self._blamed[0] == phase and (ids := set(self._blamed[1]) & set(step.sequence_ids)):
            self._blamed = None
            raise SequencesFailed("not today", sequence_ids=sorted(ids))

    def blame(self, phase: str, sequence_ids: list[str], rank: int) -> None:
        self._blamed = (phase, sequence_ids) if rank == self._rank else None

    def ids(self) -> list[list[str]]:
        return self._ids

    def _maybe(self, option: str) -> None:
        if self._options.get(option) == sum(1 for what, *_ in self._heard if what == "before"):
            raise ValueError(option)

    def heard(self) -> list[Any]:
        return self._heard

    def process(self) -> int:
        return os.getpid()

    def fail(self, message: str) -> None:
        raise KeyError(message)

    def close(self) -> None:
        if path := self._options.get("closed"):
            Path(path).touch()


@hookimpl
def guideway_worker_mixin(name: str) -> type[WorkerMixin]:
    return Recorder
