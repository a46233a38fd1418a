"""A device of the host: NumPy arrays, and loops that numba compiles at their first call for a type of number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration, TokenLists
from numpy.typing import NDArray

LOWEST = {2: np.int16(-1024), 4: np.int32(-8388608)}  # -inf as bits, which are written so that no number is touched
WORDS = {2: np.int16, 4: np.int32}


def mask_rows(bits, words, rows, lowest):
    width = bits.shape[1]
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0:
            continue
        for w in range((width + 31) // 32):
            word = words[i, w] if w < words.shape[1] else 0
            if word == -1:
                continue
            for t in range(32 * w, min(32 * w + 32, width)):
                if not (word >> (t & 31)) & 1:
                    bits[row, t] = lowest


def mask_lists(bits, offsets, token_ids, allow, rows, lowest):
    width = bits.shape[1]
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0:
            continue
        begin = 0
        for j in range(offsets[i], offsets[i + 1]):
            token = token_ids[j]
            if token >= width:
                break
            if allow[i]:
                bits[row, begin:token] = lowest
                begin = token + 1
            else:
                bits[row, token] = lowest
        if allow[i]:
            bits[row, begin:] = lowest


def largest_rows(x, words, entries, num_tokens, columns, values):
    for row in range(x.shape[0]):
        entry, best, column, undefined = entries[row], -np.inf, 0, False
        for t in range(num_tokens):
            if entry >= 0 and (t >= 32 * words.shape[1] or not (words[entry, t >> 5] >> (t & 31)) & 1):
                continue
            value = x[row, t]
            if value != value:
                undefined = True
            elif value > best:
                best, column = value, t
        columns[row], values[row] = column, np.nan if undefined else best


def draw_rows(x, uniforms, columns):
    for row in range(x.shape[0]):
        largest = -np.inf
        for value in x[row]:
            largest = max(largest, value)
        total = 0.0
        for value in x[row]:
            total += np.exp(value - largest)
        goal, so_far = uniforms[row] * total, 0.0
        for t in range(x.shape[1]):
            weight = np.exp(x[row, t] - largest)
            if weight > 0:
                columns[row] = t
                so_far += weight
                if so_far > goal:
                    break


def philox_rows(seeds, sequences, positions, purpose, out):
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for i in range(seeds.shape[0]):
        for block in range((out.shape[1] + 3) // 4):
            a, b = np.uint64(block), np.uint64(positions[i]) & low
            c, d = np.uint64(sequences[i]) & low, np.uint64(purpose) & low
            k0, k1 = np.uint64(seeds[i]) & low, np.uint64(seeds[i]) >> half
            for _ in range(10):
                p, q = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
                a, b, c, d = (q >> half) ^ b ^ k0, q & low, (p >> half) ^ d ^ k1, p & low
                k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
            for j, word in enumerate((a, b, c, d)):
                if 4 * block + j < out.shape[1]:
                    out[i, 4 * block + j] = np.float32((np.float64(word >> np.uint64(9)) + 0.5) * 2.0**-23)


class Compiled:
    """Loops by name and by the types of their arguments, compiled when they are first asked for."""

    def __init__(self) -> None:
        self.loops: dict[str, Callable[..., None]] = {}

    def __call__(self, loop: Callable[..., None], *arguments: Any) -> None:
        if loop.__name__ not in self.loops:
            from numba import njit

            self.loops[loop.__name__] = njit(loop, nogil=True, cache=True)
        self.loops[loop.__name__](*arguments)


class LoopOps(ArrayOps):
    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def asarray(self, array: NDArray[Any]) -> Array:
        return np.array(array, order="C")

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        most = np.float32(np.finfo(x.dtype).max)
        values = np.where(np.isinf(values), values, np.clip(values, -most, most))
        np.add.at(x, (rows, columns), values.astype(x.dtype))
        return x

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            x[rows] = (x[rows] * factors[:, None]).astype(x.dtype)
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        x[rows] = np.where(condition, np.asarray(values).astype(x.dtype), x[rows])
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows] if columns is None else x[rows[:, None], columns]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows[:, None], columns] = values
        return x

    def cumsum(self, x: Array) -> Array:
        return np.cumsum(x, axis=1, dtype=np.promote_types(x.dtype, np.float32))

    def forbid_from(self, x: Array, column: int) -> Array:
        x[:, column:] = -np.inf
        return x

    def exp(self, x: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.exp(x))

    def log(self, x: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(x))

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.promote_types(x.dtype, np.float32))
        with np.errstate(invalid="ignore", divide="ignore", under="ignore"):
            x -= x.max(axis=1, keepdims=True)
            return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        columns = np.argpartition(x, x.shape[1] - k, axis=1)[:, x.shape[1] - k :]
        values = np.take_along_axis(x, columns, axis=1)
        order = np.argsort(values, axis=1)[:, ::-1]
        return np.take_along_axis(values, order, axis=1), np.take_along_axis(columns, order, axis=1)

    def argmax(self, x: Array) -> Array:
        return np.argmax(x, axis=1)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        columns = np.zeros(len(logprobs), dtype=np.int64)
        self.compiled(draw_rows, logprobs.astype(np.float64), uniforms.astype(np.float64), columns)
        return columns

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        out = np.empty((len(seeds), width), dtype=np.float32)
        wide = (np.array(a, dtype=np.int64) for a in (seeds, sequences, positions))
        self.compiled(philox_rows, *wide, purpose, out)
        return out

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        as_bytes = np.ascontiguousarray(bitmask).view(np.uint8)
        allowed = np.zeros((len(bitmask), width), dtype=np.bool_)
        known = min(width, 32 * bitmask.shape[1])
        allowed[:, :known] = np.unpackbits(as_bytes, axis=1, count=known, bitorder="little")
        return allowed


class Copied:
    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = {name: np.array(array) for name, array in arrays.items()}

    def result(self) -> Mapping[str, NDArray[Any]]:
        return self.arrays


class Loops(DeviceBackend):
    contract = "1.0"
    name = "loops"
    arrays = "numpy"
    fused = frozenset({"apply_token_lists", "masked_argmax"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"loops run on 'cpu', not on {device!r}", field="device")
        self.ops = LoopOps(Compiled())

    @classmethod
    def available(cls) -> str | None:
        return None if find_spec("numba") else "numba is not installed"

    def from_logits(self, logits: Array) -> Array:
        if hasattr(logits, "detach"):
            logits = logits.detach()
            logits = (logits.float() if "bfloat16" in str(logits.dtype) else logits).numpy()
        inner, outer = sorted((abs(stride), size) for stride, size in zip(logits.strides, logits.shape, strict=True))
        apart = inner[0] >= logits.itemsize and outer[0] >= inner[0] * inner[1]
        return logits if apart and logits.flags.writeable else np.array(logits, order="C")

    def _bits(self, logits: Array) -> tuple[Array, Any]:
        return logits.view(WORDS[logits.itemsize]), LOWEST[logits.itemsize]

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        bits, lowest = self._bits(logits)
        self.ops.compiled(mask_rows, bits, bitmask, rows, lowest)
        return logits

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        bits, lowest = self._bits(logits)
        self.ops.compiled(mask_lists, bits, lists.offsets, lists.token_ids, lists.allow, rows, lowest)
        return logits

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        entries = np.full(len(logits), -1, dtype=np.int64)
        entries[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        columns, values = np.zeros(len(logits), dtype=np.int64), np.empty(len(logits), dtype=np.float32)
        self.ops.compiled(largest_rows, logits.astype(np.float32), bitmask, entries, num_tokens, columns, values)
        return columns, values

    def download(self, arrays: Mapping[str, Array]) -> Copied:
        return Copied(arrays)
