"""Lifetimes: when the runtime closes its plugins, and which matchers it recycles."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    FinishReason,
    GuidewayError,
    JsonSchema,
    LogitModifier,
    LogitTransform,
    Matcher,
    Outcome,
    Payload,
    Regex,
    Request,
    SamplingParams,
    Stage,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.fake_host import FakeHost
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPT = encode(VOCABULARY, b"the prompt")


class Pooled(CompiledGrammar):
    """Records the matchers that it made and got back."""

    def __init__(self, inner: CompiledGrammar, breaks: str) -> None:
        self.inner, self.breaks = inner, breaks
        self.made: list[Matcher] = []
        self.back: list[Matcher] = []

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        self.made.append(self.inner.matcher(stop_token_ids))
        return self.made[-1]

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def recycle(self, matcher: Matcher) -> None:
        self.back.append(matcher)
        if self.breaks == "recycle":
            raise RuntimeError("the pool is full")


class Watched(ReferenceStrategy):
    """Records calls."""

    name = "watched"
    breaks = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.events: list[str] = []
        self.grammars: list[Pooled] = []
        self.hold = threading.Event()
        self.hold.set()
        self.begun = threading.Event()

    def compile(self, constraint: Constraint) -> Any:
        self.begun.set()
        self.hold.wait()
        self.grammars.append(Pooled(super().compile(constraint), self.breaks))
        self.events.append("compiled")
        return self.grammars[-1]

    def fill(self, jobs: Any, bitmask: Any) -> Any:
        filled = super().fill(jobs, bitmask)
        if self.breaks == "fill":
            filled[:] = -1
        return filled

    def close(self) -> None:
        self.events.append("closed")
        if self.breaks == "close":
            raise RuntimeError("will not close")


class WithoutFork(Watched):
    """Needs a replaying wrapper around its matchers."""

    capabilities, max_rollback = frozenset(), 0


class BreaksInFill(Watched):
    breaks = "fill"


class BreaksInClose(Watched):
    breaks = "close"


class BreaksInRecycle(Watched):
    breaks = "recycle"


class Nothing(LogitTransform):
    def apply(self, logits: Any, payload: Payload, step: Any) -> Any:
        return logits


class Listener(LogitModifier[str]):
    """Records releases and `close`; fails a sequence on request."""

    name, stage, transform = "listener", Stage.PRE_WARP, Nothing

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.events: list[str] = []

    def start(self, request: Any, sequence: Any, compiled: Any) -> str:
        return str(request.params.modifiers.get("listener", {}).get("what", ""))

    def prepare(self, batch: Any, states: Any) -> None:
        return None

    def accept(self, state: str, token_ids: Sequence[int], feedback: Any) -> Outcome:
        return Outcome("fail", "as asked") if state == "fail" else Outcome("continue")

    def fork(self, state: str) -> str:
        return state

    def release(self, state: str | None) -> None:
        self.events.append("released")

    def close(self) -> None:
        self.events.append("closed")
        raise RuntimeError("will not close either")


def host(*classes: type[Watched], modifiers: Sequence[Any] = (), **options: Any) -> tuple[FakeHost, list[Any]]:
    strategies = {cls.__name__: cls(VOCABULARY, {}) for cls in classes}
    made = FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=strategies, modifiers=modifiers, **options)
    return made, list(strategies.values())


def constrained(request_id: str = "0", pattern: str = "[a-c]{4}", **options: Any) -> Request:
    params = SamplingParams(max_tokens=20, constraint=Regex(pattern), modifiers=options)
    return Request(request_id=request_id, prompt_token_ids=tuple(PROMPT), params=params)


def run(made: FakeHost) -> None:
    while made.tokens:
        made.step()


def test_everything_is_closed_once_whatever_another_raises(caplog: pytest.LogCaptureFixture) -> None:
    made, (first, second) = host(BreaksInClose, Watched, modifiers=[Listener])
    (listener,) = made.runtime._by_name.values()
    made.join(0, constrained())
    with caplog.at_level(logging.ERROR):
        made.runtime.close()
        made.runtime.close()
    assert [strategy.events.count("closed") for strategy in (first, second)] == [1, 1]
    assert listener.events == ["released", "closed"]  # type: ignore[attr-defined]
    assert first.grammars[0].back, "the sequence that still ran was released"
    said = [record.getMessage() for record in caplog.records]
    assert said == ["grammar.BreaksInClose failed in close", "modifier.listener failed in close"]


def test_a_strategy_that_compiles_is_closed_with_the_end_of_that() -> None:
    made, (busy, idle) = host(Watched, WithoutFork)
    busy.hold.clear()
    params = [SamplingParams(constraint=Regex(pattern, strategy="Watched")) for pattern in ("a", "b", "c", "d")]
    admitted = [
        made.runtime.admit(Request(request_id=str(i), prompt_token_ids=tuple(PROMPT), params=p))
        for i, p in enumerate(params)
    ]
    assert busy.begun.wait(60)
    made.runtime.close()
    assert (busy.events, idle.events) == ([], ["closed"])
    busy.hold.set()
    for admission in admitted:
        compilation = admission.compilation
        assert compilation is not None
        compilation.exception(60) if not compilation.cancelled() else None
    for thread in made.runtime._threads._threads:
        thread.join(60)
    assert busy.events[-1] == "closed" and busy.events.count("closed") == 1
    assert busy.events.count("compiled") <= 2, "what was queued is not begun"


def test_a_modifier_that_compiles_is_closed_with_the_end_of_that() -> None:
    hold, begun, events = threading.Event(), threading.Event(), list[str]()

    class Slow(Listener):
        def compile(self, request: Any, grammar: Any) -> Any:
            begun.set()
            hold.wait()
            events.append("compiled")

        def close(self) -> None:
            events.append("closed")

    made, _ = host(modifiers=[Slow])
    admission = made.runtime.admit(
        Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=SamplingParams(modifiers={"listener": {}}))
    )
    assert admission.compilation is not None and begun.wait(60)
    made.runtime.close()
    assert events == []
    hold.set()
    for thread in made.runtime._modifier_threads._threads:
        thread.join(60)
    assert events == ["compiled", "closed"]


@pytest.mark.parametrize("strategy", [Watched, WithoutFork])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_the_matcher_of_a_sequence_that_ended_is_given_back(strategy: type[Watched], num_drafts: int) -> None:
    made, (watched,) = host(strategy, num_drafts=num_drafts)
    for slot in range(3):
        made.join(slot, constrained(str(slot)))
    made.runtime.fork(0, 3, index=1)
    run(made)
    made.runtime.release(3)
    (grammar,) = watched.grammars
    assert len(grammar.back) == 4
    assert len({id(matcher) for matcher in grammar.back}) == 4
    assert all(isinstance(matcher, type(grammar.made[0])) for matcher in grammar.back), "no wrapper"


def fails_in_fill() -> tuple[FakeHost, list[Any], Request]:
    made, strategies = host(BreaksInFill)
    return made, strategies, constrained()


def fails_elsewhere() -> tuple[FakeHost, list[Any], Request]:
    made, strategies = host(Watched, modifiers=[Listener])
    return made, strategies, constrained(listener={"what": "fail"})


@pytest.mark.parametrize("case", [fails_in_fill, fails_elsewhere])
def test_the_matcher_of_a_sequence_that_failed_is_not(case: Callable[[], Any]) -> None:
    made, (watched,), request = case()
    made.join(0, request)
    run(made)
    assert made.results[0].outputs[0].finish_reason is FinishReason.INTERNAL_ERROR
    assert watched.grammars[0].back == []


@pytest.mark.parametrize("where", ["accept", "fill"])
def test_the_matcher_of_a_sequence_that_was_interrupted_is_not(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    made, (watched,) = host(Watched)
    made.join(0, constrained())
    made.step()
    (grammar,) = watched.grammars
    monkeypatch.setattr(*((grammar.made[0], "accept") if where == "accept" else (watched, "fill")), interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.step()
    made.runtime.release(0)
    assert grammar.back == []


def test_a_matcher_that_was_rebuilt_is_not_given_back_twice() -> None:
    made, (watched,) = host(Watched)
    made.join(0, constrained())
    made.step()
    made.runtime.rebuild(0)
    run(made)
    (grammar,) = watched.grammars
    assert grammar.back == [grammar.made[-1]] and len(grammar.made) == 2


def test_what_recycle_raises_is_logged_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    made, _ = host(BreaksInRecycle)
    made.join(0, constrained())
    run(made)
    assert made.results[0].outputs[0].error is None
    assert "grammar.BreaksInRecycle failed in recycle" in caplog.text


def test_recycled_matchers_serve_as_new_ones() -> None:
    class Pooling(Pooled):
        def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
            if not self.back:
                return super().matcher(stop_token_ids)
            taken: Any = self.back.pop()
            taken._states, taken._stop_token_ids = taken._states[:1], stop_token_ids
            return taken  # type: ignore[no-any-return]

    class PoolingStrategy(ReferenceStrategy):
        def compile(self, constraint: Constraint) -> Any:
            grammar = Pooling(super().compile(constraint), "")
            grammars.append(grammar)
            return grammar

    grammars: list[Pooling] = []
    outputs = []
    for strategy in (PoolingStrategy, ReferenceStrategy):
        made = FakeHost(
            VOCABULARY, NumpyDevice("cpu"), strategies={"p": strategy(VOCABULARY, {})}, modifiers=[], num_drafts=2
        )
        wanted: list[Any] = [Choice(["alpha", "beta"]), Regex("[a-c]{4}"), JsonSchema({"type": "boolean"})]
        found = []
        for _ in range(3):
            results = made.generate([PROMPT] * 6, [SamplingParams(max_tokens=30, constraint=c) for c in wanted * 2])
            found.append([result.token_ids for result in results])
            assert not any(result.error for result in results)
        outputs.append(found)
    assert outputs[0] == outputs[1]
    assert [len(grammar.made) for grammar in grammars] == [2, 2, 2]


def test_nothing_is_closed_while_a_request_is_admitted() -> None:
    made, (watched,) = host(Watched)
    reached, go = threading.Event(), threading.Event()
    supports = watched.supports

    def slow(constraint: Constraint) -> Any:
        reached.set()
        assert go.wait(60)
        assert "closed" not in watched.events
        return supports(constraint)

    watched.supports = slow  # type: ignore[method-assign]
    request = Request(request_id="late", prompt_token_ids=tuple(PROMPT), params=SamplingParams(constraint=Regex("a")))
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(made.runtime.admit, request)
        assert reached.wait(60)
        made.runtime.close()
        assert watched.events == []
        go.set()
        late.exception(60)
    assert watched.events == ["closed"]
    with pytest.raises(GuidewayError, match="closed"):
        made.runtime.admit(request)
