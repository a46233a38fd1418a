"""The worker: the model, its keys and values, the logits pipeline, and the worker mixins.

Importing this module loads no model library, because a process that starts workers elsewhere needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from guideway.api.forward import ForwardOutput, ForwardStep, ModelInfo, ModelRunner, RunnerLimits
from guideway.api.modifier import LogitModifier, WorkerContext
from guideway.api.steps import Array, Fault, Logprobs, StepInput, StepOutput
from guideway.errors import GuidewayError, close_each, contain
from guideway.pipeline import Pipeline
from guideway.pipeline.mixins import Mixins
from guideway.plugins import PluginPlan, Plugins, bootstrap_worker
from guideway.plugins.building import build_device, building

from guideway_engine.settings import DECODE
from guideway_engine.workflows.parts import load_part

__all__ = ["WORKER", "Worker", "WorkerOutput", "WorkerSettings", "WorkerSpec"]

WORKER = "guideway_engine.worker:Worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings that a worker needs to start, known once the model is loaded."""

    modifiers: Sequence[tuple[type[LogitModifier[Any]], Mapping[str, Any]]]
    """Classes and options, the grammar mask first, as for `Pipeline`."""
    vocabulary_size: int
    limits: RunnerLimits
    example_steps: Sequence[StepInput] = ()
    """Steps in which each modifier acts alone; see `Runtime.example_steps`."""


@dataclass(frozen=True, slots=True)
class WorkerOutput:
    """Output of a step."""

    step: StepOutput
    """Without tokens if nothing was sampled. Its faults include those of sequences that a mixin refuses to continue."""
    prompt: Logprobs | None
    """Scores of the tokens in `ForwardStep.score`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Factory of workers in any process; an executor calls it as ``spec(rank, num_workers)``."""

    plan: PluginPlan
    model: str
    """Folder of the model."""
    dtype: str
    runner: str
    """Address of the component that runs the model."""
    device_backend: str
    device: str
    mixins: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """Addresses and options, in order."""
    worker: str = WORKER
    """Import path of the workers' class: `Worker` or a subclass."""

    def __call__(self, rank: int, num_workers: int) -> Worker:
        """Return a worker that has checked its plugins and not yet loaded its model. Raises `PluginError` and
        `InvalidConfiguration`."""
        plugins = bootstrap_worker(self.plan)
        if self.worker == WORKER:
            return Worker(self, plugins, rank, num_workers)
        cls = load_part(DECODE, "runner", self.worker, Worker, WORKER.replace(":", "."))
        with building(f"workflow.{DECODE}"):
            made: Worker = cls(self, plugins, rank, num_workers)
        return made


class Worker:
    """One model on one device, or one of several workers that share it.

    Methods are called in this order: `load`, `start`, then `forward` and `sample` for each step, `close`.
    """

    def __init__(self, spec: WorkerSpec, plugins: Plugins, rank: int, num_workers: int) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.device = spec.device
        self._spec = spec
        self._parts: list[tuple[str, Callable[[], object]]] = []
        """Parts to close, the last one first."""
        try:
            self._make_parts(spec, plugins)
        except BaseException:
            self.close()
            raise
        self._logits_width = 0
        self._step: ForwardStep | None = None
        self._output: ForwardOutput | None = None
        self._failure: BaseException | None = None
        self._faults: dict[str, Fault] = {}
        """Faults of mixins before the forward pass, by sequence id."""

    def _make_parts(self, spec: WorkerSpec, plugins: Plugins) -> None:
        # before the model is loaded, so that wrong options and devices are reported early
        self._backend = build_device(plugins.load("device", spec.device_backend), spec.device)
        self._parts.append((f"device.{self._backend.name}", self._backend.close))
        self._mixins = Mixins([(plugins.load("worker", address), options) for address, options in spec.mixins])
        self._parts.append(("mixins", self._mixins.close))
        make_runner: type[ModelRunner] = plugins.load("runner", spec.runner)
        self._runner = make_runner(self._backend, self.rank, self.num_workers)
        self._parts.insert(1, (f"runner.{self._runner.name}", self._runner.close))

    @property
    def model(self) -> Any:
        """Model loaded by the runner."""
        return self._runner.model

    def load(self) -> ModelInfo:
        """Load the model, or this worker's part of it. Raises `InvalidConfiguration`."""
        info = self._runner.load(self._spec.model, self._spec.dtype)
        self._logits_width = info.logits_width
        return replace(info, static_shapes=self._backend.static_shapes)

    def start(self, settings: WorkerSettings) -> None:
        """Allocate the KV cache, build the pipeline, call the mixins, and run warm-up steps. Raises
        `InvalidConfiguration` and `PluginError`."""
        self._runner.start(settings.limits)
        context = WorkerContext(
            device=self._backend, vocabulary_size=settings.vocabulary_size, logits_width=self._logits_width
        )
        self._pipeline = Pipeline(settings.modifiers, context)
        self._parts.insert(-1, ("pipeline", self._pipeline.close))
        self._mixins.on_model_loaded(self)
        self._warm_up(settings.example_steps)

    def _warm_up(self, examples: Sequence[StepInput]) -> None:
        for step in self._runner.dummy_steps():
            self._pipeline.warm_up(partial(self._logits, step), step.num_rows)
            for example in examples:
                if (
                    example.batch.num_rows + sum(rows.shape[1] for rows in example.companion_rows.values())
                    <= step.num_rows
                ):
                    output = self._runner.forward(replace(step, hidden_states=True))
                    self._pipeline.run(output.logits, example, output.hidden_states, num_rows=step.num_rows)

    def _logits(self, step: ForwardStep) -> Array:
        return self._runner.forward(step).logits

    def forward(self, step: ForwardStep) -> None:
        """Launch the forward pass of a step; on an accelerator it may still run when this returns. The next `sample`
        raises its errors."""
        self._step, self._output, self._failure = step, None, None
        try:
            self._faults = self._mixins.before_step(step)
            self._output = self._runner.forward(step)
        except BaseException as error:
            contain(error)
            self._failure = error

    def sample(self, step: StepInput | None) -> WorkerOutput:
        """Apply every stage to the logits of the forward pass and sample; with None nothing is sampled. Raises the
        errors of the forward pass, and `PluginError` for a mixin that failed."""
        forward, output, failure = self._step, self._output, self._failure
        self._step = self._output = self._failure = None
        if failure is not None:
            raise failure
        if forward is None or output is None:
            raise GuidewayError("a worker was asked to sample without a forward pass")
        sampled = self._sample(step, forward, output)
        blamed = {**self._mixins.after_step(forward), **self._faults}
        if not blamed:
            return sampled
        slots = dict(zip(forward.sequence_ids, forward.slots, strict=True))
        faults = {
            **sampled.step.faults,
            **{slots[sequence_id]: replace(fault, row=-1) for sequence_id, fault in blamed.items()},
        }
        return replace(sampled, step=replace(sampled.step, faults=faults))

    def call(self, address: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the mixins' method ``name.method``; see `Mixins.call`."""
        return self._mixins.call(address, args, kwargs)

    def close(self) -> None:
        """Close all parts: mixins, transforms, runner, device. Closing twice is fine."""
        parts, self._parts = self._parts, []
        close_each(reversed(parts))

    def _sample(self, step: StepInput | None, forward: ForwardStep, output: ForwardOutput) -> WorkerOutput:
        score = forward.score
        end = forward.num_rows - (0 if score is None else len(score.token_ids))
        prompt = None
        if score is not None:
            rows = np.arange(end, forward.num_rows, dtype=np.int32)
            prompt = self._pipeline.score(output.logits, rows, score.token_ids, score.num_logprobs)
        if step is None:
            return WorkerOutput(StepOutput(np.empty(0, dtype=np.int32)), prompt)
        return WorkerOutput(self._pipeline.run(output.logits, step, output.hidden_states, num_rows=end), prompt)
