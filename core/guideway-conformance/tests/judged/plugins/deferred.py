"""Logits in deferred arrays: an operation notes what to do, and whoever asks for the values has it done."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration
from guideway.api.bitmask import TokenLists
from guideway.devices.philox import WORD, multiply_64, philox4x32

DEEPEST = 32  # an array that hangs on more than so many others is computed at once, lest recursion has no end
F32 = np.float32


class Deferred:
    """An immutable array that is computed when it is first looked at."""

    __array_ufunc__ = None  # so that NumPy leaves operators to it
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, make: Callable[[], Any], depth: int = 0) -> None:
        self._make: Callable[[], Any] | None = make
        self._value: Any = None
        self.depth = depth

    @property
    def value(self) -> Any:
        make = self._make
        if make is not None:  # two threads may compute the same, which does no harm
            with np.errstate(all="ignore"):
                self._value = np.asarray(make())
            self.depth, self._make = 0, None
        return self._value

    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)
    ndim = property(lambda self: self.value.ndim)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, key: Any) -> Deferred:
        parts = key if isinstance(key, tuple) else (key,)
        return later(lambda x, *parts: x[parts], self, *parts)

    def reshape(self, *shape: Any) -> Deferred:
        return later(lambda x: x.reshape(*shape), self)

    def sum(self, axis: Any = None) -> Deferred:
        return later(lambda x: x.sum(axis=axis), self)

    def __neg__(self) -> Deferred:
        return later(operator.neg, self)


def _operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(operator, name)
        setattr(Deferred, f"__{name}__", lambda a, b, f=function: later(f, a, b))
    for name in ("add", "sub", "mul", "truediv"):
        function = getattr(operator, name)
        setattr(Deferred, f"__r{name}__", lambda a, b, f=function: later(f, b, a))


_operators()


def later(function: Callable[..., Any], *arguments: Any) -> Deferred:
    """The result of a function that makes an array of its own; memory of the host is read now."""
    kept = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    depth = 1 + max((a.depth for a in kept if isinstance(a, Deferred)), default=0)
    made = Deferred(lambda: function(*(a.value if isinstance(a, Deferred) else a for a in kept)), depth)
    if depth > DEEPEST:
        made.value  # noqa: B018
    return made


def wide(x: Any) -> Any:
    return x.astype(np.promote_types(x.dtype, F32))


def changed(x: Any, at: Any, values: Any) -> Any:
    x = x.copy()
    x[at] = np.asarray(values).astype(x.dtype)
    return x


def add_at(x: Any, rows: Any, columns: Any, values: Any) -> Any:
    places, of = np.unique(np.stack([rows, columns]).astype(np.int64), axis=1, return_inverse=True)
    sums = np.zeros(places.shape[1])
    np.add.at(sums, of.reshape(-1), values)
    return changed(x, tuple(places), x[tuple(places)] + sums)


def unpack(bitmask: Any, width: int) -> Any:
    words = np.ascontiguousarray(bitmask[:, : -(-width // 32)]).view(np.uint32)
    bits = (words[:, :, None] >> np.arange(32, dtype=np.uint32) & 1).astype(np.bool_)
    allowed = bits.reshape(len(words), words.shape[1] * 32)[:, :width]
    return np.pad(allowed, ((0, 0), (0, width - allowed.shape[1])))


def masked(logits: Any, bitmask: Any, rows: Any) -> Any:
    real = rows != -1
    rows, allowed = rows[real], unpack(bitmask[real], logits.shape[1])
    return changed(logits, rows, np.where(allowed, logits[rows], logits.dtype.type(-np.inf)))


def log_softmax(x: Any) -> Any:
    x = wide(x)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def topk(x: Any, k: int) -> Any:
    return np.argsort(-wide(x), axis=1, kind="stable")[:, :k]


def categorical(logprobs: Any, uniforms: Any) -> Any:
    x = logprobs.astype(np.float64)
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    sums = weights.cumsum(axis=1)
    return ((sums > uniforms[:, None] * sums[:, -1:]) & (weights > 0)).argmax(axis=1)


def uniform(seeds: Any, sequences: Any, positions: Any, purpose: int, width: int) -> Any:
    seeds, sequences, positions = (a.astype(np.int64)[:, None] for a in (seeds, sequences, positions))
    blocks = np.arange(-(-width // 4), dtype=np.int64)[None, :]
    counter = (blocks, positions & WORD, sequences & WORD, np.int64(purpose & WORD))
    words = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
    drawn = np.stack(words, axis=2).reshape(len(seeds), blocks.shape[1] * 4)[:, :width]
    return ((drawn >> 9).astype(F32) + F32(0.5)) * F32(2**-23)


def argmax_of(logits: Any, bitmask: Any, rows: Any, num_tokens: int) -> tuple[Any, Any]:
    x = masked(logits, bitmask, rows)[:, :num_tokens].astype(F32)
    columns = x.argmax(axis=1)  # of the first NaN, where there is one
    return columns, x[np.arange(len(x)), columns]


class LateOps(ArrayOps):
    def asarray(self, array: Any) -> Deferred:
        held = np.array(array)
        return Deferred(lambda: held)

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return later(add_at, x, rows, columns, values)

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return later(lambda x, r, f: changed(x, r, x[r].astype(F32) * f.astype(F32)[:, None]), x, rows, factors)

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        def chosen(x: Any, rows: Any, condition: Any, values: Any) -> Any:
            return changed(x, rows, np.where(condition, np.asarray(values).astype(x.dtype), x[rows]))

        return later(chosen, x, rows, condition, values)

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return later(lambda x, r, c: x[r] if c is None else x[r[:, None], c], x, rows, columns)

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return later(lambda x, r, c, v: changed(x, (r[:, None], c), v), x, rows, columns, values)

    def cumsum(self, x: Array) -> Array:
        return later(lambda x: wide(x).cumsum(axis=1), x)

    def forbid_from(self, x: Array, column: int) -> Array:
        return later(lambda x: changed(x, (slice(None), slice(column, None)), -np.inf), x)

    def exp(self, x: Array) -> Array:
        return later(np.exp, x)

    def log(self, x: Array) -> Array:
        return later(np.log, x)

    def log_softmax(self, x: Array) -> Array:
        return later(log_softmax, x)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        columns = later(topk, x, k)
        return later(lambda x, c: np.take_along_axis(x, c, axis=1), x, columns), columns

    def argmax(self, x: Array) -> Array:
        return later(lambda x: x.argmax(axis=1), x)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        return later(categorical, logprobs, uniforms)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return later(uniform, seeds, sequences, positions, purpose, width)

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        return later(unpack, bitmask, width)


class Computing:
    """Arrays on their way: computed by the backend's thread, while the host prepares its next step."""

    def __init__(self, thread: ThreadPoolExecutor, arrays: Mapping[str, Array]) -> None:
        self.futures: dict[str, Future[Any]] = {
            name: thread.submit(lambda a=array: a.value.copy()) for name, array in arrays.items()
        }

    def result(self) -> Mapping[str, Any]:
        return {name: future.result() for name, future in self.futures.items()}


class Late(DeviceBackend):
    contract = "1.0"
    name = "late"
    arrays = "deferred"
    fused = frozenset({"masked_argmax", "apply_token_lists"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"late runs on cpu, not on {device!r}", field="device")
        self.ops = LateOps()
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="late-download")

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, Deferred):
            return logits
        if hasattr(logits, "detach"):
            logits = logits.detach()
            logits = (logits.float() if str(logits.dtype) == "torch.bfloat16" else logits).numpy()
        return self.ops.asarray(logits)  # a copy: the model writes its next logits there

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return later(masked, logits, bitmask, rows)

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        kept = TokenLists(lists.offsets.copy(), lists.token_ids.copy(), lists.allow.copy())
        return later(lambda x, r: masked(x, kept.bitmask(x.shape[1]), r), logits, rows)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        held: list[Any] = []  # both results come from one pass

        def both(*arguments: Any) -> Any:
            held[:] = [argmax_of(*arguments)]
            return held[0][0]

        columns = later(both, logits, bitmask, rows, num_tokens)
        return columns, later(lambda _: held[0][1], columns)

    def download(self, arrays: Mapping[str, Array]) -> Computing:
        return Computing(self.thread, arrays)

    def close(self) -> None:
        self.thread.shutdown(wait=True)
