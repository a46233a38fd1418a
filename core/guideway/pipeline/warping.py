"""Penalties, bias and filters, implemented with `ArrayOps`, so that they run on every device.

A filter keeps every token at least as likely as its threshold. Ties are kept together, so all devices keep the same
tokens, in whatever order they sort ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from guideway.api.device import ArrayOps
from guideway.api.steps import Array, Warp

__all__ = ["Filter", "banned", "filtered", "filters", "penalized", "widened"]

Ids: TypeAlias = NDArray[np.int32]
Pairs: TypeAlias = tuple[Ids, Ids, NDArray[np.float32]]


def widened(ops: ArrayOps, x: Array) -> Array:
    """Return `x` in at least float32."""
    return x + ops.asarray(np.zeros((1, 1), dtype=np.float32)) if "16" in str(x.dtype) else x


def penalized(ops: ArrayOps, x: Array, repeated: Pairs) -> Array:
    """Apply `Warp.repeated`: divide positive logits and multiply the others, so that all become less likely."""
    rows, columns, penalties = (ops.asarray(array) for array in repeated)
    every = ops.asarray(np.arange(len(repeated[0]), dtype=np.int32))
    before, factors = ops.gather(x, rows, columns[:, None]), penalties[:, None]
    after = ops.where_rows(before / factors, every, before <= 0, before * factors)
    return ops.scatter(x, rows, columns[:, None], after)


def banned(ops: ArrayOps, x: Array, rows: Ids, columns: Ids, concerned: Ids) -> tuple[Array, Array]:
    """Set these logits of `x` to -inf, except in rows of `concerned` that would become empty. Return x and
    ``bool[len(concerned)]`` on the device, True for those rows. `concerned` is sorted and contains all rows that are
    read."""
    on_device, at = ops.asarray(rows), ops.asarray(columns)[:, None]
    before = ops.gather(x, on_device, at)
    bans = np.full((len(rows), 1), -np.inf, dtype=np.float32)
    x = ops.scatter(x, on_device, at, ops.asarray(bans))
    every = ops.asarray(np.arange(len(concerned), dtype=np.int32))
    # avoid copying whole rows if all are concerned
    is_all = np.array_equal(concerned, np.arange(x.shape[0]))
    after = x if is_all else ops.gather(x, ops.asarray(concerned))
    best = ops.gather(after, every, ops.argmax(after)[:, None])
    places = np.minimum(np.searchsorted(concerned, rows), len(concerned) - 1)
    of_ban = ops.gather(best, ops.asarray(places.astype(np.int32)))
    one_each = ops.asarray(np.arange(len(rows), dtype=np.int32))
    kept = ops.where_rows(ops.asarray(bans), one_each, of_ban == -np.inf, before)
    return ops.scatter(x, on_device, at, kept), (best == -np.inf)[:, 0]


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows that use the same filters; unused filters are None."""

    rows: NDArray[np.int32]
    num_candidates: int
    """The number of most likely tokens of a row to examine."""
    top_k: NDArray[np.int32] | None = None
    top_p: NDArray[np.float32] | None = None
    min_p: NDArray[np.float32] | None = None
    typical_p: NDArray[np.float32] | None = None


USES: dict[str, Callable[[NDArray[Any], int], NDArray[np.bool_]]] = {
    "top_k": lambda values, width: (values > 0) & (values < width),
    "top_p": lambda values, _: values < 1,
    "typical_p": lambda values, _: values < 1,
    "min_p": lambda values, _: values > 0,
}
"""Functions that return where a filter has an effect, given its values and the width of the logits."""


def filters(warp: Warp, drawn: NDArray[np.bool_], width: int) -> list[Filter]:
    """Return the filters of a step, grouped by rows that use the same ones. Rows that are not `drawn` are greedy,
    which no filter changes. `width` is the width of the logits."""
    values: dict[str, NDArray[Any]] = {}
    kinds = np.zeros(len(drawn), dtype=np.int64)
    for i, (name, uses) in enumerate(USES.items()):
        if (array := getattr(warp, name)) is not None:
            values[name] = array
            kinds += (uses(array, width) & drawn) * (1 << i)
    found = []
    for kind in np.unique(kinds[kinds > 0]).tolist():
        rows = np.flatnonzero(kinds == kind).astype(np.int32)
        used = {name: values[name][rows] for i, name in enumerate(USES) if kind >> i & 1}
        found.append(Filter(rows, int(used["top_k"].max()) if "top_k" in used else width, **used))
    return found


def filtered(ops: ArrayOps, x: Array, chosen: Filter) -> Array:
    """Set the tokens that `chosen` filters out to -inf. `x` are log-probabilities in at least float32; an empty row is
    NaN."""
    rows = ops.asarray(chosen.rows)
    part = _Part(ops, x if len(chosen.rows) == len(x) else ops.gather(x, rows), chosen)
    unlikely = part.unlikely()
    untypical = None if chosen.typical_p is None else part.untypical(chosen.typical_p)
    x = ops.where_rows(x, rows, unlikely, -np.inf)
    return x if untypical is None else ops.where_rows(x, rows, untypical, -np.inf)


class _Part:
    """The rows of one filter. Candidates are the most likely tokens to examine, sorted if top-k or top-p needs it."""

    def __init__(self, ops: ArrayOps, x: Array, chosen: Filter) -> None:
        self.ops, self.x, self.chosen = ops, x, chosen
        self.num_rows, self.width = x.shape
        self.every = ops.asarray(np.arange(self.num_rows, dtype=np.int32))
        is_sorted = chosen.top_k is not None or chosen.top_p is not None
        self.candidates = ops.topk(x, chosen.num_candidates)[0] if is_sorted else x
        self.largest = ops.gather(self.candidates, self.every, ops.argmax(self.candidates)[:, None])
        self.threshold = self.largest - np.inf
        """The log-probability of the least likely token to keep, ``[rows, 1]``."""

    def unlikely(self) -> Array:
        """Return the tokens that top-k, then top-p, then min-p filter out, as ``bool[rows, width]``."""
        ops, chosen = self.ops, self.chosen
        if chosen.top_k is not None:
            self.threshold = ops.gather(self.candidates, self.every, ops.asarray(chosen.top_k[:, None] - 1))
        if chosen.top_p is not None:
            self.threshold = self._reaching(self.candidates, self._weights(), chosen.top_p)
        if chosen.min_p is not None:
            with np.errstate(divide="ignore"):
                lowest = self.largest + ops.asarray(np.log(chosen.min_p)[:, None])
            self.threshold = ops.where_rows(self.threshold, self.every, self.threshold < lowest, lowest)
        return self.x < self.threshold

    def untypical(self, mass: NDArray[np.float32]) -> Array:
        """Return the tokens that typical-p filters out of those that `unlikely` keeps. A token's information differs
        from the expected one by as much as its logit from the mean logit. Tokens already filtered out have weight 0,
        and are farther away than the least likely token that is kept."""
        ops, weights = self.ops, self._weights()
        mean = (weights * self._below_largest(weights == 0)).sum(axis=1) / weights.sum(axis=1)
        mean = self.largest + mean[:, None]
        distances = self._absolute(self.candidates - mean)
        nearest, columns = ops.topk(0 - distances, self.candidates.shape[1])
        reach = 0 - self._reaching(nearest, ops.gather(weights, self.every, columns), mass)
        return self._absolute(self.x - mean) > reach

    def _weights(self) -> Array:
        """Return the weight of each candidate, up to a factor per row. Candidates at the threshold share the weight of
        ties that are not candidates."""
        ops, threshold = self.ops, self.threshold
        weights = ops.exp(self._below_largest(self.candidates < threshold))
        weights = ops.where_rows(weights, self.every, self.candidates < threshold, 0.0)
        if self.candidates.shape[1] == self.width:
            return weights
        at_border = self.candidates == threshold
        inside = at_border.sum(axis=1)[:, None]
        outside = (self.x == threshold).sum(axis=1)[:, None] - inside
        return weights + weights * at_border * outside / (inside + (inside == 0))

    def _below_largest(self, ignored: Array) -> Array:
        """Return the difference of each candidate from the largest, at most 0; 0 where `ignored`."""
        return self.ops.where_rows(self.candidates - self.largest, self.every, ignored, 0.0)

    def _reaching(self, values: Array, weights: Array, mass: NDArray[np.float32]) -> Array:
        """Return the first of `values` at which the running sum of weights reaches `mass` of the total."""
        sums = self.ops.cumsum(weights)
        last = (sums < sums[:, -1:] * self.ops.asarray(mass[:, None])).sum(axis=1)
        return self.ops.gather(values, self.every, last[:, None])

    def _absolute(self, x: Array) -> Array:
        return self.ops.where_rows(x, self.every, x < 0, 0 - x)
