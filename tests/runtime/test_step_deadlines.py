"""Deadlines within a step: a slow call is found, ends its request, and is gone from the next step."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from guideway.api import (
    CONTINUE,
    Array,
    Feedback,
    LogitModifier,
    LogitTransform,
    Outcome,
    Payload,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
)
from guideway.plugins.limits import Limits
from guideway.runtime.work.stopwatch import Stopwatch
from guideway.runtime.work.threads import Deadline
from prometheus_client import REGISTRY

from tests.support.hostile_strategy import Strategy as HostileStrategy
from tests.support.hostility import PROMPT, WORD, assert_alone_ends, host
from tests.support.stages import one_in

LIMITS = Limits(step_seconds=0.1, wall_factor=1000)
GOOD = SamplingParams(constraint=WORD, temperature=1.0, seed=7, max_tokens=24, modifiers={"slow": {}})


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Nothing(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class Slow(LogitModifier[Mapping[str, Any]]):
    """Is slow if its options say so."""

    name, stage, transform = "slow", Stage.PRE_WARP, Nothing
    prepared: int = 0
    """Calls of `prepare` with a slow request."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: None) -> Mapping[str, Any] | None:
        return request.params.modifiers.get("slow")

    def prepare(self, batch: StepBatch, states: Sequence[Mapping[str, Any] | None]) -> Payload | None:
        for state in states:
            seconds = 0.0 if state is None else state.get("prepare", 0.0)
            Slow.prepared += seconds > 0
            spin(seconds)
        return None

    def accept(self, state: Mapping[str, Any], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        spin(state.get("accept", 0.0))
        return CONTINUE


def num_missed(phase: str) -> float:
    labels = {"plugin": "modifier.slow", "phase": phase}
    return REGISTRY.get_sample_value("guideway_deadlines_missed_total", labels) or 0.0


@pytest.mark.parametrize("phase", one_in(2, ["prepare", "accept"]))
def test_who_is_slow_in_a_step_fails_alone(phase: str) -> None:
    before, Slow.prepared = num_missed(phase), 0
    bad = replace(GOOD, modifiers={"slow": {phase: 0.2}})
    result = assert_alone_ends(host(Slow, limits=LIMITS), bad, GOOD)
    assert f"modifier.slow failed in {phase}: LimitExceeded: it took " in str(result.error)
    assert "the limit for a step is 0.1 s processor time" in str(result.error)
    assert num_missed(phase) == before + 1
    assert Slow.prepared <= 2, "once with the others and once alone"


def test_who_is_slow_by_itself_is_asked_once() -> None:
    Slow.prepared = 0
    (result,) = host(Slow, limits=LIMITS).generate([PROMPT], [replace(GOOD, modifiers={"slow": {"prepare": 0.2}})])
    assert "modifier.slow failed in prepare" in str(result.error)
    assert Slow.prepared == 1


@pytest.mark.slow
def test_many_that_take_their_time_together_fail_nobody() -> None:
    wanted = replace(GOOD, modifiers={"slow": {"prepare": 0.04}}, max_tokens=4)
    results = host(Slow, limits=LIMITS).generate([PROMPT] * 6, [wanted] * 6)
    assert [result.error for result in results] == [None] * 6


def test_masks_that_are_slow_in_this_process_cost_their_own_request() -> None:
    subject = host(strategies=(HostileStrategy,), limits=LIMITS)
    bad = replace(GOOD, modifiers={}, constraint=Regex("FT[a-z]{4,9}"))
    result = assert_alone_ends(subject, bad, replace(GOOD, modifiers={}))
    assert "grammar.hostile failed in prepare: LimitExceeded: it took " in str(result.error)


def test_what_waits_is_judged_by_the_clock_alone() -> None:
    watch = Stopwatch(Deadline(wall_seconds=0.3, processor_seconds=0.05))
    began = watch.start()
    time.sleep(0.1)
    assert not watch.overrun(began)
    began = watch.start()
    time.sleep(0.35)
    assert watch.overrun(began) >= 0.35


def test_what_came_before_a_call_is_not_held_against_it() -> None:
    watch = Stopwatch(Deadline(wall_seconds=30, processor_seconds=0.1))
    assert not watch.overrun(watch.start())
    spin(0.04)
    began = watch.start()  # the earlier reading is still fresh
    time.sleep(0.12)
    assert not watch.overrun(began)
    began = watch.start()
    spin(0.15)
    assert watch.overrun(began) >= 0.15
    assert not watch.overrun(watch.start())


@pytest.mark.slow
def test_what_the_collector_of_garbage_takes_is_not_held_against_a_call() -> None:
    watch = Stopwatch(Deadline(wall_seconds=30, processor_seconds=0.05))
    heap: list[Any] = []
    taken = 0.0
    while taken < 0.1:  # until a collection takes longer than the deadline
        heap += [[each] for each in range(200_000)]
        began, before = watch.start(), time.thread_time()
        gc.collect()
        taken = time.thread_time() - before
        assert not watch.overrun(began)
    began = watch.start()
    gc.collect()
    spin(0.1)
    assert watch.overrun(began) >= 0.1, "what else the call did counts"
    watch = Stopwatch(Deadline(wall_seconds=0.05, processor_seconds=0.01))
    began = watch.start()
    gc.collect()
    assert watch.overrun(began), "by the clock it counts, so that no call can go on for ever"


def test_a_request_ends_when_its_time_is_over() -> None:
    subject = host(Slow, limits=Limits(request_seconds=0.3))
    endless = SamplingParams(max_tokens=200, ignore_eos=True, modifiers={"slow": {"prepare": 0.01}})
    late, good = subject.generate([PROMPT] * 2, [endless, replace(GOOD, max_tokens=5)])
    assert "LimitExceeded: it took longer than 0.3 s since its admission" in str(late.error)
    assert good.error is None
