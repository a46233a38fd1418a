"""The head of a sequence classifier, applied to computed vectors.

It runs the model's own code: a copy of the classifier that shares its weights, in which a stub replaces the encoder and
returns the computed vectors.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

__all__ = ["POOLINGS", "Head", "Pooling", "logits"]

Pooling: TypeAlias = Literal["first", "last", "mean", "late"]
"""Choice of the vector that represents a sequence: its first token's, its last token's, or the mean of all. ``late``:
the head is applied to each token, and its outputs are averaged."""

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


class Head:
    """The part of a classifier after its encoder."""

    def __init__(self, model: PreTrainedModel) -> None:
        base = model.base_model
        self._score = getattr(model, "score", None)
        """The only layer of a decoder's head. Decoders apply it to every token before they choose one."""
        self._model = copy.copy(model)
        self._model._modules = {
            name: _Computed(base) if module is base else module for name, module in model._modules.items()
        }

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return ``[sequences, labels]`` from ``[sequences, width]``."""
        if isinstance(self._score, torch.nn.Linear):
            scores: Tensor = self._score(vectors)
        else:
            scores = self._model(inputs_embeds=vectors[:, None]).logits
        return scores


class _Computed(torch.nn.Module):
    """Replaces the encoder of a classifier, and returns the vectors given as embeddings."""

    def __init__(self, base: torch.nn.Module) -> None:
        super().__init__()
        self.pooler = getattr(base, "pooler", None)
        self.activation = getattr(base, "pooler_activation", None)
        """Second half of a pooler whose first half is one linear layer, as in ALBERT."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPooling:
        vectors: Any = inputs_embeds
        if self.pooler is None:
            return BaseModelOutputWithPooling(last_hidden_state=vectors)
        found = self.pooler(vectors) if self.activation is None else self.activation(self.pooler(vectors[:, 0]))
        return BaseModelOutputWithPooling(last_hidden_state=vectors, pooler_output=found)


def logits(head: Head, hidden: Tensor, lengths: Tensor, last: Tensor, pooling: Pooling) -> Tensor:
    """Return ``[sequences, labels]`` from ``[total, width]``. `lengths` is ``int64[sequences]``, `last` the position in
    the row of each sequence's last token."""
    if pooling == "first":
        return head(hidden[lengths.cumsum(0) - lengths])
    if pooling == "last":
        return head(hidden[last])
    if pooling == "mean":
        return head(torch.segment_reduce(hidden, "mean", lengths=lengths))
    return torch.segment_reduce(head(hidden), "mean", lengths=lengths)
