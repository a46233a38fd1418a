"""Watches the numbers that enter a model's head: ends the sequences of a step in which one is not finite."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from guideway.api import SequencesFailed, Worker, WorkerMixin, WorkerStep, parse_options
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    end: bool = True
    """End the sequences; False: only count."""
    window: Annotated[int, Range(1, 4096)] = 32
    """The number of steps whose peaks are kept."""
    patience: Annotated[int, Range(0)] = 0
    """So many bad steps in a row are let pass."""


class NanWatch(WorkerMixin):
    contract = "1.0"
    name = "nanwatch"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._nanwatch_options = parse_options(Options, options, where="worker.nanwatch")
        self._nanwatch_handle: Any = None
        self._nanwatch_head: Any = None
        self._nanwatch_where = ""
        self._nanwatch_finite: list[Any] = []
        self._nanwatch_top: list[Any] = []
        self._nanwatch_peaks: deque[float] = deque(maxlen=self._nanwatch_options.window)
        self._nanwatch_steps = 0
        self._nanwatch_rows = 0
        self._nanwatch_bad = 0
        self._nanwatch_row = 0

    def on_model_loaded(self, worker: Worker) -> None:
        self._nanwatch_where = f"worker {worker.rank + 1} of {worker.num_workers} on {worker.device}"
        self._nanwatch_head = worker.model.get_output_embeddings()
        self.nanwatch_resume()

    def before_step(self, step: WorkerStep) -> None:
        self._nanwatch_finite = []  # what a step that failed left behind
        self._nanwatch_top = []

    def _nanwatch_look(self, module: Any, arguments: tuple[Any, ...]) -> None:
        hidden = arguments[0].detach()
        if hidden.numel():
            self._nanwatch_finite.append(hidden.isfinite().all())
            self._nanwatch_top.append(hidden.abs().max())

    def after_step(self, step: WorkerStep) -> None:
        self._nanwatch_steps += 1
        self._nanwatch_rows += step.num_rows
        bad = not all(bool(flag) for flag in self._nanwatch_finite)
        if self._nanwatch_top and not bad:
            self._nanwatch_peaks.append(max(float(top) for top in self._nanwatch_top))
        self._nanwatch_row = self._nanwatch_row + 1 if bad else 0
        if not bad:
            return
        self._nanwatch_bad += 1
        names = tuple(dict.fromkeys(step.sequence_ids))
        if names and self._nanwatch_options.end and self._nanwatch_row > self._nanwatch_options.patience:
            raise SequencesFailed(
                f"{self._nanwatch_where}: a number of {step.num_tokens} tokens is not finite", sequence_ids=names
            )

    def close(self) -> None:
        self.nanwatch_pause()
        self._nanwatch_head = None
        self._nanwatch_finite = []
        self._nanwatch_top = []

    def nanwatch_pause(self) -> bool:
        """Stop looking; tells whether it looked."""
        looked = self._nanwatch_handle is not None
        if looked:
            self._nanwatch_handle.remove()
            self._nanwatch_handle = None
        return looked

    def nanwatch_resume(self) -> bool:
        """Look again; nothing happens where it looks already, or the model is gone."""
        if self._nanwatch_handle is None and self._nanwatch_head is not None:
            self._nanwatch_handle = self._nanwatch_head.register_forward_pre_hook(self._nanwatch_look)
        return self._nanwatch_handle is not None

    def nanwatch_report(self) -> dict[str, Any]:
        """``engine.call_workers("nanwatch.nanwatch_report")``"""
        peaks = list(self._nanwatch_peaks)
        return {
            "steps": self._nanwatch_steps,
            "rows": self._nanwatch_rows,
            "bad": self._nanwatch_bad,
            "peaks": peaks,
            "largest": max(peaks, default=0.0),
        }
