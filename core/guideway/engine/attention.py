"""Attention of one packed step over the slot cache.

A step packs the new tokens of all its sequences into one row for the model: every layer but attention treats tokens
one by one anyway. For attention the row is cut into rectangles: neighboring slots share one call, padded to the
longest context and to the most queries among them, and long prompts get a call of their own.

`transformers` finds the function by its registered name and hands it the keyword `guideway_step`, which the runner
passes to the model: so nothing here depends on the step being a global.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from guideway.api.errors import InvalidConfiguration
from guideway.engine.kv_cache import SlotKVCache

__all__ = ["ATTENTION_NAME", "AttentionStep", "CausalMask", "PackedStep", "pack_step"]

ATTENTION_NAME = "guideway_step"

MAX_SHARED_QUERIES = 16
"""An append of more tokens gets a call of its own: a prompt's causal mask is free, a padded one is not."""

MAX_WASTE = 65536
"""Cells (query, key, head, dimension) of padding that cost about as much as one more call, on one core of a CPU."""


class AttentionStep(Protocol):
    """What answers one forward pass's attention calls, layer by layer."""

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """The attention output ``[1, tokens, heads, value_dim]`` of one layer for a packed row.

        `query`, `key` and `value` are ``[1, heads or kv heads, tokens, dim]``; `options` are the keywords the layer
        passed, ``attention_mask`` and ``scaling`` among them.
        """


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    guideway_step: AttentionStep | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    if guideway_step is None:
        raise InvalidConfiguration(
            f"{type(module).__name__} was called without a step: its model does not hand keywords on to its attention, "
            "or was called other than by the runner that took it over",
            field="model",
        )
    return guideway_step.attend(module, query, key, value, options | {"attention_mask": attention_mask}), None


# A process-wide table; registering the same function again changes nothing. The name is in no table of masks, so
# transformers builds none and passes attention_mask=None.
AttentionInterface.register(ATTENTION_NAME, _attention)


class CausalMask:
    """Additive masks ``0`` / ``-inf`` for any position, as windows into one vector of ``2 * max_length`` numbers."""

    def __init__(self, max_length: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._last = max_length - 1
        self._steps = torch.zeros(2 * max_length - 1, dtype=dtype, device=device)
        self._steps[max_length:] = -torch.inf
        # row r starts at element r, so it shows max_length - r keys: the row of position p is max_length - 1 - p
        self._windows = self._steps.as_strided((max_length, max_length), (1, 1))

    def rows(self, positions: NDArray[np.int64], num_keys: int) -> Tensor:
        """``[len(positions), num_keys]``: row i lets position ``positions[i]`` see the keys up to its own."""
        index = torch.from_numpy(self._last - positions).to(self.device)
        return self._windows[:, :num_keys].index_select(0, index)


@dataclass(frozen=True, slots=True)
class _Rectangle:
    """One attention call: ``slots x queries`` against the first `num_keys` keys of each slot."""

    tokens: slice
    """Which tokens of the packed row take part."""
    slots: slice
    num_queries: int
    num_keys: int
    cells: Tensor | None
    """``int64[tokens]``: the cell ``slot * num_queries + query`` of each token; None: they fill it in order."""
    mask: Tensor | None
    """``[slots, 1, queries, num_keys]``; None: all keys are visible, or, with several queries, those up to each
    query's own position. Where heads are folded, the `group` query heads of one kv head count as queries side by
    side."""

    @property
    def folds_heads(self) -> bool:
        """Whether the query heads that share a kv head become queries of it: for few queries that is 1.5x (float32)
        to 7x (bfloat16) faster on a CPU than enable_gqa, which reads the keys once per query head."""
        return self.num_queries == 1 or (self.mask is not None and self.num_queries <= MAX_SHARED_QUERIES)


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One packed row, ready for the model."""

    cache: SlotKVCache
    token_ids: Tensor
    """``int64[1, tokens]``"""
    positions: Tensor
    """``int64[1, tokens]``"""
    last_token: NDArray[np.int64]
    """``int64[sequences]``: where in the row the last new token of each sequence is, in the batch's order."""
    cells: Tensor
    """``int64[tokens * kv heads]``: where in a layer's keys and values, flattened over all but the last axis, each
    token's heads go."""
    rectangles: Sequence[_Rectangle]

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        index = cast("int", layer.layer_idx)
        keys, values = self.cache.keys[index], self.cache.values[index]
        keys.view(-1, keys.shape[-1]).index_copy_(0, self.cells, key[0].transpose(0, 1).flatten(0, 1))
        values.view(-1, values.shape[-1]).index_copy_(0, self.cells, value[0].transpose(0, 1).flatten(0, 1))
        packed = query[0].transpose(0, 1)  # [tokens, heads, dim]
        outputs = [
            _attend(
                rectangle,
                packed[rectangle.tokens],
                keys[rectangle.slots, :, : rectangle.num_keys],
                values[rectangle.slots, :, : rectangle.num_keys],
                options.get("scaling"),
            )
            for rectangle in self.rectangles
        ]
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0)


def _attend(rectangle: _Rectangle, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """``[tokens, heads, value_dim]`` from `query` ``[tokens, heads, dim]`` and ``[slots, kv heads, keys, dim]``."""
    _, num_heads, dim = query.shape
    num_slots, num_kv_heads, _, _ = keys.shape
    num_queries, group = rectangle.num_queries, num_heads // num_kv_heads
    if rectangle.cells is not None:
        padded = query.new_zeros(num_slots * num_queries, num_heads, dim)
        query = padded.index_copy_(0, rectangle.cells, query)
    if rectangle.folds_heads:
        query = query.reshape(num_slots, num_queries, num_kv_heads, group, dim).transpose(1, 2).flatten(2, 3)
        output = scaled_dot_product_attention(query, keys, values, attn_mask=rectangle.mask, scale=scaling)
        output = output.view(num_slots, num_kv_heads, num_queries, group, -1).transpose(1, 2)
    else:
        query, mask = query.reshape(num_slots, num_queries, num_heads, dim).transpose(1, 2), rectangle.mask
        output = scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=group > 1
        ).transpose(1, 2)
    output = output.reshape(num_slots * num_queries, num_heads, -1)
    return output if rectangle.cells is None else output.index_select(0, rectangle.cells)


def pack_step(
    batch: Sequence[tuple[int, Sequence[int]]], cache: SlotKVCache, masks: CausalMask, *, group: int
) -> PackedStep:
    """The packed row and the attention calls for `batch`: per sequence its slot and at least one new token.

    `group` is the number of query heads per kv head.
    """
    slots = [slot for slot, _ in batch]
    starts = [cache.length(slot) for slot in slots]
    counts = [len(token_ids) for _, token_ids in batch]
    # in the row the sequences stand by slot, so that neighbors share a rectangle; long appends at the end
    order = sorted(range(len(batch)), key=lambda i: (counts[i] > MAX_SHARED_QUERIES, slots[i]))

    ordered_counts = np.array([counts[i] for i in order])
    ends = np.cumsum(ordered_counts)
    last_token = np.empty(len(batch), dtype=np.int64)
    last_token[order] = ends - 1
    row_slots = np.repeat([slots[i] for i in order], ordered_counts)
    # token t of a sequence whose tokens start at `first` has position start + t - first
    offsets = np.array([starts[i] for i in order]) - (ends - ordered_counts)
    positions = np.arange(ends[-1]) + np.repeat(offsets, ordered_counts)
    token_ids = np.array([token_id for i in order for token_id in batch[i][1]], dtype=np.int64)

    kv_heads = cache.shape.num_heads
    head_rows = (row_slots * kv_heads)[:, None] + np.arange(kv_heads)
    cells = (head_rows * cache.max_length + positions[:, None]).ravel()

    rectangles = []
    token = 0
    for members in _rectangles([(slots[i], starts[i] + counts[i], counts[i]) for i in order], cache):
        num_tokens = sum(count for _, _, count in members)
        tokens = slice(token, token + num_tokens)
        rectangles.append(_rectangle(members, tokens, row_slots[tokens], positions[tokens], masks, group))
        token += num_tokens

    device = cache.keys.device
    return PackedStep(
        cache=cache,
        token_ids=torch.from_numpy(token_ids).to(device).unsqueeze(0),
        positions=torch.from_numpy(positions).to(device).unsqueeze(0),
        last_token=last_token,
        cells=torch.from_numpy(cells).to(device),
        rectangles=rectangles,
    )


_Member = tuple[int, int, int]
"""A sequence's slot, its length after the step, and how many of these tokens are new."""


def _rectangles(ordered: Sequence[_Member], cache: SlotKVCache) -> list[list[_Member]]:
    """Cut `ordered` where sharing a call would pad more than a further call costs."""
    size = cache.shape.num_heads * cache.shape.key_dim
    result: list[list[_Member]] = []
    queries = keys = useful = 0
    for member in ordered:
        slot, length, count = member
        if result and count <= MAX_SHARED_QUERIES:
            rows = slot + 1 - result[-1][0][0]
            area = rows * max(queries, count) * max(keys, length)
            if (area - useful - count * length) * size <= MAX_WASTE:
                result[-1].append(member)
                queries, keys, useful = max(queries, count), max(keys, length), useful + count * length
                continue
        result.append([member])
        queries, keys, useful = count, length, count * length
    return result


def _rectangle(
    members: Sequence[_Member],
    tokens: slice,
    row_slots: NDArray[np.int64],
    positions: NDArray[np.int64],
    masks: CausalMask,
    group: int,
) -> _Rectangle:
    """The call for `members`, whose tokens have `row_slots` and `positions`."""
    first_slot = members[0][0]
    num_slots = members[-1][0] + 1 - first_slot
    num_queries = max(count for _, _, count in members)
    num_keys = max(length for _, length, _ in members)
    slots = slice(first_slot, first_slot + num_slots)
    full = len(positions) == num_slots * num_queries
    same_length = all(length == num_keys for _, length, _ in members)
    if full and same_length and num_queries in (1, num_keys):
        return _Rectangle(tokens, slots, num_queries, num_keys, cells=None, mask=None)
    cells = None
    padded = positions
    if not full:
        # the k-th of a member's tokens is its query k; a cell without a token looks at position 0 and is not read
        counts = np.array([count for _, _, count in members])
        within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        index = (row_slots - first_slot) * num_queries + within
        padded = np.zeros(num_slots * num_queries, dtype=np.int64)
        padded[index] = positions
        cells = torch.from_numpy(index).to(masks.device)
    if 1 < num_queries <= MAX_SHARED_QUERIES:
        padded = np.repeat(padded, group)  # folded heads; for a single query the mask broadcasts over them
    mask = masks.rows(padded, num_keys)
    return _Rectangle(tokens, slots, num_queries, num_keys, cells, mask.view(num_slots, 1, -1, num_keys))
