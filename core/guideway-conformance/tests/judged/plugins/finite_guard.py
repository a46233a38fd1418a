"""Ends sequences whose logits are not finite, or too large, a few steps in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from guideway.api import SequencesFailed, Worker, WorkerMixin, WorkerStep, hookimpl, parse_options
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    limit: Annotated[float, Range(above=0)] = 1e6
    """The largest absolute logit that is taken for one."""
    grace: Annotated[int, Range(0, 1000)] = 0
    """So many bad steps in a row a sequence may have."""


class FiniteGuard(WorkerMixin):
    contract = "1.0"
    name = "finite_guard"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._finite_guard_options = parse_options(Options, options, where="worker.finite_guard")
        self._finite_guard_handle: Any = None
        self._finite_guard_bad: torch.Tensor | None = None
        self._finite_guard_largest: torch.Tensor | None = None
        self._finite_guard_strikes: dict[str, int] = {}
        self._finite_guard_ended = 0
        self._finite_guard_rank = 0

    def on_model_loaded(self, worker: Worker) -> None:
        self._finite_guard_rank = worker.rank
        head = worker.model.get_output_embeddings()
        self._finite_guard_handle = head.register_forward_hook(self._finite_guard_look)

    def _finite_guard_look(self, module: Any, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        rows = output.detach().reshape(-1, output.shape[-1]).float()
        if rows.shape[0] == 0:
            self._finite_guard_bad = None
            return
        top = rows.abs().amax(dim=1)
        self._finite_guard_bad = ~(top <= self._finite_guard_options.limit)
        largest = torch.nan_to_num(top, nan=0.0, posinf=0.0).max()
        known = self._finite_guard_largest
        self._finite_guard_largest = largest if known is None else torch.maximum(known, largest)

    def before_step(self, step: WorkerStep) -> None:
        self._finite_guard_bad = None  # what a step that failed has left

    def after_step(self, step: WorkerStep) -> None:
        bad, self._finite_guard_bad = self._finite_guard_bad, None
        if bad is None or step.num_rows == 0 or step.num_sequences == 0:
            return
        ids = list(step.sequence_ids)
        flags = bad.tolist()
        if len(flags) != len(ids):  # rows that are not one of each sequence: nobody can tell whose they are
            flags = [any(flags)] * len(ids)
        strikes = self._finite_guard_strikes
        worst: dict[str, bool] = {}
        for name, flag in zip(ids, flags, strict=True):
            worst[name] = worst.get(name, False) or flag
        failed = []
        for name, flag in worst.items():
            if not flag:
                strikes.pop(name, None)
                continue
            strikes[name] = strikes.get(name, 0) + 1
            if strikes[name] > self._finite_guard_options.grace:
                failed.append(name)
        while len(strikes) > 4096:  # those that left without a word
            strikes.pop(next(iter(strikes)))
        if failed:
            for name in failed:
                strikes.pop(name, None)
            self._finite_guard_ended += len(failed)
            raise SequencesFailed("the model's logits are not finite", sequence_ids=tuple(failed))

    def close(self) -> None:
        handle, self._finite_guard_handle = self._finite_guard_handle, None
        if handle is not None:
            handle.remove()

    def finite_guard_report(self) -> dict[str, float | int]:
        """``engine.call_workers("finite_guard.finite_guard_report")``"""
        largest = self._finite_guard_largest
        return {
            "rank": self._finite_guard_rank,
            "ended": self._finite_guard_ended,
            "largest": 0.0 if largest is None else float(largest),
        }


@hookimpl
def guideway_worker_mixin() -> type[WorkerMixin]:
    return FiniteGuard
