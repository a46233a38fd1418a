"""Rounds the weights of linear layers as int8 or int4 would hold them, to see what a model loses by it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from guideway.api import Worker, WorkerMixin, WorkerStep, parse_options
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    bits: Annotated[int, Range(2, 16)] = 8
    after_steps: Annotated[int, Range(0)] = 0
    """Serve so many steps with the model's own weights first."""
    skip: tuple[str, ...] = ("lm_head",)
    """Layers whose names end with one of these keep their weights."""
    keep: bool = True
    """Keep the weights as they were, for `fakequant_restore` and for the end."""


class FakeQuant(WorkerMixin):
    contract = "1.0"
    name = "fakequant"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._fakequant_options = parse_options(Options, options, where="worker.fakequant")
        self._fakequant_model: Any = None
        self._fakequant_worker = (0, 1)
        self._fakequant_kept: dict[str, Any] = {}
        self._fakequant_errors: dict[str, float] = {}
        self._fakequant_bits: int | None = None
        self._fakequant_steps = 0
        self._fakequant_tokens: dict[int | None, int] = {}  # by bits
        self._fakequant_began: float | None = None
        self._fakequant_seconds = 0.0
        self._fakequant_lost_steps = 0

    def on_model_loaded(self, worker: Worker) -> None:
        self._fakequant_model = worker.model
        self._fakequant_worker = (worker.rank, worker.num_workers)
        if self._fakequant_options.after_steps == 0:
            self._fakequant_round(self._fakequant_options.bits)

    def _fakequant_layers(self) -> Iterator[tuple[str, Any]]:
        """Each weight once: a head may share the embedding's, which stays as it is."""
        import torch

        model = self._fakequant_model
        shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and id(module.weight) not in shared:
                if not name.endswith(self._fakequant_options.skip):
                    yield name, module.weight
                shared.add(id(module.weight))

    def _fakequant_round(self, bits: int) -> None:
        import torch

        most = 2 ** (bits - 1) - 1
        with torch.no_grad():
            for name, weight in self._fakequant_layers():
                if self._fakequant_options.keep and name not in self._fakequant_kept:
                    self._fakequant_kept[name] = weight.detach().to("cpu", copy=True)
                original = self._fakequant_kept.get(name, weight).to(weight.device, torch.float32)
                scale = original.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / most
                rounded = (original / scale).round().clamp(-most, most) * scale
                self._fakequant_errors[name] = float((rounded - original).norm() / original.norm().clamp_min(1e-12))
                weight.copy_(rounded)  # in the type that the weight has
        self._fakequant_bits = bits

    def before_step(self, step: WorkerStep) -> None:
        if self._fakequant_began is not None:
            self._fakequant_lost_steps += 1
        due = self._fakequant_options.after_steps
        if due and self._fakequant_steps == due and self._fakequant_bits is None:
            self._fakequant_round(self._fakequant_options.bits)
        self._fakequant_began = time.perf_counter()

    def after_step(self, step: WorkerStep) -> None:
        if self._fakequant_began is not None:
            self._fakequant_seconds += time.perf_counter() - self._fakequant_began
        self._fakequant_began = None
        self._fakequant_steps += 1
        bits = self._fakequant_bits
        self._fakequant_tokens[bits] = self._fakequant_tokens.get(bits, 0) + step.num_tokens

    def fakequant_set(self, bits: int = 8) -> bool:
        """Round to other bits, from the weights as they were; False if those were not kept."""
        if self._fakequant_model is None or not 2 <= bits <= 16:
            return False
        if self._fakequant_bits is not None and not self._fakequant_options.keep:
            return False
        self._fakequant_round(bits)
        return True

    def fakequant_restore(self) -> int:
        """Give the layers the weights that they had, and say how many have them."""
        import torch

        if self._fakequant_model is None:
            return 0
        restored = 0
        with torch.no_grad():
            for name, weight in self._fakequant_layers():
                if name in self._fakequant_kept:
                    weight.copy_(self._fakequant_kept[name])
                    restored += 1
        if restored:
            self._fakequant_bits = None
            self._fakequant_errors = {}
        return restored

    def fakequant_report(self) -> dict[str, Any]:
        """Relative errors of the layers, and what was served with which bits."""
        rank, workers = self._fakequant_worker
        return {
            "rank": rank,
            "num_workers": workers,
            "bits": self._fakequant_bits,
            "errors": dict(self._fakequant_errors),
            "steps": self._fakequant_steps,
            "lost_steps": self._fakequant_lost_steps,
            "tokens": dict(self._fakequant_tokens),
            "seconds": self._fakequant_seconds,
        }

    def close(self) -> None:
        self.fakequant_restore()
        self._fakequant_kept.clear()
        self._fakequant_model = None
