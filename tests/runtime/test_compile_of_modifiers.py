"""`LogitModifier.compile`: runs outside the decoding thread, once for equal keys, and its value goes to every start."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from guideway.api import (
    CompiledGrammar,
    FinishReason,
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Payload,
    PluginError,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
)
from guideway.api.steps import Array
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.hostility import PROMPT, host


class Nothing(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class Slow(LogitModifier[Any]):
    """Compiles as a request's options say; records the compiling threads and the values that `start` got."""

    name, stage, transform = "slow", Stage.PRE_WARP, Nothing

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.threads: list[threading.Thread] = []
        self.grammars: list[CompiledGrammar | None] = []
        self.started: list[Any] = []
        self.go = threading.Event()
        self.go.set()

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        assert self.go.wait(timeout=30)
        self.threads.append(threading.current_thread())
        self.grammars.append(grammar)
        options = request.params.modifiers.get(self.name)
        if options is not None and "raises" in options:
            raise options["raises"]
        return [request.request_id]

    def compile_key(self, request: Request) -> Hashable | None:
        key: Hashable | None = request.params.modifiers[self.name].get("key")
        return key

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        self.started.append(compiled)
        return compiled

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        return None


def params(**options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=2, modifiers={"slow": options})


def admit(subject: Any, request_id: str, params: SamplingParams) -> Any:
    return subject.runtime.admit(Request(request_id=request_id, prompt_token_ids=(1,), params=params))


def test_it_is_off_the_decoding_thread_and_every_start_is_given_its_value() -> None:
    subject = host(Slow)
    modifier = subject.runtime._by_name["slow"]
    admission = admit(subject, "two", SamplingParams(max_tokens=2, n=2, temperature=1.0, modifiers={"slow": {}}))
    for index in range(2):
        subject.runtime.start(admission, index, index=index)
    assert [thread.name for thread in modifier.threads] == ["guideway-modifiers"]
    assert len(modifier.started) == 2
    assert modifier.started[0] is modifier.started[1]


def test_a_request_waits_for_it_and_no_other_does() -> None:
    subject = host(Slow)
    modifier = subject.runtime._by_name["slow"]
    modifier.go.clear()
    admission = admit(subject, "waits", params())
    assert not admission.ready()
    modifier.go.set()
    assert admission.wait(timeout=30)


def test_equal_keys_share_one_call_and_no_key_shares_none() -> None:
    subject = host(Slow)
    modifier = subject.runtime._by_name["slow"]
    for request_id, options in (("a", {"key": "k"}), ("b", {"key": "k"}), ("c", {"key": "l"}), ("d", {}), ("e", {})):
        assert admit(subject, request_id, params(**options)).wait(timeout=30)
        subject.runtime.start(admit(subject, f"{request_id}2", params(**options)), 0)
        subject.runtime.release(0)
    assert [compiled[0] for compiled in modifier.started] == ["a", "a", "c", "d2", "e2"]


def test_it_is_not_called_for_requests_that_do_not_select_the_modifier() -> None:
    subject = host(Slow)
    modifier = subject.runtime._by_name["slow"]
    modifier.go.clear()
    admission = admit(subject, "plain", SamplingParams())
    assert admission.ready()
    subject.runtime.start(admission, 0)
    assert modifier.started == [None]
    modifier.go.set()


def test_it_is_given_the_compiled_constraint() -> None:
    subject = host(Slow)
    modifier = subject.runtime._by_name["slow"]
    admission = admit(subject, "with", replace(params(), constraint=Regex("a+")))
    assert admission.wait(timeout=30)
    assert admit(subject, "without", params()).wait(timeout=30)
    assert [isinstance(grammar, CompiledGrammar) for grammar in modifier.grammars] == [True, False]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"raises": RuntimeError("boom")}, "modifier.slow failed in compile: RuntimeError: boom"),
        ({"raises": SystemExit(3)}, "modifier.slow failed in compile: SystemExit: 3"),
        ({"key": ["no", "hash"]}, "modifier.slow failed in compile_key: TypeError: unhashable type: 'list'"),
    ],
)
def test_a_failure_is_one_requests_and_names_plugin_and_phase(options: dict[str, Any], error: str) -> None:
    subject = host(Slow)
    alone = subject.generate([PROMPT], [params()])[0]
    good, bad, too = subject.generate([PROMPT] * 3, [params(), params(**options), params()])
    assert bad.finish_reason is FinishReason.INTERNAL_ERROR
    assert str(bad.error) == error
    assert [good.token_ids, too.token_ids] == [alone.token_ids] * 2


class Incomparable:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")


@pytest.mark.parametrize("constraint", [None, Regex("a+")])
def test_keys_that_cannot_be_compared_fail_their_requests_and_leave_nobody_waiting(constraint: Any) -> None:
    subject = host(Slow)
    modifier = subject.runtime._by_name["slow"]
    modifier.go.clear()  # the first is still running when the second arrives
    wanted = [replace(params(key=Incomparable()), constraint=constraint) for _ in range(2)]
    first, second = (admit(subject, str(i), one) for i, one in enumerate(wanted))
    modifier.go.set()
    for admission in (first, second):
        assert admission.wait(timeout=30)
    with pytest.raises(PluginError, match=r"modifier\.slow failed in compile_key: RuntimeError: not to be compared"):
        second.compilation.result()


def test_a_request_does_not_wait_for_the_constraint_of_another() -> None:
    go = threading.Event()

    class Stuck(ReferenceStrategy):
        def compile(self, constraint: Any) -> CompiledGrammar:
            assert go.wait(timeout=30)
            return super().compile(constraint)

    subject = host(Slow, strategies=[Stuck], compile_threads=1)
    stuck = admit(subject, "stuck", SamplingParams(constraint=Regex("a+")))
    assert admit(subject, "other", params()).wait(timeout=30)
    assert not stuck.ready()
    go.set()
    assert stuck.wait(timeout=30)


@pytest.mark.parametrize("options", [{}, {"key": "k"}])
def test_it_is_not_called_for_a_request_that_was_aborted_before_its_turn(options: dict[str, Any]) -> None:
    subject = host(Slow, compile_threads=1)
    modifier = subject.runtime._by_name["slow"]
    modifier.go.clear()
    running = admit(subject, "running", params())
    aborted, sharing = (admit(subject, name, params(**options)) for name in ("aborted", "sharing"))
    subject.runtime.abandon(aborted)
    modifier.go.set()
    for admission in (running, sharing, admit(subject, "last", params())):
        assert admission.wait(timeout=30)
        subject.runtime.start(admission, 0)
        subject.runtime.release(0)
    assert len(modifier.threads) == 3
    shared = "aborted" if options else "sharing"
    assert [compiled[0] for compiled in modifier.started] == ["running", shared, "last"]


def test_which_modifiers_may_act_is_known_before_all_is_compiled() -> None:
    class Idle(Slow):
        name = "idle"
        compile = LogitModifier.compile

        def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
            return request.params.modifiers.get(self.name)

    subject = host(Slow, Idle)
    subject.runtime._by_name["slow"].go.clear()  # type: ignore[attr-defined]
    one, both = {"slow": {}}, {"slow": {}, "idle": {}}
    admissions = [admit(subject, str(wanted), SamplingParams(modifiers=wanted)) for wanted in (one, both)]
    assert [admission.ready() for admission in admissions] == [False, False]
    assert [subject.runtime.may_act(admission) for admission in admissions] == [("slow",), ("slow", "idle")]
    subject.runtime._by_name["slow"].go.set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [InvalidRequest("not so"), InvalidConfiguration("not so", field="options.x")])
def test_it_may_refuse(error: BaseException) -> None:
    (refused,) = host(Slow).generate([PROMPT], [params(raises=error)])
    assert refused.finish_reason is FinishReason.REFUSED
    assert "not so" in str(refused.error)


def test_a_rebuilt_sequence_is_given_the_same_value() -> None:
    subject = host(Slow)
    modifier = subject.runtime._by_name["slow"]
    subject.runtime.start(admit(subject, "a", params()), 0)
    subject.runtime.rebuild(0)
    assert modifier.started[0] is modifier.started[1]
