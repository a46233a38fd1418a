"""Each modifier against its formula in float64, on rows of drawn logits, some of them forbidden."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    InvalidConfiguration,
    LogitModifier,
    ModifierContext,
    Payload,
    Request,
    SamplingParams,
    SequenceInfo,
    StepBatch,
    Vocabulary,
    WorkerContext,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway_sampling import DynamicTemperature, Mirostat, PLess, TopNSigma, Xtc

WIDTH = 40
VOCABULARY = Vocabulary(tokens=[b"x"] * 39 + [b""], stop_token_ids=frozenset({39}), logits_width=WIDTH)
CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=64, max_model_len=64)
DEVICE = NumpyDevice("cpu")
ROWS = 48


def begin(cls: type[LogitModifier[Any]], wish: dict[str, Any]) -> tuple[LogitModifier[Any], Any]:
    """Return the modifier, and the state of a sequence with this wish."""
    modifier = cls({}, CONTEXT)
    request = Request(request_id="r", prompt_token_ids=(0,), params=SamplingParams(modifiers={cls.name: wish}))
    return modifier, modifier.start(request, SequenceInfo(index=0, seed=0, prompt_token_ids=(0,)), None)


def setting(cls: type[LogitModifier[Any]], wish: dict[str, Any]) -> tuple[Any, Payload, np.ndarray, np.ndarray]:
    """Return the transform, a payload for each second row, normalized logits, and the step's uniform numbers."""
    modifier, state = begin(cls, wish)
    states = [state if i % 2 else None for i in range(ROWS)]
    payload = modifier.prepare(StepBatch.build(list(range(ROWS)), [1] * ROWS), states)
    assert payload is not None
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(ROWS, WIDTH)) * rng.uniform(0.1, 4, size=(ROWS, 1))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.3] = -np.inf
    logits[1] = -np.inf
    logits[1, 7], logits[3] = 0, 1  # a single token, and a uniform row
    worker = WorkerContext(device=DEVICE, vocabulary_size=WIDTH, logits_width=WIDTH)
    return cls.transform(worker, {}), payload, DEVICE.ops.log_softmax(logits), rng.random((ROWS, 1)).astype(np.float32)


def change(cls: type[LogitModifier[Any]], wish: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows with the modifier before and after it, in float64, and their uniform numbers."""
    transform, payload, before, uniforms = setting(cls, wish)
    step: Any = SimpleNamespace(ops=DEVICE.ops, uniform=lambda _, rows: uniforms[rows])
    after = transform.apply(before.copy(), payload, step)
    assert np.array_equal(after[::2], before[::2])
    return before[1::2].astype(np.float64), after[1::2].astype(np.float64), uniforms[1::2, 0]


def same(after: np.ndarray, before: np.ndarray, kept: np.ndarray) -> bool:
    return np.array_equal(after, np.where(kept, before, -np.inf))


def test_xtc_excludes_all_top_choices_but_the_last() -> None:
    for row, after, uniform in zip(*change(Xtc, {"threshold": 0.08, "probability": 0.6}), strict=True):
        order = np.argsort(-row)
        top = [i for i in order if np.exp(row[i]) >= 0.08]
        kept = np.ones(WIDTH, dtype=bool)
        if uniform < 0.6:
            kept[[i for i in top if row[i] > row[top[-1]]]] = False
        assert same(after, row, kept)


def test_top_n_sigma_keeps_logits_within_n_standard_deviations() -> None:
    for row, after, _ in zip(*change(TopNSigma, {"n": 0.8}), strict=True):
        sigma = row[row > -np.inf].std()
        assert same(after, row, row >= row.max() - 0.8 * sigma - 1e-5)


@pytest.mark.parametrize("normalized", [False, True])
def test_p_less_keeps_tokens_as_likely_as_two_equal_draws(normalized: bool) -> None:
    for row, after, _ in zip(*change(PLess, {"normalized": normalized}), strict=True):
        p = np.exp(row)
        equal = (p**2).sum()
        if normalized:
            equal = (WIDTH * equal - 1) / (WIDTH - 1)
        assert same(after, row, p >= min(equal, p.max()) - 1e-6)


def test_dynamic_temperature_follows_the_entropy() -> None:
    for row, after, _ in zip(*change(DynamicTemperature, {"least": 0.4, "most": 2.0, "exponent": 1.5}), strict=True):
        p = np.exp(row[row > -np.inf])
        share = -(p * np.log(p)).sum() / max(np.log(len(p)), 1e-9)
        expected = row / (0.4 + 1.6 * share**1.5)
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-6)


def test_mirostat_draws_within_the_limit_and_follows_the_surprise() -> None:
    transform, payload, logprobs, uniforms = setting(Mirostat, {"target": 1.2, "rate": 0.5})
    emitted: dict[str, np.ndarray] = {}
    step: Any = SimpleNamespace(ops=DEVICE.ops, uniform=lambda _, rows: uniforms[rows], emit=emitted.__setitem__)
    drawn = transform.sample(logprobs, payload, step)
    for i, row in enumerate(logprobs[1::2].astype(np.float64)):
        p = np.exp(row) * ((-row / np.log(2) <= 2.4) | (row == row.max()))
        p /= p.sum()
        assert p[drawn[i]] > 0
        assert emitted["surprise"][i] == pytest.approx(-np.log2(p[drawn[i]]), abs=1e-4)
    modifier, state = begin(Mirostat, {"target": 1.2, "rate": 0.5})
    other = modifier.fork(state)
    modifier.accept(state, (1, 2), {"surprise": np.array([3.0, 0.2])})
    assert state.limit == pytest.approx(2.4 - 0.5 * (3.0 - 1.2) - 0.5 * (0.2 - 1.2))
    modifier.accept(other, (1,), None)
    assert other.limit == 2.4


@pytest.mark.parametrize(
    ("cls", "wish", "message"),
    [
        (Xtc, {"threshold": 0}, "'threshold' of modifiers.xtc must be a number from"),
        (DynamicTemperature, {"least": float("nan")}, "'least' of modifiers.dynamic_temperature must be a number"),
        (TopNSigma, {"m": 1}, "unknown option 'm' of modifiers.top_n_sigma"),
    ],
)
def test_wrong_wishes_are_refused(cls: type[LogitModifier[Any]], wish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        begin(cls, wish)
