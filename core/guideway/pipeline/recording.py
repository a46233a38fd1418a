"""What the tokens of a step are drawn from, for rows that requested it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import count_allowed
from guideway.api.records import Records
from guideway.api.steps import Array, Payload, StepInput
from guideway.pipeline.context import Entry, PipelineContext
from guideway.pipeline.logprobs import RowLogprobs
from guideway.pipeline.padding import Padding

__all__ = ["Recorder"]


class Recorder:
    """The records of some rows of a step, on the device until `result`. `logits` are the raw ones."""

    def __init__(self, context: PipelineContext, step: StepInput, logits: Array, padding: Padding | None) -> None:
        assert step.records is not None
        self._context, self._ops, self._padding = context, context.ops, padding
        self.rows = np.flatnonzero(step.records).astype(np.int32)
        taken = self.rows if padding is None else padding.aligned(self.rows)
        self._taken = self._ops.asarray(taken)
        self.model = context.logprobs_of(logits, self.rows, 0, padding, "records/model")
        self._constrained: RowLogprobs | None = None
        """The model's distribution over the allowed tokens, if it is not what tokens are drawn from."""
        self._drawn: RowLogprobs | None = None
        self._allowed: NDArray[np.int64] | None = None
        """The number of allowed tokens of each row, if the host knows it."""
        self._downloads: dict[str, Array] = {}
        self._changed: dict[str, NDArray[np.bool_]] = {}
        """What the host knows about changes, by modifier."""

    def copy(self, logits: Array) -> Array:
        """Return the recorded rows, which a transform may change."""
        return self._ops.gather(logits, self._taken)

    def compare(self, entry: Entry, before: Array, logits: Array) -> None:
        """Note the rows that the modifier of `entry` changed since `before`, a `copy`."""
        self._downloads[f"records/changed/{entry.name}"] = (before != self._read(logits)).sum(axis=1) > 0

    def read_bitmask(self, entry: Entry, payload: Payload) -> None:
        """Note the rows in which a modifier with a bitmask forbids a token."""
        assert entry.transform.bitmask is not None
        counts = count_allowed(payload.arrays[entry.transform.bitmask], self._context.num_tokens)
        self._note(entry, payload.rows[counts < self._context.num_tokens])

    def claim(self, entry: Entry, rows: NDArray[np.int32]) -> None:
        """Note the rows that the modifier of `entry` draws."""
        self._note(entry, rows)

    @property
    def is_counted(self) -> bool:
        """True if `count` was called."""
        return self._allowed is not None

    def measure(self, logits: Array) -> None:
        """Count the allowed tokens of `logits`, which are those after the mask and the bans, and sum their
        probabilities."""
        allowed = self._read(logits) > -np.inf
        self._downloads["records/allowed"] = allowed.sum(axis=1)
        self._downloads["records/pressure"] = (self._ops.exp(self.model.values) * allowed).sum(axis=1)

    def count(self, mask: Payload | None, masked: Array | None) -> None:
        """Do `measure` where hard bitmasks alone forbid tokens, `mask` together. Their sum is the ratio of the
        probabilities that the drawn token has under the model and under the model's distribution over the allowed
        tokens. `masked` are the logits of that distribution; None if tokens are drawn from it. So there is no pass
        over the rows, or one."""
        num_tokens = self._context.num_tokens
        self._allowed = np.full(len(self.rows), num_tokens, dtype=np.int64)
        if mask is not None:
            _, here, there = np.intersect1d(self.rows, mask.rows, assume_unique=True, return_indices=True)
            self._allowed[here] = count_allowed(mask.arrays["bitmask"][there], num_tokens)
        if masked is not None:
            values = self._ops.log_softmax(self._read(masked))
            self._constrained = RowLogprobs(self._ops, values, self.rows, 0, self._padding, "records/masked")

    def finish(self, logits: Array, *, normalized: bool, is_kept: bool) -> None:
        """Take `logits` as the distribution that tokens are drawn from. `normalized`: they are log-probabilities.
        `is_kept`: nothing changes them later."""
        values = self._read(logits) if is_kept or not normalized else self.copy(logits)
        if not normalized:
            values = self._ops.log_softmax(values)
        self._drawn = RowLogprobs(self._ops, values, self.rows, 0, self._padding, "records/drawn")

    def choose(self, rows: NDArray[np.integer[Any]], token_ids: Array) -> None:
        """Set the tokens of `rows`. A later call for the same row replaces its token."""
        places = self.model.find(rows, token_ids)
        for each in self._parts:
            each.take(places)

    @property
    def downloads(self) -> dict[str, Array]:
        downloads = dict(self._downloads)
        for each in self._parts:
            downloads |= each.downloads
        return downloads

    @property
    def _parts(self) -> list[RowLogprobs]:
        return [each for each in (self.model, self._constrained, self._drawn) if each is not None]

    def result(self, host: Mapping[str, NDArray[Any]], ineffective: Mapping[str, NDArray[np.int32]]) -> Records:
        """Build the records from `downloads`, copied to the host. `ineffective` are the rows that were drawn without a
        modifier, by its name."""
        assert self._drawn is not None
        num_rows, prefix = len(self.rows), "records/changed/"
        model, drawn = self.model.result(host).chosen, self._drawn.result(host).chosen
        if self._allowed is None:
            allowed, pressure = host["records/allowed"][:num_rows], host["records/pressure"][:num_rows]
        else:
            masked = drawn if self._constrained is None else self._constrained.result(host).chosen
            allowed, pressure = self._allowed, np.exp(model - masked)
        changed = {
            name.removeprefix(prefix): np.array(host[name][:num_rows], dtype=np.bool_)
            for name in self._downloads
            if name.startswith(prefix)
        }
        for name, found in self._changed.items():
            changed[name] = changed.get(name, np.zeros(num_rows, dtype=np.bool_)) | found
        for name, rows in ineffective.items():
            changed[name] &= ~np.isin(self.rows, rows)
        return Records(
            model=model,
            drawn=drawn,
            allowed=allowed.astype(np.int32),
            pressure=np.minimum(pressure, 1).astype(np.float32),
            changed=np.stack(list(changed.values()), axis=1) if changed else np.zeros((num_rows, 0), dtype=np.bool_),
            modifiers=tuple(changed),
        )

    def _read(self, logits: Array) -> Array:
        """Return the recorded rows, to be read before anything else changes them."""
        return logits if len(self.rows) == len(logits) else self.copy(logits)

    def _note(self, entry: Entry, rows: NDArray[np.int32]) -> None:
        found = self._changed.setdefault(entry.name, np.zeros(len(self.rows), dtype=np.bool_))
        found |= np.isin(self.rows, rows)
