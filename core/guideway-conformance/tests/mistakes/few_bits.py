"""Rounds weights to a few bits and back, to simulate a quantized model; the original weights can be restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from guideway.api import Worker, WorkerMixin, WorkerStep, parse_options
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    bits: Annotated[int, Range(2, 8)] = 8
    at_start: bool = False
    """Round when the model is loaded; False: when `fakequant_apply` is called."""
    only: tuple[str, ...] = ()
    """Parts of names of layers, such as ``mlp``; empty: all linear layers."""
    by: Literal["row", "tensor"] = "row"
    """The weights that share a scale."""


class FakeQuant(WorkerMixin):
    contract = "1.0"
    name = "fakequant"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._fakequant_options = parse_options(Options, options, where="worker.fakequant")
        self._fakequant_layers: dict[str, Any] = {}
        self._fakequant_kept: dict[str, Any] = {}
        self._fakequant_errors: dict[str, float] = {}
        self._fakequant_bits: int | None = None
        self._fakequant_tokens: Counter[str] = Counter()
        self._fakequant_mode = "full"
        self._fakequant_most = 0
        self._fakequant_open: tuple[str, ...] = ()

    def on_model_loaded(self, worker: Worker) -> None:
        import torch

        only = self._fakequant_options.only
        for name, module in worker.model.named_modules():
            if isinstance(module, torch.nn.Linear) and (not only or any(part in name for part in only)):
                self._fakequant_layers[name] = module
        if self._fakequant_options.at_start:
            self.fakequant_apply(self._fakequant_options.bits)

    def before_step(self, step: WorkerStep) -> None:
        self._fakequant_mode = "full" if self._fakequant_bits is None else f"{self._fakequant_bits} bits"
        self._fakequant_open = tuple(step.sequence_ids)

    def after_step(self, step: WorkerStep) -> None:
        self._fakequant_tokens[self._fakequant_mode] += step.num_tokens
        self._fakequant_most = max(self._fakequant_most, len(set(self._fakequant_open)))
        self._fakequant_open = ()

    def close(self) -> None:
        self.fakequant_restore()
        self._fakequant_layers = {}

    def fakequant_apply(self, bits: int | None = None) -> dict[str, float]:
        """Round the loaded weights to `bits`; return the largest error of each layer."""
        import torch

        bits = self._fakequant_options.bits if bits is None else bits
        if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 8:
            raise ValueError(f"bits must be from 2 to 8, not {bits!r}")
        if not self._fakequant_layers:
            return {}
        self.fakequant_restore()
        with torch.no_grad():
            for name, layer in self._fakequant_layers.items():
                before = layer.weight.detach().clone()
                rounded = self._fakequant_rounded(before.float(), 2 ** (bits - 1) - 1)
                self._fakequant_kept[name] = before
                layer.weight.copy_(rounded)
                self._fakequant_errors[name] = float((rounded - before.float()).abs().max()) if before.numel() else 0.0
        self._fakequant_bits = bits
        return dict(self._fakequant_errors)

    def _fakequant_rounded(self, weight: Any, levels: int) -> Any:
        largest = weight.abs().amax(1, keepdim=True) if self._fakequant_options.by == "row" else weight.abs().max()
        scale = largest.clamp(min=1e-12) / levels
        return (weight / scale).round().clamp(-levels, levels) * scale

    def fakequant_restore(self) -> int:
        """Restore the loaded weights; return the number of layers."""
        if not self._fakequant_kept:
            return 0
        import torch

        with torch.no_grad():
            for name, weight in reversed(self._fakequant_kept.items()):  # a layer may share another's weights
                self._fakequant_layers[name].weight.copy_(weight)
        count = len(self._fakequant_kept)
        self._fakequant_kept = {}
        self._fakequant_errors = {}
        self._fakequant_bits = None
        return count

    def fakequant_report(self) -> dict[str, Any]:
        """Return the report, for ``engine.call_workers("fakequant.fakequant_report")``."""
        return {
            "bits": self._fakequant_bits,
            "layers": sorted(self._fakequant_layers),
            "errors": dict(self._fakequant_errors),
            "tokens": dict(self._fakequant_tokens),
            "most_sequences": self._fakequant_most,
        }
