"""Shapes that stay the same from step to step, for devices that compile for each.

Every list of rows is filled up with rows that mean nothing: the logits of a step are given as many scratch rows again
as they have rows, and a list that is short of entries ends with scratch rows, each once, under the values of its first
entry. So a transform is applied to more rows than were asked for, all of them its own, and needs to know nothing of
it. What comes back is cut on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import allocate
from guideway.api.steps import FILTERS, Payload, StepBatch, StepInput, Warp
from guideway.pipeline.warping import Filter, Pairs

__all__ = ["Padding", "dummy_steps", "padded_step"]

LEAST_PAIRS = 64
GROWTH = 4
"""Pairs of rows and columns are padded to `LEAST_PAIRS` times a power of this."""
WARM_PAIRS_PER_ROW = 512
"""Lists of pairs of up to so many for each row are part of `dummy_steps`; longer ones are compiled when they come."""
MOST_LIKELY = 32
"""So many most likely tokens are looked up wherever fewer are asked for, and where more are, the next power of two."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding of the lists of one step. `num_rows` of the logits are no scratch rows."""

    num_rows: int
    width: int
    """The width of the logits."""

    def rows(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """``int32[num_rows]``: `rows`, then scratch rows."""
        missing = self.num_rows - len(rows)
        scratch = np.arange(self.num_rows, self.num_rows + missing, dtype=np.int32)
        return np.concatenate([rows.astype(np.int32), scratch])

    def aligned(self, array: NDArray[Any]) -> NDArray[Any]:
        """`array`, whose leading axis runs over a list of rows, as long as `rows` makes that list."""
        return _filled(array, self.num_rows)

    def payload(self, payload: Payload) -> Payload:
        """`payload` with an entry for each of `rows`."""
        return replace(
            payload,
            rows=self.rows(payload.rows),
            arrays={name: self.aligned(array) for name, array in payload.arrays.items()},
        )

    def pairs(self, pairs: Pairs) -> Pairs:
        """`pairs`, then as many of scratch rows as bring them to one of a few lengths."""
        rows, columns, values = pairs
        size = LEAST_PAIRS
        while size < len(rows):
            size *= GROWTH
        missing = np.arange(size - len(rows))
        return (
            np.concatenate([rows, (self.num_rows + missing // self.width % self.num_rows).astype(np.int32)]),
            np.concatenate([columns, (missing % self.width).astype(np.int32)]),
            _filled(values, size),
        )

    def filter(self, chosen: Filter) -> Filter:
        """`chosen` over all of `rows`, with every token a candidate."""
        aligned = {
            field.name: None if (array := getattr(chosen, field.name)) is None else self.aligned(array)
            for field in fields(chosen)
            if field.name not in ("rows", "num_candidates")
        }
        return Filter(rows=self.rows(chosen.rows), num_candidates=self.width, **aligned)

    def num_logprobs(self, count: int) -> int:
        """Return how many most likely tokens to look up where `count` are wanted."""
        return min(self.width, max(MOST_LIKELY, 1 << (count - 1).bit_length())) if count else 0


def padded_step(step: StepInput, num_rows: int) -> StepInput:
    """`step` as one of `num_rows` rows, those beyond its own greedy ones that no payload speaks of. Its warp stays."""
    batch = step.batch
    if batch.num_rows == num_rows:
        return step
    padded = StepBatch(batch.slots, batch.row_start, batch.draft_token_ids, _zeros(batch.positions, num_rows))
    return replace(
        step,
        batch=padded,
        temperatures=_zeros(step.temperatures, num_rows),
        seeds=_zeros(step.seeds, num_rows),
        sequence_indices=_zeros(step.sequence_indices, num_rows),
        history=None if step.history is None else _zeros(step.history, num_rows),
        companion_rows={name: _like_some(rows, num_rows) for name, rows in step.companion_rows.items()},
    )


def dummy_steps(num_rows: int, width: int, bitmasks: Mapping[str, str]) -> Iterator[StepInput]:
    """Steps of so many rows, a sequence each, that between them use everything a step may but modifiers other than
    those whose payload is a bitmask: by their names the array that holds it."""
    rows = np.arange(num_rows, dtype=np.int32)
    zeros, ones = np.zeros(num_rows, dtype=np.int32), np.ones(num_rows, dtype=np.float32)
    greedy = StepInput(
        batch=StepBatch.build(rows.tolist(), zeros.tolist()),
        payloads={name: Payload(rows, {key: allocate(num_rows, width)}) for name, key in bitmasks.items()},
        temperatures=0 * ones,
        seeds=np.zeros(num_rows, dtype=np.int64),
        sequence_indices=zeros,
    )
    for step in (greedy, replace(greedy, num_logprobs=zeros), replace(greedy, num_logprobs=zeros + 1)):
        yield step
        yield replace(step, temperatures=0.5 * ones)
    filters: dict[str, Any] = {
        name: zeros + 1 if isinstance(neutral, np.int32) else 0.5 * ones for name, neutral in FILTERS.items()
    }
    alone = (Warp(**{name: values}) for name, values in filters.items())
    for warp in (*_dummy_pairs(num_rows, width), *alone, Warp(**filters)):
        for temperature in (0, 1, 0.5):
            yield replace(greedy, warp=warp, temperatures=temperature * ones, num_logprobs=zeros + 1)


def _dummy_pairs(num_rows: int, width: int) -> Iterator[Warp]:
    """Bias, penalties and bans over lists of each length that a step of so many rows may commonly need."""
    size = LEAST_PAIRS
    while size <= num_rows * min(WARM_PAIRS_PER_ROW, width):
        places = np.arange(size)
        rows, columns = (places // width).astype(np.int32), (places % width).astype(np.int32)
        ones = np.ones(size, dtype=np.float32)
        bias = Warp(added=(rows, columns, ones))
        yield bias
        yield replace(bias, repeated=(rows, columns, ones))
        yield Warp(added=(rows[:-1], columns[:-1], -np.inf * ones[:-1]))
        size *= GROWTH


def _filled(array: NDArray[Any], size: int) -> NDArray[Any]:
    """`array`, its first entry repeated up to `size`; zeros if it has none."""
    if not len(array):
        return np.zeros((size, *array.shape[1:]), dtype=array.dtype)
    return np.concatenate([array, np.broadcast_to(array[:1], (size - len(array), *array.shape[1:]))])


def _zeros(array: NDArray[Any], size: int) -> NDArray[Any]:
    """`array` with zeros up to `size`."""
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), dtype=array.dtype)])


def _like_some(companions: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """`companions` up to `size`, those added being some row's that has one: a transform looks at them."""
    has_one = companions[:, :1].ravel() >= 0
    some = companions[np.argmax(has_one) :][:1]
    return np.concatenate([companions, np.broadcast_to(some, (size - len(companions), companions.shape[1]))])
