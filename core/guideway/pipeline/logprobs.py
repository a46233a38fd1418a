"""Log-probabilities of tokens, for rows that requested them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guideway.api.device import ArrayOps
from guideway.api.steps import Array, Logprobs
from guideway.pipeline.padding import Padding

__all__ = ["RowLogprobs", "joined"]


class Places(NamedTuple):
    """Where the log-probabilities of some tokens are in `RowLogprobs.values`."""

    indices: NDArray[np.intp]
    """The rows, on the host."""
    rows: Array
    columns: Array


class RowLogprobs:
    """The log-probabilities of some rows, on the device until `result`.

    ``values[i]`` are the log-probabilities of all tokens at ``rows[i]``. `count` is the number of most likely tokens to
    return. `name` distinguishes the downloads of one step.
    """

    def __init__(
        self,
        ops: ArrayOps,
        values: Array,
        rows: NDArray[np.int32],
        count: int,
        padding: Padding | None = None,
        name: str = "logprobs",
    ) -> None:
        self._name = name
        self._ops, self._rows, self._count, self._padding = ops, rows, count, padding
        self.values = values
        self.downloads: dict[str, Array] = {}
        self._chosen: list[NDArray[np.intp]] = []
        if count:
            looked_up = count if padding is None else padding.num_logprobs(count)
            self.downloads[f"{name}/top"], self.downloads[f"{name}/top_ids"] = ops.topk(self.values, looked_up)

    def choose(self, rows: NDArray[np.integer[Any]], token_ids: Array) -> None:
        """Set the chosen tokens of `rows`. A later call for the same row replaces its token."""
        self.take(self.find(rows, token_ids))

    def find(self, rows: NDArray[np.integer[Any]], token_ids: Array) -> Places:
        """Return where the log-probabilities of the tokens of `rows` are."""
        ops, width = self._ops, self.values.shape[1]
        if self._padding is None and np.array_equal(rows, self._rows):
            here, ids = np.arange(len(rows)), token_ids
            from_values = ops.asarray(here.astype(np.int32))
        else:
            _, here, there = np.intersect1d(self._rows, rows, assume_unique=True, return_indices=True)
            places = (here, there) if self._padding is None else map(self._padding.aligned, (here, there))
            from_values, from_ids = (ops.asarray(place.astype(np.int32)) for place in places)
            ids = token_ids[from_ids]
        ids = ids * ((ids >= 0) * (ids < width))  # a broken sampler may draw ids out of range
        return Places(here, from_values, ids[:, None])

    def take(self, places: Places) -> None:
        """Do `choose` for what `find` returned, here or in another object for the same rows."""
        values = self._ops.gather(self.values, places.rows, places.columns)[:, 0]
        self.downloads[f"{self._name}/chosen/{len(self._chosen)}"] = values
        self._chosen.append(places.indices)

    def result(self, host: Mapping[str, NDArray[Any]]) -> Logprobs:
        """Build the result from `downloads`, copied to the host."""
        num_rows = len(self._rows)
        chosen = np.zeros(num_rows, dtype=np.float32)
        for i, here in enumerate(self._chosen):
            chosen[here] = host[f"{self._name}/chosen/{i}"][: len(here)]
        empty = np.zeros((num_rows, 0), dtype=np.float32)
        top, top_ids = (
            host.get(name, empty)[:num_rows, : self._count] for name in (f"{self._name}/top", f"{self._name}/top_ids")
        )
        return Logprobs(self._rows, chosen, top_ids.astype(np.int32), top.astype(np.float32))


def joined(found: Sequence[Logprobs]) -> Logprobs | None:
    """Join log-probabilities of different rows, in ascending order of the rows; None if there are none."""
    if len(found) < 2:
        return found[0] if found else None
    rows = np.concatenate([one.rows for one in found])
    order = np.argsort(rows)
    chosen, top_ids, top = (
        np.concatenate([getattr(one, name) for one in found])[order] for name in ("chosen", "top_ids", "top")
    )
    return Logprobs(rows[order], chosen, top_ids, top)
