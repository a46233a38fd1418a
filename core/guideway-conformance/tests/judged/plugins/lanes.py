"""Device `lanes`: logits in tensors of torch on the CPU; uploads go through one staging buffer, downloads through a
thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration, Payload
from guideway.devices.philox import WORD, multiply_64, philox4x32
from numpy.typing import NDArray

if find_spec("torch") is not None:
    import torch


def wide(x: Array) -> Any:
    return torch.promote_types(x.dtype, torch.float32)


def put(x: Array, at: tuple[Array, ...], values: Array, add: bool = False) -> Array:
    return x.index_put_(tuple(index.long() for index in at), values.to(x.dtype), accumulate=add)


class LaneOps(ArrayOps):
    def __init__(self) -> None:
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self.bits_of_byte = torch.from_numpy(bits.astype(np.bool_))  # only read

    def asarray(self, array: NDArray[Any]) -> Array:
        return torch.from_numpy(np.array(array, order="C"))

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        most = torch.finfo(x.dtype).max
        return put(x, (rows, columns), torch.where(values.isinf(), values, values.clamp(-most, most)), add=True)

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return put(x, (rows,), x[rows.long()] * factors[:, None])

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        values = torch.as_tensor(values, dtype=x.dtype)
        return put(x, (rows,), torch.where(torch.as_tensor(condition), values, x[rows.long()]))

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows.long()] if columns is None else x[rows.long()[:, None], columns.long()]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return put(x, (rows[:, None], columns), values)

    def cumsum(self, x: Array) -> Array:
        return x.cumsum(1, dtype=wide(x))

    def forbid_from(self, x: Array, column: int) -> Array:
        x[:, column:] = -torch.inf
        return x

    def exp(self, x: Array) -> Array:
        return x.exp()

    def log(self, x: Array) -> Array:
        return x.log()

    def log_softmax(self, x: Array) -> Array:
        return torch.log_softmax(x, dim=1, dtype=wide(x))

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = x.topk(k, dim=1, largest=True, sorted=True)
        return values, columns

    def argmax(self, x: Array) -> Array:
        return x.argmax(dim=1)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        weights = logprobs.double().softmax(dim=1)
        sums = weights.cumsum(1)
        past = (sums > uniforms.double()[:, None] * sums[:, -1:]) & (weights > 0)
        return past.int().argmax(dim=1)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds, sequences, positions = (a.long()[:, None] for a in (seeds, sequences, positions))
        blocks = torch.arange(-(-width // 4))[None, :].expand(len(seeds), -1)
        counter = (blocks, positions & WORD, sequences & WORD, torch.tensor(purpose & WORD))
        block = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
        words = torch.stack(torch.broadcast_tensors(*block), dim=2).reshape(len(seeds), 4 * blocks.shape[1])[:, :width]
        return ((words >> 9).float() + 0.5) * 2**-23

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        as_bytes = bitmask[:, : -(-width // 32)].contiguous().view(torch.uint8)
        bits = self.bits_of_byte[as_bytes.long()].reshape(len(bitmask), 8 * as_bytes.shape[1])[:, :width]
        return torch.nn.functional.pad(bits, (0, width - bits.shape[1]))


class Flight:
    """Arrays on their way to the host: a lane thread copies them, and sets the event when they are there."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays
        self.landed = threading.Event()
        self.host: dict[str, NDArray[Any]] = {}
        self.error: BaseException | None = None

    def fly(self) -> None:
        try:
            for name, array in self.arrays.items():
                self.host[name] = (array.float() if array.dtype == torch.bfloat16 else array).numpy()
        except BaseException as error:
            self.error = error
        finally:
            self.landed.set()

    def result(self) -> Mapping[str, NDArray[Any]]:
        self.landed.wait()
        if self.error is not None:
            raise self.error
        return dict(self.host)


class Lanes(DeviceBackend):
    contract = "1.0"
    name = "lanes"
    arrays = "torch"
    fused = frozenset({"warp_masked"})
    ops: LaneOps

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device not in ("cpu", "cpu:0"):
            raise InvalidConfiguration(f"lanes runs on 'cpu', not on {device!r}", field="device")
        self.ops = LaneOps()
        self.flights: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self.staging = np.empty(1 << 12, dtype=np.uint8)
        self.lock = threading.Lock()
        self.lane: threading.Thread | None = None

    @classmethod
    def available(cls) -> str | None:
        return None if find_spec("torch") is not None else "torch is not installed"

    def scope(self) -> AbstractContextManager[object]:
        return torch.no_grad()

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, np.ndarray):
            if not logits.flags.writeable or min(logits.strides, default=1) < 0:
                logits = logits.copy()
            logits = torch.from_numpy(logits)
        logits = logits.detach()
        shared = any(step == 0 and size > 1 for step, size in zip(logits.stride(), logits.shape, strict=True))
        return logits.clone(memory_format=torch.contiguous_format) if shared else logits

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        if isinstance(rows, np.ndarray):
            bitmask, rows = self.ops.asarray(bitmask), self.ops.asarray(rows)
        bitmask, rows = bitmask[rows >= 0], rows[rows >= 0]
        allowed = self.ops.unpack_bitmask(bitmask, logits.shape[1])
        return put(logits, (rows,), logits[rows.long()].masked_fill(~allowed, -torch.inf))

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Any, factors: Array) -> Array:
        x = self.apply_bitmask(logits.to(torch.float32, copy=True), bitmask, rows)
        if added is not None:
            x = self.ops.add_at(x, *added)
        return x * factors[:, None]

    def upload(self, payload: Payload) -> Payload:
        def moved(array: NDArray[Any]) -> Array:
            with self.lock:
                if self.staging.nbytes < array.nbytes:
                    self.staging = np.empty(2 * array.nbytes, dtype=np.uint8)
                stage = self.staging[: array.nbytes].view(array.dtype).reshape(array.shape)
                stage[...] = array
                return torch.from_numpy(stage).clone()

        return replace(
            payload,
            rows=moved(payload.rows),
            arrays={name: moved(array) for name, array in payload.arrays.items()},
            shared={name: moved(array) for name, array in payload.shared.items()},
        )

    def download(self, arrays: Mapping[str, Array]) -> Flight:
        flight = Flight({name: array.detach().clone() for name, array in arrays.items()})
        with self.lock:
            if self.lane is None:
                self.lane = threading.Thread(target=self._carry, daemon=True)
                self.lane.start()
        self.flights.put(flight)
        return flight

    def _carry(self) -> None:
        while (flight := self.flights.get()) is not None:
            flight.fly()

    def close(self) -> None:
        if self.lane is not None:
            self.flights.put(None)
            self.lane.join()
            self.lane = None
