"""Plugins that raise errors other than `Exception`, such as KeyboardInterrupt: one request fails, and the engine
continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from guideway import AsyncEngine, Engine, EngineConfig, FinishReason, GenerationResult, InvalidRequest, SamplingParams
from guideway.api import (
    CONTINUE,
    Array,
    Choice,
    Companion,
    CompiledGrammar,
    Constraint,
    Feedback,
    LogitModifier,
    LogitTransform,
    Need,
    Outcome,
    Payload,
    PluginError,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    Support,
    hookimpl,
)
from guideway.errors import GuidewayError
from guideway.plugins import PluginSettings
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_engine.scheduling.sequence import refusal

from tests.support.distributions import install
from tests.support.stages import everyday, one_in

T = TypeVar("T")
PROMPT = list(range(40, 60))


class HostileTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return Hostile.at("apply", "apply" if payload.arrays["wanted"].any() else "", logits)


class State(str):
    """The phase in which to raise. Each sequence has its own object."""

    __slots__ = ()


class Hostile(LogitModifier[State]):
    """Raises `error` in the phase that a request names."""

    contract = "1.0"
    name, stage, transform = "hostile", Stage.PRE_WARP, HostileTransform
    needs = frozenset({Need.COMPANIONS})
    error: ClassVar[type[BaseException]] = KeyboardInterrupt
    alive: ClassVar[list[State]] = []
    """States that were started or forked and not released."""

    @classmethod
    def at(cls, here: str, wanted: str, value: T) -> T:
        if here == wanted:
            raise cls.error
        return value

    @staticmethod
    def phase(request: Request) -> str:
        return str(request.params.modifiers.get("hostile", {"phase": ""})["phase"])

    def companions(self, request: Request) -> Sequence[Companion]:
        return self.at("companions", self.phase(request), ())

    def compile_key(self, request: Request) -> Hashable | None:
        return self.at("compile_key", self.phase(request), None)

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        return self.at("compile", self.phase(request), None)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        if self.name not in request.params.modifiers:
            return None
        self.at("start", self.phase(request), None)
        Hostile.alive.append(state := State(self.phase(request)))
        return state

    def unenforced(self, state: State) -> Sequence[str]:
        return self.at("unenforced", state, ())

    def report(self, state: State) -> Mapping[str, Any] | None:
        return self.at("report", state, None)

    def forced(self, state: State, limit: int) -> Sequence[int]:
        return self.at("forced", state, ())

    def fork(self, state: State) -> State:
        Hostile.alive.append(self.at("fork", state, child := State(state)))
        return child

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        phases = [self.at("prepare", states[i] or "", states[i]) for i in sequences.tolist()]
        wanted: Any = [(lambda: True) if phase == "pickle" else phase == "apply" for phase in phases]
        return Payload(rows, {"wanted": np.array(wanted)}, MappingProxyType({"none": np.zeros(0)}))

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        return self.at("accept", state, CONTINUE)

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return self.at("validate", state, len(token_ids))

    def release(self, state: State | None) -> None:
        if state is not None:
            Hostile.alive[:] = [other for other in Hostile.alive if other is not state]
        self.at("release", state or "", None)


class HostileStrategy(ReferenceStrategy):
    """Raises in the phase that the last choice names."""

    name, kinds = "hostile", frozenset({"choice"})

    def supports(self, constraint: Constraint) -> Support:
        return Hostile.at("supports", self.phase(constraint), super().supports(constraint))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        phase = self.phase(constraint)
        grammar: Any = Hostile.at("compile", phase, super().compile(constraint))
        make = grammar.matcher

        def matcher(stop_token_ids: frozenset[int]) -> Any:
            made = Hostile.at("matcher", phase, make(stop_token_ids))
            if phase in ("fill", "accept"):
                setattr(made, {"fill": "fill_bitmask"}.get(phase, phase), lambda *_: Hostile.at(phase, phase, None))
            return made

        grammar.matcher = matcher
        return grammar  # type: ignore[no-any-return]

    @staticmethod
    def phase(constraint: Constraint) -> str:
        assert isinstance(constraint, Choice)
        return constraint.choices[-1]


class Hooks:
    """Hooks that raise in the phase that a request's tenant names."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        Hostile.at("validate_request", request.tenant, None)

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        Hostile.at("request_started", request.tenant, None)

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        Hostile.at("request_finished", request.tenant, None)


hooks = Hooks()


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return Hostile


@hookimpl
def guideway_grammar_strategy() -> type[ReferenceStrategy]:
    return HostileStrategy


PLUGINS = ("modifier.hostile", "grammar.hostile", "hooks.hostile")
PHASES = {
    "modifier.hostile": (
        *("companions", "compile_key", "compile", "start", "unenforced"),
        *("prepare", "apply", "forced", "validate", "accept", "report", "release"),
    ),
    "grammar.hostile": ("supports", "compile", "matcher", "fill", "accept"),
    "hooks.hostile": ("validate_request", "request_started", "request_finished"),
}
QUIET = {("modifier.hostile", "release"), ("hooks.hostile", "request_started"), ("hooks.hostile", "request_finished")}
"""Failures that are only logged and do not affect the request."""
CASES = [(plugin, phase) for plugin, phases in PHASES.items() for phase in phases]
ELSEWHERE = {("grammar.hostile", "compile"), ("modifier.hostile", "compile")}
"""Calls that run in another thread than the engine's."""


@pytest.fixture(scope="module", params=["local"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineConfig]:
    folder = tmp_path_factory.mktemp("plugins")
    here = "test_hostile_plugins"
    install(folder, "hostile", dict.fromkeys(PLUGINS, here) | {"hooks.hostile": f"{here}:hooks"})
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield EngineConfig(
            model="demo",
            grammar=("hostile",),
            grammar_host="inline",  # errors are set in this process
            modifiers=("hostile",),
            plugins=PluginSettings(enable=("hostile",)),
            num_speculative_tokens=2,
            dtype="float64",
            executor=request.param,
        )


@pytest.fixture(scope="module")
def engine(config: EngineConfig) -> Iterator[Engine]:
    with Engine(config) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[GenerationResult]:
    return engine.generate([PROMPT] * 2, [good(0), good(1)])


@pytest.fixture(params=[KeyboardInterrupt, GeneratorExit], ids=lambda error: error.__name__)
def error(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[BaseException]:
    from test_hostile_plugins import Hostile

    raised: type[BaseException] = request.param
    monkeypatch.setattr(Hostile, "error", raised)
    return raised


def good(i: int) -> SamplingParams:
    return SamplingParams(max_tokens=12, temperature=0.9, seed=i)


def bad(plugin: str, phase: str) -> tuple[SamplingParams, str]:
    """Return parameters and tenant of a request for which `plugin` raises in `phase`."""
    modifiers = {"hostile": {"phase": phase}} if plugin == "modifier.hostile" else None
    constraint = Choice(["abab", "abba", phase]) if plugin == "grammar.hostile" else None
    # a repetition, so that there are drafts
    bias = {70: 100.0} if plugin == "modifier.hostile" else None
    # not closed: closing would call `accept` with tokens that are not drawn
    params = SamplingParams(
        max_tokens=6, modifiers=modifiers, constraint=constraint, logit_bias=bias, ignore_eos=bool(bias), close=False
    )
    return params, phase if plugin == "hooks.hostile" else ""


def check(plugin: str, phase: str, error: type[BaseException], result: GenerationResult) -> None:
    if (plugin, phase) in QUIET:
        assert result.error is None and result.token_ids
    elif phase == "validate_request":
        assert isinstance(result.error, InvalidRequest)
        assert str(result.error).startswith("validator hostile/hooks.hostile failed")
    else:
        assert isinstance(result.error, PluginError) and result.error.plugin == plugin
        # either method may use the matcher first
        phases = (phase, "forced") if (plugin, phase) == ("grammar.hostile", "accept") else (phase,)
        assert str(result.error).startswith(tuple(f"{plugin} failed in {each}: {error.__name__}" for each in phases))
        assert result.finish_reason is FinishReason.INTERNAL_ERROR


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


@pytest.mark.parametrize("error", everyday([KeyboardInterrupt, GeneratorExit], KeyboardInterrupt), indirect=True)
def test_in_the_async_engine_it_costs_one_request(config: EngineConfig, error: type[BaseException]) -> None:
    async def main() -> None:
        async with AsyncEngine(config) as engine:
            alone = [await engine.generate(PROMPT, good(i)) for i in range(2)]
            for plugin, phase in CASES:
                params, tenant = bad(plugin, phase)
                first, failed, last = await asyncio.gather(
                    engine.generate(PROMPT, good(0)),
                    engine.generate(PROMPT, params, tenant=tenant),
                    engine.generate(PROMPT, good(1)),
                )
                check(plugin, phase, error, failed)
                assert [first.token_ids, last.token_ids] == [result.token_ids for result in alone], (plugin, phase)

    run(main())


@pytest.mark.parametrize(("plugin", "phase"), one_in(2, CASES))
def test_in_an_engine_it_costs_one_request_or_is_an_interrupt(
    plugin: str, phase: str, engine: Engine, alone: list[GenerationResult], error: type[BaseException]
) -> None:
    hostile, tenant = bad(plugin, phase)
    params, tenants = [good(0), hostile, good(1)], ["", tenant, ""]
    if error is KeyboardInterrupt and (plugin, phase) not in ELSEWHERE:  # the main thread, which Ctrl-C interrupts
        with pytest.raises(KeyboardInterrupt):
            engine.generate([PROMPT] * 3, params, tenants=tenants)
    else:
        first, failed, last = engine.generate([PROMPT] * 3, params, tenants=tenants)
        check(plugin, phase, error, failed)
        assert [first.token_ids, last.token_ids] == [result.token_ids for result in alone]
    assert not engine.has_work() and not engine._runtime._open
    again = engine.generate([PROMPT] * 2, [good(0), good(1)])
    assert [result.token_ids for result in again] == [result.token_ids for result in alone]


@pytest.mark.parametrize(
    "error", everyday([KeyboardInterrupt, SystemExit, asyncio.CancelledError], KeyboardInterrupt), indirect=True
)
@pytest.mark.parametrize(("plugin", "phase"), one_in(2, CASES))
def test_in_steps_that_are_made_again_it_is_raised_at_most_once(
    plugin: str, phase: str, engine: Engine, alone: list[GenerationResult], error: type[BaseException]
) -> None:
    from test_hostile_plugins import Hostile

    interrupts: list[BaseException] = []

    def again(call: Callable[[], Any]) -> Any:
        """Call until it is not interrupted, at most ten times."""
        for _ in range(10):
            try:
                return call()
            except KeyboardInterrupt as interrupt:
                interrupts.append(interrupt)
            except GuidewayError as refused:
                return refusal("", refused)
        return None

    hostile, tenant = bad(plugin, phase)
    requests = [(good(0), ""), (hostile, tenant), (good(1), "")]
    generations = [
        again(lambda params=params, whose=whose: engine.submit(PROMPT, params, tenant=whose, wait=False))
        for params, whose in requests
    ]
    for _ in range(100):
        again(lambda: engine.step(timeout=0))
    ended = [each if isinstance(each, GenerationResult) else each.result for each in generations]
    assert len(interrupts) == (error is KeyboardInterrupt and (plugin, phase) not in ELSEWHERE)
    check(plugin, phase, error, ended[1])
    assert [ended[i].token_ids for i in (0, 2)] == [result.token_ids for result in alone]
    assert not engine.has_work() and not engine._runtime._open and not Hostile.alive
    assert engine._scheduler._cache.capacity() == engine._scheduler._cache.num_slots


def test_a_fork_that_is_interrupted_leaves_its_sequence_alone(engine: Engine, error: type[BaseException]) -> None:
    from test_hostile_plugins import Hostile

    generation = engine.submit(PROMPT, replace(good(0), modifiers={"hostile": {"phase": "fork"}}))
    engine.step()
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            generation.fork()
    with pytest.raises(PluginError, match="failed in fork"):
        generation.fork()
    assert generation.wait().error is None and not Hostile.alive


def test_a_compilation_that_is_interrupted_keeps_nobody_waiting(
    engine: Engine, alone: list[GenerationResult], error: type[BaseException]
) -> None:
    failing = engine.submit(PROMPT, bad("grammar.hostile", "compile")[0], wait=False)
    other = engine.submit(PROMPT, good(0), wait=False)
    while engine.has_work():
        engine.step()
    assert failing.result is not None
    check("grammar.hostile", "compile", error, failing.result)
    assert other.result is not None and other.result.token_ids == alone[0].token_ids


@pytest.mark.slow
@pytest.mark.parametrize("config", ["process"], indirect=True)
def test_in_a_workers_process_it_costs_one_request(engine: Engine, alone: list[GenerationResult]) -> None:
    from test_hostile_plugins import Hostile

    assert Hostile.error is KeyboardInterrupt
    said = {
        "apply": "modifier.hostile failed in apply: KeyboardInterrupt",
        "pickle": "modifier.hostile failed in prepare: ConformanceError: payload array 'wanted' cannot be pickled",
    }
    for phase, message in said.items():
        hostile, _ = bad("modifier.hostile", phase)
        neighbors = [replace(good(i), modifiers={"hostile": {"phase": "none"}}) for i in range(2)]
        first, failed, last = engine.generate([PROMPT] * 3, [neighbors[0], hostile, neighbors[1]])
        assert isinstance(failed.error, PluginError) and str(failed.error).startswith(message)
        assert failed.finish_reason is FinishReason.INTERNAL_ERROR
        assert [first.token_ids, last.token_ids] == [result.token_ids for result in alone]
