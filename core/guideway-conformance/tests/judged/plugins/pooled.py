"""Device `pooled`: NumPy arrays that never change once they are made, in memory that comes from a pool and returns to
it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, Draw, InvalidConfiguration, Payload
from guideway.devices.philox import WORD, multiply_64, philox4x32
from numpy.typing import NDArray

ALIGN = 64


class Pool:
    """Blocks by size. One returns when the last array that lies in it is gone."""

    def __init__(self) -> None:
        self.free: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(deque)

    def raw(self, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` of memory, of which views may be made."""
        size = max(ALIGN, 1 << (nbytes - 1).bit_length() if nbytes else 0)
        return np.asarray(Lease(self, size))[:nbytes]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        dtype = np.dtype(dtype)
        return self.raw(dtype.itemsize * int(np.prod(shape))).view(dtype).reshape(shape)

    def copy(self, array: Array) -> Array:
        result = self.empty(array.shape, array.dtype)
        result[...] = array
        return result


class Lease:
    """The base of the arrays of a block."""

    def __init__(self, pool: Pool, size: int) -> None:
        self.free = pool.free[size]
        try:
            self.memory = self.free.pop()
        except IndexError:
            self.memory = np.empty(size, dtype=np.uint8)
        self.__array_interface__ = self.memory.__array_interface__

    def __del__(self) -> None:
        if len(self.free) < 32:
            self.free.append(self.memory)


class PoolOps(ArrayOps):
    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def asarray(self, array: NDArray[Any]) -> Array:
        return self.pool.copy(np.asarray(array))

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x = self.pool.copy(x)
        most = np.float32(np.finfo(x.dtype).max)
        with np.errstate(all="ignore"):
            np.add.at(x, (rows, columns), np.where(np.isinf(values), values, values.clip(-most, most)).astype(x.dtype))
        return x

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        x = self.pool.copy(x)
        with np.errstate(all="ignore"):
            x[rows] = x[rows] * factors[:, None]
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        x = self.pool.copy(x)
        with np.errstate(all="ignore"):
            x[rows] = np.where(condition, np.asarray(values).astype(x.dtype), x[rows])
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return self.pool.copy(x[rows] if columns is None else x[rows[:, None], columns])

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x = self.pool.copy(x)
        with np.errstate(all="ignore"):
            x[rows[:, None], columns] = values
        return x

    def cumsum(self, x: Array) -> Array:
        result = self.pool.empty(x.shape, np.promote_types(x.dtype, np.float32))
        return np.cumsum(x, axis=1, dtype=result.dtype, out=result)

    def forbid_from(self, x: Array, column: int) -> Array:
        x = self.pool.copy(x)
        x[:, column:] = -np.inf
        return x

    def exp(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.exp(x, out=self.pool.empty(x.shape, x.dtype))

    def log(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.log(x, out=self.pool.empty(x.shape, x.dtype))

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.promote_types(x.dtype, np.float32))
        with np.errstate(all="ignore"):
            x = x - x.max(axis=1, keepdims=True)
            return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        columns = np.argpartition(-x, k - 1, axis=1)[:, :k]
        values = np.take_along_axis(x, columns, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        return np.take_along_axis(values, order, axis=1), np.take_along_axis(columns, order, axis=1)

    def argmax(self, x: Array) -> Array:
        return x.argmax(axis=1)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        x = logprobs.astype(np.float64)
        weights = np.exp(x - x.max(axis=1, keepdims=True))
        sums = weights.cumsum(axis=1)
        targets = uniforms * sums[:, -1]
        # a column of no weight adds nothing to the sum, so the first sum that is larger is never at one
        return np.array(
            [np.searchsorted(s, t, side="right") for s, t in zip(sums, targets, strict=True)], dtype=np.int64
        )

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds, sequences, positions = (a.astype(np.int64)[:, None] for a in (seeds, sequences, positions))
        blocks = np.broadcast_to(np.arange(-(-width // 4)), (len(seeds), -(-width // 4)))
        counter = (blocks, positions & WORD, sequences & WORD, np.int64(purpose & WORD))
        with np.errstate(all="ignore"):
            block = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
        words = np.stack(np.broadcast_arrays(*block), axis=2).reshape(len(seeds), 4 * blocks.shape[1])[:, :width]
        return ((words >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        tokens = np.arange(min(width, 32 * bitmask.shape[1]))
        allowed = self.pool.empty((len(bitmask), width), np.bool_)
        allowed[:, : len(tokens)] = bitmask[:, tokens // 32] >> (tokens % 32).astype(np.int32) & 1
        allowed[:, len(tokens) :] = False
        return allowed


class Landing:
    def __init__(self, copies: Mapping[str, Future[NDArray[Any]]]) -> None:
        self.copies = copies

    def result(self) -> Mapping[str, NDArray[Any]]:
        return {name: copy.result() for name, copy in self.copies.items()}


class Pooled(DeviceBackend):
    contract = "1.0"
    name = "pooled"
    arrays = "numpy"
    fused = frozenset({"masked_argmax", "masked_sample"})
    ops: PoolOps

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"pooled runs on 'cpu', not on {device!r}", field="device")
        self.pool = Pool()
        self.ops = PoolOps(self.pool)
        self.copiers = ThreadPoolExecutor(1, thread_name_prefix="pooled")

    def from_logits(self, logits: Array) -> Array:
        if not isinstance(logits, np.ndarray):
            logits = logits.detach()
            logits = (logits.float() if "bfloat16" in str(logits.dtype) else logits).numpy()
        return self.pool.copy(logits)

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        logits = self.pool.copy(logits)
        real = rows != -1
        block = logits[rows[real]]
        block[~self.ops.unpack_bitmask(bitmask[real], logits.shape[1])] = -np.inf
        logits[rows[real]] = block
        return logits

    def _considered(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> Array:
        return self.apply_bitmask(logits, bitmask, rows)[:, :num_tokens].astype(np.float32)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        x = self._considered(logits, bitmask, rows, num_tokens)
        columns = x.argmax(axis=1)  # of a NaN, where there is one
        return columns, x[np.arange(len(x)), columns]

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        x = self._considered(logits, bitmask, rows, num_tokens)
        greedy = x.argmax(axis=1)
        tokens = greedy.copy()
        warm = np.flatnonzero(draw.temperatures != 0)
        if len(warm):
            u = self.ops.uniform(
                draw.seeds[warm], draw.sequences[warm], draw.positions[warm], draw.purpose, x.shape[1]
            ).astype(np.float64)
            scaled = x[warm].astype(np.float64) / draw.temperatures[warm].astype(np.float64)[:, None]
            tokens[warm] = (scaled - np.log(-np.log(u))).argmax(axis=1)
        return tokens, x[np.arange(len(x)), greedy]

    def upload(self, payload: Payload) -> Payload:
        """All arrays of a payload in one block of memory, one after the other."""
        groups: list[dict[str, NDArray[Any]]] = [{"": payload.rows}, dict(payload.arrays), dict(payload.shared)]
        sizes = [-(-array.nbytes // ALIGN) * ALIGN for group in groups for array in group.values()]
        block, at = self.pool.raw(sum(sizes)), 0
        moved: list[dict[str, Array]] = [{}, {}, {}]
        for group, target in zip(groups, moved, strict=True):
            for name, array in group.items():
                target[name] = block[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
                target[name][...] = array
                at += -(-array.nbytes // ALIGN) * ALIGN
        return replace(payload, rows=moved[0][""], arrays=moved[1], shared=moved[2])

    def download(self, arrays: Mapping[str, Array]) -> Landing:
        return Landing({name: self.copiers.submit(np.array, array) for name, array in arrays.items()})

    def close(self) -> None:
        self.copiers.shutdown(wait=True)
