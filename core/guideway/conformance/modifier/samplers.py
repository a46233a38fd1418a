"""The draw, where a modifier owns it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api import Payload
from guideway.conformance.modifier.bench import Bench
from guideway.conformance.modifier.comparison import bits
from guideway.conformance.modifier.records import Work
from guideway.conformance.modifier.subject import ModifierSubject
from guideway.conformance.registry import check
from guideway.conformance.subjects import expect


@check("modifier", trait="sampler")
def draws_one_token_per_entry(subject: ModifierSubject) -> None:
    """`sample` returns one token id for each entry of the payload, whole numbers in an array of the device."""
    for bench, work, payload in Bench.stages(subject):
        for piece in (payload, payload.take(payload.rows[:1]), payload.take(payload.rows[1:])):
            if len(piece) == 0:
                continue
            drawn = _sampled(bench, work, piece, work.logits)
            expect(tuple(drawn.shape) == (len(piece),), f"for {len(piece)} entries it drew an array of {drawn.shape}")
            expect(drawn.dtype.kind in "iu", f"it drew {drawn.dtype}, not whole numbers")
            size = len(bench.vocabulary)
            outside = drawn[(drawn < 0) | (drawn >= size)]
            expect(len(outside) == 0, f"it drew token {outside[:1]}; token ids are 0..{size - 1}")


@check("modifier", trait="sampler")
def draws_no_forbidden_token(subject: ModifierSubject) -> None:
    """A token whose log-probability is -inf is not drawn."""
    for bench, work, payload in Bench.stages(subject):
        for seed in range(6):
            rng = np.random.default_rng(seed)
            logprobs = work.logits.copy()
            logprobs[rng.random(logprobs.shape) < (0.5, 0.9, 0.99)[seed % 3]] = -np.inf
            logprobs[np.arange(len(logprobs)), rng.integers(0, len(bench.vocabulary), len(logprobs))] = -1.0
            drawn = _sampled(bench, work, payload, _normalized(logprobs))
            wrong = drawn[np.isneginf(logprobs[payload.rows, drawn])]
            expect(len(wrong) == 0, f"it drew token {wrong[:1]}, whose log-probability is -inf")


@check("modifier", trait="sampler")
def draws_the_only_token(subject: ModifierSubject) -> None:
    """Where one token alone is left it is drawn, be it the first or the last of the vocabulary."""
    for bench, work, payload in Bench.stages(subject):
        for token_id in (0, 1, 500, len(bench.vocabulary) - 1):
            logprobs = np.full_like(work.logits, -np.inf)
            logprobs[:, token_id] = 0
            drawn = _sampled(bench, work, payload, logprobs)
            expect((drawn == token_id).all(), f"only token {token_id} was left, but it drew {drawn.tolist()}")


@check("modifier", trait="sampler")
def a_sampler_leaves_the_logits(subject: ModifierSubject) -> None:
    """`apply` of a sampler leaves the logits alone."""
    for bench, work, payload in Bench.stages(subject):
        transform: Any = bench.transform
        step = bench.step_of(work, transform, len(payload))
        array = bench.device.from_logits(work.logits.copy())
        after = bench.host(transform.apply(array, bench.device.upload(payload), step))
        expect(bits(after) == bits(work.logits), f"apply changed {int((after != work.logits).sum())} log-probabilities")


def _sampled(bench: Bench, work: Work, payload: Payload, logprobs: NDArray[Any]) -> NDArray[Any]:
    transform: Any = bench.transform
    array = bench.device.from_logits(logprobs.copy())
    step = bench.step_of(work, transform, len(payload))
    drawn = transform.sample(array, bench.device.upload(payload), step)
    expect(isinstance(drawn, type(array)), f"sample returned a {type(drawn).__name__}, not a {type(array).__name__}")
    return bench.host(drawn)


def _normalized(logprobs: NDArray[Any]) -> NDArray[Any]:
    total = np.log(np.exp(logprobs.astype(np.float64)).sum(axis=1, keepdims=True))
    normalized: NDArray[Any] = (logprobs - total).astype(np.float32)
    return normalized
