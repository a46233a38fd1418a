"""Devices that derive from guideway's NumPy device: one that does in one pass what others do in several, and one that
never changes an array, and one that takes its arrays a few rows or columns at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from guideway.api import Array, Payload
from guideway.api.bitmask import TokenLists
from guideway.devices.numpy.device import Downloaded, NumpyDevice, NumpyOps
from numpy.typing import NDArray


class FastOps(NumpyOps):
    def argmax(self, x: Array) -> Array:
        return np.argmax(x, axis=1).astype(np.int32)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        columns = np.argsort(-x.astype(np.float64), axis=1, kind="stable")[:, :k]
        return np.take_along_axis(x, columns, axis=1), columns.astype(np.int32)

    def log_softmax(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        largest = wide.max(axis=1, keepdims=True)
        shifted = wide - np.where(np.isneginf(largest), 0, largest)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return found.astype(np.promote_types(x.dtype, np.float32))

    def cumsum(self, x: Array) -> Array:
        return np.cumsum(x, axis=1, dtype=np.float64).astype(np.promote_types(x.dtype, np.float32))

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[np.asarray(rows)[:, None], columns] = np.asarray(values).astype(x.dtype)
        return x

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        token = np.arange(width)
        words = bitmask.shape[1]
        if not words:
            return np.zeros((len(bitmask), width), dtype=np.bool_)
        chosen = np.asarray(bitmask)[:, np.minimum(token // 32, words - 1)].view(np.uint32)
        return ((chosen >> (token % 32).astype(np.uint32)) & 1).astype(np.bool_) & (token // 32 < words)


class Fast(NumpyDevice):
    contract = "1.0"
    name = "fast"
    fused = frozenset({"apply_token_lists", "masked_argmax", "warp_masked"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ops = FastOps()

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        real = np.asarray(rows) >= 0
        allowed = self.ops.unpack_bitmask(np.asarray(bitmask)[real], logits.shape[1])
        chosen = np.asarray(rows)[real]
        logits[chosen] = np.where(allowed, logits[chosen], np.array(-np.inf, dtype=logits.dtype))
        return logits

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        width = logits.shape[1]
        for i, row in enumerate(rows.tolist()):
            if row < 0:
                continue
            listed = lists.token_ids[lists.offsets[i] : lists.offsets[i + 1]]
            listed = listed[listed < width]
            if lists.allow[i]:
                kept = logits[row, listed].copy()
                logits[row] = -np.inf
                logits[row, listed] = kept
            else:
                logits[row, listed] = -np.inf
        return logits

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        x = logits[:, :num_tokens].astype(np.float32)
        real = np.asarray(rows) >= 0
        allowed = self.ops.unpack_bitmask(np.asarray(bitmask)[real], num_tokens)
        chosen = np.asarray(rows)[real]
        x[chosen] = np.where(allowed, x[chosen], np.float32(-np.inf))
        has_nan = np.isnan(x).any(axis=1)
        columns = np.argmax(np.where(np.isnan(x), -np.inf, x), axis=1)
        largest = np.take_along_axis(x, columns[:, None], axis=1)[:, 0]
        return columns, np.where(has_nan, np.float32(np.nan), largest)

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Any, factors: Array) -> Array:
        x = self.apply_bitmask(logits, bitmask, rows).astype(np.float32)
        if added is not None:
            np.add.at(x, (added[0], added[1]), added[2].astype(np.float32))
        x *= factors[:, None]
        return x

    def download(self, arrays: Mapping[str, Array]) -> Downloaded:
        return Downloaded({name: np.array(array, copy=True) for name, array in arrays.items()})


class PureOps(NumpyOps):
    """Every operation returns a new array."""

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return super().add_at(x.copy(), rows, columns, values)

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return super().scale_rows(x.copy(), rows, factors)

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        return super().where_rows(x.copy(), rows, condition, values)

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return super().scatter(x.copy(), rows, columns, values)

    def forbid_from(self, x: Array, column: int) -> Array:
        return super().forbid_from(x.copy(), column)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        wide = logprobs.astype(np.float64)
        largest = wide.max(axis=1, keepdims=True)
        weights = np.exp(wide - np.where(np.isneginf(largest), 0, largest))
        sums = weights.cumsum(axis=1)
        past = (sums > np.asarray(uniforms, dtype=np.float64)[:, None] * sums[:, -1:]) & (weights > 0)
        return np.argmax(past, axis=1)


class Pure(NumpyDevice):
    contract = "1.0"
    name = "pure"
    static_shapes = True

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ops = PureOps()
        self.uploads = 0

    def from_logits(self, logits: Array) -> Array:
        return super().from_logits(logits).copy()

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits.copy(), bitmask, rows)

    def upload(self, payload: Payload) -> Payload:
        self.uploads += 1
        return super().upload(payload)


class ChunkedOps(NumpyOps):
    """Never has more than a few rows, or columns, of its arguments in hand."""

    rows = 3
    columns = 40

    def parts(self, count: int, size: int) -> list[slice]:
        return [slice(first, first + size) for first in range(0, count, size)]

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        shape = (len(rows), x.shape[1])
        condition, values = np.broadcast_to(condition, shape), np.broadcast_to(np.asarray(values), shape)
        for part in self.parts(len(rows), self.rows):
            chosen = np.asarray(rows)[part]
            x[chosen] = np.where(condition[part], values[part].astype(x.dtype), x[chosen])
        return x

    def forbid_from(self, x: Array, column: int) -> Array:
        for part in self.parts(len(x), self.rows):
            x[part, column:] = -np.inf
        return x

    def log_softmax(self, x: Array) -> Array:
        found = np.empty(x.shape, dtype=np.promote_types(x.dtype, np.float32))
        for part in self.parts(len(x), self.rows):
            found[part] = super().log_softmax(x[part])
        return found

    def cumsum(self, x: Array) -> Array:
        found = np.empty(x.shape, dtype=np.promote_types(x.dtype, np.float32))
        carried = np.zeros((len(x), 1), dtype=np.float64)
        for part in self.parts(x.shape[1], self.columns):
            sums = np.cumsum(x[:, part], axis=1, dtype=np.float64) + carried
            found[:, part], carried = sums, sums[:, -1:]
        return found

    def argmax(self, x: Array) -> Array:
        best = np.zeros(len(x), dtype=np.int64)
        value = x[:, 0].copy()
        for part in self.parts(x.shape[1], self.columns):
            column = np.argmax(x[:, part], axis=1)
            largest = np.take_along_axis(x[:, part], column[:, None], axis=1)[:, 0]
            better = largest > value  # of equal ones the first is kept
            best, value = np.where(better, column + part.start, best), np.where(better, largest, value)
        return best

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = x[:, :0], np.empty((len(x), 0), dtype=np.int64)
        for part in self.parts(x.shape[1], self.columns):
            more = np.broadcast_to(np.arange(x.shape[1])[part], x[:, part].shape)
            values = np.concatenate([values, x[:, part]], axis=1)
            columns = np.concatenate([columns, more], axis=1)
            order = np.argsort(-values, axis=1, kind="stable")[:, :k]
            values, columns = np.take_along_axis(values, order, 1), np.take_along_axis(columns, order, 1)
        return values, columns

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        found = np.zeros((len(bitmask), width), dtype=np.bool_)
        for word in range(min(bitmask.shape[1], -(-width // 32))):
            bits = np.asarray(bitmask)[:, word : word + 1].view(np.uint32) >> np.arange(32, dtype=np.uint32) & 1
            found[:, 32 * word : 32 * word + 32] = bits[:, : width - 32 * word]
        return found


class Chunked(NumpyDevice):
    contract = "1.0"
    name = "chunked"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ops = ChunkedOps()

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        bitmask, rows = np.asarray(bitmask), np.asarray(rows)
        bitmask, rows = bitmask[rows >= 0], rows[rows >= 0]
        for start in range(0, len(rows), 3):
            part = slice(start, start + 3)
            allowed = self.ops.unpack_bitmask(bitmask[part], logits.shape[1])
            logits[rows[part]] = np.where(allowed, logits[rows[part]], np.array(-np.inf, dtype=logits.dtype))
        return logits
