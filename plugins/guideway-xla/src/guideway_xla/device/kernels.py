"""The parts of compiled functions; each is traced as part of a larger function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from guideway.api.bitmask import BITS_PER_WORD, num_words
from guideway.devices.philox import philox4x32

__all__ = ["allowed", "first", "largest", "uniform", "unpack_bitmask"]


def unpack_bitmask(bitmask: jax.Array, width: int) -> jax.Array:
    """Return ``bool[rows, width]`` for ``int32[rows, words]``; tokens past the last word are forbidden."""
    words = _whole_rows(bitmask, width)
    bits = (words[:, :, None] >> jnp.arange(BITS_PER_WORD, dtype=jnp.int32)) & 1
    return bits.reshape(len(words), words.shape[1] * BITS_PER_WORD)[:, :width] != 0


def allowed(bitmask: jax.Array, rows: jax.Array, num_rows: int, width: int) -> jax.Array:
    """Return ``bool[num_rows, width]``: the tokens that the masks allow in their `rows`; masks for row -1 are ignored,
    and other rows allow everything.

    The packed words are scattered to the rows, which moves a 32nd of what scattering the logits would.
    """
    words = _whole_rows(bitmask, width)
    rows = rows.astype(jnp.int32)
    rows = jnp.where(rows < 0, num_rows, rows)  # jax would count negative rows from the end
    full = jnp.full((num_rows, words.shape[1]), -1, dtype=jnp.int32)
    return unpack_bitmask(full.at[rows].set(words, mode="drop"), width)


def _whole_rows(bitmask: jax.Array, width: int) -> jax.Array:
    """Return `bitmask` with exactly the words of `width` tokens; missing words allow nothing."""
    wanted = num_words(width)
    return jnp.pad(bitmask[:, :wanted], ((0, 0), (0, max(0, wanted - bitmask.shape[1]))))


def first(condition: jax.Array) -> jax.Array:
    """Return ``int32[rows]``: the first column where `condition` ``bool[rows, width]`` is true, or the width if none.

    This uses a plain reduction, which XLA vectorizes on a CPU. It does not vectorize `jnp.argmax`, which reduces values
    and columns together and takes ten times as long.
    """
    width = condition.shape[1]
    columns: jax.Array = jnp.where(condition, jnp.arange(width, dtype=jnp.int32), width).min(axis=1)
    return columns


def largest(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ``int32[rows]`` and ``[rows]``: the column of each row's largest value, the first of equals, and the
    value. For a row with NaN the value is NaN and the column 0."""
    # on a CPU, XLA's maximum ignores NaN in wide rows
    values = jnp.where(jnp.isnan(x).any(axis=1), jnp.nan, x.max(axis=1))
    columns = first(x == values[:, None])
    return jnp.where(columns < x.shape[1], columns, 0), values


def uniform(seeds: jax.Array, sequences: jax.Array, positions: jax.Array, purpose: jax.Array, width: int) -> jax.Array:
    """Compute `ArrayOps.uniform` in 32-bit arithmetic only, because a TPU has no other. `purpose` is a uint32."""
    key = jax.lax.bitcast_convert_type(seeds, jnp.uint32)  # [m, 2], low word first
    blocks = jnp.arange(-(-width // 4), dtype=jnp.uint32)[None, :]
    counter = (blocks, positions.astype(jnp.uint32)[:, None], sequences.astype(jnp.uint32)[:, None], purpose)
    block = philox4x32(counter, (key[:, :1], key[:, 1:]), _multiply_32, jnp.uint32)
    words = jnp.stack(jnp.broadcast_arrays(*block), axis=2).reshape(len(seeds), 4 * blocks.size)[:, :width]
    unit: jax.Array = ((words >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2**-23)
    return unit


def _multiply_32(word: jax.Array, constant: int) -> tuple[jax.Array, jax.Array]:
    """Return the high and the low word of a product of two words, computed by halves."""
    low, high = word & 0xFFFF, word >> 16
    constant_low, constant_high = jnp.uint32(constant & 0xFFFF), jnp.uint32(constant >> 16)
    middle = low * constant_high
    carried = high * constant_low + (low * constant_low >> 16)  # at most 2**32 - 2**16 - 1: no overflow
    carry = (carried & 0xFFFF) + (middle & 0xFFFF)
    return high * constant_high + (carried >> 16) + (middle >> 16) + (carry >> 16), word * jnp.uint32(constant)
