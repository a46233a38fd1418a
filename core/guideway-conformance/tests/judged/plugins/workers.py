"""Worker mixins: one that looks for numbers that are too large, one that counts, and fails what is too long, and one
that tells how full steps are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api import SequencesFailed, Worker, WorkerMixin, WorkerStep, parse_options


@dataclass(frozen=True)
class Options:
    limit: float = 65504.0
    most_tokens: int = 1 << 20


@dataclass(frozen=True)
class NoOptions:
    pass


class Peak(WorkerMixin):
    contract = "1.0"
    name = "peak"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._peak_options = parse_options(Options, options, where="worker.peak")
        self._peak_hook: Any = None
        self._peak_of_step: Any = None
        self._peak_of_all: Any = None

    def on_model_loaded(self, worker: Worker) -> None:
        self._peak_hook = worker.model.get_output_embeddings().register_forward_pre_hook(self._peak_look)

    def before_step(self, step: WorkerStep) -> None:
        self._peak_of_step = None  # of a step that failed it is still here

    def _peak_look(self, module: Any, arguments: tuple[Any, ...]) -> None:
        found = arguments[0].detach().abs()
        self._peak_of_step = found.max() if found.numel() else None

    def after_step(self, step: WorkerStep) -> None:
        seen = [value for value in (self._peak_of_step, self._peak_of_all) if value is not None]
        self._peak_of_all = seen[0].maximum(seen[-1]) if seen else None

    def close(self) -> None:
        if self._peak_hook is not None:
            self._peak_hook.remove()
            self._peak_hook = None

    def peak_report(self) -> dict[str, float | bool]:
        largest = 0.0 if self._peak_of_all is None else float(self._peak_of_all)
        return {"largest": largest, "fits": largest <= self._peak_options.limit}


class Ledger(WorkerMixin):
    """Counts the tokens of each sequence, and ends those that take too many."""

    contract = "1.0"
    name = "ledger"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._ledger_options = parse_options(Options, options, where="worker.ledger")
        self._ledger_of: dict[str, int] = {}
        self._ledger_steps = 0
        self._ledger_rank = -1

    def on_model_loaded(self, worker: Worker) -> None:
        self._ledger_rank = worker.rank

    def after_step(self, step: WorkerStep) -> None:
        self._ledger_steps += 1
        share = step.num_tokens // step.num_sequences if step.num_sequences else 0
        for sequence_id in set(step.sequence_ids):
            self._ledger_of[sequence_id] = self._ledger_of.get(sequence_id, 0) + share
        over = tuple(
            sequence_id
            for sequence_id in dict.fromkeys(step.sequence_ids)
            if self._ledger_of[sequence_id] > self._ledger_options.most_tokens
        )
        if over:
            raise SequencesFailed("took more tokens than the ledger allows", sequence_ids=over)

    def ledger_report(self) -> dict[str, Any]:
        return {"steps": self._ledger_steps, "rank": self._ledger_rank, "tokens": dict(self._ledger_of)}


class Fullness(WorkerMixin):
    """A histogram of the tokens of a step, by powers of two, and how many steps ended without their logits."""

    contract = "1.0"
    name = "fullness"

    def __init__(self, options: Mapping[str, Any]) -> None:
        parse_options(NoOptions, options, where="worker.fullness")
        self._fullness_steps: dict[int, int] = {}
        self._fullness_open = False
        self._fullness_lost = 0

    def before_step(self, step: WorkerStep) -> None:
        self._fullness_lost += self._fullness_open
        self._fullness_open = True

    def after_step(self, step: WorkerStep) -> None:
        self._fullness_open = False
        size = step.num_tokens.bit_length()
        self._fullness_steps[size] = self._fullness_steps.get(size, 0) + 1

    def fullness_report(self) -> dict[str, Any]:
        return {"steps": dict(self._fullness_steps), "lost": self._fullness_lost}
