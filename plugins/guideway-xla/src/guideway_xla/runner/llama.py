"""Llama in jax: one compiled forward pass over a packed step.

A step's tokens are adjacent, whichever sequences they belong to. For attention they are divided into blocks of
neighboring tokens of one sequence. Each block attends to its sequence's cells, a few at a time with a running softmax,
for as many rounds as the longest sequence of the step needs: so shapes are fixed while the work is not.
(Milakov, Gimelshein: Online normalizer calculation for softmax, 2018.)
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["KEYS", "Cache", "Llama", "Shape", "Weights", "forward", "move"]

KEYS = 128
"""Cells that attention reads at once. The cache needs as many more cells, with zeros, after the last."""

Weights: TypeAlias = dict[str, Any]
"""``embedding``, ``norm`` and ``head``, and ``layers`` with the stacked weights of all layers, layer axis first."""


Cache: TypeAlias = tuple[jax.Array, jax.Array]
"""Keys and values, each ``[layers, cells + KEYS, kv heads, head dim]``."""


class Llama(NamedTuple):
    """The constants of a model's computation. A tuple, because jax compares it in each call and can compare tuples
    without running Python."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


class Shape(NamedTuple):
    """The fixed sizes of a step; see `Step`."""

    num_tokens: int
    num_rows: int
    num_blocks: int
    block_size: int
    """Maximum tokens of one block."""


class Step(NamedTuple):
    """One packed step. Its fields are parts of one int32 array, in this order."""

    token_ids: jax.Array
    """``[tokens]``"""
    positions: jax.Array
    """``[tokens]``: the tokens' positions in their sequences."""
    cells: jax.Array
    """``[tokens]``: the cells for their keys and values; past all cells for padding."""
    places: jax.Array
    """``[tokens]``: the token's place in its block, plus `block_size` times its block."""
    rows: jax.Array
    """``[rows]``: the tokens whose logits are returned."""
    starts: jax.Array
    """``[blocks]``: the first cell of the block's sequence."""
    firsts: jax.Array
    """``[blocks]``: the block's first token; the others follow it."""
    counts: jax.Array
    """``[blocks]``: the block's number of tokens."""


def _unpack(packed: jax.Array, shape: Shape) -> Step:
    tokens, rows, blocks, _ = shape
    sizes = (tokens, tokens, tokens, tokens, rows, blocks, blocks, blocks)
    return Step(*jnp.split(packed, list(itertools.accumulate(sizes[:-1]))))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def forward(
    model: Llama, shape: Shape, weights: Weights, cache: Cache, packed: jax.Array
) -> tuple[Cache, jax.Array, jax.Array]:
    """Run the `packed` step. Return the cache with its keys and values, logits ``float32[rows, width]``, and the hidden
    states ``[rows, hidden]`` that they are computed from."""
    step = _unpack(packed, shape)
    cosine, sine = _rotary(model, step.positions)
    num_chunks = step.positions.max() // KEYS + 1
    places = jnp.arange(shape.block_size)
    # past a block's end any token will do, as its result is not read; it attends to nothing that the block does not
    queries = jnp.minimum(step.firsts[:, None] + places, shape.num_tokens - 1)
    query_positions = jnp.where(places < step.counts[:, None], step.positions[queries], 0)
    precision = "highest" if weights["embedding"].dtype == jnp.float32 else "default"

    def layer(index: jax.Array, carry: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
        x, cache = carry
        of_layer = jax.tree.map(lambda stacked: lax.dynamic_index_in_dim(stacked, index, keepdims=False), layers)
        normed = _rms_norm(x, of_layer["input_norm"], model.rms_norm_eps)
        query, key, value = (
            (normed @ of_layer[name].T).reshape(shape.num_tokens, -1, model.head_dim) for name in ("q", "k", "v")
        )
        query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        keys, values = cache
        keys = keys.at[index, step.cells].set(key, mode="drop")
        values = values.at[index, step.cells].set(value, mode="drop")
        cache = keys, values
        attended = _attend(query[queries], query_positions, step.starts, cache, index, num_chunks)
        attended = attended.reshape(shape.num_blocks * shape.block_size, -1)[step.places].astype(x.dtype)
        x = x + attended @ of_layer["o"].T
        normed = _rms_norm(x, of_layer["post_norm"], model.rms_norm_eps)
        x = x + (jax.nn.silu(normed @ of_layer["gate"].T) * (normed @ of_layer["up"].T)) @ of_layer["down"].T
        return x, cache

    layers = weights["layers"]
    with jax.default_matmul_precision(precision):
        x, cache = lax.fori_loop(0, model.num_layers, layer, (weights["embedding"][step.token_ids], cache))
        hidden = _rms_norm(x[step.rows], weights["norm"], model.rms_norm_eps)
        logits = (hidden @ weights["head"].T).astype(jnp.float32)
    return cache, logits, hidden


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return weight * wide.astype(x.dtype)


def _rotary(model: Llama, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cosine and sine, ``float32[tokens, 1, head dim]``, of each position's angles."""
    exponents = jnp.arange(0, model.head_dim, 2, dtype=jnp.float32) / model.head_dim
    angles = positions.astype(jnp.float32)[:, None] / model.rope_theta**exponents
    angles = jnp.concatenate([angles, angles], axis=1)[:, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Rotate ``[tokens, heads, dim]`` by position, each dimension of the first half with its partner in the second."""
    first, second = jnp.split(x, 2, axis=-1)
    return x * cosine.astype(x.dtype) + jnp.concatenate([-second, first], axis=-1) * sine.astype(x.dtype)


def _attend(
    query: jax.Array, positions: jax.Array, starts: jax.Array, cache: Cache, layer: jax.Array, num_chunks: jax.Array
) -> jax.Array:
    """Return ``float32[blocks, queries, heads * dim]`` for `query` ``[blocks, queries, heads, dim]`` at `positions`
    ``[blocks, queries]``: attention to all keys up to the query's own position."""
    num_blocks, num_queries, num_heads, dim = query.shape
    num_kv_heads = cache[0].shape[2]
    query = query.reshape(num_blocks, num_queries, num_kv_heads, num_heads // num_kv_heads, dim)
    query = query * jnp.asarray(dim**-0.5, dtype=query.dtype)

    def cells(stored: jax.Array, chunk: jax.Array) -> jax.Array:
        """Return ``[blocks, KEYS, kv heads, dim]``."""
        take = (1, KEYS, num_kv_heads, dim)
        return jax.vmap(lambda start: lax.dynamic_slice(stored, (layer, start + chunk * KEYS, 0, 0), take)[0])(starts)

    def chunk(index: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        largest, total, output = carry
        places = index * KEYS + jnp.arange(KEYS)
        visible = places <= positions[:, :, None]  # [blocks, queries, KEYS]
        # a cell that no query of the block may see can be another sequence's, and contain NaN
        ours = visible.any(axis=1)[:, :, None, None]
        keys, values = (jnp.where(ours, cells(stored, index), 0) for stored in cache)
        scores = jnp.einsum("bqhgd,bkhd->bqhgk", query, keys, preferred_element_type=jnp.float32)
        scores = jnp.where(visible[:, :, None, None, :], scores, -jnp.inf)
        new_largest = jnp.maximum(largest, scores.max(axis=-1))
        weights = jnp.exp(scores - new_largest[..., None])
        kept = jnp.exp(largest - new_largest)
        total = total * kept + weights.sum(axis=-1)
        added = jnp.einsum(
            "bqhgk,bkhd->bqhgd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        return new_largest, total, output * kept[..., None] + added

    heads = query.shape[:4]
    # every query sees its sequence's first key, so the largest score is finite after the first chunk
    start = (jnp.full(heads, -jnp.inf), jnp.zeros(heads), jnp.zeros(query.shape, dtype=jnp.float32))
    _, total, output = lax.fori_loop(0, num_chunks, chunk, start)
    attended: jax.Array = (output / total[..., None]).reshape(num_blocks, num_queries, num_heads * dim)
    return attended


@partial(jax.jit, static_argnums=4, donate_argnums=0)
def move(cache: Cache, source: jax.Array, target: jax.Array, count: jax.Array, most: int) -> tuple[Cache]:
    """Return the cache with `count` cells, at most `most`, copied from `source` to `target`; set to zero if `source` is
    -1."""
    places = jnp.arange(most)
    num_cells = cache[0].shape[1]
    taken = jnp.minimum(jnp.maximum(source, 0) + places, num_cells - 1)
    into = jnp.where(places < count, target + places, num_cells)  # past all cells: dropped
    keys, values = (stored.at[:, into].set(jnp.where(source < 0, 0, stored[:, taken]), mode="drop") for stored in cache)
    return ((keys, values),)
