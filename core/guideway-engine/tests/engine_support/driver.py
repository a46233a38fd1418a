"""A model runner and its cache, used together as by scheduler and worker."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from guideway.api.forward import Append, ForwardOutput, ForwardStep
from guideway_engine.runners.transformers.model_runner import PackedModel
from guideway_engine.scheduling.kv_cache import KVCache
from torch import Tensor
from transformers import PreTrainedModel


class Driver:
    """Runs whole steps that append tokens to sequences in slots."""

    def __init__(self, model: PreTrainedModel, *, num_slots: int, max_length: int, num_cells: int = 4096) -> None:
        self.cache = KVCache(num_slots=num_slots, num_cells=num_cells, max_length=max_length)
        self.runner = PackedModel(model, num_cells=num_cells, max_length=max_length)

    def step(
        self,
        batch: Sequence[tuple[int, Sequence[int]]],
        num_rows: Sequence[int] | None = None,
        *,
        hidden_states: bool = False,
    ) -> ForwardStep:
        """Return the step in which each slot appends its tokens, after reserving room. `num_rows` defaults to one row
        of logits each."""
        for slot, token_ids in batch:
            self.cache.reserve(slot, len(token_ids))
        appends = [
            Append(self.cache.region(slot), self.cache.length(slot), token_ids, rows)
            for (slot, token_ids), rows in zip(batch, num_rows or [1] * len(batch), strict=True)
        ]
        first_move, moves = self.cache.moves()
        return ForwardStep(appends, moves, first_move, hidden_states)

    def forward(
        self,
        batch: Sequence[tuple[int, Sequence[int]]],
        num_rows: Sequence[int] | None = None,
        *,
        hidden_states: bool = False,
    ) -> ForwardOutput:
        """Run the step that `step` builds."""
        step = self.step(batch, num_rows, hidden_states=hidden_states)
        output = self.runner.forward(step)
        self.cache.executed(step.first_move + len(step.moves))
        for slot, token_ids in batch:
            self.cache.advance(slot, token_ids)
        return output


def recompute(reference: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return for each text ``[tokens, logits width]``, computed for the whole text by the model as `transformers` runs
    it."""
    padded = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    with torch.inference_mode():
        logits = reference(padded, use_cache=False).logits  # padding after a text does not affect it
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]
