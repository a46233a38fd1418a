"""Messages between vLLM's engine core and its workers, once per step, sent as an attribute of vLLM's own messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from guideway.api import Fault, Payload, StepBatch, StepInput, StepOutput
from guideway.api.steps import FILTERS
from numpy.typing import NDArray

__all__ = ["ATTRIBUTE", "RECORDS", "GuestOutput", "GuestStep", "Part", "select"]

ATTRIBUTE = "guideway"
"""Key of a request's report in its ``kv_transfer_params``, and attribute of ``GrammarOutput`` to the workers and of
``ModelRunnerOutput`` from them. Both hold picklable dataclasses."""

RECORDS = "guideway.records"
"""Key of the records of a step's tokens in ``kv_transfer_params``, between engine core and front end, and of the
request's parameter."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a step's sequences, with modifiers that act on them."""

    step: StepInput
    rows: NDArray[np.int32]
    """``int32[step.batch.num_rows]``: for each row its row in the whole step."""
    draws: bool
    """True if guideway draws the tokens, because a modifier acts on the final distribution; False if vLLM draws."""


@dataclass(frozen=True, slots=True)
class GuestStep:
    """guideway's message to the workers in a step."""

    fingerprint: str
    stop_token_id: int
    """Only token allowed in rows whose token will not be final."""
    request_ids: Sequence[str]
    """Sequences of the step, in order."""
    num_rows: Sequence[int]
    """Rows of each sequence: one, plus one for each draft."""
    masked: NDArray[np.int32]
    """``int32[m]``: the rows of `bitmask`."""
    bitmask: NDArray[np.int32]
    """``int32[m, words]``: the masks of the rows in no part."""
    parts: Sequence[Part] = ()
    late: Sequence[str] = ()
    """Requests whose masks are not ready; tokens drawn for them are discarded."""


@dataclass(frozen=True, slots=True)
class GuestOutput:
    """guideway's message from the workers."""

    parts: Sequence[StepOutput] = ()
    """Aligned with `GuestStep.parts`."""
    faults: dict[str, Fault] = field(default_factory=dict)
    """By request, faults outside the parts: of the device, and of worker mixins."""
    failure: str | None = None
    """Error that ends every request of the step."""


def select(step: StepInput, sequences: Sequence[int]) -> tuple[StepInput, NDArray[np.int32]]:
    """Return the part of a step with some of its sequences, and for each of its rows the row in the whole step."""
    batch = step.batch
    starts, ends = batch.row_start[:-1], batch.row_start[1:]
    if len(sequences) == batch.num_sequences:
        return step, np.arange(batch.num_rows, dtype=np.int32)
    rows = np.concatenate([np.arange(starts[i], ends[i], dtype=np.int32) for i in sequences])
    place = np.full(batch.num_rows, -1, dtype=np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    chosen = StepBatch(
        batch.slots[list(sequences)],
        np.concatenate([[0], np.cumsum([ends[i] - starts[i] for i in sequences])]).astype(np.int32),
        np.concatenate([batch.drafts(i) for i in sequences]).astype(np.int32),
        batch.positions[rows],
    )
    payloads = {
        name: moved for name, payload in step.payloads.items() if len(moved := _move_rows(payload, rows, place))
    }
    selected = replace(
        step,
        batch=chosen,
        payloads=payloads,
        temperatures=step.temperatures[rows],
        seeds=step.seeds[rows],
        sequence_indices=step.sequence_indices[rows],
        history=None if step.history is None else step.history[rows],
        warp=None if step.warp is None else _warp(step.warp, rows, place),
        num_logprobs=None,
        records=None if step.records is None else step.records[rows],
    )
    return selected, rows


def _move_rows(payload: Payload, rows: NDArray[np.int32], place: NDArray[np.int32]) -> Payload:
    taken = payload.take(rows)
    return replace(taken, rows=place[taken.rows])


def _warp(warp: Any, rows: NDArray[np.int32], place: NDArray[np.int32]) -> Any:
    per_row = {name: None if (array := getattr(warp, name)) is None else array[rows] for name in FILTERS}
    return replace(warp, repeated=_pairs(warp.repeated, place), added=_pairs(warp.added, place), **per_row)


def _pairs(pairs: Any, place: NDArray[np.int32]) -> Any:
    if pairs is None:
        return None
    which = place[pairs[0]]
    kept = which >= 0
    return (which[kept], pairs[1][kept], pairs[2][kept]) if kept.any() else None
