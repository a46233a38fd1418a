"""Keeps a worker from running out of memory: measures the memory of steps, and ends new sequences that are too
large."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from guideway.api import SequencesFailed, Worker, WorkerMixin, WorkerStep, hookimpl, parse_options
from guideway.api.options import Range


@dataclass(frozen=True)
class Options:
    """The settings of an operator."""

    budget_mib: Annotated[float, Range(above=0)] = 2.0
    """Memory in MiB that activations and logits of one step may take."""
    window: Annotated[int, Range(1)] = 512
    """Steps in the report of latencies."""
    remembered: Annotated[int, Range(1)] = 4096
    """Sequences whose steps are counted; the oldest are forgotten."""


class MemoryGuard(WorkerMixin):
    """Estimates each step before it is computed, and measures it."""

    contract = "1.0"
    name = "memory_guard"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._memory_guard_options = parse_options(Options, options, where="worker.memory_guard")
        self._memory_guard_hooks: list[Any] = []
        self._memory_guard_seen: OrderedDict[str, int] = OrderedDict()
        self._memory_guard_latencies: deque[float] = deque(maxlen=self._memory_guard_options.window)
        self._memory_guard_began: float | None = None
        self._memory_guard_width = 1
        self._memory_guard_rows = 1
        self._memory_guard_counts = {"steps": 0, "lost": 0, "refused": 0, "prefills": 0}
        self._memory_guard_peak = 0
        self._memory_guard_held = 0

    def on_model_loaded(self, worker: Worker) -> None:
        sizes = [parameter.shape for parameter in worker.model.parameters() if parameter.ndim == 2]
        self._memory_guard_width = max((min(size) for size in sizes), default=1)
        self._memory_guard_rows = max((max(size) for size in sizes), default=1)
        for module in worker.model.modules():
            if not any(True for _ in module.children()):
                self._memory_guard_hooks.append(module.register_forward_hook(self._memory_guard_look))

    def _memory_guard_look(self, module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        """Record the size of a layer's output, which is held until the next layer has read it."""
        tensors = output if isinstance(output, tuple) else (output,)
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors if hasattr(tensor, "element_size")]
        self._memory_guard_held = max([self._memory_guard_held, *sizes])

    def before_step(self, step: WorkerStep) -> None:
        if self._memory_guard_began is not None:
            self._memory_guard_counts["lost"] += 1  # the previous step had no after_step
        self._memory_guard_began, self._memory_guard_held = None, 0
        ids = list(dict.fromkeys(step.sequence_ids))  # a companion has its sequence's id
        new = [each for each in ids if each not in self._memory_guard_seen]
        for each in ids:
            self._memory_guard_seen[each] = self._memory_guard_seen.pop(each, 0) + 1
        while len(self._memory_guard_seen) > self._memory_guard_options.remembered:
            self._memory_guard_seen.popitem(last=False)
        if ids and self._memory_guard_estimate(step) > self._memory_guard_options.budget_mib * (1 << 20):
            self._memory_guard_counts["refused"] += 1
            blamed = new or ids
            raise SequencesFailed(
                f"a step of {step.num_tokens} tokens needs more than {self._memory_guard_options.budget_mib} MiB",
                sequence_ids=blamed,
            )
        if step.num_rows and step.num_tokens // step.num_rows > 1:
            self._memory_guard_counts["prefills"] += 1
        self._memory_guard_began = time.perf_counter()

    def after_step(self, step: WorkerStep) -> None:
        if self._memory_guard_began is not None:
            self._memory_guard_latencies.append(time.perf_counter() - self._memory_guard_began)
        self._memory_guard_began = None
        self._memory_guard_counts["steps"] += 1
        self._memory_guard_peak = max(self._memory_guard_peak, self._memory_guard_held)

    def close(self) -> None:
        for hook in self._memory_guard_hooks:
            hook.remove()
        self._memory_guard_hooks.clear()

    def _memory_guard_estimate(self, step: WorkerStep) -> int:
        return 4 * (step.num_tokens * self._memory_guard_width + step.num_rows * self._memory_guard_rows)

    def memory_guard_report(self) -> dict[str, Any]:
        """Return counts, latencies and the largest activation, for
        ``engine.call_workers("memory_guard.memory_guard_report")``."""
        times = sorted(self._memory_guard_latencies)
        middle = times[len(times) // 2] if times else 0.0
        return {
            "counts": dict(self._memory_guard_counts),
            "median_seconds": middle,
            "worst_seconds": times[-1] if times else 0.0,
            "peak_bytes": self._memory_guard_peak,
            "sequences": list(self._memory_guard_seen),
        }


@hookimpl
def guideway_worker_mixin() -> type[WorkerMixin]:
    return MemoryGuard
