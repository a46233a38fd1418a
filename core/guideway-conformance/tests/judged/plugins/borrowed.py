"""Logits in tensors of torch. Scratch memory comes from a pool, a step's payload from one buffer of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
import torch
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration
from guideway.api.device import Draw
from guideway.devices.philox import WORD, multiply_64, philox4x32

KEPT = 4  # buffers of one size
ALIGNED = 64


class Pool:
    """Buffers that a call borrows and gives back. Lists pop and append at once, so it needs no lock."""

    def __init__(self) -> None:
        self.free: dict[tuple[torch.dtype, int], list[Array]] = {}

    @contextmanager
    def borrow(self, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Array]:
        size = 1 << max(prod(shape) - 1, 0).bit_length()
        free = self.free.setdefault((dtype, size), [])
        try:
            buffer = free.pop()
        except IndexError:
            buffer = torch.empty(size, dtype=dtype)
        try:
            yield buffer[: prod(shape)].view(shape)
        finally:
            if len(free) < KEPT:
                free.append(buffer)


def wide(x: Array) -> Array:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def first_largest(x: Array) -> Array:
    """The column of each row's largest value; torch promises no order of equals."""
    columns = torch.arange(x.shape[1])
    here = torch.where(x == x.amax(dim=1, keepdim=True), columns, x.shape[1] - 1)
    return here.amin(dim=1)


def forbidden_into(out: Array, bitmask: Array) -> None:
    """``bool[rows, width]``: what the mask forbids."""
    width = out.shape[1]
    words = bitmask[:, : -(-width // 32)]
    bits = ((words[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1).reshape(len(words), words.shape[1] * 32)
    held = min(width, bits.shape[1])
    out[:, :held] = bits[:, :held] == 0
    out[:, held:] = True


class BorrowedOps(ArrayOps):
    def asarray(self, array: Any) -> Array:
        return torch.from_numpy(np.array(array, order="C"))

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        places, of = torch.unique(rows.long() * x.shape[1] + columns, return_inverse=True)
        sums = torch.zeros(len(places), dtype=torch.float64).index_add_(0, of, values.double())
        at = places // x.shape[1], places % x.shape[1]
        x[at] = (x[at] + sums).to(x.dtype)
        return x

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        rows = rows.long()
        x[rows] = (x[rows].float() * factors.float()[:, None]).to(x.dtype)
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        rows = rows.long()
        values = torch.as_tensor(values).to(x.dtype)
        x[rows] = torch.where(torch.as_tensor(condition), values, x[rows])
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        return x[rows.long()] if columns is None else x[rows.long()[:, None], columns.long()]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows.long()[:, None], columns.long()] = values.to(x.dtype)
        return x

    def cumsum(self, x: Array) -> Array:
        return x.double().cumsum(dim=1).to(torch.promote_types(x.dtype, torch.float32))

    def forbid_from(self, x: Array, column: int) -> Array:
        x[:, column:] = -torch.inf
        return x

    def exp(self, x: Array) -> Array:
        return torch.exp(x)

    def log(self, x: Array) -> Array:
        return torch.log(x)

    def log_softmax(self, x: Array) -> Array:
        return torch.log_softmax(wide(x), dim=1)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = torch.topk(x, k, dim=1, sorted=True)
        return values, columns

    def argmax(self, x: Array) -> Array:
        return first_largest(x)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        weights = torch.softmax(logprobs.double(), dim=1)
        sums = weights.cumsum(dim=1)
        past = (sums > uniforms.double()[:, None] * sums[:, -1:]) & (weights > 0)
        return past.int().argmax(dim=1)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds, sequences, positions = (a.long()[:, None] for a in (seeds, sequences, positions))
        blocks = torch.arange(-(-width // 4))[None, :]
        counter = (blocks, positions & WORD, sequences & WORD, torch.tensor(purpose & WORD))
        words = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
        drawn = torch.stack(words, dim=2).reshape(len(seeds), blocks.shape[1] * 4)[:, :width]
        return ((drawn >> 9).float() + 0.5) * 2.0**-23

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        out = torch.empty(len(bitmask), width, dtype=torch.bool)
        forbidden_into(out, bitmask)
        return ~out


class Copied:
    def __init__(self, arrays: Mapping[str, Array]) -> None:
        # NumPy has no bfloat16
        self.arrays = {n: (a.float() if a.dtype == torch.bfloat16 else a).detach().clone() for n, a in arrays.items()}

    def result(self) -> Mapping[str, Any]:
        return {name: array.numpy() for name, array in self.arrays.items()}


class Borrowed(DeviceBackend):
    contract = "1.0"
    name = "borrowed"
    arrays = "torch"
    fused = frozenset({"warp_masked", "masked_argmax", "masked_sample"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        if device != "cpu":
            raise InvalidConfiguration(f"borrowed runs on cpu, not on {device!r}", field="device")
        self.ops = BorrowedOps()
        self.pool = Pool()

    @classmethod
    def available(cls) -> str | None:
        return None if find_spec("torch") else "torch is not installed"

    def scope(self) -> AbstractContextManager[object]:
        return torch.no_grad()

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, np.ndarray):
            strides = zip(logits.strides, logits.shape, strict=True)
            usable = logits.flags.writeable and all(s > 0 or n < 2 for s, n in strides)
            return torch.from_numpy(logits if usable else logits.copy())
        logits = logits.detach()
        shared = any(s == 0 and n > 1 for s, n in zip(logits.stride(), logits.shape, strict=True))
        return logits.contiguous() if shared else logits

    def _mask(self, x: Array, bitmask: Array, rows: Array) -> None:
        if isinstance(rows, np.ndarray):
            bitmask, rows = self.ops.asarray(bitmask), self.ops.asarray(rows)
        with self.pool.borrow((len(rows), x.shape[1]), torch.bool) as forbidden:
            forbidden_into(forbidden, bitmask)
            for i, row in enumerate(rows.tolist()):
                if row >= 0:
                    x[row].masked_fill_(forbidden[i], -torch.inf)

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        self._mask(logits, bitmask, rows)
        return logits

    def download(self, arrays: Mapping[str, Array]) -> Copied:
        return Copied(arrays)

    def upload(self, payload: Any) -> Any:
        """One buffer for all arrays of the payload, so that it would be one transfer."""
        arrays = {("arrays", n): np.asarray(a) for n, a in payload.arrays.items()}
        arrays |= {("shared", n): np.asarray(a) for n, a in payload.shared.items()}
        arrays["rows", ""] = np.asarray(payload.rows)
        ends = np.cumsum([0, *(-(-a.nbytes // ALIGNED) * ALIGNED for a in arrays.values())])
        buffer = torch.empty(int(ends[-1]), dtype=torch.uint8)
        memory = buffer.numpy()
        made: dict[tuple[str, str], Array] = {}
        for (key, array), start in zip(arrays.items(), ends, strict=False):
            part = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            part[...] = array
            made[key] = torch.from_numpy(part)
        groups = {g: {n: a for (of, n), a in made.items() if of == g} for g in ("arrays", "shared")}
        return replace(payload, rows=made["rows", ""], **groups)

    def close(self) -> None:
        self.pool.free.clear()

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Any, factors: Array) -> Array:
        x = logits.to(torch.float32, copy=True)
        self._mask(x, bitmask, rows)
        if added is not None:
            x = self.ops.add_at(x, *added)
        return x.mul_(factors.float()[:, None])

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        shape = len(logits), min(num_tokens, logits.shape[1])
        with self.pool.borrow(shape, torch.float32) as x:
            x.copy_(logits[:, :num_tokens])
            self._mask(x, bitmask, rows)
            return first_largest(x), x.amax(dim=1)

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        shape = len(logits), min(num_tokens, logits.shape[1])
        cold = draw.temperatures == 0
        with self.pool.borrow(shape, torch.float32) as x:
            x.copy_(logits[:, :num_tokens])
            self._mask(x, bitmask, rows)
            greedy, best = first_largest(x), x.amax(dim=1)
            u = self.ops.uniform(draw.seeds, draw.sequences, draw.positions, draw.purpose, shape[1])
            x.div_((draw.temperatures + cold)[:, None]).sub_(torch.log(-torch.log(u)))
            return torch.where(cold, greedy, first_largest(x)), best
