"""A measurement of a model's time, layer by layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api import UnsupportedCapability, Worker, WorkerMixin, WorkerStep, hookimpl, parse_options

REST = "(all else)"
WHOLE = "whole model"


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    each_layer: bool = True
    """True: a line for each decoder layer; False: one for all of them."""


@dataclass
class Part:
    """One line of the report."""

    name: str
    calls: int = 0
    nanoseconds: int = 0
    began: int = 0


class LayerTiming(WorkerMixin):
    """Measures embedding, decoder layers and head in CPU time of the worker's process, all threads together."""

    contract = "1.0"
    name = "layer_timing"

    def __init__(self, options: Mapping[str, Any]) -> None:
        # all mixins of a worker are one object, so the only attribute has the mixin's name, to avoid collisions
        self._layer_timing = Timing(parse_options(Options, options, where="worker.layer_timing"))

    def on_model_loaded(self, worker: Worker) -> None:
        if worker.device != "cpu":
            raise UnsupportedCapability(
                f"layer_timing measures models on device 'cpu' only, not on {worker.device!r}: where calls return "
                "before the work is done, a clock in the host's process says nothing",
                field="device",
            )
        self._layer_timing.watch(worker.model)

    def after_step(self, step: WorkerStep) -> None:
        self._layer_timing.steps += 1
        self._layer_timing.tokens += step.num_tokens

    def close(self) -> None:
        self._layer_timing.remove_hooks()

    def report(self) -> str:
        """Return a table of all steps since the start or the last `reset`."""
        return self._layer_timing.table()

    def reset(self) -> None:
        """Discard all measurements."""
        self._layer_timing.reset()


class Timing:
    """Hooks on the parts of a model, and their measurements."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.whole = Part(WHOLE)
        self.parts: dict[str, Part] = {}
        self.steps = 0
        self.tokens = 0
        self._remove: list[Callable[[], None]] = []

    def watch(self, model: Any) -> None:
        """Hook the model's decoder layers, and its embedding and head if the model names them, as models of
        ``transformers`` do; otherwise these count as the rest."""
        from torch.nn import ModuleList

        names = {module: name for name, module in model.named_modules()}
        # the decoder layers are the longest list of modules, whatever name the architecture gives it
        layers = max((module for module in names if isinstance(module, ModuleList)), key=len)
        self._hook_end(model, "get_input_embeddings", names)
        for layer in layers:
            self._hook(layer, self._part(names[layer] if self.options.each_layer else f"{names[layers]}.*"))
        self._hook_end(model, "get_output_embeddings", names)
        self._hook(model, self.whole)

    def _hook_end(self, model: Any, method: str, names: Mapping[Any, str]) -> None:
        if hasattr(model, method):
            end = getattr(model, method)()
            self._hook(end, self._part(names[end]))

    def _part(self, name: str) -> Part:
        return self.parts.setdefault(name, Part(name))

    def _hook(self, module: Any, part: Part) -> None:
        def begin(*_: object) -> None:
            part.began = time.process_time_ns()

        def end(*_: object) -> None:
            part.nanoseconds += time.process_time_ns() - part.began
            part.calls += 1

        self._remove.append(module.register_forward_pre_hook(begin).remove)
        self._remove.append(module.register_forward_hook(end).remove)

    def remove_hooks(self) -> None:
        while self._remove:
            self._remove.pop()()

    def reset(self) -> None:
        self.steps = self.tokens = 0
        for part in (self.whole, *self.parts.values()):
            part.calls = part.nanoseconds = 0

    def table(self) -> str:
        measured = sum(part.nanoseconds for part in self.parts.values())
        rest = Part(REST, self.whole.calls, self.whole.nanoseconds - measured)
        rows = [("layer", "calls", "total ms", "mean ms", "share")]
        for part in (*self.parts.values(), rest, self.whole):
            total = part.nanoseconds / 1e6
            share = part.nanoseconds / (self.whole.nanoseconds or 1)
            rows.append(
                (part.name, f"{part.calls}", f"{total:.1f}", f"{total / (part.calls or 1):.3f}", f"{share:.1%}")
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
            )
            for name, *cells in rows
        ]
        return "\n".join([f"{self.steps} steps, {self.tokens} tokens, processor time", *lines])


@hookimpl
def guideway_worker_mixin() -> type[WorkerMixin]:
    return LayerTiming
