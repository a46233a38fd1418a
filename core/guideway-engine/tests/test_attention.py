"""Splitting of a step into attention calls. `test_model_runner` tests that the calls compute the right results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from guideway.api.forward import Append, Region
from guideway_engine.runners.transformers.attention import MAX_SHARED_QUERIES, MAX_WASTE, PackedStep, pack_step
from guideway_engine.runners.transformers.kv_store import KVShape, KVStore
from guideway_engine.runners.transformers.masks import Masks

CPU = torch.device("cpu")
WASTE = 100
"""Query-key pairs of padding that cost as much as another call, with the number of heads below."""


def pack(sequences: dict[tuple[int, int], tuple[int, int]], num_rows: int = 1) -> PackedStep:
    """Return the step in which the sequence in region ``(number, size)``, holding ``sequences[...][0]`` tokens, appends
    ``sequences[...][1]`` more, each with the region's number as id."""
    shape = KVShape(num_layers=1, num_heads=8, key_dim=MAX_WASTE // 8 // WASTE, value_dim=8)
    store = KVStore(shape, num_cells=2048, dtype=torch.float32, device=CPU)
    appends = [
        Append(Region(number * size, size), held, [number] * count, min(count, num_rows))
        for (number, size), (held, count) in sequences.items()
    ]
    return pack_step(appends, store, Masks(256, dtype=torch.float32, device=CPU), windows=[None], group=1)


@pytest.mark.parametrize(
    ("sequences", "calls"),
    [
        ({0: (20, 1), 1: (20, 1), 2: (20, 1)}, [(0, 3, 1, 21)]),
        ({0: (20, 1), 1: (30, 1), 2: (25, 1)}, [(0, 3, 1, 31)]),
        ({2: (20, 1), 0: (20, 1), 1: (20, 2)}, [(0, 3, 2, 22)]),
        ({0: (10, 1), 3: (10, 1)}, [(0, 4, 1, 11)]),
        ({0: (10, 1), 11: (10, 1)}, [(0, 1, 1, 11), (11, 1, 1, 11)]),
        ({0: (5, 1), 1: (120, 1), 2: (110, 1)}, [(0, 1, 1, 6), (1, 2, 1, 121)]),
        ({0: (40, 1), 1: (40, 8)}, [(0, 1, 1, 41), (1, 1, 8, 48)]),
        ({0: (0, MAX_SHARED_QUERIES + 1), 1: (5, 1)}, [(1, 1, 1, 6), (0, 1, 17, 17)]),
        ({0: (0, 20), 1: (0, 20)}, [(0, 1, 20, 20), (1, 1, 20, 20)]),
    ],
    ids=["alike", "lengths", "runs", "few-holes", "many-holes", "far-lengths", "far-runs", "prompt", "prompts"],
)
def test_neighbors_share_a_call_until_padding_costs_more(
    sequences: dict[int, tuple[int, int]], calls: list[tuple[int, int, int, int]]
) -> None:
    step = pack({(number, 128): tokens for number, tokens in sequences.items()})
    assert [(r.start // 128, r.num_regions, r.num_queries, r.num_keys) for r in step.rectangles] == calls
    assert {r.size for r in step.rectangles} == {128}
    assert [r.places.start for r in step.rectangles] == [0, *(r.places.stop for r in step.rectangles[:-1])]


def test_regions_of_two_sizes_share_nothing() -> None:
    step = pack({(4, 64): (20, 1), (1, 128): (20, 1), (5, 64): (20, 1)})
    assert [(r.start, r.size, r.num_regions) for r in step.rectangles] == [(256, 64, 2), (128, 128, 1)]
    assert step.token_ids.tolist() == [[4, 5, 1]]
    assert step.cells.tolist() == [276, 340, 148]
    assert step.rows is not None and step.rows.tolist() == [0, 2, 1]


def test_rows_come_in_the_order_of_the_appends() -> None:
    step = pack({(2, 64): (7, 3), (0, 64): (3, 1), (1, 64): (0, 20)}, num_rows=2)
    assert step.token_ids.tolist() == [[0, 2, 2, 2] + [1] * 20]
    assert step.positions.tolist() == [[3, 7, 8, 9, *range(20)]]
    assert step.rows is not None and step.rows.tolist() == [2, 3, 0, 22, 23]
    assert pack({(0, 64): (7, 2), (1, 64): (3, 1)}, num_rows=2).rows is None
    partial = pack({(0, 64): (7, 2), (1, 64): (3, 1)}).rows
    assert partial is not None and partial.tolist() == [1, 2]


def test_every_token_has_a_place_of_its_own() -> None:
    step = pack({(0, 64): (9, 1), (1, 64): (9, 3), (3, 64): (9, 1), (4, 64): (0, 20)})
    assert step.places is not None and step.padding is not None
    assert step.places.tolist() == [0, 3, 4, 5, 9, *range(12, 32)]
    assert step.padding[step.places].tolist() == list(range(25))
    assert len(step.padding) == step.rectangles[-1].places.stop


def test_the_common_steps_need_neither_mask_nor_padding() -> None:
    for sequences in ({(0, 64): (20, 1), (1, 64): (20, 1)}, {(4, 64): (0, 50)}, {(4, 64): (50, 1)}):
        step = pack(sequences)
        (rectangle,) = step.rectangles
        assert step.places is None and step.padding is None
        assert rectangle.span(None, step.store, step.masks, 1).mask is None


def test_a_window_looks_at_no_more_keys_than_it_needs() -> None:
    step = pack({(0, 128): (50, 2), (1, 128): (54, 1)})
    (rectangle,) = step.rectangles
    span = rectangle.span(10, step.store, step.masks, 1)
    ((keys, _),) = span.layers
    assert (keys.storage_offset() // keys.shape[3], keys.shape[2]) == (41, 14)
    assert span.mask is not None
    seen = (span.mask[:, 0] == 0).tolist()
    assert [[41 + key for key in range(14) if query[key]] for query in (*seen[0], seen[1][0])] == [
        list(range(41, 51)),
        list(range(42, 52)),
        list(range(45, 55)),
    ]
    ((keys, _),) = rectangle.span(55, step.store, step.masks, 1).layers
    assert keys.shape[2] == 55
    assert rectangle.span(10, step.store, step.masks, 1) is span
    (alike,) = pack({(0, 128): (99, 1), (1, 128): (99, 1)}).rectangles
    assert alike.span(10, step.store, step.masks, 1).mask is None


@pytest.mark.parametrize(
    ("first_key", "window", "seen"),
    [
        (0, None, ["1000", "1111", "1110"]),
        (0, 2, ["1000", "0000", "0110"]),
        (0, 9, ["1000", "1111", "1110"]),
        (0, 5, ["1000", "0111", "1110"]),
    ],
)
def test_a_mask_row_shows_a_position_what_came_before_it(first_key: int, window: int | None, seen: list[str]) -> None:
    rows = Masks(6, dtype=torch.float32, device=CPU).rows(np.array([0, 5, 2]), first_key, 4, window)
    assert ["".join("01"[bool(value == 0)] for value in row) for row in rows] == seen
    assert set(rows.flatten().tolist()) == {0, -torch.inf}


def test_a_mask_may_begin_at_a_later_key() -> None:
    rows = Masks(6, dtype=torch.float32, device=CPU).rows(np.array([2, 5, 3]), 2, 4, 3)
    assert (rows == 0).int().tolist() == [[1, 0, 0, 0], [0, 1, 1, 1], [1, 1, 0, 0]]
