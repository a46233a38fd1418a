"""The device: logits in jax arrays, on any device that XLA compiles for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from guideway.api import Array, DeviceBackend
from guideway.api.device import Draw, Triples
from numpy.typing import NDArray

from guideway_xla.device import kernels
from guideway_xla.device.devices import find_device
from guideway_xla.device.ops import XlaOps

__all__ = ["XlaDevice"]


@dataclass(frozen=True, slots=True)
class _Copying:
    """A `Download` in progress."""

    arrays: Mapping[str, jax.Array]

    def result(self) -> Mapping[str, NDArray[Any]]:
        return {name: np.array(array) for name, array in self.arrays.items()}


class XlaDevice(DeviceBackend):
    """Device backend for jax arrays on one device; each operation is compiled once per shape of its arguments."""

    contract = "1.0"
    name = "xla"
    arrays = "jax"
    fused = frozenset({"masked_argmax", "masked_sample", "warp_masked"})
    static_shapes = True
    ops: XlaOps

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ops = XlaOps(find_device(device))

    @classmethod
    def available(cls) -> str | None:
        # There is always a CPU, and not searching keeps jax from starting threads, after which a process cannot fork.
        if getattr(jax.config, "jax_platforms", None) in (None, "", "cpu"):
            return None
        try:
            jax.devices()
        except Exception as error:  # may be an AssertionError, depending on how jax was installed
            return f"jax finds no device: {type(error).__name__}: {error}"
        return None

    def from_logits(self, logits: Array) -> Array:
        """Return `logits` themselves if they are a jax array on this device. A torch tensor is shared with jax (DLPack)
        if both are on one device and its memory is aligned to 64 bytes, else copied. Do not write to a shared tensor
        until the results computed from it have been downloaded."""
        if hasattr(logits, "detach"):  # a torch tensor
            logits = jax.dlpack.from_dlpack(logits.detach().contiguous())
        if isinstance(logits, jax.Array):
            return jax.device_put(logits, self.ops.device)  # also commits it
        return self.ops.asarray(np.asarray(logits))

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return _apply_bitmask(logits, self._on_device(bitmask), self._on_device(rows))

    def download(self, arrays: Mapping[str, Array]) -> _Copying:
        # only logits may be donated before the copy is done, which would free them too early
        kept = {
            name: _copied(array) if array.ndim == 2 and jnp.issubdtype(array.dtype, jnp.floating) else array
            for name, array in arrays.items()
        }
        for array in kept.values():
            array.copy_to_host_async()
        return _Copying(kept)

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        warp = _warp_masked if logits.dtype != jnp.float32 else _warp_masked_in_place
        return warp(logits, self._on_device(bitmask), self._on_device(rows), added, factors)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, best = _masked_argmax(logits, self._on_device(bitmask), self._on_device(rows), num_tokens)
        return columns, best

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        columns, best = _masked_sample(
            logits,
            self._on_device(bitmask),
            self._on_device(rows),
            num_tokens,
            draw.temperatures,
            draw.seeds,
            draw.sequences,
            draw.positions,
            np.uint32(draw.purpose & 0xFFFFFFFF),
        )
        return columns, best

    def _on_device(self, array: Array) -> Array:
        return self.ops.asarray(array) if isinstance(array, np.ndarray) else array


def _mask(logits: jax.Array, bitmask: jax.Array, rows: jax.Array) -> jax.Array:
    allowed = kernels.allowed(bitmask, rows, *logits.shape)
    return jnp.where(allowed, logits, jnp.array(-jnp.inf, dtype=logits.dtype))


_apply_bitmask = jax.jit(_mask)
_copied = jax.jit(jnp.copy)


def _warp(
    logits: jax.Array,
    bitmask: jax.Array,
    rows: jax.Array,
    added: tuple[jax.Array, jax.Array, jax.Array] | None,
    factors: jax.Array,
) -> jax.Array:
    x = _mask(logits, bitmask, rows).astype(jnp.float32)
    if added is not None:
        places = added[0].astype(jnp.int32), added[1].astype(jnp.int32)
        x = x.at[places].add(added[2].astype(jnp.float32))
    return x * factors[:, None]


_warp_masked = jax.jit(_warp)
_warp_masked_in_place = jax.jit(_warp, donate_argnums=0)


def _mask_in_float32(logits: jax.Array, bitmask: jax.Array, rows: jax.Array, num_tokens: jax.Array) -> jax.Array:
    """Return `logits` in float32, with -inf for tokens that the masks refuse and for columns past the tokens."""
    allowed = kernels.allowed(bitmask, rows, *logits.shape) & (jnp.arange(logits.shape[1]) < num_tokens)
    return jnp.where(allowed, logits.astype(jnp.float32), -jnp.inf)


@jax.jit
def _masked_argmax(
    logits: jax.Array, bitmask: jax.Array, rows: jax.Array, num_tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return kernels.largest(_mask_in_float32(logits, bitmask, rows, num_tokens))


@jax.jit
def _masked_sample(
    logits: jax.Array,
    bitmask: jax.Array,
    rows: jax.Array,
    num_tokens: jax.Array,
    temperatures: jax.Array,
    seeds: jax.Array,
    sequences: jax.Array,
    positions: jax.Array,
    purpose: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    x = _mask_in_float32(logits, bitmask, rows, num_tokens)
    greedy, best = kernels.largest(x)
    cold = temperatures == 0
    u = kernels.uniform(seeds, sequences, positions, purpose, logits.shape[1])
    noisy = x / jnp.where(cold, 1, temperatures)[:, None] - jnp.log(-jnp.log(u))
    return jnp.where(cold, greedy, kernels.largest(noisy)[0]), best
