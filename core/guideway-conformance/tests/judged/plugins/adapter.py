"""A low-rank adapter on the head of a model: it can be switched and merged, and a checksum tells the weights apart."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from guideway.api import InvalidConfiguration, Worker, WorkerMixin, WorkerStep, hookimpl, parse_options
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    file: str = ""
    """A NumPy archive with the arrays ``down`` and ``up``; none: random ones, to try it out."""
    dimension: Annotated[int, Range(1)] = 4
    scale: float = 0.5
    seed: Annotated[int, Range(0)] = 0
    enabled: bool = True


class Adapter(WorkerMixin):
    """Adds ``scale * up(down(hidden))`` to the logits while it is switched on."""

    contract = "1.0"
    name = "adapter"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._adapter_options = parse_options(Options, options, where="worker.adapter")
        self._adapter_head: Any = None
        self._adapter_model: Any = None
        self._adapter_down: Any = None
        self._adapter_up: Any = None
        self._adapter_hook: Any = None
        self._adapter_original: Any = None
        self._adapter_on = self._adapter_options.enabled
        self._adapter_steps = {True: 0, False: 0}
        self._adapter_largest = 0.0

    def on_model_loaded(self, worker: Worker) -> None:
        import torch

        self._adapter_model = worker.model
        self._adapter_head = worker.model.get_output_embeddings()
        weight = self._adapter_head.weight
        down, up = self._adapter_arrays(tuple(weight.shape))
        self._adapter_down = torch.from_numpy(down).to(weight.device, weight.dtype)
        self._adapter_up = torch.from_numpy(up).to(weight.device, weight.dtype)
        self._adapter_attach(self._adapter_on)

    def _adapter_arrays(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        wide, narrow = shape
        options = self._adapter_options
        if not options.file:
            draw = np.random.default_rng(options.seed)
            sizes = (options.dimension, narrow), (wide, options.dimension)
            down, up = (draw.normal(size=size).astype(np.float32) / size[1] ** 0.5 for size in sizes)
            return down, up
        try:
            with np.load(Path(options.file), allow_pickle=False) as found:
                down, up = np.float32(found["down"]), np.float32(found["up"])
        except (OSError, KeyError, ValueError) as error:
            raise InvalidConfiguration(
                f"{options.file!r} is no adapter: {error}", field="worker.adapter.file"
            ) from error
        if down.shape[1:] != (narrow,) or up.shape[:1] != (wide,) or up.shape[1:] != down.shape[:1]:
            raise InvalidConfiguration(f"{options.file!r} is for another model", field="worker.adapter.file")
        return down, up

    def _adapter_attach(self, on: bool) -> None:
        if on and self._adapter_hook is None and self._adapter_head is not None:
            self._adapter_hook = self._adapter_head.register_forward_hook(self._adapter_add)
        if not on and self._adapter_hook is not None:
            self._adapter_hook.remove()
            self._adapter_hook = None

    def _adapter_add(self, module: Any, arguments: tuple[Any, ...], output: Any) -> Any:
        change = arguments[0] @ self._adapter_down.T @ self._adapter_up.T * self._adapter_options.scale
        if change.numel():
            self._adapter_largest = max(self._adapter_largest, float(change.detach().abs().max()))
        return output + change

    def before_step(self, step: WorkerStep) -> None:
        self._adapter_steps[self._adapter_on] += 1

    def close(self) -> None:
        self.adapter_unmerge()
        self._adapter_attach(False)
        self._adapter_head = self._adapter_model = None

    def adapter_toggle(self, on: bool | None = None) -> bool:
        """Switch it on or off, None: to what it is not; from the next step on. Returns what it is now."""
        self.adapter_unmerge()
        self._adapter_on = not self._adapter_on if on is None else on
        self._adapter_attach(self._adapter_on)
        return self._adapter_on

    def adapter_merge(self) -> bool:
        """Put it into the weights, where it costs nothing. False if it is there already."""
        import torch

        if self._adapter_original is not None or self._adapter_head is None:
            return False
        self._adapter_attach(False)
        with torch.no_grad():
            weight = self._adapter_head.weight
            merged = weight + self._adapter_options.scale * self._adapter_up @ self._adapter_down
            self._adapter_original = weight
            self._adapter_head.weight = torch.nn.Parameter(merged, requires_grad=weight.requires_grad)
        return True

    def adapter_unmerge(self) -> bool:
        """Take it out of the weights again. False if it is not there."""
        if self._adapter_original is None:
            return False
        self._adapter_head.weight = self._adapter_original
        self._adapter_original = None
        self._adapter_attach(self._adapter_on)
        return True

    def adapter_report(self) -> dict[str, Any]:
        """Tell whether it is on, in how many steps it was and was not, and its largest change of a logit."""
        steps = self._adapter_steps
        return {"on": self._adapter_on, "with": steps[True], "without": steps[False], "largest": self._adapter_largest}

    def adapter_checksum(self) -> dict[str, float]:
        """Numbers that tell the weights of two workers apart: each parameter's mean magnitude, and a sum of all."""
        if self._adapter_model is None:
            return {}
        found: dict[str, float] = {}
        total = 0
        for name, parameter in self._adapter_model.named_parameters():
            values = parameter.detach().float().abs()
            found[name] = float(values.mean()) if values.numel() else 0.0
            total = zlib.crc32(values.cpu().numpy().tobytes(), total)
        found["sum"] = float(total)
        return found


@hookimpl
def guideway_worker_mixin() -> type[WorkerMixin]:
    return Adapter
