"""Drafts do not change the distribution of draws at any temperature: a chi-square test against draws without drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.vllm.draws import REQUESTS, draws
from tests.vllm.probes_in_vllm import installed

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
NUM_SPLITS = 20_000
LEAST = 1e-3
"""Least share of random splits that must differ as much. Seeds are fixed, so the result is the same each time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(folder := tmp_path_factory.mktemp("installed")):
        yield folder


def likelihood(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Return the share of random splits of all draws into two with a chi-square at least as large as these two have."""
    counts = np.array([[each.get(text, 0) for text in sorted({**one, **other})] for each in (one, other)])
    total, size = counts.sum(axis=0), counts.sum(axis=1)
    expected = total * size[:1] / size.sum()
    splits = np.random.default_rng(0).multivariate_hypergeometric(total, size[0], size=NUM_SPLITS)
    # the second sample is the complement of the first, so its deviations are the same
    of_splits, ours = (((split - expected) ** 2 / expected).sum(axis=-1) for split in (splits, counts[0]))
    return float((of_splits >= ours - 1e-9).mean())


def test_the_test_tells_distributions_apart() -> None:
    even, uneven = {"a": 200, "b": 200}, {"a": 260, "b": 140}
    assert likelihood(even, {"a": 190, "b": 210}) > 0.1
    assert likelihood(even, uneven) < LEAST


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["V1", "V1 on a CPU", "V2"])
def test_drafts_change_no_distribution(folder: Path, runner: str) -> None:
    v2, native = runner == "V2", runner == "V1 on a CPU"
    without, _ = draws(folder, v2=v2, drafts=None, first_seed=1, native=native)
    given = DRAFTS | {"method": "ngram_gpu"} if v2 else DRAFTS
    drafted, num_taken = draws(folder, v2=v2, drafts=given, first_seed=100_001, native=native)
    assert num_taken > 100
    for name in REQUESTS:
        assert len(without[name]) >= 3, "too few texts to tell distributions apart"
        assert likelihood(without[name], drafted[name]) >= LEAST, (name, without[name], drafted[name])
