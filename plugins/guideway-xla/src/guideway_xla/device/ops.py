"""`ArrayOps` on jax arrays: one compiled function each.

Nothing is donated here: if a transform fails halfway, a host reuses the logits that it had, and a donated array would
be deleted. Values that may vary from step to step without another shape (a column, a purpose, a condition) are
arguments of the compiled function, not constants in it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from guideway.api import Array, ArrayOps
from numpy.typing import NDArray

from guideway_xla.device import kernels

__all__ = ["XlaOps"]


class XlaOps(ArrayOps):
    """Operations on arrays that are committed to `device`. Arguments are never changed.

    All arrays must be committed: for other arguments jax compiles a function again.
    """

    def __init__(self, device: jax.Device) -> None:
        self.device = device

    def asarray(self, array: NDArray[Any]) -> Array:
        # A copy, because jax may continue to read the host memory, which the caller is about to reuse.
        copied = np.array(array, order="C")
        if copied.dtype.itemsize < 8:
            return jax.device_put(copied, self.device)
        with jax.enable_x64(True):  # otherwise 64-bit seeds would lose half of their bits
            return jax.device_put(copied, self.device)

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return _add_at(x, rows, columns, values)

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return _scale_rows(x, rows, factors)

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        with _all_bits(x):
            return _where_rows(x, rows, condition, values)

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return _gather_rows(x, rows) if columns is None else _gather(x, rows, columns)

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        with _all_bits(x):
            return _scatter(x, rows, columns, values)

    def cumsum(self, x: Array) -> Array:
        return _cumsum(x)

    def forbid_from(self, x: Array, column: int) -> Array:
        return _forbid_from(x, column)

    def exp(self, x: Array) -> Array:
        return _exp(x)

    def log(self, x: Array) -> Array:
        return _log(x)

    def log_softmax(self, x: Array) -> Array:
        return _log_softmax(x)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = _topk(x, k)
        return values, columns

    def argmax(self, x: Array) -> Array:
        return _argmax(x)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        return _categorical(logprobs, uniforms)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return _uniform(seeds, sequences, positions, np.uint32(purpose & 0xFFFFFFFF), width)

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        return _unpack_bitmask(bitmask, width)


def _all_bits(x: Array) -> AbstractContextManager[object]:
    """Return a context that enables 64-bit numbers if `x` has them, so that writes to it keep all of their bits."""
    wide: AbstractContextManager[object] = jax.enable_x64(True) if x.dtype.itemsize == 8 else nullcontext()
    return wide


def _index(array: jax.Array) -> jax.Array:
    """Convert to int32: without 64-bit numbers enabled, jax does not index with int64."""
    return array.astype(jnp.int32)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


@jax.jit
def _add_at(x: jax.Array, rows: jax.Array, columns: jax.Array, values: jax.Array) -> jax.Array:
    if x.dtype.itemsize < values.dtype.itemsize:  # values out of x's range would be infinite, and NaN with -inf
        most = float(jnp.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
        values = jnp.where(jnp.isinf(values), values, jnp.clip(values, -most, most))
    return x.at[_index(rows), _index(columns)].add(values.astype(x.dtype))


@jax.jit
def _scale_rows(x: jax.Array, rows: jax.Array, factors: jax.Array) -> jax.Array:
    rows = _index(rows)
    return x.at[rows].set((x[rows] * factors[:, None]).astype(x.dtype))  # a factor may not fit float16


@jax.jit
def _where_rows(x: jax.Array, rows: jax.Array, condition: jax.Array, values: jax.Array) -> jax.Array:
    rows = _index(rows)
    return x.at[rows].set(jnp.where(condition, jnp.asarray(values).astype(x.dtype), x[rows]))


@jax.jit
def _gather_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
    return x[_index(rows)]


@jax.jit
def _gather(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    return x[_index(rows)[:, None], _index(columns)]


@jax.jit
def _scatter(x: jax.Array, rows: jax.Array, columns: jax.Array, values: jax.Array) -> jax.Array:
    return x.at[_index(rows)[:, None], _index(columns)].set(values.astype(x.dtype))


@jax.jit
def _cumsum(x: jax.Array) -> jax.Array:
    return _wide(x).cumsum(axis=1)


@jax.jit
def _forbid_from(x: jax.Array, column: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(x.shape[1]) < column, x, jnp.array(-jnp.inf, dtype=x.dtype))


@jax.jit
def _exp(x: jax.Array) -> jax.Array:
    return jnp.exp(x)


@jax.jit
def _log(x: jax.Array) -> jax.Array:
    return jnp.log(x)


@jax.jit
def _log_softmax(x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(_wide(x), axis=1)


@partial(jax.jit, static_argnums=1)
def _topk(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    values, columns = jax.lax.top_k(x, k)
    return values, columns


@jax.jit
def _argmax(x: jax.Array) -> jax.Array:
    return kernels.largest(x)[0]


@jax.jit
def _categorical(logprobs: jax.Array, uniforms: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(_wide(logprobs), axis=1)
    sums = weights.cumsum(axis=1)
    # float32 may round a target up to the total, and a parallel sum need not be monotonic: only columns with a weight
    # count, and the last of them if none is past the target
    heavy = weights > 0
    drawn = kernels.first((sums > uniforms[:, None] * sums[:, -1:]) & heavy)
    last = jnp.where(heavy, jnp.arange(heavy.shape[1], dtype=jnp.int32), 0).max(axis=1)
    return jnp.minimum(drawn, last)


@partial(jax.jit, static_argnums=4)
def _uniform(seeds: jax.Array, sequences: jax.Array, positions: jax.Array, purpose: jax.Array, width: int) -> jax.Array:
    return kernels.uniform(seeds, sequences, positions, purpose, width)


@partial(jax.jit, static_argnums=1)
def _unpack_bitmask(bitmask: jax.Array, width: int) -> jax.Array:
    return kernels.unpack_bitmask(bitmask, width)
