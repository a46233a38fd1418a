"""Isolation: a plugin's failure ends one request, and its neighbors in the batch keep their tokens, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import (
    CONTINUE,
    Array,
    CompiledGrammar,
    DeadEnd,
    Feedback,
    FillJob,
    FinishReason,
    GenerationResult,
    LogitModifier,
    LogitTransform,
    Matcher,
    Outcome,
    Payload,
    PluginError,
    Regex,
    Request,
    Sampler,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    fail,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.fake_host import FakeHost
from tests.support.stages import one_in
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPTS = [encode(VOCABULARY, text) for text in (b"first", b"second", b"third")]
PATTERN = Regex("[a-z]{3,12}(x|y)")


class Failing(Matcher):
    """A matcher that works until its third token, and then fails as the test asks."""

    act: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __init__(self, inner: Matcher) -> None:
        self.inner, self.seen = inner, 0

    def accept(self, token_ids: Sequence[int]) -> int:
        if self.seen >= 2 and "accept" in self.act:
            return int(self.act["accept"](token_ids))
        count = self.inner.accept(token_ids)
        self.seen += count
        return count

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        if self.seen >= 2 and "fill" in self.act:
            self.act["fill"](bitmask, row)
        else:
            self.inner.fill_bitmask(bitmask, row)

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)
        self.seen -= num_tokens

    def fork(self) -> Matcher:
        copy = Failing(self.inner.fork())
        copy.seen = self.seen
        return copy

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()


class FailingGrammar(CompiledGrammar):
    def __init__(self, inner: CompiledGrammar) -> None:
        self.inner = inner

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Failing(self.inner.matcher(stop_token_ids))

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


class FailingStrategy(ReferenceStrategy):
    name = "failing"

    def compile(self, constraint: Any) -> CompiledGrammar:
        return FailingGrammar(super().compile(constraint))


class BrokenBatchFill(FailingStrategy):
    """Its batch fill raises, but its matchers work."""

    def fill(self, jobs: Sequence[FillJob], bitmask: Any) -> Any:
        raise RuntimeError("no batches today")


def raiser(error: Exception) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise error

    return act


def empty(bitmask: Any, row: int) -> None:
    bitmask[row] = 0


def run(
    act: dict[str, Callable[..., Any]], *, drafts: int = 0, strategy: type = FailingStrategy
) -> list[GenerationResult]:
    Failing.act = act
    try:
        strategies = {"failing": strategy(VOCABULARY, {}), "reference": ReferenceStrategy(VOCABULARY, {})}
        host = FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=strategies, num_drafts=drafts)
        params = [
            SamplingParams(max_tokens=20, constraint=Regex(PATTERN.pattern, strategy=name))
            for name in ("reference", "failing", "reference")
        ]
        return host.generate(PROMPTS, params)
    finally:
        Failing.act = {}


@pytest.mark.parametrize("drafts", one_in(2, [0, 3]))
@pytest.mark.parametrize(
    ("act", "phase"),
    [
        ({"fill": raiser(RuntimeError("boom"))}, "fill"),
        ({"fill": raiser(DeadEnd("nothing is legal"))}, "fill"),
        ({"fill": empty}, "fill"),
        ({"accept": raiser(RuntimeError("boom"))}, "accept"),
        ({"accept": lambda _: 0}, "accept"),
    ],
    ids=["fill raises", "dead end", "empty row", "accept raises", "accept refuses"],
)
def test_a_failing_matcher_ends_its_request_only(act: dict[str, Any], phase: str, drafts: int) -> None:
    healthy, broken = run({}, drafts=drafts), run(act, drafts=drafts)
    assert [r.finish_reason for r in healthy] == [FinishReason.STOP] * 3
    assert broken[1].finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(broken[1].error, PluginError)
    assert broken[1].error.plugin == "grammar.failing"
    phases = {phase, "fill"} if drafts else {phase}  # a draft is accepted, and rolled back, inside the fill
    assert any(str(broken[1].error).startswith(f"grammar.failing failed in {name}: ") for name in phases)
    assert broken[1].token_ids == healthy[1].token_ids[: len(broken[1].token_ids)]
    assert [broken[0], broken[2]] == [healthy[0], healthy[2]]


def test_a_batch_fill_that_breaks_as_a_whole_costs_nobody() -> None:
    assert run({}, strategy=BrokenBatchFill) == run({})


class Boost(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        if payload.arrays["bad"].any() and not payload.shared["quiet"].any():
            logits[payload.rows] = 7.0  # half done
            raise RuntimeError("boom")
        return step.ops.add_at(logits, payload.rows, 0 * payload.rows + 5, 1.0 + 0.0 * payload.rows)


class BoostSampler(Sampler):
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        if payload.arrays["bad"].any() and not payload.shared["quiet"].any():
            raise RuntimeError("boom")
        return step.ops.argmax(step.ops.gather(logprobs, payload.rows))


class Modifier(LogitModifier[dict[str, Any]]):
    """Adds 1 to a token's logit; a request may ask it to fail in one of its methods at its third token."""

    name, stage, transform = "modifier", Stage.PRE_WARP, Boost
    released: ClassVar[list[Any]] = []

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> dict[str, Any] | None:
        wanted = request.params.modifiers.get("modifier")
        if wanted is None:
            return None
        if wanted.get("break") == "start":
            raise RuntimeError("boom")
        return {"break": wanted.get("break"), "seen": 0}

    def breaks(self, state: dict[str, Any] | None, where: str) -> bool:
        return state is not None and state["seen"] >= 2 and state["break"] == where

    def prepare(self, batch: StepBatch, states: Sequence[dict[str, Any] | None]) -> Payload | None:
        if any(self.breaks(state, "prepare") for state in states):
            raise RuntimeError("boom")
        rows, sequences = batch.select(states)
        if any(self.breaks(state, "payload") for state in states):
            rows = np.array([0, 1, 2], dtype=np.int32)
        bad = np.array([self.breaks(state, "transform") for state in states])[sequences]
        return Payload(rows, {"bad": bad}, {"quiet": np.zeros(1, dtype=bool)})

    def accept(self, state: dict[str, Any], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if self.breaks(state, "accept"):
            raise RuntimeError("boom")
        if self.breaks(state, "outcome"):
            return None  # type: ignore[return-value]
        if self.breaks(state, "fail"):
            return fail("boom")
        state["seen"] += len(token_ids)
        return CONTINUE

    def release(self, state: dict[str, Any] | None) -> None:
        self.released.append(state)
        if state is not None and state["break"] == "release":
            raise RuntimeError("boom")


class Owner(Modifier):
    name, stage, transform = "modifier", Stage.SAMPLE, BoostSampler


def run_modifier(where: str | None, modifier: type[Modifier]) -> list[GenerationResult]:
    Modifier.released.clear()
    host = FakeHost(VOCABULARY, NumpyDevice("cpu"), modifiers=[modifier], num_drafts=2)
    params = [
        SamplingParams(max_tokens=8, temperature=1.0, seed=i, modifiers={"modifier": options})
        for i, options in enumerate(({}, {"break": where}, {}))
    ]
    return host.generate([*PROMPTS, PROMPTS[0]], [*params, SamplingParams(max_tokens=8)])


@pytest.mark.parametrize("modifier", [Modifier, Owner])
@pytest.mark.parametrize("where", ["prepare", "transform", "accept", "outcome", "fail"])
def test_a_failing_modifier_ends_its_request_only(modifier: type[Modifier], where: str) -> None:
    healthy, broken = run_modifier(None, modifier), run_modifier(where, modifier)
    assert broken[1].finish_reason is FinishReason.INTERNAL_ERROR
    phase = {"outcome": "accept", "fail": "accept", "transform": "sample" if modifier is Owner else "apply"}
    assert isinstance(broken[1].error, PluginError)
    assert broken[1].error.plugin == "modifier.modifier"
    assert phase.get(where, where) in str(broken[1].error)
    assert "boom" in str(broken[1].error) or where == "outcome"
    assert [*broken[:1], *broken[2:]] == [*healthy[:1], *healthy[2:]]
    assert len(Modifier.released) == 4


def test_a_payload_may_not_speak_of_a_strangers_rows() -> None:
    healthy, broken = run_modifier(None, Modifier), run_modifier("payload", Modifier)
    assert broken[1].finish_reason is FinishReason.INTERNAL_ERROR
    assert "has no state" in str(broken[1].error)
    assert [*broken[:1], *broken[2:]] == [*healthy[:1], *healthy[2:]]


def test_a_failing_start_is_released_and_costs_nobody() -> None:
    healthy, broken = run_modifier(None, Modifier), run_modifier("start", Modifier)
    assert broken[1].finish_reason is FinishReason.INTERNAL_ERROR
    assert "failed in start" in str(broken[1].error)
    assert [*broken[:1], *broken[2:]] == [*healthy[:1], *healthy[2:]]
    assert len(Modifier.released) == 4


def test_a_failing_release_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    healthy, broken = run_modifier(None, Modifier), run_modifier("release", Modifier)
    assert broken == healthy
    assert "modifier.modifier failed in release" in caplog.text
