"""Both methods by which the torch device applies a mask on the CPU, with rows of both kinds in one batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from guideway.api import bitmask as bits
from guideway.devices.torch.mask import can_forbid, forbid

DENSITIES = (0.0, 0.001, 1.0, 0.999, 0.5, 0.02, 0.98)
"""The share of allowed tokens of each row."""


@pytest.mark.parametrize("width", [4096, 4100, 4127])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("padding", [0, 7])
def test_rows_of_every_density(width: int, dtype: torch.dtype, padding: int) -> None:
    rng = np.random.default_rng(width)
    allowed = rng.random((len(DENSITIES), width)) < np.array(DENSITIES)[:, None]
    rows = rng.permutation(len(DENSITIES) + 2)[: len(DENSITIES)].astype(np.int32)
    base = torch.randn(len(DENSITIES) + 2, width + padding).to(dtype)
    wanted = base.clone()
    for row, tokens in zip(rows.tolist(), allowed, strict=True):
        wanted[row, :width][torch.from_numpy(~tokens)] = -torch.inf
    bitmask = bits.pack(allowed)
    bitmask[:, -1] |= np.int32(-1 << width % 32) if width % 32 else 0  # bits past the width are ignored
    logits = base[:, :width]
    assert can_forbid(logits)
    assert forbid(logits, bitmask, rows) is logits
    assert torch.equal(base, wanted)


def test_rows_that_are_not_in_one_piece_are_left_to_others() -> None:
    x = torch.zeros(8, 64)
    assert can_forbid(x)
    assert can_forbid(x[::2, 3:40])
    assert not can_forbid(x.t())
    assert not can_forbid(x[:, ::2])
    assert not can_forbid(x[:1].expand(8, 64))
    assert not can_forbid(x.to("meta"))
