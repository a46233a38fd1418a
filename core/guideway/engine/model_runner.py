"""Runs a `transformers` causal LM over sequences that come and go, with a KV cache of guideway's own.

The model stays the one `transformers` wrote: only its attention is replaced (`AttentionInterface`), so an
architecture works here if its attention goes through that interface and asks for nothing but causal attention. No
list of names decides that: `guideway.engine.model_support` looks at the configuration, sends one token through the
model and sees what every layer asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from guideway.api.errors import InvalidConfiguration, InvalidRequest
from guideway.engine.attention import CausalMask, pack_step
from guideway.engine.kv_cache import KVCache, SlotKVCache
from guideway.engine.model_support import check_spans, probe_attention

__all__ = ["ForwardOutput", "ModelRunner", "context_length"]


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What one step computed. Inference tensors: change them in place only under `torch.inference_mode`."""

    logits: Tensor
    """``float32[rows, logits_width]``: the rows each sequence asked for, in the order of the batch."""
    hidden_states: Tensor | None = None
    """``[rows, hidden size]`` in the model's dtype, if asked for: what the logits were computed from."""


class ModelRunner:
    """One model, its slots, and the forward pass of a step.

    The model is taken over, with every other that shares its configuration object: its attention now needs this
    runner, and its own ``generate`` no longer works.
    Raises `InvalidConfiguration` for an architecture it cannot run faithfully and for sizes that do not fit.
    """

    logits_width: int
    """The width of a row of logits, which may be more than the vocabulary holds."""
    max_context: int | None
    """The most tokens the model was made for; None if its configuration does not say."""

    def __init__(self, model: PreTrainedModel, *, num_slots: int, max_length: int) -> None:
        if num_slots < 1:
            raise InvalidConfiguration(f"num_slots must be at least 1, not {num_slots}", field="num_slots")
        self.max_context = context_length(model)
        if max_length < 1 or max_length > (self.max_context or max_length):
            limit = f"from 1 to the model's context of {self.max_context}" if self.max_context else "at least 1"
            raise InvalidConfiguration(f"max_length must be {limit}, not {max_length}", field="max_length")
        check_spans(model, max_length)
        model.train(False)
        self._model = model
        attention = probe_attention(model)
        self.logits_width = attention.logits_width
        self._num_embeddings = cast("torch.nn.Embedding", model.get_input_embeddings()).num_embeddings
        self._group = attention.num_query_heads // attention.kv_shape.num_heads
        self._cache = SlotKVCache(
            attention.kv_shape, num_slots=num_slots, max_length=max_length, dtype=model.dtype, device=model.device
        )
        self._masks = CausalMask(max_length, dtype=model.dtype, device=model.device)

    @property
    def cache(self) -> KVCache:
        """The slots: allocate one per sequence before its first step and release it after its last."""
        return self._cache

    @torch.inference_mode()
    def forward(
        self,
        batch: Sequence[tuple[int, Sequence[int]]],
        logits_rows: Sequence[int] | None = None,
        *,
        hidden_states: bool = False,
    ) -> ForwardOutput:
        """Append ``batch[i][1]``, at least one token id, to the sequence in slot ``batch[i][0]``.

        Prompts, single tokens and short runs (forced tokens, drafts) may be mixed. ``logits_rows[i]`` says for how
        many of its last new tokens entry ``i`` gets a row of logits, each predicting the token that follows; None
        means one row each.

        Raises `InvalidRequest` for an empty batch or one that cannot be run, `KVCacheFull` where a sequence would
        outgrow the cache's `max_length`, and `KVCacheError` for an unknown slot; then, and if the model raises, no
        sequence has grown.
        """
        self._check(batch, logits_rows)
        for slot, token_ids in batch:
            self._cache.reserve(slot, len(token_ids))
        step = pack_step(batch, self._cache, self._masks, group=self._group)
        rows = torch.from_numpy(_rows_of_last_tokens(step.last_token, logits_rows)).to(self._model.device)

        head = cast("torch.nn.Module", self._model.get_output_embeddings())  # type: ignore[no-untyped-call]
        with _inputs_of(head, wanted=hidden_states) as inputs:
            output = self._model(
                input_ids=step.token_ids,
                position_ids=step.positions,
                use_cache=False,
                logits_to_keep=rows,
                guideway_step=step,
            )
        for slot, token_ids in batch:
            self._cache.advance(slot, len(token_ids))
        return ForwardOutput(output.logits[0].float(), inputs[0][0] if hidden_states else None)

    def _check(self, batch: Sequence[tuple[int, Sequence[int]]], logits_rows: Sequence[int] | None) -> None:
        if not batch:
            raise InvalidRequest("a step needs at least one sequence", field="batch")
        if len({slot for slot, _ in batch}) != len(batch):
            raise InvalidRequest("a slot appears more than once in one batch", field="batch")
        for slot, token_ids in batch:
            if len(token_ids) == 0:
                raise InvalidRequest(f"slot {slot} appends no token; leave it out of the batch", field="batch")
            if min(token_ids) < 0 or max(token_ids) >= self._num_embeddings:
                raise InvalidRequest(
                    f"slot {slot} appends a token id outside 0 to {self._num_embeddings - 1}", field="token_ids"
                )
        if logits_rows is None:
            return
        if len(logits_rows) != len(batch):
            raise InvalidRequest(f"{len(logits_rows)} row counts for {len(batch)} sequences", field="logits_rows")
        for (slot, token_ids), num_rows in zip(batch, logits_rows, strict=True):
            if not 0 <= num_rows <= len(token_ids):
                raise InvalidRequest(
                    f"slot {slot} appends {len(token_ids)} tokens and cannot give {num_rows} rows of logits",
                    field="logits_rows",
                )


def context_length(model: PreTrainedModel) -> int | None:
    """The most tokens `model` was made for; None if its configuration does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def _rows_of_last_tokens(last_token: NDArray[np.int64], counts: Sequence[int] | None) -> NDArray[np.int64]:
    """For each sequence the places of its last ``counts[i]`` tokens in the packed row, one after the other."""
    if counts is None:
        return last_token
    number = np.array(counts, dtype=np.int64)
    within = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    rows: NDArray[np.int64] = np.repeat(last_token - number + 1, number) + within
    return rows


@contextmanager
def _inputs_of(module: torch.nn.Module, *, wanted: bool) -> Iterator[list[Tensor]]:
    """What `module` is called with meanwhile, if `wanted`. For the output embeddings this is the last hidden states
    after the final norm, already cut down to the rows of logits; asking the model would return every layer's."""
    inputs: list[Tensor] = []
    if not wanted:
        yield inputs
        return
    hook = module.register_forward_pre_hook(lambda _, arguments: inputs.append(cast("Tensor", arguments[0])))
    try:
        yield inputs
    finally:
        hook.remove()
