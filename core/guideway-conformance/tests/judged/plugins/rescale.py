"""Scales some linear layers of a model by a factor that can be changed while it serves, and clamps what they give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from guideway.api import InvalidConfiguration, Worker, WorkerMixin, WorkerStep, hookimpl, parse_options
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    layers: tuple[int, ...] = (0,)
    """The linear layers, counted from 0 in the model's own order; its head is none of them."""
    factor: Annotated[float, Range(above=0, most=16)] = 1.0
    """At the start."""
    clamp: Annotated[float, Range(above=0, most=60_000)] = 30_000.0
    """The largest absolute output of these layers."""


class Rescale(WorkerMixin):
    contract = "1.0"
    name = "rescale"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._rescale_options = parse_options(Options, options, where="worker.rescale")
        if len(set(self._rescale_options.layers)) != len(self._rescale_options.layers):
            raise InvalidConfiguration("a layer is named twice", field="worker.rescale.layers")
        self._rescale_modules: list[Any] = []
        self._rescale_weights: list[torch.Tensor] = []
        self._rescale_handles: list[Any] = []
        self._rescale_factor = self._rescale_options.factor
        self._rescale_closed = False
        self._rescale_steps = 0

    def on_model_loaded(self, worker: Worker) -> None:
        head = worker.model.get_output_embeddings()
        linear = [
            module for module in worker.model.modules() if isinstance(module, torch.nn.Linear) and module is not head
        ]
        for index in self._rescale_options.layers:
            if not 0 <= index < len(linear):
                raise InvalidConfiguration(
                    f"there is no linear layer {index}: the model has {len(linear)}", field="worker.rescale.layers"
                )
        self._rescale_modules = [linear[index] for index in self._rescale_options.layers]
        self._rescale_weights = [module.weight.detach().clone() for module in self._rescale_modules]
        self._rescale_apply(self._rescale_factor)
        self._rescale_watch()

    def _rescale_apply(self, factor: float) -> None:
        with torch.no_grad():
            for module, weight in zip(self._rescale_modules, self._rescale_weights, strict=True):
                module.weight.copy_(weight * factor)
        self._rescale_factor = factor

    def _rescale_watch(self) -> None:
        for module in self._rescale_modules:
            self._rescale_handles.append(module.register_forward_hook(self._rescale_clamp))

    def _rescale_unwatch(self) -> None:
        while self._rescale_handles:
            self._rescale_handles.pop().remove()

    def _rescale_clamp(self, module: Any, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        most = self._rescale_options.clamp
        return output.clamp(-most, most)

    def after_step(self, step: WorkerStep) -> None:
        self._rescale_steps += 1

    def close(self) -> None:
        self._rescale_closed = True
        self._rescale_unwatch()
        self._rescale_apply(1.0)
        self._rescale_modules, self._rescale_weights = [], []

    def rescale_set(self, factor: float) -> float:
        """``engine.call_workers("rescale.rescale_set", 0.5)``: the factor from the next step on. Returns the last."""
        if not isinstance(factor, (int, float)) or not math.isfinite(factor) or not 0 < factor <= 16:
            raise ValueError(f"a factor is above 0 and at most 16, not {factor!r}")
        before = self._rescale_factor
        if not self._rescale_closed:
            self._rescale_apply(float(factor))
        return before

    def rescale_clamping(self, on: bool = True) -> bool:
        """Clamp outputs or not, from the next step on. Returns whether they are."""
        if bool(on) and not self._rescale_closed and not self._rescale_handles:
            self._rescale_watch()
        if not on:
            self._rescale_unwatch()
        return bool(self._rescale_handles)

    def rescale_report(self) -> dict[str, Any]:
        """Report what is in force here."""
        norms = [float(module.weight.detach().float().norm()) for module in self._rescale_modules]
        return {"factor": self._rescale_factor, "steps": self._rescale_steps, "norms": norms}


@hookimpl
def guideway_worker_mixin() -> type[WorkerMixin]:
    return Rescale
