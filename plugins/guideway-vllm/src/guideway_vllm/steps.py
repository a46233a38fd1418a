"""The messages that travel between vLLM's engine core and its workers once per step, as an attribute of vLLM's own
messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from guideway.api import Fault, Payload, StepBatch, StepInput, StepOutput
from guideway.api.steps import FILTERS
from numpy.typing import NDArray

__all__ = ["ATTRIBUTE", "GuestOutput", "GuestStep", "Part", "select"]

ATTRIBUTE = "guideway"
"""The attribute of ``GrammarOutput`` going down and of ``ModelRunnerOutput`` coming up: dataclasses, pickled with what
they hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a step's sequences, with modifiers that act on them."""

    step: StepInput
    rows: NDArray[np.int32]
    """``int32[step.batch.num_rows]``: the row of the whole step each of its rows is."""
    draws: bool
    """True if guideway draws the tokens, because a modifier acts on the final distribution; else vLLM does."""


@dataclass(frozen=True, slots=True)
class GuestStep:
    """All that guideway sends down with a step."""

    fingerprint: str
    stop_token_id: int
    """The token that a row is left with whose token will not be final."""
    request_ids: Sequence[str]
    """The step's sequences, in order."""
    num_rows: Sequence[int]
    """The number of rows of each: one, and one for each of its drafts."""
    masked: NDArray[np.int32]
    """``int32[m]``: the rows `bitmask` speaks of."""
    bitmask: NDArray[np.int32]
    """``int32[m, words]``: the masks of the rows in no part."""
    parts: Sequence[Part] = ()
    late: Sequence[str] = ()
    """The requests whose masks are not ready: what is drawn for them counts for nothing."""


@dataclass(frozen=True, slots=True)
class GuestOutput:
    """All that comes back up."""

    parts: Sequence[StepOutput] = ()
    """Aligned with `GuestStep.parts`."""
    faults: dict[int, Fault] = field(default_factory=dict)
    """By row of the step: what failed outside the parts."""
    failure: str | None = None
    """Why every request of the step must end."""
    blamed: dict[str, Fault] = field(default_factory=dict)
    """By request, why a worker mixin says that it cannot go on."""


def select(step: StepInput, sequences: Sequence[int]) -> tuple[StepInput, NDArray[np.int32]]:
    """The part of a step that is about some of its sequences, and the row of the whole step each of its rows is."""
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
    payloads = {name: moved for name, payload in step.payloads.items() if len(moved := _moved(payload, rows, place))}
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
    )
    return selected, rows


def _moved(payload: Payload, rows: NDArray[np.int32], place: NDArray[np.int32]) -> Payload:
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
