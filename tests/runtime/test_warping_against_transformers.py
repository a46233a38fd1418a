"""Filters, penalties and bans in the pipeline, compared with the processors of `transformers` in their own order.

Examples are derandomized: where a sum of probabilities is within rounding of a limit, two correct implementations may
differ by a token, and such an example should not appear some day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from guideway.api import (
    Array,
    LogitModifier,
    Payload,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    StepInput,
    Warp,
    WorkerContext,
)
from guideway.api.steps import FILTERS
from guideway.devices.numpy.device import NumpyDevice
from guideway.devices.torch.device import TorchDevice
from guideway.pipeline import Pipeline
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from tests.support.devices import StaticNumpy
from tests.support.jax_device import JaxDevice
from tests.support.stages import everyday, examples

DEVICES = {"numpy": NumpyDevice("cpu"), "torch": TorchDevice("cpu"), "jax": JaxDevice("cpu"), "static": StaticNumpy()}


class Seen(Sampler):
    """Owns the draw of every row, and keeps the distributions it got."""

    distributions: ClassVar[list[Any]] = []

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        rows = step.ops.gather(logprobs, payload.rows)
        self.distributions.append(self.context.device.download({"it": rows}).result()["it"])
        return step.ops.argmax(rows)


class See(LogitModifier[bool]):
    name, stage, transform = "see", Stage.SAMPLE, Seen

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        raise NotImplementedError

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        raise NotImplementedError


@dataclass(frozen=True)
class Row:
    """Sampling parameters of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition: float = 1.0
    past: tuple[int, ...] = ()
    added: tuple[tuple[int, float], ...] = ()
    bans: tuple[int, ...] = ()


def step_of(rows: Sequence[Row]) -> StepInput:
    """Return the step that a scheduler would send for `rows`, each one sequence."""

    def pairs(of: Sequence[Mapping[int, float]]) -> Any:
        flat = [(i, column, value) for i, some in enumerate(of) for column, value in some.items()]
        types = (np.int32, np.int32, np.float32)
        return (
            tuple(np.array(a, dtype=t) for a, t in zip(zip(*flat, strict=True), types, strict=True)) if flat else None
        )

    def array(name: str, neutral: Any) -> Any:
        values: NDArray[Any] = np.array([getattr(row, name) for row in rows], dtype=neutral.dtype)
        return None if (values == neutral).all() else values

    count = len(rows)
    warp = Warp(
        pairs([dict.fromkeys(row.past, row.repetition) if row.repetition != 1 else {} for row in rows]),
        pairs([dict(row.added) | dict.fromkeys(row.bans, -np.inf) for row in rows]),
        *(array(name, neutral) for name, neutral in FILTERS.items()),
    )
    every = np.arange(count, dtype=np.int32)
    return StepInput(
        StepBatch.build(list(range(count)), [4] * count),
        {"see": Payload(every)},
        np.array([row.temperature for row in rows], dtype=np.float32),
        np.zeros(count, dtype=np.int64),
        every,
        warp=warp,
    )


def shown(device: str, logits: Any, rows: Sequence[Row], vocabulary_size: int | None = None) -> NDArray[Any]:
    """Return the log-probabilities that the draw gets."""
    width = logits.shape[1]
    context = WorkerContext(device=DEVICES[device], vocabulary_size=vocabulary_size or width, logits_width=width)
    Seen.distributions.clear()
    Pipeline([(See, {})], context).run(DEVICES[device].from_logits(logits), step_of(rows))
    return np.asarray(Seen.distributions[0], dtype=np.float64)


def keep_ties(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return `after` with all tokens that are as likely as its least likely one: sorting in `transformers` decides
    which of equals it keeps."""
    lowest = torch.where(after > -torch.inf, after, torch.inf).min()
    return torch.where(before >= lowest, before, -torch.inf)


def reference_logprobs(logits: NDArray[np.float32], row: Row) -> NDArray[Any]:
    """Return one row processed by `transformers`, and by the API's formulas if it has no processor."""
    ids: Any = torch.tensor([row.past or (0,)])
    scores: Any = torch.tensor(logits)[None]
    if row.repetition != 1 and row.past:
        scores = RepetitionPenaltyLogitsProcessor(float(row.repetition))(ids, scores)
    for token_id, value in row.added:
        scores[0, token_id] += value
    if row.bans:
        scores = SuppressTokensLogitsProcessor(list(row.bans))(ids, scores)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(row.temperature))])
    if row.top_k:
        warpers.append(TopKLogitsWarper(row.top_k))
    scores = warpers(ids, scores)
    if row.top_p < 1:
        scores = keep_ties(scores, TopPLogitsWarper(row.top_p)(ids, scores))
    if row.min_p > 0:
        scores = MinPLogitsWarper(row.min_p)(ids, scores)
    if row.typical_p < 1:
        scores = TypicalLogitsWarper(row.typical_p)(ids, scores)
    return torch.log_softmax(scores.double(), dim=-1)[0].numpy()


def expect(got: NDArray[Any], logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
    for line, own, row in zip(got, logits, rows, strict=True):
        # rounding of float32 sums varies, so a cut may fall on either side of a token
        errors = (0, -1e-6, 1e-6, -3e-6, 3e-6, -1e-5, 1e-5) if row.top_p < 1 else (0,)
        near = (reference_logprobs(own, replace(row, top_p=min(1.0, row.top_p * (1 + error)))) for error in errors)
        right = next((one for one in near if (np.isneginf(line) == np.isneginf(one)).all()), None)
        assert right is not None, row
        np.testing.assert_allclose(line, right, rtol=1e-4, atol=2e-5)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[Row], int]:
    """Draw a width, the rows of a batch, and a seed."""
    width = draw(st.sampled_from((32, 33, 100, 1000)))
    tokens = st.integers(0, width - 1)

    def row() -> Row:
        past = tuple(draw(st.lists(tokens, max_size=6, unique=True)))
        added = draw(st.dictionaries(tokens, st.floats(-20, 20, width=32), max_size=4))
        bans = draw(st.lists(tokens, max_size=2, unique=True))
        return Row(
            temperature=draw(st.sampled_from((1.0, 0.3, 0.7, 2.5))),
            top_k=draw(st.sampled_from((0, 0, 1, 5, 31, width, 5000))),
            top_p=draw(st.sampled_from((1.0, 1.0, 0.01, 0.5, 0.9, 0.999))),
            min_p=draw(st.sampled_from((0.0, 0.0, 0.001, 0.1, 1.0))),
            typical_p=draw(st.sampled_from((1.0, 1.0, 0.01, 0.5, 0.95))),
            repetition=draw(st.sampled_from((1.0, 1.3, 0.5))),
            past=past,
            added=tuple((i, value) for i, value in added.items() if i not in bans),
            bans=tuple(bans),
        )

    return width, [row() for _ in range(draw(st.integers(1, 5)))], draw(st.integers(0, 2**32 - 1))


def noise(seed: int, rows: int, width: int) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=(rows, width)) * 3).astype(np.float32)


@pytest.mark.parametrize("device", everyday(["numpy", "torch"], "torch"))
@given(case=batches())
@settings(max_examples=examples(250), deadline=None, derandomize=True)
def test_warping_equals_the_processors(device: str, case: tuple[int, list[Row], int]) -> None:
    width, rows, seed = case
    logits = noise(seed, len(rows), width)
    expect(shown(device, logits.copy(), rows), logits, rows)


@pytest.mark.slow
@given(case=batches())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_bfloat16_is_widened_first_and_equals_stay_together(case: tuple[int, list[Row], int]) -> None:
    """With 8 bits of mantissa many logits are equal."""
    width, rows, seed = case
    logits = torch.tensor(noise(seed, len(rows), width)).round(decimals=0 if seed % 2 else 1).bfloat16()
    expect(shown("torch", logits.clone(), rows), logits.float().numpy(), rows)


EVERYTHING = Row(0.7, 9, 0.9, 0.02, 0.8, 1.3, (3, 4, 5), ((4, 2.0), (6, -1.5)), (7, 8))


@pytest.mark.parametrize("dtype", everyday([torch.float32, torch.bfloat16]))
def test_arrays_that_cannot_change_give_the_same(dtype: torch.dtype) -> None:
    """One batch only, because jax compiles every operation for every shape."""
    rows = [EVERYTHING, Row(), replace(EVERYTHING, top_k=31, top_p=0.4, temperature=1.5)]
    logits = torch.tensor(noise(7, len(rows), 64)).to(dtype)
    exact = logits.float().numpy()
    everywhere = {name: shown(name, logits.clone(), rows) for name in DEVICES}
    for got in everywhere.values():
        expect(got, exact, rows)


@pytest.mark.parametrize("device", ["numpy", "torch"])
def test_padding_and_greedy_rows_are_left_alone(device: str) -> None:
    rows = [replace(EVERYTHING, top_k=0), Row(top_k=3), replace(Row(top_k=3), temperature=0.0)]
    logits = noise(3, 3, 40)
    logits[:, 33:] = 100
    got = shown(device, logits.copy(), rows, vocabulary_size=33)
    assert np.isneginf(got[:, 33:]).all()
    expect(got[:2, :33], logits[:2, :33], rows[:2])
    assert np.isfinite(got[2, :33]).all()


@pytest.mark.parametrize("device", ["numpy", "torch"])
@pytest.mark.parametrize("row", [Row(top_k=2), Row(top_p=0.5), Row(min_p=0.5), Row(typical_p=0.5), EVERYTHING])
def test_few_or_no_tokens_left_before_a_filter(device: str, row: Row) -> None:
    """Rows with one token, no token or NaN end as without filters, and without warnings."""
    logits = np.full((3, 40), -np.inf, dtype=np.float32)
    logits[0, 11], logits[2] = -5, np.nan
    got = shown(device, logits, [row] * 3)
    assert got[0, 11] == 0
    assert np.isneginf(np.delete(got[0], 11)).all()
    assert not np.isfinite(got[1:]).any()


@pytest.mark.parametrize("device", ["numpy", "torch"])
def test_limits_too_small_for_float32_leave_one_token(device: str) -> None:
    rows = [Row(top_p=1e-300), Row(top_k=3, typical_p=1e-300), Row(top_k=3, min_p=1e-300)]
    logits = np.tile(np.linspace(0, 9, 40, dtype=np.float32), (3, 1))
    got = shown(device, logits.copy(), rows)
    expect(got, logits, rows)
    assert np.isfinite(got).sum(axis=1).tolist() == [1, 1, 3]


@pytest.mark.parametrize("device", ["numpy", "torch"])
def test_equals_at_the_border_stay_together(device: str) -> None:
    """Eight tokens of equal probability below one that has half: all eight stay, even if only some are candidates."""
    probabilities = np.full((1, 32), 1e-9)
    probabilities[0, 5], probabilities[0, 10:18] = 0.5, 0.5 / 8
    logits = np.log(probabilities).astype(np.float32)
    for row in (Row(top_k=3), Row(top_k=3, top_p=0.7), Row(top_p=0.7), Row(top_k=3, top_p=0.7, typical_p=0.9)):
        assert np.flatnonzero(np.isfinite(shown(device, logits.copy(), [row])[0])).tolist() == [5, *range(10, 18)]
    assert np.flatnonzero(np.isfinite(shown(device, logits.copy(), [Row(top_k=3, top_p=0.45)])[0])).tolist() == [5]
