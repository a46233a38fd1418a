"""The worker: the model's forward pass, and the pipeline over its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from guideway.api.steps import StepInput, StepOutput
from guideway.engine.kv_cache import KVCache
from guideway.engine.model_runner import ForwardOutput, ModelRunner
from guideway.pipeline import Pipeline

__all__ = ["Worker"]


class Worker:
    """One model on one device."""

    def __init__(self, runner: ModelRunner, pipeline: Pipeline) -> None:
        self._runner = runner
        self._pipeline = pipeline

    @property
    def cache(self) -> KVCache:
        """Where sequences live; the scheduler allocates, truncates and releases."""
        return self._runner.cache

    def forward(
        self, batch: Sequence[tuple[int, Sequence[int]]], logits_rows: Sequence[int], *, hidden_states: bool
    ) -> ForwardOutput:
        """Launch the forward pass of a step; on an accelerator it still runs when this returns."""
        return self._runner.forward(batch, logits_rows, hidden_states=hidden_states)

    @torch.inference_mode()
    def sample(self, output: ForwardOutput, step: StepInput) -> StepOutput:
        """Apply every stage to the logits of the step and draw."""
        return self._pipeline.run(output.logits, step, output.hidden_states)
