"""The data between scheduler and worker: rows of a batch, payloads, outcomes."""

from __future__ import annotations

import pickle

import numpy as np
from guideway.api.steps import CONTINUE, FINISH, Payload, Stage, StepBatch, fail
from hypothesis import given
from hypothesis import strategies as st

SEQUENCES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 4000), st.lists(st.integers(0, 50_000), max_size=4)), max_size=6
)


@given(sequences=SEQUENCES)
def test_build_gives_each_sequence_one_row_and_one_more_per_draft(
    sequences: list[tuple[int, int, list[int]]],
) -> None:
    slots, positions, drafts = [s[0] for s in sequences], [s[1] for s in sequences], [s[2] for s in sequences]
    batch = StepBatch.build(slots, positions, drafts)
    assert batch.num_sequences == len(sequences)
    assert batch.slots.tolist() == slots
    row = 0
    for i, (_, position, ids) in enumerate(sequences):
        assert batch.row_start[i] == row
        assert batch.drafts(i).tolist() == ids
        assert batch.positions[row : row + 1 + len(ids)].tolist() == list(range(position, position + 1 + len(ids)))
        row += 1 + len(ids)
    assert batch.num_rows == batch.row_start[-1] == row
    assert len(batch.draft_token_ids) == row - len(sequences)
    for array in (batch.slots, batch.row_start, batch.draft_token_ids, batch.positions):
        assert array.dtype == np.int32


def test_build_without_drafts_is_build_with_empty_ones() -> None:
    without, empty = StepBatch.build([4, 2], [7, 9]), StepBatch.build([4, 2], [7, 9], [[], []])
    for name in ("slots", "row_start", "draft_token_ids", "positions"):
        np.testing.assert_array_equal(getattr(without, name), getattr(empty, name))
    assert without.row_start.tolist() == [0, 1, 2]
    assert without.drafts(1).tolist() == []


def payload() -> Payload:
    return Payload(
        rows=np.array([6, 0, 3], dtype=np.int32),
        arrays={"bias": np.array([[1, 2], [3, 4], [5, 6]]), "scale": np.array([0.6, 0.0, 0.3])},
        shared={"table": np.arange(9)},
    )


def test_take_keeps_the_payloads_order_and_row_numbers() -> None:
    taken = payload().take(np.array([3, 5, 6], dtype=np.int32))
    assert taken.rows.tolist() == [6, 3]
    assert len(taken) == 2
    assert taken.arrays["bias"].tolist() == [[1, 2], [5, 6]]
    assert taken.arrays["scale"].tolist() == [0.6, 0.3]
    assert taken.shared["table"].tolist() == list(range(9))


def test_take_of_no_row_is_an_empty_payload() -> None:
    taken = payload().take(np.array([5], dtype=np.int32))
    assert len(taken) == 0
    assert taken.arrays["bias"].shape == (0, 2)


def test_takes_of_disjoint_rows_hold_every_entry_once() -> None:
    whole = payload()
    parts = [whole.take(np.array(rows, dtype=np.int32)) for rows in ([0, 1, 2], [3, 4], [5, 6, 7])]
    entries = sorted((row, bias) for part in parts for row, bias in zip(part.rows, part.arrays["scale"], strict=True))
    assert entries == sorted(zip(whole.rows, whole.arrays["scale"], strict=True))


def test_batch_and_payload_survive_pickle() -> None:
    batch = pickle.loads(pickle.dumps(StepBatch.build([1, 2], [3, 4], [[5], []])))
    assert batch.drafts(0).tolist() == [5]
    copy = pickle.loads(pickle.dumps(payload()))
    assert copy.rows.tolist() == [6, 0, 3]
    assert copy.arrays["bias"].tolist() == payload().arrays["bias"].tolist()
    assert copy.shared["table"].tolist() == payload().shared["table"].tolist()


def test_stages_are_defined_in_the_order_they_run() -> None:
    assert [stage.value for stage in Stage] == ["pre_warp", "mask", "post_warp", "sample"]


def test_outcomes() -> None:
    assert (CONTINUE.action, FINISH.action) == ("continue", "finish")
    assert (fail("key missing").action, fail("key missing").message) == ("fail", "key missing")
