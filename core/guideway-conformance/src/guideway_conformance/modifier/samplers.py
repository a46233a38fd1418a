"""The draw, where a modifier owns it."""

from __future__ import annotations

from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, LogitModifier, LogitTransform, Payload
from numpy.typing import NDArray

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import bits
from guideway_conformance.modifier.records import Work
from guideway_conformance.modifier.step import OracleStep, StepArrays
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect


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
def draws_nothing_forbidden_at_the_extremes(subject: ModifierSubject) -> None:
    """No uniform numbers in (0, 1) make it draw a token at -inf, be they the least, the greatest or far apart."""
    for bench, work, payload in Bench.stages(subject):
        size = len(bench.vocabulary)
        for name, far in (("the least", 0.0), ("the greatest", 1.0), ("the least and the greatest", 0.5)):
            for spread in (0.01, 3.0):
                rng = np.random.default_rng(7)
                logprobs = (spread * work.logits.clip(-9, 9)).astype(np.float32)
                logprobs[rng.random(logprobs.shape) < 0.5] = -np.inf
                logprobs[:, [*range(3), *range(size - 3, logprobs.shape[1])]] = -np.inf
                logprobs[:, size // 2] = 0
                logprobs = _normalized(logprobs)
                step = ExtremeStep(work.arrays, bench.device.ops, bench.cls, bench.transform, len(payload), far)
                drawn = _sampled(bench, work, payload, logprobs, step)
                wrong = drawn[np.isneginf(logprobs[payload.rows, drawn])]
                expect(
                    len(wrong) == 0,
                    f"with uniform numbers that are {name} it drew token {wrong[:1]}, whose log-probability is -inf",
                )


class ExtremeStep(OracleStep):
    """Its uniform numbers are the least and the greatest there are, the greatest in a share `far` of places."""

    def __init__(
        self,
        arrays: StepArrays,
        ops: ArrayOps,
        modifier: type[LogitModifier[Any]],
        transform: LogitTransform,
        num_entries: int,
        far: float,
    ) -> None:
        super().__init__(arrays, ops, modifier, transform, num_entries)
        self._far = far

    def uniform(self, purpose: str, rows: Array, width: int = 1) -> Array:
        usual = super().uniform(purpose, rows, width)
        greatest = np.random.default_rng(3).random(tuple(usual.shape)) < self._far
        return self.ops.asarray(np.where(greatest, 1 - 2**-24, 2**-24).astype(np.float32))


@check("modifier", trait="sampler")
def draws_the_only_token(subject: ModifierSubject) -> None:
    """A token that alone is left is drawn, be it the first or the last of the vocabulary."""
    for bench, work, payload in Bench.stages(subject):
        for token_id in (0, 1, 500, len(bench.vocabulary) - 1):
            logprobs = np.full_like(work.logits, -np.inf)
            logprobs[:, token_id] = 0
            drawn = _sampled(bench, work, payload, logprobs)
            expect((drawn == token_id).all(), f"only token {token_id} was left, but it drew {drawn.tolist()}")


@check("modifier", trait="need:drafts")
def verifies_as_it_draws(subject: ModifierSubject) -> None:
    """`verify` gives each entry without a draft what `sample` gives, and every entry one token id, whole numbers in an
    array of the device."""
    for bench, work, payload in Bench.stages(subject):
        drawn = _sampled(bench, work, payload, work.logits)
        for offered in (np.full_like(drawn, -1), drawn, np.arange(len(drawn)) % 256):
            drafts = offered.astype(np.int32)
            drafts[::2] = -1
            found = _verified(bench, work, payload, work.logits, drafts)
            expect(
                tuple(found.shape) == (len(payload),), f"for {len(payload)} entries it gave an array of {found.shape}"
            )
            expect(found.dtype.kind in "iu", f"it gave {found.dtype}, not whole numbers")
            size = len(bench.vocabulary)
            outside = found[(found < 0) | (found >= size)]
            expect(len(outside) == 0, f"it gave token {outside[:1]}; token ids are 0..{size - 1}")
            wrong = np.flatnonzero((found != drawn) & (drafts == -1))
            expect(len(wrong) == 0, f"without a draft it gave token {found[wrong[:1]]}, and sample {drawn[wrong[:1]]}")


@check("modifier", trait="need:drafts")
def keeps_no_forbidden_draft(subject: ModifierSubject) -> None:
    """`verify` gives no token whose log-probability is -inf, be it the draft or another."""
    for bench, work, payload in Bench.stages(subject):
        for seed in range(6):
            rng = np.random.default_rng(seed)
            logprobs = work.logits.copy()
            logprobs[rng.random(logprobs.shape) < (0.5, 0.9, 0.99)[seed % 3]] = -np.inf
            allowed = rng.integers(0, len(bench.vocabulary), len(logprobs))
            logprobs[np.arange(len(logprobs)), allowed] = -1.0
            if seed % 2:  # nothing else is left
                logprobs[np.arange(logprobs.shape[1]) != allowed[:, None]] = -np.inf
            drafts = rng.integers(0, len(bench.vocabulary), len(payload)).astype(np.int32)
            drafts[::3] = allowed[payload.rows][::3]
            found = _verified(bench, work, payload, _normalized(logprobs), drafts)
            wrong = found[np.isneginf(logprobs[payload.rows, found])]
            expect(len(wrong) == 0, f"it gave token {wrong[:1]}, whose log-probability is -inf")


@check("modifier", trait="sampler")
def a_sampler_leaves_the_logits(subject: ModifierSubject) -> None:
    """`apply` of a sampler leaves the logits alone."""
    for bench, work, payload in Bench.stages(subject):
        transform: Any = bench.transform
        step = bench.step_of(work, transform, len(payload))
        array = bench.device.from_logits(work.logits.copy())
        after = bench.host(transform.apply(array, bench.device.upload(payload), step))
        expect(bits(after) == bits(work.logits), f"apply changed {int((after != work.logits).sum())} log-probabilities")


def _sampled(
    bench: Bench, work: Work, payload: Payload, logprobs: NDArray[Any], step: OracleStep | None = None
) -> NDArray[Any]:
    transform: Any = bench.transform
    array = bench.device.from_logits(logprobs.copy())
    step = step or bench.step_of(work, transform, len(payload))
    drawn = transform.sample(array, bench.device.upload(payload), step)
    expect(isinstance(drawn, type(array)), f"sample returned a {type(drawn).__name__}, not a {type(array).__name__}")
    return bench.host(drawn)


def _verified(
    bench: Bench, work: Work, payload: Payload, logprobs: NDArray[Any], drafts: NDArray[np.int32]
) -> NDArray[Any]:
    transform: Any = bench.transform
    array = bench.device.from_logits(logprobs.copy())
    step = bench.step_of(work, transform, len(payload))
    found = transform.verify(array, bench.device.upload(payload), bench.device.ops.asarray(drafts), step)
    expect(isinstance(found, type(array)), f"verify returned a {type(found).__name__}, not a {type(array).__name__}")
    return bench.host(found)


def _normalized(logprobs: NDArray[Any]) -> NDArray[Any]:
    total = np.log(np.exp(logprobs.astype(np.float64)).sum(axis=1, keepdims=True))
    normalized: NDArray[Any] = (logprobs - total).astype(np.float32)
    return normalized
