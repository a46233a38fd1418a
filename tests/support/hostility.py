"""Helpers for tests of hostile plugins and callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from guideway.api import (
    Array,
    GenerationResult,
    LogitModifier,
    LogitTransform,
    Payload,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.fake_host import FakeHost
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPT = encode(VOCABULARY, b"the prompt")
WORD = Regex("[a-z]{3,12}(x|y)")


class Panic(BaseException):
    """An exception like a Rust panic in Python: not an `Exception`."""


def host(*modifiers: Any, strategies: Sequence[type] = (ReferenceStrategy,), **options: Any) -> FakeHost:
    named = {cls.name: cls(VOCABULARY, {}) for cls in strategies}
    return FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=named, modifiers=modifiers, **options)


def assert_alone_ends(
    subject: FakeHost, bad: SamplingParams, good: SamplingParams, prompts: int = 3
) -> GenerationResult:
    """Check that `bad` does not affect the `good` requests in its batch. Return the result of `bad`."""
    (alone,) = subject.generate([PROMPT], [good])
    results = subject.generate([PROMPT] * 3, [good, bad, good])
    assert results[0].token_ids == results[2].token_ids == alone.token_ids
    assert results[0].error is results[2].error is None
    (after,) = subject.generate([PROMPT], [good])
    assert after.token_ids == alone.token_ids
    return results[1]


def raiser(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


class BanTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ids = payload.arrays["ids"]
        return step.ops.add_at(logits, payload.rows, ids, payload.shared["infinity"][:1] + 0.0 * payload.rows)


class Ban(LogitModifier[int]):
    """Forbids one token id, at the grammar's own stage."""

    name, stage, transform, derived = "ban", Stage.MASK, BanTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> int | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else int(wanted["id"])

    def prepare(self, batch: StepBatch, states: Sequence[int | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        ids = np.array([state or 0 for state in states], dtype=np.int32)
        return Payload(rows, {"ids": ids[sequences]}, {"infinity": np.full(1, -np.inf, dtype=np.float32)})
