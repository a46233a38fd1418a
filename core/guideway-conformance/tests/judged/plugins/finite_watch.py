"""Watches the outputs of a model's layers: where numbers stop being finite, and how large they become."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from guideway.api import SequencesFailed, Worker, WorkerMixin, WorkerStep, parse_options

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    action: Literal["fail", "report"] = "fail"
    layers: str = "Linear"
    """The class names to watch, with commas."""
    limit: float = float("inf")
    """An absolute value above this counts as not finite."""
    every: int = 1
    """Look at each so manieth step."""


class FiniteWatch(WorkerMixin):
    contract = "1.0"
    name = "finite_watch"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._finite_watch_options = parse_options(Options, options, where="worker.finite_watch")
        self._finite_watch_hooks: list[Any] = []
        self._finite_watch_model: Any = None
        self._finite_watch_device = ""
        self._finite_watch_rank = 0
        self._finite_watch_step: dict[str, Any] = {}  # by layer the largest of this step, on the device
        self._finite_watch_peaks: dict[str, Any] = {}  # by layer the largest of all steps that ended
        self._finite_watch_first: tuple[str, int] | None = None
        self._finite_watch_steps = 0
        self._finite_watch_failed_steps = 0
        self._finite_watch_open = False  # a step began and has not ended
        self._finite_watch_looking = False

    def on_model_loaded(self, worker: Worker) -> None:
        self._finite_watch_model = worker.model
        self._finite_watch_device = str(worker.device)
        self._finite_watch_rank = worker.rank
        self._finite_watch_install()

    def _finite_watch_install(self) -> None:
        names = set(self._finite_watch_options.layers.split(","))
        for name, module in self._finite_watch_model.named_modules():
            if type(module).__name__ in names:
                hook = module.register_forward_hook(self._finite_watch_hook(name or "model"))
                self._finite_watch_hooks.append(hook)

    def _finite_watch_hook(self, name: str) -> Any:
        def look(module: Any, arguments: Any, output: Any) -> None:
            if not self._finite_watch_looking:
                return
            first = output[0] if isinstance(output, tuple) else output
            if not first.numel():
                return
            largest = first.detach().abs().amax().float()  # NaN if any is; a copy, never a view
            seen = self._finite_watch_step.get(name)
            self._finite_watch_step[name] = largest if seen is None else largest.maximum(seen)

        return look

    def before_step(self, step: WorkerStep) -> None:
        if self._finite_watch_open:  # the one before failed in its forward pass
            self._finite_watch_failed_steps += 1
        self._finite_watch_open = True
        self._finite_watch_step = {}
        self._finite_watch_looking = self._finite_watch_steps % max(self._finite_watch_options.every, 1) == 0

    def after_step(self, step: WorkerStep) -> None:
        self._finite_watch_open = False
        self._finite_watch_looking = False
        self._finite_watch_steps += 1
        found, self._finite_watch_step = self._finite_watch_step, {}
        if not found:
            return
        import torch

        largest = torch.stack(list(found.values())).cpu().tolist()  # one wait for the device, not one a layer
        limit = self._finite_watch_options.limit
        bad = [
            name for name, value in zip(found, largest, strict=True) if not (value <= limit and value < float("inf"))
        ]
        for name, value in zip(found, largest, strict=True):
            if name not in bad:
                self._finite_watch_peaks[name] = max(value, self._finite_watch_peaks.get(name, 0.0))
        if not bad:
            return
        if self._finite_watch_first is None:
            self._finite_watch_first = (bad[0], self._finite_watch_steps)
        LOGGER.warning("worker %d: %s gave numbers that are not finite", self._finite_watch_rank, bad[0])
        if self._finite_watch_options.action == "fail" and step.sequence_ids:
            names = tuple(dict.fromkeys(step.sequence_ids))  # companions have the name of their sequence
            raise SequencesFailed(f"{bad[0]} gave numbers that are not finite", sequence_ids=names)

    def finite_watch_report(self) -> dict[str, Any]:
        """By layer the largest number so far, and the first layer and step where one was not finite."""
        return {
            "rank": self._finite_watch_rank,
            "device": self._finite_watch_device,
            "steps": self._finite_watch_steps,
            "failed_steps": self._finite_watch_failed_steps,
            "first": self._finite_watch_first,
            "peaks": dict(self._finite_watch_peaks),
        }

    def finite_watch_pause(self) -> bool:
        """Take the hooks away; True if there were any."""
        hooks, self._finite_watch_hooks = self._finite_watch_hooks, []
        for hook in hooks:
            hook.remove()
        return bool(hooks)

    def finite_watch_resume(self) -> int:
        """Watch again, and say how many layers."""
        if self._finite_watch_model is not None and not self._finite_watch_hooks:
            self._finite_watch_install()
        return len(self._finite_watch_hooks)

    def close(self) -> None:
        self.finite_watch_pause()
        self._finite_watch_model = None
        self._finite_watch_step = {}
