"""Transforms and samplers that break their contract in the worker: NaN, empty rows, arrays of wrong types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import (
    Array,
    Choice,
    FinishReason,
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Need,
    Payload,
    PluginError,
    PluginLoadError,
    Request,
    Sampler,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway.devices.torch.device import TorchDevice

from tests.support.devices import StaticNumpy
from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY, WORD, Ban, BanTransform, assert_alone_ends, host
from tests.support.probes import GreenList, Gumbel
from tests.support.vocabularies import encode


class FixedTransform(LogitTransform):
    """Overwrites every logit with the payload's value."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.where_rows(logits, payload.rows, True, payload.arrays["value"][:, None])


class Late(LogitModifier[float]):
    name, stage, transform, derived = "fixed", Stage.POST_WARP, FixedTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> float | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else float(wanted["value"])

    def prepare(self, batch: StepBatch, states: Sequence[float | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        values = np.array([state or 0.0 for state in states], dtype=np.float32)
        return Payload(rows, {"value": values[sequences]})


class Early(Late):
    stage = Stage.PRE_WARP


@pytest.mark.parametrize("modifier", [Early, Late])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_ends_the_request_it_appears_in(modifier: type[Late], temperature: float) -> None:
    bad = SamplingParams(max_tokens=6, temperature=temperature, seed=1, modifiers={"fixed": {"value": float("nan")}})
    result = assert_alone_ends(host(modifier), bad, SamplingParams(max_tokens=6, temperature=1.0, seed=2))
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(result.error, PluginError)
    assert (result.error.plugin, "NaN" in str(result.error)) == ("modifier.fixed", True)


def test_nan_of_the_model_is_called_the_models() -> None:
    class Broken(FakeHost):
        def logits(self, batch: StepBatch) -> Any:
            logits = super().logits(batch)
            logits[batch.slots.tolist().index(1) if 1 in batch.slots else 0] = np.nan
            return logits

    subject = Broken(VOCABULARY, NumpyDevice("cpu"))
    for result in subject.generate([PROMPT], [SamplingParams(max_tokens=3)]):
        assert isinstance(result.error, PluginError)
        assert result.error.plugin == "model"


@pytest.mark.parametrize("modifier", [Early, Late])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_emptied_at_any_stage_is_drawn_without_the_modifier(modifier: type[Late], temperature: float) -> None:
    subject = host(modifier)
    empty = {"fixed": {"value": -np.inf}}
    wanted = [
        SamplingParams(max_tokens=14, temperature=temperature, seed=1, constraint=WORD, modifiers=m)
        for m in ({}, empty)
    ]
    (plain,), (emptied,) = (subject.generate([PROMPT], [w]) for w in wanted)
    assert emptied.token_ids == plain.token_ids
    assert (plain.unenforced, emptied.unenforced) == ((), ("modifier.fixed",))


def test_what_was_overruled_is_remembered_elsewhere() -> None:
    subject = host(Late)
    wanted = SamplingParams(max_tokens=9, constraint=WORD, modifiers={"fixed": {"value": -np.inf}})
    request = Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted)
    subject.join(0, request)
    subject.step()
    journal = subject.runtime.journal(0)
    subject.runtime.rebuild(0)
    assert subject.runtime.unenforced(0) == ("modifier.fixed",)
    subject.runtime.release(0)
    subject.runtime.start(subject.runtime.admit(request), 1, journal=journal)
    assert subject.runtime.unenforced(1) == ("modifier.fixed",)


def test_who_revives_a_forbidden_token_is_named() -> None:
    """Every log-probability is 0, so the mask's -inf is gone."""
    bad = SamplingParams(max_tokens=6, constraint=Choice(["zzz"]), modifiers={"fixed": {"value": 0.0}})
    result = assert_alone_ends(host(Late), bad, SamplingParams(max_tokens=6, constraint=WORD))
    assert isinstance(result.error, PluginError)
    assert result.error.plugin == "modifier.fixed"
    assert "although the mask forbids it" in str(result.error)


class WildSampler(Sampler):
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        return 0 * payload.rows + payload.arrays["token"]


class Wild(Late):
    """Draws the requested token, legal or not."""

    stage, transform = Stage.SAMPLE, WildSampler

    def prepare(self, batch: StepBatch, states: Sequence[float | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        assert payload is not None
        return Payload(payload.rows, {"token": payload.arrays["value"].astype(np.int32)})


@pytest.mark.parametrize(("token", "said"), [(9999, "outside"), (-1, "outside"), (120, "outside"), (0, "forbids")])
def test_a_sampler_that_draws_what_it_may_not_is_named(token: int, said: str) -> None:
    bad = SamplingParams(
        max_tokens=6, temperature=1.0, constraint=Choice(["zzz"]), modifiers={"fixed": {"value": token}}
    )
    result = assert_alone_ends(host(Wild), bad, SamplingParams(max_tokens=6, constraint=WORD))
    assert isinstance(result.error, PluginError)
    assert result.error.plugin == "modifier.fixed"
    assert said in str(result.error)


class Malformed(LogitTransform):
    """Returns the logits in a form that the request names."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return FORMS[int(payload.shared["form"][0])](logits)


FORMS: list[Callable[[Any], Any]] = [
    lambda x: np.asarray(x.tolist(), dtype=np.float64),
    lambda x: (x * 0).astype(np.int32) if isinstance(x, np.ndarray) else x.int(),
    lambda x: np.broadcast_to(np.float32(0), x.shape),
    lambda x: x.tolist(),
    lambda x: x[:, :3],
]


class MalformedModifier(Late):
    stage, transform = Stage.PRE_WARP, Malformed

    def prepare(self, batch: StepBatch, states: Sequence[float | None]) -> Payload | None:
        form = next((int(state) for state in states if state is not None), 0)
        return Payload(batch.select(states)[0], {}, {"form": np.array([form])})


class MalformedSampler(Sampler):
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        values = step.ops.gather(logprobs, payload.rows)[:, 0]
        forms = [values.tolist(), values * float("nan"), values, None]
        return forms[int(payload.shared["form"][0])]


class MalformedOwner(MalformedModifier):
    stage, transform = Stage.SAMPLE, MalformedSampler


@pytest.mark.parametrize("device", [NumpyDevice, TorchDevice, StaticNumpy])
@pytest.mark.parametrize(
    ("modifier", "form"),
    [(MalformedModifier, i) for i in range(len(FORMS))] + [(MalformedOwner, i) for i in range(4)],
)
def test_a_malformed_array_ends_its_request_only(modifier: type[Late], form: int, device: type) -> None:
    subject = FakeHost(VOCABULARY, device("cpu"), modifiers=[modifier])
    bad = SamplingParams(max_tokens=4, temperature=1.0, seed=1, modifiers={"fixed": {"value": form}})
    result = assert_alone_ends(subject, bad, SamplingParams(max_tokens=4))
    assert isinstance(result.error, PluginError)
    assert result.error.plugin == "modifier.fixed"


@pytest.mark.parametrize("modifier", [Early, Late])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_columns_past_the_vocabulary_stay_forbidden(modifier: type[Late], temperature: float) -> None:
    """All logits are equal, so otherwise a sixth of the draws would have no token."""
    wanted = [
        SamplingParams(max_tokens=30, temperature=temperature, seed=i, modifiers={"fixed": {"value": 0.5}})
        for i in range(8)
    ]
    for result in host(modifier).generate([PROMPT] * 8, wanted):
        assert result.error is None
        assert max(result.token_ids) < len(VOCABULARY)


class MoodyTransform(LogitTransform):
    """Spoils rows that follow certain tokens."""

    history_length = 1

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        spoiled = (step.history(payload.rows)[:, :1] % 7) == 1
        return step.ops.where_rows(logits, payload.rows, spoiled, payload.shared["value"][0])


class Moody(Late):
    transform, needs = MoodyTransform, frozenset({Need.HISTORY})

    def prepare(self, batch: StepBatch, states: Sequence[float | None]) -> Payload | None:
        value = next((state for state in states if state is not None), 0.0)
        return Payload(batch.select(states)[0], {}, {"value": np.array([value], dtype=np.float32)})


@pytest.mark.parametrize("value", [float("nan"), -np.inf])
def test_what_happens_on_refused_drafts_never_happened(value: float) -> None:
    def run(num_drafts: int) -> list[tuple[Any, ...]]:
        wanted = [SamplingParams(max_tokens=n, modifiers={"fixed": {"value": value}}) for n in (1, 2, 3, 5, 8, 12)]
        prompts = [PROMPT + encode(VOCABULARY, c) for c in (b"0", b"1", b"2", b"4", b"5", b"7")]
        results = host(Moody, num_drafts=num_drafts).generate(prompts, wanted)
        return [(r.finish_reason, r.unenforced, r.token_ids if r.error is None else ()) for r in results]

    plain = run(0)
    assert run(3) == plain
    assert len({(reason, names) for reason, names, _ in plain}) > 1  # some outputs meet a spoiled row, some do not


def test_an_owner_of_the_draw_and_greedy_decoding_exclude_each_other() -> None:
    bad = SamplingParams(max_tokens=4, modifiers={"gumbel": {}})
    result = assert_alone_ends(host(Gumbel), bad, SamplingParams(max_tokens=4))
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == "temperature"


def test_a_pipeline_refuses_what_could_not_work() -> None:
    class Forgetful(GreenList):
        transform = type("T", (BanTransform,), {})

    with pytest.raises(InvalidConfiguration, match="history_length"):
        host(Forgetful)

    class Unbuildable(BanTransform):
        def __init__(self, *_: Any) -> None:
            raise KeyError("x")

    with pytest.raises(PluginLoadError, match=r"modifier.ban failed while its transform was built: KeyError"):
        host(type("B", (Ban,), {"transform": Unbuildable}))
    with pytest.raises(InvalidConfiguration, match="Sampler"):
        host(type("B", (Ban,), {"stage": Stage.SAMPLE}))
    with pytest.raises(InvalidConfiguration, match="limit is 4096"):
        emits = {"much": ((2000,), "float32")}
        host(type("B", (Ban,), {"transform": type("T", (BanTransform,), {"emits": emits})}))
    with pytest.raises(InvalidConfiguration, match="'what' as Python objects"):
        emits = {"what": ((), "object")}
        host(type("B", (Ban,), {"transform": type("T", (BanTransform,), {"emits": emits})}))


def test_a_need_of_the_step_must_be_declared() -> None:
    class Reading(LogitTransform):
        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            step.uniform("x", payload.rows)
            return logits

    class Curious(Late):
        transform = Reading
        needs: ClassVar[frozenset[Need]] = frozenset()

    bad = SamplingParams(max_tokens=3, modifiers={"fixed": {"value": 0.0}})
    result = assert_alone_ends(host(Curious), bad, SamplingParams(max_tokens=3))
    assert "does not declare Need.UNIFORM" in str(result.error)
