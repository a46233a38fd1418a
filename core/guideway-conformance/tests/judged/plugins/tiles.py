"""Device `tiles`: logits in NumPy arrays, worked on a tile of columns at a time, so that what is touched stays in the
cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration, TokenLists
from numpy.typing import NDArray

TILE = 4096
WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


def tiles(width: int) -> Iterator[slice]:
    for first in range(0, width, TILE):
        yield slice(first, min(first + TILE, width))


def wide(x: Array) -> np.dtype[Any]:
    return np.promote_types(x.dtype, np.float32)


def own(x: Array) -> Array:
    """x, or where nobody may write there a copy."""
    return x if x.flags.writeable else x.copy()


def apart(array: Array, x: Array) -> Array:
    """`array`, or a copy if what is written to x might change it."""
    return array.copy() if np.may_share_memory(array, x) else array


class TileOps(ArrayOps):
    def asarray(self, array: NDArray[Any]) -> Array:
        return np.array(array, order="C")

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x = own(x)
        places = rows.astype(np.int64) * x.shape[1] + columns
        places, which = np.unique(places, return_inverse=True)
        at = (places // x.shape[1], places % x.shape[1])
        totals = x[at].astype(wide(x))
        np.add.at(totals, which, values)
        with np.errstate(all="ignore"):
            x[at] = totals.astype(x.dtype)
        return x

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        x = own(x)
        factors = apart(factors, x)[:, None]
        with np.errstate(all="ignore"):
            for cols in tiles(x.shape[1]):
                x[rows, cols] = (x[rows, cols] * factors).astype(x.dtype)
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        shape = (len(rows), x.shape[1])
        x = own(x)
        condition = np.broadcast_to(apart(np.asarray(condition), x), shape)
        values = np.broadcast_to(apart(np.asarray(values), x), shape)
        with np.errstate(all="ignore"):
            for cols in tiles(x.shape[1]):
                x[rows, cols] = np.where(condition[:, cols], values[:, cols].astype(x.dtype), x[rows, cols])
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows] if columns is None else x[rows[:, None], columns]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x = own(x)
        with np.errstate(all="ignore"):
            x[rows[:, None], columns] = values.astype(x.dtype)
        return x

    def cumsum(self, x: Array) -> Array:
        sums = np.empty(x.shape, dtype=wide(x))
        before = np.zeros((len(x), 1), dtype=sums.dtype)
        for cols in tiles(x.shape[1]):
            sums[:, cols] = before + np.cumsum(x[:, cols], axis=1, dtype=sums.dtype)
            before = sums[:, cols.stop - 1 : cols.stop]
        return sums

    def forbid_from(self, x: Array, column: int) -> Array:
        x = own(x)
        x[:, column:] = -np.inf
        return x

    def exp(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.exp(x))

    def log(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.log(x))

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(wide(x))
        largest = x.max(axis=1, keepdims=True)
        largest = np.where(np.isneginf(largest), 0, largest)
        total = np.zeros((len(x), 1), dtype=x.dtype)
        with np.errstate(all="ignore"):
            for cols in tiles(x.shape[1]):
                x[:, cols] -= largest
                total += np.exp(x[:, cols]).sum(axis=1, keepdims=True)
            return np.where(np.isneginf(x), x, x - np.log(total))

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = x[:, :0], np.empty((len(x), 0), dtype=np.int64)
        for cols in tiles(x.shape[1]):
            here = np.broadcast_to(np.arange(cols.start, cols.stop), (len(x), cols.stop - cols.start))
            values, columns = np.concatenate([values, x[:, cols]], axis=1), np.concatenate([columns, here], axis=1)
            order = np.argsort(-values, axis=1, kind="stable")[:, :k]
            values, columns = np.take_along_axis(values, order, axis=1), np.take_along_axis(columns, order, axis=1)
        return values, columns

    def argmax(self, x: Array) -> Array:
        columns, every = np.zeros(len(x), dtype=np.int64), np.arange(len(x))
        for cols in tiles(x.shape[1]):
            there = cols.start + x[:, cols].argmax(axis=1)
            columns = np.where(x[every, there] > x[every, columns], there, columns)
        return columns

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        x = logprobs.astype(np.float64)
        weights = np.exp(x - x.max(axis=1, keepdims=True))
        sums = self.cumsum(weights)
        past = (sums > uniforms[:, None] * sums[:, -1:]) & (weights > 0)
        return past.argmax(axis=1)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds = seeds.astype(np.int64).astype(np.uint64)
        low, high = (seeds & WORD)[:, None], (seeds >> HALF)[:, None]
        shape = (len(seeds), -(-width // 4))
        c0 = np.broadcast_to(np.arange(shape[1], dtype=np.uint64), shape)
        c1, c2 = ((a.astype(np.int64).astype(np.uint64) & WORD)[:, None] for a in (positions, sequences))
        c3 = np.uint64(purpose & 0xFFFFFFFF)
        for _ in range(10):
            p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
            c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ low, p1 & WORD, (p0 >> HALF) ^ c3 ^ high, p0 & WORD
            low, high = low + WEYL[0] & WORD, high + WEYL[1] & WORD
        words = np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=2).reshape(shape[0], 4 * shape[1])[:, :width]
        return ((words >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        as_bytes = np.ascontiguousarray(bitmask, dtype="<i4").view(np.uint8)
        bits = np.unpackbits(as_bytes, axis=1, bitorder="little")[:, :width].astype(np.bool_)
        return np.pad(bits, ((0, 0), (0, width - bits.shape[1])))


class Copied:
    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = {name: np.array(array) for name, array in arrays.items()}

    def result(self) -> Mapping[str, NDArray[Any]]:
        return dict(self.arrays)


class Tiles(DeviceBackend):
    contract = "1.0"
    name = "tiles"
    arrays = "numpy"
    fused = frozenset({"apply_token_lists", "masked_argmax"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"tiles runs on 'cpu', not on {device!r}", field="device")
        self.ops = TileOps()

    def from_logits(self, logits: Array) -> Array:
        if not isinstance(logits, np.ndarray):  # a tensor of torch
            logits = logits.detach()
            logits = (logits.float() if "bfloat16" in str(logits.dtype) else logits).numpy()
        if not logits.flags.writeable or 0 in logits.strides:  # somebody's own, or several rows in one memory
            logits = logits.copy()
        return logits

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        logits = own(logits)
        bitmask, rows = bitmask[rows >= 0], rows[rows >= 0]
        for cols in tiles(logits.shape[1]):
            words = bitmask[:, cols.start // 32 : -(-cols.stop // 32)]
            block = logits[rows, cols]
            block[~self.ops.unpack_bitmask(words, cols.stop - cols.start)] = -np.inf
            logits[rows, cols] = block
        return logits

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        if len(lists) != len(rows):
            raise ValueError(f"{len(lists)} lists for {len(rows)} rows")
        logits = own(logits)
        for i, row in enumerate(rows):
            if row < 0:
                continue
            listed = lists.token_ids[lists.offsets[i] : lists.offsets[i + 1]]
            listed = listed[: np.searchsorted(listed, logits.shape[1])]  # they ascend
            if lists.allow[i]:
                kept = logits[row, listed]
                logits[row] = -np.inf
                logits[row, listed] = kept
            else:
                logits[row, listed] = -np.inf
        return logits

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        count = len(logits)
        bitmask, rows = bitmask[rows >= 0], rows[rows >= 0]
        best, columns = np.full(count, -np.inf, dtype=np.float32), np.zeros(count, dtype=np.int64)
        has_nan, every = np.zeros(count, dtype=np.bool_), np.arange(count)
        for cols in tiles(min(num_tokens, logits.shape[1])):
            block = logits[:, cols].astype(np.float32)
            words = bitmask[:, cols.start // 32 : -(-cols.stop // 32)]
            allowed = self.ops.unpack_bitmask(words, cols.stop - cols.start)
            block[rows] = np.where(allowed, block[rows], -np.inf)
            nans = np.isnan(block)
            has_nan |= nans.any(axis=1)
            block[nans] = -np.inf
            there = block.argmax(axis=1)
            better = block[every, there] > best
            columns = np.where(better, cols.start + there, columns)
            best = np.where(better, block[every, there], best)
        return columns, np.where(has_nan, np.float32(np.nan), best)

    def download(self, arrays: Mapping[str, Array]) -> Copied:
        return Copied(arrays)
