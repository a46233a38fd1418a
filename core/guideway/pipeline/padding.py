"""Pad arrays to few shapes, for devices that compile for each shape.

Every list of rows is padded: the logits of a step get as many scratch rows as they have rows, and a list that is too
short ends with scratch rows, each used once, with the values of its first entry. So a transform is applied to
additional rows, without having to know about padding. Results are cut on the host.
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
"""Lists of (row, column) pairs are padded to `LEAST_PAIRS` times a power of this."""
WARM_PAIRS_PER_ROW = 512
"""Maximum pairs per row for which `dummy_steps` compiles lists; longer ones are compiled on first use."""
MOST_LIKELY = 32
"""Least number of most likely tokens to compute; larger numbers are rounded up to a power of two."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding of one step. `num_rows` rows of the logits are not scratch rows."""

    num_rows: int
    width: int
    """The width of the logits."""

    def rows(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return ``int32[num_rows]``: `rows`, then scratch rows."""
        missing = self.num_rows - len(rows)
        scratch = np.arange(self.num_rows, self.num_rows + missing, dtype=np.int32)
        return np.concatenate([rows.astype(np.int32), scratch])

    def aligned(self, array: NDArray[Any]) -> NDArray[Any]:
        """Pad `array`, with one entry per row of a list, to the length that `rows` gives the list."""
        return _fill(array, self.num_rows)

    def payload(self, payload: Payload) -> Payload:
        """Pad `payload` to an entry for each of `rows`."""
        return replace(
            payload,
            rows=self.rows(payload.rows),
            arrays={name: self.aligned(array) for name, array in payload.arrays.items()},
        )

    def pairs(self, pairs: Pairs) -> Pairs:
        """Pad `pairs` with pairs in scratch rows to one of a few lengths."""
        rows, columns, values = pairs
        size = LEAST_PAIRS
        while size < len(rows):
            size *= GROWTH
        missing = np.arange(size - len(rows))
        return (
            np.concatenate([rows, (self.num_rows + missing // self.width % self.num_rows).astype(np.int32)]),
            np.concatenate([columns, (missing % self.width).astype(np.int32)]),
            _fill(values, size),
        )

    def filter(self, chosen: Filter) -> Filter:
        """Pad `chosen` to all of `rows`, with every token as a candidate."""
        aligned = {
            field.name: None if (array := getattr(chosen, field.name)) is None else self.aligned(array)
            for field in fields(chosen)
            if field.name not in ("rows", "num_candidates")
        }
        return Filter(rows=self.rows(chosen.rows), num_candidates=self.width, **aligned)

    def num_logprobs(self, count: int) -> int:
        """Return the number of most likely tokens to compute if `count` are requested."""
        return min(self.width, max(MOST_LIKELY, 1 << (count - 1).bit_length())) if count else 0


def padded_step(step: StepInput, num_rows: int) -> StepInput:
    """Pad `step` to `num_rows` rows with greedy rows that no payload addresses. Its warp is not changed."""
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
    """Yield steps of `num_rows` rows, one per sequence, that together use every feature of a step except modifiers
    without a bitmask. `bitmasks` are the names of payload arrays that are bitmasks, by modifier name."""
    rows = np.arange(num_rows, dtype=np.int32)
    zeros, ones = np.zeros(num_rows, dtype=np.int32), np.ones(num_rows, dtype=np.float32)
    greedy = StepInput(
        batch=StepBatch.build(rows.tolist(), zeros.tolist()),
        payloads={name: Payload(rows, {key: allocate(num_rows, width)}) for name, key in bitmasks.items()},
        temperatures=0 * ones,
        seeds=np.zeros(num_rows, dtype=np.int64),
        sequence_indices=zeros,
    )
    raw = replace(greedy, num_logprobs=zeros + 1)
    processed = replace(raw, processed=np.ones(num_rows, dtype=np.bool_))
    recorded = replace(greedy, records=np.ones(num_rows, dtype=np.bool_))
    for step in (greedy, replace(greedy, num_logprobs=zeros), raw, processed, recorded):
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
    """Yield bias, penalties and bans with lists of each length that steps of `num_rows` rows commonly need."""
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


def _fill(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Pad `array` to `size` with its first entry, or with zeros if it is empty."""
    if not len(array):
        return np.zeros((size, *array.shape[1:]), dtype=array.dtype)
    return np.concatenate([array, np.broadcast_to(array[:1], (size - len(array), *array.shape[1:]))])


def _zeros(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Pad `array` to `size` with zeros."""
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), dtype=array.dtype)])


def _like_some(companions: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Pad `companions` to `size` with the companions of a row that has one, since transforms read them."""
    has_one = companions[:, :1].ravel() >= 0
    some = companions[np.argmax(has_one) :][:1]
    return np.concatenate([companions, np.broadcast_to(some, (size - len(companions), companions.shape[1]))])
