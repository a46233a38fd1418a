"""Additive attention masks as views of one vector."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Masks"]


class Masks:
    """Masks of ``0`` / ``-inf`` for any positions below `max_length`.

    Visibility of a key depends only on its distance from the query, so every row of every mask is a slice of one vector
    of ``2 * max_length`` numbers; there is one such vector for each window size.
    """

    def __init__(self, max_length: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._max_length = max_length
        self._dtype = dtype
        self._tables: dict[int | None, Tensor] = {}

    def rows(self, positions: NDArray[np.int64], first_key: int, num_keys: int, window: int | None) -> Tensor:
        """Return ``[len(positions), num_keys]``. Row i lets the query at ``positions[i]``, at least `first_key`, see
        the keys from `first_key` up to its own position, or only the last `window` of these."""
        table = self._tables.get(window)
        if table is None:
            table = self._tables[window] = self._table(window)
        index = torch.from_numpy(self._max_length - 1 + first_key - positions).to(self.device)
        return table[:, :num_keys].index_select(0, index)

    def _table(self, window: int | None) -> Tensor:
        length = self._max_length
        steps = torch.zeros(2 * length - 1, dtype=self._dtype, device=self.device)
        # element `length - 1 + d` is for a key `d` positions after the query
        steps[length:] = -torch.inf
        if window is not None:
            steps[: max(0, length - window)] = -torch.inf
        # row r begins at element r: it is for a query `length - 1 - r` positions after the first key
        return steps.as_strided((length, length), (1, 1))
