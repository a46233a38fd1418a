"""Parts of the contract that no host supports yet are refused by name, never ignored."""

from __future__ import annotations

from typing import Any

import pytest
from guideway.api import (
    FinishReason,
    LogitModifier,
    LogitTransform,
    Need,
    Request,
    Sampler,
    SamplingParams,
    Stage,
    UnsupportedCapability,
)
from guideway.devices.numpy.device import NumpyDevice

from tests.support.fake_host import FakeHost
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPT = encode(VOCABULARY, b"the prompt")


class Nothing(LogitTransform):
    def apply(self, logits: Any, payload: Any, step: Any) -> Any:
        return logits


class Verifies(Sampler):
    def sample(self, logprobs: Any, payload: Any, step: Any) -> Any:
        return step.ops.argmax(logprobs)

    def verify(self, *args: Any) -> Any:
        raise AssertionError("no host calls it")


class Plain(LogitModifier[bool]):
    name, stage, transform = "plain", Stage.PRE_WARP, Nothing
    always = False

    def start(self, request: Any, sequence: Any, compiled: Any) -> bool | None:
        return True if self.always or self.name in request.params.modifiers else None

    def prepare(self, batch: Any, states: Any) -> None:
        return None


class Owner(Plain):
    name, stage, transform = "owner", Stage.SAMPLE, Verifies


class OwnsAlways(Owner):
    name, always = "owns_always", True


class Decides(Plain):
    name, needs = "decides", frozenset({Need.SCHEDULER_DRAW})


REFUSED = [
    (Owner, "modifier 'owner' has Verifies.verify, but does not declare Need.DRAFTS"),
    (Decides, "modifier 'decides' needs scheduler_draw, which this host does not offer"),
]


def request(**modifiers: Any) -> Request:
    params = SamplingParams(max_tokens=3, temperature=1.0, modifiers=modifiers)
    return Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=params)


@pytest.mark.parametrize(("cls", "said"), REFUSED)
def test_a_request_that_would_use_it_is_refused_at_admission(cls: type[Plain], said: str) -> None:
    subject = FakeHost(VOCABULARY, NumpyDevice("cpu"), modifiers=[cls, Plain])
    with pytest.raises(UnsupportedCapability, match=said) as caught:
        subject.runtime.admit(request(**{cls.name: {}}))
    assert caught.value.field == "modifiers"
    (other,) = subject.generate([PROMPT], [request(plain={}).params])
    assert other.error is None


def test_one_that_acts_unasked_is_refused_where_it_starts() -> None:
    subject = FakeHost(VOCABULARY, NumpyDevice("cpu"), modifiers=[OwnsAlways])
    (refused,) = subject.generate([PROMPT], [request().params])
    assert refused.finish_reason is FinishReason.REFUSED
    assert "does not declare Need.DRAFTS" in str(refused.error)


def test_no_host_offers_what_is_provisional() -> None:
    from guideway_engine.assembly import OFFERS

    assert Need.SCHEDULER_DRAW not in OFFERS
