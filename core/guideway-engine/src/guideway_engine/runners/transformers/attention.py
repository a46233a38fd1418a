"""Attention of one packed step over the KV store.

A step packs the new tokens of all its sequences into one row for the model, because all layers but attention treat
tokens independently. For attention the row is split into rectangles: neighboring regions of one size share a call,
padded to the longest context and the most queries among them, and long prompts get their own call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from guideway.api.forward import Append
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from guideway_engine.runners.transformers.kv_store import KVStore
from guideway_engine.runners.transformers.masks import Masks

__all__ = ["PackedStep", "pack_step"]

MAX_SHARED_QUERIES = 16
"""Maximum number of tokens of an append that shares a call: a prompt's causal mask is free, a padded one is not."""

MAX_WASTE = 65536
"""Cells (query, key, head, dimension) of padding that cost about as much as another call, on one core of a CPU."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The keys that a rectangle's queries see in layers with one window."""

    layers: Sequence[tuple[Tensor, Tensor]]
    """Keys and values ``[regions, kv heads, num_keys, dim]`` of each layer."""
    mask: Tensor | None
    """Additive mask ``[regions, 1, queries, num_keys]``. None: all keys are visible, or with several queries, those up
    to each query's own position. If heads are folded, the `group` query heads of one kv head count as adjacent queries.
    """


@dataclass(slots=True)
class _Rectangle:
    """One attention call: ``regions x queries`` against the first `num_keys` keys of each region."""

    places: slice
    """Slice of the step's places for its ``regions x queries``."""
    start: int
    """First cell of the first region."""
    size: int
    """Number of cells of each region."""
    num_regions: int
    num_queries: int
    num_keys: int
    positions: NDArray[np.int64]
    """``int64[regions * queries]``; the last position at a place without a token."""
    first_position: int
    """Lowest position of its tokens."""
    same_length: bool
    """True if all places have a token, and all regions the same length."""
    spans: dict[int | None, _Span] = field(default_factory=dict)
    """Cached spans by window."""

    @property
    def folds_heads(self) -> bool:
        """True if the query heads of a kv head are computed as its queries: for few queries that is 1.5x (float32) to
        7x (bfloat16) faster on a CPU than enable_gqa, which reads the keys once per query head."""
        return self.num_queries <= MAX_SHARED_QUERIES

    def span(self, window: int | None, store: KVStore, masks: Masks, group: int) -> _Span:
        """Return the keys and mask if each query sees the last `window` keys, its own included; None: all up to its
        own."""
        span = self.spans.get(window)
        if span is None:
            span = self.spans[window] = self._span(window, store, masks, group)
        return span

    def _span(self, window: int | None, store: KVStore, masks: Masks, group: int) -> _Span:
        first_key = 0
        if window is not None and self.num_keys > window:
            first_key = max(0, self.first_position - window + 1)
        else:
            window = None
        num_keys = self.num_keys - first_key
        layers = store.views(self.start + first_key, self.num_regions, self.size, num_keys)
        if self.same_length and (self.num_queries == 1 or (window is None and self._whole_prompts)):
            return _Span(layers, None)
        positions = self.positions
        if self.num_queries > 1 and self.folds_heads:
            positions = np.repeat(positions, group)  # for a single query the mask broadcasts over the heads
        mask = masks.rows(positions, first_key, num_keys, window)
        return _Span(layers, mask.view(self.num_regions, 1, -1, num_keys))

    @property
    def _whole_prompts(self) -> bool:
        return self.num_queries == self.num_keys and not self.folds_heads


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One packed row, ready for the model."""

    store: KVStore
    masks: Masks
    windows: Sequence[int | None]
    """Number of keys that each query sees, its own included, by layer; None: all up to its own."""
    group: int
    """Number of query heads per kv head."""
    token_ids: Tensor
    """``int64[1, tokens]``"""
    positions: Tensor
    """``int64[1, tokens]``"""
    rows: Tensor | None
    """``int64[rows]``: tokens of the row whose logits are computed, in the order of the appends; None: all, in
    order."""
    cells: Tensor
    """``int64[tokens]``: cell in the store for each token's keys and values."""
    rectangles: Sequence[_Rectangle]
    padding: Tensor | None
    """``int64[places]``: token at each place of the rectangles, arbitrary where there is none; None: the tokens fill
    the places in order."""
    places: Tensor | None
    """``int64[tokens]``: place of each token, if there is padding."""

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        index = cast("int", layer.layer_idx)
        self.store.write(index, self.cells, key[0], value[0])
        packed = query[0].transpose(0, 1)  # [tokens, heads, dim]
        if self.padding is not None:
            packed = packed.index_select(0, self.padding)
        outputs = [self._call(rectangle, index, packed[rectangle.places], options) for rectangle in self.rectangles]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if self.places is not None:
            output = output.index_select(0, self.places)
        return output.unsqueeze(0)

    def _call(self, rectangle: _Rectangle, layer: int, query: Tensor, options: dict[str, Any]) -> Tensor:
        """Return ``[places, heads, value_dim]`` from `query` ``[places, heads, dim]``."""
        span = rectangle.span(self.windows[layer], self.store, self.masks, self.group)
        num_regions, num_queries, group = rectangle.num_regions, rectangle.num_queries, self.group
        keys, values = span.layers[layer]
        num_places, num_heads, dim = query.shape
        if num_queries == 1:  # same result as the next case, in fewer operations
            query = query.reshape(num_regions, -1, group, dim)
            output = _attend(query, keys, values, span.mask, causal=False, options=options)
        elif rectangle.folds_heads:
            query = query.reshape(num_regions, num_queries, -1, group, dim).transpose(1, 2).flatten(2, 3)
            output = _attend(query, keys, values, span.mask, causal=False, options=options)
            output = output.view(num_regions, -1, num_queries, group, values.shape[3]).transpose(1, 2)
        else:
            query = query.reshape(num_regions, num_queries, num_heads, dim).transpose(1, 2)
            causal = span.mask is None
            output = _attend(query, keys, values, span.mask, causal=causal, options=options).transpose(1, 2)
        return output.reshape(num_places, num_heads, -1)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, causal: bool, options: dict[str, Any]
) -> Tensor:
    """Return ``[regions, heads, queries, value_dim]`` from `query` ``[regions, heads, queries, dim]`` and `keys` and
    `values` ``[regions, kv heads, keys, dim]``. `causal`: with a diagonal mask."""
    scaling, softcap, group = options.get("scaling"), options.get("softcap"), query.shape[1] // keys.shape[1]
    if softcap is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=group > 1
        )
    # as the eager attention of transformers computes it
    if group > 1:
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = query @ keys.transpose(2, 3) * (query.shape[3] ** -0.5 if scaling is None else scaling)
    scores = torch.tanh(scores / softcap) * softcap
    if causal:
        mask = scores.new_full(scores.shape[2:], -torch.inf).triu(1)
    if mask is not None:
        scores = scores + mask
    output: Tensor = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype) @ values
    return output


def pack_step(
    appends: Sequence[Append], store: KVStore, masks: Masks, *, windows: Sequence[int | None], group: int
) -> PackedStep:
    """Return the packed row and the attention calls for `appends`, which must not be empty.

    `windows` and `group` are as in `PackedStep`.
    """
    # sort sequences by region, so that neighbors share a rectangle; long appends at the end
    counts = [len(append.token_ids) for append in appends]
    order = sorted(
        range(len(appends)),
        key=lambda i: (counts[i] > MAX_SHARED_QUERIES, appends[i].region.size, appends[i].region.start),
    )
    ordered = [appends[i] for i in order]
    ordered_counts = np.array([counts[i] for i in order])
    ends = np.cumsum(ordered_counts)
    # token t of a sequence whose tokens start at `first` has position length + t - first
    offsets = np.array([append.length for append in ordered]) - (ends - ordered_counts)
    positions = np.arange(ends[-1]) + np.repeat(offsets, ordered_counts)
    cells = positions + np.repeat([append.region.start for append in ordered], ordered_counts)
    token_ids = np.array([token_id for append in ordered for token_id in append.token_ids], dtype=np.int64)
    last_token = np.empty(len(appends), dtype=np.int64)
    last_token[order] = ends - 1
    rows = _rows(last_token, [append.num_rows for append in appends])

    rectangles = []
    token = place = 0
    places = np.arange(len(positions))
    for members in _rectangles(ordered, store):
        num_tokens = sum(len(member.token_ids) for member in members)
        tokens = slice(token, token + num_tokens)
        rectangle = _rectangle(members, place, positions[tokens], places[tokens])
        rectangles.append(rectangle)
        token, place = tokens.stop, rectangle.places.stop
    padding = None
    if place != token:
        padding = np.zeros(place, dtype=np.int64)
        padding[places] = np.arange(token)

    device = store.keys.device
    return PackedStep(
        store=store,
        masks=masks,
        windows=windows,
        group=group,
        token_ids=torch.from_numpy(token_ids).to(device).unsqueeze(0),
        positions=torch.from_numpy(positions).to(device).unsqueeze(0),
        rows=None if np.array_equal(rows, np.arange(len(positions))) else torch.from_numpy(rows).to(device),
        cells=torch.from_numpy(cells).to(device),
        rectangles=rectangles,
        padding=None if padding is None else torch.from_numpy(padding).to(device),
        places=None if padding is None else torch.from_numpy(places).to(device),
    )


def _rows(last_token: NDArray[np.int64], counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the positions in the packed row of the last ``counts[i]`` tokens of each sequence, one sequence after the
    other."""
    number = np.array(counts, dtype=np.int64)
    if (number == 1).all():
        return last_token
    within = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    rows: NDArray[np.int64] = np.repeat(last_token - number + 1, number) + within
    return rows


def _rectangles(ordered: Sequence[Append], store: KVStore) -> list[list[Append]]:
    """Split `ordered` where sharing a call would cost more padding than another call."""
    width = store.shape.num_heads * store.shape.key_dim
    result: list[list[Append]] = []
    first = queries = keys = useful = size = 0
    for append in ordered:
        region, count = append.region, len(append.token_ids)
        length = append.length + count
        if region.size == size and count <= MAX_SHARED_QUERIES:
            regions = (region.start - first) // size + 1
            area = regions * max(queries, count) * max(keys, length)
            if (area - useful - count * length) * width <= MAX_WASTE:
                result[-1].append(append)
                queries, keys, useful = max(queries, count), max(keys, length), useful + count * length
                continue
        result.append([append])
        first, queries, keys, useful, size = region.start, count, length, count * length, region.size
    return result


def _rectangle(
    members: Sequence[Append], first_place: int, positions: NDArray[np.int64], places: NDArray[np.int64]
) -> _Rectangle:
    """Return the call for `members`, whose tokens have `positions`. Writes the place of each token into `places`; the
    first place of the rectangle is `first_place`."""
    region = members[0].region
    num_regions = (members[-1].region.start - region.start) // region.size + 1
    counts = [len(member.token_ids) for member in members]
    lengths = [member.length + count for member, count in zip(members, counts, strict=True)]
    num_queries, num_keys = max(counts), max(lengths)
    num_places = num_regions * num_queries
    if len(positions) == num_places:
        places[:] = np.arange(first_place, first_place + num_places)
        padded = positions
    else:
        # the k-th token of a member is its query k; a place without a token sees all keys and is not read
        number = np.array(counts)
        within = np.arange(len(positions)) - np.repeat(np.cumsum(number) - number, number)
        regions = [(member.region.start - region.start) // region.size for member in members]
        index = np.repeat(regions, number) * num_queries + within
        padded = np.full(num_places, num_keys - 1)
        padded[index] = positions
        places[:] = first_place + index
    return _Rectangle(
        places=slice(first_place, first_place + num_places),
        start=region.start,
        size=region.size,
        num_regions=num_regions,
        num_queries=num_queries,
        num_keys=num_keys,
        positions=padded,
        first_position=min(member.length for member in members),
        same_length=len(positions) == num_places and min(lengths) == num_keys,
    )
