"""Work that never ends: waiting callers get an error, and all other requests continue."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
from guideway.api import (
    Array,
    InvalidRequest,
    LimitExceeded,
    LogitModifier,
    LogitTransform,
    Payload,
    PluginError,
    PluginUnavailable,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway.errors import GuidewayError, blame
from guideway.plugins.limits import Limits
from guideway.runtime.work import quarantine as quarantines
from guideway.runtime.work import threads as pools
from guideway.runtime.work.quarantine import Quarantine
from guideway.runtime.work.shared_work import PluginUses, SharedWork
from guideway.runtime.work.threads import Deadline, Threads
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY

SOON = Deadline(wall_seconds=0.2)
GOOD = SamplingParams(constraint=Regex("[a-z]{3,12}(x|y)"), temperature=1.0, seed=7, max_tokens=24)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Event that hanging work waits for; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def until(holds: object) -> None:
    assert callable(holds)
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_work_that_hangs_fails_and_its_thread_is_replaced(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    threads = Threads("work", 2, deadline=SOON)
    late: list[str] = []

    def hang() -> str:
        with blame("hooks.slow", "validate_request"):
            gate.wait()
        return "late"

    hung = [threads.submit(hang, late=late.append) for _ in range(2)]
    after = threads.submit(lambda: "done")
    assert after.result(30) == "done"
    for future in hung:
        with pytest.raises(
            LimitExceeded, match=r"hooks\.slow \(in validate_request\) took more than the allowed 0\.2 s"
        ):
            future.result(30)
    assert "hooks.slow" in caplog.text
    gate.set()
    until(lambda: late == ["late"] * 2)
    until(lambda: threads._lost == 0 and len(threads._threads) == 2)
    assert threads.submit(lambda: "again").result(30) == "again"
    threads.close()


def test_work_in_time_is_what_it_was() -> None:
    threads = Threads("work", 2, deadline=Deadline(wall_seconds=30, processor_seconds=10))

    def fail() -> None:
        raise ValueError("no")

    assert [threads.submit(lambda i=i: i).result(30) for i in range(50)] == list(range(50))
    with pytest.raises(ValueError, match="no"):
        threads.submit(fail).result(30)
    assert threads._running == {}
    watcher = threads._watcher
    assert watcher is not None
    threads.close()
    watcher.join(30)
    assert not watcher.is_alive()


def test_time_of_a_processor_counts_by_itself(gate: threading.Event) -> None:
    threads = Threads("work", 2, deadline=Deadline(wall_seconds=60, processor_seconds=0.2))

    def spin() -> None:
        while not gate.is_set():
            pass

    waiting = threads.submit(gate.wait)
    with pytest.raises(LimitExceeded, match=re.escape("took more than the allowed 0.2 s processor time")):
        threads.submit(spin).result(30)
    assert not waiting.done()
    threads.close()


def test_what_keeps_its_own_deadlines_is_left_alone(gate: threading.Event) -> None:
    threads = Threads("work", 1, deadline=SOON)

    def work() -> str:
        with blame("grammar.hosted", "compile", keeps_deadlines=True):
            gate.wait(1)
        return "done"

    assert threads.submit(work).result(30) == "done"
    threads.close()


def test_where_no_thread_is_left_nothing_waits_for_one(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pools, "MAX_LOST", 1)
    threads = Threads("work", 2, deadline=SOON)
    futures = [threads.submit(gate.wait) for _ in range(5)]
    said = {type(future.exception(30)) for future in futures}
    assert said == {LimitExceeded, GuidewayError}, "three were begun, and two wait no longer"
    assert "no thread is left" in caplog.text
    with pytest.raises(GuidewayError, match="no thread 'work' is left"):
        threads.submit(gate.wait)
    assert threads.why_none() == "no thread 'work' is left"
    gate.set()
    until(lambda: threads._lost == 0)
    assert threads.why_none() is None
    assert threads.submit(lambda: "back").result(30) == "back"
    threads.close()


def test_no_owner_has_all_threads(gate: threading.Event) -> None:
    threads = Threads("work", 2, reserve=True)
    begun: list[str] = []

    def work(name: str) -> str:
        begun.append(name)
        if name.startswith("a"):
            gate.wait()
        return name

    of_one = [threads.submit(partial(work, f"a{i}"), owner="one") for i in range(4)]
    of_other = [threads.submit(partial(work, f"b{i}"), owner="other") for i in range(3)]
    assert [future.result(30) for future in of_other] == ["b0", "b1", "b2"]
    assert begun[:2] == ["a0", "a1"]
    assert "a2" not in begun
    gate.set()
    assert [future.result(30) for future in of_one] == ["a0", "a1", "a2", "a3"]
    alive = list(threads._threads)
    threads.close()
    for thread in alive:
        thread.join(30)
        assert not thread.is_alive()


def test_what_was_taken_before_the_end_is_done(gate: threading.Event) -> None:
    threads = Threads("work", 1, reserve=True)
    futures = [threads.submit(partial(gate.wait, 30), owner=owner) for owner in ("a", "b", "a", "b")]
    alive = list(threads._threads)
    threads.close()
    with pytest.raises(GuidewayError, match="closed"):
        threads.submit(gate.wait)
    gate.set()
    assert [future.result(30) for future in futures] == [True] * 4
    for thread in alive:
        thread.join(30)
        assert not thread.is_alive()


def test_work_that_is_cancelled_before_it_begins_misses_no_deadline(gate: threading.Event) -> None:
    threads = Threads("work", 1, deadline=SOON)
    first = threads.submit(partial(gate.wait, 0.1))
    second = threads.submit(gate.wait)
    assert second.cancel()
    first.result(30)
    assert threads.submit(lambda: "done").result(30) == "done"
    until(lambda: not threads._running)
    threads.close()


def test_shared_work_that_was_too_late_is_not_begun_again(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads("work", 1, deadline=SOON)
    shared: SharedWork[str] = SharedWork(threads, PluginUses(), 100)
    begun: list[str] = []

    def work() -> tuple[str, int]:
        begun.append("")
        gate.wait()
        return "value", 1

    first, second = shared.submit(["grammar.g"], "key", work), shared.submit(["grammar.g"], "key", work)
    for future in (first, second):
        with pytest.raises(LimitExceeded):
            future.result(30)
    with pytest.raises(LimitExceeded, match="tried again after 300 s"):
        shared.submit(["grammar.g"], "key", work).result(30)
    assert len(begun) == 1
    gate.set()
    assert shared.submit(["grammar.g"], "other", work).result(30) == "value"
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 301)
    assert shared.submit(["grammar.g"], "key", work).result(30) == "value"
    threads.close()


class Hanging(ReferenceStrategy):
    """A strategy that never finishes compiling patterns with a certain prefix."""

    gate: threading.Event

    def compile(self, constraint: object) -> object:  # type: ignore[override]
        if constraint.source().startswith("hang"):  # type: ignore[attr-defined]
            self.gate.wait()
        return super().compile(constraint)  # type: ignore[arg-type]


@pytest.mark.slow
def test_compilations_that_never_end_keep_no_other_waiting(gate: threading.Event) -> None:
    strategy = Hanging(VOCABULARY, {})
    strategy.gate = gate
    host = FakeHost(
        VOCABULARY,
        NumpyDevice("cpu"),
        strategies={"hanging": strategy},
        compile_threads=2,
        limits=Limits(compile_seconds=0.5, wall_factor=1),
    )
    bad = [replace(GOOD, constraint=Regex(f"hang{i}")) for i in range(4)]
    *hung, good = host.generate([PROMPT] * 5, [*bad, GOOD])
    assert good.outputs[0].error is None
    for result in hung:
        assert isinstance(result.error, LimitExceeded)
        assert "grammar.hanging (in compile) took more than the allowed 0.5 s" in str(result.error)
        assert result.error.field == "constraint"


@pytest.mark.slow
def test_a_validator_that_hangs_is_quarantined(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantines, "QUARANTINE_SECONDS", 0.5)
    seen: list[str] = []

    def validate(request: Request, context: object) -> None:
        seen.append(request.request_id)
        if request.request_id.startswith("hang"):
            gate.wait()

    host = FakeHost(
        VOCABULARY,
        NumpyDevice("cpu"),
        strategies={"reference": ReferenceStrategy(VOCABULARY, {})},
        validators={Request: [("hooks.slow", validate)]},
        limits=Limits(admission_seconds=0.6),
    )

    def admit(name: str) -> None:
        request = Request(request_id=name, prompt_token_ids=PROMPT, params=SamplingParams())
        admission = host.runtime.admission_threads.submit(lambda: host.runtime.admit(request)).result(30)
        host.runtime.abandon(admission)

    for i in range(3):
        admit(f"good {i}")
        with pytest.raises(LimitExceeded, match=r"hooks\.slow \(in validate_request\)"):
            admit(f"hang {i}")
    with pytest.raises(PluginUnavailable, match=r"hooks\.slow did not answer in time 3 times") as caught:
        admit("good too")
    assert caught.value.plugin == "hooks.slow"
    assert "good too" not in seen
    time.sleep(0.6)
    admit("good again")
    with pytest.raises(LimitExceeded):
        admit("hang again")
    with pytest.raises(PluginUnavailable):
        admit("once is enough now")


def test_a_call_that_keeps_its_own_deadlines_is_charged_to_nobody(gate: threading.Event) -> None:
    threads = Threads("work", 1, deadline=SOON)

    def work() -> str:
        with blame("grammar.hosted", "compile", keeps_deadlines=True):
            gate.wait(1)
        gate.wait(0.05)
        return "done"

    assert threads.submit(work).result(30) == "done"
    threads.close()


def test_who_is_called_last_is_not_blamed_for_what_another_took(gate: threading.Event) -> None:
    quarantine = Quarantine(["hooks.quick"])
    threads = Threads("work", 1, deadline=Deadline(wall_seconds=0.5), quarantine=quarantine)

    def work() -> None:
        time.sleep(0.45)
        with blame("hooks.quick", "validate_request"):
            time.sleep(0.15)

    for _ in range(3):
        with pytest.raises(LimitExceeded):
            threads.submit(work).result(30)
    quarantine.check("hooks.quick")
    threads.close()


def test_what_joins_work_in_another_owners_queue_brings_its_own_turn(gate: threading.Event) -> None:
    threads = Threads("work", 1, reserve=True)
    shared: SharedWork[str] = SharedWork(threads, PluginUses(), 100)
    begun: list[str] = []

    def work(name: str) -> tuple[str, int]:
        begun.append(name)
        if name != "popular":
            gate.wait()
        return name, 1

    slow = [shared.submit([], f"slow {i}", partial(work, f"slow {i}"), owner="evil") for i in range(3)]
    queued = shared.submit([], "popular", partial(work, "popular"), owner="evil")
    joined = shared.submit([], "popular", partial(work, "popular"), owner="good")
    assert joined is queued
    assert joined.result(30) == "popular"
    gate.set()
    assert [future.result(30) for future in slow] == ["slow 0", "slow 1", "slow 2"]
    assert begun.count("popular") == 1
    threads.close()


def test_who_joins_hears_when_the_work_is_too_late_in_either_turn(gate: threading.Event) -> None:
    threads = Threads("work", 1, reserve=True, deadline=Deadline(wall_seconds=0.3))
    shared: SharedWork[str] = SharedWork(threads, PluginUses(), 100)

    def work() -> tuple[str, int]:
        gate.wait()
        return "", 1

    shared.submit([], "first", work, owner="evil")
    queued = shared.submit([], "popular", work, owner="evil")
    assert shared.submit([], "popular", work, owner="good") is queued, "and it begins in the reserve"
    with pytest.raises(LimitExceeded):
        queued.result(30)
    threads.close()


class Touchy:
    """A key that cannot be compared with others."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        raise RuntimeError("no")


def test_keys_that_raise_keep_nobody_waiting(gate: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    threads = Threads("work", 2, deadline=SOON)
    shared: SharedWork[str] = SharedWork(threads, PluginUses(), 100)

    def work() -> tuple[str, int]:
        gate.wait()
        return "", 1

    hung = shared.submit([], Touchy(), work)
    shared._late.put(Touchy(), LimitExceeded("", field=""), 60)
    with pytest.raises(LimitExceeded):
        hung.result(30)
    assert "cannot be remembered" in caplog.text
    threads.close()


def test_only_validators_are_quarantined() -> None:
    quarantine = Quarantine(["hooks.slow"])
    for _ in range(5):
        quarantine.strike("grammar.g")
    quarantine.check("grammar.g")
    quarantine.check("hooks.slow")


def test_misses_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine = Quarantine(["hooks.slow"])
    now = time.monotonic()
    for minute in range(0, 60, 4):
        monkeypatch.setattr(time, "monotonic", lambda minute=minute: now + 60 * minute)
        quarantine.strike("hooks.slow")
        quarantine.check("hooks.slow")


def test_a_validator_that_fails_says_why() -> None:
    def validate(request: Request, context: object) -> None:
        raise ValueError("broken")

    host = FakeHost(
        VOCABULARY,
        NumpyDevice("cpu"),
        strategies={"reference": ReferenceStrategy(VOCABULARY, {})},
        validators={Request: [("hooks.broken", validate)]},
    )
    (result,) = host.generate([PROMPT], [GOOD])
    assert isinstance(result.error, InvalidRequest)
    assert str(result.error) == "validator hooks.broken failed, so the request is refused: ValueError: broken"
    assert isinstance(result.error.__cause__, PluginError)
    assert (result.error.__cause__.plugin, result.error.__cause__.phase) == ("hooks.broken", "in validate_request")


class Nothing(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class Slow(LogitModifier[str]):
    """A modifier whose `start` is slow on request."""

    name, stage, transform = "slow", Stage.PRE_WARP, Nothing
    released: ClassVar[list[str]] = []

    def start(self, request: Request, sequence: SequenceInfo, compiled: None) -> str | None:
        options = request.params.modifiers.get("slow")
        end = time.thread_time() + (0.3 if options and "long" in options else 0.0)
        while time.thread_time() < end:
            pass
        return None if options is None else request.request_id

    def prepare(self, batch: StepBatch, states: Sequence[str]) -> Payload | None:
        return None

    def release(self, state: str) -> None:
        self.released.append(state)


def test_a_start_that_takes_too_long_costs_its_request() -> None:
    host = FakeHost(
        VOCABULARY,
        NumpyDevice("cpu"),
        strategies={"reference": ReferenceStrategy(VOCABULARY, {})},
        modifiers=[Slow],
        limits=Limits(start_seconds=0.2, wall_factor=150),
    )
    late, good = host.generate(
        [PROMPT] * 2, [replace(GOOD, modifiers={"slow": {"long": True}}), replace(GOOD, modifiers={"slow": {}})]
    )
    assert isinstance(late.error, LimitExceeded)
    assert re.search(r"modifier\.slow took \d+\.\d+ s in start.*the limit is 0\.2 s processor time", str(late.error))
    assert late.error.field == "modifiers.slow"
    assert good.error is None
    assert len(Slow.released) == 2
