"""Grammar strategies that break their contract: each failure ends one request, and its error names the strategy."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    FinishReason,
    GuidewayError,
    InvalidRequest,
    LimitExceeded,
    Matcher,
    PluginError,
    Regex,
    Request,
    SamplingParams,
    StepBatch,
    StructuralTag,
    Support,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY, WORD, Panic, assert_alone_ends, host, raiser
from tests.support.vocabularies import encode


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


class UnusableSupports(ReferenceStrategy):
    name = "unusable_supports"

    def supports(self, constraint: Constraint) -> Any:
        return Support(unenforced=["maxLength"])  # type: ignore[arg-type]


class NoSupports(ReferenceStrategy):
    name = "no_supports"

    def supports(self, constraint: Constraint) -> Any:
        return "yes"


class InterruptingCompile(ReferenceStrategy):
    """Raises the exceptions that only the main thread gets, in a thread that Ctrl-C cannot reach."""

    name = "interrupting_compile"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        raise KeyboardInterrupt


class LeavingCompile(ReferenceStrategy):
    name = "leaving_compile"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        raise GeneratorExit


class LeavingSupports(ReferenceStrategy):
    name = "leaving_supports"

    def supports(self, constraint: Constraint) -> Any:
        raise GeneratorExit


class LeavingMatcher(Faulty):
    name, error = "leaving_matcher", GeneratorExit()


class OldMatchers(ReferenceStrategy):
    name = "old_matchers"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        class Old(FaultyMatcher):
            def rollback(self) -> None: ...  # type: ignore[override]

        class Matchers(FaultyGrammar):
            def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
                return Old(self.inner.matcher(stop_token_ids), self.error)

        return Matchers(super().compile(constraint), RuntimeError())


class OldGrammars(ReferenceStrategy):
    name = "old_grammars"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        class Grammars(FaultyGrammar):
            def matcher(self) -> Matcher: ...  # type: ignore[override,empty-body]

        return Grammars(super().compile(constraint), RuntimeError())


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (
            OldMatchers,
            r"failed in matcher: ConformanceError: .*Old\.rollback\(self\) does not fit",
        ),
        (OldGrammars, r"failed in compile: ConformanceError: .*Grammars\.matcher\(self\) does not fit"),
    ],
)
def test_methods_that_cannot_be_called_are_named(strategy: type[ReferenceStrategy], said: str) -> None:
    wanted = SamplingParams(max_tokens=20, constraint=Regex("[a-z]{3}"))
    (result,) = host(strategies=[strategy]).generate([PROMPT], [wanted])
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert re.search(said, str(result.error))


FAULTY = [Faulty, Panicking, PanickingCompile, PanickingSupports, UnusableSupports, NoSupports]
LEAVING = [InterruptingCompile, LeavingCompile, LeavingSupports, LeavingMatcher]


@pytest.mark.parametrize("strategy", [*FAULTY, *LEAVING])
def test_a_grammar_fault_leaves_unconstrained_neighbors_alone(strategy: type[ReferenceStrategy]) -> None:
    subject = host(strategies=[ReferenceStrategy, strategy])
    bad = SamplingParams(max_tokens=6, constraint=Regex("[a-z]{3}", strategy=strategy.name))
    result = assert_alone_ends(subject, bad, SamplingParams(max_tokens=6))
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(result.error, PluginError)
    assert result.error.plugin == f"grammar.{strategy.name}"


class Endless(Faulty):
    """Its matchers fail in `is_accepting`."""

    name = "endless"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        class Matchers(FaultyGrammar):
            def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
                matcher = super().matcher(stop_token_ids)
                vars(matcher)["is_accepting"] = raiser(Panic("unreachable"))
                return matcher

        return Matchers(ReferenceStrategy.compile(self, constraint), self.error)


def test_an_output_is_complete_only_where_its_strategy_can_tell() -> None:
    for strategy, expected in ((ReferenceStrategy, True), (Endless, False)):
        subject = host(strategies=[strategy])
        wanted = SamplingParams(constraint=Regex("(abc)+"))
        subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
        ids = encode(VOCABULARY, b"abcabc")
        assert len(ids) == 2
        subject.runtime.accept(StepBatch.build([0], [len(PROMPT)], [ids[:1]]), [ids])
        assert subject.runtime.completes(0, "abcabc") is subject.runtime.completes(0, "abc") is expected
        assert not subject.runtime.completes(0, "")
        assert not subject.runtime.completes(0, "abcab"), "and where no tokens can be found for the rest"
        assert subject.runtime.fault(0) is None
        assert subject.runtime.validate(0, ids) == 2, "its own matcher is where it was"


class HalfFill(ReferenceStrategy):
    """Its batch fill advances one matcher, fills one row and raises."""

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
    """Returns one matcher and no more."""

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
    assert result.finish_reason is FinishReason.REFUSED
    assert isinstance(result.error, LimitExceeded)
    assert "MemoryError: no more matchers" in str(result.error)


class Greedy(ReferenceStrategy):
    """Runs out of memory in the method that a constraint names, as native libraries do."""

    name, capabilities, max_rollback = "greedy", frozenset(), 0
    verbs = ("supports", "compile", "nbytes", "matcher", "accept", "fill_bitmask")

    def supports(self, constraint: Constraint) -> Support:
        self.act(constraint, "supports")
        return super().supports(constraint)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        self.act(constraint, "compile")
        return GreedyGrammar(super().compile(constraint), partial(self.act, constraint))

    def act(self, constraint: Constraint, verb: str) -> None:
        if constraint.source().startswith(verb[:2]):
            raise RuntimeError("std::bad_alloc")


class GreedyGrammar(CompiledGrammar):
    def __init__(self, inner: CompiledGrammar, act: Callable[[str], None]) -> None:
        self.inner, self.act = inner, act

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        self.act("matcher")
        return GreedyMatcher(self.inner.matcher(stop_token_ids), self.act)

    @property
    def nbytes(self) -> int:
        self.act("nbytes")
        return self.inner.nbytes


class GreedyMatcher(Matcher):
    def __init__(self, inner: Matcher, act: Callable[[str], None]) -> None:
        self.inner, self.act = inner, act

    def accept(self, token_ids: Sequence[int]) -> int:
        self.act("accept")
        return self.inner.accept(token_ids)

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        self.act("fill_bitmask")
        self.inner.fill_bitmask(bitmask, row)

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()


@pytest.mark.parametrize("verb", Greedy.verbs)
def test_whatever_runs_out_of_memory_is_refused(verb: str) -> None:
    bad = SamplingParams(max_tokens=12, constraint=Regex(f"{verb[:2]}[a-z]{{6}}", strategy="greedy"))
    result = assert_alone_ends(host(strategies=[ReferenceStrategy, Greedy]), bad, SamplingParams(max_tokens=6))
    assert result.finish_reason is FinishReason.REFUSED
    assert isinstance(result.error, LimitExceeded)
    assert result.error.field == "constraint"
    assert re.search(
        r"grammar\.greedy failed in \w+: RuntimeError: std::bad_alloc; it ran out of memory", str(result.error)
    )


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
    from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

    tag = {
        "structures": [{"begin": "<a>", "schema": {"type": "string", "maxLenght": 3}, "end": "</a>"}],
        "triggers": ["<a>"],
    }
    subject = host(strategies=[XGrammarStrategy])
    wanted = SamplingParams(max_tokens=4, constraint=StructuralTag(tag))
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    assert "maxLenght" in subject.runtime.unenforced(0)


def test_a_structural_tag_of_many_schemas_has_no_more_looked_at() -> None:
    """Suggesting a keyword takes a thousand times as long as writing a misspelt one."""
    from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy

    schemas = [{"type": "string", **{f"maxLength{i}": 1 for i in range(n, n + 50)}} for n in range(0, 1000, 50)]
    structures = [{"begin": f"<a{i}>", "schema": schema, "end": "</a>"} for i, schema in enumerate(schemas)]
    subject = host(strategies=[LLGuidanceStrategy])
    wanted = SamplingParams(max_tokens=4, constraint=StructuralTag({"structures": structures, "triggers": ["<a"]}))
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    assert 10 <= len([name for name in subject.runtime.unenforced(0) if name.startswith("maxLength")]) <= 100


def test_a_host_may_step_on_after_the_end_of_the_grammar() -> None:
    """Hosts with asynchronous scheduling do so: the mask is open then, and nothing fails."""
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
    """b is legal after a, and no token is legal after b."""

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
