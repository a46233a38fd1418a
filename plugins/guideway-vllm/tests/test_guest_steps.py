"""Tests that a part of a step has the same values in its rows as the whole step."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from guideway.api import Payload, StepBatch, StepInput, Warp
from guideway.api.steps import FILTERS
from guideway_vllm.steps import GuestStep, Part, select
from hypothesis import given, settings
from hypothesis import strategies as st

WIDTH = 9


@st.composite
def steps(draw: st.DrawFn) -> tuple[StepInput, list[int]]:
    """Draw a step of up to six sequences with up to three drafts each, and some of its sequences in order."""
    drafts = draw(st.lists(st.lists(st.integers(0, 99), max_size=3), min_size=1, max_size=6))
    n = len(drafts)
    batch = StepBatch.build(
        draw(st.permutations(range(10)))[:n], draw(st.lists(st.integers(1, 50), min_size=n, max_size=n)), drafts
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_rows = batch.num_rows

    def maybe(array: Any) -> Any:
        return array if draw(st.booleans()) else None

    def some_rows() -> Any:
        return rng.permutation(num_rows)[: rng.integers(0, num_rows + 1)].astype(np.int32)

    def pairs() -> Any:
        cells = rng.permutation(num_rows * WIDTH)[: rng.integers(1, 12)]
        values = rng.random(len(cells)).astype(np.float32)
        return (cells // WIDTH).astype(np.int32), (cells % WIDTH).astype(np.int32), values

    payloads = {}
    for name in ("grammar_mask", "bias", "shift"):
        rows = some_rows()
        if len(rows):
            arrays = {"a": rng.random((len(rows), 2)), "b": rng.integers(0, 9, len(rows))}
            payloads[name] = Payload(rows, arrays, {"table": rng.random(3)})
    warp = Warp(
        repeated=maybe(pairs()),
        added=maybe(pairs()),
        **{name: maybe((9 * rng.random(num_rows)).astype(neutral.dtype)) for name, neutral in FILTERS.items()},
    )
    step = StepInput(
        batch,
        payloads,
        temperatures=rng.random(num_rows).astype(np.float32),
        seeds=rng.integers(0, 2**63, num_rows),
        sequence_indices=rng.integers(0, 4, num_rows).astype(np.int32),
        history=maybe(rng.integers(-1, 99, (num_rows, 3)).astype(np.int32)),
        warp=maybe(warp),
    )
    return step, sorted(draw(st.sets(st.integers(0, n - 1), min_size=1)))


def told(step: StepInput, row: int) -> dict[str, Any]:
    """Return all values of a step for one row, without the row's number."""
    found: dict[str, Any] = {
        "position": int(step.batch.positions[row]),
        "temperature": float(step.temperatures[row]),
        "seed": int(step.seeds[row]),
        "index": int(step.sequence_indices[row]),
        "history": None if step.history is None else step.history[row].tolist(),
    }
    for name, payload in step.payloads.items():
        for i, place in enumerate(np.asarray(payload.rows)):
            if place == row:
                found[name] = {key: np.asarray(array)[i].tolist() for key, array in payload.arrays.items()}
                found[f"{name} shared"] = {key: np.asarray(array).tolist() for key, array in payload.shared.items()}
    for name in FILTERS:
        array = None if step.warp is None else getattr(step.warp, name)
        found[name] = None if array is None else float(array[row])
    for name in ("repeated", "added"):
        cells = None if step.warp is None else getattr(step.warp, name)
        triples = [] if cells is None else zip(*(array.tolist() for array in cells), strict=True)
        found[name] = sorted((column, value) for which, column, value in triples if which == row)
    return found


@settings(max_examples=150, deadline=None)
@given(steps())
def test_a_part_says_of_its_rows_what_the_whole_does(drawn: tuple[StepInput, list[int]]) -> None:
    step, sequences = drawn
    part, rows = select(step, sequences)
    starts = step.batch.row_start.tolist()
    expected = [row for i in sequences for row in range(starts[i], starts[i + 1])]
    assert rows.tolist() == expected
    assert rows.dtype == np.int32
    assert part.batch.slots.tolist() == [int(step.batch.slots[i]) for i in sequences]
    assert [part.batch.drafts(i).tolist() for i in range(len(sequences))] == [
        step.batch.drafts(i).tolist() for i in sequences
    ]
    assert part.batch.row_start.tolist() == np.cumsum([0, *(starts[i + 1] - starts[i] for i in sequences)]).tolist()
    assert part.batch.num_rows == len(expected)
    for new, old in enumerate(expected):
        assert told(part, new) == told(step, old)


@settings(max_examples=50, deadline=None)
@given(steps())
def test_a_part_says_nothing_of_rows_it_has_not(drawn: tuple[StepInput, list[int]]) -> None:
    step, sequences = drawn
    part, rows = select(step, sequences)
    num_rows = len(rows)
    for name, payload in part.payloads.items():
        places = np.asarray(payload.rows)
        assert len(set(places.tolist())) == len(places) > 0
        assert (places >= 0).all()
        assert (places < num_rows).all()
        assert len(places) == np.isin(np.asarray(step.payloads[name].rows), rows).sum()
    for array in (part.temperatures, part.seeds, part.sequence_indices, part.batch.positions):
        assert len(array) == num_rows
    for cells in () if part.warp is None else (part.warp.repeated, part.warp.added):
        if cells is not None:
            assert 0 < len(cells[0]) == len(cells[1]) == len(cells[2])
            assert (cells[0] >= 0).all()
            assert (cells[0] < num_rows).all()


@settings(max_examples=20, deadline=None)
@given(steps())
def test_what_goes_down_survives_the_way(drawn: tuple[StepInput, list[int]]) -> None:
    step, sequences = drawn
    part, rows = select(step, sequences)
    bitmask = np.zeros((0, 1), dtype=np.int32)
    sent = GuestStep("f", 2, ["a"], [1], rows[:0], bitmask, (Part(part, rows, draws=True),))
    arrived = pickle.loads(pickle.dumps(sent))
    assert arrived.parts[0].rows.tolist() == rows.tolist()
    assert [told(arrived.parts[0].step, i) for i in range(len(rows))] == [told(part, i) for i in range(len(rows))]
