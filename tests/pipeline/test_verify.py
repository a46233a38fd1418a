"""A sampler's own verification of drafts: what it is given, and that rejection sampling keeps the distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guideway.api import Array, DeviceBackend, Need, Payload, Sampler, Stage, Step, StepBatch, StepInput, WorkerContext
from guideway.devices.numpy.device import NumpyDevice
from guideway.devices.torch.device import TorchDevice
from guideway.pipeline import Pipeline, accepted_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.test_recording import modifier
from tests.support.devices import StaticNumpy

WIDTH = 32


class Tells(Sampler):
    """Draws token 0 where there is no draft, and the token after the draft where there is one."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        return payload.rows * 0

    def verify(self, logprobs: Array, payload: Payload, drafts: Array, step: Step) -> Array:
        return drafts + 1


class Rejects(Sampler):
    """Accepts a draft with its own probability, and else draws among the other tokens."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        return self.drawn(step.ops.gather(logprobs, payload.rows), payload, step, "draw")

    def drawn(self, own: Array, payload: Payload, step: Step, purpose: str) -> Array:
        return step.ops.categorical(own, step.uniform(purpose, payload.rows)[:, 0])

    def verify(self, logprobs: Array, payload: Payload, drafts: Array, step: Step) -> Array:
        ops = step.ops
        every = ops.asarray(np.arange(len(payload), dtype=np.int32))
        own, columns = ops.gather(logprobs, payload.rows), (drafts * (drafts >= 0))[:, None]
        accepted = step.uniform("accept", payload.rows) < ops.exp(ops.gather(own, every, columns))
        others = ops.scatter(own, every, columns, ops.asarray(np.full((len(payload), 1), -np.inf, dtype=np.float32)))
        other = self.drawn(others, payload, step, "others")[:, None]
        decided = ops.where_rows(other, every, accepted, columns)
        plain = self.sample(logprobs, payload, step)[:, None]
        return ops.where_rows(plain, every, (drafts >= 0)[:, None], decided)[:, 0]


def run(device: DeviceBackend, sampler: type[Sampler], batch: StepBatch, logits: Any, rows: Any, seed: int = 0) -> Any:
    cls = modifier("owner", Stage.SAMPLE, sampler)
    cls.needs = frozenset({Need.UNIFORM, Need.DRAFTS})
    context = WorkerContext(device=device, vocabulary_size=WIDTH, logits_width=WIDTH)
    step = StepInput(
        batch=batch,
        payloads={"owner": Payload(np.array(rows, dtype=np.int32))},
        temperatures=np.ones(batch.num_rows, dtype=np.float32),
        seeds=np.repeat(np.arange(batch.num_sequences, dtype=np.int64) + 100_000 * seed, np.diff(batch.row_start)),
        sequence_indices=np.zeros(batch.num_rows, dtype=np.int32),
    )
    output = Pipeline([(cls, {})], context).run(logits, step, num_rows=batch.num_rows)
    assert not output.faults
    return output.token_ids


@settings(max_examples=60, deadline=None)
@given(
    drafts=st.lists(st.lists(st.integers(0, WIDTH - 2), max_size=4), min_size=1, max_size=6),
    skip=st.sets(st.integers(0, 30)),
    device=st.sampled_from([NumpyDevice, StaticNumpy, TorchDevice]),
)
def test_each_entry_is_given_the_draft_after_its_row(
    drafts: list[list[int]], skip: set[int], device: type[DeviceBackend]
) -> None:
    batch = StepBatch.build(list(range(len(drafts))), [5] * len(drafts), drafts)
    rows = [row for row in range(batch.num_rows) if row not in skip][::-1]
    size = 32 if device is StaticNumpy else batch.num_rows
    found = run(device("cpu"), Tells, batch, np.zeros((size, WIDTH), dtype=np.float32), rows)
    expected = [token for ids in drafts for token in ([draft + 1 for draft in ids] + [0])]
    assert all(found[row] == expected[row] for row in rows)


@pytest.mark.parametrize("draft", [0, 3, 31])
def test_rejection_keeps_the_distribution(draft: int) -> None:
    count = 20_000
    logits = np.random.default_rng(4).normal(scale=1.5, size=(2, WIDTH)).astype(np.float32)
    batch = StepBatch.build(list(range(count)), [7] * count, [[draft]] * count)
    every = np.tile(logits, (count, 1))
    found = run(NumpyDevice("cpu"), Rejects, batch, every, range(2 * count), seed=draft)
    finals = accepted_tokens(batch, found)
    shares = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    seen = np.bincount([ids[0] for ids in finals], minlength=WIDTH)
    kept = [ids for ids in finals if ids[0] == draft]
    assert all(len(ids) == 2 for ids in kept)
    assert {len(ids) for ids in finals if ids[0] != draft} <= {1}
    after = np.bincount([ids[1] for ids in kept], minlength=WIDTH)
    for counts, share, total in ((seen, shares[0], count), (after, shares[1], len(kept))):
        statistic = ((counts - total * share) ** 2 / (total * share)).sum()
        assert statistic < 75  # chi-square with 31 degrees of freedom: p > 2e-5
