"""Arrays over rows that the runtime derives from its sequences, and the check of payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.steps import Array, Fault, Feedback, Logprobs, Payload, StepBatch
from guideway.api.types import TokenLogprobs
from guideway.errors import ConformanceError

__all__ = [
    "check_bitmask",
    "check_payload",
    "companion_rows",
    "feedback_of",
    "handed",
    "history_rows",
    "in_row_order",
    "sequence_of_row",
    "token_logprobs",
]


def sequence_of_row(batch: StepBatch) -> NDArray[np.int64]:
    """``int64[num_rows]``: index in the batch of each row's sequence."""
    return np.repeat(np.arange(batch.num_sequences), np.diff(batch.row_start))


def history_rows(
    batch: StepBatch, token_ids: Sequence[tuple[Sequence[int], Sequence[int]]], length: int
) -> NDArray[np.int32]:
    """``int32[num_rows, length]``: the tokens before each row, nearest last, -1 where there are none.

    `token_ids` holds prompt and generated tokens of each sequence of the batch; the drafts come from the batch.
    """
    history = np.full((batch.num_rows, length), -1, dtype=np.int32)
    for i, (prompt, generated) in enumerate(token_ids):
        start, end = int(batch.row_start[i]), int(batch.row_start[i + 1])
        past = list(generated[-length:]) if len(generated) >= length else [*prompt, *generated][-length:]
        past += batch.drafts(i).tolist()
        for row in range(start, end):
            before = past[: len(past) - (end - 1 - row)][-length:]
            if before:
                history[row, length - len(before) :] = before
    return history


def companion_rows(batch: StepBatch, owners: Sequence[Sequence[str]]) -> dict[str, NDArray[np.int32]]:
    """By modifier name ``int32[num_rows, c]``: the logits row of each companion of each row's sequence.

    `owners` names, for each sequence of the batch, the modifier that asked for each of its companions. After the
    `num_rows` sampled rows the logits hold, sequence by sequence and companion by companion, as many rows as the
    sequence has.
    """
    widths: Counter[str] = Counter()
    for names in owners:
        widths |= Counter(names)  # the larger of the two counts
    found = {name: np.full((batch.num_rows, width), -1, dtype=np.int32) for name, width in widths.items()}
    next_row = batch.num_rows
    for i, names in enumerate(owners):
        start, end = int(batch.row_start[i]), int(batch.row_start[i + 1])
        columns = dict.fromkeys(names, 0)
        for name in names:
            found[name][start:end, columns[name]] = np.arange(next_row, next_row + end - start)
            columns[name] += 1
            next_row += end - start
    for array in found.values():
        array.setflags(write=False)
    return found


def check_payload(
    payload: object, batch: StepBatch, states: Sequence[object], sequence_of_row: NDArray[Any] | None
) -> Payload | None:
    """`payload`, or None if there is nothing in it, or `ConformanceError` if it is no payload for this batch: a
    modifier may speak only of sequences it has a state for. `sequence_of_row` is None where each has one row. What
    passes can be pickled: a step that cannot would cost all its sequences."""
    if payload is None:
        return None
    if type(payload) is not Payload:  # one of a class of its own is not known to pickle
        raise ConformanceError(f"prepare must return a Payload or None, not {type(payload).__name__}")
    rows = payload.rows
    if not isinstance(rows, np.ndarray) or rows.dtype != np.int32 or rows.ndim != 1:
        raise ConformanceError("a payload's rows must be a NumPy array int32[m]")
    _check_plain("rows", rows)
    for i, fault in payload.faults.items():
        if not isinstance(fault, Fault) or i not in range(len(states)) or states[i] is None:
            raise ConformanceError(f"a payload has {fault!r} as the fault of {i!r}, but that sequence has no state")
    if len(rows) == 0:
        return payload if payload.faults else None
    listed = rows.tolist()
    with_state = [i for i, state in enumerate(states) if state is not None]
    if sequence_of_row is not None or listed != with_state:  # not what most payloads speak of
        if min(listed) < 0 or max(listed) >= batch.num_rows:
            raise ConformanceError(f"a payload has rows outside 0..{batch.num_rows - 1}")
        owners = listed if sequence_of_row is None else sequence_of_row[rows].tolist()
        if len(set(listed)) < len(listed) or not set(owners) <= set(with_state):
            raise ConformanceError(
                "a payload has a row twice, or a row of a sequence for which the modifier has no state"
            )
    if type(payload.arrays) is not dict or type(payload.shared) is not dict:
        payload = replace(payload, arrays=_in_a_dict(payload.arrays), shared=_in_a_dict(payload.shared))
    for name, array in [*payload.arrays.items(), *payload.shared.items()]:
        if type(name) is not str:
            raise ConformanceError(f"payload arrays must be named by strings, not by {type(name).__name__}")
        if not isinstance(array, np.ndarray):
            raise ConformanceError(f"payload array {name!r} must be a NumPy array, not {type(array).__name__}")
        _check_plain(name, array)
    for name, array in payload.arrays.items():
        if array.ndim == 0 or len(array) != len(rows):
            raise ConformanceError(
                f"payload array {name!r} has shape {array.shape}; its leading axis must be {len(rows)}"
            )
    return payload


def _in_a_dict(arrays: object) -> dict[str, Array]:
    """Other mappings, such as `types.MappingProxyType`, need not pickle."""
    if not isinstance(arrays, Mapping):
        raise ConformanceError(f"a payload's arrays must be a mapping, not {type(arrays).__name__}")
    return dict(arrays)


def _check_plain(name: str, array: NDArray[Any]) -> None:
    """Any other class, and what a dtype brings along, need not pickle."""
    dtype = array.dtype
    if type(array) is not np.ndarray or dtype.hasobject or dtype.names or dtype.metadata is not None:
        raise ConformanceError(
            f"payload array {name!r} cannot be pickled: it must be a plain NumPy array of numbers, not a "
            f"{type(array).__name__} of {dtype!r}"
        )


def check_bitmask(payload: Payload, name: str, words: int) -> None:
    """Raise `ConformanceError` if the array `name` of a checked payload is no bitmask of so many words a row."""
    bitmask = payload.arrays.get(name)
    if bitmask is None or bitmask.dtype != np.int32 or bitmask.shape != (len(payload), words):
        found = "is missing" if bitmask is None else f"is {bitmask.dtype}{list(bitmask.shape)}"
        raise ConformanceError(
            f"payload array {name!r} {found}; its transform declares it as a bitmask, int32[{len(payload)}, {words}]"
        )


def in_row_order(feedback: Mapping[str, Payload]) -> dict[str, Payload]:
    """`feedback` with each payload's rows in ascending order."""
    ordered = {}
    for name, payload in feedback.items():
        order = np.argsort(payload.rows)
        ordered[name] = Payload(payload.rows[order], {key: array[order] for key, array in payload.arrays.items()})
    return ordered


def feedback_of(feedback: Mapping[str, Payload], first_row: int, num_tokens: int) -> dict[str, Feedback] | None:
    """Return what transforms emitted at the rows that gave the `num_tokens` final tokens of a sequence; a transform
    that did not act on all of them is left out. `feedback` is in row order."""
    found: dict[str, Feedback] = {}
    for name, payload in feedback.items():
        start, end = np.searchsorted(payload.rows, (first_row, first_row + num_tokens))
        if end - start == num_tokens:
            found[name] = {key: array[start:end] for key, array in payload.arrays.items()}
    return found or None


def handed(feedback: Mapping[str, Feedback] | None, name: str) -> Feedback | None:
    """The feedback of the modifier `name` as `LogitModifier.accept` is given it: the journal's, to read only."""
    found = feedback.get(name) if feedback else None
    if found is None:
        return None
    for array in found.values():
        array.setflags(write=False)
    return MappingProxyType(found)


def token_logprobs(logprobs: Logprobs, start: int, token_ids: Sequence[int], k: int) -> list[TokenLogprobs]:
    """Return what the entries of `logprobs` from index `start` on (an index into its arrays, not a row of the step) say
    of `token_ids`, one entry per token, with the `k` most likely tokens of each."""
    entries = slice(start, start + len(token_ids))
    top_ids, top = logprobs.top_ids[entries, :k].tolist(), logprobs.top[entries, :k].tolist()
    return [
        TokenLogprobs(token_id, chosen, tuple(zip(ids, values, strict=True)))
        for token_id, chosen, ids, values in zip(
            token_ids, logprobs.chosen[entries].tolist(), top_ids, top, strict=True
        )
    ]
