"""Grammar hosts: a crash, a hang or too much memory ends only the request that caused it, and a host killed from
outside ends no request."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from guideway.api import (
    Choice,
    FinishReason,
    JsonSchema,
    LimitExceeded,
    ModifierContext,
    Regex,
    SamplingParams,
)
from guideway.api.bitmask import allocate
from guideway.errors import (
    GuidewayError,
    InvalidConfiguration,
    PluginError,
    Unhealthy,
    UnsupportedGrammar,
)
from guideway.plugins import Plugins
from guideway.plugins.limits import Limits
from guideway.runtime import RuntimePlan
from guideway.runtime.plan import placement
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_hosts.deaths import MAX_DEATHS
from guideway_hosts.fork_server import _Running
from guideway_hosts.host import CLOSING_SECONDS, Host
from guideway_hosts.hosts import Hosts
from guideway_hosts.strategy import HostedStrategy

from tests.support.distributions import install
from tests.support.hostile_strategy import REFUSES, WEIGHT
from tests.support.hostility import PROMPT, VOCABULARY
from tests.support.hosts import Makes, inline, makes_hosts, private_bytes, served
from tests.support.processes import children, hosts_of, is_alive, until
from tests.support.stages import everyday, one_in
from tests.support.vocabularies import encode

LIMITS = Limits(compile_seconds=1.5, fill_seconds=1.0, wall_factor=4, memory_bytes=256 << 20)
GOOD = SamplingParams(constraint=Regex("[a-z]{3,12}(x|y)"), temperature=1.0, seed=7, max_tokens=24)
OTHER = SamplingParams(
    constraint=JsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5}),
    temperature=1.0,
    seed=3,
    max_tokens=40,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Makes]:
    with makes_hosts(tmp_path_factory.mktemp("installed"), ["hostile", "reference"], LIMITS) as make:
        yield make


@pytest.fixture(scope="module")
def hosts(made: Makes) -> Hosts:
    """Hosts shared by many tests: a killed one is restarted for the next."""
    return made()


def asking(pattern: str, *, close: bool = False) -> SamplingParams:
    """Return parameters without closing by default, because closing would call `accept` with other tokens."""
    return replace(GOOD, constraint=Regex(pattern, strategy="hostile"), close=close)


def fork_server(hosts: Hosts) -> int:
    hosts.strategies["reference"].supports(Regex("a"))  # starts it if necessary
    process = hosts._server.process
    assert process is not None
    return process.pid


@pytest.mark.parametrize("num_drafts", one_in(2, [0, 3]))
def test_the_tokens_are_those_of_a_strategy_in_this_process(hosts: Hosts, num_drafts: int) -> None:
    wanted = [GOOD, OTHER, replace(GOOD, constraint=Choice(["perhaps", "perhaps not"])), SamplingParams(max_tokens=9)]
    here = inline(num_drafts=num_drafts).generate([PROMPT] * 4, wanted)
    there = served(hosts, num_drafts=num_drafts).generate([PROMPT] * 4, wanted)
    assert [r.outputs[0].error for r in there] == [None] * 4
    assert [r.token_ids for r in there] == [r.token_ids for r in here]
    assert [r.outputs[0].finish_reason for r in there] == [r.outputs[0].finish_reason for r in here]


@pytest.mark.parametrize(
    ("pattern", "error", "said"),
    one_in(
        2,
        [
            ("CS[a-z]+", LimitExceeded, "1.5 s processor time|did not answer"),
            ("CC[a-z]+", PluginError, "SIGSEGV"),
            ("CO[a-z]+", PluginError, "SIGSEGV"),
            ("CK[a-z]+", PluginError, "from outside"),
            ("CE[a-z]+", LimitExceeded, "MemoryError.*raise limits.memory_bytes"),
            ("CA[a-z]+", LimitExceeded, "SIGABRT"),
            ("CR[a-z]+", PluginError, "a bug"),
            ("SS[a-z]+", LimitExceeded, "1.5 s processor time|did not answer"),
            ("SC[a-z]+", PluginError, "SIGSEGV"),
            ("a{3", UnsupportedGrammar, "too early"),
        ],
    ),
)
def test_a_compilation_that_fails_ends_its_request_alone(
    hosts: Hosts, pattern: str, error: type[Exception], said: str
) -> None:
    host = served(hosts)
    (alone,) = host.generate([PROMPT], [GOOD])
    before, bad, after = host.generate([PROMPT] * 3, [GOOD, asking(pattern), GOOD])
    assert (before.outputs[0].error, after.outputs[0].error) == (None, None)
    assert before.token_ids == after.token_ids == alone.token_ids
    failure = bad.outputs[0].error
    assert isinstance(failure, error), failure
    assert re.search(said, str(failure))


def test_an_answer_of_another_version_says_what_to_do(made: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    host = served(made())
    ask, send = Host.answer, Host.send
    sent: list[str] = []

    def sending(host: Host, name: str, *arguments: Any, **options: Any) -> None:
        sent.append(arguments[1] if name == "call" else name)
        send(host, name, *arguments, **options)

    def answering(host: Host, *arguments: Any, **options: Any) -> Any:
        found = ask(host, *arguments, **options)
        return ({"found": None}, None) if sent[-1] == "step" else found

    monkeypatch.setattr(Host, "send", sending)
    monkeypatch.setattr(Host, "answer", answering)
    (bad,) = host.generate([PROMPT], [GOOD])
    said = str(bad.outputs[0].error)
    assert "the answer of its host cannot be read (KeyError: 'errors')" in said
    assert "is guideway installed in several versions" in said


@pytest.mark.parametrize(
    ("pattern", "error", "said"),
    one_in(
        2,
        [
            ("FS[a-z]", PluginError, "1 s processor time|did not answer"),
            ("FC[a-z]", PluginError, "SIGSEGV"),
            ("FO[a-z]", PluginError, "SIGSEGV"),
            ("AS[a-z]", PluginError, "1 s processor time|did not answer"),
            ("AC[a-z]", PluginError, "SIGSEGV"),
            ("FR[a-z]", PluginError, "a bug"),
            ("FK[a-z]", PluginError, "from outside"),
            ("FE[a-z]", LimitExceeded, "MemoryError"),
            ("FA[a-z]", LimitExceeded, "SIGABRT"),
            ("AE[a-z]", LimitExceeded, "MemoryError"),
        ],
    ),
)
@pytest.mark.parametrize("num_drafts", everyday([0, 2], 2))
def test_a_step_that_fails_ends_its_request_alone(
    hosts: Hosts, pattern: str, error: type[Exception], said: str, num_drafts: int
) -> None:
    """The matchers of other requests in the host are rebuilt, and continue with the same tokens."""
    host = served(hosts, num_drafts=num_drafts)
    good = replace(GOOD, constraint=Regex("[a-z]{3,12}(x|y)", strategy="hostile"))
    (alone,) = host.generate([PROMPT], [good])
    before, bad, after = host.generate([PROMPT] * 3, [good, asking(f"{pattern}{{{9 + num_drafts}}}"), good])
    assert (before.outputs[0].error, after.outputs[0].error) == (None, None)
    assert before.token_ids == after.token_ids == alone.token_ids
    assert (before.outputs[0].error, after.outputs[0].error) == (None, None)
    refused = error is LimitExceeded
    assert bad.outputs[0].finish_reason is (FinishReason.REFUSED if refused else FinishReason.INTERNAL_ERROR)
    assert isinstance(bad.outputs[0].error, error)
    assert re.search(said, str(bad.outputs[0].error))
    assert "grammar.hostile" in str(bad.outputs[0].error)


BATCHING = """
import numpy as np
from guideway.api import hookimpl
from tests.support.hostile_strategy import Strategy as Hostile
class Strategy(Hostile):
    name = "batching"
    def fill(self, jobs, bitmask):
        for job in jobs:
            job.matcher.fill_bitmask(bitmask, job.first_row)
        return np.zeros(len(jobs), dtype=np.int32)
@hookimpl
def guideway_grammar_strategy():
    return Strategy
"""


@pytest.mark.parametrize(
    ("word", "said"), [("FR", "a bug"), ("FC", "SIGSEGV"), ("FS", "s processor time|did not answer")]
)
def test_a_batch_that_fails_ends_the_request_alone_that_it_fails_for(tmp_path: Path, word: str, said: str) -> None:
    install(tmp_path, "batching", {"grammar.batching": "batching_strategy"})
    (tmp_path / "batching_strategy.py").write_text(BATCHING, "utf-8")
    good = replace(GOOD, constraint=Regex("[a-z]{3,12}(x|y)", strategy="batching"))
    failing = replace(asking(f"{word}[a-z]{{9}}"), constraint=Regex(f"{word}[a-z]{{9}}", strategy="batching"))
    with makes_hosts(tmp_path, ["batching"], LIMITS) as make:
        host = served(make())
        (alone,) = host.generate([PROMPT], [good])
        before, bad, after = host.generate([PROMPT] * 3, [good, failing, good])
    assert before.token_ids == after.token_ids == alone.token_ids
    assert re.search(said, str(bad.outputs[0].error))


@pytest.mark.slow
def test_what_hangs_in_the_search_for_an_end_is_killed_while_the_others_go_on(hosts: Hosts) -> None:
    host = served(hosts, short_budget="cut")  # else the search at the beginning finds it
    good = replace(GOOD, constraint=Regex("[a-z]{3,12}(x|y)", strategy="hostile"))
    (alone,) = host.generate([PROMPT], [good])
    # so long that its end is searched for before the first token
    before, bad, after = host.generate([PROMPT] * 3, [good, asking("AS[a-z]{20}", close=True), good])
    assert before.token_ids == after.token_ids == alone.token_ids
    limit = LIMITS.fill_seconds + CLOSING_SECONDS
    assert re.search(f"{limit:g} s processor time|did not answer", str(bad.outputs[0].error))


@pytest.mark.slow
def test_what_broke_a_limit_is_refused_at_once_until_it_is_forgotten(made: Makes) -> None:
    hosts = made(replace(LIMITS, remembered_seconds=1.0))
    host = served(hosts)
    for pattern in ("CS[a-z]+", "FC[a-z]{9}"):
        host.generate([PROMPT], [asking(pattern)])
        living = children(fork_server(hosts))
        (again,) = host.generate([PROMPT], [asking(pattern)])
        assert isinstance(again.outputs[0].error, LimitExceeded)
        assert "failed on this constraint recently" in str(again.outputs[0].error)
        assert children(fork_server(hosts)) == living
    time.sleep(1.1)
    (later,) = host.generate([PROMPT], [asking("FC[a-z]{9}")])
    assert "SIGSEGV" in str(later.outputs[0].error)


@pytest.mark.parametrize(
    ("how", "num_drafts"),
    everyday([(signal.SIGKILL, 0), (signal.SIGKILL, 3), (signal.SIGSTOP, 0), (signal.SIGSTOP, 3)], (signal.SIGKILL, 3)),
)
def test_hosts_killed_from_outside_cost_nobody_anything(hosts: Hosts, how: signal.Signals, num_drafts: int) -> None:
    host = served(hosts, num_drafts=num_drafts)
    wanted = [GOOD, OTHER, GOOD, OTHER]
    expected = inline(num_drafts=num_drafts).generate([PROMPT] * 4, wanted)
    step, steps = host.step, 0

    def killing() -> None:
        nonlocal steps
        steps += 1
        if steps in (2, 5):
            for pid in children(fork_server(hosts)):
                os.kill(pid, how)
        step()

    host.step = killing  # type: ignore[method-assign]
    assert [r.token_ids for r in host.generate([PROMPT] * 4, wanted)] == [r.token_ids for r in expected]
    assert steps > 5
    # the hosts' deaths are not held against the requests that were running
    assert [r.token_ids for r in host.generate([PROMPT] * 4, wanted)] == [r.token_ids for r in expected]


@pytest.mark.parametrize("how", everyday([signal.SIGKILL, signal.SIGSTOP], signal.SIGKILL))
def test_the_fork_server_is_started_again_once(hosts: Hosts, how: signal.Signals) -> None:
    host = served(hosts)
    (alone,) = host.generate([PROMPT], [GOOD])
    first = fork_server(hosts)
    os.kill(first, how)
    for pid in children(first):  # hosts of requests in progress
        os.kill(pid, signal.SIGKILL)
    seen = set()
    for length in range(3, 7):
        (again,) = host.generate([PROMPT], [replace(GOOD, constraint=Regex(f"[a-z]{{{length},12}}(y|{how.name})"))])
        assert again.outputs[0].error is None
        seen.add(fork_server(hosts))
    assert len(seen) == 1
    assert first not in seen
    assert host.generate([PROMPT], [GOOD])[0].token_ids == alone.token_ids


@pytest.mark.parametrize("how", everyday([signal.SIGKILL, signal.SIGSTOP], signal.SIGKILL))
def test_a_start_that_is_killed_any_number_of_times_costs_nobody_anything(
    made: Makes, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    ask, killed = _Running.ask, set[int]()

    def killing(running: _Running, *command: Any, **options: Any) -> Any:
        if command[0] == "build" and len(killed) < 8:
            killed.add(running.process.pid)
            os.kill(running.process.pid, how)
        return ask(running, *command, **options)

    monkeypatch.setattr(_Running, "ask", killing)
    results = served(made()).generate([PROMPT] * 2, [GOOD, OTHER])
    assert [result.error for result in results] == [None] * 2
    assert len(killed) == 8
    until(lambda: not any(map(is_alive, killed)))


def test_a_host_killed_while_it_loads_a_grammar_costs_nobody_anything(
    made: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, call, killed = made(), Host.call, set[int]()

    def killing(host: Host, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "load":
            killed.add(host.pid)
            os.kill(host.pid, signal.SIGKILL)
        return call(host, name, *arguments, **options)

    monkeypatch.setattr(Host, "call", killing)
    found = served(hosts).generate([PROMPT] * 2, [GOOD, OTHER])
    assert [r.token_ids for r in found] == [r.token_ids for r in inline().generate([PROMPT] * 2, [GOOD, OTHER])]
    assert len(killed) == 2 * MAX_DEATHS


@pytest.mark.slow
def test_a_hangup_is_for_the_serving_process(made: Makes) -> None:
    """The kernel sends SIGHUP to an orphaned process group when one member ends while another is stopped."""
    hosts = made()
    host = served(hosts)
    (alone,) = host.generate([PROMPT], [GOOD])
    before = {fork_server(hosts), *children(fork_server(hosts))}
    os.killpg(os.getpgid(fork_server(hosts)), signal.SIGHUP)
    (again,) = host.generate([PROMPT], [GOOD])
    assert again.token_ids == alone.token_ids
    assert {fork_server(hosts), *children(fork_server(hosts))} == before


def test_idle_hosts_that_were_killed_cost_nobody_anything(hosts: Hosts) -> None:
    host = served(hosts)
    host.generate([PROMPT] * 2, [replace(GOOD, constraint=Regex(f"[a-z]{{{n}}}idle")) for n in (3, 4)])
    for pid in children(fork_server(hosts)):
        os.kill(pid, signal.SIGKILL)
    (after,) = host.generate([PROMPT], [replace(GOOD, constraint=Regex("[a-z]{5}idle"))])
    assert after.outputs[0].error is None


def test_an_idle_host_is_gone_when_it_is_killed_also_if_its_child_lives_on(made: Makes) -> None:
    hosts = made()
    hosts.strategies["hostile"].compile(Regex("CP[a-z]"))
    host = hosts._pool._idle[0].result()
    assert not host.is_gone()
    os.kill(host.pid, signal.SIGKILL)
    until(host._process.has_ended)
    assert not host.has_news(), "the child has the socket too"
    assert host.is_gone()


def test_an_interrupt_leaves_no_answer_for_the_next_call(hosts: Hosts) -> None:
    """The interrupt arrives during a step, like a Ctrl-C in a notebook."""
    host = served(hosts)
    (alone,) = host.generate([PROMPT], [OTHER])
    strategy = hosts.strategies["reference"]
    grammar = strategy.compile(OTHER.constraint)  # type: ignore[arg-type]
    matcher, bitmask = grammar.matcher(VOCABULARY.stop_token_ids), new_rows()
    matcher.fill_bitmask(bitmask, 0)
    living = hosts.matchers.common.host
    assert living is not None

    def interrupted() -> Any:
        raise KeyboardInterrupt

    living._lines[0].receive = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        matcher.validate((1, 2, 3))
    wanted = new_rows()
    strategy_here = ReferenceStrategy(VOCABULARY, {})
    assert OTHER.constraint is not None
    strategy_here.compile(OTHER.constraint).matcher(VOCABULARY.stop_token_ids).fill_bitmask(wanted, 0)
    again = new_rows()
    matcher.fill_bitmask(again, 0)
    assert again.tobytes() == wanted.tobytes()
    assert host.generate([PROMPT], [OTHER])[0].token_ids == alone.token_ids


def new_rows() -> Any:
    return allocate(1, VOCABULARY.logits_width)


def test_a_crash_is_not_held_against_what_loads_beside_it(made: Makes) -> None:
    hosts = made()
    strategy = hosts.strategies["hostile"]
    bad = strategy.compile(Regex("FC[a-z]+")).matcher(VOCABULARY.stop_token_ids)
    ids = [next(i for i, token in enumerate(VOCABULARY.tokens) if token == c) for c in (b"F", b"C", b"a", b"b")]
    assert bad.accept(ids) == 4
    errors: list[BaseException] = []

    def compiling() -> None:
        for number in range(12):
            try:
                strategy.compile(Regex(f"[a-z]{{{number + 1}}}beside"))
            except BaseException as error:
                errors.append(error)

    loading = threading.Thread(target=compiling)
    loading.start()
    with pytest.raises(GuidewayError, match="SIGSEGV"):
        bad.fill_bitmask(new_rows(), 0)
    loading.join()
    assert not errors
    assert [constraint for _, constraint, _ in hosts.matchers.refused._why._values] == ["regex"], (
        "that of the culprit alone"
    )


@pytest.mark.slow
def test_matchers_that_ended_are_forgotten(hosts: Hosts) -> None:
    host = served(hosts)
    living = hosts.matchers
    for number in range(40):
        outputs = host.generate([PROMPT] * 4, [asking("[a-z]{3,40}x")] * 4)
        assert [output.outputs[0].error for output in outputs] == [None] * 4
        if number == 4:
            before = private_bytes(living.common)
    assert private_bytes(living.common) < before + 64 * WEIGHT


def test_grammars_that_ended_are_forgotten(hosts: Hosts) -> None:
    strategy, living = hosts.strategies["hostile"], hosts.matchers
    for number in range(100):
        strategy.compile(Regex(f"[a-z]{{{number}}}ended")).matcher(VOCABULARY.stop_token_ids).fill_bitmask(
            new_rows(), 0
        )
        if number == 4:
            before = private_bytes(living.common)
    assert private_bytes(living.common) < before + 64 * WEIGHT


def test_matchers_that_failed_where_they_were_made_are_forgotten(hosts: Hosts) -> None:
    grammar = hosts.strategies["hostile"].compile(Regex("AR[a-z]{2,9}", strategy="hostile"))
    for number in range(100):
        with pytest.raises(GuidewayError, match="a bug"):
            grammar.matcher(VOCABULARY.stop_token_ids).accept(encode(VOCABULARY, b"ARabcdefg"))
        if number == 4:
            before = private_bytes(hosts.matchers.common)
    assert private_bytes(hosts.matchers.common) < before + 64 * WEIGHT


@pytest.mark.slow
def test_compilations_that_hang_keep_no_one_waiting_longer_than_their_limit(made: Makes) -> None:
    host = served(made(replace(LIMITS, wall_factor=100)))  # they use up their CPU time, also on a busy machine
    hanging = [threading.Thread(target=host.runtime.admit, args=(request(i, f"CS[a-z]{{{i + 1}}}"),)) for i in range(4)]
    for thread in hanging:
        thread.start()
    for thread in hanging:
        thread.join()
    (after,) = host.generate([PROMPT], [GOOD])
    assert after.outputs[0].error is None


def compiling(hosts: Hosts) -> set[int]:
    return {started.result().pid for started in set(hosts._pool._busy) if started.done()}


def test_an_abort_ends_a_compilation_at_once(made: Makes) -> None:
    """Two compilations of minutes occupy both compilers until their requests are aborted."""
    hosts = made(replace(LIMITS, compile_seconds=60))
    host = served(hosts)
    runtime = host.runtime
    sleeping = [runtime.admit(request(i, f"CL[a-z]{{{i + 1}}}")) for i in range(2)]
    twin = runtime.admit(replace(request(7, "CL[a-z]{1}"), request_id="twin"))
    queued = runtime.admit(request(8, "[a-z]{8}"))
    until(lambda: len(compiling(hosts)) == 2)
    pids = compiling(hosts)
    runtime.abandon(sleeping[0])
    assert compiling(hosts) == pids, "another request waits for the same"
    runtime.abandon(queued)
    assert queued.compilation is not None and queued.compilation.cancelled()
    runtime.abandon(sleeping[1])
    runtime.abandon(twin)
    answer = threading.Thread(target=host.generate, args=([PROMPT], [GOOD]), daemon=True)
    answer.start()
    answer.join(30)
    assert not answer.is_alive()
    assert host.results[0].outputs[0].error is None
    assert not pids & children(fork_server(hosts))
    # the constraint is not quarantined
    again = runtime.admit(request(9, "CL[a-z]{1}"))
    assert again.compilation is not None and not again.compilation.done()
    runtime.abandon(again)


def test_an_abort_ends_no_equal_compilation_of_another_tenant(made: Makes) -> None:
    hosts = made(replace(LIMITS, compile_seconds=60))
    runtime = served(hosts, isolate_tenants=True).runtime
    admissions, pids = list[Any](), list[int]()
    for tenant in ("one", "two"):
        asked = replace(request(0, "CL[a-z]"), request_id=tenant, tenant=tenant)
        admissions.append(runtime.admit(asked))
        until(lambda: len(compiling(hosts)) == len(admissions))
        pids += compiling(hosts) - set(pids)
    runtime.abandon(admissions[0])
    until(lambda: len(compiling(hosts)) < 2)
    assert compiling(hosts) == {pids[1]}
    assert not admissions[1].compilation.done()
    runtime.abandon(admissions[1])
    until(lambda: not hosts._pool._busy)


@pytest.mark.parametrize(("word", "error"), everyday([("AS", LimitExceeded), ("AC", PluginError)], ("AC", PluginError)))
def test_the_search_for_the_shortest_output_ends_its_own_request_alone(
    made: Makes, word: str, error: type[GuidewayError]
) -> None:
    """The shortest output is searched for if the budget is too small, while other requests run."""
    hosts = made(replace(LIMITS, compile_seconds=2))
    host = served(hosts)
    small = replace(asking(f"{word}[a-z]{{9}}", close=True), max_tokens=3)
    searched = host.runtime.admit(replace(request(0, "a"), params=small))
    (other,) = host.generate([PROMPT], [GOOD])
    assert other.outputs[0].error is None
    assert searched.compilation is not None
    with pytest.raises(error):
        searched.compilation.result(30)
    host.runtime.abandon(searched)


@pytest.mark.slow
def test_an_abort_ends_the_search_for_the_shortest_output_at_once(made: Makes) -> None:
    hosts = made(replace(LIMITS, compile_seconds=60))
    runtime = served(hosts).runtime
    small = replace(asking("AL[a-z]{9}", close=True), max_tokens=3)
    searched = runtime.admit(replace(request(0, "a"), params=small))
    until(lambda: hosts.matchers.common._loaded and compiling(hosts))
    runtime.abandon(searched)
    until(lambda: not hosts._pool._busy)
    # the constraint is not quarantined
    again = runtime.admit(replace(request(1, "a"), params=small))
    until(lambda: hosts._pool._busy)
    runtime.abandon(again)


def request(number: int, pattern: str) -> Any:
    from guideway.api import Request

    return Request(request_id=f"hanging {number}", prompt_token_ids=tuple(PROMPT), params=asking(pattern))


def test_nothing_is_left_when_they_are_closed(made: Makes) -> None:
    hosts = made()
    host = served(hosts)
    before, others = len(list(Path("/proc/self/fd").iterdir())), hosts_of(os.getpid())
    host.generate([PROMPT] * 2, [GOOD, asking("FC[a-z]{9}")])
    living = hosts_of(os.getpid()) - others
    assert living >= children(fork_server(hosts)) - others and len(living) >= 2
    host.runtime.close()
    host.results.clear()  # an error's traceback keeps objects alive
    gc.collect()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in living):
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in living)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


NOTED = """
import os, sys
from guideway.api import hookimpl
from tests.support.hostile_strategy import Strategy as Hostile
def note(what):
    if "guideway_hosts" in sys.orig_argv:
        with open(os.environ["NOTED"], "a") as file:
            file.write(what)
note("imported ")
class Strategy(Hostile):
    name = "noted"
    def __init__(self, vocabulary, options):
        super().__init__(vocabulary, {})
        note("built ")
        if options and "guideway_hosts" in sys.orig_argv:
            exec(options["does"])
@hookimpl
def guideway_grammar_strategy():
    return Strategy
"""


def test_engines_share_imports_and_equal_builds_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "noted", {"grammar.noted": "noted_strategy"})
    (tmp_path / "noted_strategy.py").write_text(NOTED, "utf-8")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    with makes_hosts(tmp_path, ["noted"], LIMITS) as make:
        given: tuple[dict[str, Any], ...] = ({}, {}, {"does": "os.abort()"})
        first, second, crashing = (make(variables=["NOTED"], options={"grammar.noted": each}) for each in given)
        for hosts in (first, second):
            assert hosts.strategies["noted"].compile(Regex("[a-z]"))
        assert (tmp_path / "noted").read_text() == "imported built "
        with pytest.raises(GuidewayError, match=r"noted: importing and building ended the process .*signal SIGABRT"):
            crashing.strategies["noted"].compile(Regex("[a-z]"))
        processes = first._server.process, second._server.process
        first.close("grammar.noted")
        assert second.strategies["noted"].compile(Regex("[a-z]{2}"))
        assert None not in processes and second._server.process is processes[1]
    assert (tmp_path / "noted").read_text() == "imported built built imported built ", "the last one alone, to see how"


@pytest.mark.parametrize(
    ("does", "said"),
    one_in(2, [("os.abort()", "signal SIGABRT"), ("os._exit(0)", "exit status 0"), ("os._exit(9)", "exit status 9")]),
)
def test_a_plugin_that_ends_the_fork_server_is_named_and_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    install(tmp_path, "noted", {"grammar.noted": "noted_strategy"})
    (tmp_path / "noted_strategy.py").write_text(NOTED, "utf-8")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    with makes_hosts(tmp_path, ["noted"], LIMITS) as make:
        hosts = make(variables=["NOTED"], options={"grammar.noted": {"does": does}})
        with pytest.raises(GuidewayError, match=rf"noted: importing and building ended the process .*\({said}\)"):
            hosts.strategies["noted"].compile(Regex("[a-z]"))
    assert (tmp_path / "noted").read_text() == "imported built "


@pytest.mark.slow
def test_a_strategy_in_hosts_obeys_the_contract_of_strategies(tmp_path: Path) -> None:
    install(tmp_path, "hosted", {"grammar.hosted": "tests.support.hosted_strategy"})
    done = subprocess.run(
        [sys.executable, "-m", "guideway", "conform", "grammar.hosted", "--up-to", "core", "--timeout-factor", "4"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
    )
    assert "levels: smoke, core" in done.stdout, done.stdout + done.stderr


def test_options_that_are_wrong_are_refused_at_the_start(made: Makes) -> None:
    with pytest.raises(InvalidConfiguration, match=r"speed.*grammar\.reference"):
        made(options={"grammar.reference": {"speed": 1}})


def test_nothing_is_started_before_the_first_constraint(made: Makes) -> None:
    hosts = made()
    host = served(hosts)
    (free,) = host.generate([PROMPT], [SamplingParams(max_tokens=3)])
    assert free.outputs[0].error is None
    assert not hosts._server.process
    (result,) = host.generate([PROMPT], [GOOD])
    assert result.outputs[0].error is None
    assert hosts._server.process


def test_a_server_starts_them_before_the_first_constraint(made: Makes) -> None:
    hosts = made()
    hosts.start_soon()
    assert hosts.failure == "grammar hosts are being started"
    until(lambda: hosts.failure is None)
    assert hosts.matchers.common.is_up(0.0), "beside one that compiles"
    started = hosts._server.process
    (result,) = served(hosts).generate([PROMPT], [GOOD])
    assert result.outputs[0].error is None
    assert hosts._server.process is started
    hosts.start_soon()
    hosts.close("grammar.hostile")
    hosts.close("grammar.reference")
    hosts.start_soon()  # no effect after close
    time.sleep(0.1)
    assert not hosts._server.process


def test_who_only_tries_constraints_has_no_matcher_host(made: Makes) -> None:
    hosts = made(fills=False)
    hosts.start_soon()
    until(lambda: hosts.failure is None)
    strategy = hosts.strategies["hostile"]
    grammar = strategy.compile(Regex("[a-z]{3}", strategy="hostile"))
    assert hosts.matchers.common.host is None
    matcher = grammar.matcher(VOCABULARY.stop_token_ids)
    assert matcher.validate(encode(VOCABULARY, b"abc")) == 1, "but what is asked nevertheless is answered"


def test_what_keeps_them_from_starting_is_told_at_once(
    made: Makes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(REFUSES, "large")
    hosts = made(variables=[REFUSES])
    hosts.start_soon()
    until(lambda: "not this vocabulary" in (hosts.failure or ""))
    assert "no host can be started: not this vocabulary" in caplog.text
    (failed,) = served(hosts).generate([PROMPT], [GOOD])
    assert "not this vocabulary" in str(failed.outputs[0].error)


def test_a_strategy_that_wants_a_larger_vocabulary_is_started_at_once(
    made: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REFUSES, "small")
    hosts = made(variables=[REFUSES])
    assert hosts._server.process
    (result,) = served(hosts).generate([PROMPT], [GOOD])
    assert result.outputs[0].error is None


def test_hosts_that_cannot_be_started_cost_constrained_requests_alone(
    made: Makes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(REFUSES, "large")
    hosts = made(variables=[REFUSES])
    failed, free = served(hosts).generate([PROMPT] * 2, [GOOD, SamplingParams(max_tokens=3)])
    assert isinstance(failed.outputs[0].error, PluginError)
    assert "no host can be started: not this vocabulary" in str(failed.outputs[0].error)
    assert "no host can be started" in caplog.text
    assert free.outputs[0].error is None
    monkeypatch.delenv(REFUSES)
    hosts._server._rests_until = 0.0
    (result,) = served(hosts).generate([PROMPT], [GOOD])
    assert result.outputs[0].error is None


def test_health_tells_of_hosts_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "hostile", {"grammar.hostile": "tests.support.hostile_strategy"})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(REFUSES, "large")
    host = inline()
    host.runtime.close()
    host.runtime = RuntimePlan(
        context=host.runtime.context,
        strategies=(Plugins().load("grammar", "hostile"),),
        host_environment=(REFUSES,),
    ).build()
    try:
        host.runtime.check_health()
        (failed,) = host.generate([PROMPT], [GOOD])
        assert isinstance(failed.error, PluginError)
        with pytest.raises(Unhealthy, match="no host can be started: not this vocabulary"):
            host.runtime.check_health()
        monkeypatch.delenv(REFUSES)
        host.runtime._hosts._server._rests_until = 0.0  # type: ignore[union-attr]
        assert host.generate([PROMPT], [GOOD])[0].error is None
        host.runtime.check_health()
    finally:
        host.runtime.close()


@pytest.mark.slow
def test_an_import_that_hangs_where_hosts_come_from_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "waits", {"grammar.waits": "waiting_strategy"})
    (tmp_path / "waiting_strategy.py").write_text(WAITING, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("guideway_hosts.fork_server.START_SECONDS", 3.0)
    plugins = Plugins()
    classes, records = [plugins.load("grammar", "waits")], [plugins.resolve("grammar", "waits")]
    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=16, max_model_len=256)
    strategies = dict(zip(classes, records, strict=True))
    hosts = Hosts(context, strategies, {}, {}, num_compilers=1, path=sys.path, limits=LIMITS)
    try:
        with pytest.raises(GuidewayError, match=r"waits/grammar.waits: importing and building took more than 3 s"):
            hosts.strategies["waits"].supports(Regex("a"))
    finally:
        hosts.close("grammar.waits")


WAITING = """
import sys, time
if "guideway_hosts" in sys.orig_argv:
    time.sleep(3600)
from tests.support.hostile_strategy import *
class Strategy(Strategy):
    name = "waits"
@hookimpl
def guideway_grammar_strategy():
    return Strategy
"""


def test_a_class_that_no_entry_point_names_is_inline_and_the_start_up_line_says_so() -> None:
    class Mine(ReferenceStrategy):
        name = "mine"

    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)
    plugins = Plugins()
    reference = plugins.load("grammar", "reference")
    for strategies, places, words in [
        ((Mine, reference), {"mine": "inline", "reference": "process"}, "grammar_host=process (inline: mine)"),
        ((reference,), {"reference": "process"}, "grammar_host=process"),
        ((Mine,), {"mine": "inline"}, "grammar_host=inline"),
    ]:
        runtime = RuntimePlan(context=context, strategies=strategies).build()
        try:
            assert (runtime.places, placement("auto", runtime)) == (places, words)
            assert [isinstance(s, HostedStrategy) for s in runtime._strategies.values()] == [
                place == "process" for place in places.values()
            ]
        finally:
            runtime.close()
