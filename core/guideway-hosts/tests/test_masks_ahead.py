"""Masks that hosts start filling before `prepare`, during the forward pass or before the step is planned: announcements
never change tokens, and a correctly announced step needs no second command."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guideway import Engine, EngineConfig
from guideway.api import Choice, FillJob, GuidewayError, JsonSchema, Regex, SamplingParams
from guideway.api.bitmask import allocate, is_allowed
from guideway.devices.numpy.device import NumpyDevice
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.forced import ForcedTokens
from guideway.runtime.constraints.mask_block import Late
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_hosts.deaths import MAX_DEATHS
from guideway_hosts.host import Host, HostDied
from guideway_hosts.hosts import Hosts
from guideway_hosts.matchers import MatcherHost, MatcherRoom, Step
from guideway_hosts.room import Call
from guideway_hosts.strategy import HostedStrategy

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY
from tests.support.hosts import Makes, inline, makes_hosts, served
from tests.support.stages import everyday

LIMITS = Limits(fill_seconds=3.0, late_seconds=0.03, late_fills=1000, memory_bytes=256 << 20)
PATTERN = SamplingParams(
    constraint=Regex("[a-z]{3,12}(x|y)", strategy="hostile"), temperature=1.0, seed=7, max_tokens=24
)
ARRAY = replace(PATTERN, constraint=JsonSchema({"type": "array", "items": {"type": "integer"}}, strategy="hostile"))
WORDS = replace(PATTERN, constraint=Choice(["perhaps", "perhaps not"], strategy="hostile"))
FORCED = replace(PATTERN, constraint=Regex("(is forced, )[ab](and this)[ab]{2}", strategy="hostile"))
TARDY = replace(PATTERN, constraint=Regex("FT[a-z]{4,9}", strategy="hostile"), seed=5, close=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Makes]:
    with makes_hosts(tmp_path_factory.mktemp("installed"), ["hostile", "reference"], LIMITS) as make:
        yield make


@pytest.fixture(scope="module", params=everyday([False, True], True), ids=["waits", "sits out"])
def hosts(made: Makes, request: pytest.FixtureRequest) -> Hosts:
    return made(sits_out=request.param)


class Foreseeing(FakeHost):
    """Announces each step: exactly, or, unless `exact`, with fewer, no, other or repeated sequences; once it kills the
    host in between. With `forced_tokens`, it does so also when the last step has ended, and uses what is told of some
    sequences as drafts."""

    def __init__(
        self,
        hosts: Hosts,
        *,
        seed: int,
        exact: bool = False,
        forced_tokens: ForcedTokens = "off",
        **options: Any,
    ) -> None:
        super().__init__(
            VOCABULARY,
            NumpyDevice("cpu"),
            strategies=hosts.strategies,
            hosts=hosts,
            forced_tokens=forced_tokens,
            num_forced_tokens=3,
            **options,
        )
        self.forces = forced_tokens != "off"
        self.forced: dict[int, Sequence[int]] = {}
        """By slot the drafts of this step, in place of the usual ones."""
        self.num_forced = 0
        self.random = random.Random(seed)
        self.exact = exact
        self.dies_after: int | None = None
        self.num_steps = 0

    def drafts(self, tokens: list[int]) -> list[int]:
        slot = next((slot for slot, each in self.tokens.items() if each is tokens), -1)
        return list(self.forced[slot]) if slot in self.forced else super().drafts(tokens)

    def step(self) -> None:
        self.forced = {}
        if self.forces:
            found = self.runtime.forced(self.some())
            self.forced = {slot: ids for slot, ids in found.items() if ids}
            self.num_forced += sum(map(len, self.forced.values()))
        foreseen = {slot: self.drafts(self.tokens[slot]) for slot in self.tokens}
        if not self.exact:
            for slot in list(foreseen):
                match self.random.randrange(5):
                    case 0:
                        del foreseen[slot]
                    case 1:
                        foreseen[slot] = foreseen[slot][1:]
                    case 2:
                        foreseen[slot] = [*foreseen[slot], self.random.randrange(len(VOCABULARY))]
            if self.random.random() < 0.2:
                self.runtime.foresee(foreseen)
        self.runtime.foresee(foreseen)
        self.num_steps += 1
        if self.num_steps == self.dies_after:
            os.kill(pid_of(self), signal.SIGKILL)
        super().step()
        if self.forces and (self.exact or self.random.random() < 0.8):
            self.runtime.look_ahead(self.some())

    def some(self) -> dict[int, int]:
        """Return by slot how many forced tokens it may have, for most slots, or all if exact."""
        slots = [slot for slot in self.tokens if self.exact or self.random.random() < 0.8]
        return {slot: self.random.randrange(1, 5) for slot in slots}


def home(host: FakeHost) -> MatcherHost:
    strategy = host.runtime._mask.candidates._strategies["hostile"]
    matchers: MatcherHost = strategy._matchers  # type: ignore[attr-defined]
    return matchers


def pid_of(host: FakeHost) -> int:
    process = home(host).common.host
    assert process is not None
    return process.pid


@pytest.mark.parametrize("num_drafts", everyday([0, 2], 2))
@pytest.mark.parametrize("seed", everyday(range(8), 0))
@pytest.mark.parametrize("forced_tokens", everyday(["off", "exact", "auto"], "off", "exact"))
def test_what_is_foreseen_wrongly_has_no_effect(
    hosts: Hosts, num_drafts: int, seed: int, forced_tokens: ForcedTokens
) -> None:
    host = Foreseeing(hosts, seed=seed, num_drafts=num_drafts, forced_tokens=forced_tokens)
    wanted = [PATTERN, ARRAY, WORDS, FORCED, *([TARDY] if home(host)._sits_out else [])]
    prompts = [PROMPT] * len(wanted)
    expected = inline("hostile", num_drafts=num_drafts).generate(prompts, wanted)
    found = host.generate(prompts, wanted)
    assert [result.error for result in found] == [None] * len(wanted)
    assert [result.token_ids for result in found] == [result.token_ids for result in expected]
    assert host.forces is (host.num_forced > 0)


@pytest.mark.parametrize("others", ["hostile", "reference"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_step_that_was_foreseen_costs_one_command(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, others: str, exact: bool
) -> None:
    """Also if several strategies have a part in it. If nothing was announced, each has a command, and none is asked for
    what the masks say."""
    send, sent = Host.send, list[str]()

    def sending(host: Host, name: str, *arguments: Any, **options: Any) -> None:
        sent.append(arguments[1] if name == "call" else name)
        send(host, name, *arguments, **options)

    monkeypatch.setattr(Host, "send", sending)
    host = Foreseeing(hosts, seed=0, exact=True)
    if not exact:
        monkeypatch.setattr(host.runtime, "foresee", lambda _: None)
    other = replace(PATTERN, constraint=Regex("[a-z]{3,12}(x|y)", strategy=others))
    found = host.generate([PROMPT] * 3, [PATTERN, other, PATTERN])
    assert [result.error for result in found] == [None] * 3
    assert found[1].token_ids == found[0].token_ids
    assert sent.count("step") + sent.count("again") <= host.num_steps * (1 if exact or others == "hostile" else 2)
    assert set(sent) <= {"step", "again", "supports", "takes", "rewritings", "compile", "load"}


@pytest.mark.parametrize("forced_tokens", ["off", "auto"])
def test_a_host_that_is_killed_at_work_ahead_costs_nobody(hosts: Hosts, forced_tokens: ForcedTokens) -> None:
    expected = inline("hostile").generate([PROMPT] * 2, [PATTERN, ARRAY])
    host = Foreseeing(hosts, seed=0, exact=True, forced_tokens=forced_tokens)
    host.dies_after = 4
    found = host.generate([PROMPT] * 2, [PATTERN, ARRAY])
    assert [result.error for result in found] == [None] * 2
    assert [result.token_ids for result in found] == [result.token_ids for result in expected]


@pytest.mark.parametrize("forced_tokens", ["off", "exact"])
def test_a_sequence_that_crashes_ahead_ends_alone(hosts: Hosts, forced_tokens: ForcedTokens) -> None:
    crashing = replace(PATTERN, constraint=Regex("FC[a-z]{4,9}", strategy="hostile"), close=False)
    host = Foreseeing(hosts, seed=0, exact=True, forced_tokens=forced_tokens)
    good, bad, other = host.generate([PROMPT] * 3, [PATTERN, crashing, ARRAY])
    assert (good.error, other.error) == (None, None)
    assert "SIGSEGV" in str(bad.error)


def test_the_engine_says_ahead_what_its_steps_are_of_where_no_forced_tokens_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, ahead, again = MatcherRoom.begin, list[bool](), list[bool]()

    def beginning(room: MatcherRoom, call: Call) -> None:
        ahead.append(isinstance(call, Step) and call.is_ahead)
        again.append(isinstance(call, Step) and call.token_ids is not None)
        begin(room, call)

    monkeypatch.setattr(MatcherRoom, "begin", beginning)
    with Engine(EngineConfig(model="demo", grammar=("llguidance",), max_num_seqs=2, forced_tokens="off")) as engine:
        (result,) = engine.generate(["a"], [SamplingParams(constraint=Regex("[a-z]{20}"), temperature=0.0)])
    assert result.error is None
    assert len(ahead) > 6
    assert sum(ahead) >= len(ahead) - 1
    assert sum(again) >= len(again) - 2, "the same sequences go on as nothing but their tokens"


@pytest.mark.parametrize("known", [True, False], ids=["known masks", "unknown masks"])
def test_advancing_does_what_accepting_does(hosts: Hosts, known: bool) -> None:
    strategy, random_ = hosts.strategies["hostile"], random.Random(0)
    assert isinstance(strategy, HostedStrategy)
    compiled = strategy.compile(Regex("[a-z]{1,3}(x|y)", strategy="hostile"))
    stops, width = VOCABULARY.stop_token_ids, VOCABULARY.logits_width
    odd = [-1, -33, width - 1, width, 1 << 40, *stops]
    legal = [i for i, token in enumerate(VOCABULARY.tokens) if token.isalpha() and token.islower()]
    num_accepted = 0
    for _ in range(4):
        one, other = compiled.matcher(stops), compiled.matcher(stops)
        for _ in range(6):
            token_id = random_.choice(odd if random_.random() < 0.2 else legal)
            bitmask = allocate(2, width)
            if known:
                strategy.fill([FillJob(one, (), 0), FillJob(other, (), 1)], bitmask)
                assert (bitmask[0] == bitmask[1]).all()
            try:
                expected = other.accept((token_id,))
            except GuidewayError:
                expected = -1
            (count,) = strategy.advance([one], np.array([token_id], dtype=np.int64)).tolist()
            assert count == expected
            num_accepted += count == 1
            assert one.is_terminated() is other.is_terminated()
            if count < 0 or one.is_terminated():
                break
    assert num_accepted > 4


@pytest.mark.parametrize("seed", range(6))
def test_matchers_that_go_on_together_do_what_each_does_alone(hosts: Hosts, seed: int) -> None:
    """Whatever happens between a token and its masks, which the host fills ahead."""
    random_, width = random.Random(seed), VOCABULARY.logits_width
    strategy, alone = hosts.strategies["hostile"], ReferenceStrategy(VOCABULARY, {})
    constraint = Regex("([a-z]{1,5}[xy0-9])+", strategy="hostile")
    there, here = strategy.compile(constraint), alone.compile(constraint)
    pairs = [(there.matcher(STOPS), here.matcher(STOPS)) for _ in range(5)]
    if not hosts.matchers._sits_out:  # its fourth token is late
        tardy = Regex("FT[a-z]+", strategy="hostile")
        pairs[0] = strategy.compile(tardy).matcher(STOPS), alone.compile(tardy).matcher(STOPS)
    aside = None
    for number in range(24):
        is_free = number > 4
        if number == 5:  # a third late mask would end the first one
            pairs[0] = there.matcher(STOPS), here.matcher(STOPS)
        wanted, found = allocate(len(pairs), width), allocate(len(pairs), width)
        drafts = tuple(random_.choices(range(width), k=random_.choice([0, 0, 0, is_free])))
        alone.fill([FillJob(mine, (), row) for row, (_, mine) in enumerate(pairs)], wanted)
        if drafts:
            strategy.fill([FillJob(pairs[0][0], drafts)], allocate(2, width))
        jobs = [FillJob(its, (), row) for row, (its, _) in enumerate(pairs)]
        while (counts := strategy.fill(jobs, found).tolist()) != [0] * 5:
            assert all(isinstance(job.error, Late) for job in jobs if counts[job.first_row]), "on a busy machine"
        assert (found == wanted).all()
        legal = [[i for i in range(width) if is_allowed(wanted, row, i) and i not in STOPS] for row in range(5)]
        token_ids = np.array([random_.choice(ids) for ids in legal], dtype=np.int32)
        i = random_.randrange(5)
        if is_free and random_.random() < 0.2:
            aside, pairs[i] = pairs[i], (pairs[i][0].fork(), pairs[i][1].fork())
        assert strategy.advance([its for its, _ in pairs], token_ids).tolist() == [1] * 5
        assert alone.advance([mine for _, mine in pairs], token_ids).tolist() == [1] * 5
        match random_.randrange(12) if is_free else 5 if number == 3 else None:
            case 0:
                for matcher in pairs[i]:
                    matcher.rollback(1)
            case 1:
                pairs[i], aside = aside or pairs[i], pairs[i]
            case 2:
                pairs[i] = there.matcher(STOPS), here.matcher(STOPS)
            case 3:
                random_.shuffle(pairs)
            case 4:
                assert pairs[i][0].validate((*legal[i][:2],)) == pairs[i][1].validate((*legal[i][:2],))
            case 5:
                for both in pairs:
                    for matcher in both:
                        matcher.rollback(1)


@pytest.mark.parametrize("max_tokens", [12, 20])
def test_outputs_are_complete_whose_hosts_are_sent_tokens_only(hosts: Hosts, max_tokens: int) -> None:
    wanted = [
        replace(ARRAY, constraint=Regex("[a-z]+( [a-z]+)*[.]", strategy="hostile"), seed=seed, max_tokens=max_tokens)
        for seed in range(4)
    ]
    expected = inline("hostile").generate([PROMPT] * 4, wanted)
    found = served(hosts).generate([PROMPT] * 4, wanted)
    assert [result.finish_reason for result in found] == ["stop"] * 4
    assert [result.token_ids for result in found] == [result.token_ids for result in expected]


def test_a_host_survives_the_end_of_all_sequences_for_which_it_works_ahead(hosts: Hosts) -> None:
    cut = replace(PATTERN, constraint=Regex("[a-z]{40}", strategy="hostile"), max_tokens=4, close=False)
    host, pids = served(hosts), set[int]()
    for _ in range(5):
        found = host.generate([PROMPT] * 2, [cut] * 2)
        assert [result.finish_reason for result in found] == ["length"] * 2
        pids.add(pid_of(host))
    assert len(pids) == 1


STOPS = VOCABULARY.stop_token_ids
FORCES = Regex("isforced[ab]", strategy="hostile")


@pytest.mark.parametrize("num_sequences", [1, 240, 241, 300])
def test_forced_tokens_of_a_batch_of_any_size_are_found(made: Makes, num_sequences: int) -> None:
    hosts = made()
    compiled = hosts.strategies["hostile"].compile(FORCES)
    jobs = [FillJob(compiled.matcher(STOPS)) for _ in range(num_sequences)]
    hosts.matchers.foresee(jobs, [16] * num_sequences, waits=True)
    hosts.matchers.hear(waits=True)
    found = [bool(job.matcher.forced) for job in jobs]  # type: ignore[attr-defined]
    assert sum(found) >= min(num_sequences, 100), "as many as have room"


def test_an_answer_about_an_ended_sequence_does_not_hide_those_of_others(made: Makes) -> None:
    hosts = made()
    compiled = hosts.strategies["hostile"].compile(FORCES)
    for _ in range(2):  # the answer about the first is read, but no step takes its rows
        matcher = compiled.matcher(STOPS)
        hosts.matchers.foresee([FillJob(matcher)], [8], waits=True)
        hosts.matchers.hear(waits=True)
        assert matcher.forced  # type: ignore[attr-defined]


def test_rows_of_the_state_before_a_token_are_not_kept(made: Makes) -> None:
    strategy = made().strategies["hostile"]
    compiled = strategy.compile(Regex("[ab][cd]", strategy="hostile"))
    one, other = compiled.matcher(STOPS), compiled.matcher(STOPS)
    token_id, bitmask = VOCABULARY.tokens.index(b"a"), allocate(2, VOCABULARY.logits_width)
    strategy.foresee([FillJob(one)])  # type: ignore[attr-defined]
    assert one.accept((token_id,)) == other.accept((token_id,)) == 1
    strategy.fill([FillJob(one, (), 0), FillJob(other, (), 1)], bitmask)
    assert (bitmask[0] == bitmask[1]).all()


def test_a_host_that_cannot_be_started_is_held_against_nobody(made: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = made()
    compiled = hosts.strategies["hostile"].compile(Regex("[ab][cd]", strategy="hostile"))
    matcher, bitmask = compiled.matcher(STOPS), allocate(1, VOCABULARY.logits_width)

    def fork(*_: Any) -> Host:
        raise HostDied("no host can be started")

    for fails in (True, False):
        hosts.matchers.common.lose()
        with monkeypatch.context() as patch:
            for _ in range(2 * MAX_DEATHS if fails else 0):
                patch.setattr("guideway_hosts.fork_server.ForkServer.fork", fork)
                hosts.matchers.foresee([FillJob(matcher)], waits=True)
        job = FillJob(matcher)
        assert hosts.matchers.fill([job], bitmask).tolist() == [0], job.error
