"""What plugins and callers should not do: every mistake ends in one typed error, for the one request it belongs to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import (
    CONTINUE,
    Array,
    Choice,
    Companion,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    Feedback,
    FillJob,
    FinishReason,
    GenerationResult,
    GuidewayError,
    InvalidConfiguration,
    InvalidRequest,
    JsonSchema,
    LogitModifier,
    LogitTransform,
    Matcher,
    Need,
    Outcome,
    Payload,
    PluginError,
    PluginLoadError,
    Regex,
    Request,
    Sampler,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)
from guideway.builtin.numpy_device import NumpyDevice
from guideway.builtin.reference.strategy import Strategy as ReferenceStrategy
from guideway.builtin.torch_device import TorchDevice

from tests.support.fake_host import FakeHost
from tests.support.probes import GreenList, Guidance, Gumbel
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPT = encode(VOCABULARY, b"the prompt")
WORD = Regex("[a-z]{3,12}(x|y)")


class Panic(BaseException):
    """What a Rust panic looks like from Python: no `Exception`."""


def host(*modifiers: Any, strategies: Sequence[type] = (ReferenceStrategy,), **options: Any) -> FakeHost:
    named = {cls.name: cls(VOCABULARY, {}) for cls in strategies}
    return FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=named, modifiers=modifiers, **options)


def assert_alone_ends(
    subject: FakeHost, bad: SamplingParams, good: SamplingParams, prompts: int = 3
) -> GenerationResult:
    """Run `bad` between two `good` ones: those end as they would by themselves. The result of `bad`."""
    (alone,) = subject.generate([PROMPT], [good])
    results = subject.generate([PROMPT] * 3, [good, bad, good])
    assert results[0].token_ids == results[2].token_ids == alone.token_ids
    assert results[0].error is results[2].error is None
    (after,) = subject.generate([PROMPT], [good])
    assert after.token_ids == alone.token_ids
    return results[1]


# Grammars


class FaultyMatcher(Matcher):
    def __init__(self, inner: Matcher, error: BaseException) -> None:
        self.inner, self.error = inner, error

    def accept(self, token_ids: Sequence[int]) -> int:
        return self.inner.accept(token_ids)

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        raise self.error

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()


class FaultyGrammar(CompiledGrammar):
    def __init__(self, inner: CompiledGrammar, error: BaseException) -> None:
        self.inner, self.error = inner, error

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return FaultyMatcher(self.inner.matcher(stop_token_ids), self.error)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


class Faulty(ReferenceStrategy):
    name, capabilities, max_rollback = "faulty", frozenset(), 0
    error: ClassVar[BaseException] = RuntimeError("boom")

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return FaultyGrammar(super().compile(constraint), self.error)


class Panicking(Faulty):
    name, error = "panicking", Panic("index out of bounds")


class PanickingCompile(ReferenceStrategy):
    name = "panicking_compile"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        raise Panic("unwrap on None")


class PanickingSupports(ReferenceStrategy):
    name = "panicking_supports"

    def supports(self, constraint: Constraint) -> Any:
        raise Panic("unreachable")


@pytest.mark.parametrize("strategy", [Faulty, Panicking, PanickingCompile, PanickingSupports])
def test_a_grammar_fault_leaves_unconstrained_neighbors_alone(strategy: type[ReferenceStrategy]) -> None:
    subject = host(strategies=[ReferenceStrategy, strategy])
    bad = SamplingParams(max_tokens=6, constraint=Regex("[a-z]{3}", strategy=strategy.name))
    result = assert_alone_ends(subject, bad, SamplingParams(max_tokens=6))
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(result.error, PluginError)
    assert result.error.plugin == f"grammar.{strategy.name}"


class HalfFill(ReferenceStrategy):
    """A batch fill that advances one matcher, fills one row and breaks."""

    name = "half_fill"

    def fill(self, jobs: Sequence[FillJob], bitmask: Any) -> Any:
        jobs[0].matcher.fill_bitmask(bitmask, jobs[0].first_row)
        for token_id in range(len(VOCABULARY)):
            if jobs[0].matcher.accept([token_id]):
                break
        raise RuntimeError("half way")


def test_a_batch_fill_that_breaks_half_way_changes_no_token(caplog: pytest.LogCaptureFixture) -> None:
    def run(strategy: type[ReferenceStrategy]) -> list[tuple[int, ...]]:
        wanted = [SamplingParams(max_tokens=20, constraint=WORD)] * 3
        prompts = [PROMPT + encode(VOCABULARY, c) for c in (b"1", b"2", b"3")]
        return [r.token_ids for r in host(strategies=[strategy], num_drafts=2).generate(prompts, wanted)]

    with caplog.at_level(logging.WARNING):
        assert run(HalfFill) == run(ReferenceStrategy)
    assert "grammar.half_fill failed in fill" in caplog.text


class OnlyOnce(FaultyGrammar):
    """Makes one matcher and no more."""

    made = 0

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        self.made += 1
        if self.made > 1:
            raise MemoryError("no more matchers")
        return self.inner.matcher(stop_token_ids)


class HalfFillOnce(HalfFill):
    name = "half_fill_once"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return OnlyOnce(super().compile(constraint), RuntimeError())


def test_a_matcher_that_cannot_be_made_anew_ends_its_request() -> None:
    subject = host(strategies=[HalfFillOnce])
    (result,) = subject.generate([PROMPT], [SamplingParams(max_tokens=9, constraint=Regex("abcd"))])
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert "MemoryError: no more matchers" in str(result.error)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("can't start new thread")])
def test_a_thread_that_does_not_start_blocks_no_later_compilation(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise error

    subject = host()
    request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(constraint=WORD))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises((KeyboardInterrupt, GuidewayError)) as caught:
            subject.runtime.admit(request)
    assert not isinstance(caught.value, InvalidRequest)
    assert subject.runtime.admit(request).wait(timeout=60)


def test_misspelt_keywords_inside_structural_tags_are_named() -> None:
    from guideway.api import StructuralTag
    from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

    tag = {
        "structures": [{"begin": "<a>", "schema": {"type": "string", "maxLenght": 3}, "end": "</a>"}],
        "triggers": ["<a>"],
    }
    subject = host(strategies=[XGrammarStrategy])
    wanted = SamplingParams(max_tokens=4, constraint=StructuralTag(tag))
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    assert "maxLenght" in subject.runtime.unenforced(0)


def test_a_host_may_step_on_after_the_end_of_the_grammar() -> None:
    """As one with asynchronous scheduling does: the mask is open then, and nothing fails."""
    subject = host()
    wanted = SamplingParams(max_tokens=20, constraint=Choice(["ab"]))
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    actions = []
    for _ in range(5):
        batch = StepBatch.build([0], [len(subject.tokens[0])])
        step = subject.runtime.prepare(batch)
        output = subject.pipeline.run(subject.logits(batch), step)
        (outcome,) = subject.runtime.accept(batch, [output.token_ids.tolist()], output)
        subject.tokens[0] += output.token_ids.tolist()
        actions.append(outcome.action)
    assert actions[-1] == "finish"
    assert "fail" not in actions


class Cliff(Matcher):
    """b is legal after a and leads nowhere."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def accept(self, token_ids: Sequence[int]) -> int:
        for i, token_id in enumerate(token_ids):
            legal = (b"a", b"b")[len(self.seen)] if len(self.seen) < 2 else None
            if legal is None or VOCABULARY.tokens[token_id] != legal:
                return i
            self.seen.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        del self.seen[len(self.seen) - num_tokens :]

    def fork(self) -> Matcher:
        copy = Cliff()
        copy.seen = list(self.seen)
        return copy

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        from guideway.api.bitmask import allow_only

        if len(self.seen) == 2:
            raise DeadEnd("nothing after b")
        allow_only(bitmask, row, [VOCABULARY.tokens.index((b"a", b"b")[len(self.seen)])])

    def is_terminated(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return False


class CliffGrammar(CompiledGrammar):
    nbytes = 1

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Cliff()


class CliffStrategy(ReferenceStrategy):
    name = "cliff"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return CliffGrammar()


@pytest.mark.parametrize("drafts", [[], ["b"], ["b", "c"]])
def test_a_dead_end_is_called_one_with_and_without_drafts(drafts: list[str]) -> None:
    class Host(FakeHost):
        def drafts(self, tokens: list[int]) -> list[int]:
            return (
                [VOCABULARY.tokens.index(c.encode()) for c in drafts] if VOCABULARY.tokens[tokens[-1]] == b"a" else []
            )

    subject = Host(VOCABULARY, NumpyDevice("cpu"), strategies={"cliff": CliffStrategy(VOCABULARY, {})})
    (result,) = subject.generate([PROMPT[:2]], [SamplingParams(max_tokens=9, constraint=Regex("ab"))])
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert "DeadEnd" in str(result.error)


def test_equal_constraints_that_wait_leave_threads_to_others() -> None:
    release = threading.Event()

    class Slow(ReferenceStrategy):
        def compile(self, constraint: Constraint) -> CompiledGrammar:
            if constraint.source() == "slow":
                assert release.wait(timeout=60)
            return super().compile(constraint)

    subject = host(strategies=[Slow], compile_threads=2)
    waiting = [
        subject.runtime.admit(
            Request(request_id=f"slow{i}", prompt_token_ids=(1,), params=SamplingParams(constraint=Regex("slow")))
        )
        for i in range(4)
    ]
    other = subject.runtime.admit(
        Request(request_id="quick", prompt_token_ids=(1,), params=SamplingParams(constraint=Regex("quick")))
    )
    assert other.wait(timeout=60)
    assert not any(admission.ready() for admission in waiting)
    release.set()
    assert all(admission.wait(timeout=60) for admission in waiting)


def test_a_closed_runtime_refuses_constraints() -> None:
    subject = host()
    subject.runtime.close()
    subject.runtime.close()
    (result,) = subject.generate([PROMPT], [SamplingParams(max_tokens=3, constraint=WORD)])
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert "closed" in str(result.error)


# Modifiers


class BanTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ids = payload.arrays["ids"]
        return step.ops.add_at(logits, payload.rows, ids, payload.shared["infinity"][:1] + 0.0 * payload.rows)


class Ban(LogitModifier[int]):
    """Forbids one token id, at the grammar's own stage."""

    name, stage, transform, derived = "ban", Stage.MASK, BanTransform, True

    def start(self, request: Request, sequence: SequenceInfo) -> int | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else int(wanted["id"])

    def prepare(self, batch: StepBatch, states: Sequence[int | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        ids = np.array([state or 0 for state in states], dtype=np.int32)
        return Payload(rows, {"ids": ids[sequences]}, {"infinity": np.full(1, -np.inf, dtype=np.float32)})


class ZBan(Ban):
    name = "zban"


@pytest.mark.parametrize("modifier", [Ban, ZBan])
def test_strangers_at_the_stage_of_the_mask_act_beside_it(modifier: type[Ban]) -> None:
    subject = host(modifier)
    constraint = Choice(["aaa", "bbb", "ccc"])
    (free,) = subject.generate([PROMPT], [SamplingParams(max_tokens=9, constraint=constraint)])
    ban = {modifier.name: {"id": free.token_ids[0]}}
    bad = SamplingParams(max_tokens=9, constraint=constraint, modifiers=ban)
    banned = assert_alone_ends(subject, bad, SamplingParams(max_tokens=9, constraint=constraint))
    assert banned.text in ("aaa", "bbb", "ccc")
    assert banned.text != free.text
    only = SamplingParams(max_tokens=9, constraint=Choice([free.text]), modifiers=ban)
    overruled = assert_alone_ends(subject, only, SamplingParams(max_tokens=9))
    assert (overruled.text, overruled.unenforced) == (free.text, (f"modifier.{modifier.name}",))


@pytest.mark.parametrize("names", [("same", "same"), ("grammar", "other")])
def test_names_of_modifiers_are_unique_and_the_masks_is_reserved(names: tuple[str, str]) -> None:
    first, second = (type(name.title(), (Ban,), {"name": name}) for name in names)
    with pytest.raises(InvalidConfiguration, match="two logit modifiers are named"):
        host(first, second)


class Strange(LogitModifier[dict[str, Any]]):
    """Does in one of its methods what a request asks for."""

    name, stage, transform = "strange", Stage.PRE_WARP, BanTransform
    released: ClassVar[list[Any]] = []
    answers: ClassVar[dict[str, Callable[[], Any]]] = {}

    def answer(self, method: str, default: Any) -> Any:
        return self.answers[method]() if method in self.answers else default

    def start(self, request: Request, sequence: SequenceInfo) -> dict[str, Any] | None:
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

    def forced(self, state: dict[str, Any], limit: int) -> Sequence[int]:
        return self.answer("forced", ())

    def fork(self, state: dict[str, Any]) -> dict[str, Any]:
        return self.answer("fork", dict(state))

    def release(self, state: dict[str, Any] | None) -> None:
        self.released.append(state)


def raiser(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


@pytest.fixture
def strange() -> Iterator[type[Strange]]:
    Strange.answers, Strange.released = {}, []
    yield Strange
    Strange.answers = {}


STRANGE = SamplingParams(max_tokens=6, modifiers={"strange": {}})
ROWS = np.array([0, 1], dtype=np.int32)


@pytest.mark.parametrize(
    ("method", "act", "said"),
    [
        ("start", raiser(Panic("rust")), "failed in start: Panic: rust"),
        ("start", raiser(DeadEnd("nothing")), "modifier.strange failed in start: DeadEnd: nothing"),
        ("start", raiser(SystemExit(3)), "failed in start: SystemExit"),
        ("prepare", raiser(Panic("rust")), "failed in prepare: Panic: rust"),
        ("prepare", lambda: "text", "a Payload or None, not str"),
        ("prepare", lambda: Payload([0]), "int32"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": [1]}), "must be a NumPy array"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": np.zeros(3)}), "leading axis must be 1"),
        ("prepare", lambda: Payload(ROWS[1:], {"ids": np.zeros(())}), "leading axis must be 1"),
        ("prepare", lambda: Payload(ROWS[1:], {}, {"ids": [1]}), "must be a NumPy array"),
        ("prepare", lambda: Payload(np.array([1, 1], dtype=np.int32)), "twice"),
        ("prepare", lambda: Payload(np.array([99], dtype=np.int32)), "outside"),
        ("accept", raiser(Panic("rust")), "failed in accept: Panic: rust"),
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


@pytest.mark.parametrize("method", ["validate", "forced"])
@pytest.mark.parametrize("act", [lambda: "x", lambda: -1, lambda: None, raiser(Panic("rust"))])
def test_a_wrong_answer_about_drafts_ends_its_request(
    strange: type[Strange], method: str, act: Callable[[], Any]
) -> None:
    strange.answers = {method: act}
    subject = host(strange)
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=STRANGE))
    asked: Any = subject.runtime.validate(0, [1, 2]) if method == "validate" else subject.runtime.forced(0, 2)
    assert not asked
    subject.step()
    assert f"modifier.strange failed in {method}" in str(subject.results[0].error)


def test_forced_tokens_are_cut_to_the_limit_and_to_what_others_allow(strange: type[Strange]) -> None:
    ids = encode(VOCABULARY, b"qqqqz")
    strange.answers = {"forced": lambda: np.array(ids)}
    subject = host(strange)
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=STRANGE))
    assert list(subject.runtime.forced(0, 2)) == ids[:2]
    assert list(subject.runtime.forced(0, 99)) == ids
    constrained = SamplingParams(constraint=Regex("qqq[a-z]"), modifiers={"strange": {}})
    subject.join(1, Request(request_id="s", prompt_token_ids=tuple(PROMPT), params=constrained))
    strange.answers = {"forced": lambda: encode(VOCABULARY, b"qqqqz")}
    assert list(subject.runtime.forced(1, 99)) in (ids[:4], ids[:3])


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
    forced = list(subject.runtime.forced(0, 9))
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


class FixedTransform(LogitTransform):
    """Overwrites every value with the payload's."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.where_rows(logits, payload.rows, True, payload.arrays["value"][:, None])


class Late(LogitModifier[float]):
    name, stage, transform, derived = "fixed", Stage.POST_WARP, FixedTransform, True

    def start(self, request: Request, sequence: SequenceInfo) -> float | None:
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
    """Log-probability 0 for everything: the mask's -inf is gone."""
    bad = SamplingParams(max_tokens=6, constraint=Choice(["zzz"]), modifiers={"fixed": {"value": 0.0}})
    result = assert_alone_ends(host(Late), bad, SamplingParams(max_tokens=6, constraint=WORD))
    assert isinstance(result.error, PluginError)
    assert result.error.plugin == "modifier.fixed"
    assert "although the mask forbids it" in str(result.error)


class WildSampler(Sampler):
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        return 0 * payload.rows + payload.arrays["token"]


class Wild(Late):
    """Draws what it is told, legal or not."""

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
    """Returns the logits in a form the request names."""

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


@pytest.mark.parametrize("device", [NumpyDevice, TorchDevice])
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
    """All values are equal, so otherwise a sixth of the draws would be of no token."""
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
    assert len({(reason, names) for reason, names, _ in plain}) > 1  # some meet a spoiled row, some do not


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


@dataclass(frozen=True)
class StrangeOptions:
    amount: int = 1


def test_a_wrong_option_of_a_request_refuses_it(strange: type[Strange]) -> None:
    class Careful(Strange):
        def start(self, request: Request, sequence: SequenceInfo) -> dict[str, Any] | None:
            if self.name not in request.params.modifiers:
                return None
            parse_options(StrangeOptions, request.params.modifiers[self.name], where=self.name)
            return {}

    bad = SamplingParams(max_tokens=4, modifiers={"strange": {"amuont": 2}})
    result = assert_alone_ends(host(Careful), bad, SamplingParams(max_tokens=4))
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == "modifiers.strange"
    assert "did you mean 'amount'" in str(result.error)


# Accounting


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
    # no seed: one is drawn
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


# Requests


class Vicious(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no item")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")

    def __len__(self) -> int:
        return 1


class ViciousConstraint(Constraint):
    @property
    def kind(self) -> str:
        return "regex"

    def source(self) -> str:
        raise RuntimeError("no source")


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": 1e39}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": -(10**5000)}, "max_tokens"),
        ({"seed": 10**5000}, "seed"),
        ({"stop_token_ids": (10**5000,)}, "stop_token_ids"),
        ({"stop_token_ids": None}, "stop_token_ids"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": (i for i in (1, 2))}, "stop_token_ids"),
        ({"stop_token_ids": (1,), "constraint": WORD}, "stop_token_ids"),  # a textual stop, and a constraint
        ({"modifiers": None}, "modifiers"),
        ({"modifiers": 3}, "modifiers"),
        ({"modifiers": ["green_list"]}, "modifiers"),
        ({"modifiers": {"green_list": 5}}, "modifiers.green_list"),
        ({"modifiers": {7: {}}}, "modifiers"),
        ({"constraint": JsonSchema(Vicious())}, "constraint"),
        ({"constraint": JsonSchema({1: 2})}, "constraint"),  # type: ignore[dict-item]
        ({"constraint": JsonSchema('{"type": "string", "type": "number"}')}, "constraint"),
        ({"constraint": JsonSchema(nested(100_000))}, "constraint"),
        ({"constraint": ViciousConstraint()}, "request"),
        ({"constraint": Regex("a", strategy=["x"])}, "constraint.strategy"),  # type: ignore[arg-type]
        ({"constraint": Regex(b"a")}, "constraint"),  # type: ignore[arg-type]
        ({"constraint": Choice(["a", 1])}, "constraint"),  # type: ignore[list-item]
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else None,
)
def test_a_hostile_request_names_its_field(change: dict[str, Any], field: str) -> None:
    bad = SamplingParams(**{"max_tokens": 6, **change})
    result = assert_alone_ends(host(GreenList), bad, SamplingParams(max_tokens=6))
    assert result.finish_reason is FinishReason.REFUSED
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == field
    assert len(str(result.error)) < 1000


@pytest.mark.parametrize("prompt", [(10**5000,), (True,), ("a",), "text", b"bytes", None, {1: 2}, (1.0,)])
def test_a_hostile_prompt_is_refused(prompt: Any) -> None:
    subject = host()
    with pytest.raises(InvalidRequest) as caught:
        subject.runtime.admit(Request(request_id="r", prompt_token_ids=prompt, params=SamplingParams()))
    assert caught.value.field == "prompt"
    with pytest.raises(InvalidRequest) as caught:
        subject.runtime.admit(Request(request_id="r", prompt_token_ids=(1,), params={}))  # type: ignore[arg-type]
    assert caught.value.field == "params"


def test_a_schema_is_what_it_was_at_admission() -> None:
    schema = {"enum": ["aaa"]}
    release = threading.Event()

    class Slow(ReferenceStrategy):
        def compile(self, constraint: Constraint) -> CompiledGrammar:
            assert release.wait(timeout=60)
            return super().compile(constraint)

    subject = host(strategies=[Slow])
    request = Request(
        request_id="r", prompt_token_ids=tuple(PROMPT), params=SamplingParams(constraint=JsonSchema(schema))
    )
    admission = subject.runtime.admit(request)
    schema["enum"] = ["zzz"]
    release.set()
    subject.runtime.start(admission, 0)
    assert subject.runtime.validate(0, encode(VOCABULARY, b'"aaa"')) > 1
    assert subject.runtime.validate(0, encode(VOCABULARY, b'"zzz"')) <= 1


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
