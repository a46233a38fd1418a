"""Steps with padded shapes have the same results as without padding, and only the shapes of the warm-up."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guideway.api import Payload, StepBatch, StepInput, StepOutput, Vocabulary, Warp, WorkerContext, padded_size
from guideway.api.bitmask import pack
from guideway.devices.numpy.device import NumpyDevice
from guideway.pipeline import Pipeline
from guideway.pipeline.padding import Padding, padded_step
from guideway.runtime.constraints.grammar_mask import GrammarMask
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.devices import StaticNumpy
from tests.support.vocabularies import tiny

VOCABULARY: Vocabulary = tiny(width=128)
WIDTH = VOCABULARY.logits_width


def pipeline(device: NumpyDevice) -> Pipeline:
    context = WorkerContext(device=device, vocabulary_size=len(VOCABULARY), logits_width=WIDTH)
    return Pipeline([(GrammarMask, {})], context)


def random_step(seed: int, num_rows: int) -> StepInput:
    """Generate a step with a random choice of features."""
    rng, choose = np.random.default_rng(seed), random.Random(seed)

    def some(make: Any) -> Any:
        return make() if choose.random() < 0.5 else None

    def pairs(values: np.ndarray[Any, Any]) -> Any:
        places = rng.choice(num_rows * len(VOCABULARY), size=len(values), replace=False)
        return (
            (places // len(VOCABULARY)).astype(np.int32),
            (places % len(VOCABULARY)).astype(np.int32),
            values.astype(np.float32),
        )

    masked = np.flatnonzero(rng.random(num_rows) < 0.6).astype(np.int32)
    allowed = rng.random((len(masked), WIDTH)) < rng.choice([0.05, 0.9], size=(len(masked), 1))
    allowed[:, len(VOCABULARY) :] = False
    allowed[:, 0] = True
    warp = Warp(
        repeated=some(lambda: pairs(rng.uniform(0.5, 2, size=choose.randint(1, 90)))),
        added=some(lambda: pairs(rng.choice([-np.inf, 1.5, -2.0], size=choose.randint(1, 70)))),
        top_k=some(lambda: rng.integers(0, 9, num_rows).astype(np.int32)),
        top_p=some(lambda: rng.choice([1.0, 0.7], num_rows).astype(np.float32)),
        min_p=some(lambda: rng.choice([0.0, 0.02], num_rows).astype(np.float32)),
        typical_p=some(lambda: rng.choice([1.0, 0.8], num_rows).astype(np.float32)),
    )
    return StepInput(
        batch=StepBatch.build(list(range(num_rows)), rng.integers(0, 99, num_rows).tolist()),
        payloads={"grammar": Payload(masked, {"bitmask": pack(allowed)})} if len(masked) else {},
        temperatures=(rng.choice([0.0, 0.5, 1.0], num_rows) * (choose.random() < 0.8)).astype(np.float32),
        seeds=rng.integers(0, 2**62, num_rows),
        sequence_indices=rng.integers(0, 4, num_rows).astype(np.int32),
        warp=some(lambda: warp),
        num_logprobs=some(lambda: rng.integers(-1, 4, num_rows).astype(np.int32)),
        processed=some(lambda: rng.random(num_rows) < 0.5),
        records=some(lambda: rng.random(num_rows) < 0.5),
    )


def outcome(device: NumpyDevice, step: StepInput, seed: int, padded: int) -> StepOutput:
    logits = np.random.default_rng([seed, 1]).normal(scale=3, size=(padded, WIDTH)).astype(np.float32)
    return pipeline(device).run(logits, step, num_rows=step.batch.num_rows)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**30), num_rows=st.integers(1, 20))
def test_padding_changes_no_result(seed: int, num_rows: int) -> None:
    step, padded = random_step(seed, num_rows), padded_size(num_rows)
    plain, static = (outcome(device, step, seed, padded) for device in (NumpyDevice(), StaticNumpy()))
    assert plain.token_ids.tolist() == static.token_ids.tolist()
    assert plain.overruled == static.overruled
    assert plain.faults == static.faults == {}
    assert (plain.logprobs is None) == (static.logprobs is None)
    if plain.logprobs is not None and static.logprobs is not None:
        for name in ("rows", "top_ids"):
            assert getattr(plain.logprobs, name).tolist() == getattr(static.logprobs, name).tolist()
        for name in ("chosen", "top"):
            np.testing.assert_allclose(getattr(plain.logprobs, name), getattr(static.logprobs, name), rtol=1e-6)
    assert (plain.records is None) == (static.records is None)
    if plain.records is not None and static.records is not None:
        for name in ("model", "drawn", "pressure"):
            got = getattr(plain.records, name), getattr(static.records, name)
            np.testing.assert_allclose(*got, rtol=1e-6, atol=1e-6)
        assert replace(plain.records, model=0, drawn=0, pressure=0) == replace(
            static.records, model=0, drawn=0, pressure=0
        )


def test_after_warm_up_no_shape_is_new() -> None:
    device = StaticNumpy()
    subject = pipeline(device)

    def logits(num_rows: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(0).normal(size=(padded_size(num_rows), WIDTH)).astype(np.float32)

    for num_rows in (8, 16):
        subject.warm_up(lambda num_rows=num_rows: logits(num_rows), num_rows)
    seen = set(device.shapes)
    for seed in range(100):
        num_rows = 1 + seed % 16
        step = random_step(seed, num_rows)
        subject.run(logits(num_rows), step, num_rows=num_rows)
        assert device.shapes <= seen, (seed, sorted(map(str, device.shapes - seen)))


def test_rows_beyond_those_of_the_step_mean_nothing() -> None:
    step = random_step(3, 5)
    for device in (NumpyDevice(), StaticNumpy()):
        logits = np.random.default_rng(1).normal(size=(8, WIDTH)).astype(np.float32)
        nothing = logits.copy()
        nothing[5:] = np.nan
        results = [pipeline(device).run(x, step, num_rows=5).token_ids.tolist() for x in (logits, nothing)]
        assert results[0] == results[1]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 300])
def test_pairs_have_few_lengths(length: int) -> None:

    pairs = (np.zeros(length, np.int32), np.arange(length, dtype=np.int32), np.ones(length, np.float32))
    rows, columns, values = Padding(8, 100).pairs(pairs)
    assert len(rows) == len(columns) == len(values) == next(n for n in (64, 256, 1024) if n >= length)
    assert rows[length:].tolist() == [r for r in rows[length:].tolist() if 8 <= r < 16]
    assert len({*zip(rows.tolist(), columns.tolist(), strict=True)}) == len(rows)


def test_what_a_step_needs_is_padded_with_it() -> None:
    """History, companions and hidden states have as many rows as the logits, including scratch rows."""

    step = replace(
        random_step(5, 3),
        history=np.arange(6, dtype=np.int32).reshape(3, 2),
        companion_rows={"m": np.array([[3], [4], [5]], dtype=np.int32)},
    )
    padded = padded_step(step, 16)
    assert padded.history is not None
    assert padded.history.shape == (16, 2)
    assert padded.companion_rows["m"][:, 0].tolist() == [3, 4, 5] + [3] * 13
