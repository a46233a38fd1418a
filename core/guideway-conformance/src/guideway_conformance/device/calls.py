"""Calls of the operations a backend may fuse, held against their oracles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from guideway.api import Draw
from guideway.api.bitmask import TokenLists
from guideway.api.steps import Array
from numpy.typing import NDArray

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, Host, expect_close
from guideway_conformance.subjects import expect

__all__ = ["CALLS", "PURPOSE", "Case", "chosen", "expect_chosen", "expect_drawn", "listed"]

PURPOSE = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """Logits on a device, and all that one of the operations takes beside them, on the host."""

    logits: Array
    bitmask: NDArray[np.int32]
    rows: NDArray[np.int32]
    num_tokens: int
    temperatures: Sequence[float] = ()
    """One for each row of the logits; none: 1 for all."""
    seeds: Sequence[int] = ()
    """One for each row of the logits; none: different ones."""
    moved: Callable[[Bench, NDArray[np.int32]], Array] = field(default=lambda bench, array: bench.ints(array))
    """The function that makes of `bitmask` and `rows` the arrays that are handed over."""

    def draw(self, num_rows: int) -> tuple[list[float], list[int]]:
        """Temperature and seed of each row."""
        return list(self.temperatures or [1.0] * num_rows), list(self.seeds or range(7, 7 + num_rows))


def listed(bitmask: NDArray[np.int32], width: int) -> TokenLists:
    """`bitmask` as lists, in turn of the tokens each allows and of those it refuses."""
    forbidden = oracles.forbidden(bitmask.tolist(), range(len(bitmask)), (len(bitmask), width))
    allow = np.arange(len(bitmask)) % 2 == 0
    lists = [np.flatnonzero(row != allowed) for row, allowed in zip(forbidden, allow, strict=True)]
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    return TokenLists(offsets, np.concatenate([np.empty(0, dtype=np.int32), *lists]).astype(np.int32), allow)


def chosen(bench: Bench, case: Case, *, greedy: bool) -> tuple[Host, Host]:
    """The columns and logits that `masked_argmax` or `masked_sample` gives, of the shapes and types they have to be."""
    num_rows = case.logits.shape[0]
    arguments = case.logits, case.moved(bench, case.bitmask), case.moved(bench, case.rows), case.num_tokens
    if greedy:
        name, found = "masked_argmax", bench.backend.masked_argmax(*arguments)
    else:
        temperatures, seeds = case.draw(num_rows)
        name, found = (
            "masked_sample",
            bench.backend.masked_sample(*arguments, draw_of(bench, temperatures, seeds)),
        )
    columns, largest = (bench.read(array) for array in found)
    expect(columns.dtype.kind in "iu", f"the columns of {name} are {columns.dtype} instead of integers")
    expect(largest.dtype == np.float32, f"the logits of {name} are {largest.dtype} instead of float32")
    for array in (columns, largest):
        expect(array.shape == (num_rows,), f"{name} of {num_rows} rows gives an array of shape {array.shape}")
    inside = (columns >= 0) & (columns < case.num_tokens)
    expect(inside.all(), f"{name} gives column {columns[~inside][:1]} of {case.num_tokens} tokens")
    return columns, largest


def draw_of(bench: Bench, temperatures: Sequence[float], seeds: Sequence[int]) -> Draw:
    """Sequence i + 1 at position 2 * i + 5 for seed i, so that none stands for another."""
    sequences, positions = _places(seeds)
    return Draw(
        temperatures=bench.array(temperatures, np.float32),
        seeds=bench.array(seeds, np.int64),
        sequences=bench.ints(sequences),
        positions=bench.ints(positions),
        purpose=PURPOSE,
    )


def _places(seeds: Sequence[int]) -> tuple[list[int], list[int]]:
    """Give each draw the place of its seed, and not of its row, so that a row alone draws as it does among others."""
    return [seed % 11 + 1 for seed in seeds], [2 * (seed % 11) + 5 for seed in seeds]


def expect_chosen(bench: Bench, case: Case) -> None:
    """Expect that `masked_argmax` finds the first of the largest logits, wherever something is allowed."""
    x = oracles.considered(bench.read(case.logits), case.bitmask.tolist(), case.rows.tolist(), case.num_tokens)
    columns, largest = chosen(bench, case, greedy=True)
    _expect_largest(largest, x, "masked_argmax")
    wanted = x.argmax(axis=1)
    wrong = np.flatnonzero((columns != wanted) & ~np.isneginf(x.max(axis=1)))
    if len(wrong):
        i = wrong[0]
        raise AssertionError(
            f"masked_argmax gives column {columns[i]} of row {i}, whose largest logit, {x[i, wanted[i]]}, is the one "
            f"of column {wanted[i]}"
        )


def expect_drawn(bench: Bench, case: Case) -> None:
    """Expect that `masked_sample` draws what the formula says, where something is allowed and temperatures are not 0.

    Two scores that are as close as roundings of float32 may be told apart either way.
    """
    x = oracles.considered(bench.read(case.logits), case.bitmask.tolist(), case.rows.tolist(), case.num_tokens)
    temperatures, seeds = case.draw(len(x))
    sequences, positions = _places(seeds)
    uniforms = oracles.uniforms(seeds, sequences, positions, PURPOSE, x.shape[1])
    scores = oracles.scores(x, temperatures, uniforms)
    columns, largest = chosen(bench, case, greedy=False)
    _expect_largest(largest, x, "masked_sample")
    for i, (row, column) in enumerate(zip(scores, columns.tolist(), strict=True)):
        best = int(row.argmax())
        if not np.isneginf(row[best]) and row[column] < row[best] - 1e-5 * max(1.0, abs(row[best])):
            raise AssertionError(
                f"masked_sample draws column {column} of row {i}, whose score is {row[column]:.6f}, instead of "
                f"{best}, whose score is {row[best]:.6f}"
            )


def _expect_largest(largest: Host, x: NDArray[np.float64], name: str) -> None:
    expect_close(largest, x.max(axis=1), f"the largest logits {name} gives", 0.0)


def _masks_lists(bench: Bench, case: Case) -> None:
    before, lists = bench.read(case.logits), listed(case.bitmask, case.num_tokens)
    got = bench.read(bench.backend.apply_token_lists(case.logits, lists, np.asarray(case.rows, dtype=np.int32)))
    bench.expect_loop(before, got, case.bitmask, case.rows)


def _warps(bench: Bench, case: Case) -> None:
    before = bench.read(case.logits)
    added, factors = added_to(before), (0.5 + np.arange(len(before))).astype(np.float32)
    x = oracles.considered(before, case.bitmask.tolist(), case.rows.tolist(), before.shape[1])
    np.add.at(x, added[:2], added[2])
    bitmask, rows = case.moved(bench, case.bitmask), case.moved(bench, case.rows)
    triples = bench.ints(added[0]), bench.ints(added[1]), bench.array(added[2], np.float32)
    got = bench.read(bench.backend.warp_masked(case.logits, bitmask, rows, triples, bench.array(factors)))
    expect(got.dtype == np.float32, f"warp_masked gives {got.dtype} instead of float32")
    expect_close(got, x * factors[:, None], "warp_masked")


def added_to(logits: Host) -> tuple[list[int], list[int], list[float]]:
    """Rows, columns and values: two of each row, on forbidden tokens as well."""
    num_rows, width = logits.shape
    rows, columns = list(range(num_rows)) * 2, [*range(num_rows), *range(5, 5 + num_rows)]
    return rows, [column % width for column in columns], [0.25 * i - 1 for i in range(2 * num_rows)]


CALLS: dict[str, Callable[[Bench, Case], None]] = {
    "apply_token_lists": _masks_lists,
    "masked_argmax": expect_chosen,
    "masked_sample": expect_drawn,
    "warp_masked": _warps,
}
"""By operation: one call, and that it does what it has to."""
