"""Logits in NumPy arrays: masks by a kernel of numba, choices a block of columns at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration, TokenLists
from numba import types
from numpy.typing import NDArray

BLOCK = 8192
WORD = np.uint64(0xFFFFFFFF)
FLOATS = {2: (np.uint16, 0xFC00), 4: (np.uint32, 0xFF800000)}
"""By the size of a float: integers of that size, and which of them is -inf."""


def _view(kind: Any, ndim: int) -> Any:
    return types.Array(kind, ndim, "A", readonly=True)


@numba.njit(
    [
        types.void(types.Array(kind, 2, "A"), _view(types.int32, 2), _view(row, 1), kind)
        for kind in (types.uint16, types.uint32)
        for row in (types.int32, types.int64)
    ],
    nogil=True,
)
def _forbid(logits, bitmask, rows, minus_infinity):  # type: ignore[no-untyped-def]
    width, words = logits.shape[1], bitmask.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        if row == -1:
            continue
        for word in range((width + 31) // 32):
            bits = bitmask[i, word] if word < words else 0
            if bits == -1:
                continue
            for token in range(32 * word, min(32 * word + 32, width)):
                if not (bits >> (token & 31)) & 1:
                    logits[row, token] = minus_infinity


class BlockOps(ArrayOps):
    def asarray(self, array: NDArray[Any]) -> Array:
        return np.array(array, order="C")

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        with np.errstate(over="ignore"):
            most = np.float32(np.finfo(x.dtype).max)
            values = np.where(np.isinf(values), values, np.clip(values, -most, most))
            np.add.at(x, (rows, columns), values.astype(x.dtype))
        return x

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        with np.errstate(over="ignore"):
            x[rows] = x[rows] * factors[:, None]
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        kept = x[rows]
        x[rows] = np.where(condition, np.asarray(values).astype(x.dtype), kept)
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        if columns is None:
            return np.take(x, rows, axis=0)
        return np.take_along_axis(x[rows], columns.astype(np.int64), axis=1)

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows[:, None], columns] = values
        return x

    def cumsum(self, x: Array) -> Array:
        sums = np.empty(x.shape, dtype=np.float64)
        carried = np.zeros((len(x), 1))
        for first in range(0, x.shape[1], BLOCK):
            part = x[:, first : first + BLOCK].cumsum(axis=1, dtype=np.float64) + carried
            sums[:, first : first + BLOCK] = part
            carried = part[:, -1:]
        return sums.astype(np.promote_types(x.dtype, np.float32))

    def forbid_from(self, x: Array, column: int) -> Array:
        x[:, column:] = -np.inf
        return x

    def exp(self, x: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.exp(x)

    def log(self, x: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(x)

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.promote_types(x.dtype, np.float32))
        shifted = x - x.max(axis=1, keepdims=True)
        with np.errstate(under="ignore"):
            total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
        return shifted - np.log(total).astype(x.dtype)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        width = x.shape[1]
        some = np.argpartition(x, width - k, axis=1)[:, width - k :] if k < width else np.indices(x.shape)[1]
        values = np.take_along_axis(x, some, axis=1)
        order = np.argsort(values, axis=1)[:, ::-1]
        return np.take_along_axis(values, order, axis=1), np.take_along_axis(some, order, axis=1)

    def argmax(self, x: Array) -> Array:
        best = x[:, 0].copy()
        found = np.zeros(len(x), dtype=np.int64)
        for first in range(0, x.shape[1], BLOCK):
            part = x[:, first : first + BLOCK]
            columns = part.argmax(axis=1)
            largest = part[np.arange(len(x)), columns]
            better = largest > best
            found[better] = first + columns[better]
            best[better] = largest[better]
        return found

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        wide = logprobs.astype(np.float64)
        weights = np.exp(wide - wide.max(axis=1, keepdims=True))
        sums = weights.cumsum(axis=1)
        past = sums > uniforms.astype(np.float64)[:, None] * sums[:, -1:]
        return (past & (weights > 0)).argmax(axis=1)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds, sequences, positions = (
            a.astype(np.int64).view(np.uint64)[:, None] for a in (seeds, sequences, positions)
        )
        blocks = -(-width // 4)
        c0 = np.broadcast_to(np.arange(blocks, dtype=np.uint64), (len(seeds), blocks))
        c1, c2, c3 = positions & WORD, sequences & WORD, np.uint64(purpose & 0xFFFFFFFF)
        k0, k1 = seeds & WORD, seeds >> np.uint64(32)
        for _ in range(10):
            one, two = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
            c0, c2 = (two >> np.uint64(32)) ^ c1 ^ k0, (one >> np.uint64(32)) ^ c3 ^ k1
            c1, c3 = two & WORD, one & WORD
            k0, k1 = (k0 + np.uint64(0x9E3779B9)) & WORD, (k1 + np.uint64(0xBB67AE85)) & WORD
        words = np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=2).reshape(len(seeds), 4 * blocks)[:, :width]
        return ((words >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        count = min(width, 32 * bitmask.shape[1])
        allowed = np.zeros((len(bitmask), width), dtype=np.bool_)
        as_bytes = np.ascontiguousarray(bitmask, dtype="<i4").view(np.uint8)
        allowed[:, :count] = np.unpackbits(as_bytes, axis=1, bitorder="little", count=count)
        return allowed


@dataclass(frozen=True)
class Done:
    arrays: Mapping[str, NDArray[Any]]

    def result(self) -> Mapping[str, NDArray[Any]]:
        return self.arrays


class Blocks(DeviceBackend):
    contract = "1.0"
    name = "blocks"
    arrays = "numpy"
    fused = frozenset({"apply_token_lists", "masked_argmax"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"numpy has no device {device!r}, only 'cpu'", field="device")
        self.ops: BlockOps = BlockOps()

    @classmethod
    def available(cls) -> str | None:
        return None if sys.byteorder == "little" else "its masks are for little-endian machines"

    def from_logits(self, logits: Array) -> Array:
        if hasattr(logits, "detach"):  # a tensor of torch
            tensor = logits.detach()
            logits = (
                tensor.float() if tensor.dtype.itemsize == 2 and "bfloat16" in str(tensor.dtype) else tensor
            ).numpy()
        if not logits.flags.writeable or 0 in logits.strides:  # rows that share memory are no rows to write to
            return logits.copy(order="C")
        return logits

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        kind, minus_infinity = FLOATS[logits.itemsize]
        _forbid(logits.view(kind), bitmask, rows, kind(minus_infinity))
        return logits

    def download(self, arrays: Mapping[str, Array]) -> Done:
        return Done({name: np.array(array) for name, array in arrays.items()})

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        width = logits.shape[1]
        for i, row in enumerate(rows.tolist()):
            if row == -1:
                continue
            tokens = lists.token_ids[lists.offsets[i] : lists.offsets[i + 1]]
            tokens = tokens[: np.searchsorted(tokens, width)]  # they are ascending
            if lists.allow[i]:
                kept = logits[row, tokens]
                logits[row] = -np.inf
                logits[row, tokens] = kept
            else:
                logits[row, tokens] = -np.inf
        return logits

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        num_rows = len(logits)
        entry = np.full(num_rows, -1)
        entry[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        masked = np.flatnonzero(entry >= 0)
        best = np.full(num_rows, -np.inf, dtype=np.float32)
        found = np.zeros(num_rows, dtype=np.int64)
        for first in range(0, num_tokens, BLOCK):
            part = logits[:, first : min(first + BLOCK, num_tokens)].astype(np.float32)
            words = bitmask[entry[masked], first // 32 : (first + BLOCK) // 32]
            allowed = self.ops.unpack_bitmask(words, part.shape[1])
            part[masked] = np.where(allowed, part[masked], -np.inf)
            columns = part.argmax(axis=1)
            largest = part[np.arange(num_rows), columns]
            better = (largest > best) | np.isnan(largest)
            found[better] = first + columns[better]
            best[better] = largest[better]
        return found, best
