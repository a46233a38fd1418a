"""The worker: the model, its keys and values, the pipeline over its logits, and the mixins beside them.

Importing this module loads no model library: a process that only makes workers elsewhere needs none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guideway.api.device import DeviceBackend
from guideway.api.errors import GuidewayError, PluginLoadError, PluginUnavailable, contain
from guideway.api.modifier import LogitModifier, WorkerContext
from guideway.api.steps import Logprobs, StepInput, StepOutput
from guideway.engine.forward import ForwardStep, ModelInfo
from guideway.engine.worker.mixins import Mixins
from guideway.pipeline import Pipeline
from guideway.plugins import PluginPlan, Plugins, bootstrap_worker

if TYPE_CHECKING:
    from guideway.engine.worker.model_runner import ForwardOutput, ModelRunner

__all__ = ["Worker", "WorkerOutput", "WorkerSettings", "WorkerSpec"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker is told once the engine knows the model."""

    modifiers: Sequence[tuple[type[LogitModifier[Any]], Mapping[str, Any]]]
    """Classes and options, the grammar mask first: what `Pipeline` takes."""
    vocabulary_size: int
    num_cells: int
    """How many tokens the keys and values have room for."""
    max_length: int
    """The most tokens of one sequence."""


@dataclass(frozen=True, slots=True)
class WorkerOutput:
    """What a step brought."""

    step: StepOutput | None
    """None if nothing was sampled."""
    prompt: Logprobs | None
    """Of the given tokens that `ForwardStep.score` asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Makes workers, in whatever process; an executor calls it as ``spec(rank, num_workers)``."""

    plan: PluginPlan
    model: str
    """The model's folder."""
    dtype: str
    device_backend: str
    device: str
    mixins: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """Addresses and options, in order."""

    def __call__(self, rank: int, num_workers: int) -> Worker:
        """A worker that has checked its plugins and not yet loaded its model. Raises `PluginError` and
        `InvalidConfiguration`."""
        return Worker(self, bootstrap_worker(self.plan), rank, num_workers)


class Worker:
    """One model on one device, or one of several workers that share it.

    Its methods are called in this order: `load`, `start`, then `forward` and `sample` for each step, `close`.
    """

    def __init__(self, spec: WorkerSpec, plugins: Plugins, rank: int, num_workers: int) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.device = spec.device
        self.model: Any = None
        self._spec = spec
        # before the model is loaded: what is wrong with an option or a device need not cost that
        self._backend = _device(plugins, spec)
        self._mixins = Mixins([(plugins.load("worker", address), options) for address, options in spec.mixins])
        self._runner: ModelRunner
        self._pipeline: Pipeline
        self._logits_width = 0
        self._step: ForwardStep | None = None
        self._output: ForwardOutput | None = None
        self._failure: BaseException | None = None

    def load(self) -> ModelInfo:
        """Load the model, or this worker's part of it. Raises `InvalidConfiguration`."""
        from guideway.engine.worker.model_loader import load_model, model_info

        model = load_model(self._spec.model, self._spec.dtype, self._spec.device)
        info = model_info(model)
        if self.num_workers > 1:
            from guideway.engine.worker.tensor_parallel import share

            model = share(model, self.rank, self.num_workers)
        self.model = model
        self._logits_width = info.logits_width
        return info

    def start(self, settings: WorkerSettings) -> None:
        """Make room for keys and values, build the pipeline and tell the mixins. Raises `InvalidConfiguration` and
        `PluginError`."""
        from guideway.engine.worker.model_runner import ModelRunner

        self._runner = ModelRunner(self.model, num_cells=settings.num_cells, max_length=settings.max_length)
        context = WorkerContext(
            device=self._backend, vocabulary_size=settings.vocabulary_size, logits_width=self._logits_width
        )
        self._pipeline = Pipeline(settings.modifiers, context)
        self._mixins.on_model_loaded(self)

    def forward(self, step: ForwardStep) -> None:
        """Launch the forward pass of a step; on an accelerator it still runs when this returns. What goes wrong is
        raised by the next `sample`."""
        self._step, self._output, self._failure = step, None, None
        try:
            self._mixins.before_step(step)
            self._output = self._runner.forward(step)
        except BaseException as error:
            contain(error)
            self._failure = error

    def sample(self, step: StepInput | None) -> WorkerOutput:
        """Apply every stage to the logits of the forward pass and draw; None: nothing is sampled. Raises what the
        forward pass raised, and `PluginError` for a mixin that failed."""
        forward, output, failure = self._step, self._output, self._failure
        self._step = self._output = self._failure = None
        if failure is not None:
            raise failure
        if forward is None or output is None:
            raise GuidewayError("a worker was asked to sample without a forward pass")
        sampled = self._sample(step, forward, output)
        self._mixins.after_step(forward)
        return sampled

    def call(self, address: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the mixins' method ``name.method`` returns; see `Mixins.call`."""
        return self._mixins.call(address, args, kwargs)

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        self._mixins.close()
        if self.num_workers > 1:
            from guideway.engine.worker.tensor_parallel import leave

            leave()

    def _sample(self, step: StepInput | None, forward: ForwardStep, output: ForwardOutput) -> WorkerOutput:
        import torch

        score = forward.score
        end = forward.num_rows - (0 if score is None else len(score.token_ids))
        with torch.inference_mode():
            prompt = None
            if score is not None:
                prompt = self._pipeline.score(output.logits[end:], score.token_ids, score.num_logprobs)
            if step is None:
                return WorkerOutput(None, prompt)
            hidden_states = None if output.hidden_states is None else output.hidden_states[:end]
            return WorkerOutput(self._pipeline.run(output.logits[:end], step, hidden_states), prompt)


def _device(plugins: Plugins, spec: WorkerSpec) -> DeviceBackend:
    """The device component, if it can run here."""
    backend = plugins.load("device", spec.device_backend)
    plugin = f"device.{backend.name}"
    try:
        reason = backend.available()
        if reason is None:
            return backend(spec.device)
    except GuidewayError:
        raise
    except BaseException as error:
        contain(error)
        raise PluginLoadError(
            f"{plugin} failed while it was built: {type(error).__name__}: {error}", plugin=plugin
        ) from error
    raise PluginUnavailable(f"device {backend.name!r} cannot run here: {reason}", plugin=plugin)
