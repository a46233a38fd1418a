"""Per-step arrays for bias, penalties, bans of stop tokens and sampling filters.

They depend only on the request and the tokens in its journal, so forks, rebuilt states and interrupted steps give the
same values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from guideway.api.steps import FILTERS, StepBatch, Warp
from guideway.api.types import SamplingParams
from guideway.runtime.sequences.journal import Journal

__all__ = ["WarpBuilder", "banned_by"]

Ids: TypeAlias = NDArray[np.int32]
Values: TypeAlias = NDArray[np.float32]
Entry: TypeAlias = tuple[int, Ids, Values]
"""Row, and columns and values in it."""
Scalar = TypeVar("Scalar", bound=np.generic)

NUM_LOGPROBS, PROCESSED, RECORDS = "num_logprobs", "processed", "records"
NEUTRAL = {**FILTERS, NUM_LOGPROBS: np.int32(-1), PROCESSED: np.bool_(False), RECORDS: np.bool_(False)}
"""By parameter the value that asks for nothing."""


def banned_by(params: SamplingParams, num_tokens: int) -> set[str]:
    """Return the parameters that ban tokens in the row after `num_tokens` generated tokens."""
    names = {"min_tokens"} if num_tokens < params.min_tokens else set()
    return names | {"logit_bias"} if -np.inf in params.logit_bias.values() else names


class WarpBuilder:
    """The sampling parameters of all running sequences, by slot, and the `Warp` of each step."""

    def __init__(self, num_slots: int, vocabulary_size: int, stop_token_ids: frozenset[int]) -> None:
        self._vocabulary_size = vocabulary_size
        self._stop_token_ids = stop_token_ids
        self._values: dict[str, NDArray[Any]] = {
            name: np.full(num_slots, value, value.dtype) for name, value in NEUTRAL.items()
        }
        """By parameter its value in each slot."""
        self._samples = np.zeros(num_slots, dtype=np.bool_)
        """True where the temperature is above 0."""
        self._tables: dict[int, _Tables] = {}
        self._unusual: dict[int, frozenset[str]] = {}
        """By slot the parameters whose values are not neutral, if there are any."""
        self._used = frozenset[str]()
        """All of these. Others are skipped in each step."""

    def start(self, slot: int, journal: Journal) -> None:
        """Set the parameters of a sequence that starts or continues in `slot`."""
        self.end(slot)
        params = journal.request.params
        unasked = -1 if params.best_of is None else 0  # the best sequences are chosen by log-probability
        given = {
            NUM_LOGPROBS: unasked if params.logprobs is None else params.logprobs,
            PROCESSED: params.logprobs_mode == "processed",
            RECORDS: params.records,
        }
        if params.temperature > 0:  # filters do not change a greedy draw
            given |= {name: getattr(params, name) for name in FILTERS}
            if params.top_k >= self._vocabulary_size:
                given["top_k"] = 0
        if unusual := {name: value for name, value in given.items() if value != NEUTRAL[name]}:
            for name, value in unusual.items():
                self._values[name][slot] = value
            self._unusual[slot] = frozenset(unusual)
            self._used = self._used.union(unusual)
        self._samples[slot] = params.temperature > 0
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._stop_token_ids)
        tables = _Tables(journal, stops)
        if tables.seen is not None or tables.added is not None:
            self._tables[slot] = tables

    def end(self, slot: int) -> None:
        """Clear `slot`."""
        self._tables.pop(slot, None)
        for name in self._unusual.pop(slot, ()):
            self._values[name][slot] = NEUTRAL[name]
        self._used = frozenset[str]().union(*self._unusual.values())

    def reads_outputs(self, slots: Sequence[int]) -> bool:
        """Return whether `build` reads the journal of any of these slots."""
        return not self._tables.keys().isdisjoint(slots)

    def build(self, batch: StepBatch, per_row: NDArray[np.int32]) -> Warp | None:
        """Return the `Warp` of `batch`, whose rows belong to the slots `per_row`; None if nothing changes."""
        if not self._tables and not self._used:
            return None
        filters = {name: self._values[name][per_row] for name in FILTERS if name in self._used}
        repeated, added = self._pairs(batch) if self._tables else (None, None)
        if repeated is None and added is None and not filters:
            return None
        return Warp(repeated, added, **filters)

    def draws_most_likely(self, slot: int) -> bool:
        """Return whether the draw of a sequence is the most likely token that its masks allow, as its raw
        log-probabilities tell."""
        return not self._samples[slot] and slot not in self._tables and not self._values[PROCESSED][slot]

    def num_logprobs(self, per_row: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """Return `StepInput.num_logprobs`."""
        return self._of(NUM_LOGPROBS, per_row)

    def processed(self, per_row: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Return `StepInput.processed`."""
        return self._of(PROCESSED, per_row)

    def records(self, per_row: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Return `StepInput.records`."""
        return self._of(RECORDS, per_row)

    def _of(self, name: str, per_row: NDArray[np.int32]) -> NDArray[Any] | None:
        return self._values[name][per_row] if name in self._used else None

    def _pairs(self, batch: StepBatch) -> tuple[tuple[Ids, Ids, Values] | None, tuple[Ids, Ids, Values] | None]:
        repeated: list[Entry] = []
        added: list[Entry] = []
        drafted = batch.num_rows != batch.num_sequences
        starts = batch.row_start.tolist()
        for i, slot in enumerate(batch.slots.tolist()):
            tables = self._tables.get(slot)
            if tables is not None:
                tables.catch_up()
                drafts = batch.drafts(i).tolist() if drafted else ()
                if tables.seen is not None:
                    tables.seen.append_rows(repeated, starts[i], drafts)
                if tables.added is not None:
                    tables.added.append_rows(added, starts[i], drafts, tables.num_banned_rows())
        return _concatenate(repeated), _concatenate(added)


def _concatenate(entries: list[Entry]) -> tuple[Ids, Ids, Values] | None:
    """Concatenate the entries of all rows to row indices, columns and values of single logits."""
    lengths = [len(columns) for _, columns, _ in entries]
    if not any(lengths):
        return None
    rows, columns, values = zip(*entries, strict=True)
    return np.repeat(np.array(rows, dtype=np.int32), lengths), np.concatenate(columns), np.concatenate(values)


class _Tables:
    """The tokens of one sequence that have penalties, biases or bans."""

    def __init__(self, journal: Journal, stops: frozenset[int]) -> None:
        params = journal.request.params
        self._journal, self._params, self._stops = journal, params, stops
        self._always_adds = bool(params.logit_bias or params.frequency_penalty or params.presence_penalty)
        self.seen: _SeenTokens | None = None
        self.added: _AddedLogits | None = None
        self._num_tokens = 0
        self._build()

    def catch_up(self) -> None:
        """Add the tokens that the journal has gained since the last call."""
        token_ids = self._journal.token_ids
        if len(token_ids) == self._num_tokens:
            return
        if len(token_ids) < self._num_tokens:  # the journal was rewound, or the last call interrupted
            self._build()
            return
        new = token_ids[self._num_tokens :]
        self._num_tokens = sys.maxsize
        if self.seen is not None:
            self.seen.add(new)
        if self.added is not None:
            self.added.count(new)
        self._num_tokens = len(token_ids)
        if self.added is not None and not self._always_adds and self._num_tokens >= self._params.min_tokens:
            self.added = None

    def num_banned_rows(self) -> int:
        """Return the number of the sequence's next rows in which stop tokens are banned."""
        return self._params.min_tokens - self._num_tokens

    def _build(self) -> None:
        params, token_ids = self._params, self._journal.token_ids
        self._num_tokens = len(token_ids)
        if params.repetition_penalty != 1:
            self.seen = _SeenTokens([*self._journal.sequence.prompt_token_ids, *token_ids], params.repetition_penalty)
        if self._always_adds or (self._num_tokens < params.min_tokens and self._stops):
            self.added = _AddedLogits(params, self._stops if params.min_tokens else frozenset())
            self.added.count(token_ids)


class _SeenTokens:
    """The distinct tokens of prompt and output, for the repetition penalty."""

    def __init__(self, token_ids: Sequence[int], penalty: float) -> None:
        self._set: set[int] = set()
        self._ids = np.empty(0, dtype=np.int32)
        self._penalties = np.empty(0, dtype=np.float32)
        self._penalty = penalty
        self.add(token_ids)

    def add(self, token_ids: Sequence[int]) -> None:
        start = len(self._set)
        new = [token_id for token_id in dict.fromkeys(token_ids) if token_id not in self._set]
        self._set.update(new)
        if len(self._set) > len(self._ids):
            self._ids = _enlarge(self._ids, len(self._set))
            self._penalties = np.full(len(self._ids), self._penalty, dtype=np.float32)
        self._ids[start : len(self._set)] = new

    def append_rows(self, entries: list[Entry], row: int, drafts: Sequence[int]) -> None:
        """Append the entries of the row after the current tokens, and of one more row after each draft."""
        length = len(self._set)
        if not drafts:
            entries.append((row, self._ids[:length], self._penalties[:length]))
            return
        new: dict[int, None] = {}
        ends = [length]
        for token_id in drafts:
            if token_id not in self._set:
                new[token_id] = None
            ends.append(length + len(new))
        ids = np.concatenate([self._ids[:length], np.array(list(new), dtype=np.int32)])
        values = np.full(len(ids), self._penalty, dtype=np.float32)
        for j, end in enumerate(ends):
            entries.append((row + j, ids[:end], values[:end]))


class _AddedLogits:
    """Amounts to add to single logits: bias minus frequency and presence penalties, and -inf for banned stop tokens.
    One entry per token."""

    def __init__(self, params: SamplingParams, stops: frozenset[int]) -> None:
        self._bias, self._stops = params.logit_bias, sorted(stops)
        self._frequency, self._presence = params.frequency_penalty, params.presence_penalty
        ids = list(dict.fromkeys([*self._stops, *self._bias]))  # stop tokens first
        self._entries = {token_id: i for i, token_id in enumerate(ids)}
        self._counts: dict[int, int] = {}
        self._ids = np.array(ids, dtype=np.int32)
        self._values = np.array([self._value(token_id, 0) for token_id in ids], dtype=np.float32)

    def count(self, token_ids: Sequence[int]) -> None:
        """Count generated tokens."""
        if self._frequency == 0 and self._presence == 0:
            return
        changed = set(token_ids)
        for token_id in token_ids:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1
            self._entries.setdefault(token_id, len(self._entries))
        if len(self._entries) > len(self._ids):
            self._ids = _enlarge(self._ids, len(self._entries))
            self._values = _enlarge(self._values, len(self._entries))
        for token_id in changed:
            entry = self._entries[token_id]
            self._ids[entry], self._values[entry] = token_id, self._value(token_id, self._counts[token_id])

    def append_rows(self, entries: list[Entry], row: int, drafts: Sequence[int], num_banned: int) -> None:
        """Append the entries of the row after the current tokens, and of one more row after each draft. Stop tokens are
        banned in the first `num_banned` rows."""
        length = len(self._entries)
        if not drafts and num_banned <= 0:
            entries.append((row, self._ids[:length], self._values[:length]))
            return
        penalizes = self._frequency != 0 or self._presence != 0
        added = [t for t in dict.fromkeys(drafts) if t not in self._entries] if penalizes else []
        new = {token_id: length + i for i, token_id in enumerate(added)}
        ids = np.concatenate([self._ids[:length], np.array(added, dtype=np.int32)])
        values = np.concatenate([self._values[:length], np.zeros(len(new), dtype=np.float32)])
        extra: dict[int, int] = {}
        for j in range(len(drafts) + 1):
            if j and penalizes:
                token_id = drafts[j - 1]
                extra[token_id] = extra.get(token_id, 0) + 1
                entry = new[token_id] if token_id in new else self._entries[token_id]
                values[entry] = self._value(token_id, self._counts.get(token_id, 0) + extra[token_id])
            shown = values.copy()
            if j < num_banned:
                shown[: len(self._stops)] = -np.inf
            entries.append((row + j, ids, shown))

    def _value(self, token_id: int, count: int) -> float:
        return self._bias.get(token_id, 0.0) - count * self._frequency - (self._presence if count else 0.0)


def _enlarge(array: NDArray[Scalar], length: int) -> NDArray[Scalar]:
    """Return a copy with twice the needed length, so that appending is cheap on average."""
    grown = np.zeros(2 * length, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
