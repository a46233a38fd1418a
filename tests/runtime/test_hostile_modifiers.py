"""Modifiers that break their contract in the scheduler process, and the accounting of slots and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import (
    CONTINUE,
    Choice,
    Companion,
    DeadEnd,
    Feedback,
    FinishReason,
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    Outcome,
    Payload,
    PluginError,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    StepBatch,
    parse_options,
)
from guideway.devices.numpy.device import NumpyDevice

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY, Ban, BanTransform, Panic, assert_alone_ends, host, raiser
from tests.support.probes import GreenList, Guidance
from tests.support.vocabularies import encode


def test_strangers_at_the_stage_of_the_mask_act_after_it() -> None:
    subject = host(Ban)
    assert [cls.name for cls, _ in subject.runtime.modifier_classes()] == ["grammar", "ban"]
    constraint = Choice(["aaa", "bbb", "ccc"])
    (free,) = subject.generate([PROMPT], [SamplingParams(max_tokens=9, constraint=constraint)])
    ban = {"ban": {"id": free.token_ids[0]}}
    bad = SamplingParams(max_tokens=9, constraint=constraint, modifiers=ban)
    banned = assert_alone_ends(subject, bad, SamplingParams(max_tokens=9, constraint=constraint))
    assert banned.text in ("aaa", "bbb", "ccc")
    assert banned.text != free.text
    only = SamplingParams(max_tokens=9, constraint=Choice([free.text]), modifiers=ban)
    overruled = assert_alone_ends(subject, only, SamplingParams(max_tokens=9))
    assert (overruled.text, overruled.unenforced) == (free.text, ("modifier.ban",))


@pytest.mark.parametrize("names", [("same", "same"), ("grammar", "other")])
def test_names_of_modifiers_are_unique_and_the_masks_is_reserved(names: tuple[str, str]) -> None:
    first, second = (type(name.title(), (Ban,), {"name": name}) for name in names)
    with pytest.raises(InvalidConfiguration, match=r"logit modifiers? (is|are) named"):
        host(first, second)


class Strange(LogitModifier[dict[str, Any]]):
    """Returns or raises in one of its methods as a request asks."""

    name, stage, transform = "strange", Stage.PRE_WARP, BanTransform
    released: ClassVar[list[Any]] = []
    answers: ClassVar[dict[str, Callable[[], Any]]] = {}

    def answer(self, method: str, default: Any) -> Any:
        return self.answers[method]() if method in self.answers else default

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> dict[str, Any] | None:
        return self.answer("start", {}) if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[dict[str, Any] | None]) -> Payload | None:
        rows, _ = batch.select(states)
        infinity = {"infinity": np.full(1, -1.0, dtype=np.float32)}
        payload = Payload(rows, {"ids": np.zeros(len(rows), dtype=np.int32)}, infinity)
        return self.answer("prepare", payload)

    def accept(self, state: dict[str, Any], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        return self.answer("accept", CONTINUE)

    def validate(self, state: dict[str, Any], token_ids: Sequence[int]) -> int:
        return self.answer("validate", len(token_ids))

    def fork(self, state: dict[str, Any]) -> dict[str, Any]:
        return self.answer("fork", dict(state))

    def release(self, state: dict[str, Any] | None) -> None:
        self.released.append(state)


@pytest.fixture
def strange() -> Iterator[type[Strange]]:
    Strange.answers, Strange.released = {}, []
    yield Strange
    Strange.answers = {}


class Subarray(np.ndarray[Any, Any]):
    """A class that workers may not know."""


class Subpayload(Payload):
    """A class that workers may not know."""


OBJECTS = np.array([lambda: 0])
SPOILED = np.dtype(np.int32, metadata={"by": lambda: 0})

STRANGE = SamplingParams(max_tokens=6, modifiers={"strange": {}})
ROWS = np.array([0, 1], dtype=np.int32)


@pytest.mark.parametrize(
    ("method", "act", "said"),
    [
        ("start", raiser(Panic("rust")), "failed in start: Panic: rust"),
        ("start", raiser(DeadEnd("nothing")), "modifier.strange failed in start: DeadEnd: nothing"),
        ("start", raiser(SystemExit(3)), "failed in start: SystemExit"),
        ("start", raiser(GeneratorExit()), "failed in start: GeneratorExit"),
        ("prepare", raiser(Panic("rust")), "failed in prepare: Panic: rust"),
        ("prepare", raiser(GeneratorExit()), "failed in prepare: GeneratorExit"),
        ("prepare", lambda: "text", "a Payload or None, not str"),
        ("prepare", lambda: Payload([0]), "int32"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": [1]}), "must be a NumPy array"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": np.zeros(3)}), "leading axis must be 1"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": np.zeros(())}), "leading axis must be 1"),
        ("prepare", lambda: Payload(ROWS[1:], {}, {"ids": [1]}), "must be a NumPy array"),
        ("prepare", lambda: Payload(ROWS[1:], {}, {"ids": OBJECTS}), "'ids' cannot be pickled"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": OBJECTS}), "'ids' cannot be pickled"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": ROWS[1:].astype([("a", SPOILED)])}), "'ids' cannot be pickled"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": ROWS[1:].view(Subarray)}), "'ids' cannot be pickled"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": ROWS[1:].astype(SPOILED)}), "'ids' cannot be pickled"),
        ("prepare", lambda: Payload(ROWS[1:].view(Subarray)), "'rows' cannot be pickled"),
        ("prepare", lambda: Payload(ROWS[1:].astype(SPOILED)), "'rows' cannot be pickled"),
        ("prepare", lambda: Subpayload(ROWS[1:]), "a Payload or None, not Subpayload"),
        ("prepare", lambda: Payload(ROWS[1:], {0: ROWS[1:]}), "named by strings, not by int"),  # type: ignore[dict-item]
        ("prepare", lambda: Payload(ROWS[1:], [("ids", ROWS[1:])]), "must be a mapping, not list"),  # type: ignore[arg-type]
        ("prepare", lambda: Payload(np.array([1, 1], dtype=np.int32)), "twice"),
        ("prepare", lambda: Payload(np.array([99], dtype=np.int32)), "outside"),
        ("accept", raiser(Panic("rust")), "failed in accept: Panic: rust"),
        ("accept", raiser(GeneratorExit()), "failed in accept: GeneratorExit"),
        ("accept", lambda: Outcome("stop"), "an outcome is"),  # type: ignore[arg-type]
        ("accept", lambda: "stop", "must return an Outcome"),
        ("accept", lambda: None, "must return an Outcome"),
    ],
)
def test_what_a_modifier_may_not_do_ends_its_request(
    strange: type[Strange], method: str, act: Callable[[], Any], said: str
) -> None:
    strange.answers = {method: act}
    result = assert_alone_ends(host(strange), STRANGE, SamplingParams(max_tokens=6))
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(result.error, PluginError)
    assert result.error.plugin == "modifier.strange"
    assert said in str(result.error)


def forcing_host(strange: type[Strange]) -> FakeHost:
    """Return a host whose modifier forces tokens. The object does so, not its class: a class that does is refused,
    since no real host supports forced tokens yet."""
    subject = host(strange)
    modifier: Any = subject.runtime._by_name["strange"]
    modifier.forced = lambda *_: modifier.answer("forced", ())
    return subject


@pytest.mark.parametrize("method", ["validate", "forced"])
@pytest.mark.parametrize("act", [lambda: "x", lambda: -1, lambda: None, raiser(Panic("rust"))])
def test_a_wrong_answer_about_drafts_ends_its_request(
    strange: type[Strange], method: str, act: Callable[[], Any]
) -> None:
    strange.answers = {method: act}
    subject = forcing_host(strange)
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=STRANGE))
    asked: Any = subject.runtime.validate(0, [1, 2]) if method == "validate" else subject.runtime.forced({0: 2})[0]
    assert not asked
    subject.step()
    assert f"modifier.strange failed in {method}" in str(subject.results[0].error)


def test_forced_tokens_are_cut_to_the_limit_and_to_what_others_allow(strange: type[Strange]) -> None:
    ids = encode(VOCABULARY, b"qqqqz")
    strange.answers = {"forced": lambda: np.array(ids)}
    subject = forcing_host(strange)
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=STRANGE))
    assert list(subject.runtime.forced({0: 2})[0]) == ids[:2]
    assert list(subject.runtime.forced({0: 99})[0]) == ids
    constrained = SamplingParams(constraint=Regex("qqq[a-z]"), modifiers={"strange": {}})
    subject.join(1, Request(request_id="s", prompt_token_ids=tuple(PROMPT), params=constrained))
    strange.answers = {"forced": lambda: encode(VOCABULARY, b"qqqqz")}
    assert list(subject.runtime.forced({1: 99})[1]) in (ids[:4], ids[:3])


def test_forced_tokens_of_the_grammar_come_from_the_grammar() -> None:
    from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy

    class Bytes:
        identity = b"bytes"

        def encode(self, text: bytes) -> list[int]:
            return encode(VOCABULARY, text)

    from guideway.api import Vocabulary

    encoded = Vocabulary(
        tokens=VOCABULARY.tokens,
        stop_token_ids=VOCABULARY.stop_token_ids,
        special_tokens=VOCABULARY.special_tokens,
        logits_width=128,
        encoder=Bytes(),  # type: ignore[arg-type]
    )
    subject = FakeHost(encoded, NumpyDevice("cpu"), strategies={"llguidance": LLGuidanceStrategy(encoded, {})})
    wanted = SamplingParams(constraint=Regex("qqzzqq[xy]"))
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    forced = list(subject.runtime.forced({0: 9})[0])
    assert forced
    assert b"qqzzqq".startswith(encoded.decode(forced))
    assert subject.runtime.validate(0, forced) == len(forced)


@pytest.mark.parametrize(
    "companions",
    [[Companion((99_999,))], [Companion(())], [Companion(("x",))], [Companion("abc")], [Companion((1.5,))], ["no"]],  # type: ignore[arg-type]
)
def test_bad_companions_are_refused_at_admission(companions: list[Any]) -> None:
    class Bad(Guidance):
        def companions(self, request: Request) -> Sequence[Companion]:
            return companions if request.params.modifiers else ()

    bad = SamplingParams(max_tokens=4, modifiers={"guidance": {"scale": 1.0}})
    result = assert_alone_ends(host(Bad), bad, SamplingParams(max_tokens=4))
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == "modifiers.guidance"


def test_companions_that_are_no_list_are_the_plugins_fault() -> None:
    class Bad(Guidance):
        def companions(self, request: Request) -> Any:
            return None if request.params.modifiers else ()

    bad = SamplingParams(max_tokens=4, modifiers={"guidance": {"scale": 1.0}})
    result = assert_alone_ends(host(Bad), bad, SamplingParams(max_tokens=4))
    assert isinstance(result.error, PluginError)
    assert "must return a list" in str(result.error)


@dataclass(frozen=True)
class StrangeOptions:
    amount: int = 1


def test_a_wrong_option_of_a_request_refuses_it(strange: type[Strange]) -> None:
    class Careful(Strange):
        def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> dict[str, Any] | None:
            if self.name not in request.params.modifiers:
                return None
            parse_options(StrangeOptions, request.params.modifiers[self.name], where=self.name)
            return {}

    bad = SamplingParams(max_tokens=4, modifiers={"strange": {"amuont": 2}})
    result = assert_alone_ends(host(Careful), bad, SamplingParams(max_tokens=4))
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == "modifiers.strange"
    assert "did you mean 'amount'" in str(result.error)


def test_slots_are_checked_before_anything_begins(strange: type[Strange]) -> None:
    subject = host(strange)
    runtime = subject.runtime
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=STRANGE))
    admission = runtime.admit(Request(request_id="s", prompt_token_ids=tuple(PROMPT), params=STRANGE))
    for slot in (0, -1, 16, 10**6):
        with pytest.raises(ValueError, match="slot"):
            runtime.start(admission, slot)
        with pytest.raises(ValueError, match="slot"):
            runtime.fork(0, slot, index=1)
    assert strange.released == []
    runtime.start(admission, 1)
    runtime.fork(0, 2, index=1)
    for slot in (0, 1, 2):
        runtime.release(slot)
    assert len(strange.released) == 3
    for request_id in ("r", "s"):  # both ids are free again
        runtime.abandon(
            runtime.admit(Request(request_id=request_id, prompt_token_ids=tuple(PROMPT), params=SamplingParams()))
        )


def test_a_fork_that_fails_releases_what_it_made_and_nothing_else(strange: type[Strange]) -> None:
    strange.answers = {"fork": raiser(RuntimeError("no copies"))}
    subject = host(GreenList, strange)
    wanted = SamplingParams(max_tokens=9, modifiers={"strange": {}, "green_list": {"key": 1, "delta": 1.0}})
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    with pytest.raises(PluginError, match=r"modifier.strange failed in fork"):
        subject.runtime.fork(0, 1, index=1)
    assert strange.released == [None]
    subject.runtime.release(0)
    assert strange.released == [None, {}]


def test_a_rebuild_that_fails_ends_its_request(strange: type[Strange]) -> None:
    subject = host(strange)
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=STRANGE))
    subject.step()
    strange.answers = {"start": raiser(RuntimeError("not again"))}
    subject.runtime.rebuild(0)
    subject.step()
    assert "modifier.strange failed in rebuild" in str(subject.results[0].error)
    assert len(strange.released) == 2  # the failed start, and the sequence


def test_a_journal_goes_on_with_its_own_seed_and_only_for_its_own_request() -> None:
    first, second = host(), host()
    # without a seed in the request
    wanted = SamplingParams(max_tokens=12, temperature=1.0, constraint=Regex("[a-z]{20}"))
    request = Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted)
    first.join(0, request)
    for _ in range(4):
        first.step()
    journal = first.runtime.journal(0)
    admission = second.runtime.admit(request)
    second.runtime.start(admission, 3, journal=journal)
    assert second.runtime.journal(3).sequence.seed == journal.sequence.seed
    batch = StepBatch.build([3], [len(PROMPT) + 4])
    assert second.runtime.prepare(batch).seeds.tolist() == [journal.sequence.seed]
    other = second.runtime.admit(Request(request_id="other", prompt_token_ids=tuple(PROMPT), params=wanted))
    with pytest.raises(ValueError, match="of request 'r'"):
        second.runtime.start(other, 4, journal=journal)
