"""Steps of a batch whose tokens are accepted and whose masks are filled in one call each, while sequences leave and
join."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal
from unittest.mock import patch

import guideway_hosts.host as hosts_module
import numpy as np
import pytest
from guideway.api import (
    CompiledGrammar,
    Constraint,
    FillJob,
    FinishReason,
    LogitModifier,
    LogitTransform,
    Matcher,
    Need,
    Regex,
    Request,
    SamplingParams,
    Stage,
)
from guideway.api.bitmask import Bitmask
from guideway.devices.numpy.device import NumpyDevice
from guideway.plugins import Plugins
from guideway.plugins.limits import Limits
from guideway.runtime import RuntimePlan
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.runtime import Runtime
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY, WORD, assert_alone_ends
from tests.support.stages import examples

BRITTLE, SLOW = Regex("[a-y]{6,14}z"), Regex("[a-y]{7,14}z")
GOOD = SamplingParams(constraint=WORD, temperature=1.0, seed=7, max_tokens=24, close=False)


class Counted(Matcher):
    """The reference's matcher. For two constraints it fails, or takes long, at the fourth token."""

    def __init__(self, inner: Matcher, source: str, length: int = 0) -> None:
        self.inner, self.source, self.length = inner, source, length

    def accept(self, token_ids: Sequence[int]) -> int:
        Batched.num_accepts += 1
        count = self.inner.accept(token_ids)
        self.length += count
        if self.length >= 4 and self.source == BRITTLE.source():
            raise RuntimeError("brittle")
        if self.length == 4 and self.source == SLOW.source():
            end = time.thread_time() + 0.2
            while time.thread_time() < end:
                pass
        return count

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)
        self.length -= num_tokens

    def fork(self) -> Counted:
        return Counted(self.inner.fork(), self.source, self.length)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self.inner.fill_bitmask(bitmask, row)

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()


class Compiled(CompiledGrammar):
    nbytes = 1

    def __init__(self, inner: CompiledGrammar, source: str) -> None:
        self.inner, self.source = inner, source

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Counted(self.inner.matcher(stop_token_ids), self.source)


class Batched(ReferenceStrategy):
    """Counts its calls. Those in `trouble` raise, or say that a matcher failed, after they moved some matchers."""

    name = "batched"
    num_advances: ClassVar[int] = 0
    num_accepts: ClassVar[int] = 0
    num_fills: ClassVar[int] = 0
    trouble: ClassVar[frozenset[int]] = frozenset()

    def compile(self, constraint: Constraint) -> Any:
        return Compiled(super().compile(constraint), constraint.source())

    def advance(self, matchers: Sequence[Matcher], token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        assert all(type(matcher) is Counted for matcher in matchers)
        Batched.num_advances += 1
        fails = Batched.num_advances in Batched.trouble
        if fails and Batched.num_advances % 2:
            super().advance(matchers[::2], token_ids[::2])
            raise RuntimeError("the whole call")
        found = super().advance(matchers, token_ids)
        if fails:
            found[-1] = -1
        return found

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        Batched.num_fills += 1
        if 3 * Batched.num_fills in Batched.trouble:
            for job in jobs:
                job.matcher.rollback(0)
                job.matcher.accept((VOCABULARY.tokens.index(b"a"),))
            raise RuntimeError("the whole call")
        return super().fill(jobs, bitmask)


class Rolling(Batched):
    """Rolls nothing back, so its matchers are wrapped."""

    name = "rolling"
    capabilities = frozenset()
    max_rollback = 0


class Untouched(LogitTransform):
    def apply(self, logits: Any, payload: Any, step: Any) -> Any:
        return logits


class Cuts(LogitModifier[None]):
    """Takes the last bytes off the prompts of requests that select it, and does nothing else."""

    name, stage, transform = "cuts", Stage.PRE_WARP, Untouched
    needs = frozenset({Need.EDIT_PROMPT})

    def edit_prompt(self, request: Request) -> tuple[Sequence[int], bytes]:
        kept = request.prompt_token_ids[:-3]
        return kept, VOCABULARY.decode(request.prompt_token_ids[len(kept) :])

    def start(self, request: Request, sequence: Any, compiled: Any) -> None:
        return None

    def prepare(self, batch: Any, states: Any) -> None:
        return None


class Host(FakeHost):
    """Keeps what is needed to preempt, and what steps are to record."""

    def __init__(self, *strategies: type[Batched], **options: Any) -> None:
        Batched.num_advances = Batched.num_accepts = Batched.num_fills = 0
        named = {cls.name: cls(VOCABULARY, {}) for cls in strategies}
        super().__init__(VOCABULARY, NumpyDevice("cpu"), strategies=named, modifiers=(Cuts,), **options)
        self.recorded: list[list[bool] | None] = []
        """`StepInput.records` of each step."""
        self.admissions: dict[int, Any] = {}
        self.actions: list[list[str]] = []
        """Of the outcomes of each step."""
        admit, accept = self.runtime.admit, self.runtime.accept

        def keep(request: Request) -> Any:
            # those whose masks a host restricts, as vLLM's guest does
            bans = Bans(logit_bias=frozenset(range(80, 95)), min_tokens=6) if request.params.top_k else None
            self.admissions[int(request.request_id)] = admission = admit(request, bans)
            return admission

        def record(*args: Any) -> Any:
            outcomes = accept(*args)
            self.actions.append([outcome.action for outcome in outcomes])
            return outcomes

        prepare = self.runtime.prepare

        def note(*args: Any) -> Any:
            step = prepare(*args)
            self.recorded.append(None if step.records is None else step.records.tolist())
            return step

        self.runtime.admit, self.runtime.accept = keep, record  # type: ignore[method-assign, assignment]
        self.ended: list[Any] = []
        """Of each sequence that was released, what closing wrote into its journal."""
        release = self.runtime.release

        def keep_end(slot: int, **options: Any) -> None:
            journal = self.runtime.journal(slot)
            self.ended.append((journal.request.request_id, list(journal.ends), journal.closed_early))
            release(slot, **options)

        self.runtime.prepare, self.runtime.release = note, keep_end  # type: ignore[method-assign]

    def preempt(self, slot: int) -> None:
        journal = self.runtime.journal(slot)
        self.runtime.release(slot, ended=False)
        self.runtime.start(self.admissions[int(journal.request.request_id)], slot, journal=journal)


def run(host: Host, requests: Sequence[SamplingParams], acts: Sequence[str] = ()) -> Any:
    """Run all requests; `acts` happen before the first steps, one each. With "join" among them, half of the requests
    come later, in the first slot that is free. Return what all can be compared by."""
    Batched.num_advances = Batched.num_accepts = Batched.num_fills = 0
    host.tokens, host.requests, host.limits, host.results = {}, {}, {}, {}
    waiting = list(enumerate(requests))
    num_first = (len(waiting) + 1) // 2 if "join" in acts else len(waiting)
    left, acts, found = waiting[num_first:], list(acts), dict[int, Any]()
    running: dict[int, int] = {}
    """By slot the number of its request."""

    def join(number: int, params: SamplingParams) -> None:
        slot = next(slot for slot in range(16) if slot not in host.tokens)
        running[slot] = number
        host.join(slot, Request(request_id=str(number), prompt_token_ids=tuple(PROMPT), params=params))

    for number, params in waiting[:num_first]:
        join(number, params)
    while host.tokens or left:
        act = acts.pop(0) if acts else "join"
        slots = list(host.tokens)
        host.num_drafts = 2 if act == "draft" else 0
        if act == "join" and left:
            join(*left.pop())
        elif slots and act == "preempt":
            host.preempt(slots[len(slots) // 2])
        elif slots and act == "rebuild":
            host.runtime.rebuild(slots[0])
        elif slots and act == "read":
            num_prompt_tokens = len(host.request(slots[-1]).prompt_token_ids)  # a modifier may have cut it
            assert host.runtime.journal(slots[-1]).token_ids == host.tokens[slots[-1]][num_prompt_tokens:]
        elif slots and act == "unenforced":
            host.runtime.unenforced(slots[-1])
        elif act == "reverse":
            host.tokens = dict(reversed(host.tokens.items()))
        paused = {slot: host.tokens.pop(slot) for slot in slots[1:2] if act == "pause"}
        if host.tokens:
            host.step()
        host.tokens |= paused
        for slot in list(host.results):
            found[running[slot]] = host.results.pop(slot)
    outputs = [(found[i].token_ids, str(found[i].error), found[i].unenforced) for i in sorted(found)]
    return outputs, host.actions, host.recorded, host.ended


SOURCES = [WORD, Regex("(ab|cd|[e-g]{2})*z"), BRITTLE, Regex("[a-p]{9,30}"), None]
ACTS = ["plain", "plain", "draft", "preempt", "rebuild", "read", "unenforced", "reverse", "pause", "join", "join"]


@st.composite
def batches(draw: st.DrawFn) -> list[SamplingParams]:
    """Requests, in most batches without anything that needs a look at each step."""
    is_quiet = draw(st.integers(0, 3)) > 0
    constraints = draw(st.lists(st.sampled_from(SOURCES), min_size=1, max_size=8))
    return [
        SamplingParams(
            constraint=constraint,
            modifiers={"cuts": {}} if constraint is None and draw(st.booleans()) else {},
            records=draw(st.booleans()),
            temperature=draw(st.sampled_from([0.0, 1.0])),
            seed=draw(st.integers(0, 5)),
            max_tokens=draw(st.integers(1, 40)),
            close=draw(st.booleans()),
            presence_penalty=0.0 if is_quiet else draw(st.sampled_from([0.0, 1.0])),
            top_k=0 if is_quiet else draw(st.sampled_from([0, 0, 0, 50])),
            logit_bias={} if is_quiet else draw(st.sampled_from([{}, {VOCABULARY.tokens.index(b"b"): -100.0}])),
        )
        for constraint in constraints
    ]


@example(
    requests=[SamplingParams(constraint=BRITTLE, max_tokens=14, temperature=1.0, seed=2, close=True)],
    acts=[],
    trouble=frozenset(),
    rolls=False,
)
@given(
    requests=batches(),
    acts=st.lists(st.sampled_from(ACTS), max_size=16),
    trouble=st.frozensets(st.integers(1, 24), max_size=4),
    rolls=st.booleans(),
)
@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
def test_tokens_are_those_of_one_by_one(
    requests: list[SamplingParams], acts: list[str], trouble: frozenset[int], rolls: bool
) -> None:
    strategy = Batched if rolls else Rolling
    Batched.trouble = frozenset()
    with patch.object(Runtime, "_form_steady", lambda *_: None):
        wanted = run(Host(strategy, short_budget="cut"), requests, acts)
        assert Batched.num_advances == 0
    Batched.trouble = trouble
    try:
        assert run(Host(strategy, short_budget="cut"), requests, acts) == wanted
    finally:
        Batched.trouble = frozenset()


@pytest.mark.parametrize("strategy", [Batched, Rolling])
def test_a_batch_that_stays_is_accepted_in_one_call(strategy: type[Batched]) -> None:
    host = Host(strategy)
    steps = [replace(GOOD, constraint=Regex("[a-z]{40}"), seed=seed, max_tokens=16) for seed in range(8)]
    host.generate([PROMPT] * 8, steps)
    assert Batched.num_advances == 15, "all but the step that ends them"
    assert Batched.num_accepts == 16 * 8, "each by the reference's default, none again"
    assert Batched.num_fills == 16


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("strategy", [Batched, Rolling])
def test_a_batch_stays_together_while_sequences_leave_and_join(strategy: type[Batched], reads: bool) -> None:
    """Also one whose journal is read between two steps."""
    host, num_steps = Host(strategy), 0
    left = [replace(GOOD, constraint=Regex("[a-z]{40}"), seed=seed, max_tokens=8 + seed % 8) for seed in range(24)]
    num_tokens = sum(params.max_tokens or 0 for params in left)
    while left or host.tokens:
        for slot in [slot for slot in range(8) if slot not in host.tokens and left]:
            host.join(slot, Request(request_id=str(len(left)), prompt_token_ids=tuple(PROMPT), params=left.pop()))
        if reads:
            host.runtime.journal(next(iter(host.tokens)))
        host.step()
        num_steps += 1
    assert Batched.num_accepts == num_tokens, "each once"
    assert Batched.num_fills == num_steps
    assert Batched.num_advances > num_steps - 8, "all but those in which all that are left end"


@pytest.mark.parametrize("max_tokens", [24, 60])
def test_outputs_are_closed_in_time(max_tokens: int) -> None:
    wanted = replace(GOOD, constraint=Regex("([a-p]{4})*z"), max_tokens=max_tokens, close=True)
    host = Host(Batched)
    results = host.generate([PROMPT] * 3, [replace(wanted, seed=seed) for seed in range(3)])
    assert [result.finish_reason for result in results] == [FinishReason.STOP] * 3
    assert Batched.num_advances > 0


def test_closing_that_takes_no_token_leaves_a_batch_together() -> None:
    wanted = replace(GOOD, constraint=Regex("[a-p]{9,30}"), max_tokens=40, close=True)
    tight, loose = [], []
    for params, counts in ((wanted, tight), (replace(wanted, close=False), loose)):
        found = Host(Batched).generate([PROMPT] * 3, [replace(params, seed=seed) for seed in range(3)])
        counts += [[result.token_ids for result in found], Batched.num_advances, Batched.num_fills]
    assert tight == loose


@pytest.mark.parametrize(
    "other",
    [
        replace(GOOD, records=True),
        SamplingParams(modifiers={"cuts": {}}, temperature=1.0, seed=2, max_tokens=8),
    ],
    ids=["records", "begins with bytes"],
)
def test_what_a_step_asks_for_beside_masks_is_asked_for_in_every_step(other: SamplingParams) -> None:
    requests = [replace(GOOD, constraint=Regex("[a-z]{40}")), other]
    with patch.object(Runtime, "_form_steady", lambda *_: None):
        wanted = run(Host(Batched, short_budget="cut"), requests)
    host = Host(Batched, short_budget="cut")
    assert run(host, requests) == wanted
    assert Batched.num_advances > 0


def test_who_fails_in_a_call_of_many_fails_alone() -> None:
    result = assert_alone_ends(Host(Batched), replace(GOOD, constraint=BRITTLE), GOOD)
    assert "grammar.batched failed in accept: RuntimeError: brittle" in str(result.error)


def test_who_is_slow_in_a_call_of_many_fails_alone() -> None:
    host = Host(Batched, limits=Limits(step_seconds=0.1, wall_factor=1000))
    result = assert_alone_ends(host, replace(GOOD, constraint=SLOW), GOOD)
    assert "grammar.batched failed in accept: LimitExceeded: it took " in str(result.error)


def served(
    home: Literal["inline", "process"], seed: int, ends_at: int | None = None, *, acts: Sequence[str] = ()
) -> Any:
    """Return the tokens of ten requests that run at most four at a time, in hosts of which one ends in a step, the
    commands to hosts, and the number of steps. `seed` draws when they start, and which of `acts` happen. Without acts
    no output is closed."""
    rng, host, commands = random.Random(seed), FakeHost(VOCABULARY, NumpyDevice("cpu")), list[Any]()
    strategies = [Plugins().load("grammar", "reference")]
    plan = RuntimePlan(context=host.runtime.context, strategies=strategies, grammar_host=home)
    host.runtime.close()
    host.runtime = plan.build()
    send = hosts_module.Host.send

    def record(there: Any, *command: Any, **options: Any) -> None:
        commands.append(command[2] if command[:1] == ("call",) else command[0] if command else "")
        send(there, *command, **options)

    left, found, num_steps = list(range(10)), dict[int, Any](), 0
    running: dict[int, int] = {}
    with patch.object(hosts_module.Host, "send", record):
        while left or host.tokens:
            waits = host.tokens and rng.random() < 0.7  # a slot stays free for some steps
            for slot in [slot for slot in range(4) if slot not in host.tokens and not waits][: len(left)]:
                running[slot] = number = left.pop(0)
                constraint = Regex(["[a-z]{3,90}(xy)", "([a-p]{2,4}[q-y])*z"][number % 2])
                closes = bool(acts) and number % 4 == 0
                params = SamplingParams(
                    constraint=constraint, temperature=1.0, seed=number, max_tokens=8 + 5 * number, close=closes
                )
                host.join(slot, Request(request_id=str(number), prompt_token_ids=tuple(PROMPT), params=params))
            slots, paused = list(host.tokens), dict[int, Any]()
            match rng.choice([*[""] * 12, *acts]):
                case "read":
                    host.runtime.journal(slots[0])
                case "rebuild":
                    host.runtime.rebuild(slots[0])
                case "validate":
                    host.runtime.validate(slots[-1], (1, 2))
                case "pause" if len(slots) > 1:
                    paused = {slots[1]: host.tokens.pop(slots[1])}
                case "reverse":
                    host.tokens = dict(reversed(host.tokens.items()))
            if rng.random() < 0.7:
                host.runtime.foresee(dict.fromkeys(host.tokens, ()))
            if num_steps == ends_at and home == "process":
                matchers = next(iter(host.runtime._strategies.values()))._matchers  # type: ignore[attr-defined]
                os.kill(matchers.common.host.pid, signal.SIGKILL)
            host.step()
            num_steps += 1
            host.tokens |= paused
            for slot in list(host.results):
                found[running[slot]] = host.results.pop(slot).token_ids
    host.runtime.close()
    return found, commands, num_steps


@given(seed=st.integers(0, 1000), ends_at=st.none() | st.integers(0, 30))
@settings(max_examples=examples(24), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_sequences_in_hosts_leave_and_join_without_a_change_of_tokens(seed: int, ends_at: int | None) -> None:
    acts = ["read", "rebuild", "pause", "validate", "reverse"]
    assert served("inline", seed, acts=acts)[0] == served("process", seed, ends_at, acts=acts)[0]


def test_hosts_are_told_only_what_changes_in_a_batch() -> None:
    found, commands, num_steps = served("process", 3)
    assert found == served("inline", 3)[0]
    assert commands.count("step") == 1, "the first"
    num_more = commands.count("again") + commands.count("") - (num_steps - 1)
    assert 0 <= num_more < 10, "one for each that joins after the others have begun with the next step"


@pytest.mark.parametrize("ends", [False, True])
def test_sequences_in_hosts_have_the_tokens_of_those_in_this_process(ends: bool) -> None:
    """Also where outputs have to be closed, and if the host `ends` on the way."""
    wanted = [
        SamplingParams(constraint=Regex("[a-z]{3,90}(xy)"), temperature=1.0, seed=i, max_tokens=50 + 8 * i)
        for i in range(4)
    ]
    tokens = []
    for home in ("inline", "process"):
        host = FakeHost(VOCABULARY, NumpyDevice("cpu"))
        plan = RuntimePlan(
            context=host.runtime.context, strategies=[Plugins().load("grammar", "reference")], grammar_host=home
        )
        host.runtime.close()
        host.runtime = plan.build()
        for slot, params in enumerate(wanted):
            host.join(slot, Request(request_id=str(slot), prompt_token_ids=tuple(PROMPT), params=params))
        num_steps, num_steady, closed = 0, 0, list[tuple[int, bool]]()
        while host.tokens:
            host.runtime.foresee(dict.fromkeys(host.tokens, ()))
            host.step()
            num_steps += 1
            num_steady += host.runtime.is_steady
            closed += [(slot, host.runtime.closed_early(slot)) for slot in host.tokens]
            if ends and num_steps == 5 and home == "process":
                matchers = next(iter(host.runtime._strategies.values()))._matchers  # type: ignore[attr-defined]
                os.kill(matchers.common.host.pid, signal.SIGKILL)
        assert num_steady > 8
        assert len(set(closed)) > len(wanted), "some are closed"
        tokens.append((closed, [host.results[slot].token_ids for slot in range(len(wanted))]))
        host.runtime.close()
    assert tokens[0] == tokens[1]


def test_a_journal_ends_with_the_closing_record_of_its_matcher() -> None:
    """Also in a step in which another sequence ends. A matcher made again from the journal begins there."""
    strategies = [Plugins().load("grammar", "reference")]
    host = FakeHost(VOCABULARY, NumpyDevice("cpu"))
    plan = RuntimePlan(context=host.runtime.context, strategies=strategies, grammar_host="process")
    host.runtime.close()
    host.runtime = plan.build()
    compared = 0
    for seed in range(10):
        for slot in range(8):
            constraint = Regex("[a-z]*(b[a-z]*)?" if slot % 2 else "([a-z]{2})*")
            params = SamplingParams(
                temperature=1.0, seed=100 * seed + slot, max_tokens=12 + 5 * slot, constraint=constraint
            )
            name = f"{seed}/{slot}"
            host.join(slot, Request(request_id=name, prompt_token_ids=tuple(PROMPT), params=params))
        while host.tokens:
            host.step()
            if host.runtime.is_steady:
                continue
            for slot in host.tokens:
                sequence = host.runtime._slots[slot]
                state = host.runtime._modifiers.state(sequence, host.runtime._mask)
                if state is not None and state.end is not None:
                    assert sequence.journal.end == state.end
                    compared += 1
    host.runtime.close()
    assert compared
