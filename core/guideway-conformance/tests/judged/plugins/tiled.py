"""Logits in NumPy arrays, a tile of columns at a time, so that what is computed beside them stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration
from guideway.api.bitmask import TokenLists
from guideway.devices.philox import WORD, multiply_64, philox4x32

TILE = 4096  # columns; a multiple of 32


def tiles(width: int) -> Iterator[slice]:
    for first in range(0, width, TILE):
        yield slice(first, min(first + TILE, width))


def wide(x: Array) -> Array:
    return x.astype(np.promote_types(x.dtype, np.float32))


def unpack(bitmask: Array, tile: slice) -> Array:
    """``bool[rows, tile]``: what the mask allows of a tile."""
    width = tile.stop - tile.start
    words = np.ascontiguousarray(bitmask[:, tile.start // 32 : -(-tile.stop // 32)])
    allowed = np.zeros((len(bitmask), width), dtype=np.bool_)
    if words.shape[1]:
        bits = np.unpackbits(words.astype("<i4").view(np.uint8), axis=1, bitorder="little")
        held = min(width, bits.shape[1])
        allowed[:, :held] = bits[:, :held]
    return allowed


class TiledOps(ArrayOps):
    def asarray(self, array: Array) -> Array:
        return np.array(array)

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        values = np.broadcast_to(values, rows.shape)
        places, of = np.unique(rows.astype(np.int64) * x.shape[1] + columns, return_inverse=True)
        sums = np.zeros(len(places))
        np.add.at(sums, of, values)
        at = places // x.shape[1], places % x.shape[1]
        with np.errstate(over="ignore"):
            x[at] = (x[at] + sums).astype(x.dtype)
        return x

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        factors = np.broadcast_to(factors, rows.shape).astype(np.float32)[:, None]
        with np.errstate(over="ignore", under="ignore"):
            for tile in tiles(x.shape[1]):
                x[rows, tile] = (x[rows, tile] * factors).astype(x.dtype)
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        shape = len(rows), x.shape[1]
        condition = np.broadcast_to(condition, shape)
        with np.errstate(over="ignore"):
            values = np.broadcast_to(np.asarray(values).astype(x.dtype), shape)
        for tile in tiles(x.shape[1]):
            x[rows, tile] = np.where(condition[:, tile], values[:, tile], x[rows, tile])
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows] if columns is None else x[rows[:, None], columns]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        with np.errstate(over="ignore"):
            x[rows[:, None], columns] = np.broadcast_to(values, columns.shape).astype(x.dtype)
        return x

    def cumsum(self, x: Array) -> Array:
        out = np.empty(x.shape, dtype=np.promote_types(x.dtype, np.float32))
        carry = np.zeros((len(x), 1))
        for tile in tiles(x.shape[1]):
            sums = x[:, tile].cumsum(axis=1, dtype=np.float64) + carry
            out[:, tile], carry = sums, sums[:, -1:]
        return out

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
        out = wide(x)
        largest = out.max(axis=1, keepdims=True)
        total = np.zeros((len(x), 1))
        with np.errstate(invalid="ignore", under="ignore", over="ignore", divide="ignore"):
            for tile in tiles(x.shape[1]):
                out[:, tile] -= largest
                total += np.exp(out[:, tile]).sum(axis=1, keepdims=True, dtype=np.float64)
            out -= np.log(total).astype(out.dtype)
        return out

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        kept, columns = x[:, :0], np.zeros((len(x), 0), dtype=np.int64)
        for tile in tiles(x.shape[1]):
            here = np.broadcast_to(np.arange(tile.start, tile.stop), (len(x), tile.stop - tile.start))
            kept, columns = np.concatenate([kept, x[:, tile]], axis=1), np.concatenate([columns, here], axis=1)
            order = np.argsort(-wide(kept), axis=1, kind="stable")[:, :k]
            kept, columns = np.take_along_axis(kept, order, axis=1), np.take_along_axis(columns, order, axis=1)
        return kept, columns

    def argmax(self, x: Array) -> Array:
        best, columns = np.full(len(x), -np.inf, dtype=x.dtype), np.zeros(len(x), dtype=np.int64)
        for tile in tiles(x.shape[1]):
            found = x[:, tile].argmax(axis=1)
            value = x[np.arange(len(x)), tile.start + found]
            better = (value > best) | (np.isnan(value) & ~np.isnan(best))
            best, columns = np.where(better, value, best), np.where(better, tile.start + found, columns)
        return columns

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        largest = logprobs.max(axis=1, keepdims=True).astype(np.float64)
        sums = [np.exp(logprobs[:, t] - largest).cumsum(axis=1) for t in tiles(logprobs.shape[1])]
        totals = np.cumsum([s[:, -1] for s in sums], axis=0)
        wanted = uniforms.astype(np.float64) * totals[-1]
        drawn, found = np.zeros(len(logprobs), dtype=np.int64), np.zeros(len(logprobs), dtype=np.bool_)
        for i, tile in enumerate(tiles(logprobs.shape[1])):
            before = totals[i - 1][:, None] if i else 0.0
            possible = np.exp(logprobs[:, tile] - largest) > 0
            past = (sums[i] + before > wanted[:, None]) & possible
            last = tile.stop - 1 - possible[:, ::-1].argmax(axis=1)
            here = ~found & past.any(axis=1)
            drawn = np.where(here, tile.start + past.argmax(axis=1), drawn)
            drawn = np.where(~found & ~here & possible.any(axis=1), last, drawn)  # if rounding leaves nothing behind it
            found |= here
        return drawn

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        out = np.empty((len(seeds), width), dtype=np.float32)
        seeds, sequences, positions = (a.astype(np.int64)[:, None] for a in (seeds, sequences, positions))
        for tile in tiles(width):
            blocks = np.arange(tile.start // 4, -(-tile.stop // 4))[None, :]
            counter = (blocks, positions & WORD, sequences & WORD, np.int64(purpose & WORD))
            words = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
            drawn = np.stack(words, axis=2).reshape(len(out), -1)[:, : tile.stop - tile.start]
            out[:, tile] = ((drawn >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
        return out

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        return unpack(bitmask, slice(0, width))


class Copied:
    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = {name: np.array(array) for name, array in arrays.items()}

    def result(self) -> Mapping[str, Any]:
        return self.arrays


class Tiled(DeviceBackend):
    contract = "1.0"
    name = "tiled"
    arrays = "numpy"
    fused = frozenset({"apply_token_lists"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"tiled runs on cpu, not on {device!r}", field="device")
        self.ops = TiledOps()

    def from_logits(self, logits: Array) -> Array:
        if hasattr(logits, "detach"):
            logits = logits.detach()
            logits = (logits.float() if "bfloat16" in str(logits.dtype) else logits).numpy()
        shared = any(s == 0 and n > 1 for s, n in zip(logits.strides, logits.shape, strict=True))
        return logits.copy() if shared or not logits.flags.writeable else logits

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        bitmask, rows = bitmask[rows >= 0], rows[rows >= 0]
        for tile in tiles(logits.shape[1]):
            allowed = unpack(bitmask, tile)
            logits[rows, tile] = np.where(allowed, logits[rows, tile], logits.dtype.type(-np.inf))
        return logits

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        for i, row in enumerate(rows):
            if row < 0:
                continue
            tokens = lists.token_ids[lists.offsets[i] : lists.offsets[i + 1]]
            tokens = tokens[: np.searchsorted(tokens, logits.shape[1])]  # they ascend
            if lists.allow[i]:
                kept = logits[row, tokens]
                logits[row] = -np.inf
                logits[row, tokens] = kept
            else:
                logits[row, tokens] = -np.inf
        return logits

    def download(self, arrays: Mapping[str, Array]) -> Copied:
        return Copied(arrays)
