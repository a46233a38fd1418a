"""The forward pass over a ragged row, by `transformers`' own attention: sorted by length and padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

__all__ = ["Forward", "Output", "Ragged"]

MOST_TOGETHER = 32
"""The most inputs that are padded to one length."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Inputs one after the other."""

    token_ids: np.ndarray[Any, Any]
    """int64 ``[total]``."""
    lengths: np.ndarray[Any, Any]
    """int32 ``[n]``: the number of tokens of each."""
    token_types: np.ndarray[Any, Any] | None = None
    """int64 ``[total]``: which text of a pair each is of; None: the model has no such types."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a model."""

    hidden: Tensor | None
    """float32 ``[total, width]`` of the last layer; None of a model with a head for labels."""
    logits: Tensor | None
    """float ``[n, labels]`` of a model with such a head."""


class Forward:
    """Runs `model`, which is on its device and ready. `attention` is an implementation that `transformers` knows;
    ``auto``: the one that the model came with. Raises ValueError if the model cannot have it."""

    def __init__(self, model: PreTrainedModel, attention: str = "auto") -> None:
        self._model: Any = model
        if attention != "auto":
            model.set_attn_implementation(attention)

    @torch.inference_mode()
    def __call__(self, batch: Ragged) -> Output:
        """Compute what the model makes of each input, whatever else is in the batch."""
        ends = np.cumsum(batch.lengths)
        starts = ends - batch.lengths
        order = np.argsort(-batch.lengths, kind="stable")
        hidden: list[Any] = [None] * len(order)
        logits: list[Any] = [None] * len(order)
        for first in range(0, len(order), MOST_TOGETHER):
            chosen = order[first : first + MOST_TOGETHER]
            lengths = torch.from_numpy(batch.lengths[chosen].astype(np.int64))
            mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
            inputs = {"input_ids": self._padded(batch.token_ids, starts[chosen], mask, self._padding())}
            if batch.token_types is not None:
                inputs["token_type_ids"] = self._padded(batch.token_types, starts[chosen], mask, 0)
            inputs["attention_mask"] = mask.long().to(self._model.device)
            output = self._model(**inputs)
            if getattr(output, "logits", None) is not None:
                for index, row in zip(chosen, output.logits, strict=True):
                    logits[index] = row
            else:
                for index, row, length in zip(chosen, output.last_hidden_state, batch.lengths[chosen], strict=True):
                    hidden[index] = row[: int(length)].float()
        if logits[0] is not None:
            return Output(None, torch.stack(logits))
        return Output(torch.cat(hidden), None)

    def _padded(self, values: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], mask: Tensor, fill: int) -> Tensor:
        padded = torch.full(mask.shape, fill, dtype=torch.int64)
        for row, (start, length) in enumerate(zip(starts, mask.sum(1).tolist(), strict=True)):
            padded[row, :length] = torch.from_numpy(values[start : start + length])
        return padded.to(self._model.device)

    def _padding(self) -> int:
        padding = getattr(self._model.config, "pad_token_id", None)
        return 0 if padding is None else int(padding)
