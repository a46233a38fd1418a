"""Logits in torch tensors on any of its devices; masks by where and scatter, and payloads in one transfer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from guideway.api import Array, ArrayOps, DeviceBackend, Draw, InvalidConfiguration, Payload, TokenLists
from guideway.devices.philox import WORD, multiply_64, philox4x32
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 16
Triples = tuple[Tensor, Tensor, Tensor]


class TorchletOps(ArrayOps):
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bits = torch.arange(32, dtype=torch.int32, device=device)

    def asarray(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array, order="C")).to(self.device, non_blocking=True)

    def add_at(self, x: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        most = torch.finfo(x.dtype).max
        values = torch.where(values.isinf(), values, values.clamp(-most, most))
        return x.index_put_((rows.long(), columns.long()), values.to(x.dtype), accumulate=True)

    def scale_rows(self, x: Tensor, rows: Tensor, factors: Tensor) -> Tensor:
        rows = rows.long()
        return x.index_put_((rows,), (x[rows] * factors[:, None]).to(x.dtype))

    def where_rows(self, x: Tensor, rows: Tensor, condition: Tensor | bool, values: Tensor | float) -> Tensor:
        rows = rows.long()
        chosen = torch.as_tensor(condition, device=self.device)
        values = torch.as_tensor(values, device=self.device).to(x.dtype)
        return x.index_put_((rows,), torch.where(chosen, values, x[rows]))

    def gather(self, x: Tensor, rows: Tensor, columns: Tensor | None = None) -> Tensor:
        if columns is None:
            return x.index_select(0, rows)
        return x.index_select(0, rows).gather(1, columns.long())

    def scatter(self, x: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        return x.index_put_((rows.long()[:, None], columns.long()), values.to(x.dtype))

    def cumsum(self, x: Tensor) -> Tensor:
        return x.cumsum(1, dtype=torch.float64).to(torch.promote_types(x.dtype, torch.float32))

    def forbid_from(self, x: Tensor, column: int) -> Tensor:
        x[:, column:] = -torch.inf
        return x

    def exp(self, x: Tensor) -> Tensor:
        return x.exp()

    def log(self, x: Tensor) -> Tensor:
        return x.log()

    def log_softmax(self, x: Tensor) -> Tensor:
        return x.log_softmax(1, dtype=torch.promote_types(x.dtype, torch.float32))

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, columns = x.topk(k, dim=1)
        return values, columns

    def argmax(self, x: Tensor) -> Tensor:
        return x.argmax(1)

    def categorical(self, logprobs: Tensor, uniforms: Tensor) -> Tensor:
        weights = logprobs.double().softmax(1)
        sums = weights.cumsum(1)
        past = (sums > uniforms.double()[:, None] * sums[:, -1:]) & (weights > 0)
        return past.byte().argmax(1)

    def uniform(self, seeds: Tensor, sequences: Tensor, positions: Tensor, purpose: int, width: int) -> Tensor:
        seeds, sequences, positions = (a.long()[:, None] for a in (seeds, sequences, positions))
        blocks = torch.arange(-(-width // 4), device=self.device)[None, :]
        last = torch.full_like(positions, purpose & WORD)
        counter = (blocks, positions & WORD, sequences & WORD, last)
        words = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD), multiply_64)
        flat = torch.stack(words, dim=2).reshape(len(seeds), -1)[:, :width]
        return ((flat >> 9).float() + 0.5) * 2**-23

    def unpack_bitmask(self, bitmask: Tensor, width: int) -> Tensor:
        allowed = ((bitmask[:, :, None] >> self.bits) & 1).bool().flatten(1)[:, :width]
        return torch.nn.functional.pad(allowed, (0, width - allowed.shape[1]))


@dataclass
class Copying:
    arrays: dict[str, Tensor]
    event: Any

    def result(self) -> Mapping[str, NDArray[Any]]:
        if self.event is not None:
            self.event.synchronize()
        return {name: tensor.numpy() for name, tensor in self.arrays.items()}


class Torchlets(DeviceBackend):
    contract = "1.0"
    name = "torchlets"
    arrays = "torch"
    fused = frozenset({"apply_token_lists", "masked_argmax", "masked_sample", "warp_masked"})
    ops: TorchletOps

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            self.ops = TorchletOps(torch.device(device))
        except (RuntimeError, AssertionError) as error:
            raise InvalidConfiguration(f"torch cannot use {device!r}: {error}", field="device") from error

    def scope(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def from_logits(self, logits: Array) -> Tensor:
        if isinstance(logits, np.ndarray):
            if not logits.flags.writeable or min(logits.strides) <= 0:
                logits = logits.copy(order="C")
            logits = torch.from_numpy(logits)
        logits = logits.detach().to(self.ops.device)
        return logits.clone(memory_format=torch.contiguous_format) if 0 in logits.stride() else logits

    def _allowed(self, bitmask: Array, rows: Array, num_rows: int, width: int) -> Tensor:
        """Return ``bool[num_rows, width]``: the tokens that masks allow; rows without a mask allow all."""
        if isinstance(rows, np.ndarray):
            bitmask, rows = self.ops.asarray(bitmask), self.ops.asarray(rows)
        allowed = torch.ones((num_rows + 1, width), dtype=torch.bool, device=self.ops.device)
        rows = torch.where(rows == -1, num_rows, rows).long()  # padding writes to the extra row
        return allowed.index_copy_(0, rows, self.ops.unpack_bitmask(bitmask, width))[:num_rows]

    def apply_bitmask(self, logits: Tensor, bitmask: Array, rows: Array) -> Tensor:
        return logits.masked_fill_(~self._allowed(bitmask, rows, *logits.shape), -torch.inf)

    def download(self, arrays: Mapping[str, Tensor]) -> Copying:
        wide = {name: a.float() if a.dtype == torch.bfloat16 else a for name, a in arrays.items()}
        copies = {name: a.detach().to("cpu", non_blocking=True, copy=True) for name, a in wide.items()}
        event = None
        if self.ops.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        return Copying(copies, event)

    def upload(self, payload: Payload) -> Payload:
        """Copy all arrays in one buffer, and so in one transfer."""
        parts: dict[tuple[str, str], NDArray[Any]] = {("", "rows"): payload.rows}
        parts |= {("arrays", name): array for name, array in payload.arrays.items()}
        parts |= {("shared", name): array for name, array in payload.shared.items()}
        starts, size = {}, 0
        for key, array in parts.items():
            starts[key] = size
            size += -(-array.nbytes // ALIGNED) * ALIGNED
        buffer = np.zeros(size, dtype=np.uint8)
        for key, array in parts.items():
            buffer[starts[key] : starts[key] + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        there = torch.from_numpy(buffer).to(self.ops.device)

        def cut(key: tuple[str, str]) -> Tensor:
            array = parts[key]
            kind = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
            return there[starts[key] : starts[key] + array.nbytes].view(kind).reshape(array.shape)

        return replace(
            payload,
            rows=cut(("", "rows")),
            arrays={name: cut(("arrays", name)) for name in payload.arrays},
            shared={name: cut(("shared", name)) for name in payload.shared},
        )

    def apply_token_lists(self, logits: Tensor, lists: TokenLists, rows: NDArray[np.int32]) -> Tensor:
        num_rows, width = logits.shape
        entries = np.repeat(np.arange(len(lists)), np.diff(lists.offsets))
        meant = lists.token_ids < width
        at = self.ops.asarray(entries[meant]), self.ops.asarray(lists.token_ids[meant]).long()
        refused = self.ops.asarray(lists.allow)[:, None].repeat(1, width)
        refused[at] = self.ops.asarray(~lists.allow)[at[0]]
        hidden = torch.zeros((num_rows + 1, width), dtype=torch.bool, device=self.ops.device)
        hidden[self.ops.asarray(np.where(rows == -1, num_rows, rows)).long()] = refused
        return logits.masked_fill_(hidden[:num_rows], -torch.inf)

    def warp_masked(
        self, logits: Tensor, bitmask: Array, rows: Array, added: Triples | None, factors: Tensor
    ) -> Tensor:
        x = torch.where(self._allowed(bitmask, rows, *logits.shape), logits.float(), -torch.inf)
        forbidden = x == -torch.inf
        if added is not None:
            x = self.ops.add_at(x, *added)
        return x.mul_(factors[:, None]).masked_fill_(forbidden, -torch.inf)

    def _considered(self, logits: Tensor, bitmask: Array, rows: Array, num_tokens: int) -> Tensor:
        x = logits[:, :num_tokens].float()
        return torch.where(self._allowed(bitmask, rows, *x.shape), x, -torch.inf)

    def masked_argmax(self, logits: Tensor, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Tensor, Tensor]:
        x = self._considered(logits, bitmask, rows, num_tokens)
        return x.argmax(1), x.amax(1)

    def masked_sample(
        self, logits: Tensor, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Tensor, Tensor]:
        x = self._considered(logits, bitmask, rows, num_tokens)
        cold = draw.temperatures == 0
        u = self.ops.uniform(draw.seeds, draw.sequences, draw.positions, draw.purpose, x.shape[1])
        drawn = (x / (draw.temperatures + cold)[:, None] - (-u.log()).log()).argmax(1)
        return torch.where(cold, x.argmax(1), drawn), x.amax(1)
