"""Raw log-probabilities, computed from the model's unmodified logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.device import ArrayOps
from guideway.api.steps import Array, Logprobs
from guideway.pipeline.padding import Padding

__all__ = ["RawLogprobs"]


class RawLogprobs:
    """The raw log-probabilities of the rows that requested them, on the device until `result`.

    ``logits[i]`` are the logits of ``rows[i]``, with padding columns at -inf. `count` is the number of most likely
    tokens to return.
    """

    def __init__(
        self, ops: ArrayOps, logits: Array, rows: NDArray[np.int32], count: int, padding: Padding | None = None
    ) -> None:
        self._ops, self._rows, self._count, self._padding = ops, rows, count, padding
        self._values = ops.log_softmax(logits)
        self.downloads: dict[str, Array] = {}
        self._chosen: list[NDArray[np.intp]] = []
        if count:
            looked_up = count if padding is None else padding.num_logprobs(count)
            self.downloads["logprobs/top"], self.downloads["logprobs/top_ids"] = ops.topk(self._values, looked_up)

    def choose(self, rows: NDArray[np.integer[Any]], token_ids: Array) -> None:
        """Set the chosen tokens of `rows`. A later call for the same row replaces its token."""
        ops, width = self._ops, self._values.shape[1]
        _, here, there = np.intersect1d(self._rows, rows, assume_unique=True, return_indices=True)
        places = (here, there) if self._padding is None else map(self._padding.aligned, (here, there))
        from_values, from_ids = (ops.asarray(place.astype(np.int32)) for place in places)
        ids = token_ids[from_ids]
        ids = ids * ((ids >= 0) * (ids < width))  # a broken sampler may draw ids out of range
        values = ops.gather(self._values, from_values, ids[:, None])[:, 0]
        self.downloads[f"logprobs/chosen/{len(self._chosen)}"] = values
        self._chosen.append(here)

    def result(self, host: Mapping[str, NDArray[Any]]) -> Logprobs:
        """Build the result from `downloads`, copied to the host."""
        num_rows = len(self._rows)
        chosen = np.zeros(num_rows, dtype=np.float32)
        for i, here in enumerate(self._chosen):
            chosen[here] = host[f"logprobs/chosen/{i}"][: len(here)]
        empty = np.zeros((num_rows, 0), dtype=np.float32)
        top, top_ids = (
            host.get(name, empty)[:num_rows, : self._count] for name in ("logprobs/top", "logprobs/top_ids")
        )
        return Logprobs(self._rows, chosen, top_ids.astype(np.int32), top.astype(np.float32))
