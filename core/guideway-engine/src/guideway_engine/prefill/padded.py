"""Padded forward pass with a model's own attention, for models that no attention backend can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from guideway.errors import InvalidConfiguration
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from guideway_engine.attention.choosing import AUTO
from guideway_engine.prefill.forward import Forward, Output, Ragged

__all__ = ["PaddedForward", "forward_of"]

BATCH_SIZE = 32
"""Maximum number of inputs that are padded to one length."""


def forward_of(model: PreTrainedModel, attention: str) -> Callable[[Ragged], Output]:
    """Return the ragged forward pass of a model; with ``auto`` the padded one if the model needs its own attention
    (relative positions as in MPNet, capped scores as in Gemma 2). Raises the errors of `Forward`."""
    own = model.config._attn_implementation
    try:
        return Forward(model, attention)
    except InvalidConfiguration as error:
        if attention != AUTO:
            raise
        if model.config._attn_implementation != own:
            model.set_attn_implementation(own)
        return PaddedForward(model, reason=str(error))


class PaddedForward:
    """Runs batches through the unchanged model, grouping inputs of similar length."""

    attention = "own"

    def __init__(self, model: PreTrainedModel, reason: str) -> None:
        self.reason = reason
        """Reason for using the model's own attention."""
        self._model: Any = model

    @torch.inference_mode()
    def __call__(self, batch: Ragged) -> Output:
        """Compute the output of each input, independent of the rest of the batch. Raises `InvalidRequest` for inputs
        without a token."""
        batch.check_lengths()
        starts = np.cumsum(batch.lengths) - batch.lengths
        order = np.argsort(-batch.lengths, kind="stable")
        results: list[Any] = [None] * len(order)
        has_head = False
        for first in range(0, len(order), BATCH_SIZE):
            chosen = order[first : first + BATCH_SIZE]
            output = self._model(**self._inputs(batch, starts[chosen], batch.lengths[chosen]))
            has_head = getattr(output, "logits", None) is not None
            rows = output.logits if has_head else output.last_hidden_state
            for index, row, length in zip(chosen, rows, batch.lengths[chosen], strict=True):
                results[index] = (row if has_head else row[: int(length)]).float()
        return Output(None, torch.stack(results)) if has_head else Output(torch.cat(results), None)

    def _inputs(self, batch: Ragged, starts: NDArray[Any], lengths: NDArray[Any]) -> dict[str, Tensor]:
        mask = np.arange(int(lengths.max()))[None] < lengths[:, None]
        padding = getattr(self._model.config, "pad_token_id", None) or 0
        inputs = {"input_ids": _pad(batch.token_ids, starts, mask, padding), "attention_mask": mask.astype(np.int64)}
        if batch.token_types is not None:
            inputs["token_type_ids"] = _pad(batch.token_types, starts, mask, 0)
        return {name: torch.from_numpy(value).to(self._model.device) for name, value in inputs.items()}


def _pad(values: NDArray[Any], starts: NDArray[Any], mask: NDArray[Any], fill: int) -> NDArray[np.int64]:
    """Return int64 of the shape of `mask`: the values from each start on where the mask is True, else `fill`."""
    places = (starts[:, None] + np.arange(mask.shape[1])[None]).clip(max=len(values) - 1)
    return np.where(mask, values[places], fill).astype(np.int64)
