"""Late rows: a sequence whose masks are not ready skips steps, while others continue, and all tokens stay the same."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from guideway.api import (
    FillJob,
    FinishReason,
    GenerationResult,
    JsonSchema,
    LimitExceeded,
    Matcher,
    Regex,
    Request,
    SamplingParams,
)
from guideway.api.bitmask import allocate, unpack
from guideway.devices.numpy.device import NumpyDevice
from guideway.errors import GuidewayError
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.digests import constraint_digest
from guideway.runtime.constraints.mask_block import Late
from guideway_hosts.host import Allowed, HostDied
from guideway_hosts.hosts import Hosts
from guideway_hosts.matcher import HostedGrammar, HostedMatcher
from guideway_hosts.matchers import MOST_OWN, PROVES_FAST, MatcherHost, MatcherRoom, Step
from guideway_hosts.room import Source
from guideway_hosts.strategy import HostedStrategy
from prometheus_client import REGISTRY

from tests.support.fake_host import FakeHost
from tests.support.hostile_strategy import TARDY, WEIGHT
from tests.support.hostile_strategy import Strategy as HostileStrategy
from tests.support.hostility import PROMPT, VOCABULARY
from tests.support.hosts import Makes, inline, makes_hosts, private_bytes, served
from tests.support.processes import until
from tests.support.stages import everyday, one_in

STOPS = VOCABULARY.stop_token_ids
LIMITS = Limits(fill_seconds=3.0, late_seconds=0.03, late_fills=1000, memory_bytes=256 << 20)
GOOD = SamplingParams(constraint=Regex("[a-z]{3,12}(x|y)", strategy="hostile"), temperature=1.0, seed=7, max_tokens=24)
OTHER = replace(GOOD, constraint=JsonSchema({"type": "array", "items": {"type": "integer"}}, strategy="hostile"))
TARDY_ONE = replace(GOOD, constraint=Regex("FT[a-z]{4,9}", strategy="hostile"), seed=5, close=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Makes]:
    with makes_hosts(tmp_path_factory.mktemp("installed"), ["hostile"], LIMITS) as make:
        yield partial(make, sits_out=True)


@pytest.fixture(scope="module")
def hosts(made: Makes) -> Hosts:
    return made()


def token_ids(results: list[GenerationResult]) -> list[tuple[int, ...]]:
    assert [result.error for result in results] == [None] * len(results)
    return [result.outputs[0].token_ids for result in results]


def ids_of(letters: bytes) -> list[int]:
    """Return one token for each letter."""
    return [VOCABULARY.tokens.index(bytes([letter])) for letter in letters]


def num_late() -> float:
    return REGISTRY.get_sample_value("guideway_late_rows_total", {"strategy": "hostile"}) or 0.0


@pytest.mark.parametrize("num_drafts", everyday([0, 2], 2))
def test_who_is_late_is_late_alone_and_loses_nothing(hosts: Hosts, num_drafts: int) -> None:
    wanted = [GOOD, TARDY_ONE, OTHER]
    expected = token_ids(inline("hostile", num_drafts=num_drafts).generate([PROMPT] * 3, wanted))
    host, before = served(hosts, num_drafts=num_drafts), num_late()
    left: list[int] = []
    """Tokens left for the late one after each step in which the others had finished."""
    step = host.step

    def watched() -> None:
        step()
        if len(host.results) == 2 and 1 in host.tokens:
            left.append(len(PROMPT) + len(expected[1]) - len(host.tokens[1]))

    host.step = watched  # type: ignore[method-assign]
    assert token_ids(host.generate([PROMPT] * 3, wanted)) == expected
    assert num_late() > before
    assert len(expected[1]) >= 4, "else it was never slow"
    assert left[0] > 1, "the others were done before"


@pytest.mark.slow
def test_masks_beside_those_of_hosts_have_a_deadline_too(hosts: Hosts) -> None:
    """One is late in its host, and counted once per step; its neighbor spins in this process."""
    strategies = {"here": HostileStrategy(VOCABULARY, {}), **hosts.strategies}
    limits = replace(LIMITS, step_seconds=0.1, wall_factor=1000)
    host = FakeHost(VOCABULARY, NumpyDevice("cpu"), strategies=strategies, hosts=hosts, limits=limits)
    step, num_sat_out, before = host.step, 0, num_late()

    def counted() -> None:
        nonlocal num_sat_out
        step()
        num_sat_out += sum(host.runtime.is_late(slot) for slot in list(host.tokens))

    host.step = counted  # type: ignore[method-assign]
    spinning = replace(TARDY_ONE, constraint=Regex("FT[a-z]{4,9}", strategy="here"))
    (expected,) = token_ids(inline("hostile").generate([PROMPT], [TARDY_ONE]))
    late, spun = host.generate([PROMPT] * 2, [TARDY_ONE, spinning])
    assert token_ids([late]) == [expected]
    assert "grammar.here failed in prepare: LimitExceeded: it took " in str(spun.error)
    assert num_late() - before == num_sat_out > 0


@pytest.mark.slow
def test_who_is_late_too_often_fails_alone(made: Makes) -> None:
    hosts = made(replace(LIMITS, late_fills=2))
    good, late = served(hosts).generate([PROMPT] * 2, [GOOD, TARDY_ONE])
    assert good.error is None
    assert "it took more than 0.03 s processor time for one step, 2 times" in str(late.error)
    (again,) = served(hosts).generate([PROMPT], [TARDY_ONE])
    assert isinstance(again.error, LimitExceeded)
    assert "failed on this constraint recently" in str(again.error)


@pytest.mark.slow
def test_where_others_have_to_wait_three_times_are_the_most(made: Makes) -> None:
    hosts, before = made(sits_out=False), num_late()
    good, late = served(hosts).generate([PROMPT] * 2, [GOOD, TARDY_ONE])
    assert good.error is None
    assert "it took more than 0.03 s processor time for one step, 3 times" in str(late.error)
    assert num_late() == before


@pytest.mark.slow
def test_a_host_that_is_killed_while_somebody_is_late_costs_nobody_anything(hosts: Hosts) -> None:
    wanted = [GOOD, TARDY_ONE, OTHER]
    expected = token_ids(inline("hostile").generate([PROMPT] * 3, wanted))
    host, killed = served(hosts), 0
    step = host.step

    def killing() -> None:
        nonlocal killed
        step()
        pending = [room for room in hosts.matchers.rooms if room.pending]
        if pending and killed < 2:
            killed += 1
            assert pending[0].host is not None
            os.kill(pending[0].host.pid, (signal.SIGKILL, signal.SIGSTOP)[killed - 1])

    host.step = killing  # type: ignore[method-assign]
    assert token_ids(host.generate([PROMPT] * 3, wanted)) == expected
    assert killed == 2


@pytest.mark.parametrize("pattern", one_in(2, ["FS[a-z]{4,9}", "AS[a-z]{4,9}"]))
def test_what_nobody_waits_for_is_ended(made: Makes, pattern: str) -> None:
    hosts = made(replace(LIMITS, fill_seconds=600.0))
    spinning = replace(GOOD, constraint=Regex(pattern, strategy="hostile"))
    host = served(hosts)
    host.join(0, Request(request_id="0", prompt_token_ids=tuple(PROMPT), params=spinning))
    for _ in range(8):
        host.step()
    assert host.runtime.is_late(0)
    room = next(room for room in hosts.matchers.rooms if room.pending)
    assert room.host is not None
    pid = room.host.pid
    host.runtime.release(0, ended=False)
    gc.collect()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)
    assert token_ids(served(hosts).generate([PROMPT], [GOOD]))


def test_a_host_that_gets_no_processor_is_not_ended_with_its_sequences(made: Makes) -> None:
    hosts, bitmask = made(), allocate(1, VOCABULARY.logits_width)
    grammar = hosts.strategies["hostile"].compile(Regex("[a-z]{3}", strategy="hostile"))
    late = grammar.matcher(STOPS)
    late.fill_bitmask(bitmask, 0)
    host = hosts.matchers.common.host
    assert host is not None
    os.kill(host.pid, signal.SIGSTOP)
    hosts.matchers.fill([FillJob(late)], bitmask)
    assert hosts.matchers.common.pending is not None
    time.sleep(0.1)
    del late
    gc.collect()
    os.kill(host.pid, signal.SIGCONT)
    grammar.matcher(STOPS).fill_bitmask(bitmask, 0)
    assert hosts.matchers.common.host is host


def test_a_host_that_loads_a_grammar_is_not_ended_with_its_sequences(made: Makes) -> None:
    hosts, bitmask = made(), allocate(1, VOCABULARY.logits_width)
    with loading(hosts, "CL[a-z]") as begun:
        host = hosts.matchers.common.host
        assert host is not None
        hosts.matchers.fill([FillJob(begun[0])], bitmask)
        until(lambda: host._lines[False].seconds[0] > 0.1)
        del begun
        gc.collect()
        assert not host.given_up


@contextmanager
def loading(hosts: Hosts, pattern: str) -> Iterator[tuple[Matcher, Future[None]]]:
    """Yield a matcher, whose next masks never end, and the load of a grammar in the same host."""
    late = hosts.strategies["hostile"].compile(Regex("FS[a-z]{4,9}", strategy="hostile")).matcher(STOPS)
    assert late.accept(ids_of(b"FSab")) == 4
    room = hosts.matchers.common
    source = Source(room.unload, "grammar.hostile", Regex(pattern, strategy="hostile"))
    with ThreadPoolExecutor() as pool:
        loaded = pool.submit(room.load, source)
        until(lambda: room.host is not None and room.host._lines[True].is_busy)
        try:
            yield late, loaded
        finally:
            room.close()
            loaded.exception()


@pytest.mark.parametrize("limits", one_in(2, [{"fill_seconds": 0.2}, {"compile_seconds": 0.2}]))
def test_of_two_threads_the_one_that_works_too_long_is_blamed(made: Makes, limits: dict[str, float]) -> None:
    """The other one sleeps. Its limit is as short, or the blamed one's would be longer with it."""
    hosts = made(replace(LIMITS, **{"fill_seconds": 3.0, "compile_seconds": 9.0, "wall_factor": 100, **limits}))
    with loading(hosts, "CL[a-z]") as (late, loaded):
        host = hosts.matchers.common.host
        assert host is not None
        with pytest.raises(GuidewayError, match=r"its limit of [\d.]+ s processor time") as raised:
            late.fill_bitmask(allocate(1, VOCABULARY.logits_width), 0)
        seconds = float(re.findall(r"[\d.]+", str(raised.value))[0])
        assert seconds < limits.get("fill_seconds", 3.0) + 1.0, "with the time to make it again, but not of the load"
        died = loaded.exception() if loaded.done() else None
        assert died is None or (isinstance(died, HostDied) and not died.by_itself)
    assert [regex for _, _, regex in hosts.matchers.refused._why._values] == [
        constraint_digest(late.grammar.constraint)  # type: ignore[attr-defined]
    ]


@pytest.mark.slow
def test_who_waits_for_an_earlier_command_is_not_blamed_for_it(made: Makes) -> None:
    hosts = made(replace(LIMITS, fill_seconds=0.4))
    spinning = replace(GOOD, constraint=Regex("FS[a-z]{4,9}", strategy="hostile"))
    neighbor = replace(GOOD, constraint=Regex("[a-z]{20,30}", strategy="hostile"))
    host = served(hosts)
    for slot, params in enumerate((spinning, neighbor)):
        host.join(slot, Request(request_id=str(slot), prompt_token_ids=tuple(PROMPT), params=params))
    while not host.runtime.is_late(0):
        host.step()
    assert host.runtime.is_late(1), "it shares the host"
    host.runtime.release(0, ended=False)
    del host.tokens[0]
    while host.tokens:
        host.step()
    assert host.results[1].error is None
    (again,) = served(hosts).generate([PROMPT], [neighbor])
    assert again.error is None


def test_what_fails_where_the_slow_ones_are_leaves_nothing_there(hosts: Hosts) -> None:
    strategy, living = hosts.strategies["hostile"], hosts.matchers
    grammar = strategy.compile(Regex("FR[a-z]{2,9}", strategy="hostile"))
    assert isinstance(grammar, HostedGrammar)
    living._judge(grammar, True)
    for number in range(100):
        matcher = grammar.matcher(STOPS)
        assert matcher.accept(ids_of(b"FRab")) == 4
        with pytest.raises(GuidewayError, match="a bug"):
            matcher.fill_bitmask(allocate(1, VOCABULARY.logits_width), 0)
        if number == 4:
            before = private_bytes(living.own[grammar.number])
    assert private_bytes(living.own[grammar.number]) < before + 64 * WEIGHT


def test_who_was_slow_for_a_while_is_not_slow_for_ever(hosts: Hosts) -> None:
    """After a cold cache or a paused machine steps wait for its rows as for others. After a relapse it must be in time
    twice as often."""
    strategy, living = hosts.strategies["hostile"], hosts.matchers
    grammar = strategy.compile(Regex("[a-z]{9,99}", strategy="hostile"))
    assert isinstance(grammar, HostedGrammar)
    matcher, here = grammar.matcher(STOPS), inline_matcher("[a-z]{9,99}")
    bitmask, expected = (allocate(1, VOCABULARY.logits_width) for _ in range(2))
    for proves in (PROVES_FAST, 2 * PROVES_FAST):
        living._judge(grammar, True)
        for _ in range(proves):
            assert living.is_slow(grammar.number)
            for one, rows in ((matcher, bitmask), (here, expected)):
                one.fill_bitmask(rows, 0)
                assert one.accept(ids_of(b"a")) == 1
            np.testing.assert_array_equal(bitmask, expected)
        assert not living.is_slow(grammar.number)
    matcher.fill_bitmask(bitmask, 0)
    here.fill_bitmask(expected, 0)
    np.testing.assert_array_equal(bitmask, expected)
    assert matcher.born_in == living.own[grammar.number].number


def test_who_is_late_now_and_then_never_has_the_rows_of_another_state(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several matchers at different states, some waiting for an answer, while their grammar alternates between slow and
    fast."""
    monkeypatch.setattr("guideway_hosts.matchers.HURRIED", Allowed(0.0))
    monkeypatch.setattr("guideway_hosts.matchers.PROVES_FAST", 2)
    monkeypatch.setattr("guideway_hosts.matchers.PROVES_FAST_AT_MOST", 4)
    strategy, living, rng = hosts.strategies["hostile"], hosts.matchers, random.Random(5)
    letters = ids_of(b"abcdefghij")
    grammar = strategy.compile(Regex("(abcdefghij)+", strategy="hostile"))
    assert isinstance(grammar, HostedGrammar)
    matchers = [grammar.matcher(STOPS) for _ in range(3)]
    counts, num_late, num_relapses = [0] * len(matchers), 0, 0
    for _ in range(5000):
        time.sleep(rng.choice((0.0, 0.002, 0.005)))  # its host may or may not answer meanwhile
        if num_relapses == 40 or min(counts) > 400:
            break
        if not living.is_slow(grammar.number) and rng.random() < 0.3:
            living._judge(grammar, True)
            num_relapses += 1
        asking = rng.sample(range(len(matchers)), rng.randint(1, len(matchers)))
        bitmask = allocate(len(asking), VOCABULARY.logits_width)
        jobs = [FillJob(matchers[i], (), row) for row, i in enumerate(asking)]
        for row, (i, count) in enumerate(zip(asking, living.fill(jobs, bitmask), strict=True)):
            if count < 0:
                assert isinstance(jobs[row].error, Late)
                num_late += 1
                continue
            expected = {letters[counts[i] % 10]} | (set(STOPS) if counts[i] and counts[i] % 10 == 0 else set())
            legal = set(np.flatnonzero(unpack(bitmask[row : row + 1], len(VOCABULARY.tokens))[0]).tolist())
            assert legal & {*letters, *STOPS} == expected
            assert matchers[i].accept([letters[counts[i] % 10]]) == 1
            counts[i] += 1
    assert num_late > 20 and num_relapses > 20 and min(counts) > 20


def inline_matcher(pattern: str) -> Matcher:
    return HostileStrategy(VOCABULARY, {}).compile(Regex(pattern)).matcher(STOPS)


def test_whose_rows_are_kept_is_in_no_other_command(made: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matcher may draw from the kept rows, and its next `accept` must not be combined with the other command's
    answer."""
    hosts = made()
    strategy = hosts.strategies["hostile"]
    assert isinstance(strategy, HostedStrategy)
    compiled = strategy.compile(Regex("abc[a-z]{2}", strategy="hostile"))
    matcher = compiled.matcher(STOPS)
    assert isinstance(matcher, HostedMatcher)
    bitmask = allocate(1, VOCABULARY.logits_width)
    matcher.fill_bitmask(bitmask, 0)  # starts the host
    assert matcher.accept(ids_of(b"a")) == 1

    other = compiled.matcher(STOPS)
    strategy.foresee([FillJob(matcher)], [4])
    other.fill_bitmask(bitmask, 0)  # waits for the work before it
    forced = matcher.forced
    assert forced
    assert matcher.answer is not None

    def begin(*_: object, **__: object) -> None:
        raise AssertionError("another command")

    monkeypatch.setattr(MatcherRoom, "begin", begin)
    strategy.foresee([FillJob(matcher)], [4])
    strategy.hear(waits=True)
    assert matcher.forced == forced
    matcher.fill_bitmask(bitmask, 0)
    monkeypatch.undo()
    assert matcher.accept(ids_of(b"b")) == 1
    matcher.fill_bitmask(bitmask, 0)
    assert matcher.accept(ids_of(b"b")) == 0 and matcher.accept(ids_of(b"c")) == 1


@pytest.mark.slow
def test_who_ends_while_it_is_made_anew_leaves_nothing(hosts: Hosts) -> None:
    """Two are late together, for the first time in this host, and one ends before its rows are ready."""
    strategy, living = hosts.strategies["hostile"], hosts.matchers
    slow = strategy.compile(Regex("FT[a-z]{4,30}", strategy="hostile"))
    assert isinstance(slow, HostedGrammar)
    living._judge(slow, True)
    begun = slow.matcher(STOPS)
    assert begun.accept(ids_of(b"FTab")) == 4
    for number in range(100):
        late, short = begun.fork(), slow.matcher(STOPS)
        jobs = [FillJob(late, (), 0), FillJob(short, (), 1)]
        living.fill(jobs, allocate(2, VOCABULARY.logits_width))
        assert living.own[slow.number].pending
        del short, jobs[1]
        late.fill_bitmask(allocate(1, VOCABULARY.logits_width), 0)
        del late, jobs[0]
        if number == 4:
            before = private_bytes(living.own[slow.number])
    assert private_bytes(living.own[slow.number]) < before + 64 * WEIGHT


@pytest.mark.parametrize("fails", ["fill", "advance"])
def test_a_matcher_that_is_replayed_keeps_its_budget_and_its_limits(
    made: Makes, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The runtime replaces matchers after a call of their strategy that failed for all of them."""
    hosts = made(replace(LIMITS, fill_seconds=0.5))
    long = replace(GOOD, constraint=Regex("[a-z]{9,400}[xy]", strategy="hostile"), max_tokens=60)
    spinning = replace(GOOD, constraint=Regex("FS[a-z]{4,9}", strategy="hostile"))
    expected = token_ids(inline("hostile").generate([PROMPT] * 2, [long, replace(long, seed=8)]))
    original, num_calls = getattr(HostedStrategy, fails), 0

    def failing(*arguments: object) -> object:
        nonlocal num_calls
        num_calls += 1
        if num_calls in (2, 5):
            raise RuntimeError("once")
        return original(*arguments)

    monkeypatch.setattr(HostedStrategy, fails, failing)
    assert token_ids(served(hosts).generate([PROMPT] * 2, [long, replace(long, seed=8)])) == expected
    assert num_calls >= 5
    num_calls = 0
    good, bad = served(hosts).generate([PROMPT] * 2, [long, spinning])
    assert token_ids([good]) == expected[:1]
    assert re.search("0.5 s processor time|did not answer", str(bad.error))


def test_searches_do_not_count_as_late_rows(made: Makes) -> None:
    hosts = made()
    strategy, living = hosts.strategies["hostile"], hosts.matchers
    assert isinstance(strategy, HostedStrategy)
    matcher = strategy.compile(Regex("QTab[cd]{9}", strategy="hostile")).matcher(STOPS)
    assert isinstance(matcher, HostedMatcher)
    bitmask = allocate(1, VOCABULARY.logits_width)
    matcher.fill_bitmask(bitmask, 0)  # starts the host
    strategy.foresee([FillJob(matcher)], [8])
    strategy.hear(waits=True)
    assert matcher.forced is not None
    matcher.fill_bitmask(bitmask, 0)
    assert not matcher.num_late and not living.own


@pytest.mark.slow
def test_an_output_of_a_slow_grammar_is_complete_too(made: Makes) -> None:
    """Each token that the search for its end accepts is late, and all together take longer than a fill may."""
    hosts = made(replace(LIMITS, fill_seconds=TARDY))
    closed = replace(TARDY_ONE, constraint=Regex("AMabab(X|z{90})", strategy="hostile"), close=True, max_tokens=9)
    expected = inline("hostile").generate([PROMPT], [closed])
    (result,) = served(hosts).generate([PROMPT], [closed])
    assert token_ids([result]) == token_ids(expected)
    assert result.outputs[0].finish_reason is FinishReason.STOP


def test_a_host_that_was_ended_is_not_started_again_in_the_same_step(made: Makes) -> None:
    """A grammar becomes slow in the step of another one, whose host must end for it."""
    hosts = made()
    strategy, living = hosts.strategies["hostile"], hosts.matchers
    bitmask, matchers = allocate(MOST_OWN + 2, VOCABULARY.logits_width), list[HostedMatcher]()
    for number in range(MOST_OWN + 1):
        matcher = strategy.compile(Regex(f"FT[a-z]{{{number + 2},9}}[XY]", strategy="hostile")).matcher(STOPS)
        assert isinstance(matcher, HostedMatcher)
        matchers.append(matcher)
    for matcher in matchers[:MOST_OWN]:
        living._judge(matcher.grammar, True)
        matcher.fill_bitmask(bitmask, 0)
    assert matchers[-1].accept(ids_of(b"FTab")) == 4
    first = living.own[matchers[0].grammar.number]
    order = [*matchers[-1:], *matchers[:-1]]  # the common host's answer comes first
    jobs = [FillJob(matcher, (), row) for row, matcher in enumerate(order)]
    while matchers[-1].grammar.number not in living.own:
        living.fill(jobs, bitmask)
    living.fill(jobs, bitmask)
    assert first.host is None and first.starting is None
    assert len(living.own) == MOST_OWN


@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning"
)  # jax warns if an earlier test imported it; this child only exits
def test_a_forked_child_ends_no_host(hosts: Hosts) -> None:
    strategy = hosts.strategies["hostile"]
    matcher = strategy.compile(GOOD.constraint).matcher(STOPS)  # type: ignore[arg-type]
    matcher.validate([0])
    host = hosts.matchers.common.host
    assert host is not None
    child = os.fork()
    if child == 0:
        host.kill()
        os._exit(0)
    os.waitpid(child, 0)
    assert not host.is_gone()


def test_what_hangs_in_a_fill_is_killed_while_the_others_go_on(made: Makes) -> None:
    hosts = made(replace(LIMITS, fill_seconds=0.5))
    spinning = replace(GOOD, constraint=Regex("FS[a-z]{4,9}", strategy="hostile"))
    free = SamplingParams(max_tokens=200, temperature=1.0, seed=3, ignore_eos=True)
    host = served(hosts)
    steps: list[float] = []
    step = host.step

    def timed() -> None:
        began = time.monotonic()
        step()
        steps.append(time.monotonic() - began)

    host.step = timed  # type: ignore[method-assign]
    unconstrained, bad = host.generate([PROMPT] * 2, [free, spinning])
    assert unconstrained.error is None
    assert re.search("0.5 s processor time|did not answer", str(bad.error))
    assert len(steps) >= 200
    assert TARDY < 0.5


def test_a_call_for_many_may_take_three_times_as_long_as_one(hosts: Hosts) -> None:
    grammar = hosts.strategies["hostile"].compile(GOOD.constraint)  # type: ignore[arg-type]
    jobs = [FillJob(grammar.matcher(STOPS), (), row) for row in range(64)]
    limits = [Step(jobs[:count], 0.5) for count in (1, 9, 64)]
    assert [step.seconds * step.share for step in limits] == [0.5, 1.0, 1.5]


def test_what_is_asked_of_one_who_is_late_is_answered(hosts: Hosts) -> None:
    strategy = hosts.strategies["hostile"]
    matcher = strategy.compile(TARDY_ONE.constraint).matcher(STOPS)  # type: ignore[arg-type]
    ids = ids_of(b"FTabc")
    assert matcher.accept(ids) == 5
    fork = matcher.fork()
    assert matcher.validate([ids[-1]] * 9) == 6
    assert fork.validate([ids[-1]] * 9) == 6


@pytest.mark.slow
def test_two_who_are_slow_wait_for_each_other_at_no_step(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(TARDY_ONE, constraint=Regex("FT[a-z]{5,10}", strategy="hostile"), seed=6)
    expected = token_ids(inline("hostile").generate([PROMPT] * 3, [TARDY_ONE, other, GOOD]))
    asked: list[str] = []
    ask = MatcherHost.ask
    monkeypatch.setattr(
        MatcherHost,
        "ask",
        lambda self, matcher, method, *rest: asked.append(method) or ask(self, matcher, method, *rest),
    )
    host = served(hosts)
    for slot, params in enumerate([TARDY_ONE, other, GOOD]):
        host.join(slot, Request(request_id=str(slot), prompt_token_ids=tuple(PROMPT), params=params))
        for _ in range(6):  # the second becomes slow while rows of the first are being filled
            host.step()
    while host.tokens:
        host.step()
    assert token_ids([host.results[slot] for slot in range(3)]) == expected
    assert asked == [], "a question waits for what the host is at"


@pytest.mark.slow
def test_what_came_while_one_was_in_no_step_is_kept(made: Makes) -> None:
    hosts = made()
    strategy = hosts.strategies["hostile"]
    grammar = strategy.compile(Regex("FT[a-z]{6,10}", strategy="hostile"))
    assert isinstance(grammar, HostedGrammar)
    first, second = grammar.matcher(STOPS), grammar.matcher(STOPS)
    bitmask = allocate(2, VOCABULARY.logits_width)

    def is_late(matcher: Matcher) -> bool:
        job = FillJob(matcher, (), 0)
        return bool(strategy.fill([job], bitmask)[0] < 0) and isinstance(job.error, Late)

    def until_ready(matcher: Matcher) -> None:
        end = time.monotonic() + 30
        while not strategy.is_ready(matcher):
            assert time.monotonic() < end
            time.sleep(0.01)

    for matcher in (first, second):  # from here on they are marked as slow
        assert matcher.accept(ids_of(b"FTab")) == 4
        while is_late(matcher):
            until_ready(matcher)
    until(lambda: is_late(first))
    until_ready(first)
    assert is_late(second), "it is asked while the other one's rows lie there"
    assert strategy.is_ready(first)
    assert not is_late(first)
    until_ready(second)
    assert not is_late(second)


@pytest.mark.parametrize(
    ("before", "now"),
    everyday(
        [(b"cd", b"xy"), (b"cd", b"cy"), (b"c", b"cy"), (b"cd", b"c"), (b"c1", b"cy")], (b"cd", b"xy"), (b"cd", b"c")
    ),
)
def test_rows_that_came_late_are_not_those_of_other_drafts(hosts: Hosts, before: bytes, now: bytes) -> None:
    """Otherwise a draft that was not validated would be drawn from its row, and the next one from an open row."""
    strategy = hosts.strategies["hostile"]
    matcher = strategy.compile(TARDY_ONE.constraint).matcher(STOPS)  # type: ignore[arg-type]
    assert isinstance(matcher, HostedMatcher)
    bitmask = allocate(4, VOCABULARY.logits_width)
    assert matcher.accept(ids_of(b"FTab")) == 4
    jobs = [FillJob(matcher, tuple(ids_of(drafts)), 0) for drafts in (before, now)]
    assert strategy.fill(jobs[:1], bitmask)[0] == -1
    assert isinstance(jobs[0].error, Late)
    end = time.monotonic() + 60
    while (count := strategy.fill(jobs[1:], bitmask)[0]) < 0:
        assert isinstance(jobs[1].error, Late)
        assert time.monotonic() < end
        jobs[1].error = None
        time.sleep(0.05)
    assert count == len(now)


@pytest.mark.slow
def test_the_one_unused_for_the_longest_has_no_host_of_its_own_any_more(made: Makes) -> None:
    hosts = made()
    strategy, living = hosts.strategies["hostile"], hosts.matchers
    bitmask, grammars = allocate(1, VOCABULARY.logits_width), []
    for number in range(MOST_OWN + 1):
        grammars.append(strategy.compile(Regex(f"[a-z]{{{number + 2}}}", strategy="hostile")))
        matcher = grammars[-1].matcher(STOPS)
        assert isinstance(matcher, HostedMatcher)
        living._judge(matcher.grammar, True)
        matcher.fill_bitmask(bitmask, 0)
        assert list(living.own)[-1] == matcher.grammar.number
        first = grammars[0].matcher(STOPS)
        first.fill_bitmask(bitmask, 0)
    assert isinstance(first, HostedMatcher)
    assert len(living.own) == MOST_OWN
    assert list(living.own)[-1] == first.grammar.number, "the second was not used since"
    del first, matcher, grammars
    gc.collect()
    strategy.compile(GOOD.constraint).matcher(STOPS).fill_bitmask(bitmask, 0)  # type: ignore[arg-type]
    assert not living.own, "nobody has their grammars"
