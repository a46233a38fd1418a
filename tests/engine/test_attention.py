"""How a step is cut into attention calls. That the calls compute the right thing is `test_model_runner`'s matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from guideway.engine.attention import MAX_SHARED_QUERIES, MAX_WASTE, CausalMask, PackedStep, pack_step
from guideway.engine.kv_cache import KVShape, SlotKVCache

CPU = torch.device("cpu")
WASTE = 100
"""Query-key pairs of padding at which a further call is cheaper, with the heads below."""


def pack(sequences: dict[int, tuple[int, int]]) -> PackedStep:
    """The step in which slot s, holding ``sequences[s][0]`` tokens, appends ``sequences[s][1]`` more."""
    shape = KVShape(num_layers=1, num_heads=8, key_dim=MAX_WASTE // 8 // WASTE, value_dim=8)
    cache = SlotKVCache(shape, num_slots=12, max_length=128, dtype=torch.float32, device=CPU)
    for _ in range(12):
        cache.allocate()
    for slot, (held, _) in sequences.items():
        cache.reserve(slot, held)
        cache.advance(slot, held)
    batch = [(slot, [slot] * count) for slot, (_, count) in sequences.items()]
    return pack_step(batch, cache, CausalMask(128, dtype=torch.float32, device=CPU), group=1)


@pytest.mark.parametrize(
    ("sequences", "calls"),
    [
        ({0: (20, 1), 1: (20, 1), 2: (20, 1)}, [(0, 3, 1, 21)]),
        ({0: (20, 1), 1: (30, 1), 2: (25, 1)}, [(0, 3, 1, 31)]),
        ({2: (20, 1), 0: (20, 1), 1: (20, 2)}, [(0, 3, 2, 22)]),
        ({0: (10, 1), 3: (10, 1)}, [(0, 4, 1, 11)]),
        ({0: (10, 1), 11: (10, 1)}, [(0, 1, 1, 11), (11, 12, 1, 11)]),
        ({0: (5, 1), 1: (120, 1), 2: (110, 1)}, [(0, 1, 1, 6), (1, 3, 1, 121)]),
        ({0: (40, 1), 1: (40, 8)}, [(0, 1, 1, 41), (1, 2, 8, 48)]),
        ({0: (0, MAX_SHARED_QUERIES + 1), 1: (5, 1)}, [(1, 2, 1, 6), (0, 1, 17, 17)]),
        ({0: (0, 20), 1: (0, 20)}, [(0, 1, 20, 20), (1, 2, 20, 20)]),
    ],
    ids=["alike", "lengths", "runs", "few-holes", "many-holes", "far-lengths", "far-runs", "prompt", "prompts"],
)
def test_neighbors_share_a_call_until_padding_costs_more(
    sequences: dict[int, tuple[int, int]], calls: list[tuple[int, int, int, int]]
) -> None:
    step = pack(sequences)
    assert [(r.slots.start, r.slots.stop, r.num_queries, r.num_keys) for r in step.rectangles] == calls
    assert [r.tokens.start for r in step.rectangles] == [0, *(r.tokens.stop for r in step.rectangles[:-1])]
    assert step.rectangles[-1].tokens.stop == step.token_ids.shape[1]


def test_the_common_steps_need_neither_mask_nor_padding() -> None:
    (alike,) = pack({0: (20, 1), 1: (20, 1)}).rectangles
    (prompt,) = pack({4: (0, 50)}).rectangles
    (alone,) = pack({4: (50, 1)}).rectangles
    assert all(r.mask is None and r.cells is None for r in (alike, prompt, alone))


def test_a_mask_row_shows_a_position_what_came_before_it() -> None:
    rows = CausalMask(6, dtype=torch.float32, device=CPU).rows(np.array([0, 5, 2]), 4)
    assert (rows == 0).tolist() == [[True, False, False, False], [True] * 4, [True, True, True, False]]
    assert set(rows.flatten().tolist()) == {0, -torch.inf}
