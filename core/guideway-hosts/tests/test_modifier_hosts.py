"""Modifier hosts: a crash, a hang or too much memory ends only the request that caused it, and never changes other
requests' tokens."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    FinishReason,
    InvalidRequest,
    LimitExceeded,
    LogitModifier,
    ModifierContext,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway.errors import InvalidConfiguration, PluginError, PluginLoadError, Unhealthy
from guideway.plugins import Plugins
from guideway.plugins.limits import Limits
from guideway.runtime import RuntimePlan
from guideway_hosts.host import Host
from guideway_hosts.modifier import HostedModifier

from tests.support.distributions import install
from tests.support.fake_host import OFFERS, FakeHost
from tests.support.hostility import PROMPT, VOCABULARY
from tests.support.probes import GreenList
from tests.support.processes import children, hosts_of, until
from tests.support.stages import everyday, one_in

LIMITS = Limits(
    compile_seconds=1.5, start_seconds=1.2, step_seconds=1.0, admission_seconds=5, wall_factor=4, memory_bytes=256 << 20
)
PROBES = ("green_list", "gumbel", "guidance", "aligned", "last_word_a", "last_word_b")

Served = Callable[..., FakeHost]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Builds hosts of installed modifiers, and closes them."""
    folder = tmp_path_factory.mktemp("installed")
    entries = {f"modifier.{name}": "tests.support.probes" for name in PROBES}
    hostile = {f"modifier.{name}": "tests.support.hostile_modifier" for name in ("hostile", "forcing")}
    install(folder, "probes", entries | hostile)
    sys.path.insert(0, str(folder))
    opened: list[FakeHost] = []

    def make(
        modifiers: tuple[str, ...],
        modifier_host: Any = "process",
        *,
        num_drafts: int = 0,
        limits: Limits = LIMITS,
        **settings: Any,
    ) -> FakeHost:
        plugins = Plugins()
        plan = RuntimePlan(
            context=ModifierContext(vocabulary=VOCABULARY, max_num_sequences=16, max_model_len=256),
            strategies=[plugins.load("grammar", "reference")],
            modifiers=[plugins.load("modifier", name) for name in modifiers],
            offers=OFFERS,
            modifier_host=modifier_host,
            limits=limits,
            **settings,
        )
        host = FakeHost(VOCABULARY, NumpyDevice("cpu"), num_drafts=num_drafts, runtime=plan.build())
        opened.append(host)
        return host

    yield make
    sys.path.remove(str(folder))
    for host in opened:
        host.runtime.close()


@pytest.fixture(scope="module")
def hostile(served: Served) -> FakeHost:
    """A host shared by many tests: a killed process is restarted for the next."""
    return served(("hostile",))


def using(seed: int = 7, **options: Any) -> SamplingParams:
    return SamplingParams(modifiers={"hostile": options}, temperature=1.0, seed=seed, max_tokens=24, logprobs=2)


def visible_results(host: FakeHost, wanted: list[SamplingParams]) -> list[Any]:
    """Return everything that users can see."""
    outputs = [result.outputs[0] for result in host.generate([PROMPT] * len(wanted), wanted)]
    return [(o.token_ids, o.logprobs, o.reports, o.unenforced, o.finish_reason, str(o.error)) for o in outputs]


@pytest.mark.parametrize("num_drafts", one_in(2, [0, 3]))
def test_hosted_or_inline_the_user_is_told_the_same(served: Served, num_drafts: int) -> None:
    modifiers = ("hello", "hostile", *PROBES)
    word = Regex("[a-z]{3,12}(x|y)")
    plain = SamplingParams(temperature=1.0, seed=5, max_tokens=24, logprobs=2)
    wanted = [
        plain,
        using(),
        replace(using(8, finish=18), constraint=word),
        using(9, companion=True),
        replace(plain, modifiers={"green_list": {"key": 3, "delta": 4.0}, "hello": {"letter": "e", "strength": 20.0}}),
        replace(plain, modifiers={"gumbel": {}}),
        replace(plain, modifiers={"guidance": {"scale": 2.0, "negative_prompt": [1, 2]}}),
        replace(plain, modifiers={"aligned": {}}, constraint=word),
        replace(plain, modifiers={"last_word_a": {"id": 70}, "last_word_b": {"id": 71}}, max_tokens=5),
        replace(plain, modifiers={"last_word_a": {"id": 302}}, max_tokens=5),
        replace(plain, modifiers={"hello": {"letter": "EE"}}),
        replace(plain, modifiers={"gumbel": {}}, temperature=0.0),
        using(when="start", what="raise"),
        using(when="compile", what="raise"),
        using(when="prepare", what="raise", after=14),
        using(when="accept", what="raise", after=14),
    ]
    here = visible_results(served(modifiers, "inline", num_drafts=num_drafts), wanted)
    host = served(modifiers, num_drafts=num_drafts)
    assert {type(m) for m in host.runtime._by_name.values()} == {HostedModifier}
    assert visible_results(host, wanted) == here
    assert len({tokens for tokens, *_ in here}) > 8, "the modifiers act"


ENDS = (
    ("compile", "spin", LimitExceeded, "compile: .*(1.5 s processor time|did not answer)"),
    ("compile", "sleep", LimitExceeded, "compile: it did not answer"),
    ("compile", "crash", PluginError, "compile: .*SIGSEGV"),
    ("compile", "eat", LimitExceeded, "compile: MemoryError"),
    ("compile_key", "crash", PluginError, "compile_key: .*SIGSEGV"),
    ("companions", "spin", LimitExceeded, "companions: .*(processor|did not answer)"),
    ("companions", "crash", PluginError, "companions: .*SIGSEGV"),
    ("start", "spin", LimitExceeded, "start: .*(processor time|did not answer)"),
    ("start", "crash", PluginError, "start: .*SIGSEGV"),
    ("start", "killed", PluginError, "start: .*from outside"),
    ("prepare", "spin", PluginError, "prepare: LimitExceeded: .*(1 s processor time|did not answer)"),
    ("prepare", "sleep", PluginError, "prepare: LimitExceeded: it did not answer"),
    ("prepare", "crash", PluginError, "prepare: .*SIGSEGV"),
    ("prepare", "eat", LimitExceeded, "prepare: MemoryError"),
    ("prepare", "killed", PluginError, "prepare: .*from outside"),
    ("accept", "spin", PluginError, "accept: LimitExceeded: .*(1 s processor time|did not answer)"),
    ("accept", "crash", PluginError, "accept: .*SIGSEGV"),
    ("accept", "eat", LimitExceeded, "accept: MemoryError"),
    ("accept", "killed", PluginError, "accept: .*from outside"),
    ("report", "crash", PluginError, "report: .*SIGSEGV"),
    ("report", "spin", PluginError, "report: LimitExceeded: .*(1 s|did not answer)"),
)


LONG = {("compile", "sleep"), ("companions", "spin"), ("start", "spin"), ("prepare", "sleep"), ("accept", "spin")}
LONG |= {("report", "spin")}
"""Ended by a limit after a second or more. Two others like them run every day."""
QUICK = [end for end in ENDS if end[:2] not in LONG]


@pytest.mark.parametrize(("when", "what", "error", "words"), everyday(ENDS, *QUICK))
@pytest.mark.parametrize("companion", everyday([False, True], False))
def test_what_ends_its_host_ends_its_request_alone(
    hostile: FakeHost, when: str, what: str, error: type[Exception], words: str, companion: bool
) -> None:
    good = [using(companion=companion), using(8, companion=companion)]
    alone = visible_results(hostile, good)
    bad = using(when=when, what=what, after=len(PROMPT) + 5)
    results = visible_results(hostile, [good[0], bad, good[1]])
    assert [results[0], results[2]] == alone
    failure = hostile.results[1].outputs[0].error
    assert isinstance(failure, error), failure
    assert re.search(rf"modifier\.hostile failed in {words}", str(failure)), failure
    if when in ("prepare", "accept"):
        assert len(results[1][0]) == 5
        refused = error is LimitExceeded
        assert results[1][4] is (FinishReason.REFUSED if refused else FinishReason.INTERNAL_ERROR)


@pytest.mark.parametrize("when", one_in(2, ["prepare", "accept"]))
def test_several_at_once(hostile: FakeHost, when: str) -> None:
    good = [using(), using(8)]
    alone = visible_results(hostile, good)
    bad = [using(when=when, what=what, after=len(PROMPT) + 5) for what in ("crash", "spin", "raise")]
    results = visible_results(hostile, [bad[0], good[0], bad[1], good[1], bad[2]])
    assert [results[1], results[3]] == alone
    assert [r[4] for r in results[::2]] == [FinishReason.INTERNAL_ERROR] * 3


@pytest.mark.parametrize("how", everyday([signal.SIGKILL, signal.SIGSTOP], signal.SIGKILL))
@pytest.mark.parametrize("num_drafts", everyday([0, 3], 3))
def test_hosts_killed_from_outside_cost_nobody_anything(served: Served, how: signal.Signals, num_drafts: int) -> None:
    wanted = [using(), using(8, companion=True), replace(using(9), constraint=Regex("[a-z]{3,12}(x|y)"))]
    expected = visible_results(served(("hostile",), "inline", num_drafts=num_drafts), wanted)
    host = served(("hostile",), num_drafts=num_drafts)
    step, killed = host.step, []

    def killing() -> None:
        living = hosted(host)._room.host
        if len(killed) < 3 and living is not None:
            killed.append(living.pid)
            os.kill(living.pid, how)
        step()

    host.step = killing  # type: ignore[method-assign]
    assert visible_results(host, wanted) == expected
    assert len(set(killed)) == 3


def hosted(host: FakeHost, name: str = "hostile") -> HostedModifier:
    modifier = host.runtime._by_name[name]
    assert isinstance(modifier, HostedModifier)
    return modifier


def test_what_was_announced_and_did_not_become_final_has_no_effect(served: Served) -> None:
    """vLLM, for example, cuts the tokens of a step at a stop string, or drops them."""
    wanted = [using(), using(8)]
    for host in (served(("hostile",), "inline"), served(("hostile",))):
        runtime = host.runtime
        accept = runtime.accept

        def announcing(batch: Any, token_ids: Any, output: Any = None, runtime: Any = runtime) -> Any:
            steps = [(s, r, ids, output) for s, r, ids in zip(batch.slots, batch.row_start, token_ids, strict=False)]
            runtime.announce([(slot, row, [*ids, 3], output) for slot, row, ids, output in steps])
            if len(runtime.journal(0).token_ids) % 3 == 0:  # these are dropped before the next step
                runtime.prepare(batch)
            return [runtime.accept_one(*step) for step in steps]

        expected = visible_results(host, wanted)
        runtime.accept = announcing  # type: ignore[method-assign]
        assert visible_results(host, wanted) == expected
        runtime.accept = accept  # type: ignore[method-assign]


@pytest.mark.parametrize("lose", [False, True])
def test_a_fork_goes_on_as_one_in_this_process(served: Served, lose: bool) -> None:
    found = []
    for where in ("inline", "process"):
        host = served(("hostile",), where)
        for slot, params in enumerate([using(), using(8)]):
            host.join(slot, Request(request_id=f"{where} {slot}", prompt_token_ids=tuple(PROMPT), params=params))
        for number in range(12):
            host.step()
            if number in (2, 5):
                parent, child = (0, 2) if number == 2 else (2, 3)
                host.runtime.fork(parent, child, index=child)
                for of_slot in (host.companions, host.tokens, host.limits, host.logprobs):
                    of_slot[child] = list(of_slot[parent]) if of_slot is host.tokens else of_slot[parent]  # type: ignore
                host.logprobs[child] = list(host.logprobs[parent])
            if where == "process" and lose and number in (2, 4, 7):
                lose_host(host)
        found.append([(host.tokens[slot], host.runtime.reports(slot)) for slot in range(4)])
        for slot in range(4):
            host.runtime.release(slot)
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens, _ in found[0]}) == 4


def lose_host(host: FakeHost, name: str = "hostile") -> None:
    home = hosted(host, name)._room
    assert home.host is not None
    os.kill(home.host.pid, signal.SIGKILL)


def test_a_preempted_sequence_goes_on(served: Served) -> None:
    """The sequence is released, and restarted from its journal in another slot."""
    found = []
    for where in ("inline", "process"):
        host = served(("hostile",), where)
        request = Request(request_id=f"{where} preempted", prompt_token_ids=tuple(PROMPT), params=using())
        admission = host.runtime.admit(request)
        host.runtime.start(admission, 0)
        host.companions[0], host.logprobs[0], host.limits[0] = (), [], 100
        host.tokens[0] = list(PROMPT)
        for _ in range(5):
            host.step()
        journal = host.runtime.journal(0)
        host.runtime.release(0, ended=False)
        if where == "process":
            lose_host(host)
        host.runtime.start(admission, 0, journal=journal)
        host.runtime.rebuild(0)
        for _ in range(5):
            host.step()
        found.append((host.tokens[0], host.runtime.reports(0)))
        host.runtime.release(0)
    assert found[0] == found[1]


def test_each_sequence_is_released_once(served: Served) -> None:
    """Releases keep the order of events, and come before the next step."""
    host = served(("hostile",))
    host.generate(
        [PROMPT] * 5,
        [using(), using(8), SamplingParams(max_tokens=3), using(when="start", what="raise")] * 1
        + [using(when="accept", what="raise", after=14)],
    )
    assert living(host) == 0


def living(host: FakeHost) -> int:
    """Return the number of sequences that the modifier in the host has started and not released."""
    (result,) = host.generate([PROMPT], [replace(using(), modifiers={"hostile": {"tell": True}}, max_tokens=2)])
    return int(result.outputs[0].reports["hostile"]["living"]) - 1


def test_states_that_were_made_again_for_a_call_that_failed_are_released_too(served: Served) -> None:
    host = served(("hostile",))
    step, num_steps = host.step, 0

    def killing() -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 5:  # the next `prepare` makes all states again, and fails for one of them
            lose_host(host)
        step()

    host.step = killing  # type: ignore[method-assign]
    bad = using(when="prepare", what="raise", after=len(PROMPT) + 4)
    good, failed, other = host.generate([PROMPT] * 3, [using(), bad, using(8)])
    assert (good.error, other.error) == (None, None)
    assert "failed in prepare: RuntimeError: a bug" in str(failed.error)
    assert living(host) == 0


@pytest.mark.parametrize("what", one_in(2, ["sleep", "spin"]))
def test_an_abort_ends_a_compilation_at_once(served: Served, what: str) -> None:
    host = served(("hostile",), limits=replace(LIMITS, compile_seconds=60), compile_threads=1)
    runtime, busy = host.runtime, hosted(host)._pool._busy
    for number in range(2):
        hanging = using(when="compile", what=what, finish=99 + number)
        twins = [Request(request_id=f"{what} {number} {i}", prompt_token_ids=(1,), params=hanging) for i in range(2)]
        first, second = map(runtime.admit, twins)
        until(lambda: busy and next(iter(busy)).done())
        (started,) = busy
        runtime.abandon(first)
        time.sleep(0.1)
        assert started in busy, "another request waits for the same"
        runtime.abandon(second)
        until(lambda: not busy)
    assert host.generate([PROMPT], [using()])[0].outputs[0].error is None


@pytest.mark.slow
def test_a_release_that_fails_ends_nobody(hostile: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    good = using()
    (alone,) = visible_results(hostile, [good])
    for what in ("raise", "crash", "spin"):
        visible_results(hostile, [using(when="release", what=what)])
        assert visible_results(hostile, [good]) == [alone]
    assert "modifier.hostile failed in release; its sequence had ended: RuntimeError: a bug" in caplog.text


def test_a_class_that_no_entry_point_names_is_inline(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(GreenList):
        name = "mine"

    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)
    hello = Plugins().load("modifier", "hello")
    runtime = RuntimePlan(context=context, strategies=(), modifiers=(Mine, hello), modifier_host="process").build()
    try:
        assert {name: type(m) for name, m in runtime._by_name.items()} == {"mine": Mine, "hello": HostedModifier}
        assert {Mine, hello} < {cls for cls, _ in runtime.modifier_classes()}
    finally:
        runtime.close()
    assert "modifier 'mine' runs in the serving process: its class has no entry point" in caplog.text


def test_one_that_compiles_with_grammars_of_this_process_is_inline(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    host = served(("hostile", "hello"), grammar_host="inline")
    assert [type(m).__name__ for m in host.runtime._by_name.values()] == ["Hostile", "HostedModifier"]
    assert "it needs compiled grammars, and those of reference are there" in caplog.text


def test_options_that_are_wrong_are_refused_at_the_start(served: Served) -> None:
    with pytest.raises(PluginLoadError, match=r"modifier\.hostile failed while it was built: ValueError: no such"):
        served(("hostile",), options={"modifier.hostile": {"refuse": True}})


def test_options_of_a_configuration_keep_nothing_here(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Configurations hold options as read-only mappings, in tuples too."""
    given = MappingProxyType({"parts": (MappingProxyType({"kind": "x"}),)})
    host = served(("hostile",), options=MappingProxyType({"modifier.hostile": given}))
    assert [type(m).__name__ for m in host.runtime._by_name.values()] == ["HostedModifier"]
    assert host.runtime.foresees
    assert "runs in the serving process" not in caplog.text
    assert host.generate([PROMPT], [using()])[0].error is None


def test_options_that_are_no_json_keep_their_component_here(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    host = served(("hostile", "hello"), options={"modifier.hostile": {"call": lambda: None}})
    assert [type(m).__name__ for m in host.runtime._by_name.values()] == ["Hostile", "HostedModifier"]
    assert "modifier 'hostile' runs in the serving process: its options are not JSON" in caplog.text
    with pytest.raises(InvalidConfiguration, match="unknown option 'call'"):
        served(("hello",), options={"grammar.reference": {"call": lambda: None}})
    assert "strategy 'reference' runs in the serving process: its options are not JSON" in caplog.text


def test_a_request_that_cannot_be_sent_is_refused(hostile: FakeHost) -> None:
    (result,) = hostile.generate([PROMPT], [using(call=lambda: None)])
    assert isinstance(result.outputs[0].error, InvalidRequest)
    assert "cannot be sent to the host of modifier 'hostile'" in str(result.outputs[0].error)


def test_nothing_is_left_when_they_are_closed(served: Served, tmp_path: Path) -> None:
    marks = tmp_path / "closed"
    others = hosts_of(os.getpid())
    host = served(("hostile",), options={"modifier.hostile": {"closed": str(marks)}})
    visible_results(host, [using()])
    server = hosted(host)._room._server.process
    assert server is not None
    pids = children(server.pid) - others
    assert len(pids) > 1
    state = hosted(host)._room.host
    assert state is not None
    host.runtime.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert str(state.pid) in marks.read_text().split(), "the one in the host was closed"


def test_health_tells_of_hosts_that_cannot_be_started(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    host = served(("hostile",), host_environment=("GWT_*",))
    host.runtime.check_health()
    (alone,) = visible_results(host, [using()])
    server = hosted(host)._room._server
    monkeypatch.setenv("GWT_HOSTILE_MODIFIER_REFUSES", "1")
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    time.sleep(0.3)
    (failed,) = host.generate([PROMPT], [using()])
    assert "no host can be started: modifier.hostile failed while it was built" in str(failed.outputs[0].error)
    with pytest.raises(Unhealthy, match="no host can be started"):
        host.runtime.check_health()
    monkeypatch.delenv("GWT_HOSTILE_MODIFIER_REFUSES")
    server._rests_until = 0.0
    assert visible_results(host, [using()]) == [alone]
    host.runtime.check_health()


def payload_of(rows: list[Any]) -> dict[str, Any]:
    return {
        "found": [None],
        "failures": [],
        "errors": {},
        "payload": {"rows": rows, "arrays": {}, "shared": {}, "faults": []},
    }


ANSWERS: list[Any] = [
    ({"found": [], "failures": [], "errors": {}}, None),
    ({}, None),
    ([], None),
    ({"found": [None], "failures": [], "errors": {}}, None),
    ({"found": [], "failures": [], "errors": {}, "payload": None}, None),
    ({"found": [None], "failures": [], "errors": {"7": {"kind": "", "type": "E", "text": "E"}}, "payload": None}, None),
    ({"found": [None], "failures": [], "errors": {"x": 1}, "payload": None}, None),
    (payload_of(["<i4", [10**6]]), b""),
    (payload_of(["O", [1]]), b"8" * 8),
    (payload_of(["<i4", [0, 1 << 99]]), None),
    (payload_of(["<i4", [-1]]), None),
    (payload_of(["i4,O", [1]]), b"8" * 12),
]


@pytest.mark.parametrize(
    ("method", "answer"),
    [*(("prepare", answer) for answer in ANSWERS), *(("accept", answer) for answer in ANSWERS[:3])],
    ids=str,
)
def test_an_answer_that_cannot_be_read_ends_its_request_alone(
    hostile: FakeHost, method: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code that corrupted the host may send such answers."""
    wanted = [using(), SamplingParams(temperature=1.0, seed=3, max_tokens=24)]
    _, free = visible_results(hostile, wanted)
    ask, send = Host.answer, Host.send
    asked: list[str] = []

    def sending(host: Host, name: str, *arguments: Any, beside: bool = False) -> None:
        asked.append(arguments[1] if name == "call" else name)
        send(host, name, *arguments, beside=beside)

    def answering(host: Host, *arguments: Any, **options: Any) -> Any:
        name, found = asked[-1], ask(host, *arguments, **options)
        return answer if name == method and asked.count(method) > 3 else found

    monkeypatch.setattr(Host, "send", sending)
    monkeypatch.setattr(Host, "answer", answering)
    failed, other = visible_results(hostile, wanted)
    assert other == free
    assert failed[4] is FinishReason.INTERNAL_ERROR
    assert f"modifier.hostile failed in {method}: HostDied: the answer of its host cannot be read" in failed[5]


def test_every_verb_is_as_inline(served: Served) -> None:
    """This includes methods that no host calls yet."""
    (there,) = served(("forcing",)).runtime._by_name.values()
    (here,) = served(("forcing",), "inline").runtime._by_name.values()
    params = SamplingParams(modifiers={"forcing": {"when": "forced", "what": "raise", "after": len(PROMPT) + 4}})
    request = Request(request_id="verbs", prompt_token_ids=tuple(PROMPT), params=params)
    info = SequenceInfo(index=0, seed=3, prompt_token_ids=tuple(PROMPT))

    def heard(modifier: LogitModifier[Any]) -> list[Any]:
        state = modifier.start(request, info, modifier.compile(request, None))
        assert state is not None
        found: list[Any] = [modifier.compile_key(request) == modifier.compile_key(request), modifier.plugin_of(state)]
        found += [tuple(modifier.forced(state, limit)) for limit in (0, 2, 9)]
        found += [modifier.validate(state, ids) for ids in ((), (5,), (5, 6, 7, 8))]
        found += [modifier.accept(state, (40, 41, 42), {"top": np.array([0.5, 0.25, 0.125], dtype=np.float32)})]
        child = modifier.fork(state)
        found += [modifier.accept(state, (43,), None), tuple(modifier.forced(child, 9))]
        found += [modifier.report(state), modifier.report(child), modifier.companions(request)]
        with pytest.raises(Exception, match="a bug"):
            modifier.forced(state, 3)
        for each in (state, child):
            modifier.release(each)
        return found

    assert heard(there) == heard(here)


@pytest.mark.parametrize("lose", one_in(2, [False, True]))
def test_forks_share_a_state_that_is_derived(served: Served, lose: bool) -> None:
    found = []
    for where in ("inline", "process"):
        host = served(("green_list",), where)
        params = replace(using(), modifiers={"green_list": {"key": 3, "delta": 4.0}})
        host.join(0, Request(request_id=f"{where} {lose}", prompt_token_ids=tuple(PROMPT), params=params))
        host.step()
        host.runtime.fork(0, 1, index=1)
        host.companions[1], host.tokens[1], host.limits[1], host.logprobs[1] = (), list(host.tokens[0]), 100, []
        if where == "process" and lose:
            lose_host(host, "green_list")
        for _ in range(4):
            host.step()
        found.append([host.tokens[0], host.tokens[1]])
        host.runtime.release(0)
        del host.tokens[0]
        host.step()
        host.runtime.release(1)
    assert found[0] == found[1]
