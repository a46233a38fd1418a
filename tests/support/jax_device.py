"""A jax.numpy device for tests: minimal, with immutable arrays and, by jax's default, without 64-bit numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from guideway.api import bitmask as bits
from guideway.api.device import ArrayOps, DeviceBackend
from guideway.api.hookspecs import hookimpl
from guideway.api.steps import Array
from guideway.devices.philox import philox4x32
from guideway.errors import InvalidConfiguration
from numpy.typing import NDArray

__all__ = ["JaxDevice", "JaxOps"]


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    return JaxDevice


class JaxOps(ArrayOps):
    """All operations on jax arrays; arguments are never changed."""

    def asarray(self, array: NDArray[Any]) -> Array:
        # A copy, because jax may alias host memory that the caller is about to reuse.
        with jax.enable_x64(array.dtype == np.int64):  # seeds must keep their 64 bits
            return jnp.array(array)

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        most = float(jnp.finfo(x.dtype).max)
        values = jnp.where(jnp.isinf(values), values, values.clip(-most, most))
        return x.at[rows, columns].add(values.astype(x.dtype))

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return x.at[rows].set((x[rows] * factors[:, None]).astype(x.dtype))

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        return x.at[rows].set(jnp.where(condition, jnp.asarray(values).astype(x.dtype), x[rows]))

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows] if columns is None else x[rows[:, None], columns]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return x.at[rows[:, None], columns].set(values.astype(x.dtype))

    def cumsum(self, x: Array) -> Array:
        return x.cumsum(axis=1, dtype=jnp.promote_types(x.dtype, jnp.float32))

    def forbid_from(self, x: Array, column: int) -> Array:
        return x.at[:, column:].set(-jnp.inf)

    def exp(self, x: Array) -> Array:
        return jnp.exp(x)

    def log(self, x: Array) -> Array:
        return jnp.log(x)

    def log_softmax(self, x: Array) -> Array:
        return jax.nn.log_softmax(x.astype(jnp.promote_types(x.dtype, jnp.float32)), axis=1)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = jax.lax.top_k(x, k)
        return values, columns

    def argmax(self, x: Array) -> Array:
        return jnp.argmax(x, axis=1)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        return _categorical(logprobs, uniforms)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        key = jax.lax.bitcast_convert_type(seeds, jnp.uint32)  # uint32[m, 2], low word first
        # A host scalar of 32 bits, since a Python int past 2**31 does not fit jax's default integer.
        return _uniform(key, sequences, positions, np.uint32(purpose & 0xFFFFFFFF), width)

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        return _unpack_bitmask(bitmask, width)


@partial(jax.jit, static_argnames="width")
def _uniform(key: Array, sequences: Array, positions: Array, purpose: Array, width: int) -> Array:
    blocks = jnp.arange(-(-width // 4), dtype=jnp.uint32)[None, :]
    counter = (blocks, positions.astype(jnp.uint32)[:, None], sequences.astype(jnp.uint32)[:, None], purpose)
    block = philox4x32(counter, (key[:, :1], key[:, 1:]), multiply_32, jnp.uint32)
    words = jnp.stack(jnp.broadcast_arrays(*block), axis=2).reshape(key.shape[0], 4 * blocks.size)[:, :width]
    return ((words >> 9).astype(jnp.float32) + 0.5) * 2**-23


def multiply_32(word: Array, constant: int) -> tuple[Array, Array]:
    """Return the high and the low word of a product of two words, computed by halves, in uint32 only."""
    low, high = word & 0xFFFF, word >> 16
    constant_low, constant_high = jnp.uint32(constant & 0xFFFF), jnp.uint32(constant >> 16)
    middle = low * constant_high
    carried = high * constant_low + (low * constant_low >> 16)  # at most 2**32 - 2**16 - 1: no overflow
    carry = (carried & 0xFFFF) + (middle & 0xFFFF)
    return high * constant_high + (carried >> 16) + (middle >> 16) + (carry >> 16), word * jnp.uint32(constant)


@jax.jit
def _categorical(logprobs: Array, uniforms: Array) -> Array:
    wide = logprobs.astype(jnp.float32)
    weights = jnp.exp(wide - wide.max(axis=1, keepdims=True))
    cumulative = weights.cumsum(axis=1)
    # Without float64 the target may be rounded up to the total, and a parallel sum need not be monotonic.
    drawn = (cumulative > uniforms[:, None] * cumulative[:, -1:]) & (weights > 0)
    last = logprobs.shape[1] - 1 - jnp.argmax(weights[:, ::-1] > 0, axis=1)
    return jnp.where(drawn.any(axis=1), jnp.argmax(drawn, axis=1), last)


@partial(jax.jit, static_argnames="width")
def _unpack_bitmask(bitmask: Array, width: int) -> Array:
    shifts = jnp.arange(bits.BITS_PER_WORD, dtype=jnp.int32)
    allowed = ((bitmask[:, :, None] >> shifts) & 1).astype(bool)
    allowed = allowed.reshape(bitmask.shape[0], bitmask.shape[1] * bits.BITS_PER_WORD)[:, :width]
    return jnp.pad(allowed, ((0, 0), (0, width - allowed.shape[1])))


@jax.jit
def _apply_bitmask(logits: Array, bitmask: Array, rows: Array) -> Array:
    allowed = _unpack_bitmask(bitmask, logits.shape[1])
    places = jnp.where(rows < 0, logits.shape[0], rows)  # padding is written past the end, and dropped
    return logits.at[places].set(jnp.where(allowed, logits[rows], -jnp.inf), mode="drop")


@dataclass(frozen=True, slots=True)
class _Copying:
    """A `Download` in progress; jax arrays never change, so reading them late is safe."""

    arrays: Mapping[str, Array]

    def result(self) -> Mapping[str, NDArray[Any]]:
        return {name: np.asarray(array) for name, array in self.arrays.items()}


class JaxDevice(DeviceBackend):
    """Device backend for jax arrays on jax's default device."""

    name = "jax"
    arrays = "jax"

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise InvalidConfiguration(f"this device is on 'cpu' only, not on {device!r}", field="device")
        super().__init__(device)
        self.ops = JaxOps()

    def from_logits(self, logits: Array) -> Array:
        """Return `logits` as a jax array; a torch tensor is copied, because torch may overwrite it."""
        if hasattr(logits, "detach"):
            return jnp.array(jnp.from_dlpack(logits.detach().contiguous()))
        return jnp.array(logits)

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        bitmask, rows = (self.ops.asarray(a) if isinstance(a, np.ndarray) else a for a in (bitmask, rows))
        return _apply_bitmask(logits, bitmask, rows)

    def download(self, arrays: Mapping[str, Array]) -> _Copying:
        for array in arrays.values():
            array.copy_to_host_async()
        return _Copying(dict(arrays))
