"""Logits in NumPy arrays that never change, as in a functional library; copies to the host in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration
from guideway.devices.philox import WORD, multiply_64, philox4x32
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])


def freeze(array: Any) -> Array:
    array = np.asarray(array)
    array.setflags(write=False)
    return array


def constant(method: F) -> F:
    """Make arrays that a method returns read-only."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            made = method(*args, **options)
        return tuple(map(freeze, made)) if isinstance(made, tuple) else freeze(made)

    return call  # type: ignore[return-value]


class PlainOps(ArrayOps):
    @constant
    def asarray(self, array: NDArray[Any]) -> Array:
        return np.array(array, order="C")

    @constant
    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        sums = np.zeros(x.shape, dtype=np.float32)
        np.add.at(sums, (rows, columns), values)
        here = np.zeros(x.shape, dtype=np.bool_)
        here[rows, columns] = True
        return np.where(here & (x != -np.inf), x + sums, x).astype(x.dtype)

    @constant
    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        scaled = x.copy()
        scaled[rows] = np.where(np.isneginf(x[rows]), -np.inf, x[rows] * factors[:, None])
        return scaled

    @constant
    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        shape = (len(rows), x.shape[1])
        chosen, values = np.broadcast_to(condition, shape), np.broadcast_to(values, shape)
        made = x.copy()
        at, columns = np.nonzero(chosen)
        made[rows[at], columns] = values[at, columns]
        return made

    @constant
    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows] if columns is None else x[rows[:, None], columns]

    @constant
    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        made = x.copy()
        made[rows[:, None], columns] = values
        return made

    @constant
    def cumsum(self, x: Array) -> Array:
        return np.add.accumulate(x, axis=1, dtype=np.promote_types(x.dtype, np.float32))

    @constant
    def forbid_from(self, x: Array, column: int) -> Array:
        return np.where(np.arange(x.shape[1]) < column, x, x.dtype.type(-np.inf))

    @constant
    def exp(self, x: Array) -> Array:
        return np.exp(x)

    @constant
    def log(self, x: Array) -> Array:
        return np.log(x)

    @constant
    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.promote_types(x.dtype, np.float32), copy=False)
        largest = x.max(axis=1, keepdims=True)
        return x - largest - np.log(np.exp(x - largest).sum(axis=1, keepdims=True))

    @constant
    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        columns = np.argsort(-x, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(x, columns, axis=1), columns

    @constant
    def argmax(self, x: Array) -> Array:
        return x.argmax(axis=1)

    @constant
    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        wide = logprobs.astype(np.float64)
        sums = np.exp(wide - wide.max(axis=1, keepdims=True)).cumsum(axis=1)
        goals = uniforms.astype(np.float64) * sums[:, -1]
        drawn = [np.searchsorted(row, goal, side="right") for row, goal in zip(sums, goals, strict=True)]
        return np.array(drawn, dtype=np.int64)

    @constant
    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds, sequences, positions = (a.astype(np.int64)[:, None] for a in (seeds, sequences, positions))
        blocks = np.arange(-(-width // 4), dtype=np.int64)[None, :]
        counter = (blocks, positions & WORD, sequences & WORD, np.array([[purpose & WORD]]))
        words = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
        made = np.empty((len(seeds), 4 * blocks.shape[1]), dtype=np.float32)
        for lane, word in enumerate(words):
            made[:, lane::4] = ((word >> 9) + 0.5) * 2**-23
        return made[:, :width]

    @constant
    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        tokens = np.arange(width)
        inside = tokens < 32 * bitmask.shape[1]
        allowed = np.zeros((len(bitmask), width), dtype=np.bool_)
        tokens = tokens[inside]
        allowed[:, inside] = (bitmask[:, tokens // 32] >> (tokens % 32).astype(np.int32)) & 1
        return allowed


class Copying:
    """Arrays on their way; as they never change, late is not too late."""

    def __init__(self, copies: Future[dict[str, NDArray[Any]]]) -> None:
        self.copies = copies

    def result(self) -> Mapping[str, NDArray[Any]]:
        return self.copies.result()


class Plain(DeviceBackend):
    contract = "1.0"
    name = "plain"
    arrays = "numpy"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"there is no device {device!r}", field="device")
        self.ops: PlainOps = PlainOps()
        self.thread: ThreadPoolExecutor | None = None

    def from_logits(self, logits: Array) -> Array:
        if hasattr(logits, "detach"):
            logits = logits.detach()
            if str(logits.dtype) == "torch.bfloat16":
                logits = logits.float()
        return freeze(np.array(logits, order="C"))  # arrays here never change, and the model's do

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        masked = logits.copy()
        real = rows != -1
        allowed = self.ops.unpack_bitmask(bitmask[real], logits.shape[1])
        part = masked[rows[real]]
        part[~allowed] = -np.inf
        masked[rows[real]] = part
        return freeze(masked)

    def download(self, arrays: Mapping[str, Array]) -> Copying:
        if self.thread is None:
            self.thread = ThreadPoolExecutor(1, thread_name_prefix="plain-download")
        held = dict(arrays)
        return Copying(self.thread.submit(lambda: {name: np.array(array) for name, array in held.items()}))

    def close(self) -> None:
        if self.thread is not None:
            self.thread.shutdown()
            self.thread = None
