"""Tensors of the KV cache, in each worker. The scheduler decides which cells belong to which sequence; see
`kv_cache`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from guideway.api.forward import Copy, Move
from guideway.errors import GuidewayError, InvalidConfiguration
from torch import Tensor

__all__ = ["KVShape", "KVStore"]


@dataclass(frozen=True, slots=True)
class KVShape:
    """Shape of one token's cells: each layer has `num_heads` key heads of `key_dim` and value heads of `value_dim`."""

    num_layers: int
    num_heads: int
    key_dim: int
    value_dim: int


class KVStore:
    """Keys and values of `num_cells` tokens: `keys` is ``[num_layers, num_heads, num_cells, key_dim]``, `values` the
    same with ``value_dim``.

    Heads come before cells, so that regions of one size are a strided view ``[regions, heads, size, dim]`` and
    attention over neighbors copies nothing. Raises `InvalidConfiguration` if there is not enough memory.
    """

    def __init__(self, shape: KVShape, *, num_cells: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.num_cells = num_cells
        cells = (shape.num_layers, shape.num_heads, num_cells)
        try:
            self.keys = _zeros(*cells, shape.key_dim, dtype=dtype, device=device)
            self.values = _zeros(*cells, shape.value_dim, dtype=dtype, device=device)
        except (RuntimeError, MemoryError) as error:  # torch's and NumPy's when memory runs out
            gigabytes = shape.num_layers * shape.num_heads * (shape.key_dim + shape.value_dim) * dtype.itemsize / 1e9
            raise InvalidConfiguration(
                f"no memory for a KV cache of {num_cells} tokens, which takes {num_cells * gigabytes:.3g} GB: {error}",
                field="num_cells",
            ) from error
        self._layers = list(zip(self.keys.unbind(), self.values.unbind(), strict=True))
        self.num_moves = 0
        """Number of executed moves."""

    @torch.inference_mode()
    def move(self, moves: Sequence[Move], first_move: int) -> None:
        """Execute the moves that are not done yet; `first_move` is the number of the first one in `moves`."""
        if first_move > self.num_moves:
            raise GuidewayError(f"moves {self.num_moves} to {first_move - 1} of the KV cache never arrived")
        for move in moves[self.num_moves - first_move :]:
            target = move.target if isinstance(move, Copy) else move.start
            for tensor in (self.keys, self.values):
                cells = tensor.narrow(2, target, move.num_tokens)
                if isinstance(move, Copy):
                    cells.copy_(tensor.narrow(2, move.source, move.num_tokens))
                else:
                    cells.zero_()
            # counted when done: after an interrupt before this the move is repeated, which changes nothing
            self.num_moves += 1

    def write(self, layer: int, cells: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write ``[heads, tokens, dim]`` of one layer into `cells`, ``int64[tokens]``."""
        of_layer = self._layers[layer]
        of_layer[0].index_copy_(1, cells, keys)
        of_layer[1].index_copy_(1, cells, values)

    def views(self, start: int, num_regions: int, size: int, num_keys: int) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values ``[num_regions, heads, num_keys, dim]`` of each layer: `num_keys` cells from each of
        the cells `start`, ``start + size``, ``start + 2 * size``, ..."""
        shape, heads = self.shape, self.shape.num_heads

        def strided(tensor: Tensor, dim: int) -> tuple[Tensor, ...]:
            of_heads = self.num_cells * dim
            return tensor.as_strided(
                (shape.num_layers, num_regions, heads, num_keys, dim),
                (heads * of_heads, size * dim, of_heads, dim, 1),
                start * dim,
            ).unbind()

        return list(zip(strided(self.keys, shape.key_dim), strided(self.values, shape.value_dim), strict=True))


def _zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. On a CPU, the system finds memory for a page when it is written for the first time, so that a short
    run does not wait for cells that it never uses: torch would write them all."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
