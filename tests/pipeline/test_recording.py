"""Records of a step are what an independent computation says, and recording changes no token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    Array,
    DeviceBackend,
    LogitModifier,
    LogitTransform,
    Payload,
    Records,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    StepInput,
    StepOutput,
    WorkerContext,
    padded_size,
)
from guideway.api.bitmask import unpack
from guideway.devices.numpy.device import NumpyDevice
from guideway.devices.torch.device import TorchDevice
from guideway.pipeline import Pipeline
from guideway.runtime.constraints.grammar_mask import GrammarMask
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.pipeline.test_static_shapes import VOCABULARY, WIDTH, random_step
from tests.support.devices import FusedNumpy, StaticNumpy

SIZE = len(VOCABULARY)


class Add(LogitTransform):
    """Adds the payload's number to the logits of every third token; -inf forbids them."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        rows = step.ops.gather(logits, payload.rows)
        return step.ops.where_rows(logits, payload.rows, True, rows + payload.arrays["added"])


class Last(Sampler):
    """Draws the most likely token, and spoils its rows, as a sampler that keeps no copy may."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        drawn = step.ops.argmax(step.ops.gather(logprobs, payload.rows))
        step.ops.where_rows(logprobs, payload.rows, True, -np.inf)
        return drawn


def modifier(name: str, stage: Stage, transform: type[LogitTransform] = Add) -> type[LogitModifier[Any]]:
    class Modifier(LogitModifier[None]):
        def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> None:
            return None

        def prepare(self, batch: StepBatch, states: Sequence[None]) -> Payload | None:
            return None

    return type(name, (Modifier,), {"name": name, "stage": stage, "transform": transform})


BEFORE, BESIDE, AFTER = (
    modifier("before", Stage.PRE_WARP),
    modifier("beside", Stage.MASK),
    modifier("z", Stage.POST_WARP),
)
MODIFIERS = (BEFORE, GrammarMask, BESIDE, AFTER, modifier("last", Stage.SAMPLE, Last))
TYPES: tuple[type[DeviceBackend], ...] = (NumpyDevice, FusedNumpy, StaticNumpy, TorchDevice)


def step_with_modifiers(seed: int, num_rows: int) -> StepInput:
    """Return a random step in which some modifiers act on some rows, and records are asked for everywhere."""
    rng, step = np.random.default_rng([seed, 3]), random_step(seed, num_rows)
    payloads = dict(step.payloads)
    for name, added in (("before", 2.0), ("beside", -np.inf), ("z", 1.0), ("last", 0.0)):
        rows = np.flatnonzero(rng.random(num_rows) < 0.5).astype(np.int32)
        if rng.random() < 0.5 and len(rows):
            columns = np.zeros((len(rows), WIDTH), dtype=np.float32)
            columns[:, :: 1 if name == "beside" and rng.random() < 0.3 else 3] = added
            payloads[name] = Payload(rows, {"added": columns * rng.choice([1, 0 if added > 0 else 1])})
    return replace(
        step, payloads=payloads, records=np.ones(num_rows, dtype=np.bool_), num_logprobs=None, processed=None
    )


def run(device: DeviceBackend, step: StepInput, seed: int) -> tuple[StepOutput, NDArray[np.float32]]:
    context = WorkerContext(device=device, vocabulary_size=SIZE, logits_width=WIDTH)
    num_rows = step.batch.num_rows
    size = padded_size(num_rows) if device.static_shapes else num_rows
    logits = np.random.default_rng([seed, 2]).normal(scale=3, size=(size, WIDTH)).astype(np.float32)
    output = Pipeline([(cls, {}) for cls in MODIFIERS], context).run(logits.copy(), step, num_rows=num_rows)
    return output, logits[:num_rows, :SIZE].astype(np.float64)


def expected(step: StepInput, output: StepOutput, logits: NDArray[np.float64]) -> tuple[Any, NDArray[np.bool_]]:
    """Return the log-probabilities of all tokens under the model, and the allowed tokens."""
    allowed = np.ones(logits.shape, dtype=np.bool_)
    if (mask := step.payloads.get("grammar")) is not None:
        allowed[mask.rows] = unpack(mask.arrays["bitmask"], SIZE)
    if (beside := step.payloads.get("beside")) is not None:
        for row, added in zip(beside.rows.tolist(), beside.arrays["added"], strict=True):
            if "modifier.beside" not in output.overruled.get(row, ()):
                allowed[row] &= added[:SIZE] == 0
    if step.warp is not None and step.warp.added is not None:
        for row, column, value in zip(*step.warp.added, strict=True):
            if value == -np.inf and "min_tokens" not in output.overruled.get(int(row), ()):
                allowed[row, column] = False
    model = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return model, allowed


@pytest.mark.parametrize("device_type", TYPES, ids=lambda cls: cls.__name__)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**30), num_rows=st.integers(1, 12))
def test_records_are_what_an_independent_computation_says(
    device_type: type[DeviceBackend], seed: int, num_rows: int
) -> None:
    step = step_with_modifiers(seed, num_rows)
    output, logits = run(device_type("cpu"), step, seed)
    assert not output.faults
    records, rows = output.records, np.arange(num_rows)
    assert records is not None
    model, allowed = expected(step, output, logits)
    np.testing.assert_allclose(records.model, model[rows, output.token_ids], atol=1e-5)
    assert records.allowed.tolist() == allowed.sum(axis=1).tolist()
    np.testing.assert_allclose(records.pressure, (np.exp(model) * allowed).sum(axis=1), atol=1e-6)
    for name in ("before", "beside", "grammar", "last", "z"):
        acts = np.zeros(num_rows, dtype=np.bool_)
        if (payload := step.payloads.get(name)) is not None:
            acts[payload.rows] = name == "last" or payload_changes(name, payload)
        for row in output.overruled:
            acts[row] &= f"modifier.{name}" not in output.overruled[row]
        said = [name in records.changed_by(row) for row in range(num_rows)]
        if name in ("before", "grammar", "last"):  # what the others add may be lost in tokens that are out already
            assert said == acts.tolist(), name
        assert not (said & ~acts).any()


def payload_changes(name: str, payload: Payload) -> NDArray[np.bool_]:
    if name == "grammar":
        return ~unpack(payload.arrays["bitmask"], SIZE).all(axis=1)
    return (payload.arrays["added"][:, :SIZE] != 0).any(axis=1)


@pytest.mark.parametrize("device_type", TYPES, ids=lambda cls: cls.__name__)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**30), num_rows=st.integers(1, 12), some=st.booleans())
def test_recording_changes_no_token_and_agrees_with_processed_logprobs(
    device_type: type[DeviceBackend], seed: int, num_rows: int, some: bool
) -> None:
    device, step = device_type("cpu"), step_with_modifiers(seed, num_rows)
    if some:  # rows that request nothing
        step = replace(step, records=np.arange(num_rows) % 3 == 0)
    asked = step.records
    assert asked is not None
    zeros = np.zeros(num_rows, dtype=np.int32)
    output, _ = run(device, step, seed)
    plain, _ = run(device, replace(step, records=None), seed)
    raw, _ = run(device, replace(step, records=None, num_logprobs=zeros), seed)
    processed, _ = run(device, replace(step, records=None, num_logprobs=zeros, processed=zeros == 0), seed)
    assert output.token_ids.tolist() == plain.token_ids.tolist() == raw.token_ids.tolist()
    assert plain.records is None
    assert output.records is not None and raw.logprobs is not None and processed.logprobs is not None
    assert output.records.model.tolist() == raw.logprobs.chosen[asked].tolist()
    assert output.records.drawn.tolist() == processed.logprobs.chosen[asked].tolist()


def test_where_nothing_acts_the_draw_is_the_models() -> None:
    step = replace(
        random_step(5, 6),
        payloads={},
        warp=None,
        processed=None,
        temperatures=np.array([0, 1, 1, 0, 1, 1], dtype=np.float32),
        records=np.ones(6, dtype=np.bool_),
    )
    for device_type in TYPES:
        output, _ = run(device_type("cpu"), step, 5)
        assert output.records is not None
        assert output.records.model.tolist() == output.records.drawn.tolist()  # every bit
        assert output.records.allowed.tolist() == [SIZE] * 6
        assert output.records.modifiers == ()


def test_parts_join_and_files_hold_everything(tmp_path: Path) -> None:
    step = step_with_modifiers(11, 7)
    first, _ = run(NumpyDevice("cpu"), step, 11)
    second, _ = run(NumpyDevice("cpu"), step_with_modifiers(12, 5), 12)
    assert first.records is not None and second.records is not None
    joined = Records.join([(first.records, 2, 5), (second.records, 0, 1), (first.records, 3, 3)])
    assert len(joined) == 4
    assert joined.model.tolist() == [*first.records.model[2:5], second.records.model[0]]
    each = [*range(2, 5)]
    assert [set(joined.changed_by(i)) for i in range(3)] == [set(first.records.changed_by(i)) for i in each]
    assert set(joined.changed_by(3)) == set(second.records.changed_by(0))
    joined.save(tmp_path / "records.npz")
    assert Records.load(tmp_path / "records.npz") == joined
    assert joined != first.records
    empty = Records.join([])
    empty.save(tmp_path / "empty.npz")
    assert Records.load(tmp_path / "empty.npz") == empty
    for records in (joined, empty):
        assert Records.from_lists(json.loads(json.dumps(records.to_lists()))) == records
    impossible = replace(joined, drawn=np.full(len(joined), -np.inf, dtype=np.float32))
    assert impossible.to_lists()["drawn"] == [None] * len(joined)
    assert np.isnan(Records.from_lists(impossible.to_lists()).drawn).all()
    assert len(empty) == 0
