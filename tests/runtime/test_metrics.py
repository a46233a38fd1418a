"""Metrics as a server exposes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guideway.api import LimitExceeded, Regex, Request, SamplingParams
from guideway.devices.numpy.device import NumpyDevice
from guideway.plugins import Plugins
from guideway.plugins.limits import Limits
from guideway.runtime import RuntimePlan
from guideway.runtime.work.step_clock import StepClock
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from prometheus_client import REGISTRY

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY

GOOD = SamplingParams(constraint=Regex("[a-z]{3,12}(x|y)"), temperature=1.0, seed=7, max_tokens=24)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Change:
    """Difference of a sample from its value at the start."""

    def __init__(self, name: str, **labels: str) -> None:
        self.name, self.labels, self.before = name, labels, value(name, **labels)

    def __call__(self) -> float:
        return value(self.name, **self.labels) - self.before


@pytest.fixture
def host() -> Iterator[FakeHost]:
    host = FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies={"measured": ReferenceStrategy(VOCABULARY, {})})
    yield host
    host.runtime.close()


def test_compiling_filling_and_keeping(host: FakeHost) -> None:
    compiled = Change("guideway_compile_seconds_count", strategy="measured")
    filled = Change("guideway_fill_seconds_count", strategy="measured")
    taken = Change("guideway_fill_seconds_sum", strategy="measured")
    kept = Change("guideway_grammar_cache_bytes")
    results = host.generate([PROMPT] * 2, [GOOD] * 2)
    assert all(result.error is None for result in results)
    assert compiled() == 1, "one compilation for both"
    assert 3 <= filled() <= 30, "both are filled at once"
    assert 0 < taken() < 30
    assert kept() > 0
    host.runtime.close()
    assert kept() == 0


class Steps:
    """How often each part of a step was counted since the start, and its seconds."""

    def __init__(self) -> None:
        parts = ("accept", "close", "draft", "fill", "prepare", "wait")
        self._counts = {part: Change("guideway_step_seconds_count", part=part) for part in parts}
        self._seconds = [Change("guideway_step_seconds_sum", part=part) for part in parts]

    def counts(self) -> dict[str, int]:
        """By part, without parts that had nothing to do."""
        return {part: int(count()) for part, count in self._counts.items() if count()}

    def seconds(self) -> float:
        return sum(seconds() for seconds in self._seconds)


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_each_part_of_a_step_is_counted_once_a_step(num_drafts: int) -> None:
    """With drafts no batch is steady, and without it is, until closing begins."""
    host = FakeHost(
        VOCABULARY,
        NumpyDevice("cpu"),
        strategies={"measured": ReferenceStrategy(VOCABULARY, {})},
        num_drafts=num_drafts,
    )
    steps, num_steps, tight = Steps(), 0, SamplingParams(constraint=Regex("[a-z]{3,60}(xyz)"), seed=7, max_tokens=40)
    for slot in range(2):
        host.join(slot, Request(request_id=str(slot), prompt_token_ids=PROMPT, params=tight))
    host.runtime.validate(0, [0])
    while host.tokens:
        host.step()
        num_steps += 1
    host.runtime.close()
    counts = steps.counts()
    assert 0 < counts.pop("close") < num_steps
    assert counts == {"accept": num_steps, "draft": 1, "fill": num_steps, "prepare": num_steps}


def test_each_moment_of_a_step_counts_for_the_innermost_part() -> None:
    clock, steps = StepClock(), Steps()
    outside = time.monotonic()
    with clock.prepare:
        inside = time.monotonic()
        with clock.prepare, clock.fill:
            pass
        with pytest.raises(KeyError), clock.close, clock.wait:
            raise KeyError
        inside = time.monotonic() - inside
    with clock.accept, clock.draft:
        pass
    outside = time.monotonic() - outside
    assert steps.counts() == {}
    for _ in range(2):
        clock.begin_step()
        assert steps.counts() == dict.fromkeys(("accept", "close", "draft", "fill", "prepare", "wait"), 1)
    assert inside <= steps.seconds() <= outside


def test_what_the_guard_leaves_out(host: FakeHost) -> None:
    left_out = Change("guideway_constraints_left_out_total", strategy="measured", rule="repetition")
    (refused,) = host.generate([PROMPT], [SamplingParams(constraint=Regex("a{1,9000000}"))])
    assert isinstance(refused.error, LimitExceeded)
    assert left_out() == 1


def test_deadlines_threads_and_quarantines() -> None:
    gate = threading.Event()
    missed = Change("guideway_deadlines_missed_total", plugin="hooks.slow", phase="validate_request")
    lost = Change("guideway_lost_threads", pool="guideway-admission")
    quarantined = Change("guideway_quarantines_total", plugin="hooks.slow")

    def validate(request: Request, context: object) -> None:
        gate.wait()

    host = FakeHost(
        VOCABULARY,
        NumpyDevice("cpu"),
        validators={Request: [("hooks.slow", validate)]},
        limits=Limits(admission_seconds=0.1),
    )
    for i in range(3):
        request = Request(request_id=str(i), prompt_token_ids=PROMPT, params=SamplingParams())
        hung = host.runtime.admission_threads.submit(lambda request=request: host.runtime.admit(request))  # type: ignore[misc]
        with pytest.raises(LimitExceeded):
            hung.result(30)
    assert (missed(), lost(), quarantined()) == (3, 3, 1)
    gate.set()
    end = time.monotonic() + 30
    while lost():
        assert time.monotonic() < end
        time.sleep(0.01)
    host.runtime.close()


def test_grammar_hosts() -> None:
    started = Change("guideway_grammar_hosts_started_total")
    killed = Change("guideway_grammar_hosts_ended_total", how="outside")
    host = FakeHost(VOCABULARY, NumpyDevice("cpu"))
    plan = RuntimePlan(
        context=host.runtime.context, strategies=[Plugins().load("grammar", "reference")], grammar_host="process"
    )
    host.runtime.close()
    host.runtime = plan.build()
    weight, steps = Change("guideway_grammar_hosts_bytes"), Steps()
    try:
        host.generate([PROMPT], [GOOD])
        assert started() >= 2
        assert weight() > 1 << 20
        matchers = next(iter(host.runtime._strategies.values()))._matchers  # type: ignore[attr-defined]
        os.kill(matchers.common.host.pid, signal.SIGKILL)
        (result,) = host.generate([PROMPT], [GOOD])
        assert result.error is None
        assert killed() == 1
        assert steps.counts().keys() == {"accept", "prepare", "wait"}
    finally:
        host.runtime.close()
    assert weight() == 0


def test_several_processes_come_together(tmp_path: Path) -> None:
    """If the operator sets the variable, the engine core's metrics are exposed with the front end's."""
    program = "from guideway.runtime.work.metrics import FILL_SECONDS; FILL_SECONDS.labels('s').observe(1.0)"
    shown = (
        "from prometheus_client import CollectorRegistry, generate_latest, multiprocess\n"
        "registry = CollectorRegistry()\n"
        "multiprocess.MultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())"
    )
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    done = subprocess.run([sys.executable, "-c", shown], env=environ, check=True, capture_output=True, text=True)
    assert 'guideway_fill_seconds_count{strategy="s"} 2.0' in done.stdout
