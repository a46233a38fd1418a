"""Devices that derive from guideway's NumPy device: one that does in one pass what others do in several, and one that
keeps its arrays in float32 and never changes an array."""

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
