"""guideway's part of a worker: applies masks and modifiers to the logits of vLLM's model runner before its draw.

`guideway_vllm.runners` knows where the logits are. If a modifier acts on the final distribution of a row, guideway
draws the token and leaves it as the only one in the row, so that vLLM takes it, however it samples or verifies drafts.
"""

from __future__ import annotations

import copy
import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from guideway.api import ConformanceError, Fault, PluginUnavailable, StepBatch, StepOutput, WorkerContext
from guideway.errors import GuidewayError, close_each, contain
from guideway.pipeline import Pipeline
from guideway.pipeline.mixins import Mixins
from guideway.plugins import Plugins
from guideway.plugins.building import build_device
from guideway.runtime.constraints.worker_half import WorkerGate, WorkerMask
from numpy.typing import NDArray

from guideway_vllm.config import GuestConfig
from guideway_vllm.handover import shared_vocabulary_size
from guideway_vllm.runners import Seams, V1Seams, V2Seams
from guideway_vllm.steps import ATTRIBUTE, GuestOutput, GuestStep, Part

__all__ = ["GuestWorker", "WorkerExtension", "attach"]

log = logging.getLogger("vllm.guideway")


def attach(worker: Any, vllm_config: Any) -> None:
    """Add guideway to a vLLM worker whose device is ready and whose model is not loaded. Does nothing if the server
    does not use guideway. Raises `PluginError` and `InvalidConfiguration`."""
    config = GuestConfig.of(vllm_config)
    if config is None:
        return
    runner = worker.model_runner
    seams: type[Seams] = V2Seams if getattr(vllm_config, "use_v2_model_runner", False) else V1Seams
    if missing := seams.missing(runner):
        raise PluginUnavailable(
            f"vLLM's model runner {type(runner).__module__}.{type(runner).__qualname__} has no {', '.join(missing)}, "
            "where guideway would act; use a version of vLLM that docs/hosts/vllm-compatibility.md lists",
            plugin="host.vllm",
        )
    guest = GuestWorker(config, worker, vllm_config, seams)
    worker.guideway_guest = guest
    runner.sample_tokens = guest.around_sample_tokens(runner.sample_tokens)
    worker.shutdown = guest.around_shutdown(worker.shutdown)
    if config.worker_mixins:
        runner.load_model = guest.around_load_model(runner.load_model)
        runner.execute_model = guest.around_execute_model(runner.execute_model)


class WorkerExtension:
    """Extension for ``--worker-extension-cls``, which exposes methods of worker mixins to vLLM's ``collective_rpc``."""

    guideway_guest: GuestWorker

    def guideway(self, address: str, *args: Any, **kwargs: Any) -> Any:
        """Call the mixins' method ``name.method``: ``llm.collective_rpc("guideway", args=(address, ...))``. Raises
        `UnsupportedCapability` if there is none."""
        return self.guideway_guest.mixins.call(address, args, kwargs)


class _Model:
    """A `guideway.api.Worker`: what mixins see of a worker."""

    def __init__(self, worker: Any) -> None:
        self.model = worker.model_runner.get_model()
        self.device = str(worker.device)
        self.rank = worker.rank
        self.num_workers = worker.parallel_config.world_size


class _Step:
    """A `guideway.api.WorkerStep`: what mixins see of a step."""

    def __init__(self, scheduled: Any) -> None:
        self.sequence_ids = tuple(scheduled.num_scheduled_tokens)
        self.num_sequences = len(self.sequence_ids)
        self.num_tokens = scheduled.total_num_scheduled_tokens
        drafts = scheduled.scheduled_spec_decode_tokens
        self.num_rows = self.num_sequences + sum(map(len, drafts.values()))


class GuestWorker:
    """guideway's part of one worker."""

    def __init__(self, config: GuestConfig, worker: Any, vllm_config: Any, seams: type[Seams]) -> None:
        plugins = Plugins(settings=config.plugins)
        self._worker = worker
        self._seams = seams(worker.model_runner, self.act)
        self.plan = config.plan(plugins)
        self._parts: list[tuple[str, Callable[[], object]]] = []
        """Parts to close, in reverse order."""
        try:
            self._make_parts(config, plugins, vllm_config)
        except BaseException:
            self.close()
            raise
        self._step: _Step | None = None
        self._failure: str | None = None
        self._blamed: dict[str, Fault] = {}

    def _make_parts(self, config: GuestConfig, plugins: Plugins, vllm_config: Any) -> None:
        self._device = build_device(plugins.load("device", str(config.device_backend)), str(self._worker.device))
        self._parts.append((f"device.{self._device.name}", self._device.close))
        modifiers = [plugins.load("modifier", address) for address in config.modifiers]
        width = vllm_config.model_config.get_vocab_size()
        size = shared_vocabulary_size(vllm_config) if modifiers else width
        if size is None:  # the front end shares none
            from guideway_vllm.parts import num_tokens_of  # imports the scheduler's half

            size = num_tokens_of(vllm_config)
        own: list[type[Any]] = [WorkerMask, WorkerGate]  # only their attributes are used here
        self._pipeline = Pipeline(
            [
                *((cls, {}) for cls in own),
                *((cls, dict(config.options.get(f"modifier.{cls.name}", {}))) for cls in modifiers),
            ],
            WorkerContext(device=self._device, vocabulary_size=size, logits_width=width),
        )
        self._parts.append(("pipeline", self._pipeline.close))
        self.mixins = Mixins(
            [
                (cls, dict(config.options.get(f"worker.{cls.name}", {})))
                for cls in (plugins.load("worker", address) for address in config.worker_mixins)
            ]
        )
        self._parts.append(("mixins", self.mixins.close))

    def close(self) -> None:
        """Close mixins, transforms and device. Idempotent."""
        parts, self._parts = self._parts, []
        close_each(reversed(parts))

    # Methods of the worker and its runner

    def around_load_model(self, load_model: Any) -> Any:
        @wraps(load_model)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = load_model(*args, **kwargs)
            self.mixins.on_model_loaded(_Model(self._worker))
            return result

        return wrapped

    def around_execute_model(self, execute_model: Any) -> Any:
        @wraps(execute_model)
        def wrapped(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._step, self._failure, self._blamed = None, None, {}
            if scheduler_output.total_num_scheduled_tokens:
                self._step = _Step(scheduler_output)
                self._call_mixins(self.mixins.before_step)
            return execute_model(scheduler_output, *args, **kwargs)

        return wrapped

    def around_shutdown(self, shutdown: Any) -> Any:
        @wraps(shutdown)
        def wrapped() -> None:
            self.close()  # while the model still exists
            shutdown()

        return wrapped

    def around_sample_tokens(self, sample_tokens: Any) -> Any:
        @wraps(sample_tokens)
        def wrapped(grammar_output: Any, *args: Any, **kwargs: Any) -> Any:
            result, output = self._seams.sample(partial(sample_tokens, *args, **kwargs), grammar_output)
            if self._step is not None:
                self._call_mixins(self.mixins.after_step)
            if self._failure is not None:
                output, self._failure = GuestOutput(failure=self._failure), None
            elif self._blamed:
                output = output or GuestOutput()
                output, self._blamed = replace(output, faults={**output.faults, **self._blamed}), {}
            if output is not None:
                inner = getattr(result, self._seams.inner, None)
                if inner is None:  # vLLM shares one empty output among steps
                    inner = result = copy.copy(result)
                setattr(inner, ATTRIBUTE, output)
            return result

        return wrapped

    def _call_mixins(self, call: Any) -> None:
        """Call the mixins. If one fails, the requests of the step end, or only those it blames. The error is sent with
        the step's output."""
        try:
            self._blamed = {**call(self._step), **self._blamed}
        except GuidewayError as error:
            log.exception("guideway: a worker mixin failed; the requests of its step end")
            self._failure = self._failure or str(error)

    # The step

    @torch.inference_mode()
    def act(
        self, step: GuestStep, logits: Any, hidden: Callable[[Any], Any], first_row: Mapping[str, int]
    ) -> tuple[Any, GuestOutput | None]:
        """Return the logits for the runner to draw from, changed in place if the device does so, and the output.
        `hidden` returns the hidden states of rows, and `first_row` the first row of each request."""
        if step.fingerprint != self.plan.fingerprint:
            return logits, GuestOutput(
                failure="engine core and worker do not run the same guideway plugins: their files, versions or options "
                "differ; install the same packages everywhere and start the server anew"
            )
        target = _rows(step, first_row)
        faults: dict[int, Fault] = {}
        if len(step.masked):
            logits = self._apply_masks(logits, step.bitmask, step.masked, target, faults)
            self._close(logits, target[list(faults)], step.stop_token_id)
        outputs: list[StepOutput] = []
        for part in step.parts:
            rows = torch.from_numpy(target[part.rows].astype(np.int64)).to(logits.device)
            act = self._draw_part if part.draws else self._shape_part
            outputs.append(output := act(logits, rows, part, hidden(rows)))
            self._close(logits, target[part.rows[_meaningless(part.step.batch, output.faults)]], step.stop_token_id)
        ends = np.cumsum(step.num_rows)
        by_request = {step.request_ids[bisect_right(ends, row)]: fault for row, fault in faults.items()}
        return logits, GuestOutput(tuple(outputs), by_request) if outputs or faults else None

    def _close(self, logits: Any, rows: NDArray[np.int32], stop_token_id: int) -> None:
        """Allow only a stop token in rows whose draw will not be final."""
        for row in rows.tolist():
            logits[row] = -torch.inf
            logits[row, stop_token_id] = 0.0

    def _apply_masks(
        self,
        logits: Any,
        bitmask: NDArray[np.int32],
        rows: NDArray[np.int32],
        target: NDArray[np.int32],
        faults: dict[int, Fault],
    ) -> Any:
        """Return `logits` under the masks. If a mask cannot be applied, its row has a fault, and its request will
        end."""
        try:
            masked = self._device.apply_bitmask(logits, bitmask, target[rows])
            if not isinstance(masked, torch.Tensor) or masked.shape != logits.shape or masked.dtype != logits.dtype:
                raise ConformanceError(f"apply_bitmask must return the logits, not a {type(masked).__name__}")
            return masked
        except BaseException as error:
            contain(error)
            if len(rows) == 1:
                faults[int(rows[0])] = Fault.of(f"device.{self._device.name}", "apply_bitmask", error)
                return logits
        for i in range(len(rows)):
            logits = self._apply_masks(logits, bitmask[i : i + 1], rows[i : i + 1], target, faults)
        return logits

    def _shape_part(self, logits: Any, rows: Any, part: Part, hidden: Any) -> StepOutput:
        """Apply modifiers up to the mask; vLLM does the rest."""
        shaped, output = self._pipeline.mask(logits[rows], part.step, hidden)
        logits[rows] = shaped
        return output

    def _draw_part(self, logits: Any, rows: Any, part: Part, hidden: Any) -> StepOutput:
        """Run the whole pipeline, including the draw."""
        output = self._pipeline.run(logits[rows], part.step, hidden)
        logits[rows] = -torch.inf
        logits[rows, torch.from_numpy(output.token_ids.astype(np.int64)).to(logits.device)] = 0.0
        return output


def _meaningless(batch: StepBatch, faults: Mapping[int, Fault]) -> list[int]:
    """Return the rows of a batch from the fault of their sequence on."""
    bounds = zip(batch.slots.tolist(), batch.row_start.tolist(), batch.row_start.tolist()[1:], strict=False)
    return [
        row for slot, start, end in bounds if slot in faults for row in range(start + max(0, faults[slot].row), end)
    ]


def _rows(step: GuestStep, first_row: Mapping[str, int]) -> NDArray[np.int32]:
    """Return for each row of the step its row in vLLM's logits."""
    pairs = zip(map(first_row.__getitem__, step.request_ids), step.num_rows, strict=True)
    return np.array([row for first, num_rows in pairs for row in range(first, first + num_rows)], dtype=np.int32)
