"""A torch device that stages: the tables that an operation needs beside its arguments are planned at the first call of
a shape and kept. All four fused operations run in one pass over a mask of the whole batch."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from guideway.api import Array, ArrayOps, DeviceBackend, Draw, InvalidConfiguration, TokenLists
from guideway.devices.philox import WORD, multiply_64, philox4x32
from numpy.typing import NDArray


class Plans:
    """Tables by shape. They are only read, so steps that overlap may share them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept: dict[tuple[str, int], torch.Tensor] = {}
        self.lock = threading.Lock()

    def table(self, kind: str, size: int) -> torch.Tensor:
        with self.lock:
            if (kind, size) not in self.kept:
                dtype = torch.int32 if kind == "bits" else torch.int64
                self.kept[kind, size] = torch.arange(size, device=self.device, dtype=dtype)
            return self.kept[kind, size]


class StagedOps(ArrayOps):
    def __init__(self, device: torch.device) -> None:
        self.device, self.plans = device, Plans(device)

    def asarray(self, array: NDArray[Any]) -> Array:
        return torch.from_numpy(np.array(array, order="C")).to(self.device, non_blocking=True)

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        most = torch.finfo(x.dtype).max
        values = torch.where(values.isinf(), values, values.clamp(-most, most))
        return x.index_put_((rows.long(), columns.long()), values.to(x.dtype), accumulate=True)

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        scaled = x[rows.long()] * factors[:, None]
        x[rows.long()] = scaled.to(x.dtype)
        return x

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        rows = rows.long()
        held = x[rows]
        condition = torch.as_tensor(condition, device=self.device)
        values = torch.as_tensor(values, device=self.device).to(x.dtype)
        x[rows] = torch.where(condition, values, held)
        return x

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        rows = rows.long()
        return x.index_select(0, rows) if columns is None else x[rows[:, None], columns.long()]

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        x[rows.long()[:, None], columns.long()] = values.to(x.dtype)
        return x

    def cumsum(self, x: Array) -> Array:
        return x.cumsum(dim=1, dtype=torch.promote_types(x.dtype, torch.float32))

    def forbid_from(self, x: Array, column: int) -> Array:
        x[:, column:] = -torch.inf
        return x

    def exp(self, x: Array) -> Array:
        return x.exp()

    def log(self, x: Array) -> Array:
        return x.log()

    def log_softmax(self, x: Array) -> Array:
        return x.to(torch.promote_types(x.dtype, torch.float32)).log_softmax(dim=1)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        values, columns = x.topk(k, dim=1, largest=True, sorted=True)
        return values, columns

    def argmax(self, x: Array) -> Array:
        return x.argmax(dim=1)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        weights = logprobs.double().softmax(dim=1)
        sums = weights.cumsum(dim=1)
        past = (sums > uniforms.double()[:, None] * sums[:, -1:]) & (weights > 0)
        return past.int().argmax(dim=1)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        seeds, sequences, positions = (a.long()[:, None] for a in (seeds, sequences, positions))
        blocks = self.plans.table("blocks", -(-width // 4))[None, :]
        counter = (blocks, positions & WORD, sequences & WORD, torch.tensor(purpose & WORD, device=self.device))
        block = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
        words = torch.stack(torch.broadcast_tensors(*block), dim=2).reshape(len(seeds), -1)[:, :width]
        return ((words >> 9).float() + 0.5) * 2**-23

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        bits = (bitmask[:, :, None] >> self.plans.table("bits", 32)) & 1
        known = bits.bool().reshape(len(bitmask), 32 * bitmask.shape[1])[:, :width]
        allowed = torch.zeros(len(bitmask), width, dtype=torch.bool, device=self.device)
        allowed[:, : known.shape[1]] = known
        return allowed


class Arriving:
    """Copies on their way to the host."""

    def __init__(self, arrays: Mapping[str, Array], device: torch.device) -> None:
        self.copies = {name: array.detach().to("cpu", copy=True, non_blocking=True) for name, array in arrays.items()}
        self.done = torch.cuda.Event() if device.type == "cuda" else None
        if self.done is not None:
            self.done.record()

    def result(self) -> Mapping[str, NDArray[Any]]:
        if self.done is not None:
            self.done.synchronize()
        return {n: (c.float() if c.dtype == torch.bfloat16 else c).numpy() for n, c in self.copies.items()}


class Staged(DeviceBackend):
    contract = "1.0"
    name = "staged"
    arrays = "torch"
    fused = frozenset({"apply_token_lists", "masked_argmax", "masked_sample", "warp_masked"})

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            chosen = torch.device(device)
            if chosen.type not in ("cpu", "cuda"):
                raise RuntimeError("it stages for cpu and cuda only")
            torch.empty(1, device=chosen)
        except (RuntimeError, AssertionError) as error:
            raise InvalidConfiguration(f"no device {device!r}: {error}", field="device") from error
        self.ops = StagedOps(chosen)

    def scope(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, np.ndarray):
            if not logits.flags.writeable or min(logits.strides, default=1) <= 0:
                logits = logits.copy()
            logits = torch.from_numpy(logits)
        logits = logits.detach()
        inner, outer = sorted(zip(logits.stride(), logits.shape, strict=True))
        if inner[0] < 1 or outer[0] < inner[0] * inner[1]:  # rows that share memory would be masked together
            logits = logits.clone(memory_format=torch.contiguous_format)
        return logits.to(self.ops.device)

    def _kept(self, shape: tuple[int, int], bitmask: Array, rows: Array) -> Array:
        """``bool[rows, width]``: what stays. Padding writes into a row past the end: nobody waits for the device."""
        if isinstance(rows, np.ndarray):
            bitmask, rows = self.ops.asarray(bitmask), self.ops.asarray(rows)
        kept = torch.ones(shape[0] + 1, shape[1], dtype=torch.bool, device=self.ops.device)
        kept[torch.where(rows < 0, shape[0], rows.long())] = self.ops.unpack_bitmask(bitmask, shape[1])
        return kept[: shape[0]]

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return logits.masked_fill_(~self._kept(tuple(logits.shape), bitmask, rows), -torch.inf)

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: NDArray[np.int32]) -> Array:
        height, width = logits.shape
        allow = np.zeros(height + 1, dtype=np.bool_)
        allow[rows] = lists.allow
        allow[-1] = False
        entries = np.repeat(np.arange(len(lists)), np.diff(lists.offsets))
        inside = (lists.token_ids < width) & (rows[entries] >= 0)
        entries, token_ids = entries[inside], lists.token_ids[inside].astype(np.int64)
        forbidden = self.ops.asarray(allow[:height])[:, None].repeat(1, width)
        flat = self.ops.asarray(rows[entries].astype(np.int64) * width + token_ids)
        forbidden.view(-1)[flat] = self.ops.asarray(~lists.allow[entries])
        return logits.masked_fill_(forbidden, -torch.inf)

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Any, factors: Array) -> Array:
        x = logits.to(torch.float32, copy=True)
        x = x.masked_fill_(~self._kept(tuple(logits.shape), bitmask, rows), -torch.inf)
        if added is not None:
            x = self.ops.add_at(x, *added)
        return x.mul_(factors[:, None])

    def _considered(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> Array:
        kept = self._kept(tuple(logits.shape), bitmask, rows)[:, :num_tokens]
        return logits[:, :num_tokens].float().masked_fill(~kept, -torch.inf)

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        x = self._considered(logits, bitmask, rows, num_tokens)
        return x.argmax(dim=1), x.amax(dim=1)

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        x = self._considered(logits, bitmask, rows, num_tokens)
        best = x.amax(dim=1)
        cold = draw.temperatures == 0
        base = torch.where(best.isfinite(), best, 0)[:, None]  # at small temperatures all would be infinite without it
        u = self.ops.uniform(draw.seeds, draw.sequences, draw.positions, draw.purpose, x.shape[1])
        noisy = (x - base) / (draw.temperatures + cold)[:, None] - (-u.log()).log()
        return torch.where(cold, x.argmax(dim=1), noisy.argmax(dim=1)), best

    def download(self, arrays: Mapping[str, Array]) -> Arriving:
        return Arriving(arrays, self.ops.device)
