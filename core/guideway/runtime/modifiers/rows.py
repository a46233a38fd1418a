"""Functions that compute arrays over rows, and that check payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.steps import Array, Fault, Feedback, Logprobs, Payload, StepBatch
from guideway.api.types import TokenLogprobs
from guideway.api.vocabulary import Vocabulary
from guideway.errors import ConformanceError

__all__ = [
    "check_bitmask",
    "check_payload",
    "companion_rows",
    "feedback_of",
    "history_rows",
    "in_row_order",
    "keep_unchanged",
    "lend_feedback",
    "sequence_of_row",
    "token_logprobs",
]


def sequence_of_row(batch: StepBatch) -> NDArray[np.int64]:
    """Return ``int64[num_rows]``: the index in the batch of each row's sequence."""
    return np.repeat(np.arange(batch.num_sequences), np.diff(batch.row_start))


def history_rows(
    batch: StepBatch, token_ids: Sequence[tuple[Sequence[int], Sequence[int]]], length: int
) -> NDArray[np.int32]:
    """Return ``int32[num_rows, length]``: the tokens before each row, nearest last, padded with -1 in front.

    `token_ids` holds prompt and generated tokens of each sequence of the batch; the drafts come from the batch.
    """
    if batch.num_rows == batch.num_sequences:
        padding = [-1] * length
        return np.array(
            [
                ids[-length:] if len(ids) >= length else [*padding, *prompt[-length:], *ids][-length:]
                for prompt, ids in token_ids
            ],
            dtype=np.int32,
        ).reshape(-1, length)
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
    """Return by modifier name ``int32[num_rows, c]``: the logits row of each companion of each row's sequence.

    `owners` names, for each sequence of the batch, the modifier that asked for each of its companions. After the
    `num_rows` sampled rows the logits hold, sequence by sequence and companion by companion, as many rows as the
    sequence has.
    """
    pieces: dict[str, list[tuple[int, int, int, int]]] = {}
    """By modifier, for each companion: its sequence's first row and number of rows, its column, and its first row."""
    next_row, starts = batch.num_rows, batch.row_start.tolist()
    for start, end, names in zip(starts, starts[1:], owners, strict=False):
        columns: dict[str, int] = {}
        for name in names:
            columns[name] = column = columns.get(name, -1) + 1
            pieces.setdefault(name, []).append((start, end - start, column, next_row))
            next_row += end - start
    found = {}
    for name, placed in pieces.items():
        first, counts, column_of, own = np.array(placed, dtype=np.int32).T
        within = np.arange(counts.sum(), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts)
        found[name] = array = np.full((batch.num_rows, column_of.max() + 1), -1, dtype=np.int32)
        array[np.repeat(first, counts) + within, np.repeat(column_of, counts)] = np.repeat(own, counts) + within
        array.setflags(write=False)
    return found


def check_payload(
    payload: object, batch: StepBatch, states: Sequence[object], sequence_of_row: NDArray[Any] | None
) -> Payload | None:
    """Return `payload`, or None if it is empty. Raises `ConformanceError` if it does not fit `batch`, has rows of
    sequences without a state, or cannot be pickled (which would fail the step for all sequences). `sequence_of_row` is
    None if each sequence has one row."""
    if payload is None:
        return None
    if type(payload) is not Payload:  # a subclass might not be picklable
        raise ConformanceError(f"prepare must return a Payload or None, not {type(payload).__name__}")
    rows = payload.rows
    if not isinstance(rows, np.ndarray) or rows.dtype != np.int32 or rows.ndim != 1:
        raise ConformanceError("a payload's rows must be a NumPy array int32[m]")
    _check_plain("rows", rows)
    by_slot = dict(zip(batch.slots.tolist(), states, strict=True)) if payload.faults else {}
    for slot, fault in payload.faults.items():
        if not isinstance(fault, Fault) or by_slot.get(slot) is None:
            raise ConformanceError(f"a payload has {fault!r} as the fault of slot {slot!r}, which has no state")
    if len(rows) == 0:
        return payload if payload.faults else None
    listed = rows.tolist()
    with_state = [i for i, state in enumerate(states) if state is not None]
    if sequence_of_row is not None or listed != with_state:  # the usual payload needs no further check
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
    """Return `arrays` as a dict, since other mappings, such as `types.MappingProxyType`, may not be picklable."""
    if not isinstance(arrays, Mapping):
        raise ConformanceError(f"a payload's arrays must be a mapping, not {type(arrays).__name__}")
    return dict(arrays)


def _check_plain(name: str, array: NDArray[Any]) -> None:
    """Raise `ConformanceError` for an array that may not be picklable: of a subclass or with dtype metadata."""
    dtype = array.dtype
    if type(array) is not np.ndarray or dtype.hasobject or dtype.names or dtype.metadata is not None:
        raise ConformanceError(
            f"payload array {name!r} cannot be pickled: it must be a plain NumPy array of numbers, not a "
            f"{type(array).__name__} of {dtype!r}"
        )


def check_bitmask(payload: Payload, name: str, words: int) -> None:
    """Raise `ConformanceError` if the array `name` of a checked payload is not a bitmask of `words` words per row."""
    bitmask = payload.arrays.get(name)
    if bitmask is None or bitmask.dtype != np.int32 or bitmask.shape != (len(payload), words):
        found = "is missing" if bitmask is None else f"is {bitmask.dtype}{list(bitmask.shape)}"
        raise ConformanceError(
            f"payload array {name!r} {found}; its transform declares it as a bitmask, int32[{len(payload)}, {words}]"
        )


def in_row_order(feedback: Mapping[str, Payload]) -> dict[str, Payload]:
    """Return `feedback` with each payload's rows in ascending order, in arrays to be read only."""
    ordered = {}
    for name, payload in feedback.items():
        order = np.argsort(payload.rows)
        arrays = {key: array[order] for key, array in payload.arrays.items()}
        for array in arrays.values():
            array.setflags(write=False)
        ordered[name] = Payload(payload.rows[order], arrays)
    return ordered


def feedback_of(
    feedback: Mapping[str, Payload], first_rows: Sequence[int], num_tokens: Sequence[int]
) -> list[dict[str, Feedback] | None]:
    """Return for each sequence the transforms' feedback for the rows of its final tokens, which are `num_tokens` from
    `first_rows`. A transform that did not act on all of these rows is left out. `feedback` must be in row order."""
    every: list[dict[str, Feedback]] = [{} for _ in first_rows]
    first, count = list(first_rows), list(num_tokens)
    has_one_each = count == [1] * len(first)
    for name, payload in feedback.items():
        if has_one_each and payload.rows.tolist() == first:  # the usual step
            emitted: list[dict[str, Array]] = [{} for _ in every]
            for key, array in payload.arrays.items():
                for own, piece in zip(emitted, array[:, None], strict=True):
                    own[key] = piece
            for found, own in zip(every, emitted, strict=True):
                found[name] = own
            continue
        starts, ends = np.searchsorted(payload.rows, np.array([first, np.add(first, count)], dtype=np.int32))
        whole = ends - starts == count
        for found, is_whole, start, end in zip(every, whole.tolist(), starts.tolist(), ends.tolist(), strict=True):
            if is_whole:
                found[name] = {key: array[start:end] for key, array in payload.arrays.items()}
    return [found or None for found in every]


def lend_feedback(feedback: Mapping[str, Feedback] | None, name: str) -> Feedback | None:
    """Return the feedback for `LogitModifier.accept` of modifier `name`: a view of the journal's arrays, which
    `in_row_order` or `keep_unchanged` has made read-only."""
    found = feedback.get(name) if feedback else None
    return None if found is None else MappingProxyType(found)


def keep_unchanged(feedback: Mapping[str, Feedback] | None) -> None:
    """Make the arrays of a journal that travelled read-only again."""
    for found in () if feedback is None else feedback.values():
        for array in found.values():
            array.setflags(write=False)


def token_logprobs(
    logprobs: Logprobs, start: int, token_ids: Sequence[int], k: int, vocabulary: Vocabulary
) -> list[TokenLogprobs]:
    """Return one entry per token of `token_ids`, with the `k` most likely tokens, from the entries of `logprobs` that
    begin at index `start` (an index into its arrays, not a row of the step)."""
    entries = slice(start, start + len(token_ids))
    top_ids, top = logprobs.top_ids[entries, :k].tolist(), logprobs.top[entries, :k].tolist()
    return [
        TokenLogprobs(
            token_id,
            chosen,
            tuple(zip(ids, values, strict=True)),
            _text(token_id, vocabulary),
            tuple(_text(each, vocabulary) for each in ids),
        )
        for token_id, chosen, ids, values in zip(
            token_ids, logprobs.chosen[entries].tolist(), top_ids, top, strict=True
        )
    ]


def _text(token_id: int, vocabulary: Vocabulary) -> str:
    """Return the text of a token; empty for a column of the logits past the vocabulary."""
    if token_id in vocabulary.special_tokens:
        return vocabulary.special_tokens[token_id]
    return vocabulary.tokens[token_id].decode(errors="replace") if token_id < len(vocabulary) else ""
