"""The runners: run the model on a worker and return pooled vectors or logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from guideway.api.workflow import WorkflowRunner
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

from guideway_engine.model_files import existing_folder, weights
from guideway_engine.prefill.families import family_of
from guideway_engine.prefill.forward import Ragged
from guideway_engine.prefill.padded import forward_of
from guideway_engine.prefill.sentence_transformers import recipe_of

__all__ = ["HeadRunner", "PoolingRunner"]

UNUSED = ("pooler.", "classifier.", "score.")
"""Prefixes of weights that may be missing, because vectors do not depend on them."""


class _Runner(WorkflowRunner):
    auto: Any
    may_lack: tuple[str, ...] = ()

    def load(self) -> None:
        context = self.context
        folder = existing_folder(context.model.path)
        model = weights(self.auto, folder, context.dtype, context.device, self.may_lack)
        self._forward = forward_of(model, context.options.attention)


class PoolingRunner(_Runner):
    """Pools the vectors of each input's tokens into one; float32 ``[n, width]``, not normalized."""

    auto = AutoModel
    may_lack = UNUSED

    def load(self) -> None:
        super().load()
        model = self.context.model
        pooling = self.context.options.pooling or recipe_of(model).pooling
        self._pooling = pooling or ("last" if family_of(model).causal else "mean")

    def execute(self, step: Ragged) -> np.ndarray[Any, Any]:
        hidden = self._forward(step).hidden
        assert hidden is not None
        vectors: np.ndarray[Any, Any] = pooled(hidden, step.lengths, self._pooling).cpu().numpy()
        return vectors


class HeadRunner(_Runner):
    """Returns the logits of a model with a classification head; float32 ``[n, labels]``."""

    auto = AutoModelForSequenceClassification

    def execute(self, step: Ragged) -> np.ndarray[Any, Any]:
        logits = self._forward(step).logits
        assert logits is not None
        found: np.ndarray[Any, Any] = logits.float().cpu().numpy()
        return found


@torch.inference_mode()
def pooled(hidden: Tensor, lengths: np.ndarray[Any, Any], pooling: str) -> Tensor:
    """Return one vector for each of the consecutive inputs in `hidden`, ``[total, width]``: the ``mean`` of its
    vectors, the first (``cls``) or the ``last``. The result is ``[n, width]``."""
    sizes = torch.from_numpy(lengths.astype(np.int64)).to(hidden.device)
    ends = sizes.cumsum(0)
    if pooling == "last":
        return hidden[ends - 1]
    if pooling == "cls":
        return hidden[ends - sizes]
    rows = torch.repeat_interleave(torch.arange(len(sizes), device=hidden.device), sizes)
    sums = hidden.new_zeros(len(sizes), hidden.shape[1]).index_add_(0, rows, hidden)
    return sums / sizes[:, None]
